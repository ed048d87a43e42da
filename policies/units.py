"""Durations, sizes and counts: text to number and back (pure).

Imports nothing: the command line parses ``--timeout`` with it before anything heavy is loaded.
Every refusal is a ``PolicyError``; ``None`` stands for no limit and is written ``none``.
"""

from __future__ import annotations

from stockade.policies.errors import PolicyError
from stockade.policies.text import quoted

NO_LIMIT = "none"
SHORTEST = 0.001
LONGEST = 366 * 86400
LARGEST = 2**62
MOST = 2**31 - 1

SECONDS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600}
BYTES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
BYTES.update({f"{unit}ib": BYTES[unit] for unit in "kmgt"})

DURATION_WANTED = 'write a time such as "500ms", "10s", "2m" or "1h", a number of seconds, or "none"'
SIZE_WANTED = 'write a size such as "64K", "512M" or "2G" (binary units), a whole number of bytes, or "none"'
COUNT_WANTED = 'write a whole number from 1 up, or "none"'


def parse_duration(value: object, where: str = "duration") -> float | None:
    """Seconds, or None for ``none``. ``where`` names the setting in the ``PolicyError``."""
    if value == NO_LIMIT:
        return None
    seconds = _seconds(value)
    if seconds is None:
        raise _fault(where, value, "is not a time", DURATION_WANTED)
    if not SHORTEST <= seconds <= LONGEST:  # false for nan too
        raise _fault(where, value, "is not between 1 ms and 366 days", DURATION_WANTED)
    return seconds


def render_duration(seconds: float | None) -> str:
    """The shortest exact text: ``parse_duration(render_duration(x)) == x``."""
    if seconds is None:
        return NO_LIMIT
    whole = int(seconds)
    if whole != seconds:
        thousandths = round(seconds * 1000)
        return f"{thousandths}ms" if thousandths / 1000 == seconds else f"{seconds!r}s"
    for unit, length in (("h", 3600), ("m", 60)):
        if whole % length == 0:
            return f"{whole // length}{unit}"
    return f"{whole}s"


def parse_size(value: object, where: str = "size") -> int | None:
    """Bytes, or None for ``none``. ``where`` names the setting in the ``PolicyError``."""
    if value == NO_LIMIT:
        return None
    size = _bytes(value)
    if size is None:
        raise _fault(where, value, "is not a size in whole bytes", SIZE_WANTED)
    if not 1 <= size <= LARGEST:
        raise _fault(where, value, "is not between 1 byte and 4194304T", SIZE_WANTED)
    return size


def render_size(size: int | None) -> str:
    """The shortest exact text: ``parse_size(render_size(x)) == x``."""
    if size is None:
        return NO_LIMIT
    for unit in "TGMK":
        length = BYTES[unit.lower()]
        if size and size % length == 0:
            return f"{size // length}{unit}"
    return str(size)


def parse_count(value: object, where: str = "count") -> int | None:
    """A whole number from 1 up, or None for ``none``. ``where`` names the setting in the ``PolicyError``."""
    if value == NO_LIMIT:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise _fault(where, value, f"is not a whole number between 1 and {MOST}", COUNT_WANTED)
    return value


def render_count(count: int | None) -> int | str:
    """The number itself, or ``none``."""
    return NO_LIMIT if count is None else count


def _seconds(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return float(value) if abs(value) <= LARGEST else float("inf")
    if isinstance(value, float):
        return value
    number, unit = _split(value) if isinstance(value, str) else ("", "")
    if not _decimal(number) or unit not in SECONDS:
        return None
    return float(number) / 1000 if unit == "ms" else float(number) * SECONDS[unit]


def _bytes(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    number, unit = _split(value) if isinstance(value, str) else ("", "")
    if not _decimal(number) or unit.lower() not in BYTES:
        return None
    whole, _, fraction = number.partition(".")
    size, rest = divmod(int(whole + fraction) * BYTES[unit.lower()], 10 ** len(fraction))
    return None if rest else size


def _split(text: str) -> tuple[str, str]:
    """The leading digits and dots, and what follows them."""
    end = 0
    while end < len(text) and text[end] in "0123456789.":
        end += 1
    return text[:end], text[end:]


def _decimal(text: str) -> bool:
    whole, dot, fraction = text.partition(".")
    if not whole.isdigit() or len(text) > 24:
        return False
    return fraction.isdigit() if dot else True


def _fault(where: str, value: object, cause: str, wanted: str) -> PolicyError:
    return PolicyError(f"could not use {where}: {quoted(value)} {cause}", remedy=wanted)
