"""The recorder of ``egress = record``: it answers every address, and writes down who wanted to go where.

One ``Sinkhole`` a lease, driven by the poll loop of the lease's service thread: it never blocks, starts no thread
and decides nothing. Its sockets live in the leased namespace, from which nothing leaves. What was sent is kept
within bounds and handed on as ``AttemptSeen``, one a connection or datagram; ``egress`` makes the list of it.

A connection is *asking* until its first bytes say enough (or nothing comes), then it gets the shortest answer
that makes a client give up (a 503 for HTTP, the end of the stream for all others) and is *ending*: what the
client still sends is read, so that no reset overtakes the answer, until it closes, falls silent or sends too much.
"""

from __future__ import annotations

import select
import socket
import struct
import time

from stockade.netns.sniff import Sniffed, needs_more, sniff
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

MOST_OPEN = 256
SILENCE = 1.0
"""Seconds without a byte after which nothing more is expected."""
MOST_READ = 1 << 20
"""Bytes read of one connection before it is cut."""
BATCH = 64
"""Connections or datagrams taken per turn, so that one busy socket does not hold up the others."""
LAST_BATCHES = 128
PLACE_AFTER = 0.02
"""Seconds that a datagram waits for others, so that one look at the rules' record tells of all of them."""
MOST_UNPLACED = 1024
SO_ORIGINAL_DST = 80  # also IP6T_SO_ORIGINAL_DST
IP_RECVORIGDSTADDR, IPV6_RECVORIGDSTADDR = 20, 74
UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class AttemptSeen(Record):
    """One connection that ended, or one datagram."""

    protocol: str
    """``tcp`` or ``udp``."""
    address: str
    """Where it wanted to go; empty (and port 0) when the kernel could not say."""
    port: int
    data: bytes
    """The first bytes, as far as the bounds allowed."""
    bytes: int
    """How many came, kept or not; a connection that sent too much was cut there."""
    started: float
    """A time of ``time.monotonic``."""
    sniffed: Sniffed
    name: str | None = None
    """The name whose synthetic address this is."""


class Connection:
    """An accepted client."""

    __slots__ = ("data", "ending", "heard", "sock", "started", "target", "total")

    def __init__(self, sock: socket.socket, target: tuple[str, int], now: float) -> None:
        self.sock = sock
        self.target = target
        self.data = bytearray()
        self.total = 0
        self.started = time.monotonic()
        self.heard = now
        self.ending = False


class Sinkhole:
    """Owns the four sockets (bound, the streams listening; None where a family is missing) and all clients.

    ``name_of`` gives the name that a synthetic address stands for. ``udp_destination`` is asked with (4 or 6,
    source port) where the datagram itself does not tell: it does under tproxy, not after a redirect. Before a
    series of such questions ``look`` is called, when all their datagrams have come. ``record``
    gets each ``AttemptSeen``. ``per_attempt`` and ``per_run`` bound the bytes that are kept. ``clock`` gives the
    seconds that ``tick`` and ``timeout`` are told too.
    """

    def __init__(
        self,
        tcp4: socket.socket | None,
        tcp6: socket.socket | None,
        udp4: socket.socket | None,
        udp6: socket.socket | None,
        *,
        name_of: Callable[[str], str | None],
        udp_destination: Callable[[int, int], tuple[str, int] | None],
        record: Callable[[AttemptSeen], None],
        look: Callable[[], None] = lambda: None,
        per_attempt: int = 4096,
        per_run: int = 1 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listening = {each.fileno(): each for each in (tcp4, tcp6) if each is not None}
        self._datagrams = {each.fileno(): each for each in (udp4, udp6) if each is not None}
        self._open: dict[int, Connection] = {}  # oldest first
        self._name_of, self._udp_destination, self._record, self._look = name_of, udp_destination, record, look
        self._unplaced: list[tuple[int, int, bytes, int, float]] = []
        self._place_at = 0.0
        self._per_attempt, self._left = per_attempt, per_run
        self._clock = clock
        self._resting = False
        self._buffer = bytearray(1 << 16)
        for sock in (*self._listening.values(), *self._datagrams.values()):
            sock.setblocking(False)
        for sock in self._datagrams.values():
            ask_for_destination(sock)

    def fds(self) -> list[tuple[int, int]]:
        """What to poll for; changes with every ``handle`` and ``tick``."""
        ready = [*self._datagrams, *self._open]
        if not self._resting:
            ready += self._listening
        return [(fd, select.POLLIN) for fd in ready]

    def handle(self, fd: int, events: int) -> None:
        """Do what a descriptor is ready for. One that was closed meanwhile is ignored."""
        if fd in self._listening:
            self._accept(self._listening[fd])
        elif fd in self._datagrams:
            self._receive(self._datagrams[fd])
        elif fd in self._open:
            self._read(self._open[fd])

    def timeout(self, now: float) -> float | None:
        """Seconds until ``tick`` has something to do; None if nothing is waited for."""
        times = [client.heard + SILENCE for client in self._open.values()]
        if self._resting:
            times = [now + SILENCE]
        if self._unplaced:
            times.append(self._place_at)
        return max(0.0, min(times) - now) if times else None

    def tick(self, now: float) -> None:
        """Move on the clients that have been silent. To be called when ``timeout`` says so, or more often."""
        self._resting = False
        if self._unplaced and now >= self._place_at:
            self._place()
        for client in list(self._open.values()):
            if now - client.heard < SILENCE:
                continue
            if client.ending or not client.total:
                self._finish(client)
            else:
                self._answer(client, now)

    def close(self) -> None:
        """Take what still waits in the sockets, record every client, close everything. May be called again."""
        for sock in self._listening.values():
            for _ in range(LAST_BATCHES):
                if not self._accept(sock):
                    break
        for sock in self._datagrams.values():
            for _ in range(LAST_BATCHES):
                if not self._receive(sock):
                    break
        self._place()
        for client in list(self._open.values()):
            self._finish(client)
        for sock in (*self._listening.values(), *self._datagrams.values()):
            sock.close()
        self._listening, self._datagrams = {}, {}

    # --- streams ---

    def _accept(self, listening: socket.socket) -> bool:
        """Whether more may be waiting."""
        for _ in range(BATCH):
            try:
                sock, _peer = listening.accept()
            except (BlockingIOError, InterruptedError):
                return False
            except ConnectionError:
                continue
            except OSError:  # no descriptors or memory: make room, or wait for the next tick
                freed = self._finish_oldest()
                self._resting = not freed
                return freed
            self._welcome(sock)
        return True

    def _welcome(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if len(self._open) >= MOST_OPEN:
            self._finish_oldest()
        client = Connection(sock, stream_destination(sock), self._clock())
        self._open[sock.fileno()] = client
        self._read(client)

    def _read(self, client: Connection) -> None:
        """One turn: a client that keeps sending must not keep the thread."""
        try:
            count = client.sock.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # reset, as after a close with unread bytes
            count = 0
        if count == 0:
            self._finish(client)
            return
        self._keep(client, count)
        if client.total >= MOST_READ:
            self._finish(client)
        elif not client.ending and (client.total >= self._per_attempt or not needs_more(bytes(client.data))):
            self._answer(client, client.heard)

    def _keep(self, client: Connection, count: int) -> None:
        client.heard = self._clock()
        client.total += count
        client.data += self._buffer[: min(count, self._per_attempt - len(client.data))]

    def _answer(self, client: Connection, now: float) -> None:
        client.ending, client.heard = True, now
        try:
            seen = sniff(bytes(client.data))
            if seen.via == "http" and seen.method:
                client.sock.send(UNAVAILABLE, socket.MSG_NOSIGNAL)
            client.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._finish(client)

    def _finish_oldest(self) -> bool:
        oldest = next(iter(self._open.values()), None)
        if oldest is not None:
            self._finish(oldest)
        return oldest is not None

    def _finish(self, client: Connection) -> None:
        """Record and close; what has come and was not read yet is taken along."""
        del self._open[client.sock.fileno()]
        while client.total < MOST_READ:
            try:
                count = client.sock.recv_into(self._buffer)
            except OSError:
                break
            if count == 0:
                break
            self._keep(client, count)
        client.sock.close()
        self._note("tcp", client.target, bytes(client.data), client.total, client.started)

    # --- datagrams ---

    def _receive(self, sock: socket.socket) -> bool:
        """Whether more may be waiting."""
        for _ in range(BATCH):
            try:
                count, told, _flags, peer = sock.recvmsg_into([self._buffer], 128)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:  # an error that an earlier datagram left behind
                continue
            target = told_destination(told, sock.getsockname()[1])
            data = bytes(self._buffer[: min(count, self._per_attempt)])
            if target is not None:
                self._note("udp", target, data, count, time.monotonic())
            else:
                self._put_off(4 if sock.family == socket.AF_INET else 6, peer[1], data, count)
        return True

    def _put_off(self, family: int, port: int, data: bytes, count: int) -> None:
        """What the rules' record tells now may be of an earlier datagram from the same port."""
        if not self._unplaced:
            self._place_at = self._clock() + PLACE_AFTER
        self._unplaced.append((family, port, data, count, time.monotonic()))
        if len(self._unplaced) >= MOST_UNPLACED:
            self._place()

    def _place(self) -> None:
        waiting, self._unplaced = self._unplaced, []
        if waiting:
            self._look()
        for family, port, data, count, started in waiting:
            target = self._udp_destination(family, port) or ("", 0)
            self._note("udp", target, data, count, started)

    # --- both ---

    def _note(self, protocol: str, target: tuple[str, int], data: bytes, count: int, started: float) -> None:
        """Hand on one attempt, with as many of its bytes as the run may still keep."""
        address, port = target
        kept = data[: self._left]
        self._left -= len(kept)
        sniffed = sniff(data, protocol)
        if len(kept) < len(data):
            sniffed = sniffed.replace(text=sniffed.text[: len(kept)])
        name = self._name_of(address) if address else None
        self._record(AttemptSeen(protocol, address, port, kept, count, started, sniffed, name))


def ask_for_destination(sock: socket.socket) -> None:
    """Have the kernel say with each datagram where it was sent."""
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.SOL_IP, IP_RECVORIGDSTADDR, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVORIGDSTADDR, 1)


def stream_destination(sock: socket.socket) -> tuple[str, int]:
    """Where an accepted connection was meant to go: before a redirect, or simply its own end."""
    own = plain_address(*sock.getsockname()[:2])
    v4 = sock.family == socket.AF_INET or ":" not in own[0]
    level, size = (socket.SOL_IP, 16) if v4 else (socket.IPPROTO_IPV6, 28)
    try:
        return parse_sockaddr(sock.getsockopt(level, SO_ORIGINAL_DST, size)) or own
    except OSError:
        return own


def told_destination(told: Iterable[tuple[int, int, bytes]], own_port: int) -> tuple[str, int] | None:
    """The destination in a datagram's ancillary data; None where it is only our own end after a redirect."""
    kinds = ((socket.SOL_IP, IP_RECVORIGDSTADDR), (socket.IPPROTO_IPV6, IPV6_RECVORIGDSTADDR))
    for level, kind, content in told:
        found = parse_sockaddr(content) if (level, kind) in kinds else None
        if found and not (found[1] == own_port and (found[0] == "::1" or found[0].startswith("127."))):
            return found
    return None


def parse_sockaddr(raw: bytes) -> tuple[str, int] | None:
    """Address and port of a ``struct sockaddr_in`` or ``sockaddr_in6``."""
    if len(raw) < 16:
        return None
    family, port = struct.unpack_from("=H", raw)[0], struct.unpack_from("!H", raw, 2)[0]
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, raw[4:8]), port
    if family == socket.AF_INET6 and len(raw) >= 24:
        return plain_address(socket.inet_ntop(socket.AF_INET6, raw[8:24]), port)
    return None


def plain_address(address: str, port: int, *_rest: Any) -> tuple[str, int]:
    """An IPv4 address in IPv6 dress without the dress."""
    bare = address.removeprefix("::ffff:")
    return (bare if "." in bare and ":" not in bare else address), port
