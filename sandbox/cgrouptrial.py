"""Whether runs get a cgroup of their own here: for ``doctor`` by trying, for ``policy explain`` by looking.

Not needed for confinement: without one the limits hold for each process instead of all together.
"""

from __future__ import annotations

import subprocess

from stockade.policies.capability import Capability
from stockade.sandbox import cgroup, shortage

SECONDS = 10
WITHOUT = "limits.memory is of each process"
SCRIPT = 'echo $$ > "$0/cgroup.procs" || exit 1; (echo one); ((echo two); :) 2> /dev/null; :'
"""In a cgroup for two: the second process is let through, the third is not."""


def capability(root: str = cgroup.ROOT, own: str | None = None, *, tried: bool) -> Capability:
    """The capability ``cgroup``. ``tried``: by making one and running into its limit."""
    choice = cgroup.choose(cgroup.look(root, own))
    if choice.parent:
        return trial(choice.parent) if tried else found(choice.parent)
    from stockade.sandbox import scope

    if scope.wanted(scope.facts_here(root, own)):
        return (
            scope.trial() if tried else Capability("cgroup", "ok", "in a scope of the user's systemd (not tried)")
        )
    return Capability("cgroup", "missing", f"{choice.problem}: {WITHOUT}", choice.remedy)


def found(parent: str) -> Capability:
    return Capability("cgroup", "ok", f"limits hold for a run as a whole (below {parent})")


def trial(parent: str) -> Capability:
    """Make one, join it, reach its limit, remove it."""
    try:
        group = cgroup.Groups(parent).make(None, 1)
    except OSError as error:
        return refused(f"none can be made below {parent}: {(error.strerror or str(error)).lower()}")
    try:
        command = ["/bin/sh", "-c", SCRIPT, group.path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        said, figures = done.stdout, group.figures()
        untried = "" if said else shortage.cause_in(done.stderr)
    except (OSError, subprocess.TimeoutExpired) as error:
        said, figures = "", {}
        untried = shortage.cause_in(str(error)) or f"the trial could not be run: {error}"
    finally:
        gone = group.remove()
    if said == "one\n" and figures.get("forks_refused") and gone:
        return found(parent)
    if untried:
        return shortage.untried("cgroup", untried)
    return refused(f"the trial below {parent} did not show that a limit holds")


def refused(why: str) -> Capability:
    return Capability("cgroup", "disabled", f"{why}: {WITHOUT}", cgroup.IN_SCOPE)
