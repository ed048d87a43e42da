"""What a program did to an overlay workspace, read from the layer that took its writes.

``scan`` reads the layer, once nothing runs in it any more; ``compare`` is pure and says what differs from the
workspace as it was before. Nothing here looks at the workspace itself, opens a file, or follows a link.
"""

from __future__ import annotations

import bisect
import os
import stat

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from stockade.sandbox.writes import Row

OPAQUE, WHITEOUT = "user.overlay.opaque", "user.overlay.whiteout"
MOST = 1_000_000
LONGEST = 3900
"""Bytes of a path below the workspace; what lies deeper can't be named by a path."""


class Entry(Record):
    """One entry of the layer."""

    kind: str
    """``file``, ``dir``, ``link``, ``fifo``, ``socket``, ``device`` or ``whiteout`` (deleted)."""
    mode: int = 0
    """Permission bits, with set-id and sticky."""
    size: int = 0
    mtime: int = 0
    """Nanoseconds."""
    target: bytes = b""
    """Where a link leads."""
    opaque: bool = False
    """A directory that shows nothing of the one below it: it was deleted and made anew."""


class Scan(Record):
    """A layer, by path below the workspace; its root is ``b""``."""

    entries: dict[bytes, Entry]
    unreadable: tuple[bytes, ...] = ()
    """What could not be read: too deep, too many, or not ours."""


class Change(Record):
    """One entry that is not as it was."""

    path: bytes
    """Below the workspace."""
    kind: str
    """``created``, ``changed`` or ``deleted``."""
    before: Row | None
    """Its row in the manifest (``writes``); None when there was none."""
    after: Entry | None
    """None when it is gone."""


def scan(layer: str, *, limit: int = MOST) -> Scan:
    """Read a layer that nobody writes any more. Opens up directories that the program closed to its owner."""
    top = os.fsencode(layer)
    entries: dict[bytes, Entry] = {b"": entry_of(top, os.lstat(top))}
    unreadable: list[bytes] = []
    waiting = [b""]
    while waiting:
        folder = waiting.pop()
        try:
            if len(folder) > LONGEST or len(entries) > limit:
                raise OSError(folder)
            for name, entry in listed(os.path.join(top, folder) if folder else top):
                path = folder + b"/" + name if folder else name
                entries[path] = entry
                if entry.kind == "dir":
                    waiting.append(path)
        except OSError:
            unreadable.append(folder)
    return Scan(entries, tuple(unreadable))


def listed(folder: bytes) -> Iterator[tuple[bytes, Entry]]:
    with os.scandir(folder) as found:
        for each in found:
            status = each.stat(follow_symlinks=False)
            yield each.name, entry_of(each.path, status)


def entry_of(path: bytes, status: os.stat_result) -> Entry:
    mode, kind = stat.S_IMODE(status.st_mode), kind_of(status)
    if kind == "dir":
        if mode & 0o700 != 0o700:
            os.chmod(path, 0o700)  # of ours; what the program saw is kept here
        return Entry("dir", mode, mtime=status.st_mtime_ns, opaque=attribute(path, OPAQUE) == b"y")
    if kind == "file" and status.st_size == 0 and attribute(path, WHITEOUT) is not None:
        return Entry("whiteout")
    target = os.readlink(path) if kind == "link" else b""
    return Entry(kind, mode, status.st_size, status.st_mtime_ns, target)


def kind_of(status: os.stat_result) -> str:
    """The kind of an entry; a character device 0/0 is how an overlay notes a deletion."""
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
        return "whiteout"
    return KIND_OF[stat.S_IFMT(status.st_mode)]


KIND_OF = {
    stat.S_IFDIR: "dir", stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device", stat.S_IFBLK: "device",
}  # fmt: skip


def attribute(path: bytes, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError:
        return None


def compare(
    before: Mapping[bytes, Row], layer: Mapping[bytes, Entry], *, ignored: Collection[bytes] = (), root_mode: int
) -> list[Change]:
    """What the program changed, parents before children (pure).

    ``before`` is the workspace by path below it; ``ignored`` are stand-ins of ours in the layer; ``root_mode`` is
    what its root was given. A directory that was only passed on the way to a change is none.
    """
    changes: dict[bytes, Change] = {}
    ordered = sorted(before)
    anew: set[bytes] = set()
    if layer[b""].mode != root_mode:
        changes[b""] = Change(b"", "changed", before.get(b""), layer[b""])
    for path in sorted(layer.keys() - {b"", *ignored}, key=parts):
        entry = layer[path]
        if entry.opaque or (entry.kind == "dir" and os.path.dirname(path) in anew):
            anew.add(path)  # the layer marks only the topmost one
        for change in entry_changes(path, entry.replace(opaque=path in anew), before, ordered, layer):
            changes[change.path] = change
    return [changes[path] for path in sorted(changes, key=parts)]


def entry_changes(
    path: bytes, entry: Entry, before: Mapping[bytes, Row], ordered: list[bytes], layer: Mapping[bytes, Entry]
) -> Iterator[Change]:
    row = before.get(path)
    was_directory = row is not None and stat.S_ISDIR(row[0])
    if entry.kind == "whiteout":
        yield Change(path, "deleted", row, None)
        yield from gone(below(ordered, path), before)
    elif entry.kind == "dir" and was_directory and row is not None:
        if entry.opaque:
            yield from gone((each for each in below(ordered, path) if each not in layer), before)
        if entry.opaque or entry.mode != stat.S_IMODE(row[0]):
            yield Change(path, "changed", row, entry)
    else:
        yield Change(path, "created" if row is None else "changed", row, entry)
        if was_directory:
            yield from gone((each for each in below(ordered, path) if each not in layer), before)


def gone(paths: Iterator[bytes], before: Mapping[bytes, Row]) -> Iterator[Change]:
    return (Change(path, "deleted", before[path], None) for path in paths)


def below(ordered: list[bytes], path: bytes) -> Iterator[bytes]:
    """Every path of a sorted list that lies below ``path``."""
    prefix = path + b"/" if path else b""
    at = bisect.bisect_left(ordered, prefix)
    while at < len(ordered) and ordered[at].startswith(prefix):
        if ordered[at] != path:
            yield ordered[at]
        at += 1


def parts(path: bytes) -> list[bytes]:
    """The order in which what lies in a directory directly follows it."""
    return path.split(b"/") if path else []
