"""Heads of requests and answers as the proxy judges and changes them (pure).

What comes out is written anew from what was understood: one Host, framing that has one reading, no field that is
meant for a single hop. Counterpart: ``rules``, which judges method and path alone.
"""

from __future__ import annotations

from stockade.netns.edge.rules import (
    BAD_REQUEST,
    MISDIRECTED,
    Admitted,
    Refused,
    apply_headers,
    header_fault,
    judge_request,
    override_fault,
    plain_name,
    same_authority,
)
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stockade.policies.edge import EdgeRule

    Pairs = Sequence[tuple[str, str]]

MOST_HEADERS = 256
TOO_LARGE, EXPECTATION_FAILED = 431, 417
ONE_HOP = frozenset(
    ("connection", "keep-alive", "te", "trailer", "upgrade", "http2-settings", "expect", "accept-encoding")
)
"""Also everything that begins with ``proxy-``. What of them is wanted is put in again."""
PIECES = frozenset(("range", "if-range"))
"""Ask for a part of an answer. Left out where a header is put in: one that gives it back could be asked for it piece by
piece, and no piece would hold a secret. Servers may always answer with the whole."""
DECODED = frozenset(("gzip", "x-gzip", "deflate"))
SOCKET = "websocket"


class Place(Record):
    """Where a connection leads."""

    host: str
    address: str
    port: int
    tls: bool

    @property
    def scheme(self) -> str:
        """As rules and URLs name it."""
        return "https" if self.tls else "http"


class Asked(Record):
    """The head of a request, header names and values as latin-1 text."""

    version: str
    method: str
    target: str
    authority: str
    """Of an absolute target, or ``:authority``; else empty."""
    headers: tuple[tuple[str, str], ...]
    multiplexed: bool
    """The connection speaks HTTP/2."""


class Going(Record):
    """A request that may go on."""

    index: int
    headers: tuple[tuple[str, str], ...]
    authority: str
    """Of HTTP/2; empty in HTTP/1, where the target has only a path."""
    upgrade: bool
    """It asks for a websocket."""
    expects: bool
    """The program waits for ``100 Continue`` before it sends the body."""


def judge_head(asked: Asked, rules: Sequence[EdgeRule], values: Sequence[Pairs], place: Place) -> Going | Refused:
    """What becomes of a request. ``values`` are, for each rule, the headers that are put in."""
    fault = _form_fault(asked) or _place_fault(asked, place)
    if fault is not None:
        return fault
    verdict = judge_request(rules, place.host, place.port, place.scheme, asked.method, asked.target)
    if isinstance(verdict, Refused):
        return verdict
    if cause := override_fault(rules[verdict.index], (name for name, _value in asked.headers)):
        return Refused(403, cause)
    return _going(asked, verdict, values[verdict.index], place)


def values_of(headers: Iterable[tuple[str, str]], name: str) -> list[str]:
    """All values under ``name``."""
    return [value for each, value in headers if each.lower() == name]


def tokens_of(headers: Iterable[tuple[str, str]], name: str) -> list[str]:
    """All values under ``name``, split at commas, in lower case."""
    parts = [part.strip().lower() for value in values_of(headers, name) for part in value.split(",")]
    return [part for part in parts if part]


def answer_fault(status: int, headers: Pairs, *, upgrade: bool) -> str:
    """Why the head of an answer can't be passed on; empty if it can. ``upgrade``: a websocket was asked for."""
    if not 100 <= status <= 599:
        return "the server's answer has no valid status"
    if len(headers) > MOST_HEADERS:
        return "the server's answer has too many headers"
    if status < 200:
        return _interim_fault(status, headers, upgrade=upgrade)
    if tokens_of(headers, "transfer-encoding") not in ([], ["chunked"]):
        return "the server's answer has a transfer encoding that was not asked for"
    codings = content_codings(headers)
    if len(codings) > 1 or not DECODED.issuperset(codings) or (codings and status == 206):
        return "the server's answer has a content encoding that was not asked for and can't be looked into"
    return ""


def content_codings(headers: Pairs) -> list[str]:
    """The encodings of a body, ``identity`` left out."""
    return [each for each in tokens_of(headers, "content-encoding") if each != "identity"]


def _interim_fault(status: int, headers: Pairs, *, upgrade: bool) -> str:
    if status != 101:
        return "the server sent an interim answer"
    if not upgrade or tokens_of(headers, "upgrade") != [SOCKET]:
        return "the server changed to a protocol that was not asked for"
    if values_of(headers, "sec-websocket-extensions"):
        return "the server uses an extension of websockets that was not asked for"
    return ""


def _form_fault(asked: Asked) -> Refused | None:
    versions = ("HTTP/2.0",) if asked.multiplexed else ("HTTP/1.1", "HTTP/1.0")
    if asked.version not in versions:
        return Refused(BAD_REQUEST, "the request is not of the HTTP version that the connection speaks")
    if len(asked.headers) > MOST_HEADERS:
        return Refused(TOO_LARGE, "the request has too many headers")
    for name, value in asked.headers:
        if fault := header_fault(name, value):
            return Refused(BAD_REQUEST, fault)
    if fault := _framing_fault(asked):
        return Refused(BAD_REQUEST, fault)
    if tokens_of(asked.headers, "expect") not in ([], ["100-continue"]):
        return Refused(EXPECTATION_FAILED, "the request expects something unknown")
    return None


def _framing_fault(asked: Asked) -> str:
    coding = values_of(asked.headers, "transfer-encoding")
    length = values_of(asked.headers, "content-length")
    if (coding and length) or len(length) > 1 or len(coding) > 1:
        return "the request says more than once how long it is"
    if coding and (asked.multiplexed or coding[0].strip().lower() != "chunked"):
        return "the request has a transfer encoding other than chunked"
    if length and not (length[0].isascii() and length[0].isdigit()):
        return "the request's length is no number"
    twins = {plain_name(name) for name, _value in asked.headers if "_" in name}
    if twins & {"host", "content-length", "transfer-encoding"}:
        return "a header is a false spelling of one that says where the request ends or leads"
    return ""


def _place_fault(asked: Asked, place: Place) -> Refused | None:
    hosts = values_of(asked.headers, "host")
    if not asked.multiplexed and len(hosts) != 1:
        return Refused(BAD_REQUEST, "the request has not exactly one Host")
    named = [*hosts, asked.authority] if asked.authority else hosts
    if not named:
        return Refused(BAD_REQUEST, "the request does not say which host it is for")
    if all(same_authority(each, place.host, place.port, place.scheme) for each in named):
        return None
    return Refused(MISDIRECTED, f"the request is not for {place.host}, which this connection leads to")


def _going(asked: Asked, verdict: Admitted, values: Pairs, place: Place) -> Going:
    upgrade = _asks_upgrade(asked)
    authority = _plain(asked.authority or values_of(asked.headers, "host")[0], place) if asked.multiplexed else ""
    left_out = PIECES if values else frozenset()
    kept = [
        pair
        for pair in asked.headers
        if pair[0].lower() not in left_out and _travels(pair[0], asked, upgrade=upgrade)
    ]
    kept = [(name, _plain(value, place) if name.lower() == "host" else value) for name, value in kept]
    headers = apply_headers([*kept, *_put_again(asked, upgrade=upgrade)], values)
    if asked.multiplexed:
        headers = [(name.lower(), value) for name, value in headers]
    return Going(verdict.index, tuple(headers), authority, upgrade, bool(values_of(asked.headers, "expect")))


def _plain(authority: str, place: Place) -> str:
    """In one spelling: to servers another one, with a dot at its end say, may be another site."""
    _name, colon, number = authority.partition(":")
    return f"{place.host}:{int(number)}" if colon else place.host


def _travels(name: str, asked: Asked, *, upgrade: bool) -> bool:
    name = name.lower()
    if name in ONE_HOP or name.startswith("proxy-") or (asked.multiplexed and name == "host"):
        return False
    return not (upgrade and name == "sec-websocket-extensions")


def _put_again(asked: Asked, *, upgrade: bool) -> list[tuple[str, str]]:
    again = [("Accept-Encoding", "identity")]
    if upgrade:
        again += [("Connection", "Upgrade"), ("Upgrade", SOCKET)]
    elif not asked.multiplexed and "close" in tokens_of(asked.headers, "connection"):
        again.append(("Connection", "close"))
    elif asked.multiplexed and tokens_of(asked.headers, "te") == ["trailers"]:
        again.append(("TE", "trailers"))
    return again


def _asks_upgrade(asked: Asked) -> bool:
    plain = asked.version == "HTTP/1.1" and asked.method == "GET"
    bare = not values_of(asked.headers, "transfer-encoding") and values_of(asked.headers, "content-length") in (
        [],
        ["0"],
    )
    wanted = "upgrade" in tokens_of(asked.headers, "connection") and tokens_of(asked.headers, "upgrade") == [SOCKET]
    return plain and bare and wanted
