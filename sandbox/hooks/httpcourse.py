"""One request's course: how much time it has, how another thread ends it, and the two ways in which it can fail.

Needs no HTTP client.
"""

from __future__ import annotations

import socket
import threading
import time

from stockade.policies.errors import StockadeError


class HttpRefused(StockadeError):
    """The request was not sent: its target is not one that may be reached."""


class HttpFailed(StockadeError):
    """No answer that could be used came back. ``code`` is for programs: ``timed_out``, ``failed`` or ``stopped``."""

    def __init__(self, message: str, *, code: str = "failed", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.code = code


class Course:
    """The time that one request has, and how another thread ends it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end = time.monotonic() + seconds
        self.stopped = False
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()

    def left(self) -> float:
        """Seconds. Raises HttpFailed where there are none left, and when it was stopped."""
        if self.stopped:
            raise HttpFailed("it was stopped", code="stopped")
        rest = self.end - time.monotonic()
        if rest <= 0:
            raise self.over()
        return rest

    def over(self) -> HttpFailed:
        return HttpFailed(f"no answer within {self.seconds:g} s", code="timed_out")

    def cause_of(self, error: Exception) -> HttpFailed | None:
        """What a failed step comes from where that is the course itself."""
        if self.stopped:
            return HttpFailed("it was stopped", code="stopped")
        return self.over() if isinstance(error, TimeoutError) else None

    def stop(self) -> None:
        """End the request from another thread: what waits for the socket returns at once."""
        with self._lock:
            self.stopped = True
            if self._connection is not None:
                hang_up(self._connection)

    def watch(self, connection: socket.socket) -> None:
        with self._lock:
            self._connection = connection
            if self.stopped:
                hang_up(connection)

    def release(self) -> None:
        with self._lock:
            self._connection = None


def hang_up(connection: socket.socket) -> None:
    try:
        # The method of plain sockets: a TLS socket's own would wait for a lock that its reader holds.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        pass  # it is not connected any more
