"""The workspace as it is now, looked at from a descriptor of its root, against what it was before the run.

Every directory on a way is opened by its name without following a link, and has to be the one that was there
before. So nothing that another program puts in a place between two looks leads anywhere else.
"""

from __future__ import annotations

import os
import stat

from stockade.policies.record import Record
from stockade.sandbox.writes import row_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from stockade.sandbox.captured import Change
    from stockade.sandbox.operations import Operation
    from stockade.sandbox.writes import Row

PASS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Conflict(Record):
    """One path that is not as it was when the program started."""

    path: str
    """Absolute."""
    reason: str


class Meanwhile(Exception):
    """Somebody changed something since the run began. Never reaches a caller."""

    def __init__(self, path: bytes, reason: str) -> None:
        super().__init__(reason)
        self.path, self.reason = path, reason


class Site:
    """The workspace behind ``root``, and ``before``: its rows by path below it."""

    def __init__(self, root: int, before: Mapping[bytes, Row]) -> None:
        self.root, self.before = root, before
        self.device = os.fstat(root).st_dev

    def folder(self, path: bytes) -> int:
        """An O_PATH descriptor of a directory that was there before. Raises Meanwhile, OSError."""
        fd = os.open(".", PASS, dir_fd=self.root)
        passed = b""
        for part in path.split(b"/") if path else []:
            passed = passed + b"/" + part if passed else part
            try:
                inner = self.same_folder(fd, part, passed)
            finally:
                os.close(fd)
            fd = inner
        return fd

    def same_folder(self, parent: int, name: bytes, path: bytes) -> int:
        try:
            fd = os.open(name, PASS, dir_fd=parent)
        except (FileNotFoundError, NotADirectoryError):
            raise Meanwhile(path, "the directory is gone, or something else is in its place") from None
        status, row = os.fstat(fd), self.before.get(path)
        if row is None or status.st_ino != row[3] or status.st_dev != self.device:
            os.close(fd)
            raise Meanwhile(path, "another directory is in its place")
        return fd

    def row(self, path: bytes) -> Row | None:
        """What is at ``path`` now; None when there is nothing."""
        head, name = os.path.split(path)
        parent = self.folder(head)
        try:
            return row_of(os.stat(name or b".", dir_fd=parent, follow_symlinks=False))
        except FileNotFoundError:
            return None
        finally:
            os.close(parent)

    def link(self, path: bytes) -> bytes | None:
        """Where a link leads that is there now; None where there is none."""
        head, name = os.path.split(path)
        try:
            parent = self.folder(head)
        except (Meanwhile, OSError):
            return None
        try:
            return os.readlink(name, dir_fd=parent)
        except OSError:
            return None
        finally:
            os.close(parent)

    def content(self, path: bytes, most: int) -> bytes | None:
        """A regular file, or None when it has more than ``most`` bytes. Raises OSError, Meanwhile."""
        head, name = os.path.split(path)
        parent = self.folder(head)
        try:
            return content(parent, name, most)
        finally:
            os.close(parent)

    def conflicts(self, operation: Operation) -> list[Meanwhile]:
        """Everything an operation would replace or remove that is not as it was."""
        change = operation.change
        try:
            found = self.row(change.path)
            if found != change.before:
                return [Meanwhile(change.path, difference(change.before, found))]
            if change.before is None or not stat.S_ISDIR(change.before[0]) or operation.verb == "mode":
                return []
            head, name = os.path.split(change.path)
            parent = self.folder(head)
            try:
                return unlike(rows_below(parent, name, change.path), operation.inner)
            finally:
                os.close(parent)
        except Meanwhile as conflict:
            return [conflict]
        except OSError as error:
            return [Meanwhile(change.path, f"it can't be looked at: {(error.strerror or str(error)).lower()}")]


def unlike(found: Mapping[bytes, Row], inner: tuple[Change, ...]) -> list[Meanwhile]:
    """What lies in a directory that is to go, and what was there when the program saw it."""
    known = {each.path: each.before for each in inner if each.before is not None}
    return [
        Meanwhile(path, difference(known.get(path), found.get(path)))
        for path in sorted({*known, *found})
        if known.get(path) != found.get(path)
    ]


def difference(before: Row | None, found: Row | None) -> str:
    if before is None:
        return "it came into being during or after the run"
    return "it is gone" if found is None else "it was changed during or after the run"


def rows_below(parent: int, name: bytes, path: bytes) -> dict[bytes, Row]:
    """Everything below the directory ``name`` of ``parent``, under names that start with ``path``."""
    found: dict[bytes, Row] = {}
    waiting = [b""]
    while waiting:
        inner = waiting.pop()
        fd = open_below(parent, os.path.join(name, inner) if inner else name, LIST)
        try:
            for each in map(os.fsencode, os.listdir(fd)):
                status = os.stat(each, dir_fd=fd, follow_symlinks=False)
                below = os.path.join(inner, each) if inner else each
                found[path + b"/" + below] = row_of(status)
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(below)
        finally:
            os.close(fd)
    return found


def open_below(parent: int, path: bytes, flags: int) -> int:
    """Open ``path`` below a directory, no link followed on the way. Raises OSError."""
    head, name = os.path.split(path)
    fd = os.open(".", PASS, dir_fd=parent)
    try:
        for part in head.split(b"/") if head else []:
            inner = os.open(part, PASS, dir_fd=fd)
            os.close(fd)
            fd = inner
        return os.open(name or b".", flags, dir_fd=fd)
    finally:
        os.close(fd)


def content(parent: int, name: bytes, most: int) -> bytes | None:
    """What a regular file holds; None when it is more than ``most`` bytes."""
    fd = os.open(name, READ, dir_fd=parent)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return None
        parts = []
        while part := os.read(fd, 1 << 20):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)
