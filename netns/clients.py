"""Who asked: the sender of a datagram, or a TCP connection on which queries and answers stand after their length.

Moves bytes, within bounds, without blocking; reads nothing of what is in them (``netns.resolver`` has that done).
"""

from __future__ import annotations

import select
import socket

from stockade.netns.names import LARGEST_QUERY

MOST_PIPELINED = 64
MOST_UNSENT = 65536


class Datagram:
    """Where the answer to a UDP query goes."""

    stream = False

    def __init__(self, udp: socket.socket, address: tuple[str, int]) -> None:
        self._udp = udp
        self._address = address

    def send(self, wire: bytes) -> None:
        try:
            self._udp.sendto(wire, self._address)
        except OSError:
            pass  # the client is gone or does not read; it will ask again


class Stream:
    """One TCP connection: queries and answers, each after its length in two bytes."""

    stream = True

    def __init__(self, connection: socket.socket, now: float) -> None:
        self.connection = connection
        self.last = now
        self.pending = 0
        self._now = now
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._ended = False
        self.closed = False

    def wants(self) -> int:
        """What to poll for; a client that does not read its answers is not read from either."""
        reads = not self._ended and self.pending < MOST_PIPELINED and len(self._outbox) < MOST_UNSENT
        return (select.POLLIN if reads else 0) | (select.POLLOUT if self._outbox else 0)

    def receive(self, now: float) -> list[bytes]:
        """The whole queries that have come in."""
        self._now = now
        try:
            data = self.connection.recv(LARGEST_QUERY + 2)
        except BlockingIOError:
            return []
        except OSError:
            self.close()
            return []
        self._ended = not data
        self._inbox += data
        found = self._split()
        if found:
            self.last = now
            self.pending += len(found)
        return found

    def send(self, wire: bytes) -> None:
        self.pending -= 1
        self.last = max(self.last, self._now)
        if not self.closed:
            self._outbox += len(wire).to_bytes(2, "big") + wire
            self.flush(self._now)

    def skip(self) -> None:
        """The query gets no answer."""
        self.pending -= 1

    def flush(self, now: float) -> None:
        self._now = now
        try:
            del self._outbox[: self.connection.send(self._outbox, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not self._outbox:
            self.last = now

    def finished(self) -> bool:
        return self.closed or (self._ended and not self.pending and not self._outbox)

    def close(self) -> None:
        self.closed = True
        self.connection.close()

    def _split(self) -> list[bytes]:
        found: list[bytes] = []
        while len(self._inbox) >= 2:
            length = int.from_bytes(self._inbox[:2], "big")
            if length > LARGEST_QUERY:
                self.close()
                return found
            if len(self._inbox) < 2 + length:
                break
            found.append(bytes(self._inbox[2 : 2 + length]))
            del self._inbox[: 2 + length]
        return found
