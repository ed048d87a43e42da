"""TOML text to plain values, within bounds (pure; cold: imports ``re`` and ``tomllib``).

The standard parser keeps every beginning of a dotted key: one of a hundred thousand parts, which fits into a small
file, would take tens of gigabytes. Such a key is refused before the parser sees it.
"""

from __future__ import annotations

import re
import tomllib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Atomic groups throughout: possessive repetitions of groups do not match what they should in Python 3.11.
MOST_PARTS = 32
"""Of one dotted key."""
PART = r"""(?:(?>[A-Za-z0-9_-]+)|"(?>(?:[^"\\\n]|\\[^\n])*)"|'(?>[^'\n]*)')"""
TOKENS = re.compile(
    rf"""
    \"\"\"(?>(?:[^"\\]|\\.|"(?!""))*)"{{3,5}}   # texts of several lines, and comments: dots in them are none of a key
    | '''(?>(?:[^']|'(?!''))*)'{{3,5}}
    | \#[^\n]*
    | (?P<key>(?>{PART}(?:[ \t]*\.[ \t]*{PART})*))
    | (?P<open>["'])   # a text that never ends: the parser stops there, too
    """,
    re.DOTALL | re.VERBOSE,
)


def loads(text: str) -> dict[str, Any]:
    """The document. Raises ValueError (with line and column where there are any) and RecursionError."""
    for found in TOKENS.finditer(text):
        key = found["key"]
        if found["open"]:
            break
        if key and key.count(".") >= MOST_PARTS and len(re.findall(PART, key)) > MOST_PARTS:
            line = text.count("\n", 0, found.start()) + 1
            column = found.start() - text.rfind("\n", 0, found.start())
            raise ValueError(f"A key of more than {MOST_PARTS} parts (at line {line}, column {column})")
    return tomllib.loads(text)
