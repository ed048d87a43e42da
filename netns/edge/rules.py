"""Which requests may pass the edge, and what their headers become (pure).

Used by the proxy for every request, and by the hook runner for its own. Whatever is not clearly meant is refused: a
path that two readers could take for two different things is none that a pattern can judge.
"""

from __future__ import annotations

from stockade.policies.edge import EdgeRule
from stockade.policies.hosts import reaches
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BAD_REQUEST, FORBIDDEN, MISDIRECTED = 400, 403, 421
DEFAULT_PORTS = {"https": 443, "http": 80}
LONGEST_TARGET = 32 * 1024
LONGEST_METHOD = 32
METHOD = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
HEX = frozenset("0123456789abcdefABCDEF")
AMBIGUOUS = frozenset({"2e", "2f", "5c", "c0", "c1", "7f"} | {f"{code:02x}" for code in range(0x20)})
"""Escapes that readers of a path take differently: dot, slash, backslash, overlong UTF-8, control characters."""
OVERLONG = frozenset({("e0", "8"), ("e0", "9"), ("f0", "8")})
"""UTF-8 of three and four bytes for what has less: the first byte, and how the second begins."""
METHOD_OVERRIDES = frozenset({"x-http-method-override", "x-http-method", "x-method-override"})
PATH_OVERRIDES = frozenset({"x-original-url", "x-rewrite-url"})


class Admitted(Record):
    """The request may pass."""

    index: int
    """Of the first rule that means it; its headers are put in."""


class Refused(Record):
    """The request may not pass."""

    status: int
    reason: str
    """In words; of the request it quotes the method and the host at most."""


def judge_request(
    rules: Sequence[EdgeRule], host: str, port: int, scheme: str, method: str, target: str
) -> Admitted | Refused:
    """Whether a request may pass, by the first rule whose host, port, scheme, method and path mean it.

    ``host`` is the name that was dialled (the caller has compared it with Host), ``scheme`` ``https`` or ``http``,
    ``target`` the path with its query.
    """
    if fault := method_fault(method):
        return Refused(BAD_REQUEST, fault)
    if fault := path_fault(target):
        return Refused(FORBIDDEN, fault)
    path = target.partition("?")[0]
    means_host = [index for index, rule in enumerate(rules) if _means_place(rule, host, port, scheme)]
    means_method = [index for index in means_host if not rules[index].methods or method in rules[index].methods]
    for index in means_method:
        paths = rules[index].paths
        if not paths or any(matches_path(pattern, path) for pattern in paths):
            return Admitted(index)
    if not means_host:
        return Refused(FORBIDDEN, f"no entry of network.edge is for {scheme}://{host}:{port}")
    what = "this path" if means_method else f"the method {method}"
    return Refused(FORBIDDEN, f"no entry of network.edge allows {what} on {host}")


def method_fault(method: str) -> str:
    """Why ``method`` can't be judged; empty if it can.

    ``CONNECT`` asks for a tunnel, which nothing could look into, ``TRACE`` for the request with what was put in.
    """
    if not method or len(method) > LONGEST_METHOD or not METHOD.issuperset(method):
        return "the method is not written in capital letters"
    return f"{method} is refused" if method in ("CONNECT", "TRACE") else ""


def path_fault(target: str) -> str:
    """Why the path of ``target`` (its query is not looked at but for its characters) has no single meaning; or empty."""
    if not target.startswith("/") or target.startswith("//"):
        return "the request's target does not begin with one slash"
    if len(target) > LONGEST_TARGET:
        return "the request's target is too long"
    if not all("!" <= letter <= "~" for letter in target) or "#" in target:
        return "the request's target has a character that does not belong there"
    path = target.partition("?")[0]
    if "\\" in path:
        return "the path has a backslash"
    if any(segment.partition(";")[0] in (".", "..") for segment in path.split("/")):
        return "the path has a dot segment"
    return _escape_fault(path)


def matches_path(pattern: str, path: str) -> bool:
    """Whether ``pattern``, in which ``*`` stands for any characters, means the whole of ``path``."""
    first, *rest = pattern.split("*")
    if not rest:
        return path == pattern
    if not path.startswith(first):
        return False
    place = len(first)
    for part in rest[:-1]:
        found = path.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return len(path) - place >= len(rest[-1]) and path.endswith(rest[-1])


def override_fault(rule: EdgeRule, names: Iterable[str]) -> str:
    """Why a header would let the server act on another method or path than the one that was judged; or empty."""
    plain = {name.lower().replace("_", "-") for name in names}
    if rule.methods and plain & METHOD_OVERRIDES:
        return "a header names another method, and the entry allows only some"
    if rule.paths and plain & PATH_OVERRIDES:
        return "a header names another path, and the entry allows only some"
    return ""


def same_authority(text: str, host: str, port: int, scheme: str) -> bool:
    """Whether a Host header or ``:authority`` names ``host`` and ``port``; a missing port is that of ``scheme``."""
    name, colon, number = text.partition(":")
    if colon and not (number.isascii() and number.isdigit() and len(number) <= 5):
        return False
    named = int(number) if colon else DEFAULT_PORTS.get(scheme, 0)
    return named == port and name.isascii() and name.removesuffix(".").lower() == host.lower()


def apply_headers(
    pairs: Iterable[tuple[str, str]], header_values: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """``pairs`` without anything that goes by a name of ``header_values``, and those after them.

    Names are compared without case, and ``_`` counts as ``-``: servers that make variables of headers see no
    difference. Order and spelling of the others stay.
    """
    taken = {plain_name(name) for name, _value in header_values}
    return [pair for pair in pairs if plain_name(pair[0]) not in taken] + list(header_values)


def plain_name(name: str) -> str:
    """A header's name as servers compare it."""
    return name.strip().lower().replace("_", "-")


def header_fault(name: str, value: str) -> str:
    """Why a header can't be passed on; empty if it can."""
    if not name or not TOKEN.issuperset(name):
        return "a header's name has a character that does not belong there"
    if any((letter < " " and letter != "\t") or letter == "\x7f" for letter in value):
        return "a header's value has a line break or another control character"
    return ""


def _means_place(rule: EdgeRule, host: str, port: int, scheme: str) -> bool:
    return rule.scheme == scheme and reaches(rule.host, host, port)


def _escape_fault(path: str) -> str:
    pieces = path.split("%")[1:]
    for number, piece in enumerate(pieces):
        code = piece[:2].lower()
        if len(code) < 2 or not HEX.issuperset(code):
            return "the path has a percent sign that begins no escape"
        if code in AMBIGUOUS:
            return f"the path has an escape that servers read differently (%{code})"
        following = pieces[number + 1][:2].lower() if not piece[2:] and number + 1 < len(pieces) else ""
        if (code, following[:1]) in OVERLONG:
            return f"the path has an escape that servers read differently (%{code}%{following})"
        if code == "25" and (piece[2:4].lower() in AMBIGUOUS or (piece[2:] == "" and number + 1 < len(pieces))):
            return "the path is escaped twice"
    return ""
