"""The relay of a lease: connections whose destination depends on the name that they give, carried from here.

The packet rules lead them to one listening socket in the leased namespace; what may pass is dialled from this process,
which is outside. One ``Relay`` a lease, driven by the poll loop of its service thread: it never blocks and starts no
thread. It has one descriptor for all: what is idle costs nothing. ``namecheck`` decides; here is only seen to it that
nothing goes anywhere undecided, that no address is dialled which no lease may reach, and that what is refused hears it
in its own protocol.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
import time

from stockade.netns.flow import BUFFER, CARRYING, DIALING, ENDING, PARTING, READING, Flow, reset
from stockade.netns.flowtable import BROKEN, PATIENCE, FlowTable, open_in_all
from stockade.netns.hello import LIMIT, HelloGuard
from stockade.netns.httpguard import HttpGuard
from stockade.netns.namecheck import PASS, TRANSFORM, opening
from stockade.netns.refusal import ALERT, forbidden, never_dialled
from stockade.netns.sinkhole import stream_destination
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from stockade.netns.httphead import Head
    from stockade.netns.namecheck import Decision, Opening

MOST_OPEN, MOST_UNDECIDED = 512, 128
SURE = 16
"""Connections that a relay may have however many others there are in this process."""
BATCH = 64
"""Connections taken, or descriptors served, before the others of the poll loop have their turn."""
FEW, SMALL = 64, 32 << 10
"""Connections that may each keep a whole buffer for either way; beyond them this many bytes."""
REST = 1.0
"""Seconds without accepting when there is no descriptor left."""
MOST_NAMES = 64
"""Names of later requests on one connection: each is recorded."""


class RelayEvent(Record):
    """One connection that ended or was refused or handed on, or a later request on it that gave another name."""

    name: str | None
    address: str
    port: int
    via: str
    """``tls``, ``http`` or ``tcp``."""
    allowed: bool
    reason: str
    """Why it was refused, or what should be known of one that was not; empty if there is nothing to say."""
    sent: int
    """Bytes that went to the server."""
    received: int
    """Bytes that came from it."""
    started: float
    """A time of ``time.monotonic``."""


class Relay:
    """Owns ``listening`` and all connections.

    ``judge(opening, address, port)`` decides. ``transform(socket, bytes read, decision, address, port)`` takes a
    connection over (None: there is nobody who could). ``check_again(name, address, port)`` says of a later HTTP request
    that gives another name why it may not pass, empty if it may. ``first_without_name(address, port)`` says whether a
    destination is allowed whatever is said: then nothing is read before it is dialled. ``record`` gets each event.
    ``destination`` tells where an accepted connection was meant to go. ``clock`` gives the seconds of ``tick``.
    """

    def __init__(
        self,
        listening: socket.socket,
        *,
        judge: Callable[[Opening, str, int], Decision],
        transform: Callable[[socket.socket, bytes, Decision, str, int], None] | None,
        check_again: Callable[[str, str, int], str],
        record: Callable[[RelayEvent], None],
        first_without_name: Callable[[str, int], bool],
        destination: Callable[[socket.socket], tuple[str, int]] = stream_destination,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listening = listening
        self._judge, self._transform, self._check_again = judge, transform, check_again
        self._record, self._first_without_name = record, first_without_name
        self._destination, self._clock = destination, clock
        self._most, self._most_in_all = most_open(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._table = FlowTable()
        self._poll = self._table.poll
        self._accepting = False
        self._rests_until: float | None = None
        self._buffer = memoryview(bytearray(BUFFER))
        listening.setblocking(False)
        # What is accepted has these, too. Urgent bytes stay where they are in the stream.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        self._accept_or_rest()

    # --- the poll loop's side ---

    def fds(self) -> list[tuple[int, int]]:
        """What to poll for: one descriptor."""
        return [] if self._poll.closed else [(self._poll.fileno(), select.POLLIN)]

    def handle(self, _fd: int, _events: int) -> None:
        """Serve what is ready, each once."""
        if self._poll.closed:
            return
        ready = [(fd, events, self._table.of(fd)) for fd, events in self._poll.poll(0, BATCH)]
        for fd, events, flow in ready:
            if fd == self._listening.fileno():
                self._accept()
            elif flow is not None and flow is self._table.of(
                fd
            ):  # else the number is another's by now, or nobody's
                self._serve(flow, fd, events)

    def timeout(self, now: float) -> float | None:
        """Seconds until ``tick`` has something to do; None if nothing is waited for."""
        times = [each for each in (self._table.next_deadline(), self._rests_until) if each is not None]
        return max(0.0, min(times) - now) if times else None

    def tick(self, now: float) -> None:
        """Move on what has waited long enough. To be called when ``timeout`` says so, or more often."""
        if self._rests_until is not None and now >= self._rests_until:
            self._rests_until = None
            self._accept_or_rest()
        for flow in self._table.late(now):
            self._too_late(flow)

    def close(self) -> None:
        """Record every connection, close everything. May be called again."""
        if self._poll.closed:
            return
        for flow in list(self._table.flows):
            if not flow.reason and flow.stage == READING:
                flow.reason = "it had not said whom it is for when the run ended"
            self._finish(flow)
        self._table.close()
        self._listening.close()

    # --- accepting ---

    def _accept(self) -> None:
        for _ in range(BATCH):
            if len(self._table) >= self._most or self._others_fill():
                break
            try:
                sock, _peer = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                break
            except ConnectionError:
                continue
            except OSError:  # no descriptors or memory: make room, or wait for the next tick
                if not self._drop_oldest():
                    self._rests_until = self._clock() + REST
                break
            self._welcome(sock)
        self._accept_or_rest()

    def _others_fill(self) -> bool:
        return len(self._table) >= SURE and open_in_all() >= self._most_in_all

    def _accept_or_rest(self) -> None:
        if self._rests_until is None and self._others_fill():
            self._rests_until = self._clock() + REST  # nobody tells when they have gone
        wanted = self._rests_until is None and len(self._table) < self._most
        if wanted and not self._accepting:
            self._poll.register(self._listening, select.EPOLLIN)
        elif self._accepting and not wanted:
            self._poll.unregister(self._listening)
        self._accepting = wanted

    def _welcome(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        flow = Flow(sock, self._destination(sock), time.monotonic())
        self._table.add(flow, sock)
        self._stage(flow, READING)
        if (flow.address, flow.port) == sock.getsockname()[:2]:
            self._refuse(flow, "no destination: the relay itself was dialled")
        elif self._first_without_name(flow.address, flow.port):
            self._dial(flow)
        else:
            self._read(flow)
            if self._table.count(READING) > MOST_UNDECIDED:
                self._drop_oldest()

    def _drop_oldest(self) -> bool:
        oldest = self._table.oldest(READING)
        if oldest is not None:
            oldest.reason = "too many connections that had not said whom they are for"
            self._abort(oldest)  # at once: it is its descriptor that is needed
        return oldest is not None

    # --- deciding ---

    def _read(self, flow: Flow) -> None:
        """What comes until it is enough to decide."""
        try:
            data = flow.client.recv(LIMIT - len(flow.data))
        except (BlockingIOError, InterruptedError):
            self._table.watch(flow)
            return
        except OSError:
            data = b""
        flow.data += data
        found = opening(flow.data)
        if found is not None:
            self._decide(flow, found)
        elif not data:
            self._refuse(flow, "it ended before it had said whom it is for")
        else:
            self._table.watch(flow)

    def _decide(self, flow: Flow, found: Opening) -> None:
        decision = self._judge(found, flow.address, flow.port)
        flow.via, flow.name, flow.reason = found.via, decision.name, decision.reason
        if decision.action == PASS:
            if not found.fault and found.name and found.via in ("tls", "http"):
                flow.guard = self._guard(flow, found)
            self._dial(flow)
        elif decision.action == TRANSFORM and self._transform is not None:
            self._hand_on(flow, decision, self._transform)
        else:
            self._refuse(flow, decision.reason or "there is no edge that could take it")

    def _guard(self, flow: Flow, found: Opening) -> HelloGuard | HttpGuard:
        name = found.name or ""
        return HelloGuard(name) if found.via == "tls" else HttpGuard(lambda head: self._later(flow, head))

    def _later(self, flow: Flow, head: Head) -> str:
        """Why a request on an HTTP connection may not pass; one with the first one's name may."""
        if head.name == flow.name:
            return ""
        why = self._check_again(head.name, flow.address, flow.port)
        if not why and head.name not in flow.names:
            if len(flow.names) >= MOST_NAMES:
                return "too many names on one connection"
            flow.names.add(head.name)
            self._tell(flow, head.name, allowed=True, reason="")
        return why

    def _hand_on(
        self, flow: Flow, decision: Decision, transform: Callable[[socket.socket, bytes, Decision, str, int], None]
    ) -> None:
        """The socket is the other's from here, whatever comes of it."""
        client, data = flow.client, flow.data
        flow.allowed = True
        self._table.forget(flow)
        try:
            transform(client, data, decision, flow.address, flow.port)
        except OSError as error:
            flow.allowed, flow.reason = False, f"the edge could not take it: {os.strerror(error.errno or 0)}"
            reset(client)
        self._note(flow)
        self._accept_or_rest()

    def _refuse(self, flow: Flow, reason: str) -> None:
        """Say so, where there is a word for it that the client understands."""
        flow.allowed, flow.reason = False, reason
        if flow.data[:2] == b"\x16\x03":
            flow.via = "tls"
        self._note(flow)
        if flow.via == "tls":
            self._say_last(flow, ALERT)
        elif flow.via == "http":
            self._say_last(flow, forbidden(reason))
        else:
            self._abort(flow)

    def _say_last(self, flow: Flow, word: bytes) -> None:
        """What the client still sends is read for a while: a reset would overtake the word."""
        try:
            flow.client.send(word, socket.MSG_NOSIGNAL)
            flow.client.shutdown(socket.SHUT_WR)
        except OSError:
            self._abort(flow)
            return
        self._stage(flow, ENDING)
        self._table.watch(flow)

    # --- dialling and carrying ---

    def _dial(self, flow: Flow) -> None:
        if never_dialled(flow.address):
            flow.guard = None
            self._refuse(flow, f"{flow.address} is never dialled")
            return
        flow.allowed = True
        try:
            server = socket.socket(socket.AF_INET6 if ":" in flow.address else socket.AF_INET)
        except OSError as error:
            self._undialled(flow, error.errno)
            return
        flow.server = server
        self._table.add(flow, server)
        server.setblocking(False)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        result = server.connect_ex((flow.address, flow.port))
        if result not in (0, errno.EINPROGRESS):
            self._undialled(flow, result)
            return
        self._stage(flow, DIALING)
        self._table.watch(flow)

    def _undialled(self, flow: Flow, number: int | None) -> None:
        flow.reason = f"could not connect: {os.strerror(number or 0)}"
        self._abort(flow)

    def _serve(self, flow: Flow, fd: int, events: int) -> None:
        if flow.stage == READING:
            self._read(flow)
        elif flow.stage == ENDING:
            self._end(flow)
        elif flow.stage == DIALING:
            self._dialled(flow, fd, events)
        else:
            self._carry(flow, fd, events)

    def _dialled(self, flow: Flow, fd: int, events: int) -> None:
        assert flow.server is not None
        if fd == flow.client.fileno():
            if events & BROKEN:  # nobody is there any more for whom the server would be
                flow.reason = flow.reason or "it ended before the server had answered"
                self._abort(flow)
            return
        if number := flow.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._undialled(flow, number)
            return
        flow.open(flow.server)
        self._stage(flow, CARRYING)
        self._carry(flow, fd, select.EPOLLOUT)

    def _carry(self, flow: Flow, fd: int, events: int) -> None:
        from_client = fd == flow.client.fileno()
        reading, writing = (flow.up, flow.down) if from_client else (flow.down, flow.up)
        try:
            if events & select.EPOLLERR and reading.ended:
                raise ConnectionResetError
            if events & (select.EPOLLIN | BROKEN):
                reading.move(self._room())
            if events & select.EPOLLOUT:
                writing.move(self._room())
            if flow.up.pending:  # what a guard let go
                flow.up.move(self._room())
        except OSError:
            self._broken(flow)
            return
        if self._looked_at(flow):
            self._table.watch(flow, hung=fd if events & BROKEN else -1)

    def _broken(self, flow: Flow) -> None:
        """What a server said before it went away is still worth hearing: it may tell why."""
        flow.down.delayed = lambda: True  # the error was told once: the next read says that this was the end
        try:
            flow.down.move(self._room())
        except OSError:
            pass
        self._abort(flow)

    def _looked_at(self, flow: Flow) -> bool:
        """Whether it goes on: what a guard refused, and what has come to its end, is seen to."""
        guard = flow.guard
        if guard is not None and guard.fault and flow.stage == CARRYING:
            self._stop(flow, guard)
        if flow not in self._table:
            return False
        if guard is not None and guard.waiting and flow.down.ended:
            flow.stop_reading()  # what is held waits for a word that can't come any more
        if flow.up.ended and not flow.up.pending and not flow.up.shut:
            flow.up.move(self._room())
        if not flow.over():
            return True
        if not flow.cut:
            self._finish(flow)
        elif flow.stage != ENDING:
            self._note(flow)
            self._table.drop_server(flow)
            self._stage(flow, ENDING)
            self._table.watch(flow)
        return False

    def _stop(self, flow: Flow, guard: HelloGuard | HttpGuard) -> None:
        """A later request that is refused gets its answer after those before it; all else is a reset."""
        refused = guard.refused if isinstance(guard, HttpGuard) else None
        self._tell(flow, refused.name if refused else flow.name, allowed=False, reason=guard.fault)
        if refused is None:
            self._abort(flow)
            return
        flow.stop_reading()
        flow.down.farewell = forbidden(guard.fault)
        self._stage(flow, PARTING)

    def _end(self, flow: Flow) -> None:
        """Read what nobody wants until the client has heard the last word."""
        try:
            for _ in range(BATCH):
                if not flow.client.recv_into(self._buffer):
                    self._finish(flow)
                    return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        self._finish(flow)

    def _too_late(self, flow: Flow) -> None:
        stage = flow.stage
        if stage == READING:
            self._refuse(flow, f"it had not said whom it is for within {PATIENCE[READING]:g} s")
        elif stage == DIALING:
            self._undialled(flow, errno.ETIMEDOUT)
        elif stage == PARTING and not flow.down.ended:
            flow.down.ended = True
            self._stage(flow, PARTING)
            self._carry(flow, flow.client.fileno(), select.EPOLLOUT)
        elif stage == PARTING:
            self._abort(flow)
        else:
            self._finish(flow)

    # --- keeping count ---

    def _room(self) -> memoryview:
        """Where to read to: what a sink does not take is kept, so less of each if there are many."""
        return self._buffer if len(self._table) <= FEW else self._buffer[:SMALL]

    def _stage(self, flow: Flow, stage: str) -> None:
        self._table.stage(flow, stage, self._clock())

    def _abort(self, flow: Flow) -> None:
        """Both ends get a reset."""
        self._table.forget(flow)
        self._note(flow)
        for sock in (flow.client, flow.server):
            if sock is not None:
                reset(sock)
        self._accept_or_rest()

    def _finish(self, flow: Flow) -> None:
        self._table.forget(flow)
        self._note(flow)
        for sock in (flow.client, flow.server):
            if sock is not None:
                sock.close()
        self._accept_or_rest()

    def _note(self, flow: Flow) -> None:
        """The connection itself, once."""
        if not flow.noted:
            flow.noted = True
            sent, received = flow.up.total, flow.down.total
            self._tell(flow, flow.name, allowed=flow.allowed, reason=flow.reason, sent=sent, received=received)

    def _tell(
        self, flow: Flow, name: str | None, *, allowed: bool, reason: str, sent: int = 0, received: int = 0
    ) -> None:
        self._record(
            RelayEvent(name, flow.address, flow.port, flow.via, allowed, reason, sent, received, flow.started)
        )


def most_open(descriptors: int) -> tuple[int, float]:
    """How many connections one relay, and all of a process, may have where so many descriptors may be open.

    With two each, all of them take half.
    """
    if descriptors == resource.RLIM_INFINITY:
        return MOST_OPEN, float("inf")
    quarter = max(1, descriptors // 4)
    return min(MOST_OPEN, quarter), quarter
