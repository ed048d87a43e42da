"""A resolved policy as people and programs read it (pure): rows with their origin, a nested dict, TOML text."""

from __future__ import annotations

from stockade.policies.errors import PolicyError
from stockade.policies.fields import ATTRIBUTES, nested, render_values
from stockade.policies.text import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.policies.resolved import Resolved

ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}


def explain(resolved: Resolved) -> list[tuple[str, str, str]]:
    """Rows of TOML key, value as TOML text and the layer that set it; an unset mode reads ``unset``."""
    origin = dict(resolved.origin)
    stated = _stated(resolved)
    return [(key, _toml(stated[key]) if key in stated else "unset", origin.get(key, "")) for key in ATTRIBUTES]


def to_dict(resolved: Resolved) -> dict[str, Any]:
    """The policy by section in the shape of the TOML file; ready for JSON."""
    return nested(_stated(resolved))


def to_toml(resolved: Resolved) -> str:
    """A policy file that says the same; a text that is not Unicode (an odd path) is a ``PolicyError``."""
    tree = to_dict(resolved)
    lines = [f"{key} = {_toml(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    for section, fields in tree.items():
        if isinstance(fields, dict):
            lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in fields.items())]
    text = "\n".join(lines).lstrip("\n") + "\n"
    _check_unicode(text)
    return text


def _stated(resolved: Resolved) -> dict[str, Any]:
    return render_values({key: getattr(resolved, attribute) for key, attribute in ATTRIBUTES.items()})


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        bad = quoted(text[max(error.start - 20, 0) : error.end])
        raise PolicyError(
            f"could not write the policy as TOML: {bad} is not Unicode text", remedy="rename that file or variable"
        ) from error


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _basic_string(value)
    if isinstance(value, dict):
        pairs = ", ".join(f"{_basic_string(key)} = {_toml(entry)}" for key, entry in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    assert isinstance(value, list)
    return f"[{', '.join(_toml(entry) for entry in value)}]"


def _basic_string(text: str) -> str:
    return f'"{"".join(_escaped(letter) for letter in text)}"'


def _escaped(letter: str) -> str:
    if letter in ESCAPES:
        return ESCAPES[letter]
    surrogate = "\ud800" <= letter <= "\udfff"
    if letter.isprintable() or surrogate:
        return letter
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"
