"""Where a string stands in a TOML text, found without a parser of its own: every place that could be it is changed
for a trial, and the one where the document then differs in that value alone is it. Pure.
"""

from __future__ import annotations

import re

from stockade.policies.toml import loads
from stockade.sandbox.hooks.source import Edit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

BASIC = r'"(?!"")(?:[^"\\\n]|\\[^\n])*"'
LITERAL = r"'(?!'')[^'\n]*'"
PLACE = r"""(?P<key>{key})[ \t]*=[ \t]*(?P<text>{basic}|{literal})"""
TRIAL = "stockade was here"


def string_at(text: str, steps: Sequence[str], value: str) -> Edit | None:
    """The span of the simple string that ``steps`` (keys and indexes) lead to, with its own text; None where it is
    no string on one line, or can't be told from another.
    """
    whole = loads(text)
    found = [
        span for span in spans(text, steps[-1], value) if trial(text, span) == changed(whole, list(steps), TRIAL)
    ]
    return found[0] if len(found) == 1 else None


def spans(text: str, key: str, value: str) -> Iterator[Edit]:
    """Every place that looks like ``key = "value"``."""
    return (span for span, found in strings(text, key) if found == value)


def strings(text: str, key: str) -> Iterator[tuple[Edit, str]]:
    """Every place that looks like ``key`` and a string on one line, with the string's value."""
    name = f"{re.escape(key)}|\"{re.escape(key)}\"|'{re.escape(key)}'"
    for place in re.finditer(PLACE.format(key=name, basic=BASIC, literal=LITERAL), text):
        value = decoded(place["text"])
        if value is not None:
            yield Edit(place.start("text"), place.end("text"), place["text"]), value


def decoded(written: str) -> str | None:
    try:
        value = loads(f"x = {written}")["x"]
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def trial(text: str, span: Edit) -> Any:
    """The document with something else there; None if it is no document then."""
    try:
        return loads(f'{text[: span.start]}"{TRIAL}"{text[span.end :]}')
    except ValueError:
        return None


def changed(tree: Any, steps: Sequence[str], value: str) -> Any:
    """A tree with one value exchanged."""
    if not steps:
        return value
    first, *rest = steps
    if isinstance(tree, list):
        return [changed(each, rest, value) if number == int(first) else each for number, each in enumerate(tree)]
    return {key: changed(each, rest, value) if key == first else each for key, each in tree.items()}


def written(value: str) -> str:
    """A basic string. A here-document's lines stay on one line."""
    import json

    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
