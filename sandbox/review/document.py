"""A review as a JSON document (pure): ``"schema": "stockade.review/1"``, everything that is known of it."""

from __future__ import annotations

import math
import os

from stockade.policies.record import Record
from stockade.sandbox.review.summary import summarise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from stockade.sandbox.review.model import Review

SCHEMA = "stockade.review/1"
DEEPEST = 100
"""Levels of nested values; no host reads a hooks file that has more."""


def render(review: Review) -> dict[str, Any]:
    """Values that any JSON reader takes: text is Unicode, numbers are finite. Foreign text is not made harmless for
    terminals here: that is for who shows it."""
    summary = summarise(review)
    return {
        "schema": SCHEMA,
        "path": plain(review.path),
        "version": plain(review.version),
        "verdict": summary.verdict,
        "headline": summary.headline,
        "detail": summary.detail,
        "counts": dict(summary.counts),
        "runs": summary.runs,
        "failed_runs": summary.failed_runs,
        "duration": plain(review.duration),
        "read_method": plain(review.read_method),
        "findings": plain(summary.findings),
        "not_reviewed": [{"name": plain(name), "why": plain(why)} for name, why in summary.not_reviewed],
        "problems": plain(review.problems),
        "canaries": [{"name": plain(name), "place": plain(place)} for name, place in review.canaries],
        "handlers": plain(review.handlers),
        "exercises": [exercise(each) for each in review.exercises],
    }


def exercise(record: Record) -> dict[str, Any]:
    """One run; what each host would make of it by the host's name."""
    fields: dict[str, Any] = plain(record)
    across: Iterable[tuple[str, str]] = record.as_dict()["across"]
    return fields | {"across": {plain(name): plain(effect) for name, effect in across}}


def plain(value: Any, depth: int = 0) -> Any:
    """Records, tuples and the like as JSON's own."""
    if depth > DEEPEST:
        return "[nested too deeply]"
    if isinstance(value, Record):
        value = value.as_dict()
    if isinstance(value, dict):
        return {plain_text(str(key)): plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [plain(each, depth + 1) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else plain_text(str(value))


def plain_text(text: str) -> str:
    """Text that is Unicode: bytes of a path that are none become ``\\xNN``, other halves of pairs ``\\uNNNN``."""
    if text.isascii():
        return text
    try:
        return os.fsencode(text).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
