"""ClientHellos to the letter (pure): the one server name that a hello asks for, or why it has none.

``sniff`` says what bytes look like; here a name is only what every server would take it for, so lengths must fit, no
extension stands twice and nothing follows. A server may ask for a second hello (TLS 1.3), in which a client could name
another server: ``HelloGuard`` holds what comes after the first until it is known that there is none, or reads it too.
"""

from __future__ import annotations

from stockade.netns.sniff import CLIENT_HELLO, ENCRYPTED_HELLO, HANDSHAKE, SERVER_NAME, host_name
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 16 << 10
"""Bytes within which the first words of a conversation must be whole."""
LONGEST_PLAIN = 1 << 14
LONGEST_SEALED = LONGEST_PLAIN + 2048
MOST_RECORDS = 64
"""Records that one hello may lie in."""
CHANGE_CIPHER, ALERT, SEALED = 20, 21, 23
SERVER_HELLO = 2
OLD_ENCRYPTED_NAME = 0xFFCE
RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The random of a ServerHello that asks for another ClientHello."""
MOST_HEARD = 64 << 10
FOREIGN = b""
"""In place of a message: whatever comes next could be meant for anybody."""


class Fault(Exception):
    """Why bytes are refused; for the modules that read strictly, and never beyond them."""


class Hello(Record):
    """A whole ClientHello."""

    name: str
    """Lower case, letters, digits and hyphens, without a dot at the end."""
    encrypted: bool
    """It carries another hello in encrypted form, which may name another server."""
    size: int
    """Bytes that it took, with the heads of its records."""


def read_hello(data: bytes | bytearray) -> Hello | None:
    """The hello at the beginning of ``data``, None if it is not all there. ``Fault`` for anything else."""
    found = _message(data)
    if found is None:
        if len(data) >= LIMIT:
            raise Fault(TOO_LONG)
        return None
    body, size = found
    extensions = _extensions(body)
    if SERVER_NAME not in extensions:
        raise Fault("no server name")
    encrypted = ENCRYPTED_HELLO in extensions or OLD_ENCRYPTED_NAME in extensions
    return Hello(strict_name(_server_name(extensions[SERVER_NAME]), "the server name"), encrypted, size)


def strict_name(raw: bytes, what: str) -> str:
    """``raw`` as a host name; ``Fault`` if it is none, or an address. ``what`` names it."""
    name = host_name(raw.decode("latin-1"))
    if name.startswith(("'", '"')):
        raise Fault(f"{what} {name} is not a valid name")
    if ":" in name or name.rpartition(".")[2].isdigit():
        raise Fault(f"{what} is an address ({name})")
    return name


def _message(data: bytes | bytearray) -> tuple[bytes, int] | None:
    """The body of the message and what it took with its records' heads; None if it is not all there."""
    message, at = b"", 0
    for _ in range(MOST_RECORDS):
        head = bytes(data[at : at + 6])
        if len(head) >= 1 and head[0] != HANDSHAKE:
            raise Fault("a malformed ClientHello: something else stands within it")
        if len(head) >= 2 and head[1] != 3:
            raise Fault("a malformed ClientHello: its version")
        if len(head) < 5:
            return None
        length = int.from_bytes(head[3:5], "big")
        if not 0 < length <= LONGEST_PLAIN:
            raise Fault("a malformed ClientHello: the length of a record")
        if not message and len(head) == 6 and head[5] != CLIENT_HELLO:
            raise Fault("no ClientHello")
        if len(data) < at + 5 + length:
            return None
        message += data[at + 5 : at + 5 + length]
        at += 5 + length
        if len(message) < 4 or len(message) < (whole := 4 + int.from_bytes(message[1:4], "big")):
            continue
        if len(message) > whole or at > LIMIT:
            raise Fault("a malformed ClientHello: more follows in its record" if at <= LIMIT else TOO_LONG)
        return message[4:], at
    raise Fault("a ClientHello in too many pieces")


TOO_LONG = f"a ClientHello that is not whole within {LIMIT} bytes"


def _extensions(body: bytes) -> dict[int, bytes]:
    """By number; ``Fault`` if a length does not fit or a number stands twice."""
    reader = _Reader(body)
    version = reader.take(2)
    reader.take(32)
    session, suites, compression = reader.vector(1), reader.vector(2), reader.vector(1)
    if version[0] != 3 or len(session) > 32 or len(suites) < 2 or len(suites) % 2 or not compression:
        raise Fault("a malformed ClientHello")
    found: dict[int, bytes] = {}
    listed = _Reader(reader.vector(2) if reader.left() else b"")
    if reader.left():
        raise Fault("a malformed ClientHello: more follows its extensions")
    while listed.left():
        number = int.from_bytes(listed.take(2), "big")
        if number in found:
            raise Fault("two server names" if number == SERVER_NAME else "a ClientHello with an extension twice")
        found[number] = listed.vector(2)
    return found


def _server_name(content: bytes) -> bytes:
    outer = _Reader(content)
    names = _Reader(outer.vector(2))
    kind, name = names.take(1), names.vector(2)
    if names.left():
        raise Fault("two server names")
    if kind != b"\0" or not name or outer.left():
        raise Fault("a malformed server name")
    return name


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left():
            raise Fault("a malformed ClientHello: a length that does not fit")
        self._at += count
        return self._data[self._at - count : self._at]

    def vector(self, width: int) -> bytes:
        """What follows its own length, which takes ``width`` bytes."""
        return self.take(int.from_bytes(self.take(width), "big"))


class HelloGuard:
    """Lets a client's stream through that begins with a hello for ``name``; see the top of this file.

    ``feed`` and ``heard`` return what may go to the server now, ``fault`` says why nothing does any more.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.fault = ""
        self.raw = False
        """Nothing is looked at any more."""
        self.waiting = False
        """What comes is held until the server has said something."""
        self._held = bytearray()
        self._server = bytearray()
        self._said = b""
        self._answering = False

    @property
    def held(self) -> int:
        """Bytes that came and have not passed."""
        return len(self._held)

    @property
    def listening(self) -> bool:
        """Whether ``heard`` wants the server's bytes."""
        return not self.raw and not self.fault

    def feed(self, data: bytes) -> bytes:
        """Bytes of the client."""
        if self.raw:
            return data
        if self.fault:
            return b""
        self._held += data
        return b"" if self.waiting else self._through()

    def heard(self, data: bytes) -> bytes:
        """Bytes of the server, which go their way meanwhile."""
        if not self.listening:
            return b""
        self._server += data
        for message in self._messages():
            if message == FOREIGN:
                self.fault = "the server does not speak TLS"
                return b""
            if message[0] == SERVER_HELLO and message[6:38] == RETRY:
                self.waiting, self._answering = False, True
                return self._through()
            self.raw, self.waiting = True, False
        if self.raw:
            return self._take(len(self._held))
        if len(self._server) + len(self._said) > MOST_HEARD:
            self.fault = "the server's answer to the ClientHello is too long"
        return b""

    def _through(self) -> bytes:
        """A whole hello, and what may stand before the second; then it is the server's turn."""
        at = 0
        try:
            while self._answering and self._held[at : at + 1] and self._held[at] in (CHANGE_CIPHER, ALERT, SEALED):
                length = int.from_bytes(self._held[at + 3 : at + 5], "big")
                if len(self._held) >= at + 5 and length > LONGEST_SEALED:
                    raise Fault("a malformed TLS record")
                if len(self._held) < at + 5 or len(self._held) < at + 5 + length:
                    return self._take(at)
                at += 5 + length
            hello = read_hello(self._held[at : at + LIMIT])
            if hello is not None and hello.name != self.name:
                raise Fault(f"a second ClientHello names {hello.name}")
        except Fault as fault:
            self.fault = str(fault)
            return self._take(at)
        if hello is not None:
            self.waiting = True
            at += hello.size
        return self._take(at)

    def _take(self, count: int) -> bytes:
        taken = bytes(self._held[:count])
        del self._held[:count]
        return taken

    def _messages(self) -> Iterator[bytes]:
        """Handshake messages of the server that are whole; ``FOREIGN`` once it does not speak TLS."""
        while len(self._server) >= 5:
            kind, length = self._server[0], int.from_bytes(self._server[3:5], "big")
            if kind not in (HANDSHAKE, CHANGE_CIPHER, ALERT) or not 0 < length <= LONGEST_SEALED:
                yield FOREIGN
                return
            if len(self._server) < 5 + length:
                return
            if kind == HANDSHAKE:
                self._said += self._server[5 : 5 + length]
            del self._server[: 5 + length]
            while len(self._said) >= 4 and len(self._said) >= (whole := 4 + int.from_bytes(self._said[1:4], "big")):
                message, self._said = self._said[:whole], self._said[whole:]
                yield message
