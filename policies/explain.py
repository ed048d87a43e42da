"""A resolved policy as people and programs read it (pure): rows with their origin, a nested dict, TOML text, and
which way each host of its network is reached."""

from __future__ import annotations

from stockade.policies.errors import PolicyError
from stockade.policies.fields import ATTRIBUTES, nested, render_values
from stockade.policies.hosts import covers, effective_check, parse_rule
from stockade.policies.record import Record
from stockade.policies.text import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.policies.edge import EdgeRule
    from stockade.policies.hosts import HostRule
    from stockade.policies.resolved import Resolved

ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}


class Route(Record):
    """How the connections that one entry allows are let out."""

    entry: str
    kind: str
    """``allow`` or ``edge``: the list the entry is in."""
    way: str


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
            tables = {key: value for key, value in fields.items() if _is_tables(value)}
            lines += ["", f"[{section}]", *_lines({key: fields[key] for key in fields if key not in tables})]
            for key, value in tables.items():
                lines += [line for table in value for line in ("", f"[[{section}.{key}]]", *_lines(table))]
    text = "\n".join(lines).lstrip("\n") + "\n"
    _check_unicode(text)
    return text


def routes(resolved: Resolved) -> list[Route]:
    """Which way each entry of ``network.allow`` and ``network.edge`` goes, and why."""
    edge = _edge_rules(resolved)
    allow = [parse_rule(text) for text in resolved.allow]
    named = [*(rule for rule in allow if rule.name and rule.protocol == "tcp"), *(each.host for each in edge)]
    shared = len({rule.name for rule in named}) > 1 or any(rule.wildcard for rule in named)
    return [
        *(Route(rule.text, "allow", _way(rule, resolved.check, shared, edge)) for rule in allow),
        *(Route(each.host.text, "edge", _edge_way(each, resolved.egress)) for each in edge),
    ]


def _edge_rules(resolved: Resolved) -> list[EdgeRule]:
    if not resolved.edge:
        return []
    from stockade.policies.edge import read_edge

    return [read_edge(line) for line in resolved.edge]


def _way(rule: HostRule, check: str, shared: bool, edge: list[EdgeRule]) -> str:
    plain = rule.replace(check=None)
    if through := [each.host.text for each in edge if covers(each.host, plain)]:
        return f"through the edge ({through[0]})"
    kind = effective_check(rule, check)
    if kind == "name":
        return f"name checked ({'its own check' if rule.check else 'network.check'})"
    return "name checked where its address is shared" if kind == "auto" and shared else "packets by address"


def _edge_way(rule: EdgeRule, egress: str) -> str:
    if egress not in ("allow", "open"):
        return f"idle: network.egress is {egress}"
    methods, paths = ", ".join(rule.methods) or "every method", ", ".join(rule.paths) or "every path"
    put = ", ".join(f"{each.name} ({each.source})" for each in rule.headers)
    clear = "; without TLS" if rule.scheme == "http" else ""
    return f"edge: {methods} to {paths}{f'; puts in {put}' if put else ''}{clear}"


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


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _lines(fields: dict[str, Any]) -> list[str]:
    return [f"{key} = {_toml(value)}" for key, value in fields.items()]


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
