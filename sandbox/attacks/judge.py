"""What an attempt came to (pure): from its control, from what was seen inside, and from the host afterwards."""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from stockade.sandbox.attacks.toolbox import Attempt

THROUGH, ALLOWED, NOT_TRIED, STOPPED = "GOT THROUGH", "allowed", "not tried", "stopped"
STATES = (THROUGH, NOT_TRIED, ALLOWED, STOPPED)
"""The worst first."""

SHOWN_BY = {
    "EROFS": "read-only mount",
    "EXDEV": "mount boundary",
    "EBUSY": "mount over the name",
    "ESRCH": "pid namespace",
    "SIGSYS": "syscall filter",
    "EAFNOSUPPORT": "syscall filter",
}
"""Refusals that name the layer by themselves, whatever was meant to stop it."""


class Result(Record):
    """One row of the table."""

    name: str
    group: str
    title: str
    state: str
    layer: str
    """What stopped it; empty where nothing did."""
    evidence: str


def judge(
    attempt: Attempt,
    control: Sequence[str],
    missed: Sequence[str],
    seen: Sequence[str],
    reached: Sequence[str],
    bare: Sequence[str] = (),
    *,
    kept: bool = False,
) -> Result:
    """``missed``: facts that the control should have changed and did not; ``reached``: facts that the attempt did
    change. ``bare``: the same attempt in a box without the syscall filter. ``kept``: the box is real root's."""
    if seen[0] == "through" or reached:
        word = f"the host shows it: {', '.join(reached)}" if reached else f"it got: {seen[1]}"
        allowed = attempt.allowed or (attempt.allowed_kept if kept else "")
        if allowed and not reached:
            return row(attempt, ALLOWED, "", allowed)
        return row(attempt, THROUGH, "", word)
    why = control_failed(attempt, control, missed)
    if why:
        return row(attempt, NOT_TRIED, "", why)
    if seen[0] in ("broken", "hung"):
        return row(attempt, NOT_TRIED, "", f"the attempt itself failed: {seen[1]}")
    return row(attempt, STOPPED, *stopped(attempt, seen, bare))


def row(attempt: Attempt, state: str, layer: str, evidence: str) -> Result:
    return Result(attempt.name, attempt.group, attempt.title, state, layer, evidence)


def control_failed(attempt: Attempt, control: Sequence[str], missed: Sequence[str]) -> str:
    """Why nothing can be said: it does not work where nothing keeps it from working. Empty if it does."""
    how, word = control
    if attempt.facts and attempt.control != "own" and how == "nothing" and not missed:
        return ""  # only the host can tell, and it did
    if missed:
        return f"outside the box it did not change what it should: {', '.join(missed)}"
    if how == "through" or (how == "refused" and set(word.split(", ")) & set(attempt.reached)):
        return ""
    if how == "absent":
        return word
    said = {"refused": f"refused with {word}", "nothing": "without effect"}.get(how, f"{how}: {word}")
    return f"outside the box, too, it is {said}"


def stopped(attempt: Attempt, seen: Sequence[str], bare: Sequence[str]) -> tuple[str, str]:
    """The layer and what shows it."""
    how, word = seen
    layer = SHOWN_BY.get(word.partition(",")[0], attempt.layer) if how in ("refused", "killed") else attempt.layer
    shown = {"nothing": "nothing was there", "absent": word}.get(how, word)
    if not bare:
        return layer, shown
    if bare[0] == "through":
        return "syscall filter", f"{shown}; without the filter it works"
    without = {"nothing": "nothing is there"}.get(bare[0], bare[1])
    if bare == seen:
        return f"{attempt.layer}, and more behind it", f"{shown}, without the filter too"
    return "syscall filter, and more behind it", f"{shown}; without the filter {without}"


def failed(results: Sequence[Result]) -> bool:
    return any(each.state == THROUGH for each in results)
