"""Handlers that nobody waits for: each in a thread of its own until it ends, or is ended.

Nothing outlives the interpreter: what still runs then is killed.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref

from stockade.sandbox.stopper import Stopper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from stockade.sandbox.hooks.aggregate import HandlerResult

KILL = 9
GRACE = 5.0
"""Seconds that a killed handler gets to be gone."""


class Handle:
    """How a running handler is ended from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._end: Callable[[], None] | None = None
        self.stopped = False

    def stop(self) -> None:
        """End the handler now, or as soon as it has begun."""
        with self._lock:
            self.stopped = True
            if self._end is not None:
                self._end()

    def attach(self, end: Callable[[], None]) -> None:
        with self._lock:
            self._end = end
            if self.stopped:
                end()

    def detach(self) -> None:
        with self._lock:
            self._end = None


class StoppableRun:
    """A stopper for one command, closed only when nobody can reach it any more."""

    def __init__(self, handle: Handle) -> None:
        self.handle, self.stopper = handle, Stopper()

    def __enter__(self) -> Stopper:
        self.handle.attach(lambda: self.stopper.request(KILL))
        return self.stopper

    def __exit__(self, *_error: object) -> None:
        self.handle.detach()
        self.stopper.close()


class Running:
    """One detached handler."""

    def __init__(self, label: str, work: Callable[[Handle], HandlerResult], owner: Detached) -> None:
        self.label, self.handle = label, Handle()
        self.result: HandlerResult | None = None
        self._work = work
        self._owner = owner  # which is found at the interpreter's exit as long as this runs
        self.thread = threading.Thread(target=self._target, name="stockade-async-hook", daemon=True)

    def _target(self) -> None:
        self.result = self._work(self.handle)


class Detached:
    """The detached handlers of one runner."""

    def __init__(self) -> None:
        self._running: list[Running] = []
        self._lock = threading.Lock()

    def start(self, label: str, work: Callable[[Handle], HandlerResult]) -> None:
        """Run ``work`` beside the caller. It must not raise."""
        running = Running(label, work, self)
        with self._lock:
            remember(self)
            self._running.append(running)
            running.thread.start()

    def labels(self) -> tuple[str, ...]:
        """Those that still run."""
        with self._lock:
            return tuple(each.label for each in self._running if each.thread.is_alive())

    def finished(self) -> tuple[HandlerResult, ...]:
        """Results of those that have ended since this was asked last."""
        with self._lock:
            ended = [each for each in self._running if not each.thread.is_alive()]
            self._running = [each for each in self._running if each not in ended]
        return tuple(each.result for each in ended if each.result is not None)

    def quiesce(self, timeout: float) -> tuple[HandlerResult, ...]:
        """Wait ``timeout`` seconds for all, then end the others. Returns the results that nobody has had yet."""
        end = time.monotonic() + timeout
        with self._lock:
            waiting = list(self._running)
        for each in waiting:
            each.thread.join(max(0.0, end - time.monotonic()))
        for each in waiting:
            if each.thread.is_alive():
                each.handle.stop()
        last = time.monotonic() + GRACE
        for each in waiting:
            each.thread.join(max(0.0, last - time.monotonic()))
        return self.finished()


_living: weakref.WeakSet[Detached] = weakref.WeakSet()
_registered = False


def remember(detached: Detached) -> None:
    global _registered
    _living.add(detached)
    if not _registered:
        _registered = True
        atexit.register(end_all)


def end_all() -> None:
    """For the interpreter's exit."""
    for each in list(_living):
        each.quiesce(0.0)
