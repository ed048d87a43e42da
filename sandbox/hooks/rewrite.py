"""One handler's command as it was, as it is behind ``stockade hook``, and back again. Pure.

Which shell a host starts and what it puts into a command decides how its text is carried; files are ``wrap``'s
business.
"""

from __future__ import annotations

from stockade.policies.record import Record
from stockade.policies.units import render_duration
from stockade.sandbox.hooks import quoting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SHELLS = {
    "claude": "sh", "codex": quoting.OWN_SHELL, "antigravity": "sh", "agy": "sh", "gemini": "bash", "cursor": "sh",
}  # fmt: skip
"""The shell that runs a handler's text, by host; one behind a login shell need not be one itself."""
TEXT_CLAUDE_FILLS = ("${", "$CLAUDE_")
"""What Claude Code replaces in elements of ``args`` by bare text, or may: such a text stays a shell's string."""
CONVERTED = "--dialect=claude"
"""Spelt in one word where a shell's text became an argument: how ``unwrap`` knows that it was one."""


class CannotWrap(ValueError):
    """Why a handler can't be wrapped, and what to do."""

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause)
        self.cause, self.remedy = cause, remedy


class Choice(Record):
    """What every wrapped handler of one file is given."""

    dialect: str
    program: tuple[str, ...] = ("stockade",)
    """The words that start stockade."""
    policy: str | None = None
    allow: tuple[str, ...] = ()
    observe: bool = False
    strings: bool = False
    """Keep a shell's text a string where the host could take a list of arguments."""


class Command(Record):
    """What a handler's entry says is to be run."""

    form: str
    """``shell`` or ``exec``."""
    words: tuple[str, ...]
    """One text for a shell; else the program and its arguments."""

    @property
    def text(self) -> str:
        return self.words[0]


def command_of(entry: Mapping[str, Any], dialect: str) -> Command:
    """The command of an entry as it stands. Raises CannotWrap for an entry that has none."""
    command, args = entry.get("command"), entry.get("args")
    if not isinstance(command, str) or not command.strip():
        raise CannotWrap("its command is no text", "Write the command.")
    if dialect != "claude" or "args" not in entry:
        return Command("shell", (command,))
    if not isinstance(args, list) or not all(isinstance(each, str) for each in args):
        raise CannotWrap("its args are no list of texts", "Write args as a list of strings.")
    return Command("exec", (command, *args))


def original(entry: Mapping[str, Any], dialect: str) -> tuple[Command, tuple[str, ...]]:
    """The command without the wrapper, and the wrapper's own words (none where there is no wrapper)."""
    found = command_of(entry, dialect)
    if found.form == "exec":
        parts = quoting.taken_apart_words(found.words)
        if parts is None:
            return found, ()
        head, rest = parts
        was_text = CONVERTED in head and len(rest) == 3 and rest[:2] == ("sh", "-c")
        return (Command("shell", rest[2:]) if was_text else Command("exec", rest)), head
    apart = quoting.taken_apart(found.text)
    if apart is None or not apart.rest:
        return found, ()
    inner = apart.inner
    ours = inner is not None and len(inner) == 3 and inner[:2] == (shell_of(entry, dialect), "-c")
    ours = ours and quoting.OWN_SHELL not in (inner or ())[2:]  # that was written by somebody else
    return Command("shell", (inner[2] if ours and inner else apart.rest,)), apart.head


def shell_of(entry: Mapping[str, Any], dialect: str) -> str:
    """The shell for the handler's text. Raises CannotWrap for one that is none of ours."""
    if dialect == "claude" and "shell" in entry:
        if entry["shell"] not in ("bash", "sh"):
            raise CannotWrap(f"its shell is {entry['shell']!r}", "Only sh and bash can be wrapped.")
        return str(entry["shell"])
    return SHELLS[dialect]


def timeout_of(seconds: float) -> float:
    """What the hook gets of its host's patience: a second less, or half: the deny must come before the host gives up."""
    return max(seconds - 1.0, seconds / 2)


class Needs(Record):
    """What one handler's wrapper is given beside what all get."""

    seconds: float = 0.0
    """The host's timeout; 0 where it is not known."""
    event: str = ""
    """The event's name, where the host's payload does not tell it."""
    root: str = ""
    """A directory to show to the hook, where the host does not tell it."""
    reads: tuple[str, ...] = ()
    """More paths to show."""
    pins: tuple[str, ...] = ()


def head(choice: Choice, needs: Needs, *, converted: bool = False) -> tuple[str, ...]:
    """The wrapper's words."""
    words = [*choice.program, "hook"]
    words += [CONVERTED] if converted else ["--dialect", choice.dialect]
    if needs.event:
        words += ["--event", needs.event]
    if choice.policy is not None:
        words += ["--policy", choice.policy]
    for each in choice.allow:
        words += ["--allow", each]
    if choice.observe:
        words.append("--observe")
    if needs.seconds > 0:
        words += ["--timeout", render_duration(round(timeout_of(needs.seconds), 3))]
    if needs.root:
        words += ["--root", needs.root]
    for each in needs.reads:
        words += ["--read", each]
    for each in needs.pins:
        words += ["--pinned", each]
    return tuple(words)


def wrapped(command: Command, entry: Mapping[str, Any], choice: Choice, needs: Needs) -> Command:
    """The command behind ``stockade hook``. Raises CannotWrap."""
    if command.form == "exec":
        return Command("exec", (*head(choice, needs), "--", *command.words))
    shell = shell_of(entry, choice.dialect)
    if as_arguments(command.text, entry, choice):
        return Command("exec", (*head(choice, needs, converted=True), "--", shell, "-c", command.text))
    literal = choice.dialect == "gemini" and "$" in command.text
    try:
        return Command("shell", (quoting.wrapped(head(choice, needs), shell, command.text, as_literal=literal),))
    except ValueError as error:
        raise CannotWrap(str(error), "Write the command without it.") from None


def as_arguments(text: str, entry: Mapping[str, Any], choice: Choice) -> bool:
    """Whether a shell's text becomes an argument: no outer shell then, but nothing that the host would fill in."""
    if choice.dialect != "claude" or choice.strings or "shell" in entry:
        return False
    return not any(each in text for each in TEXT_CLAUDE_FILLS)


def check_root(text: str, dialect: str, root: str) -> None:
    """Raises CannotWrap where the host would put a path into our quotes that ends them.

    Codex does so now, Claude Code did before it left placeholders to the shell.
    """
    if dialect in ("codex", "claude") and "PLUGIN_" in text and any(letter in root for letter in "'\\\n"):
        raise CannotWrap(
            f"the host puts the plugin's path into the command as it is, and {root!r} would end our quotes",
            "Move the plugin to a path without quotes and backslashes.",
        )
