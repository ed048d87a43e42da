"""The handlers of a runner: what was registered, under which name, in which order. Nothing is run here."""

from __future__ import annotations

import difflib
import os
import types

from stockade.policies.errors import RequestError
from stockade.policies.record import Record
from stockade.policies.text import quoted
from stockade.sandbox.hooks.model import KINDS, HookSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from stockade.sandbox.hooks.dialects.base import Dialect

    Handler = Callable[[str, Any], Any] | types.ModuleType | HookSpec | str | Sequence[str]

FUNCTION = "function"
"""The form of a handler that is called, not started."""
RUNNABLE = ("argv", "shell", "http", FUNCTION)


class Entry(Record):
    """One handler, and how it came here."""

    spec: HookSpec
    label: str
    """What it is called in reasons and records: never its command, which may hold secrets."""
    function: Callable[[str, Any], Any] | None = None
    any_event: bool = False
    by_kind: bool = False
    """Registered for a canonical kind: every event of that kind is meant."""
    together: bool = False
    """From a configuration, whose host may run handlers at once; what was registered one by one runs one by one."""
    trusted: bool | None = None
    """Over the runner's own."""


class Registry:
    """Handlers in order of registration."""

    def __init__(self, language: Dialect) -> None:
        self.language = language
        self.entries: list[Entry] = []

    def add(self, entry: Entry) -> Entry:
        """Its label is made unlike all others."""
        labels = {each.label for each in self.entries}
        label, number = entry.label, 2
        while label in labels:
            label, number = f"{entry.label} ({number})", number + 1
        self.entries.append(entry.replace(label=label))
        return self.entries[-1]

    def add_spec(self, spec: Any, *, together: bool = True, trusted: bool | None = None) -> Entry:
        """A handler of a configuration. Raises RequestError for one of another dialect."""
        if not isinstance(spec, HookSpec):
            raise RequestError(f"could not use a handler: it is {type(spec).__name__}, not a HookSpec")
        if spec.dialect != self.language.NAME:
            raise RequestError(
                f"could not use the handler {label_of(spec)!r}: it is one of {spec.dialect}, the runner's dialect is "
                f"{self.language.NAME}",
                remedy=f"Make a runner with dialect={spec.dialect!r}.",
            )
        return self.add(Entry(spec, label_of(spec), together=together, trusted=trusted))


def label_of(spec: HookSpec) -> str:
    """The handler's own name, else where it stands."""
    if spec.name:
        return spec.name
    if spec.source:
        return f"{os.path.basename(spec.source)}#{spec.pointer}"
    return f"{spec.event or 'hook'}:{spec.form}"


def made_entry(
    handler: Any,
    language: Dialect,
    *,
    event: str | None = None,
    matcher: str | None = None,
    priority: int = 0,
    timeout: float | None = None,
    fail_closed: bool = False,
    name: str | None = None,
    trusted: bool | None = None,
) -> Entry:
    """An entry for a function, a module or a command. Raises RequestError for what is none of them."""
    check_numbers(priority, timeout)
    if matcher is not None and not isinstance(matcher, str):
        raise RequestError(f"could not register the handler: its matcher {quoted(matcher)} is no text")
    form, command, function, own_name = taken(handler)
    kind, native, by_kind = event_named(event, language)
    spec = HookSpec(
        language.NAME,
        native,
        kind,
        form,
        command,
        matcher=matcher,
        timeout=float(timeout or 0.0),
        timeout_given=timeout is not None,
        name=name or own_name,
        fail_closed=fail_closed,
        priority=priority,
    )
    return Entry(spec, name or own_name, function, event is None, by_kind, trusted=trusted)


def check_numbers(priority: Any, timeout: Any) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise RequestError(f"could not register the handler: its priority {quoted(priority)} is no whole number")
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (number and 0 < timeout < float("inf")):
        raise RequestError(
            f"could not register the handler: its timeout {quoted(timeout)} is no number of seconds above 0"
        )


def taken(handler: Any) -> tuple[str, str | tuple[str, ...], Callable[[str, Any], Any] | None, str]:
    """Form, command, function and name of a handler."""
    if isinstance(handler, str):
        if not handler.strip():
            raise RequestError("could not register the handler: its command is empty")
        return "shell", handler, None, os.path.basename(handler.split()[0])
    if isinstance(handler, list | tuple):
        if not handler or not all(isinstance(word, str) for word in handler):
            raise RequestError("could not register the handler: its command is not a list of texts")
        return "argv", tuple(handler), None, os.path.basename(handler[0])
    if isinstance(handler, types.ModuleType) or (not callable(handler) and hasattr(handler, "handle")):
        function = getattr(handler, "handle", None)
        if not callable(function):
            raise RequestError(f"could not register {handler!r}: it has no function handle(event, payload)")
        return FUNCTION, (), checked(function), str(getattr(handler, "__name__", type(handler).__name__))
    if callable(handler):
        return FUNCTION, (), checked(handler), function_name(handler)
    raise RequestError(
        f"could not register the handler: it is {type(handler).__name__}",
        remedy="Give a function(event, payload), a module with handle, a HookSpec, a text or a list of texts.",
    )


def checked(function: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    from inspect import iscoroutinefunction

    if iscoroutinefunction(function):
        raise RequestError(
            f"could not register {function_name(function)}: it is a coroutine function",
            remedy="Wrap it: lambda event, payload: asyncio.run(it(event, payload)).",
        )
    return function


def function_name(function: Any) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '') or ''}.{name}".lstrip(".")


def event_named(event: str | None, language: Dialect) -> tuple[str, str, bool]:
    """Kind, native name and whether the kind was given. Raises RequestError for a name that means nothing here."""
    if event is None:
        return "other", "", False
    if event in language.EVENTS:
        return language.rule(event).kind, event, False
    if event in KINDS and event != "other":
        if all(rule.kind != event for rule in language.EVENTS.values()):
            raise RequestError(f"could not use the event {event!r}: {language.NAME} has none of that kind")
        return event, "", True
    raise unknown_event(event, language)


def unknown_event(event: Any, language: Dialect) -> RequestError:
    """The error for a name that neither the host nor we have."""
    near = difflib.get_close_matches(str(event), [*language.EVENTS, *KINDS], 1)
    return RequestError(
        f"could not use the event {quoted(event)}: {language.NAME} has none of that name",
        remedy=f"Did you mean {near[0]}?" if near else f"It has {', '.join(language.EVENTS)}.",
    )
