"""What an answer carries, decoded if need be and masked as it passes: bodies, and the frames of a websocket (pure).

Nothing is kept but what may be the beginning of a secret. Whatever can't be looked into is an ``Unreadable``.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.netns.edge.mask import Masker, Stream

MOST_AT_ONCE = 4 << 20
"""Bytes that one piece of an encoded body may become."""
INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)[0-9][0-9][ \r]")
CONTINUED, FIRST_CONTROL, MOST_CONTROL, MASK = 0, 8, 125, 4
WEBSOCKET = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Unreadable(Exception):
    """The answer can't be looked into; the connection is to be cut."""


class Decoder:
    """Undoes ``gzip``, ``x-gzip`` or ``deflate``."""

    def __init__(self, coding: str) -> None:
        self.zipped = coding != "deflate"
        self._zlib: zlib._Decompress | None = zlib.decompressobj(47) if self.zipped else None
        self._head = b""

    def feed(self, data: bytes) -> bytes:
        """The plain bytes of ``data``. Several members may follow each other."""
        if self._zlib is None:
            self._head += data
            if len(self._head) < 2:
                return b""
            data, self._zlib = self._head, zlib.decompressobj(15 if _has_wrapper(self._head) else -15)
        out = b""
        try:
            while data:
                out += self._zlib.decompress(data, MOST_AT_ONCE - len(out) + 1)
                if len(out) > MOST_AT_ONCE or self._zlib.unconsumed_tail:
                    raise Unreadable
                data = self._zlib.unused_data
                if self._zlib.eof and data:
                    self._next_member(data)
        except zlib.error:
            raise Unreadable from None
        return out

    def end(self) -> None:
        """Raises ``Unreadable`` if the body was cut short."""
        if self._zlib is not None and not self._zlib.eof:
            raise Unreadable

    def _next_member(self, data: bytes) -> None:
        if not self.zipped:
            raise Unreadable
        self._zlib = zlib.decompressobj(47)


class Body:
    """The body of one answer. Called with each piece, and with nothing at its end."""

    def __init__(self, masker: Masker, coding: str = "") -> None:
        self.size = 0
        """Bytes that were passed on."""
        self._stream = masker.stream()
        self._decoder = Decoder(coding) if coding else None

    def __call__(self, data: bytes) -> list[bytes]:
        """The pieces to pass on; never an empty one, which would end a chunked body."""
        if not data:
            if self._decoder is not None:
                self._decoder.end()
            out = self._stream.end()
        else:
            out = self._stream.feed(self._decoder.feed(data) if self._decoder is not None else data)
        self.size += len(out)
        return [out] if out else []


class Frames:
    """What a server sends through a websocket, framed anew: a secret that is split over frames is found too."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._buffer = bytearray()
        self._left = 0
        """Bytes to come of the payload of a data frame."""
        self._final = False
        self._opcode = CONTINUED
        self._message: Stream | None = None

    def feed(self, data: bytes) -> bytes:
        """What can be passed on now, as whole frames."""
        self._buffer += data
        out = bytearray()
        while self._step(out):
            pass
        return bytes(out)

    def _step(self, out: bytearray) -> bool:
        """Take one head, or what there is of a payload; False when there is nothing to be done."""
        if self._left:
            return self._payload(out)
        head = head_of(self._buffer)
        if head is None:
            return False
        opcode, final, length, size = head
        if opcode >= FIRST_CONTROL:
            return self._control(out, opcode, length, size)
        if (opcode == CONTINUED) == (self._message is None):
            raise Unreadable
        if self._message is None:
            self._message, self._opcode = self._masker.stream(), opcode
        del self._buffer[:size]
        self._left, self._final = length, final
        return self._payload(out) if not length else True

    def _payload(self, out: bytearray) -> bool:
        part = bytes(self._buffer[: self._left])
        if not part and self._left:
            return False
        del self._buffer[: len(part)]
        self._left -= len(part)
        assert self._message is not None
        plain = self._message.feed(part)
        last = self._final and not self._left
        if last:
            plain += self._message.end()
            self._message = None
        if plain or last:
            out += frame(self._opcode, plain, final=last)
            self._opcode = CONTINUED
        return True

    def _control(self, out: bytearray, opcode: int, length: int, size: int) -> bool:
        if len(self._buffer) < size + length:
            return False
        out += frame(opcode, self._masker.bytes(bytes(self._buffer[size : size + length])), final=True)
        del self._buffer[: size + length]
        return True


class Sent:
    """What a program sends through a websocket: passed as it is, as long as it is frames and no second request."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        """``data``."""
        place = 0
        while place < len(data):
            if self._left:
                step = min(self._left, len(data) - place)
                self._left, place = self._left - step, place + step
                continue
            self._head, place = self._head + data[place : place + 1], place + 1
            head = head_of(self._head, masked=True)
            if head is not None:
                self._head, self._left = b"", head[2] + MASK
        return data


def accept_of(key: str) -> str:
    """What a server answers to the key of a websocket."""
    made = hashlib.sha1(f"{key}{WEBSOCKET}".encode("utf-8", "surrogateescape"), usedforsecurity=False)
    return base64.b64encode(made.digest()).decode("ascii")


def without_interim(data: bytes) -> bytes:
    """What a server sent, without the interim answers (``100``, ``103``) at its front, as far as they are whole."""
    while INTERIM.match(data) and (end := data.find(b"\r\n\r\n")) >= 0:
        data = data[end + 4 :]
    return data


def head_of(data: bytes | bytearray, *, masked: bool = False) -> tuple[int, bool, int, int] | None:
    """Opcode, whether it is the last of its message, length of the payload, length of the head (without the mask);
    None if cut short. ``masked`` is what programs send, and servers never."""
    if len(data) < 2:
        return None
    opcode, final, short = data[0] & 15, bool(data[0] & 128), data[1] & 127
    if data[0] & 0x70 or bool(data[1] & 128) != masked or 2 < opcode < FIRST_CONTROL:
        raise Unreadable
    if opcode >= FIRST_CONTROL and (not final or short > MOST_CONTROL):
        raise Unreadable
    extra = {126: 2, 127: 8}.get(short, 0)
    if len(data) < 2 + extra:
        return None
    length = int.from_bytes(data[2 : 2 + extra], "big") if extra else short
    return opcode, final, length, 2 + extra


def frame(opcode: int, payload: bytes, *, final: bool) -> bytes:
    """One frame as servers send it."""
    first = opcode | (128 if final else 0)
    if len(payload) < 126:
        return bytes((first, len(payload))) + payload
    if len(payload) < 1 << 16:
        return bytes((first, 126)) + len(payload).to_bytes(2, "big") + payload
    return bytes((first, 127)) + len(payload).to_bytes(8, "big") + payload


def _has_wrapper(head: bytes) -> bool:
    """Whether a deflated body has the zlib head that it should; many servers leave it out."""
    return head[0] & 15 == 8 and int.from_bytes(head[:2], "big") % 31 == 0
