"""Heads of HTTP/1 requests to the letter (pure): whom a request is for, and where its body ends.

Wherever two servers might read a head in two ways it is refused. ``httpguard`` applies this to a whole stream,
``namecheck`` to its beginning.
"""

from __future__ import annotations

from stockade.netns.hello import LIMIT, Fault, strict_name
from stockade.netns.sniff import LONGEST_METHOD, LONGEST_TARGET, PREFACE, TOKEN, one_line
from stockade.policies.record import Record

CONTROLS = bytes({*range(32), 127} - {9})
LONGEST_LENGTH = 18
"""Digits of a Content-Length."""
METHOD = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ-_")
LONGEST_LINE = 1 << 16
"""Bytes of a request line that a server may put up with."""
FRAMING = ("host", "content-length", "transfer-encoding")
UNSEEN = ("h2", "http", "tls")
"""How protocols begin in which further requests could name other hosts unseen."""
TOO_LONG = f"a head that is not whole within {LIMIT} bytes"


class Head(Record):
    """A whole head that can be read in one way only."""

    name: str
    """The host it is for: lower case, letters, digits and hyphens, without a dot at the end, without the port."""
    method: str
    target: str
    """Safe to show, and cut if long."""
    length: int | None
    """Bytes of the body; None: chunked."""
    upgrade: tuple[str, ...]
    """Protocols to which the client would change."""
    size: int
    """Bytes of the head, with the empty line."""


def read_head(data: bytes | bytearray, searched: int = 0) -> Head | None:
    """The head at the beginning of ``data``, None if it is not all there. ``Fault`` for what is refused.

    ``searched`` are the first bytes that were looked at in vain before.
    """
    end = _end(data, max(0, searched - 2))
    if end < 0:
        if len(data) >= LIMIT:
            raise Fault(TOO_LONG)
        return None
    if end > LIMIT:
        raise Fault(TOO_LONG)
    return _parsed(bytes(data[:end]))


def may_be_request(data: bytes | bytearray) -> bool:
    """Whether ``data`` can be the beginning of a request line."""
    line, ended, _rest = bytes(data[:LIMIT]).partition(b"\n")
    method, space, rest = line.partition(b" ")
    if len(method) > LONGEST_METHOD or not TOKEN.issuperset(method) or (space and not method):
        return False
    if ended:
        return rest.rstrip(b"\r").rpartition(b" ")[2].startswith(b"HTTP/")
    return True


def begins_like_request(body: bytes | bytearray, *, whole: bool) -> bool | None:
    """Whether a server that leaves bodies unread would take ``body`` for its next request; None if more must come.

    ``whole``: nothing more will. The end of the stream then may end the line.
    """
    line, ended, _rest = body[: LONGEST_LINE + 1].decode("latin-1").lstrip().partition("\n")
    method = "".join(line.split(None, 1)[:1])
    if len(method) > LONGEST_METHOD or not METHOD.issuperset(method):
        return False
    if not (ended or whole):
        return None if len(body) <= LONGEST_LINE else False
    words = line.split()
    # Without a version headers are read all the same, by some.
    return (len(words) == 2 and method == "GET") or any(word.startswith("HTTP/") for word in words[1:])


def read_field(line: bytes) -> tuple[str, bytes]:
    """Name, in lower case, and value of a header line without its end."""
    name, colon, value = line.partition(b":")
    if line.startswith((b" ", b"\t")):
        raise Fault("a header that is continued on another line")
    if not colon or not name or not TOKEN.issuperset(name):
        raise Fault("a malformed header line")
    if _has_controls(value):
        raise Fault("a control character in a header")
    return name.decode().lower(), value.strip(b" \t")


def check_lines(raw: bytes) -> None:
    """``Fault`` unless every line ends in CR LF and neither stands alone."""
    pairs = raw.count(b"\r\n")
    if raw.count(b"\n") != pairs or raw.count(b"\r") != pairs:
        raise Fault("a line that does not end in CR LF")


def _end(data: bytes | bytearray, start: int) -> int:
    """Where a lenient reader would see the head's end; -1 if nowhere."""
    ends = [at + len(mark) for mark in (b"\n\r\n", b"\n\n") if (at := data.find(mark, start, LIMIT + 2)) >= 0]
    return min(ends, default=-1)


def _has_controls(raw: bytes) -> bool:
    return len(raw.translate(None, CONTROLS)) != len(raw)


def _parsed(raw: bytes) -> Head:
    if raw.startswith(PREFACE[:16]):
        raise Fault("HTTP/2 without TLS")
    check_lines(raw)
    line, *lines = raw[:-4].split(b"\r\n")
    method, target, version = _request_line(line)
    fields: dict[str, list[bytes]] = {}
    for each in lines:
        name, value = read_field(each)
        fields.setdefault(name, []).append(value)
    if twins := [name for name in fields if "_" in name and name.replace("_", "-") in FRAMING]:
        raise Fault(f"a header named {twins[0]}")
    name = _whom(method, target, fields.get("host", []))
    upgrade = tuple(part for value in fields.get("upgrade", []) for part in _listed(value))
    shown = one_line(target)[:LONGEST_TARGET]
    return Head(name, method, shown, _length(fields, version), upgrade, len(raw))


def _request_line(line: bytes) -> tuple[str, bytes, bytes]:
    words = line.split(b" ")
    if len(words) != 3 or not words[0] or not TOKEN.issuperset(words[0]) or len(words[0]) > LONGEST_METHOD:
        raise Fault("a malformed request line")
    if words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise Fault("a version of HTTP other than 1.0 and 1.1")
    if not words[1] or b"\t" in words[1] or _has_controls(words[1]):
        raise Fault("a malformed request target")
    return words[0].decode(), words[1], words[2]


def _whom(method: str, target: bytes, hosts: list[bytes]) -> str:
    if method == "CONNECT":
        raise Fault("a CONNECT request")
    if len(hosts) != 1:
        raise Fault("two Host headers" if hosts else "no Host header")
    host = _authority(hosts[0], "the Host header")
    if target.startswith(b"/") or (target == b"*" and method == "OPTIONS"):
        return host[0]
    scheme, mark, rest = target.partition(b"://")
    if not mark or scheme.lower() != b"http":
        raise Fault("a malformed request target")
    for end in (b"/", b"?", b"#"):
        rest = rest.partition(end)[0]
    if _authority(rest, "the host in the request target") != host:
        raise Fault("a request target that names another host than the Host header")
    return host[0]


def _authority(raw: bytes, what: str) -> tuple[str, int]:
    """Name and port."""
    name, colon, port = raw.partition(b":")
    if raw.startswith(b"["):
        raise Fault(f"{what} is an address ({one_line(raw[:64])})")
    if not name:
        raise Fault(f"{what} is empty")
    if colon and port and not (port.isdigit() and len(port) <= 5 and int(port) < 65536):
        raise Fault(f"{what} has a malformed port")
    return strict_name(name, what), int(port or 80)


def _length(fields: dict[str, list[bytes]], version: bytes) -> int | None:
    codings, lengths = fields.get("transfer-encoding", []), fields.get("content-length", [])
    if codings and lengths:
        raise Fault("both Transfer-Encoding and Content-Length")
    if codings:
        if len(codings) != 1 or codings[0].lower() != b"chunked" or version != b"HTTP/1.1":
            raise Fault("a Transfer-Encoding other than chunked")
        return None
    if not lengths:
        return 0
    if len(lengths) != 1 or not lengths[0].isdigit() or len(lengths[0]) > LONGEST_LENGTH:
        raise Fault("a malformed Content-Length" if len(lengths) == 1 else "two Content-Length headers")
    return int(lengths[0])


def _listed(value: bytes) -> list[str]:
    return [part.strip().lower().decode("latin-1") for part in value.split(b",") if part.strip()]
