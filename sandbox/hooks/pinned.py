"""What a hook was when it was pinned, and what of it has changed since: its config entry and its scripts.

Pure. Scripts are read, and pins kept, by ``pin``. No host looks further than at the entry: a script that is
exchanged behind it is what this is for.
"""

from __future__ import annotations

import re

from stockade.policies.errors import StockadeError
from stockade.policies.record import Record
from stockade.sandbox.hooks import quoting
from stockade.sandbox.hooks.rewrite import CannotWrap, Command, original

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from stockade.sandbox.hooks.model import HookSpec

FILLED = re.compile(r"\$\{[^}]*\}|\$(?:GEMINI|CLAUDE)_PROJECT_DIR")
"""What hosts replace by text before stockade is called: anything may stand there then."""
SHORT = 16


class Script(Record):
    """One file that a handler executes."""

    path: str
    sha256: str
    """Empty when it was not there, or no plain file."""
    text: str | None = None
    """Its content, to show a difference; None when it is long, no text, or was not there."""


class Pin(Record):
    """One handler as it was."""

    id: str
    """``FILE.ENTRY``: what ``stockade hook --pinned`` is given."""
    pointer: str
    event: str
    entry: dict[str, Any]
    """Event, matcher and the handler's own entry, without stockade's wrapper."""
    command: Command
    wrapper: tuple[str, ...] = ()
    scripts: tuple[Script, ...] = ()


class Pins(Record):
    """What is recorded of one file."""

    file: str
    dialect: str
    handlers: tuple[Pin, ...]

    def find(self, pin_id: str) -> Pin | None:
        return next((each for each in self.handlers if each.id == pin_id), None)


class Change(Record):
    """One thing that is not as it was pinned."""

    what: str
    """``entry``, ``script``, ``wrapper``, ``command``, ``new`` (never pinned), ``gone`` or ``record`` (no pin)."""
    pointer: str
    text: str
    """One line that says it."""
    diff: str = ""


class PinBroken(StockadeError):
    """A pinned hook is not what it was. It was not run. ``changes`` says what differs."""

    def __init__(self, message: str, *, remedy: str, changes: tuple[Change, ...]) -> None:
        super().__init__(message, remedy=remedy)
        self.changes = changes


def digest(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def canonical(value: Any) -> bytes:
    """One spelling for equal documents."""
    import json

    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()


def file_id(path: str) -> str:
    """Names the pins of a file; ``path`` has no symlinks."""
    import os

    return digest(os.fsencode(path))[:SHORT]


def pin_of(spec: HookSpec, real: str, scripts: Iterable[Script]) -> Pin | None:
    """The pin of a handler as it is now; None for one that runs no program. ``real``: its file, links followed."""
    try:
        command, wrapper = original(spec.raw, spec.dialect)
    except CannotWrap:
        return None
    entry = {
        "event": spec.event,
        "matcher": spec.matcher,
        "handler": unwrapped_entry(spec.raw, command),
    }
    name = f"{file_id(real)}.{digest(canonical(entry))[:SHORT]}"
    return Pin(name, spec.pointer, spec.event, entry, command, wrapper, tuple(scripts))


def unwrapped_entry(raw: Any, command: Command) -> dict[str, Any]:
    entry = {key: value for key, value in dict(raw).items() if key not in ("command", "args")}
    entry["command"] = command.words[0]
    if command.form == "exec":
        entry["args"] = list(command.words[1:])
    return entry


def compare(pinned: Pins, now: Iterable[Pin]) -> list[Change]:
    """What differs in a whole file."""
    current = list(now)
    changes: list[Change] = []
    left = [each for each in pinned.handlers if not any(new.id == each.id for new in current)]
    for new in current:
        old = pinned.find(new.id)
        if old is None:
            old = next((each for each in left if each.pointer == new.pointer), None)
            left = [each for each in left if each is not old]
        changes += [never(new.pointer)] if old is None else compare_one(old, new)
    return changes + [Change("gone", each.pointer, f"{each.pointer} is gone", diff_of(each, None)) for each in left]


def compare_one(old: Pin, new: Pin) -> list[Change]:
    """What differs in one handler."""
    changes = []
    if old.entry != new.entry:
        changes.append(Change("entry", new.pointer, f"{new.pointer} has another entry", diff_of(old, new)))
    if old.wrapper != new.wrapper:
        changes.append(Change("wrapper", new.pointer, f"{new.pointer} has another wrapper", wrapper_diff(old, new)))
    paths = dict.fromkeys(each.path for each in (*old.scripts, *new.scripts))
    was, is_now = ({each.path: each for each in pin.scripts} for pin in (old, new))
    for path in paths:
        changes += compare_script(new.pointer, path, was.get(path), is_now.get(path))
    return changes


def compare_script(pointer: str, path: str, old: Script | None, new: Script | None) -> list[Change]:
    before, after = (each.sha256 if each is not None else "" for each in (old, new))
    if before == after:
        return []
    verb = "is gone" if not after else "was not there" if not before else "has changed"
    return [Change("script", pointer, f"{path} {verb}", script_diff(path, old, new))]


def never(pointer: str) -> Change:
    return Change("new", pointer, f"{pointer} was never pinned")


def compare_command(pin: Pin, argv: Sequence[str], scripts: Iterable[Script]) -> list[Change]:
    """What differs between a pinned handler and a call of ``stockade hook --pinned``."""
    changes = []
    if not matches(pin.command, argv):
        text = f"the command is not that of {pin.pointer}"
        changes.append(Change("command", pin.pointer, text, lines_diff(pin.command.words, argv, "command")))
    now = {each.path: each for each in scripts}
    for old in pin.scripts:
        changes += compare_script(pin.pointer, old.path, old, now.get(old.path))
    return changes


def matches(command: Command, argv: Sequence[str]) -> bool:
    """Whether ``argv`` runs ``command``, whatever the host put in for its own variables."""
    words = tuple(argv)
    if command.form == "exec":
        return len(words) == len(command.words) and all(map(filled, command.words, words))
    if len(words) == 3 and words[1] == "-c":
        return filled(command.text, words[2]) or filled(command.text + "#", words[2])
    return words == quoting.split(command.text)


def filled(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, FILLED.split(pattern))), text, re.DOTALL) is not None


def diff_of(old: Pin, new: Pin | None) -> str:
    return lines_diff(pretty(old.entry), pretty(new.entry) if new else [], old.pointer)


def wrapper_diff(old: Pin, new: Pin) -> str:
    return lines_diff([quoting.join(old.wrapper)], [quoting.join(new.wrapper)], new.pointer)


def script_diff(path: str, old: Script | None, new: Script | None) -> str:
    before, after = (each.text if each is not None else "" for each in (old, new))
    if before is None or after is None:
        return lines_diff([hash_line(old)], [hash_line(new)], path)
    return lines_diff(before.splitlines(), after.splitlines(), path)


def hash_line(script: Script | None) -> str:
    return f"sha256 {script.sha256}" if script is not None and script.sha256 else "not there"


def pretty(value: Any) -> list[str]:
    import json

    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, default=str).splitlines()


def lines_diff(before: Iterable[str], after: Iterable[str], name: str) -> str:
    """A unified diff, a line end after every line."""
    import difflib

    found = difflib.unified_diff(list(before), list(after), f"{name} (pinned)", f"{name} (now)", lineterm="")
    return "".join(f"{line}\n" for line in found)
