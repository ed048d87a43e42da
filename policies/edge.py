"""One ``[[network.edge]]`` entry (pure): which requests to a host may pass, and the headers that are put in outside.

A value of a header is never in a policy: an entry says where it is to be had (``env:``, ``file:``, ``command:``), and
whoever starts the run reads it. Opens nothing and reads no environment; ``policies.edgefields`` judges what is written,
``netns.edge.rules`` judges requests.
"""

from __future__ import annotations

from stockade.policies.hosts import HostRule, parse_rule
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LET_OUT = ("allow", "open")
"""Network kinds in which entries are in force; in others they are idle."""
SOURCES = ("env", "file", "command", "literal")
HTTPS, HTTP = "https", "http"


class Header(Record):
    """A header that is put into each request of an entry, in place of what the program sent under that name."""

    name: str
    source: str
    """``env:NAME``, ``file:PATH``, ``command:ARGV`` (split as a shell would, run without one) or ``literal:TEXT``."""
    format: str
    """Text with one ``{}`` (the value) or ``{base64}`` (the value in base64)."""


class EdgeRule(Record):
    """One entry. It opens its host by itself, through the edge alone."""

    host: HostRule
    """TCP, by name."""
    scheme: str
    """``https``, or ``http``: without TLS, also on the way out."""
    methods: tuple[str, ...]
    """In capitals; empty: every method."""
    paths: tuple[str, ...]
    """Patterns in which ``*`` stands for any characters, also ``/``; without the query. Empty: every path."""
    headers: tuple[Header, ...]


def in_force(lines: Iterable[str], egress: str) -> tuple[EdgeRule, ...]:
    """The entries of a resolved policy, none in a network kind that lets nothing out."""
    return tuple(map(read_edge, lines)) if egress in LET_OUT else ()


def write_edge(rule: EdgeRule) -> str:
    """The entry as one line of JSON, keys in a fixed order: how a resolved policy carries it."""
    import json

    headers = [[each.name, each.source, each.format] for each in rule.headers]
    fields = [rule.host.text, rule.scheme, list(rule.methods), list(rule.paths), headers]
    return json.dumps(dict(zip(("host", "scheme", "methods", "paths", "headers"), fields, strict=True)))


def read_edge(text: str) -> EdgeRule:
    """The entry in a line that ``write_edge`` made."""
    import json

    found = json.loads(text)
    headers = tuple(Header(*each) for each in found["headers"])
    methods, paths = tuple(found["methods"]), tuple(found["paths"])
    return EdgeRule(parse_rule(found["host"]), found["scheme"], methods, paths, headers)
