"""How planning looks at a file system. ``HostTree`` is the real one; tests give a dictionary."""

from __future__ import annotations

import os
import stat

from stockade.policies.errors import StockadeError
from stockade.policies.places import is_stand_in
from stockade.policies.record import Record


class Node(Record):
    """What a name is, a symlink not followed: ``dir``, ``file``, ``link``, ``socket`` or ``other``."""

    kind: str
    mode: int
    uid: int


class HostTree:
    """The file system of this host, as this process sees it."""

    def node(self, path: str) -> Node | None:
        """The object at ``path``; None when there is none, it can't be seen, or another run will take it away."""
        try:
            status = os.lstat(path)
        except OSError:
            return None
        if is_stand_in(status.st_mode):
            return None
        return Node(kind_of(status.st_mode), stat.S_IMODE(status.st_mode), status.st_uid)

    def may_read(self, path: str) -> bool:
        """Whether this process can read a file, or list or enter a directory, access lists included."""
        return os.access(path, os.R_OK, effective_ids=True) or (
            os.access(path, os.X_OK, effective_ids=True) and os.path.isdir(path)
        )

    def readlink(self, path: str) -> str:
        return os.readlink(path)

    def names(self, path: str) -> list[str]:
        """Entries of a directory, sorted; none when it can't be read."""
        try:
            return sorted(os.listdir(path))
        except OSError:
            return []

    def real(self, path: str) -> str:
        """``path`` with every symlink resolved as far as it exists."""
        return real_path(path)

    def text(self, path: str) -> str:
        """The first 64 KiB of a small file; empty when it can't be read."""
        try:
            with open(path, "rb") as file:
                return file.read(65_536).decode("utf-8", "surrogateescape")
        except OSError:
            return ""


def real_path(path: str) -> str:
    """``os.path.realpath``. Raises StockadeError where something changes a component while it is looked at."""
    try:
        return os.path.realpath(path)
    except OSError as error:
        raise StockadeError(
            f"could not follow {path!r}: {(error.strerror or str(error)).lower()}",
            remedy="Something changes it at this moment; run again when nothing else works there.",
        ) from None


def kind_of(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "dir"
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISLNK(mode):
        return "link"
    return "socket" if stat.S_ISSOCK(mode) else "other"
