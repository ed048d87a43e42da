"""One connection that the relay carries: two ways, each with what its sink has not taken yet, and a guard on the first.

Moves bytes between sockets that never block. What a way reads is bounded by what it could get rid of: a sink that
stalls stops its source and nobody else. ``relay`` decides which connections there are, and polls.
"""

from __future__ import annotations

import select
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from stockade.netns.hello import HelloGuard
    from stockade.netns.httpguard import HttpGuard

READING, DIALING, CARRYING, PARTING, ENDING = "reading", "dialing", "carrying", "parting", "ending"
"""Stages: what is it, is the server there, both ways are open, a refused request waits for the answers to those before
it, the last word was said."""
BUFFER = 256 << 10
MOST_HELD = 64 << 10
"""Bytes that wait for a word of the server before no more are read."""
ROUNDS = 4
"""Buffers that one way may move before it is another's turn."""
GONE = struct.pack("ii", 1, 0)
"""SO_LINGER: a close is a reset."""


class Way:
    """From ``source`` to ``sink``."""

    __slots__ = ("delayed", "ended", "farewell", "look", "pending", "shut", "sink", "source", "total")

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.pending = memoryview(b"")
        self.ended = self.shut = False
        """No more is read; and the sink knows it."""
        self.total = 0
        self.look: Callable[[bytes], bytes] | None = None
        """What is read becomes what is passed."""
        self.delayed: Callable[[], bool] | None = None
        """Whether the sink must not hear of the end yet."""
        self.farewell = b""
        """What the sink gets after all that came from the source."""

    def move(self, buffer: memoryview) -> None:
        """As much as goes without waiting, within bounds. OSError if one of the two is broken."""
        for _ in range(ROUNDS):
            if self.pending and not self._flush():
                return
            if self.ended:
                self._end()
                return
            try:
                count = self.source.recv_into(buffer)
            except (BlockingIOError, InterruptedError):
                return
            if count == 0:
                self.ended = True
                self._end()
                return
            self._pass(buffer[:count])
            if count < len(buffer) or self.look is not None:
                return

    def add(self, data: bytes) -> None:
        """What goes after all that was read."""
        if data:
            self.pending = memoryview(bytes(self.pending) + data if self.pending else data)

    def _pass(self, data: memoryview) -> None:
        if self.look is not None:
            data = memoryview(self.look(bytes(data)))
        sent = self._send(data)
        if sent < len(data):
            self.pending = memoryview(bytes(data[sent:]))  # the buffer is everybody's

    def _flush(self) -> bool:
        """Whether all that was pending has gone."""
        self.pending = self.pending[self._send(self.pending) :]
        return not self.pending

    def _send(self, data: memoryview) -> int:
        if not data:
            return 0
        try:
            sent = self.sink.send(data, socket.MSG_NOSIGNAL)  # whoever uses us may not ignore SIGPIPE
        except (BlockingIOError, InterruptedError):
            return 0
        self.total += sent
        return sent

    def _end(self) -> None:
        if self.farewell:
            self.add(self.farewell)
            self.total -= len(self.farewell)
            self.farewell = b""
            if not self._flush():
                return
        if not self.shut and not (self.delayed is not None and self.delayed()):
            self.shut = True
            try:
                self.sink.shutdown(socket.SHUT_WR)
            except OSError:  # not connected any more: there is nobody to tell
                pass


class Flow:
    """A connection that was accepted."""

    __slots__ = (
        "address", "allowed", "client", "cut", "data", "deadline", "down", "guard", "masks", "name", "names",
        "noted", "port", "reason", "server", "stage", "started", "up", "via",
    )  # fmt: skip

    def __init__(self, client: socket.socket, target: tuple[str, int], started: float) -> None:
        self.client = client
        self.server: socket.socket | None = None
        self.address, self.port = target
        self.started = started
        """A time of ``time.monotonic``."""
        self.stage = READING
        self.deadline = 0.0
        self.data = b""
        """What was read before anything was decided."""
        self.name: str | None = None
        self.via, self.allowed, self.reason = "tcp", False, ""
        self.noted = False
        self.names: set[str] = set()
        """Of later requests."""
        self.guard: HelloGuard | HttpGuard | None = None
        self.up = self.down = Way(client, client)
        self.cut = False
        """The client is not read any more, whatever it says."""
        self.masks: dict[int, int] = {}
        """What each descriptor is polled for; -1 for one that is not, because it would be ready all the time."""

    def open(self, server: socket.socket) -> None:
        """Both ways are there, with what was read before."""
        self.server = server
        self.up, self.down = Way(self.client, server), Way(server, self.client)
        if self.guard is None:
            self.up.add(self.data)
        else:
            self.up.look, self.down.look, self.up.delayed = self._upwards, self._downwards, self._holds
            self.up.add(self._upwards(self.data))
        self.data = b""

    def over(self) -> bool:
        """Whether nothing will pass any more, either way."""
        return self.up.shut and self.down.shut

    def wanted(self, sock: socket.socket) -> int:
        """What to poll one of its two sockets for."""
        if self.stage in (READING, ENDING):
            return select.EPOLLIN
        if self.stage == DIALING:
            return select.EPOLLOUT if sock is self.server else 0
        reading, writing = (self.up, self.down) if sock is self.client else (self.down, self.up)
        full = reading is self.up and self.guard is not None and self.guard.waiting and self.guard.held > MOST_HELD
        may_read = not (reading.ended or reading.pending or full)
        return (select.EPOLLIN if may_read else 0) | (select.EPOLLOUT if writing.pending else 0)

    def stop_reading(self) -> None:
        """Nothing more of the client goes to the server, not even what is held."""
        self.up.ended = self.cut = True
        self.up.delayed = None

    def _upwards(self, data: bytes) -> bytes:
        assert self.guard is not None
        passed = self.guard.feed(data)
        self._unguard()
        return passed

    def _downwards(self, data: bytes) -> bytes:
        assert self.guard is not None
        if self.guard.listening:
            self.up.add(self.guard.heard(data))
            self._unguard()
        return data

    def _holds(self) -> bool:
        return self.guard is not None and self.guard.waiting and self.guard.held > 0

    def _unguard(self) -> None:
        """Once everything may pass nothing is copied any more."""
        if self.guard is not None and self.guard.raw:
            self.guard = self.up.look = self.down.look = self.up.delayed = None


def reset(sock: socket.socket) -> None:
    """Close ``sock`` so that its other end gets an error rather than the end of the stream."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, GONE)
    except OSError:  # shut already
        pass
    sock.close()
