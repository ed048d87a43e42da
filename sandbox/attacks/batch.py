"""Tries many attempts at once: each control outside, then all of them in one box, then a look at the host."""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib import import_module

from stockade.policies.errors import StockadeError
from stockade.policies.model import parse_tree
from stockade.sandbox.attacks.bait import HIDDEN, PROTECTED, VARIABLE, Bait, changed
from stockade.sandbox.attacks.judge import NOT_TRIED, THROUGH, Result, control_failed, judge, row
from stockade.sandbox.attacks.toolbox import ATTEMPTS, OWN, Attempt, perform

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from stockade.policies.model import Policy

    Outcome = Sequence[str]
    Controls = dict[str, tuple[Outcome, list[str]]]
    Policies = Callable[[str, Bait, str, bool], Policy]

PROGRAMS = (
    "files", "leftovers", "secrets", "sockets", "identities", "processes", "namespaces", "kernel", "procfs", "devices",
    "exhaust",
)  # fmt: skip
PREFIX = "stockade.sandbox.attacks"
SECONDS = 120
BOXES: dict[str, dict[str, Any]] = {
    "writable": {},
    "limits": {
        "limits": {"processes": 40, "memory": "96M", "tmp": "4M", "file_size": "2M", "open_files": 64},
    },
}
"""What the policy of each box has over the common one."""


class BoxFailed(StockadeError):
    """A box could not be run, so nothing can be said of what is tried in it."""


def load(names: Iterable[str] = PROGRAMS) -> list[Attempt]:
    """The attempts of these files, in their order."""
    for name in names:
        import_module(f"{PREFIX}.programs.{name}")
    return list(ATTEMPTS.values())


def policy_of(box: str, bait: Bait, user: str, filtered: bool) -> Policy:
    tree: dict[str, Any] = {
        "extends": "workspace-write",
        "mode": "auto",
        "filesystem": {
            "read": [f"{bait.top}/visible"],
            "protect": list(PROTECTED),
            "hide": list(HIDDEN),
            "toolchains": "none",
        },
        "process": {"user": user},
        "syscalls": {"filter": "default" if filtered else "off"},
        **BOXES[box],
    }
    return parse_tree(tree, "the attacks")


def interpreter() -> str:
    """A Python that every box shows."""
    own = os.path.realpath(sys.executable)
    found = own if own.startswith("/usr/") else shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    if found is None:
        raise BoxFailed("could not attack: there is no python3 under /usr", remedy="Install python3.")
    return found


def program_text(modules: Iterable[str], job: dict[str, Any]) -> bytes:
    """One program for the box: the toolbox and these files of attempts, under the names they import each other by."""
    parts = ["import sys, types, json", "files = " + repr({name: source(name) for name in ("toolbox", *modules)})]
    parts.append(
        f"for name, text in files.items():\n"
        f"    module = types.ModuleType({PREFIX!r} + '.' + name)\n"
        f"    sys.modules[module.__name__] = module\n"
        f"    exec(compile(text, name, 'exec'), module.__dict__)\n"
        f"sys.modules[{PREFIX + '.toolbox'!r}].inside(json.loads({json.dumps(job)!r}))\n"
    )
    return "\n".join(parts).encode()


def source(name: str) -> str:
    file = "toolbox" if name == "toolbox" else f"programs/{name}"
    with open(f"{os.path.dirname(__file__)}/{file}.py") as opened:
        return opened.read()


def modules_of(attempts: Iterable[Attempt]) -> list[str]:
    names = (each.module.rpartition(".")[2] for each in attempts)
    return list(dict.fromkeys(name for name in names))


# --- controls ----------------------------------------------------------------------------------------------


def try_outside(attempt: Attempt, bait: Bait) -> tuple[Outcome, list[str]]:
    """How the control ended, and which facts it should have changed but did not. Lays the files out anew."""
    bait.lay_files()
    bait.start_victim()
    own = attempt.control == OWN
    act = attempt.act if isinstance(attempt.control, str) else attempt.control
    if own or not attempt.facts:
        return perform(act, bait.given(), own=own), []
    before = bait.facts()
    outcome = perform(act, bait.given())
    after = changed(before, bait.facts())
    return outcome, [name for name in attempt.facts if name not in after]


# --- boxes -------------------------------------------------------------------------------------------------


def run_box(attempts: Sequence[Attempt], policy: Policy, bait: Bait) -> dict[str, Outcome]:
    """All of these in one box."""
    import stockade

    given = vars(bait.given())
    job = {"given": given, "names": [each.name for each in attempts]}
    text = program_text(modules_of(attempts), job)
    command = [interpreter(), "-I", "-S", "-c", "import sys; exec(sys.stdin.buffer.read())"]
    result = stockade.run(command, policy=policy, cwd=given["place"], stdin=text, timeout=SECONDS)
    try:
        answers: dict[str, Outcome] = json.loads(result.stdout)
    except ValueError:
        said = result.stderr.decode("utf-8", "replace").strip().splitlines()
        raise BoxFailed(
            f"could not attack from inside: the box ended as {result.outcome} ({result.reason})",
            remedy=said[-1] if said else "Run `stockade doctor`.",
        ) from None
    return answers


def try_all(attempts: Sequence[Attempt], user: str, outside: Bait, bait: Bait, policies: Policies) -> list[Result]:
    """Controls in ``outside``, then box by box the attempts, and their verdicts. Both are laid out.

    Raises BoxFailed where no box at all can be had; those of a box that can't be had are not tried.
    """
    set_environment(outside)
    controls = {each.name: try_outside(each, outside) for each in attempts}
    set_environment(bait)
    results, failures = [], []
    for box in dict.fromkeys(each.box for each in attempts):
        those = [each for each in attempts if each.box == box]
        try:
            results += try_box(box, those, controls, bait, user, policies)
        except StockadeError as error:
            failures.append(error)
            results += [row(each, NOT_TRIED, "", error.message) for each in those]
    if failures and all(each.state == NOT_TRIED for each in results):
        raise failures[0]
    return results


def set_environment(bait: Bait) -> None:
    """What of the caller's environment must not be seen inside."""
    home = f"{bait.top}/home"
    os.environ.update({VARIABLE: bait.secret, "HOME": home, "SSH_AUTH_SOCK": f"{bait.top}/beside/s.sock"})
    os.environ.update({"XDG_CACHE_HOME": f"{bait.top}/cache", "XDG_CONFIG_HOME": f"{bait.top}/config"})
    for name in ("STOCKADE_POLICY", "STOCKADE_MODE"):
        os.environ.pop(name, None)


def try_box(
    box: str, attempts: Sequence[Attempt], controls: Controls, bait: Bait, user: str, policies: Policies
) -> list[Result]:
    """Attempts that the filter is to stop are made once more without it: what stands behind it shows then."""
    given = policies(box, bait, user, True)
    kept = user == "caller" and os.geteuid() == 0
    seen, reached = observed(attempts, given, bait)
    # Where the control did not work, nothing is to be shown, and the bare call might load a module.
    filtered = [
        each for each in attempts if "filter" in each.layer and not control_failed(each, *controls[each.name])
    ]
    bare = observed(filtered, policies(box, bait, user, False), bait)[0] if filtered else {}
    results = []
    for each in attempts:
        own = [name for name in each.facts if name in reached and culprit(each, name, attempts, seen)]
        without = bare.get(each.name, ())
        results.append(judge(each, *controls[each.name], seen[each.name], own, without, kept=kept))
    known = {name for each in attempts for name in each.facts}
    return results + [stray(box, name) for name in reached if name not in known]


def culprit(attempt: Attempt, fact: str, attempts: Sequence[Attempt], seen: dict[str, Outcome]) -> bool:
    """Whether this attempt may have changed the fact: one that says so itself, or each that could, if none does."""
    owned_up = [each.name for each in attempts if fact in each.facts and seen[each.name][0] == "through"]
    return not owned_up or attempt.name in owned_up


def observed(attempts: Sequence[Attempt], policy: Policy, bait: Bait) -> tuple[dict[str, Outcome], list[str]]:
    """What the attempts say, and which facts of the host are not what they were."""
    bait.lay_files()
    before = bait.facts()
    seen = run_box(attempts, policy, bait)
    return seen, changed(before, bait.facts())


def stray(box: str, fact: str) -> Result:
    """A change of the host that no attempt was known for."""
    return Result(
        f"host.{box}.{fact.replace(' ', '-')}", "the host", f"Nothing else changes: {fact}", THROUGH, "", "changed"
    )
