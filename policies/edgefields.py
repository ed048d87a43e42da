"""What a ``[[network.edge]]`` entry may say (pure; cold: loaded only where a policy has one).

Takes entries in TOML shape to the lines that ``edge`` reads, and back. Never sees the value of a secret: what is
written is only where it is to be had.
"""

from __future__ import annotations

import string

from stockade.policies.edge import HTTP, HTTPS, SOURCES, EdgeRule, Header, read_edge, write_edge
from stockade.policies.errors import PolicyError
from stockade.policies.fields import check_path
from stockade.policies.hosts import HostRule, parse_rule
from stockade.policies.record import Record
from stockade.policies.text import either, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

MOST_ENTRIES = 64
MOST_OF_EACH = 64
"""Methods, and paths, of one entry."""
MOST_HEADERS = 32
LONGEST = 4096
LONGEST_NAME = 128
KEYS = ("host", "scheme", "methods", "paths", "headers")
HEADER_KEYS = ("from", "format")
PLAIN = "{}"
PLACES = (PLAIN, "{base64}")

TOKEN = frozenset(string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~")
METHOD = frozenset(string.ascii_uppercase + string.digits + "-_")
VARIABLE = frozenset(string.ascii_letters + string.digits + "_")
REFUSED_METHODS = ("CONNECT", "TRACE")
REFUSED_HEADERS = frozenset(
    {
        "host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "keep-alive",
        "expect", "accept-encoding", "http2-settings",
    }
)  # fmt: skip
"""They belong to one connection, or say how long a message is: whoever speaks on it sets them."""
REFUSED_PREFIX = "proxy-"

HOST_WANTED = "write a name such as api.example.com or *.example.com, with a port if it is not 443"
METHODS_WANTED = 'write a list of methods in capitals such as ["GET", "POST"]; leave it out for all'
PATHS_WANTED = 'write a list of patterns such as ["/v1/*"], or leave it out for all; the query is no part of it'
HEADERS_WANTED = 'write a table such as { Authorization = { from = "env:API_TOKEN", format = "Bearer {}" } }'
SOURCE_WANTED = "write env:NAME, file:PATH or command:PROGRAM ARGUMENTS; literal:TEXT for a value that is no secret"
FORMAT_WANTED = 'write text with one {} for the value, or one {base64}, as in "Bearer {}"'


def parse_edge(entries: Iterable[Mapping[str, Any]], where: str) -> tuple[str, ...]:
    """One line for each entry. ``where`` names the setting in the ``PolicyError``."""
    lines = [write_edge(_entry(entry, _Place(number, where))) for number, entry in enumerate(entries, 1)]
    check_amount(lines, where)
    return tuple(lines)


def check_amount(lines: Iterable[str], where: str) -> None:
    """A ``PolicyError`` for more entries than are ever useful."""
    if len(tuple(lines)) > MOST_ENTRIES:
        raise PolicyError(
            f"could not use {where}: it has more than {MOST_ENTRIES} entries",
            remedy="put the hosts that are treated alike into one, as in *.example.com",
        )


def edge_table(line: str) -> dict[str, Any]:
    """The entry of a line in TOML shape; what it leaves to the default is left out."""
    rule = read_edge(line)
    table: dict[str, Any] = {"host": rule.host.text, "scheme": rule.scheme}
    lists = {"methods": list(rule.methods), "paths": list(rule.paths)}
    headers = {each.name: _header_value(each) for each in rule.headers}
    return table | {key: value for key, value in (lists | {"headers": headers}).items() if value}


def _header_value(header: Header) -> str | dict[str, str]:
    return header.source if header.format == PLAIN else {"from": header.source, "format": header.format}


class _Place(Record):
    """Where in a policy something stands, for messages."""

    number: int
    where: str

    def fault(self, key: str, cause: str, remedy: str) -> PolicyError:
        """``where`` begins with the key of the list: the number of the entry and the field go behind it."""
        name, space, source = self.where.partition(" ")
        field = f".{key}" if key else ""
        return PolicyError(f"could not use {name}[{self.number}]{field}{space}{source}: {cause}", remedy=remedy)


def _entry(entry: Mapping[str, Any], place: _Place) -> EdgeRule:
    if unknown := [key for key in entry if key not in KEYS]:
        raise place.fault("", f"there is no key {quoted(unknown[0])}", f"known here: {', '.join(KEYS)}")
    scheme = entry.get("scheme", HTTPS)
    if scheme not in (HTTPS, HTTP):
        raise place.fault("scheme", f"{quoted(scheme)} is not allowed", f"write {either((HTTPS, HTTP))}")
    return EdgeRule(
        _host(entry.get("host"), scheme, place),
        scheme,
        tuple(_method(each, place) for each in _texts(entry, "methods", METHODS_WANTED, place)),
        tuple(_path(each, place) for each in _texts(entry, "paths", PATHS_WANTED, place)),
        _headers(entry.get("headers", {}), place),
    )


def _host(text: object, scheme: str, place: _Place) -> HostRule:
    if not isinstance(text, str):
        cause = "it is missing" if text is None else f"{quoted(text)} is no text"
        raise place.fault("host", cause, HOST_WANTED)
    try:
        rule = parse_rule(text)
    except PolicyError as error:
        raise place.fault(
            "host", error.message.removeprefix("could not use the allow entry "), HOST_WANTED
        ) from None
    if cause := _host_fault(rule):
        raise place.fault("host", f"{quoted(text)} {cause}", HOST_WANTED)
    if scheme == HTTP and (rule.low, rule.high) == (443, 443):
        raise place.fault(
            "host",
            f"{quoted(text)} means port 443, and the scheme is http",
            f"write {'*.' * rule.wildcard}{rule.name}:80",
        )
    return rule


def _host_fault(rule: HostRule) -> str:
    if rule.name is None:
        return "is an address: only a name can be seen in a connection"
    if rule.protocol != "tcp":
        return "is UDP: requests are seen on TCP alone"
    return "has check=: the name of an edge host is always checked" if rule.check is not None else ""


def _texts(entry: Mapping[str, Any], key: str, wanted: str, place: _Place) -> tuple[str, ...]:
    value = entry.get(key)
    if value is None and key not in entry:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise place.fault(key, f"{quoted(value)} is no list of texts", wanted)
    if not value or len(value) > MOST_OF_EACH:
        cause = (
            f"it has more than {MOST_OF_EACH} entries"
            if value
            else "the list is empty, which would let nothing through"
        )
        raise place.fault(key, cause, wanted)
    return tuple(dict.fromkeys(value))


def _method(text: str, place: _Place) -> str:
    if text in REFUSED_METHODS:
        raise place.fault("methods", f"{quoted(text)} is never let through the edge", METHODS_WANTED)
    if not text or len(text) > LONGEST_NAME or not METHOD.issuperset(text):
        capitals = text.upper()
        remedy = f'write "{capitals}"' if capitals != text and METHOD.issuperset(capitals) else METHODS_WANTED
        raise place.fault("methods", f"{quoted(text)} is no method in capitals", remedy)
    return text


def _path(text: str, place: _Place) -> str:
    if cause := _path_fault(text):
        raise place.fault("paths", f"{quoted(text)} {cause}", PATHS_WANTED)
    return text


def _path_fault(text: str) -> str:
    if text == "*":
        return ""
    if not text.startswith("/") or len(text) > LONGEST:
        return "does not begin with /" if len(text) <= LONGEST else "is longer than a path can be"
    if odd := [letter for letter in text if letter in "?#\\" or not "!" <= letter <= "~"]:
        return f"has {odd[0]!r} in it, which no path of a request has"
    dots = {".", ".."}.intersection(text.split("/"))
    return f'has the part "{min(dots)}" in it: such requests are always refused' if dots else ""


def _headers(value: object, place: _Place) -> tuple[Header, ...]:
    if not isinstance(value, dict):
        raise place.fault("headers", f"{quoted(value)} is no table", HEADERS_WANTED)
    if len(value) > MOST_HEADERS:
        raise place.fault("headers", f"it has more than {MOST_HEADERS} entries", HEADERS_WANTED)
    seen: dict[str, str] = {}
    for name in value:
        _check_header_name(name, place)
        twin = seen.setdefault(_plain_name(name), name)
        if twin is not name:
            raise place.fault("headers", f"{quoted(twin)} and {quoted(name)} are one header", "write one of them")
    return tuple(_header(name, each, place) for name, each in value.items())


def _plain_name(name: str) -> str:
    """Servers take an underscore in a header for a hyphen."""
    return name.lower().replace("_", "-")


def _check_header_name(name: object, place: _Place) -> None:
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME or not TOKEN.issuperset(name):
        raise place.fault("headers", f"{quoted(name)} is no name of a header", HEADERS_WANTED)
    plain = _plain_name(name)
    if plain in REFUSED_HEADERS or plain.startswith(REFUSED_PREFIX):
        raise place.fault(
            "headers", f"{quoted(name)} is set by the connection itself", "drop it: no policy can put it in"
        )


def _header(name: str, value: object, place: _Place) -> Header:
    """Messages quote neither value nor format: either may be a secret that somebody wrote down as it is."""
    source, form = value, PLAIN
    if isinstance(value, dict):
        if unknown := [key for key in value if key not in HEADER_KEYS]:
            raise place.fault(f"headers.{name}", f"there is no key {quoted(unknown[0])}", HEADERS_WANTED)
        source, form = value.get("from"), value.get("format", PLAIN)
    if not isinstance(source, str):
        raise place.fault(f"headers.{name}", "it does not say where the value is to be had", SOURCE_WANTED)
    if not isinstance(form, str) or not _well_formed(form):
        raise place.fault(f"headers.{name}.format", _format_fault(form), FORMAT_WANTED)
    _check_source(source, name, place)
    return Header(name, source, form)


def _well_formed(form: str) -> bool:
    rest = form
    for each in PLACES:
        rest = rest.replace(each, "")
    count = sum(form.count(each) for each in PLACES)
    return count == 1 and not set("{}").intersection(rest) and _sendable(form)


def _format_fault(form: object) -> str:
    if not isinstance(form, str) or not _sendable(form):
        return "it is not printable ASCII, or has a space at an end"
    return "it has not exactly one place for the value, or other braces"


def _sendable(text: str) -> bool:
    """Whether a header can have this value: printable ASCII, no space at either end (it would not arrive)."""
    return 0 < len(text) <= LONGEST and text.isascii() and text.isprintable() and text == text.strip()


def _check_source(source: str, name: str, place: _Place) -> None:
    kind, mark, rest = source.partition(":")
    if not mark or kind not in SOURCES:
        cause = (
            f"its value ({len(source)} characters) does not begin with {either([f'{each}:' for each in SOURCES])}"
        )
        raise place.fault(f"headers.{name}", cause, SOURCE_WANTED)
    if kind == "literal":
        if not _sendable(rest):
            cause = "the text after literal: is empty, not printable ASCII, or has a space at an end"
            raise place.fault(f"headers.{name}", cause, SOURCE_WANTED)
    elif cause := _SOURCE_FAULTS[kind](rest):
        raise place.fault(f"headers.{name}", f"{quoted(source)}: {cause}", SOURCE_WANTED)


def _env_fault(name: str) -> str:
    good = name and not name[0].isdigit() and VARIABLE.issuperset(name) and len(name) <= LONGEST
    return "" if good else "after env: stands the name of a variable"


def _file_fault(path: str) -> str:
    if not path.startswith(("/", "~/")) or not path.isprintable():
        return "the path must be absolute or begin with ~/, without control characters"
    try:
        check_path(path, "", wildcards="")
    except PolicyError as error:
        return error.message.partition(": ")[2]
    return "the path is that of a directory" if path.endswith("/") else ""


def _command_fault(text: str) -> str:
    import shlex

    if not text.isprintable() or len(text) > LONGEST:
        return "a command is one line of printable text"
    try:
        words = shlex.split(text)
    except ValueError as error:
        return f"it can't be split into words: {str(error).lower()}"
    if not words or not words[0]:
        return "the command is missing"
    if "/" in words[0] and not words[0].startswith("/"):
        return "the command's path must be absolute: it runs unconfined, wherever the run is"
    return ""


_SOURCE_FAULTS = {"env": _env_fault, "file": _file_fault, "command": _command_fault}
