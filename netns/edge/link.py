"""The supervisor's end of the edge: sessions opened at the proxy, connections handed to it, requests told by it.

The proxy talks with servers and with the program that is run, so whatever it says is checked: types, ranges, sizes,
known sessions and connections. A proxy that is gone or silent fails what is asked of it; it never hangs the caller.
One thread reads. Counterpart: ``netns.edge.child``.
"""

from __future__ import annotations

import base64
import os
import select
import socket
import threading
import time

from stockade.netns.edge.interpreter import REMEDY
from stockade.netns.edge.messages import LARGEST, read_message, request_of, shown, write_message
from stockade.netns.edge.requests import EgressRequest
from stockade.netns.errors import LeaseFailed
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

OPEN_SECONDS, TAKE_SECONDS, CLOSE_SECONDS = 15.0, 1.0, 2.0
MOST_REQUESTS, MOST_ENDED = 10_000, 100_000
UNLISTED = "(further requests)"
"""Host of an entry that says that the list is not complete, and in its reason how many are missing."""
LOST = "the edge ended before this connection was over"


class Ended(Record):
    """A connection that the proxy is done with."""

    connection: int
    """As ``take`` returned it."""
    sent: int
    """Bytes that came from the program, TLS included."""
    received: int
    """Bytes that went to it."""


class Taken(Record):
    """A connection that the proxy has."""

    host: str
    port: int
    began: float
    taken: float


class EdgeProxy:
    """Owns ``sock``, the supervisor's end of the ``SOCK_SEQPACKET`` pair whose other end is descriptor 0 of the
    proxy. Safe to use from several threads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.setblocking(False)
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._sessions: dict[int, EdgeSession] = {}
        self._last = 0
        self._gone = threading.Event()
        self._stuck = False
        self._reader = threading.Thread(target=self._read, name="stockade-edge", daemon=True)
        self._reader.start()

    def open(
        self, rules: Sequence[Mapping[str, Any]], secrets: Sequence[str], *, mask_queries: bool, trust: str
    ) -> EdgeSession:
        """A session with rules, secrets and a certificate authority of its own.

        ``rules`` are tried in order; each has ``host`` (the text of its ``HostRule``), ``scheme``, ``methods``,
        ``paths`` and ``headers`` (pairs of a name and the whole value that is put in). ``secrets`` are what is
        masked in answers and records. ``trust`` is the path of the bundle that servers are verified against.
        Raises ``LeaseFailed(part="edge")`` if the proxy is gone, does not answer in time, or refuses.
        """
        with self._lock:
            number = self._last + 1
            session = self._sessions[number] = EdgeSession(self, number)
            self._last = number
        fields = {"rules": [dict(rule) for rule in rules], "secrets": list(secrets), "mask_queries": mask_queries}
        try:
            self._ask_open(number, fields, trust)
            session._wait_open()
        except BaseException:
            session._give_up()
            raise
        return session

    def alive(self) -> bool:
        """Whether the proxy has not closed its end, as far as is known, and answered in time when it was asked to."""
        return not (self._stuck or self._hung_up())

    def close(self) -> None:
        """End the link, and thereby the proxy. All sessions are over; may be called twice."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        if threading.current_thread() is not self._reader:
            self._reader.join()
        self._sock.close()

    def forget(self) -> None:
        """Let go of a copy, after a fork: the link belongs to the process that made it."""
        self._sock.close()

    def _ask_open(self, number: int, fields: Mapping[str, Any], trust: str) -> None:
        message = write_message("open", session=number, **fields)
        if len(message) > LARGEST:
            raise _failed("the entries of network.edge are too large", "shorten paths, or the values of headers")
        try:
            bundle = os.open(trust, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            cause = f"the certificates that servers are verified against can't be read: {error.strerror}"
            raise _failed(cause, "install your distribution's ca-certificates") from None
        try:
            if not self._send(message, bundle, OPEN_SECONDS):
                raise _failed("its proxy is gone", REMEDY)
        finally:
            os.close(bundle)

    def _send(self, message: bytes, descriptor: int | None, seconds: float) -> bool:
        """Whether the kernel has the message now."""
        limit = time.monotonic() + seconds
        if not self._sending.acquire(timeout=seconds):
            return False
        try:
            while not self._gone.is_set():
                try:
                    socket.send_fds(self._sock, [message], [] if descriptor is None else [descriptor])
                except (BlockingIOError, InterruptedError):
                    if not self._wait(select.POLLOUT, limit):
                        return False
                else:
                    return True
        except OSError:
            pass
        finally:
            self._sending.release()
        return False

    def _wait(self, wanted: int, limit: float | None) -> bool:
        """Until the socket is ready, the link is over or the time is; False for the last."""
        poll = select.poll()
        poll.register(self._sock, wanted)
        return bool(poll.poll(None if limit is None else max(0.0, limit - time.monotonic()) * 1000))

    def _hung_up(self) -> bool:
        """Whether the proxy is gone. Its end of the link goes before those of the connections that it has."""
        if self._gone.is_set():
            return True
        poll = select.poll()
        poll.register(self._sock, 0)
        return bool(poll.poll(0))

    def _read(self) -> None:
        """The reader's thread."""
        try:
            while self._wait(select.POLLIN, None):
                try:
                    data = self._sock.recv(LARGEST + 1)
                except (BlockingIOError, InterruptedError):
                    continue
                if not data:
                    break
                self._hear(read_message(data))
        except OSError:
            pass
        self._gone.set()
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session._lose(gone=True)

    def _hear(self, message: dict[str, Any] | None) -> None:
        if message is None:
            return
        with self._lock:
            session = self._sessions.get(message["session"])
        if session is not None:
            session._hear(message)

    def _forget(self, number: int) -> None:
        with self._lock:
            self._sessions.pop(number, None)


class EdgeSession:
    """One session. Safe to use from several threads."""

    ca: str
    """The certificate (PEM) of its authority; the key never leaves the proxy."""
    events: int
    """A pipe that has a byte once the proxy is gone; closed with the session."""
    lost = False
    """The proxy went while the session was open."""
    unheard = False
    """The proxy did not say that the session is over: what it told may not be all."""

    def __init__(self, proxy: EdgeProxy, number: int) -> None:
        self.ca = ""
        self.events, self._held = os.pipe()
        self._proxy, self._number = proxy, number
        self._lock = threading.Lock()
        self._answered, self._over = threading.Event(), threading.Event()
        self._cause = "its proxy is gone"
        self._last = self._missing = 0
        self._taken: dict[int, Taken] = {}
        self._requests: list[EgressRequest] = []
        self._ended: list[Ended] = []
        self._closed = False

    def take(
        self,
        sock: socket.socket,
        data: bytes,
        *,
        host: str,
        address: str,
        port: int,
        tls: bool,
        began: float,
    ) -> int | None:
        """Give an accepted connection away. ``sock`` is closed here in any case.

        ``data`` is what was read of it already, ``host`` the name it is meant for, ``address`` and ``port`` where
        the proxy dials, ``began`` when the run began (a time of ``time.monotonic``). Waits at most 1 s for room in
        the link. The number of the connection in ``ended``; None when it could not be given away, which is recorded.
        """
        with self._lock:
            self._last += 1
            number = self._last
            self._taken[number] = Taken(host, port, began, time.monotonic())
        place: dict[str, Any] = {"host": host, "address": address, "port": port, "tls": tls}
        text = base64.b64encode(data).decode("ascii")
        message = write_message("take", session=self._number, connection=number, data=text, **place)
        try:
            if not self._closed and len(message) <= LARGEST:
                given = self._proxy._send(message, sock.fileno(), TAKE_SECONDS)
            else:
                given = False
        except OSError:
            given = False
        finally:
            sock.close()
        if not given:
            self._drop(number, "the connection could not be handed to the edge")
        return number if given else None

    def requests(self) -> tuple[EgressRequest, ...]:
        """What was requested until now, in the order in which it ended."""
        with self._lock:
            found = tuple(self._requests)
            missing = self._missing
        if missing:
            reason = f"{missing} requests found no room"
            found += (EgressRequest("", UNLISTED, 0, "", None, 0, 0.0, False, reason, found[-1].first_seen),)
        return found

    @property
    def ended(self) -> tuple[Ended, ...]:
        """The connections that are over."""
        with self._lock:
            return tuple(self._ended)

    def close(self) -> None:
        """Cut its connections and wait at most 2 s for the last records; may be called twice."""
        with self._lock:
            first, self._closed = not self._closed, True
        if first and self._proxy._hung_up():
            self.lost = True  # the reader may not have seen it yet
        limit = time.monotonic() + CLOSE_SECONDS
        if first and self._proxy._send(write_message("close", session=self._number), None, CLOSE_SECONDS):
            self._over.wait(max(0.0, limit - time.monotonic()))
        if first:
            self.unheard = not (self._over.is_set() or self.lost)
        self._proxy._forget(self._number)
        self._lose()
        self._let_go()

    def _wait_open(self) -> None:
        if not self._answered.wait(OPEN_SECONDS):
            self._proxy._stuck = True
            raise _failed(f"its proxy does not answer within {OPEN_SECONDS:g} s", "")
        if not self.ca:
            raise _failed(self._cause, REMEDY if not self._proxy.alive() else "")

    def _hear(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind in ("opened", "failed"):
            if not self._answered.is_set():
                self.ca, self._cause = message.get("ca", ""), shown(message.get("cause", ""))
                self._answered.set()
        elif kind == "closed":
            self._over.set()
        elif kind == "request":
            self._hear_request(message)
        else:
            self._hear_end(message)

    def _hear_request(self, message: dict[str, Any]) -> None:
        with self._lock:
            taken = self._taken.get(message["connection"])
        if taken is not None:
            # Where it leads is known here; what the proxy says of that is not needed.
            message |= {"host": taken.host, "port": taken.port}
            request = request_of(message, taken.began, time.monotonic())
            if request is not None:
                self._keep(request)

    def _hear_end(self, message: dict[str, Any]) -> None:
        number, sent, received = message["connection"], message["sent"], message["received"]
        with self._lock:
            if self._taken.pop(number, None) is not None and len(self._ended) < MOST_ENDED:
                self._ended.append(Ended(number, max(0, sent), max(0, received)))

    def _keep(self, request: EgressRequest) -> None:
        with self._lock:
            if len(self._requests) < MOST_REQUESTS:
                self._requests.append(request)
            else:
                self._missing += 1

    def _drop(self, number: int, reason: str) -> None:
        """Record a connection that the proxy has not, or no longer."""
        with self._lock:
            taken = self._taken.pop(number, None)
        if taken is not None:
            seen = round(max(0.0, taken.taken - taken.began), 6)
            self._keep(EgressRequest("", taken.host, taken.port, "", None, 0, 0.0, False, reason, seen))

    def _lose(self, *, gone: bool = False) -> None:
        """The proxy is gone, or the session is over."""
        with self._lock:
            left = list(self._taken)
            if gone:
                self.lost = self.lost or not self._over.is_set()
                self._hang_up()
        for number in left:
            self._drop(number, LOST)
        self._over.set()
        self._answered.set()

    def _give_up(self) -> None:
        """It was not opened, as far as anybody knows; a proxy that comes round has nobody to keep secrets for."""
        self._closed = True
        self._proxy._send(write_message("close", session=self._number), None, 0.0)
        self._proxy._forget(self._number)
        self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            self._hang_up()
            events, self.events = self.events, -1
        if events >= 0:
            os.close(events)

    def _hang_up(self) -> None:
        held, self._held = self._held, -1
        if held >= 0:
            os.write(held, b"\0")  # a copy of this process may hold the other end open
            os.close(held)


def _failed(cause: str, remedy: str) -> LeaseFailed:
    return LeaseFailed(f"could not open the edge: {cause}", part="edge", remedy=remedy)
