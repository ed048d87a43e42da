"""A captured stream that keeps its head and tail in memory and the whole in a private file.

Nothing is written until a stream is longer than what is kept. The files lie in one directory (mode 0700) that goes
with its tool; what a process left that was killed is removed by the next one that spills in the same place.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import weakref

from stockade.policies.errors import RequestError
from stockade.sandbox import private
from stockade.sandbox.mounts import below
from stockade.sandbox.streams import CHUNK, Capture

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from stockade.sandbox.private import Private

KEPT = 64_000
"""Bytes of each stream that a result carries."""

MOST = 64 << 20
"""Bytes of each stream that are written to its file."""

AT_ONCE = 16
"""Reads of a full chunk in one turn of the supervisor's loop."""

PIPE = 1 << 18
"""Bytes that a pipe of a long stream is made to hold; a user has 64 MiB of them (fs.pipe-user-pages-soft)."""

PREFIX = "stockade-bash-"


class SpillPlace:
    """The directory of one tool's files: made when it is first needed, removed with ``close``. For many threads."""

    def __init__(self, parent: str | os.PathLike[str] | None = None) -> None:
        """``parent``: where the directory is made; a place for temporary files if None. Raises RequestError."""
        self.parent = os.path.realpath(parent) if parent is not None else ""
        if parent is not None and not os.path.isdir(self.parent):
            raise RequestError(f"could not use spill_dir {os.fspath(parent)!r}: it is not a directory")
        self._out_of: tuple[str, ...] = ()
        self._lock = threading.Lock()
        self._place: Private | None = None
        self._count = 0
        self._closed = False
        self._end: weakref.finalize[[Private, int], SpillPlace] | None = None

    def keep_out_of(self, writable: Iterable[str]) -> None:
        """Keep what is spilled where no command can change it. Raises RequestError for a place that was asked for."""
        self._out_of = tuple(writable)
        if self.parent and self._reached(self.parent):
            raise RequestError(
                f"could not use spill_dir {self.parent!r}: commands can write there, and change what is kept",
                remedy="Name a directory outside of what the policy lets them write.",
            )

    def _reached(self, path: str) -> bool:
        return any(below(path, top) for top in self._out_of)

    def open(self, name: str) -> tuple[str, int]:
        """A new file: its path, and a descriptor to write. Raises OSError."""
        with self._lock:
            if self._closed:
                raise FileNotFoundError(errno.ENOENT, "the tool is closed")
            if self._place is None:
                self._place = self._make()
                self._end = weakref.finalize(self, discard, self._place, os.getpid())
            self._count += 1
            path = f"{self._place.path}/{self._count}.{name}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            return path, os.open(path, flags, 0o600)

    def _make(self) -> Private:
        import tempfile

        usual = [os.path.realpath(each) for each in (tempfile.gettempdir(), "/var/tmp", "/tmp")]  # noqa: S108
        parent = self.parent or next((each for each in usual if not self._reached(each)), "")
        if not parent:
            raise OSError(errno.ENOENT, "commands can write every directory for temporary files")
        private.sweep(parent, PREFIX)
        return private.make(parent, PREFIX)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            end, self._end = self._end, None
        if end is not None:
            end()


def discard(place: Private, owner: int) -> None:
    """Remove a directory, when its place is closed, forgotten, or the process ends; a fork has no part in it."""
    os.close(place.fd)
    if owner == os.getpid():
        private.discard(place.path)


class Spill(Capture):
    """One stream of one call."""

    def __init__(self, fd: int, name: str, place: SpillPlace, kept: int = KEPT) -> None:
        super().__init__(fd, kept)
        self.kept = kept
        self.name, self.place = name, place
        self.path: str | None = None
        self.spilled = 0
        self.failure = ""
        """Why the file is not, or not wholly, there."""
        self._file = -1

    def handle(self, fd: int, events: int) -> None:
        for _turn in range(AT_ONCE):
            before = self.total
            if not self._read() or self.total - before < CHUNK:
                return

    def keep(self, data: bytes) -> None:
        if self.total <= self.kept < self.total + len(data):
            self._begin()
        super().keep(data)
        self._spill(data)

    def _begin(self) -> None:
        """The stream gets too long: until now all of it is in memory."""
        try:
            fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, PIPE)
        except OSError:
            pass  # it is a courtesy, or the stream was fed by hand
        try:
            self.path, self._file = self.place.open(self.name)
        except OSError as error:
            self.failure = (error.strerror or str(error)).lower()
            return
        self._spill(bytes(self._head + self._tail))

    def _spill(self, data: bytes) -> None:
        if self._file < 0 or self.spilled >= MOST:
            return
        view = memoryview(data)[: MOST - self.spilled]
        try:
            while view:
                written = os.write(self._file, view)
                self.spilled += written
                view = view[written:]
        except OSError as error:
            self.failure = (error.strerror or str(error)).lower()
            os.close(self._file)
            self._file = -1

    def _close(self) -> None:
        super()._close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def pieces(self) -> tuple[bytes, bytes]:
        """What is kept, before and after the missing middle, cut between characters; all and nothing without one."""
        from stockade.sandbox.bash.output import whole_end, whole_start

        self._trim()
        head, tail = bytes(self._head), bytes(self._tail)
        if self.total <= self.kept:
            return head + tail, b""
        return head[: whole_end(head)], tail[whole_start(tail) :]

    @property
    def data(self) -> bytes:
        head, tail = self.pieces()
        return head + tail
