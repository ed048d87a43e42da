"""Leases made ahead, for processes that run many commands: one is ready when a run asks for it.

A lease is used by one run and never given to another; what a run took is replaced in the background, by one
thread. One that died while it waited is never handed out. The pool decides nothing about what a lease allows:
it only makes more of what was asked for before.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque

from stockade.netns.lease import Lease
from stockade.policies.errors import RequestError, StockadeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

KINDS = 4
"""Different specifications that leases are kept for; the one asked for longest ago makes way."""

REST = 0.02
"""Seconds that a run which took a lease has the machine for itself, while others like it are still there."""


class LeasePool:
    """Ready leases for ``stockade.run(..., leases=pool)``. A context manager; any thread may use it.

    Before the first run that asks for a network nobody knows what is wanted: that run waits for its own lease.
    """

    def __init__(self, size: int = 2) -> None:
        """``size``: leases to keep ready for each kind of network. Each holds two processes and a thread."""
        if size < 1:
            raise RequestError(f"could not make a pool of {size} leases: it must be one at least")
        self.size = size
        self._ready: dict[object, deque[Lease]] = {}
        """By what was asked for, latest last; at the same time the list of what is wanted."""
        self._pattern: dict[object, Lease] = {}
        self._failing: set[object] = set()
        self._changed = threading.Condition()
        self._rest_until = 0.0
        self._open = True
        self._owner = os.getpid()
        self._filler: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        self.close()

    def take(self, fresh: Lease) -> Lease:
        """A ready lease such as ``fresh``, which was not started; ``fresh`` itself where there is none.

        Whoever takes a lease closes it. From now on more of that kind are made ahead.
        """
        key = (fresh.spec, fresh.spawner, fresh.upstream)
        dead: list[Lease] = []
        with self._changed:
            if not self._open or self._owner != os.getpid():
                return fresh
            waiting = self._want(key, fresh, dead)
            found = fresh
            while waiting and found is fresh:
                candidate = waiting.popleft()
                if candidate.lost():
                    dead.append(candidate)
                else:
                    candidate.begin()
                    found = candidate
            self._rest_until = time.monotonic() + REST
            self._fill()
        for each in dead:
            each.close()
        return found

    def ready(self) -> int:
        """How many leases wait to be used."""
        with self._changed:
            return sum(map(len, self._ready.values()))

    def close(self) -> None:
        """End what waits. Leases that were taken are their takers'."""
        if self._owner != os.getpid():
            return
        with self._changed:
            self._open = False
            left = [lease for waiting in self._ready.values() for lease in waiting]
            self._ready.clear()
            self._changed.notify_all()
        if self._filler is not None:
            self._filler.join()
        for lease in left:
            lease.close()

    def _want(self, key: object, fresh: Lease, dead: list[Lease]) -> deque[Lease]:
        waiting = self._ready.pop(key, None) or deque()
        self._ready[key] = waiting
        self._pattern[key] = fresh
        self._failing.discard(key)
        while len(self._ready) > KINDS:
            oldest = next(iter(self._ready))
            dead += self._ready.pop(oldest)
            del self._pattern[oldest]
        return waiting

    def _fill(self) -> None:
        """Have the thread look; to be called with the lock held."""
        if self._filler is None:
            self._filler = threading.Thread(target=self._keep_full, name="stockade-leases", daemon=True)
            try:
                self._filler.start()
            except RuntimeError:
                self._filler = None  # no more threads now: runs make their own leases
        self._changed.notify_all()

    def _keep_full(self) -> None:
        while (wanted := self._next_wanted()) is not None:
            key, pattern = wanted
            self._add(key, make_another(pattern))

    def _next_wanted(self) -> tuple[object, Lease] | None:
        """What to make next: that of which least is there. Waits for it. None when the pool is closed."""
        with self._changed:
            while self._open:
                missing = [key for key in reversed(self._ready) if self._is_missing(key)]
                rest = self._rest_until - time.monotonic()
                if missing and (rest <= 0 or not all(self._ready[key] for key in missing)):
                    key = min(missing, key=lambda each: len(self._ready[each]))
                    return key, self._pattern[key]
                self._changed.wait(rest if missing else None)
            return None

    def _is_missing(self, key: object) -> bool:
        return len(self._ready[key]) < self.size and key not in self._failing

    def _add(self, key: object, made: Lease | None) -> None:
        """Put it where runs find it. After a failure nothing more is tried until a run asks again."""
        with self._changed:
            kept = self._open and key in self._ready
            if made is None:
                self._failing.add(key)
            elif kept:
                self._ready[key].append(made)
        if made is not None and not kept:
            made.close()


def make_another(pattern: Lease) -> Lease | None:
    """A ready lease like another one; None where that can't be had now."""
    made = Lease(pattern.spec, pattern.spawner, upstream=pattern.upstream)
    try:
        made.start()
        made.wait_ready()
    except (StockadeError, OSError):
        made.close()
        return None
    return made
