"""What hooks change of an event: where the changed thing stands, the payload with it, and the host's word for it. Pure."""

from __future__ import annotations

from stockade.sandbox.hooks.merge import same

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stockade.sandbox.hooks.model import HookEvent, HookOutcome, MergedOutcome

TOOL_INPUT = ("tool_input",)
PLACES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "claude": {"pre_tool": TOOL_INPUT, "permission_request": TOOL_INPUT},
    "codex": {"pre_tool": TOOL_INPUT, "permission_request": TOOL_INPUT},
    "antigravity": {"pre_tool": ("tool_call", "args")},
    "agy": {"pre_tool": ("toolCall", "args")},
    "gemini": {"pre_tool": TOOL_INPUT},
    "cursor": {"pre_tool": TOOL_INPUT},
}
"""Where the input stands that a hook may rewrite, by dialect and kind; elsewhere it is the whole payload."""
WHOLE = ("claude", "codex", "cursor")
"""Hosts that are told the whole input; the others are told what to lay over it."""


def place_of(event: HookEvent) -> tuple[str, ...]:
    """The way to what may be rewritten, within the payload as the host sends it."""
    if event.dialect == "nous":
        return ("payload",)
    place = PLACES.get(event.dialect, {}).get(event.kind, ())
    there = place and place[0] in event.raw and (len(place) == 1 or isinstance(event.raw[place[0]], dict))
    return place if there else ()


def current(event: HookEvent) -> Any:
    """What may be rewritten, as it is now."""
    value: Any = event.raw
    for key in place_of(event):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def rewritten(event: HookEvent, outcome: HookOutcome | MergedOutcome) -> HookEvent:
    """The event as it is after an outcome; the same one where nothing is changed."""
    if outcome.updated_input is None:
        return event
    before = current(event)
    new = outcome.updated_input
    if outcome.update_mode == "merge" and isinstance(before, dict) and isinstance(new, dict):
        new = {**before, **new}
    if not place_of(event) and not isinstance(new, dict):
        return event
    raw = placed(event.raw, place_of(event), new)
    tool = event.tool
    if tool is not None and place_of(event) not in ((), ("payload",)):
        tool = tool.replace(input=new)
    return event.replace(raw=raw, tool=tool)


def placed(raw: Any, place: tuple[str, ...], value: Any) -> Any:
    """A copy of ``raw`` with ``value`` at ``place``."""
    if not place:
        return value
    inner = raw.get(place[0]) if isinstance(raw, dict) else None
    return {**(raw if isinstance(raw, dict) else {}), place[0]: placed(inner, place[1:], value)}


def fitted(merged: MergedOutcome, before: HookEvent, after: HookEvent) -> MergedOutcome:
    """The change in the form that the event's host can be told: the whole input, or what to lay over it.

    A replacement that leaves fields out can't be laid over; it stays one, and the dialect says that it can't be told.
    """
    if merged.updated_input is None or not isinstance(current(after), dict):
        return merged
    old, new = current(before), current(after)
    if before.dialect in WHOLE and merged.update_mode == "merge":
        merged = merged.replace(updated_input=new, update_mode="replace")
    elif before.dialect not in WHOLE and merged.update_mode == "replace" and old.keys() <= new.keys():
        merged = merged.replace(updated_input=difference(old, new), update_mode="merge")
    if before.dialect == "codex" and merged.verdict == "none":
        return merged.replace(verdict="allow")  # its only word for a change
    return merged


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What of ``new`` is not so in ``old``."""
    return {key: value for key, value in new.items() if key not in old or not same(old[key], value)}
