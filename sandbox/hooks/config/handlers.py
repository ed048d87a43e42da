"""One handler's entry in a hooks file as a HookSpec. Pure.

What the host would not take is a finding; a type or field that nobody knows is kept, and told.
"""

from __future__ import annotations

import math

from stockade.policies.record import Record
from stockade.policies.text import quoted
from stockade.sandbox.hooks.config.hosts import HOSTS, REQUIRED, bounded_timeout, default_timeout
from stockade.sandbox.hooks.dialects import dialect as dialect_named
from stockade.sandbox.hooks.model import HookSpec
from stockade.sandbox.hooks.source import pointer_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.sandbox.hooks.config.hosts import Host
    from stockade.sandbox.hooks.config.reader import Path, Reader
    from stockade.sandbox.hooks.source import Node

HARMLESS = ("description", "name", "statusMessage", "model")
"""Fields that change nothing where they are not known."""
LONGEST = 1e9
MEANING = {"command", "args", "url", "headers", "matcher", "if", "env", "shell"}
ALL_FIELDS = {field for host in HOSTS.values() for each in (host.common, *host.types.values()) for field in each}


class Around(Record):
    """What stands around a handler: its event, its group, and the file's place."""

    event: str
    matcher: str | None = None
    sequential: bool = False
    enabled: bool = True
    name: str = ""
    provenance: str = ""
    root: str = ""


def handler(reader: Reader, node: Node, at: Path, around: Around) -> HookSpec | None:
    """The handler at ``at``; None, with a finding, for what is none."""
    host = HOSTS[reader.dialect]
    if node.kind != "object":
        reader.wrong(node, at, "a handler (an object)")
        return None
    kind = type_of(reader, host, node, at, around.event)
    if kind is None:
        return None
    fields = {**host.common, **host.types.get(kind, {})}
    given: dict[str, Any] = {}
    lost = set()
    for key, value in reader.members(node, at, "a handler"):
        before = len(reader.findings)
        if take(reader, host, key, value, (*at, key), fields, kind):
            given[key] = value.value
        elif any(each.severity == "error" for each in reader.findings[before:]):
            lost.add(key)
    missing = [key for key in REQUIRED.get(kind, ()) if not blank_free(given.get(key)) and key not in lost]
    for key in missing:
        text = f"the handler has no {key}" if key not in given else f"its {key} is empty"
        reader.tell("missing_field", "error", text, node, at, f"Write its {key}.", around.event)
    # Without these it would be another handler than the one that was meant.
    return None if missing or lost & MEANING else spec(reader, node, at, around, kind, given)


def blank_free(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def type_of(reader: Reader, host: Host, node: Node, at: Path, event: str) -> str | None:
    """The handler's type; one that is not known here is kept."""
    found = node.get("type")
    if found is None or (found.kind == "null" and host.nulls):
        if not host.default_type and node.get("hooks") is not None:
            reader.wrong(node, at, "a handler", "Put the group of handlers one level up.")
            return None
        if not host.default_type:
            text = "the handler has no type, its host does not take it"
            reader.tell("missing_type", "high", text, node, at, 'Write "type": "command".', event)
        return host.default_type or ("http" if node.get("url") and not node.get("command") else "command")
    if found.kind != "string":
        reader.wrong(found, (*at, "type"), "a string")
        return None
    kind = str(found.value)
    if kind not in host.types:
        text = f"the type {quoted(kind)} is none that this host knows, so it is not run"
        known = ", ".join(host.types)
        reader.tell("unknown_type", "high", text, found, (*at, "type"), f"Use one of {known}.", event)
    elif kind in host.idle_types:
        text = f"the host reads handlers of the type {kind} and then skips them"
        reader.tell("idle_type", "high", text, found, (*at, "type"), "Use a command.", event)
    return kind


def take(reader: Reader, host: Host, key: str, value: Node, at: Path, fields: dict[str, str], kind: str) -> bool:
    """Whether a field counts; a finding where it is unknown or of another shape."""
    if key not in fields:
        if kind in host.types:
            stray(reader, key, value, at, fields)
        return kind not in host.types
    if value.kind == "null" and fields[key] != "null-or-number":
        if not host.nulls:
            reader.tell("null_field", "low", f"{key} is null", value, at, "Leave it out.")
        return False
    return reader.fits(value, at, fields[key])


def stray(reader: Reader, key: str, value: Node, at: Path, fields: dict[str, str]) -> None:
    near = [each for each in fields if each.lower() == key.lower().replace("_", "")]
    severity = "low"
    if near:
        severity, remedy = "medium", f"Did you mean {near[0]}?"
    elif key in ALL_FIELDS and key not in HARMLESS:
        severity, remedy = "medium", "It is a field of another host or another type of handler. Leave it out."
    else:
        remedy = "Leave it out."
    text = f"the host knows no field {quoted(key)} here"
    reader.tell("unknown_field", severity, text, value, at, remedy)


def spec(reader: Reader, node: Node, at: Path, around: Around, kind: str, given: dict[str, Any]) -> HookSpec:
    dialect = dialect_named(reader.dialect)
    form, command = called(kind, given)
    seconds = seconds_of(reader, node, at, given, dialect.TIMEOUT_UNIT)
    usual = default_timeout(reader.dialect, around.event, kind, dialect.DEFAULT_TIMEOUT)
    return HookSpec(
        reader.dialect,
        around.event,
        dialect.rule(around.event).kind,
        form,
        command,
        url=given.get("url", "") if kind == "http" else "",
        headers=tuple(given.get("headers", {}).items()) if kind == "http" else (),
        header_variables=tuple(given.get("allowedEnvVars", ())) if kind == "http" else (),
        matcher=given["matcher"] if "matcher" in given and reader.dialect == "cursor" else around.matcher,
        condition=given.get("if", ""),
        timeout=usual if seconds is None else bounded_timeout(reader.dialect, around.event, seconds),
        timeout_given=seconds is not None,
        env=tuple(given.get("env", {}).items()) if kind == "command" else (),
        name=given.get("name", "") if reader.dialect == "gemini" else around.name,
        asynchronous=given.get("async") is True or given.get("asyncRewake") is True,
        once=given.get("once") is True,
        enabled=around.enabled,
        sequential=around.sequential,
        fail_closed=given.get("failClosed") is True,
        source=reader.path,
        pointer=pointer_of(at),
        line=node.line,
        column=node.column,
        root=around.root,
        provenance=around.provenance,
        raw=node.value,
    )


def called(kind: str, given: dict[str, Any]) -> tuple[str, str | tuple[str, ...]]:
    """The form and the command."""
    if kind != "command":
        return kind, ""
    if "args" in given:
        return "argv", (given["command"], *given["args"])
    return "shell", given["command"]


def seconds_of(reader: Reader, node: Node, at: Path, given: dict[str, Any], unit: float) -> float | None:
    """The timeout in seconds; None where there is none that can be used."""
    value, found = given.get("timeout"), node.get("timeout")
    if value is None or found is None:
        return None
    if not 0 < value <= LONGEST:
        reader.tell(
            "bad_timeout", "high", f"the timeout is {quoted(value)}", found, (*at, "timeout"),
            "Write a positive number.",
        )  # fmt: skip
        return None
    if HOSTS[reader.dialect].whole_timeouts and isinstance(value, float):
        reader.tell(
            "bad_timeout", "high", "the host reads whole seconds alone", found, (*at, "timeout"),
            f"Write {max(1, math.ceil(value))}.",
        )  # fmt: skip
    return float(value) * unit
