"""The only resolver inside a leased network: the sockets of port 53, for one thread that polls.

    loop:  poll(fds(), tick()) -> handle(fd, events) for each

Decides nothing (``netns.names`` does) and looks nothing up (``netns.upstream`` does, in threads). What it does promise
is the order: an address is admitted and the answer recorded before it is sent; who can't be admitted is not answered.
"""

from __future__ import annotations

import select
import socket
import time

from stockade.netns.clients import Datagram, Stream
from stockade.netns.names import LARGEST_QUERY, MOST_ADDRESSES, Verdict, decide, fault, question, reply, screen
from stockade.netns.upstream import DEADLINE, Lookup, Lookups, Synthetic
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stockade.netns.names import Question
    from stockade.netns.upstream import Upstream
    from stockade.policies.hosts import HostRule

MOST_PENDING = 1024
"""Questions that wait for the host at once; further ones fail."""
MOST_STREAMS = 64
BATCH = 256
IDLE = 10.0
"""Seconds without a whole query or answer after which a connection is closed."""
SLACK = 30
"""Seconds that an address stays admitted after the answer that named it has run out."""
SYNTHETIC_TTL = 60
RECEIVE_BUFFER = 1 << 20
PAUSE = 1.0


class NameEvent(Record):
    """One question and what became of it.

    ``outcome`` is ``answered`` (in a recording network: with synthetic addresses), ``empty`` (the name is allowed, it
    has no such records), ``absent`` (allowed, and the host knows no such name), ``refused``, ``rebinding`` (it leads
    where a name must not lead) or ``failed``. ``addresses`` are those answered, or for ``rebinding`` those held back;
    where the others were good, both events come. ``time`` is of ``time.monotonic``.
    """

    name: str
    type: str
    outcome: str
    addresses: tuple[str, ...]
    time: float


class _Waiting(Record):
    question: Question
    verdict: Verdict
    asker: Datagram | Stream
    deadline: float


class Resolver:
    """Answers on ``udp`` and on the listening ``tcp``, which become its own.

    ``kind`` is ``allow``, ``open`` or ``record``; ``private`` as in the policy. ``admit(rules, name, addresses, seconds)``
    opens the network to the addresses of a name, which these rules mean (none for ``open``), and raises if it can't;
    it is not called for ``record``. ``record`` gets every event, also of a flood: bounding them is its business.
    ``synthetic`` is shared by resolvers that answer for one recording network. All are called in the thread that polls.
    """

    def __init__(
        self,
        udp: socket.socket,
        tcp: socket.socket,
        *,
        rules: Sequence[HostRule],
        kind: str,
        admit: Callable[[Sequence[HostRule], str, Sequence[str], int], None],
        upstream: Upstream,
        record: Callable[[NameEvent], None],
        private: bool = False,
        synthetic: Synthetic | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._udp, self._tcp = udp, tcp
        self._rules, self._kind, self._private = tuple(rules), kind, private
        self._admit, self._record, self._clock = admit, record, clock
        self._lookups = Lookups(upstream, clock=clock)
        self._synthetic = synthetic or Synthetic()
        self._waiting: dict[str, list[_Waiting]] = {}
        self._pending = 0
        self._streams: dict[int, Stream] = {}
        self._accepts_again = 0.0
        udp.setblocking(False)
        tcp.setblocking(False)
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)

    # --- the poll loop's side ---

    def fds(self) -> list[tuple[int, int]]:
        """Descriptors and what to poll them for; ask again before each poll."""
        accepts = select.POLLIN if self._clock() >= self._accepts_again else 0
        fixed = [(self._udp.fileno(), select.POLLIN), (self._tcp.fileno(), accepts)]
        streams = [(fd, stream.wants()) for fd, stream in self._streams.items()]
        return [*fixed, (self._lookups.fileno(), select.POLLIN), *streams]

    def handle(self, fd: int, events: int) -> None:
        """Does what can be done now for a descriptor that poll reported; one that is gone by now is ignored."""
        if fd == self._udp.fileno():
            self._receive()
        elif fd == self._tcp.fileno():
            self._accept()
        elif fd == self._lookups.fileno():
            for name, lookup in self._lookups.collect():
                self._found(name, lookup)
        elif fd in self._streams:
            self._serve(self._streams[fd], events)
        self._sweep()

    def tick(self) -> float:
        """Gives up what took too long. Returns the seconds until there is something to do again."""
        now = self._clock()
        for name in list(self._waiting):
            self._expire(name, now)
        for stream in self._streams.values():
            if now - stream.last >= IDLE:
                stream.close()
        self._sweep()
        ends = [waiting[0].deadline for waiting in self._waiting.values()]
        ends += [stream.last + IDLE for stream in self._streams.values()]
        return min(max(0.0, min(ends, default=now + PAUSE) - now), PAUSE)

    def close(self) -> None:
        """Closes every socket; who still waits gets no answer. Events of open questions are recorded as failed."""
        for waiting in self._waiting.values():
            for one in waiting:
                self._note(one.question, "failed")
        self._waiting.clear()
        self._lookups.close()
        for opened in (self._udp, self._tcp, *(stream.connection for stream in self._streams.values())):
            opened.close()
        self._streams.clear()

    def name_of(self, address: str) -> str | None:
        """The name that got this synthetic address, if any; any thread may ask."""
        return self._synthetic.name_of(address)

    # --- questions ---

    def _receive(self) -> None:
        """Empties the socket first: its buffer holds a few hundred queries, and answering takes longer than asking."""
        batch: list[tuple[bytes, tuple[str, int]]] = []
        try:
            while len(batch) < BATCH:
                batch.append(self._udp.recvfrom(LARGEST_QUERY + 1))
        except OSError:
            pass
        for wire, address in batch:
            self._take(wire, Datagram(self._udp, address))

    def _take(self, wire: bytes, asker: Datagram | Stream) -> None:
        asked = question(wire)
        if asked is None:
            self._complain(wire, asker)
            return
        verdict = decide(asked, self._rules, self._kind)
        if verdict.action == "resolve":
            self._resolve(asked, verdict, asker)
        else:
            outcome = {"refuse": "refused", "empty": "empty"}.get(verdict.action, "failed")
            self._answer(asked, verdict, asker, outcome)

    def _complain(self, wire: bytes, asker: Datagram | Stream) -> None:
        complaint = fault(wire)
        if complaint is not None:
            asker.send(complaint)
        elif isinstance(asker, Stream):
            asker.skip()

    def _resolve(self, asked: Question, verdict: Verdict, asker: Datagram | Stream) -> None:
        if self._kind == "record":
            self._make_up(asked, verdict, asker)
            return
        one = _Waiting(asked, verdict, asker, self._clock() + DEADLINE)
        known = self._lookups.cached(asked.name)
        if known is not None:
            self._settle([one], known)
        elif self._pending >= MOST_PENDING or not self._lookups.start(asked.name):
            self._fail(one, "too many names at once")
        else:
            self._waiting.setdefault(asked.name, []).append(one)
            self._pending += 1

    def _make_up(self, asked: Question, verdict: Verdict, asker: Datagram | Stream) -> None:
        addresses = self._synthetic.addresses(asked.name, asked.type)
        if addresses:
            self._answer(asked, verdict, asker, "answered", addresses, SYNTHETIC_TTL)
        else:
            verdict = verdict.replace(action="fail", why="too many names were asked")
            self._answer(asked, verdict, asker, "failed")

    # --- answers ---

    def _found(self, name: str, lookup: Lookup) -> None:
        waiting = self._waiting.pop(name, [])
        self._pending -= len(waiting)
        if waiting:
            self._settle(waiting, lookup)

    def _settle(self, waiting: Sequence[_Waiting], lookup: Lookup) -> None:
        """All of ``waiting`` ask for the same name, so the same rules and addresses go for all."""
        good, held = screen(lookup.addresses, self._rules, self._private)
        good = tuple(address for address in good if ":" not in address)[:MOST_ADDRESSES]  # only A is looked up
        ttl = lookup.ttl or 0
        failure = self._admitted(waiting[0], good, ttl) if good else ""
        for one in waiting:
            if held:
                self._note(one.question, "rebinding", held)
            if failure:
                self._fail(one, failure)
            elif good:
                self._answer(one.question, one.verdict, one.asker, "answered", good, ttl)
            else:
                self._disappoint(one, lookup, held=bool(held))

    def _admitted(self, one: _Waiting, addresses: Sequence[str], ttl: int) -> str:
        """Empty, or why the addresses must not be answered."""
        try:
            self._admit(one.verdict.rules, one.question.name, addresses, ttl + SLACK)
        except Exception:  # whatever went wrong, the rules do not let these addresses pass
            return "the address could not be admitted"
        return ""

    def _disappoint(self, one: _Waiting, lookup: Lookup, *, held: bool) -> None:
        if held:
            verdict = one.verdict.replace(action="empty", why="it leads to an address that a name must not lead to")
            one.asker.send(reply(one.question, verdict, stream=one.asker.stream))
        elif lookup.error in (None, "nodata"):
            self._answer(one.question, one.verdict.replace(action="empty"), one.asker, "empty")
        elif lookup.error == "unknown":
            self._answer(one.question, one.verdict.replace(action="unknown"), one.asker, "absent")
        else:
            self._fail(one, "the host could not resolve it")

    def _fail(self, one: _Waiting, why: str) -> None:
        self._answer(one.question, one.verdict.replace(action="fail", why=why), one.asker, "failed")

    def _answer(
        self,
        asked: Question,
        verdict: Verdict,
        asker: Datagram | Stream,
        outcome: str,
        addresses: tuple[str, ...] = (),
        ttl: int = 0,
    ) -> None:
        self._note(asked, outcome, addresses)
        asker.send(reply(asked, verdict, addresses, ttl, stream=asker.stream))

    def _note(self, asked: Question, outcome: str, addresses: tuple[str, ...] = ()) -> None:
        self._record(NameEvent(asked.name, asked.type, outcome, addresses, time.monotonic()))

    def _expire(self, name: str, now: float) -> None:
        waiting = self._waiting[name]
        late = [one for one in waiting if one.deadline <= now]
        left = waiting[len(late) :]
        self._pending -= len(late)
        if left:
            self._waiting[name] = left
        else:
            del self._waiting[name]
        for one in late:
            self._fail(one, "the host did not answer in time")

    # --- connections ---

    def _accept(self) -> None:
        try:
            connection, _ = self._tcp.accept()
        except BlockingIOError:
            return
        except OSError:
            # Out of descriptors, most likely: poll would report the listener again at once, and for ever.
            self._accepts_again = self._clock() + PAUSE
            return
        connection.setblocking(False)
        if len(self._streams) >= MOST_STREAMS:
            min(self._streams.values(), key=lambda stream: stream.last).close()
            self._sweep()
        self._streams[connection.fileno()] = Stream(connection, self._clock())

    def _serve(self, stream: Stream, events: int) -> None:
        if events & select.POLLOUT:
            stream.flush(self._clock())
        if not stream.closed and events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            for wire in stream.receive(self._clock()):
                self._take(wire, stream)
        if events & (select.POLLHUP | select.POLLERR):
            stream.close()  # reset from the other side: poll would report it without end

    def _sweep(self) -> None:
        for fd, stream in list(self._streams.items()):
            if stream.finished():
                stream.close()
                del self._streams[fd]
