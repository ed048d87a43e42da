"""The program's three streams: fed and drained without ever blocking, kept within a cap."""

from __future__ import annotations

import errno
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Stream(Protocol):
        """What the supervisor's loop polls."""

        def interest(self) -> list[tuple[int, int]]:
            """Descriptors and poll events that it waits for now; none when it is finished."""

        def handle(self, fd: int, events: int) -> None:
            """One of them is ready."""

        def finish(self, until: float | None = None) -> None:
            """The program is gone: take what is left, and close.

            What is left is what its pipe still holds: a survivor of an unconfined run could go on writing for
            ever. ``until`` (of ``time.monotonic``) bounds the wait for a reader of the caller's; None: no bound.
            """


CHUNK = 1 << 16
MOST_IN_PIPE = 1 << 20
"""What a program can make its pipe hold (fs.pipe-max-size)."""


def open_pipe() -> tuple[int, int]:
    """A pipe of a program's. It may open it anew (/dev/stdout), also under another uid than ours.

    Its mode lets nobody else in: a pipe has no name, and through /proc only those reach it that may trace who has it.
    """
    read, write = os.pipe()
    if os.geteuid() == 0:
        os.fchmod(write, 0o666)
    return read, write


class Capture:
    """Reads a pipe to its end; keeps the first and the last half of ``cap`` bytes, and counts them all."""

    def __init__(self, fd: int, cap: int | None) -> None:
        self.fd = fd
        self.total = 0
        self._half = None if cap is None else (cap + 1) // 2
        self._rest = 0 if cap is None else cap // 2
        self._head = bytearray()
        self._tail = bytearray()
        os.set_blocking(fd, False)

    def interest(self) -> list[tuple[int, int]]:
        return [(self.fd, select.POLLIN)] if self.fd >= 0 else []

    def handle(self, fd: int, events: int) -> None:
        self._read()

    def finish(self, until: float | None = None) -> None:
        most = self.total + MOST_IN_PIPE
        while self.fd >= 0 and self.total < most and self._read():
            pass
        self._close()

    def _read(self) -> bool:
        try:
            data = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._close()
            return False
        self.keep(data)
        return True

    def keep(self, data: bytes) -> None:
        """Count ``data`` and keep what the cap has room for."""
        self.total += len(data)
        if self._half is None:
            self._head += data
            return
        room = self._half - len(self._head)
        self._head += data[:room] if room > 0 else b""
        self._tail += data[max(room, 0) :]
        if len(self._tail) > self._rest + (CHUNK << 2):
            self._trim()

    def _trim(self) -> None:
        if len(self._tail) > self._rest:
            del self._tail[: len(self._tail) - self._rest]

    def _close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @property
    def data(self) -> bytes:
        self._trim()
        return bytes(self._head + self._tail)

    @property
    def truncated(self) -> bool:
        return self.total > len(self.data)


class Feed:
    """Writes given bytes into a pipe; a program that does not read them is no error."""

    def __init__(self, fd: int, data: bytes) -> None:
        self.fd = fd
        self._data = memoryview(data)
        os.set_blocking(fd, False)
        self.handle(fd, 0)

    def interest(self) -> list[tuple[int, int]]:
        return [(self.fd, select.POLLOUT)] if self.fd >= 0 else []

    def handle(self, fd: int, events: int) -> None:
        try:
            while self._data:
                self._data = self._data[os.write(self.fd, self._data[:CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            pass
        self.finish()

    def finish(self, until: float | None = None) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class FileFeed:
    """Feeds a file of the caller's by a pipe, and leaves the caller's place in it where the program stopped reading.

    The caller's descriptor itself would let the program open the file anew for writing (/proc/self/fd/0), and
    change its mode, whatever it was opened for.
    """

    def __init__(self, source: int) -> None:
        self.source = source
        self.read, self.fd = open_pipe()
        self._first = self._place = os.lseek(source, 0, os.SEEK_CUR)
        self._data = b""
        os.set_blocking(self.fd, False)

    def interest(self) -> list[tuple[int, int]]:
        return [(self.fd, select.POLLOUT)] if self.fd >= 0 else []

    def handle(self, fd: int, events: int) -> None:
        self._data = self._data or os.pread(self.source, CHUNK, self._place)
        try:
            written = os.write(self.fd, self._data)
        except BlockingIOError:
            return
        self._place += written
        self._data = self._data[written:]
        if not written:
            self._end()

    def finish(self, until: float | None = None) -> None:
        self._end()
        if self.read >= 0:
            # The program can write into its own pipe: what waits there may be more than was fed.
            os.lseek(self.source, max(self._first, self._place - waiting(self.read)), os.SEEK_SET)
            os.close(self.read)
            self.read = -1

    def _end(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


BROKEN = (errno.EPIPE, errno.EIO, errno.ECONNRESET, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A relay that can't go on; the program meets a closed pipe."""


class Relay:
    """Copies between a descriptor of the caller's and a pipe of the program's.

    Used where the caller's own descriptor must not be handed on: a socket would carry data out of the
    box. ``ours`` says which of the two is the pipe, and is closed at the end; the caller's never is.
    """

    def __init__(self, source: int, target: int, *, ours: int) -> None:
        self.source = source
        self.target = target
        self.ours = ours
        self._pending = b""
        self._open = True

    def interest(self) -> list[tuple[int, int]]:
        if not self._open:
            return []
        return [(self.target, select.POLLOUT)] if self._pending else [(self.source, select.POLLIN)]

    def handle(self, fd: int, events: int) -> None:
        try:
            if self._pending:
                self._pending = self._pending[os.write(self.target, self._pending[:4096]) :]
                return
            self._pending = os.read(self.source, CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno not in BROKEN:
                raise
            self._pending = b""
        if not self._pending:
            self._close()

    def finish(self, until: float | None = None) -> None:
        """Pass on what the program left in its pipe; nothing more is read from the caller."""
        if self._open and self.ours == self.source:
            os.set_blocking(self.source, False)
            for _read in range(1 + MOST_IN_PIPE // CHUNK):
                while self._open and self._pending and writable(self.target, until):
                    self.handle(self.target, select.POLLOUT)
                if self._pending or not self._open:
                    break  # nobody takes it
                self.handle(self.source, select.POLLIN)
                if not self._pending:
                    break  # the pipe is empty
        self._close()

    def _close(self) -> None:
        if self._open:
            os.close(self.ours)
            self._open = False


def waiting(pipe: int) -> int:
    """Bytes in a pipe that nobody has read."""
    import fcntl
    import termios

    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def writable(fd: int, until: float | None) -> bool:
    """Wait until something can be written; False when that did not come about in time."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(None if until is None else max(0.0, until - time.monotonic()) * 1000))
