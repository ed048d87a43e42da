"""Foreign text made harmless and short (pure): names, paths, payloads and output that the reviewed hooks chose.

Every report takes such text through here first; what a format needs beyond that (HTML's escapes, say) is its own.
"""

from __future__ import annotations

from stockade.sandbox.cli.style import escape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_LINE = 300
MOST_BLOCK = 6000
FORMULA = "=+-@\t\r"
"""What a spreadsheet takes for the beginning of a formula, when a table is pasted into it."""


def line(text: str, most: int = MOST_LINE) -> str:
    """On one line, control and invisible characters spelt out, at most ``most`` characters of the text."""
    cut = text if len(text) <= most else f"{text[: most - 12]} [...] {text[-5:]}"
    return escape(cut)


def cell(text: str, most: int = MOST_LINE) -> str:
    """The same for a cell of a table, which may be pasted into a spreadsheet: never a formula."""
    shown = line(text, most)
    return f"'{shown}" if shown and shown[0] in FORMULA else shown


def block(text: str, most: int = MOST_BLOCK) -> str:
    """With its line ends and tabs, all else as in ``line``; how much was left out is told."""
    kept = text[:most]
    lines = kept.replace("\r\n", "\n").split("\n")
    shown = "\n".join("\t".join(map(escape, each.split("\t"))) for each in lines)
    return shown if len(text) <= most else f"{shown}\n[{len(text) - most:,} more characters]"


def fitted(text: str, columns: int) -> str:
    """A text that went through ``line`` before, cut to so many columns of a terminal."""
    if columns_of(text) <= columns:
        return text
    kept = ""
    for letter in text:
        if columns_of(kept) + columns_of(letter) > columns - 3:
            break
        kept += letter
    return f"{kept}..."


def columns_of(text: str) -> int:
    """Columns on a terminal: wide letters take two, marks none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(each) else 1 + (east_asian_width(each) in "WF") for each in text)


def counted(number: int, noun: str) -> str:
    """``1 run``, ``2,000 runs``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def listed(words: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
