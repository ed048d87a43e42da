"""Where addresses come from: the host's resolver behind a bounded pool, or made up for a network that records.

``Lookups`` belongs to the one thread that polls it; its workers only run ``upstream.lookup`` and write to a pipe.
Decides nothing about names: ``netns.names`` does, before and after.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from queue import SimpleQueue

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Upstream(Protocol):
        """Anything that can look a name up. Called from several threads at once; may block."""

        def lookup(self, name: str) -> Lookup:
            """``name`` is lower case, A-labels, without a last dot."""


WORKERS = 16
MOST_IN_FLIGHT = 1024
MOST_CACHED = 4096
DEADLINE = 5.0
"""Seconds that one lookup gets."""
SHORTEST, USUAL, LONGEST = 30, 60, 3600
"""Lifetime of an answer in seconds: the least, where nothing is known of it, the most."""
FIRST_IPV4 = 198 << 24 | 18 << 16
FIRST_IPV6 = 0xFD00CADE << 96
POOL = 1 << 17
"""Addresses in 198.18.0.0/15."""


class Lookup(Record):
    """``error`` is None, ``unknown`` (no such name), ``nodata`` (no addresses) or ``failed``; ``ttl`` is seconds."""

    addresses: tuple[str, ...] = ()
    ttl: int | None = None
    error: str | None = None


class HostResolver:
    """The resolver of this host, as every program sees it: /etc/hosts, split DNS and local stubs included."""

    def lookup(self, name: str) -> Lookup:
        """IPv4 addresses only: no leased network that reaches out has IPv6. Never raises."""
        import socket

        try:
            # Bytes, so that Python's own IDNA encoder leaves the name alone.
            found = socket.getaddrinfo(name.encode("ascii"), None, socket.AF_INET, socket.SOCK_STREAM)
        except socket.gaierror as error:
            return Lookup(error=_meaning(error.errno))
        except (OSError, ValueError):
            return Lookup(error="failed")
        return Lookup(tuple(dict.fromkeys(str(entry[4][0]) for entry in found)))


def _meaning(code: int | None) -> str:
    import socket

    if code == socket.EAI_NONAME:
        return "unknown"
    # musl has neither of the two
    nodata = {getattr(socket, name, None) for name in ("EAI_NODATA", "EAI_ADDRFAMILY")} - {None}
    return "nodata" if code in nodata else "failed"


class Lookups:
    """Runs lookups in at most ``WORKERS`` threads, one at a time for each name, and keeps what they found.

    A descriptor that becomes readable when ``collect`` has something to give is ``fileno()``.
    """

    def __init__(self, upstream: Upstream, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._upstream = upstream
        self._clock = clock
        self._cache: dict[str, tuple[Lookup, float]] = {}
        self._in_flight: set[str] = set()
        self._jobs: SimpleQueue[tuple[str, float] | None] = SimpleQueue()
        self._done: deque[tuple[str, Lookup]] = deque()
        self._workers = 0
        self._guard = threading.Lock()
        self._open = True
        self._out, self._in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._out

    def cached(self, name: str) -> Lookup | None:
        """What is known of ``name``; ``ttl`` is what is left of its lifetime."""
        known = self._cache.get(name)
        if known is None:
            return None
        left = int(known[1] - self._clock())
        if left < 1:
            del self._cache[name]
            return None
        return known[0].replace(ttl=left)

    def start(self, name: str) -> bool:
        """Has ``name`` looked up, unless that is under way. False: too many are, or no thread can be had."""
        if name in self._in_flight:
            return True
        if len(self._in_flight) >= MOST_IN_FLIGHT or not self._enough_workers():
            return False
        self._in_flight.add(name)
        self._jobs.put((name, self._clock() + DEADLINE))
        return True

    def collect(self) -> list[tuple[str, Lookup]]:
        """What came back since the last call; a good answer has its lifetime in ``ttl`` and is kept for so long."""
        try:
            while os.read(self._out, 4096):
                pass
        except BlockingIOError:
            pass
        # After the pipe is empty, never before: a result that comes in between wakes the poll again.
        found = []
        while self._done:
            name, lookup = self._done.popleft()
            self._in_flight.discard(name)
            found.append((name, self._keep(name, lookup)))
        return found

    def close(self) -> None:
        """Lets the workers go; one that is stuck in a lookup ends with it and disturbs nobody."""
        with self._guard:
            if not self._open:
                return
            self._open = False
            os.close(self._in)
            os.close(self._out)
        for _ in range(self._workers):
            self._jobs.put(None)

    def _keep(self, name: str, lookup: Lookup) -> Lookup:
        if lookup.error is not None or not lookup.addresses:
            return lookup
        lifetime = min(max(USUAL if lookup.ttl is None else lookup.ttl, SHORTEST), LONGEST)
        self._cache.pop(name, None)
        if len(self._cache) >= MOST_CACHED:
            del self._cache[next(iter(self._cache))]
        self._cache[name] = (lookup, self._clock() + lifetime)
        return lookup.replace(ttl=lifetime)

    def _enough_workers(self) -> bool:
        """Adds a thread if all may be busy. Fewer than wished for will do, none will not."""
        if self._workers < WORKERS and self._workers <= len(self._in_flight):
            try:
                threading.Thread(target=self._work, name="stockade-lookup", daemon=True).start()
            except RuntimeError:
                return self._workers > 0
            self._workers += 1
        return True

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            name, deadline = job
            late = not self._open or self._clock() > deadline
            self._done.append((name, Lookup(error="failed") if late else self._ask(name)))
            with self._guard:  # the number of a closed descriptor may be somebody else's by now
                if self._open:
                    self._wake()

    def _ask(self, name: str) -> Lookup:
        try:
            return self._upstream.lookup(name)
        except Exception:  # an upstream that breaks has not answered; the name stays unresolved
            return Lookup(error="failed")

    def _wake(self) -> None:
        try:
            os.write(self._in, b"\0")
        except BlockingIOError:
            pass  # full: the poll wakes anyway


class Synthetic:
    """Made-up addresses, a pair of its own for every name that is asked. Only ever adds, so any thread may read."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []

    def addresses(self, name: str, kind: str) -> tuple[str, ...]:
        """The one address of ``kind`` (``A`` or ``AAAA``); nothing once 131071 names were asked."""
        number = self._numbers.get(name)
        if number is None:
            if len(self._names) >= POOL - 1:
                return ()
            self._names.append(name)
            number = self._numbers[name] = len(self._names)
        import ipaddress

        if kind == "A":
            return (str(ipaddress.IPv4Address(FIRST_IPV4 + number)),)
        return (str(ipaddress.IPv6Address(FIRST_IPV6 + number)),)

    def name_of(self, address: str) -> str | None:
        """The name that was given ``address`` (IPv4, IPv6, or IPv4 in IPv6 dress), if one was."""
        import ipaddress

        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return None
        if isinstance(found, ipaddress.IPv6Address):
            found = found.ipv4_mapped or found
        number = int(found) - (FIRST_IPV4 if found.version == 4 else FIRST_IPV6)
        return self._names[number - 1] if 0 < number <= len(self._names) else None
