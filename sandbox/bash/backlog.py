"""What a job wrote lately, both streams as one, and waiting for more of it without a clock.

Every byte has a place: how many came before it. A reader asks from a place on and is told what is no longer there.
"""

from __future__ import annotations

import math
import threading

from stockade.policies.errors import RequestError
from stockade.policies.record import Record
from stockade.sandbox.bash.output import whole_end, whole_start

KEPT = 1 << 18
"""Bytes that can still be read, at least."""

SLACK = 1 << 16
"""Bytes that may be there beyond it, so that not every write moves the rest."""


class Piece(Record):
    """A part of a backlog: ``data`` begins at ``since``, ``dropped`` bytes after the place that was asked for."""

    data: bytes
    since: int
    dropped: int
    open: bool
    """Whether more can come."""

    @property
    def next(self) -> int:
        return self.since + len(self.data)


class Backlog:
    """One thread writes, any number read and wait."""

    def __init__(self, kept: int = KEPT) -> None:
        self.kept = kept
        self.total = 0
        self._data = bytearray()
        self._open = True
        self._grown = threading.Condition(threading.Lock())

    def keep(self, data: bytes) -> None:
        """Add what was written, and wake who waits."""
        with self._grown:
            self._data += data
            self.total += len(data)
            if len(self._data) > self.kept + SLACK:
                del self._data[: len(self._data) - self.kept]
            self._grown.notify_all()

    def close(self) -> None:
        """No more will come."""
        with self._grown:
            self._open = False
            self._grown.notify_all()

    def read(self, since: int, wait: float | None = None) -> Piece:
        """What there is from ``since`` on. ``wait``: seconds to wait when that is nothing yet; None not to wait.

        A character whose end is still to come is left for the next time. Raises RequestError for a place that was
        not reached yet.
        """
        with self._grown:
            check_place(since, self.total)
            if wait is not None:
                self._grown.wait_for(lambda: self._end() > since or not self._open, patience(wait))
            return self._piece(since)

    def _end(self) -> int:
        """The place up to which all is there that belongs together."""
        if not self._open:
            return self.total
        last = bytes(self._data[-3:])
        return self.total - len(last) + whole_end(last)

    def _piece(self, since: int) -> Piece:
        first, end = self.total - len(self._data), self._end()
        at = max(since, first)
        data = bytes(self._data[at - first : max(end, at) - first])
        if at > since:  # cut somewhere: not in the middle of a character
            skipped = whole_start(data)
            at, data = at + skipped, data[skipped:]
        return Piece(data, at, at - since, self._open)


def check_place(since: object, total: int) -> None:
    """Raises RequestError."""
    if isinstance(since, bool) or not isinstance(since, int):
        raise RequestError(f"could not read from {since!r}: it is not a number of bytes")
    if not 0 <= since <= total:
        raise RequestError(
            f"could not read from byte {since}: the job has written {total} so far",
            remedy="Read from 0, or from where the last reading ended.",
        )


def patience(wait: float) -> float | None:
    """Seconds as a condition takes them; no end to them is None. Raises RequestError."""
    if isinstance(wait, bool) or not isinstance(wait, int | float) or math.isnan(wait):
        raise RequestError(f"could not wait {wait!r} seconds: it is not a number of seconds")
    return None if math.isinf(wait) or wait > threading.TIMEOUT_MAX else max(0.0, wait)
