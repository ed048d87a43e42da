"""Which files a run wrote: two manifests of the writable roots, compared.

``take`` reads the trees (one stat per entry, no file is opened), ``changed`` is pure. Nothing is followed on
the way: no link, no mount. What could not be seen is said in the manifest, never left out silently, and is
never reported as created or deleted. A file counts as changed when its inode says so, so a program can't
hide a write by setting the time back: the change time is the kernel's.
"""

from __future__ import annotations

import os
import sys

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Row = tuple[int, int, int, int, int]
    Entries = dict[bytes, Row]

_DIRECTORY = 0o040000
_TYPE = 0o170000
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Manifest(Record):
    """What was under the roots at one moment."""

    entries: Entries
    """Path to (mode, size, mtime ns, inode, ctime ns); a directory keeps only its mode and inode."""
    unreadable: tuple[bytes, ...] = ()
    """Directories that could not be listed: what is below them is not in ``entries``."""
    complete: bool = True
    """False when the limit was reached: any number of entries may be missing."""


class WrittenFile(Record):
    """One entry that differs between two manifests."""

    path: str
    """Absolute, decoded like ``os.listdir`` does (``os.fsencode`` gives the exact bytes back)."""
    kind: str
    """``created``, ``changed`` or ``deleted``; a rename is a deletion and a creation."""


def take(roots: Sequence[str | bytes], *, limit: int = 1_000_000) -> Manifest:
    """Read the trees below ``roots`` (files or directories; a root that is a link is followed, nothing below is).

    A root that does not exist is simply not there. Never raises for what it finds: see the fields of the result.
    """
    entries: Entries = {}
    unreadable: list[bytes] = []
    walked: set[bytes] = set()
    complete = True
    for root in sorted({_absolute(root) for root in roots}):
        complete = root in walked or _take_root(root, entries, unreadable, walked, limit)
        if not complete:
            break
    return Manifest(entries, tuple(unreadable), complete)


def changed(before: Manifest, after: Manifest) -> list[WrittenFile]:
    """The differences, ordered by path. Pure.

    A directory is reported when it was created, deleted, replaced or got another mode, not when only an entry
    in it changed. Where a manifest is incomplete, only what both of them saw is compared.
    """
    old, new = before.entries, after.entries
    kinds = {path: "changed" for path, row in new.items() if old.get(path, row) != row}
    kinds.update((path, "created") for path in _absent_from(before, new))
    kinds.update((path, "deleted") for path in _absent_from(after, old))
    return [WrittenFile(os.fsdecode(path), kinds[path]) for path in sorted(kinds)]


def _absent_from(manifest: Manifest, entries: Entries) -> Iterator[bytes]:
    """The paths of ``entries`` of which ``manifest`` proves that they were not there."""
    if not manifest.complete:
        return
    unseen = tuple(path.rstrip(b"/") + b"/" for path in manifest.unreadable)
    for path in entries.keys() - manifest.entries.keys():
        if not path.startswith(unseen):
            yield path


def _absolute(root: str | bytes) -> bytes:
    path = os.fsencode(root)
    if not path.startswith(b"/"):  # else the current directory is not asked for: it may have been deleted
        path = os.path.join(os.getcwdb(), path)
    return path.rstrip(b"/") or b"/"


def _take_root(root: bytes, entries: Entries, unreadable: list[bytes], walked: set[bytes], limit: int) -> bool:
    """Add everything below one root; False when the limit was reached."""
    try:
        info = os.stat(root)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        unreadable.append(root)
        return True
    entries[root] = row_of(info)
    waiting = [root] if info.st_mode & _TYPE == _DIRECTORY else []
    while waiting:
        path = waiting.pop()
        walked.add(path)
        try:
            complete = _scan(path, path == root, info.st_dev, entries, waiting, limit)
        except OSError:
            unreadable.append(path)
            continue
        if not complete:
            return False
    return len(entries) <= limit


def row_of(info: os.stat_result) -> Row:
    """The row of an entry, as it stands in a manifest."""
    if info.st_mode & _TYPE == _DIRECTORY:
        return (info.st_mode, 0, 0, info.st_ino, 0)
    return (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ino, info.st_ctime_ns)


def _scan(path: bytes, is_root: bool, device: int, entries: Entries, waiting: list[bytes], limit: int) -> bool:
    """List one directory into ``entries`` and its directories into ``waiting``; False over the limit.

    The loop is the cost of the whole module: no calls but the stat, no objects but the row.
    """
    prefix = path if path.endswith(b"/") else path + b"/"
    coding, errors = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
    fd = _open_same(path, is_root, device, entries[path][3])
    try:
        with os.scandir(fd) as found:
            for entry in found:
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                key = prefix + entry.name.encode(coding, errors)
                mode = info.st_mode
                if mode & _TYPE == _DIRECTORY:
                    entries[key] = (mode, 0, 0, info.st_ino, 0)
                    if info.st_dev == device:
                        waiting.append(key)
                else:
                    entries[key] = (mode, info.st_size, info.st_mtime_ns, info.st_ino, info.st_ctime_ns)
                if len(entries) > limit:
                    return False
    finally:
        os.close(fd)
    return True


def _open_same(path: bytes, is_root: bool, device: int, inode: int) -> int:
    """Open the very directory whose entry was read; a link put in its place meanwhile is an ``OSError``."""
    fd = os.open(path, _OPEN & ~os.O_NOFOLLOW if is_root else _OPEN)
    info = os.fstat(fd)
    if (info.st_dev, info.st_ino) != (device, inode):
        os.close(fd)
        raise OSError("replaced while it was read")
    return fd
