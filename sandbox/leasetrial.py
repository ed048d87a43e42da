"""Try whole leases, for ``doctor``: one connection that must be let through and one that must be refused.

Both servers are in a network namespace of the trial's own, outside of the lease, as the world is; nothing
leaves this machine. Each connector that is installed is tried, and what that showed is remembered.
"""

from __future__ import annotations

import subprocess
import sys

from stockade.netns.features import CONNECTORS
from stockade.policies.capability import Capability
from stockade.sandbox import hostcache, shortage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SECONDS = 30
ALLOWED, REFUSED, PORT = "198.51.100.1", "203.0.113.1", 8080
BOTH = "a listed address was reached and another one was refused"


def try_connectors(tools: Sequence[Capability]) -> tuple[Capability, ...]:
    """The tools, corrected by what a lease with each connector came to, and the leased network itself."""
    trials = {each.name: try_lease(each.name) for each in tools if each.name in CONNECTORS and each.state == "ok"}
    found = judge(tools, trials)
    usual = CONNECTORS[0]
    if usual in trials:
        path = next(each.detail for each in tools if each.name == usual)
        if trials[usual].state != "unknown":  # what could not be tried is as it was
            hostcache.set_aside(path, aside=any(each.name == usual and each.state != "ok" for each in found))
    return found


def judge(tools: Sequence[Capability], trials: Mapping[str, Capability]) -> tuple[Capability, ...]:
    """A connector that fails where another one works is to blame itself (pure)."""
    working = [name for name, trial in trials.items() if trial.state == "ok"]
    if not working:
        return *tools, next(iter(trials.values()))
    judged = [
        blamed(each.name, trials[each.name]) if each.name in trials.keys() - working else each for each in tools
    ]
    return *judged, Capability("leased-network", "ok", f"{BOTH} ({', '.join(working)})")


def blamed(connector: str, trial: Capability) -> Capability:
    """What its trial makes of a connector where another one works (pure)."""
    return trial.replace(name=connector, state="unknown" if trial.state == "unknown" else "disabled")


def try_lease(connector: str) -> Capability:
    """Try it; once more where it failed: a connector that could not fork does not say so."""
    found = try_once(connector)
    return try_once(connector) if found.state == "missing" else found


def try_once(connector: str) -> Capability:
    """Run the trial in a process and a network namespace of its own."""
    command = [sys.executable, "-m", "stockade.sandbox.leaseworld", connector]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Capability("leased-network", "unknown", f"the trial could not be run: {error}", "Try again.")
    words = done.stdout.split()
    if words == ["reached", "refused"]:
        return Capability("leased-network", "ok", BOTH)
    said = (done.stdout + done.stderr).strip().splitlines()
    detail = said[-1] if said else "it said nothing"
    if cause := shortage.cause_in(detail):
        return shortage.untried("leased-network", cause)
    return Capability(
        "leased-network", "missing", f"the trial failed: {detail}", f"Run {connector} by hand to see why."
    )
