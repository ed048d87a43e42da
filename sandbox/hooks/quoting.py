"""Shell texts that carry other texts: what ``hooks wrap`` writes into a command line, and how it is read back. Pure.

The quoting is understood alike by sh, bash, zsh and fish: hosts start the user's own shell. Only what this file
itself writes is read back; it is no parser of shell scripts.
"""

from __future__ import annotations

import re

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

OWN_SHELL = "\0$SHELL"
"""A word that stands for ``"$SHELL"``, which the outer shell fills in. No real word has a NUL."""
OWN_SHELL_TEXT = '"$SHELL"'
PLAIN = re.compile(r"[A-Za-z0-9_@+:,./-]+")
"""Words without quotes. Not ``=`` (an assignment, or zsh's ``=name``), ``%`` (fish's jobs) or ``~``."""
PIECE = re.compile(r"[A-Za-z0-9_@+:,./=-]+|'([^'\0]*)'|\\(['\\])")
BLANKS = re.compile(r"[ \t]+")
MARK = "STOCKADE"
LITERAL = re.compile(r'"\$\(cat <<\'(?P<mark>STOCKADE(?:_\d+)?)\'\n(?P<text>.*)\n(?P=mark)\n\)"', re.DOTALL)
ENDING = re.compile(r"\n#*\Z")
CONTINUED = re.compile(r"(\A|[^ \t]|\\[ \t])\\\n#*\Z")
"""A word that a ``#`` behind it would become a part of."""
MOST_HEAD = 1000
"""Words of a call of ``stockade hook`` before its ``--``."""
LAUNCHERS = ("env", "uv", "uvx", "pipx", "poetry", "pdm", "hatch", "rye", "mise", "nix", "guix")
"""Programs that may stand before ``stockade``, beside ``python -m``; any other is a command of its own."""


class Wrapped(Record):
    """A command that goes through ``stockade hook``, taken apart."""

    head: tuple[str, ...]
    """The program, ``hook`` and its options, without the ``--``."""
    rest: str
    """The text after the ``--``, as it stands."""
    inner: tuple[str, ...] | None
    """Its words: ``(shell, "-c", text)`` where we wrote it; None where it is more than plain words."""


def quote(text: str) -> str:
    """One word that every shell reads as ``text``. Raises ValueError for a NUL, which no argument can have.

    Quotes and backslashes stand outside of the quotes: inside, fish reads a backslash, and zsh may read ``''``.
    """
    if text == OWN_SHELL:
        return OWN_SHELL_TEXT
    if "\0" in text:
        raise ValueError("a command can't hold a NUL")
    if PLAIN.fullmatch(text):
        return text
    pieces = re.findall(r"[^'\\]+|['\\]", text)
    return "".join(f"\\{piece}" if piece in "'\\" else f"'{piece}'" for piece in pieces) or "''"


def join(words: Iterable[str]) -> str:
    """A command line of these words."""
    return " ".join(map(quote, words))


def word_at(text: str, at: int) -> tuple[str, int] | None:
    """The plain word that begins at ``at`` and where it ends; None for anything more than quotes and letters."""
    if text.startswith(OWN_SHELL_TEXT, at):
        found, end = OWN_SHELL, at + len(OWN_SHELL_TEXT)
    else:
        found, end = "", at
        while piece := PIECE.match(text, end):
            found += piece[1] if piece[1] is not None else piece[2] or piece[0]
            end = piece.end()
    return (found, end) if end > at and text[end : end + 1] in ("", " ", "\t") else None


def split(text: str) -> tuple[str, ...] | None:
    """The words of a command line as ``join`` writes them; None for anything else."""
    words: list[str] = []
    at = skip(text, 0)
    while at < len(text):
        found = word_at(text, at)
        if found is None:
            return None
        words.append(found[0])
        at = skip(text, found[1])
    return tuple(words)


def skip(text: str, at: int) -> int:
    blanks = BLANKS.match(text, at)
    return blanks.end() if blanks else at


def literal(text: str) -> str:
    """One word that bash reads as ``text``, for hosts that replace parts of a command by text of their own.

    What they put in is quoted already and would end our quotes; in a here-document nothing ends anything.
    A line ``#`` at the end saves line ends that ``$(...)`` would drop. Raises ValueError for bytes that bash loses.
    """
    if "\0" in text or "\x01" in text or "\x7f" in text:
        raise ValueError("a command with control characters can't be carried by a here-document")
    if CONTINUED.search(text):
        raise ValueError(
            "a word that ends in a backslash and the last line end can't be carried by a here-document"
        )
    if ENDING.search(text):
        text += "#"
    number, mark = 0, MARK
    while mark in text.split("\n"):
        number += 1
        mark = f"{MARK}_{number}"
    return f"\"$(cat <<'{mark}'\n{text}\n{mark}\n)\""


def unliteral(word: str) -> str | None:
    """The text of a word that ``literal`` wrote; None for another."""
    found = LITERAL.fullmatch(word)
    if found is None:
        return None
    text = found["text"]
    return text[:-1] if text.endswith("#") and ENDING.search(text) else text


def wrapped(head: Sequence[str], shell: str, text: str, *, as_literal: bool = False) -> str:
    """The command line that runs ``text`` in ``shell`` behind ``head``."""
    return f"{join(head)} -- {join((shell, '-c'))} {literal(text) if as_literal else quote(text)}"


def head_length(words: Sequence[str]) -> int:
    """How many words call ``stockade hook``, its options left out; 0 where these words are no such call."""
    at = next((at for at, word in enumerate(words[1:], 1) if word == "hook"), 0)
    return at + 1 if at and calls_stockade(words[:at]) else 0


def calls_stockade(words: Sequence[str]) -> bool:
    """Whether these words, and no others before a command of it, start stockade."""
    if not words or words[-1].rpartition("/")[2] != "stockade":
        return False
    first = words[0].rpartition("/")[2]
    if len(words) == 1 or first in LAUNCHERS:
        return True
    return first.startswith("python") and tuple(words[1:]) in (("-m", "stockade"), ("-P", "-m", "stockade"))


def taken_apart(text: str) -> Wrapped | None:
    """A command line that goes through ``stockade hook ... -- ...``; None for any other.

    What follows the ``--`` may be any shell text: it is handed back as it stands.
    """
    words: list[str] = []
    at = skip(text, 0)
    while (found := word_at(text, at)) is not None and not (
        found[0] == "--" and len(words) <= MOST_HEAD and head_length(words)
    ):
        words.append(found[0])
        at = skip(text, found[1])
    if found is None or OWN_SHELL in words:
        return None
    rest = text[skip(text, found[1]) :]
    return Wrapped(tuple(words), rest, inner_of(rest))


def inner_of(rest: str) -> tuple[str, ...] | None:
    before, opening, text = rest.partition(' "$(cat <<')
    plain = unliteral(opening[1:] + text) if opening else None
    if plain is not None:
        first = split(before)
        return None if first is None else (*first, plain)
    return split(rest)


def taken_apart_words(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The same of a program and its arguments: (head, command after the ``--``); None where they do not hold one."""
    length = head_length(words)
    if not length or "--" not in words[length:]:
        return None
    at = list(words).index("--", length)
    return (tuple(words[:at]), tuple(words[at + 1 :])) if at + 1 < len(words) else None
