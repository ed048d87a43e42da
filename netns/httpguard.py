"""Strict framing of a client's HTTP/1 stream (pure): no request gets through whose head was not read and approved.

A head is held until it is whole; its body passes as it comes, once it can't be a request itself. Bytes are never
changed: what passes is what came, in order, up to the first fault. ``relay`` carries the bytes; ``httphead`` says what a
head may look like.
"""

from __future__ import annotations

from stockade.netns.hello import Fault
from stockade.netns.httphead import (
    FRAMING,
    UNSEEN,
    Head,
    begins_like_request,
    check_lines,
    read_field,
    read_head,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_SIZE_LINE = 256
"""Bytes of a chunk's size with its extensions."""
LONGEST_TRAILER = 4096
"""Bytes of a trailer, with all extensions of the chunks before it."""
HEX = frozenset(b"0123456789abcdefABCDEF")
LONGEST_HEX = 15
SWITCHING = 101
MOST_BEFORE_STATUS = 64 << 10


class HttpGuard:
    """Reads the stream that it is fed. ``check`` says of each head why it may not pass; empty if it may.

    The first request of a connection may ask for another protocol: what follows it waits for the server's answer
    (``heard``), and if the server agrees everything passes from there. Later requests may ask too, but are read on:
    which answer is theirs is not known.
    """

    def __init__(self, check: Callable[[Head], str]) -> None:
        self._check = check
        self.fault = ""
        """Why nothing passes any more."""
        self.refused: Head | None = None
        """The head that ``check`` did not approve: it came where a request is expected, and can be answered."""
        self.raw = False
        self.waiting = False
        """What comes is held until the server has answered."""
        self._held = bytearray()
        self._searched = 0
        self._step: Callable[[], int] = self._head
        self._left = self._extensions = self._requests = 0
        self._upgrade: tuple[str, ...] = ()
        self._asking = False
        self._answer: int | None = None
        self._status = StatusLine()

    @property
    def held(self) -> int:
        """Bytes that came and have not passed."""
        return len(self._held)

    @property
    def listening(self) -> bool:
        """Whether ``heard`` wants the server's bytes."""
        return self._asking and not self.fault

    def feed(self, data: bytes) -> bytes:
        """Take what the client sent; returns what may go to the server now."""
        if self.raw:
            return data
        if self.fault:
            return b""
        if self._step == self._body and not self._held and len(data) < self._left:
            self._left -= len(data)
            return data
        self._held += data
        return self._through()

    def heard(self, data: bytes) -> bytes:
        """Look at what the server sent, which goes its way meanwhile; returns what may go to the server now."""
        if not self.listening:
            return b""
        status = self._status.feed(data)
        if status is None:
            return b""
        return self.server_said(status)

    def server_said(self, status: int) -> bytes:
        """The final status (or 101) that answers the request that asks for another protocol; 0 if it has none."""
        if not self.listening:
            return b""
        self._asking, self._answer = False, status
        if not status:
            self.fault = "a malformed answer to a request for another protocol"
        elif status == SWITCHING and any(each.startswith(UNSEEN) for each in self._upgrade):
            self.fault = "a change to HTTP/2 or TLS within the connection"
        elif self.waiting:
            self._go_on()
            return self._through()
        return b""

    def _go_on(self) -> None:
        """The request is at its end, and answered."""
        self.waiting, self.raw = False, self._answer == SWITCHING

    def _through(self) -> bytes:
        passed = bytearray()
        try:
            while self._held and not self.waiting and not self.raw:
                count = self._step()
                if not count:
                    break
                passed += self._held[:count]
                del self._held[:count]
                self._searched = 0
        except Fault as fault:
            self.fault = str(fault)
            self._held.clear()
        if self.raw:
            passed += self._held
            self._held.clear()
        return bytes(passed)

    # --- steps: each returns how many of the held bytes may pass, 0 if more must come first ---

    def _head(self) -> int:
        head = read_head(self._held, self._searched)
        if head is None:
            self._searched = len(self._held)
            return 0
        if why := self._check(head):
            self.refused = head
            raise Fault(why)
        self._requests += 1
        if head.upgrade and self._requests == 1:
            self._upgrade, self._asking = head.upgrade, True
        self._left, self._extensions = head.length or 0, 0
        if head.length is None:
            self._step = self._size
        elif head.length:
            self._step = self._beginning
        else:
            self._end()
        return head.size

    def _beginning(self) -> int:
        """Of a body. Held until it can't be a request, which a server that leaves bodies unread would answer."""
        like = begins_like_request(self._held[: self._left], whole=len(self._held) >= self._left)
        if like:
            raise Fault("a body that begins with a request")
        if like is None:
            return 0
        self._step = self._body
        return self._body()

    def _body(self) -> int:
        count = min(self._left, len(self._held))
        self._left -= count
        if not self._left:
            self._end()
        return count

    def _size(self) -> int:
        line = self._line(LONGEST_SIZE_LINE)
        if line is None:
            return 0
        digits, mark, extension = line[:-2].partition(b";")
        if not digits or len(digits) > LONGEST_HEX or not HEX.issuperset(digits):
            raise Fault("a malformed chunk size")
        self._extensions += len(mark + extension)
        odd = b"HTTP/" in extension or any(byte < 32 or byte > 126 for byte in extension)
        if odd or self._extensions > LONGEST_TRAILER:
            raise Fault("malformed chunk extensions")
        self._left = int(digits, 16)
        self._step = self._chunk if self._left else self._trailer
        return len(line)

    def _chunk(self) -> int:
        count = min(self._left, len(self._held))
        self._left -= count
        if not self._left:
            self._step = self._after_chunk
        return count

    def _after_chunk(self) -> int:
        if not b"\r\n".startswith(self._held[:2]):
            raise Fault("a chunk longer than its size")
        if len(self._held) < 2:
            return 0
        self._step = self._size
        return 2

    def _trailer(self) -> int:
        """A line of it."""
        line = self._line(LONGEST_TRAILER)
        if line is None:
            return 0
        if line == b"\r\n":
            self._end()
            return 2
        self._extensions += len(line)
        if self._extensions > LONGEST_TRAILER:
            raise Fault("a trailer that is too long")
        if read_field(line[:-2])[0].replace("_", "-") in FRAMING:
            raise Fault("a trailer that says where a message ends or whom it is for")
        return len(line)

    def _end(self) -> None:
        """Of a request."""
        self._step = self._head
        self.waiting = self._asking
        if self._answer is not None:
            self._go_on()

    def _line(self, most: int) -> bytes | None:
        end = self._held.find(b"\n", 0, most)
        if end < 0:
            if len(self._held) >= most:
                raise Fault("a line that is too long")
            return None
        line = bytes(self._held[: end + 1])
        check_lines(line)
        return line


class StatusLine:
    """Finds the status of the first answer in what a server sends."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> int | None:
        """The status; None if more is needed, 0 if it can't be told. Others from 100 to 199 are skipped."""
        self._held += data
        while (end := self._held.find(b"\n")) >= 0:
            words = bytes(self._held[:end]).rstrip(b"\r").split(b" ", 2)
            if (
                not words[0].startswith(b"HTTP/1.")
                or len(words) < 2
                or len(words[1]) != 3
                or not words[1].isdigit()
            ):
                return 0
            status = int(words[1])
            if not 100 <= status < 200 or status == SWITCHING:
                return status
            ends = [at + len(mark) for mark in (b"\n\r\n", b"\n\n") if (at := self._held.find(mark)) >= 0]
            if not ends:
                break
            del self._held[: min(ends)]
        return 0 if len(self._held) > MOST_BEFORE_STATUS else None
