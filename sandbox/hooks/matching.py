"""Whether a registered handler is one for an event, and if not, why: for people who wonder why a hook never fires. Pure."""

from __future__ import annotations

from stockade.policies.errors import RequestError
from stockade.policies.text import quoted
from stockade.sandbox.hooks import match

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.hooks.model import HookEvent, HookSpec
    from stockade.sandbox.hooks.registry import Entry


def mismatch(entry: Entry, event: HookEvent) -> tuple[str, tuple[str, ...]]:
    """Why the host would not run a handler of this event (empty where it would), and what is odd about that."""
    # One that was registered for a kind, or for everything, is matched as if it stood at this very event.
    spec = entry.spec.replace(event=event.name, kind=event.kind)
    found = match.matches(spec, event)
    notes = tuple(f"{entry.label}: {each.text}" for each in found.problems)
    return ("" if found.runs else reason(spec, event, notes)), notes


def reason(spec: HookSpec, event: HookEvent, notes: tuple[str, ...]) -> str:
    if notes:
        return notes[0].partition(": ")[2]
    by_condition = spec.condition and match.matches(spec.replace(condition=""), event).runs
    about = f" {quoted(event.tool.name)}" if event.tool is not None else " the event"
    if by_condition:
        return f"its condition {quoted(spec.condition)} does not hold for{about}"
    return f"its matcher {quoted(spec.matcher)} does not match{about}"


def check_matcher(spec: HookSpec) -> None:
    """Raises RequestError for a matcher that can't work, or that the host would not look at."""
    problem = match.matcher_problem(spec)
    if problem is not None:
        raise RequestError(f"could not register the handler {spec.name!r}: {problem.text}")
