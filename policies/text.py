"""How user text appears in messages: quoted, escaped, bounded. Decides nothing."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST = 120


def quoted(value: object) -> str:
    """The value as a literal on one line: control and bidirectional characters escaped, long text cut."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; nesting without an end
        text = f"a value of the type {type(value).__name__} that is too large to show"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def either(words: Iterable[str]) -> str:
    """``a, b or c``, each word quoted."""
    *rest, last = [f'"{word}"' for word in words]
    return f"{', '.join(rest)} or {last}" if rest else last
