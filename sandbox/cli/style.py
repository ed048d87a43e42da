"""How our own words look on a terminal: colours, columns, and foreign text made harmless.

Text that comes from a program, a path or a policy file goes through ``escape`` before it is quoted: a terminal
obeys what it is shown. A program's own output is passed on elsewhere, untouched.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class Stream(Protocol):
        """As much of a text stream as is asked here."""

        def isatty(self) -> bool: ...


_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
"""Blank though ``str.isprintable`` takes them for letters or marks."""


def colour_on(stream: Stream | None) -> bool:
    """May colours be written to ``stream``: a terminal, not a dumb one, and NO_COLOR not set (or empty)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False  # closed


def paint(text: str, name: str, on: bool) -> str:
    """``text`` in the colour or weight ``name`` if ``on``; escape it first. ``KeyError`` for another name."""
    code = _CODES[name]
    return f"\x1b[{code}m{text}\x1b[0m" if on and text else text


def escape(text: str | bytes) -> str:
    """Every control, invisible, unassigned or direction-changing character spelt out, all others as they are.

    Bytes are read as UTF-8; those that are none, and the surrogates that stand for such in paths and
    arguments, become ``\\xNN``. A backslash stays single: this is for reading, not for reading back.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if _visible(letter) else _spelt(letter) for letter in text)


def table(rows: Sequence[Sequence[str | tuple[str, str]]], on: bool, *, header: bool = False) -> str:
    """Aligned columns, two spaces apart, a line per row, each cell escaped; "" for no rows.

    A cell is a text or (text, colour name). With ``header`` the first row is bold.
    """
    plain = [[cell if isinstance(cell, tuple) else (cell, "") for cell in row] for row in rows]
    cells = [[(escape(text), name) for text, name in row] for row in plain]
    columns = max(map(len, cells), default=0)
    widths = [max((_columns(row[at][0]) for row in cells if at < len(row)), default=0) for at in range(columns)]
    lines = []
    for number, row in enumerate(cells):
        padded = ((text, " " * (widths[at] - _columns(text)), name) for at, (text, name) in enumerate(row))
        look = "bold" if header and number == 0 else ""
        line = "  ".join(
            (paint(text, name or look, on) if name or look else text) + pad for text, pad, name in padded
        )
        lines.append(line.rstrip() + "\n")
    return "".join(lines)


def _visible(letter: str) -> bool:
    if not letter.isprintable() or letter in _INVISIBLE:
        return False
    return not ("\ufe00" <= letter <= "\ufe0f" or "\U000e0100" <= letter <= "\U000e01ef")  # variation selectors


def _spelt(letter: str) -> str:
    number = ord(letter)
    if letter in _SHORT:
        return _SHORT[letter]
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    if number > 0xFFFF:
        return f"\\U{number:08x}"
    return f"\\u{number:04x}" if number > 0xFF else f"\\x{number:02x}"


def _columns(text: str) -> int:
    """Columns on a terminal: wide letters take two, marks none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(letter) else 1 + (east_asian_width(letter) in "WF") for letter in text)
