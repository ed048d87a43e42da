"""JSON as hosts read it, strictly, with a diagnosis of what they would stumble over. Pure.

``json`` imports ``re``, which costs more than a hook's whole answer; its C scanner alone does not.
"""

from __future__ import annotations

import _json

from stockade.policies.record import Record
from stockade.sandbox.hooks.model import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BLANK = " \t\n\r"
MOST_DEEP = 200
"""Nesting; what is deeper is no answer, and the scanner recurses."""
BOM = "\ufeff"


class Document(Record):
    """What a stream holds. ``form``: ``empty``, ``object``, ``array``, ``scalar``, ``text`` or ``broken``.

    ``text`` did not begin like an object or array at all; ``broken`` began like one and is not valid JSON.
    """

    form: str
    value: Any = None
    text: str = ""
    """The stream decoded, invalid bytes as U+FFFD, blanks around it removed."""
    problems: tuple[Problem, ...] = ()

    def has(self, *codes: str) -> bool:
        return any(each.code in codes for each in self.problems)


class NotJson(ValueError):
    """Why a text is not one JSON document. ``code`` and ``offset`` (characters) say what and where."""

    def __init__(self, code: str, text: str, offset: int = 0) -> None:
        super().__init__(text)
        self.code, self.text, self.offset = code, text, offset


def read(data: bytes) -> Document:
    """Read a stream that should hold at most one JSON document."""
    problems: list[Problem] = []
    try:
        whole = data.decode()
    except UnicodeDecodeError as error:
        problems.append(Problem("invalid_utf8", f"byte {error.start} is not UTF-8"))
        whole = data.decode("utf-8", "replace")
    if whole.startswith(BOM):
        problems.append(Problem("bom", "it begins with a byte order mark"))
        body = whole[1:].strip(BLANK)
        return Document("text", None, body, (*problems, *hidden(body)))
    text = whole.strip(BLANK)
    if not text:
        return Document("empty", None, "", tuple(problems))
    if problems:
        return Document("broken" if text[0] in "{[" else "text", None, text, (*problems, *hidden(text)))
    try:
        value, more = parse(text)
    except NotJson as error:
        began = text[0] in "{["
        found = Problem(error.code, error.text)
        return Document(
            "broken" if began else "text", None, text, (found, *hidden(text)) if began else hidden(text)
        )
    form = "object" if isinstance(value, dict) else "array" if isinstance(value, list) else "scalar"
    return Document(form, value, text, more)


def parse(text: str) -> tuple[Any, tuple[Problem, ...]]:
    """One JSON document with nothing after it, and what is odd about it. Raises NotJson."""
    scan, repeated = scanner()
    start = len(text) - len(text.lstrip(BLANK))
    try:
        value, end = scanned(scan, text, start)
    except StopIteration as error:
        raise NotJson("syntax", "it is not JSON", int(error.value or 0)) from None
    except NotJson:
        raise
    except RecursionError:
        raise NotJson("too_deep", "it is nested too deeply") from None
    except ValueError as error:
        raise NotJson(
            "syntax", f"it is not JSON: {getattr(error, 'msg', error)}", int(getattr(error, "pos", 0))
        ) from None
    rest = text[end:].strip(BLANK)
    if rest:
        code = "second_document" if rest[0] in "{[" else "trailing"
        raise NotJson(code, "there is more after the JSON document", end)
    if depth(value) > MOST_DEEP:
        raise NotJson("too_deep", "it is nested too deeply")
    return value, tuple(Problem("duplicate_key", f"the key {key!r} stands twice") for key in repeated)


def scanned(scan: Any, text: str, start: int) -> tuple[Any, int]:
    try:
        found: tuple[Any, int] = scan(text, start)
    except SystemError:
        # CPython's scanner takes its exception from a module that it does not import itself.
        import json.decoder  # noqa: F401

        found = scan(text, start)
    return found


def scanner() -> tuple[Any, list[str]]:
    """The scanner, and a list that it fills with keys that stand twice."""
    repeated: list[str] = []

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(found)
        if len(made) < len(found):
            seen: set[str] = set()
            repeated.extend(key for key, _value in found if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return made

    def constant(name: str) -> Any:
        raise NotJson("not_a_number", f"{name} is not JSON")

    class Context:
        strict = True
        object_hook = None
        object_pairs_hook = staticmethod(pairs)
        parse_float = float
        parse_int = staticmethod(whole_number)
        parse_constant = staticmethod(constant)

    context: Any = Context()
    return _json.make_scanner(context), repeated


def whole_number(digits: str) -> int | float:
    """Python refuses integers of thousands of digits; hosts read them as floating point."""
    return int(digits) if len(digits) < 400 else float(digits)


def depth(value: Any) -> int:
    """How deeply containers are nested, without recursion."""
    level, layer = 0, [value]
    while layer := [each for each in layer if isinstance(each, dict | list)]:
        level += 1
        layer = [inner for each in layer for inner in (each.values() if isinstance(each, dict) else each)]
    return level


def hidden(text: str) -> tuple[Problem, ...]:
    """Whether other text (a banner, escape codes) stands before what looks like a document."""
    if text.startswith("{"):
        return ()
    inside = any(part.lstrip(BLANK).startswith('"') for part in text.split("{")[1:])
    if inside or any(line.lstrip(BLANK + BOM).startswith("{") for line in text.split("\n")):
        return (Problem("banner", "there is other text before what looks like a JSON document"),)
    return ()


def dumps(value: Any, *, ascii: bool = True) -> bytes:
    """Compact JSON. Without ``ascii`` letters stand for themselves and only lone surrogates are escaped, as JavaScript
    writes it. Raises TypeError, ValueError and RecursionError for what has no JSON form.
    """

    def default(unknown: object) -> Any:
        raise TypeError(f"{type(unknown).__name__} has no JSON form")

    text = _json.encode_basestring_ascii if ascii else _json.encode_basestring
    encode = _json.make_encoder({}, default, text, None, ":", ",", False, False, False)
    return "".join(encode(value, 0)).encode("utf-8", "backslashreplace")
