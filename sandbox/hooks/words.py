"""What a command is going to execute, as far as that can be read from it. Pure.

Only a shell text that is one simple command is understood; of anything else nothing is claimed.
"""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "ash")
LAUNCHERS = ("env", "exec", "nohup", "setsid", "command")
ENDING = {
    "python": ("-c", "-m", "-"),
    "pypy": ("-c", "-m", "-"),
    "node": ("-e", "-p", "--eval", "--print", "-", "-pe"),
    "perl": ("-e", "-E", "-"),
    "ruby": ("-e", "-"),
    "php": ("-r", "-"),
}
"""Options of an interpreter after which there is no script."""
VALUED = {
    "python": ("-W", "-X", "--check-hash-based-pycs"),
    "node": ("-r", "--require", "--import", "--loader", "--experimental-loader", "-C", "--conditions"),
    "perl": ("-I",),
    "ruby": ("-I", "-r"),
    "php": ("-d", "-c"),
}
"""Options whose value is the next word."""
RUNNERS = {"deno": ("run",), "bun": ("run",)}
"""Interpreters with subcommands, and those that take a script."""
CODE = (
    ".sh", ".bash", ".zsh", ".py", ".js", ".mjs", ".cjs", ".ts", ".mts", ".tsx", ".rb", ".pl", ".php", ".lua", ".cmd",
    ".awk", ".jq", ".sed", ".go",
)  # fmt: skip
"""How the names of code end."""
MOST_NESTED = 4
SPECIAL = "|&;<>()`*?[]{}!#\n\r"


class Target(Record):
    """What is executed: a program by name or path, and the script that it is given, if there is one."""

    program: str
    script: str = ""
    words: tuple[str, ...] = ()


def target(argv: Sequence[str], env: Mapping[str, str], depth: int = 0) -> Target | None:
    """The program and script of a command; None where it is not known. ``env`` is what a shell would expand from."""
    words = list(argv)
    if not words or depth > MOST_NESTED:
        return None
    name = kind_of(words[0])
    if name in LAUNCHERS and len(words) > 1:
        rest = launched(words[1:])
        return Target(words[0], words=tuple(words)) if rest is None else target(rest, env, depth + 1)
    if name in SHELLS:
        text = inline_text(words[1:])
        if text is not None:
            inner = simple_words(text, env)
            return None if inner is None else target(inner, env, depth + 1)
    return Target(words[0], script_of(name, words[1:]), tuple(words))


def kind_of(program: str) -> str:
    """``/usr/bin/python3.11`` is python."""
    base = program.rpartition("/")[2]
    return base if base in ENDING or base in SHELLS else base.rstrip("0123456789.-") or base


def launched(words: Sequence[str]) -> list[str] | None:
    """What ``env`` and the like start; None when their own options say more than that."""
    rest = list(words)
    while rest and "=" in rest[0] and not rest[0].startswith("-"):
        rest.pop(0)
    return rest if rest and not rest[0].startswith("-") else None


def inline_text(words: Sequence[str]) -> str | None:
    """The text after a shell's ``-c`` (also ``-lc``); None when it is given a script."""
    for index, word in enumerate(words):
        if not word.startswith("-") or word.startswith("--"):
            return None
        if "c" in word[1:]:
            return words[index + 1] if index + 1 < len(words) else None
    return None


def script_of(name: str, words: Sequence[str]) -> str:
    """The first word that an interpreter would take for a script; empty when there is none."""
    if name not in ENDING and name not in SHELLS and name not in RUNNERS:
        return ""
    if name in SHELLS and inline_text(words) is not None:
        return ""
    rest = list(words)
    if name in RUNNERS and rest and rest[0] in RUNNERS[name]:
        rest.pop(0)
    elif name == "deno":
        return ""
    while rest:
        word = rest.pop(0)
        if word in ENDING.get(name, ()):
            return ""
        if word == "--":
            return rest[0] if rest else ""
        if not word.startswith("-"):
            return word if name != "bun" or "/" in word or "." in word else ""
        if word in VALUED.get(name, ()) and rest:
            rest.pop(0)
    return ""


def simple_words(text: str, env: Mapping[str, str]) -> list[str] | None:
    """The words of a simple command, expanded as ``sh`` would from ``env``; None for anything with more syntax."""
    words = _Words()
    at = 0
    while at < len(text):
        letter = text[at]
        if letter in " \t":
            words.cut()
            at += 1
        elif letter in "'\"\\":
            quoted = quoted_part(text, at, env)
            if quoted is None:
                return None
            words.add(quoted[0])
            at = quoted[1]
        elif letter == "$":
            value, at = variable(text, at, env)
            if value is None:
                return None
            words.spread(value)
        elif letter == "~" and not words.begun and text[at + 1 : at + 2] in ("/", "", " "):
            words.add(env.get("HOME", "~"))
            at += 1
        elif letter in SPECIAL or (letter == "~" and not words.begun):
            return None
        else:
            words.add(letter)
            at += 1
    words.cut()
    found = words.found
    while found and assigns(found[0]):
        found.pop(0)
    return found


class _Words:
    """Words as they are put together."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.word, self.begun = "", False

    def add(self, text: str) -> None:
        self.word, self.begun = self.word + text, True

    def cut(self) -> None:
        if self.begun:
            self.found.append(self.word)
        self.word, self.begun = "", False

    def spread(self, value: str) -> None:
        """A value outside of quotes is split at its blanks: the classic fault of an unquoted root."""
        pieces = value.split()
        if value[:1].isspace():
            self.cut()
        for index, piece in enumerate(pieces):
            if index:
                self.cut()
            self.add(piece)
        if pieces and value[-1:].isspace():
            self.cut()


def quoted_part(text: str, at: int, env: Mapping[str, str]) -> tuple[str, int] | None:
    """What begins with a quote or a backslash at ``at``, and the offset behind it."""
    if text[at] == '"':
        return double_quoted(text, at + 1, env)
    if text[at] == "'":
        end = text.find("'", at + 1)
        return None if end < 0 else (text[at + 1 : end], end + 1)
    after = text[at + 1 : at + 2]
    return None if after in ("", "\n") else (after, at + 2)


def double_quoted(text: str, at: int, env: Mapping[str, str]) -> tuple[str, int] | None:
    """What stands between double quotes, and the offset behind the closing one."""
    word = ""
    while at < len(text):
        letter = text[at]
        if letter == '"':
            return word, at + 1
        if letter == "`":
            return None
        if letter == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$", "`"):
            word, at = word + text[at + 1], at + 2
        elif letter == "$":
            value, at = variable(text, at, env)
            if value is None:
                return None
            word += value
        else:
            word, at = word + letter, at + 1
    return None


def variable(text: str, at: int, env: Mapping[str, str]) -> tuple[str | None, int]:
    """The value of ``$NAME`` or ``${NAME}`` and the offset behind it; None for every other expansion."""
    braced = text[at + 1 : at + 2] == "{"
    start = end = at + (2 if braced else 1)
    while end < len(text) and (text[end].isalnum() or text[end] == "_") and text[end].isascii():
        end += 1
    name = text[start:end]
    if not name or name[0].isdigit() or (braced and text[end : end + 1] != "}"):
        return None, end
    return env.get(name, ""), end + 1 if braced else end


def assigns(word: str) -> bool:
    name, equals, _value = word.partition("=")
    return bool(equals) and name.isidentifier() and name.isascii()
