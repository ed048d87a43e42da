"""The event of one call: from its name and payload to the host's own form. Pure."""

from __future__ import annotations

from stockade.policies.errors import RequestError
from stockade.policies.text import quoted
from stockade.sandbox.hooks.model import HookEvent
from stockade.sandbox.hooks.registry import unknown_event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from stockade.sandbox.hooks.dialects.base import Dialect

NAMED_BY = {
    "claude": "hook_event_name", "codex": "hook_event_name", "gemini": "hook_event_name", "cursor": "hook_event_name",
    "nous": "event",
}  # fmt: skip
"""The field of a payload that names its event; other hosts have none."""


def made_event(
    event: str | HookEvent, payload: Any, language: Dialect, *, known: Collection[str] = (), project_dir: str = ""
) -> HookEvent:
    """The event that handlers are told.

    ``event`` is a host's name or a canonical kind, ``payload`` what the host sends (for Nous also what is in it), as a
    mapping or as JSON; ``known`` are names that handlers are registered for, which a new release may have. Raises
    RequestError for a name that means nothing, and for a payload that is none of this event.
    """
    if isinstance(event, HookEvent):
        if event.dialect != language.NAME:
            raise RequestError(f"could not use the event: it is one of {event.dialect}, not of {language.NAME}")
        return event if event.project_dir or not project_dir else event.replace(project_dir=project_dir)
    raw = mapping(payload)
    name = named(event, raw, language, known)
    dressed = dress(name, raw, language)
    told = language.read_event(with_marker(name, dressed, language))
    if told.name != name and language.NAME in NAMED_BY:
        raise RequestError(f"could not use the payload: it is one of {quoted(told.name)}, the event is {name}")
    rule = language.rule(name)
    return told.replace(name=name, kind=rule.kind, raw=dressed, project_dir=told.project_dir or project_dir)


def mapping(payload: Any) -> dict[str, Any]:
    if payload is None:
        return {}
    if isinstance(payload, bytes | str):
        from stockade.sandbox.hooks.runhook import parsed

        return parsed(payload.encode("utf-8", "surrogatepass") if isinstance(payload, str) else payload)
    if not hasattr(payload, "items"):
        raise RequestError(f"could not use the payload: it is {type(payload).__name__}, not a mapping or JSON")
    return dict(payload)


def named(event: str, raw: Mapping[str, Any], language: Dialect, known: Collection[str]) -> str:
    """The host's own name."""
    told = raw.get(NAMED_BY.get(language.NAME, ""))
    if event in language.EVENTS or event in known or (event and event == told):
        return event
    of_kind = [name for name, rule in language.EVENTS.items() if rule.kind == event and event != "other"]
    if told in of_kind:
        return str(told)
    if len(of_kind) > 1 and language.NAME == "cursor" and event == "pre_tool":
        return "preToolUse"
    if len(of_kind) > 1:
        raise RequestError(
            f"could not use the event {event!r}: {language.NAME} has several of that kind",
            remedy=f"Use one of {', '.join(of_kind)}.",
        )
    if not of_kind:
        raise unknown_event(event, language)
    return of_kind[0]


def dress(name: str, raw: dict[str, Any], language: Dialect) -> dict[str, Any]:
    """The payload as the host sends it."""
    if language.NAME == "nous":
        whole = set(raw) == {"event", "payload"} and raw["event"] == name
        return raw if whole else {"event": name, "payload": raw}
    field = NAMED_BY.get(language.NAME)
    return raw if field is None or field in raw else {**raw, field: name}


def with_marker(name: str, raw: dict[str, Any], language: Dialect) -> dict[str, Any]:
    """What tells the dialect the event's name where payloads don't: for reading alone, no handler sees it."""
    return {**raw, "hookEventName": name} if language.NAME == "agy" else raw
