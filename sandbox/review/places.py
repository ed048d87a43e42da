"""The directories of a run: a project and a home, made from seeds, and what became of them afterwards."""

from __future__ import annotations

import difflib
import os
import stat

from stockade.policies.record import Record
from stockade.sandbox import private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stockade.sandbox.review.canary import Seed

    Stamp = tuple[int, int, int, int, int]

MOST_ENTRIES = 20_000
MOST_FILE = 1 << 20
"""Bytes read of a file that was written."""
MOST_READ = 16 << 20
MOST_DIFF = 4000
QUIET = (".git/index",)
"""What even a look at the project rewrites."""
PAST = 1_700_000_000
"""When the files were read last, as their access times say: before they were written."""


class Change(Record):
    """One entry that is not as it was made."""

    path: str
    """Relative to the place."""
    kind: str
    before: bytes
    after: bytes


class Place:
    """One directory made of seeds. ``owner``: whose it is to be; None for the caller's own."""

    def __init__(self, path: str, owner: tuple[int, int] | None) -> None:
        self.path, self.owner = path, owner
        self.seeds: dict[str, Seed] = {}
        self.stamps: dict[str, Stamp] = {}
        self.folders: dict[str, tuple[int, int]] = {}

    def fill(self, seeds: Iterable[Seed]) -> None:
        """Make it as the seeds say, whatever a run made of it: what is as it was stays."""
        wanted = {each.path: each for each in seeds}
        if wanted != self.seeds or not self._mended():
            self._anew(wanted)
        self._rest()
        self.stamps = dict(entries(self.path))

    def _rest(self) -> None:
        """Set back the access times that reading moved."""
        for path in self.read_since():
            os.utime(f"{self.path}/{path}", (PAST, PAST + 1), follow_symlinks=False)

    def _anew(self, wanted: dict[str, Seed]) -> None:
        if os.path.lexists(self.path):
            private.remove(self.path)
        os.mkdir(self.path, 0o755)
        self.seeds = wanted
        folders = sorted({parent for path in wanted for parent in parents(path)})
        for each in folders:
            os.mkdir(f"{self.path}/{each}", 0o700 if each in (".ssh", ".aws") else 0o755)
        for seed in wanted.values():
            self._write(seed)
        for folder in ("", *folders):
            self._own(f"{self.path}/{folder}")
        self.folders = dict(directories(self.path))

    def _mended(self) -> bool:
        """Put right what differs; False where directories differ, which is left to a new start."""
        if not self.seeds or dict(directories(self.path)) != self.folders:
            return False
        now = dict(entries(self.path))
        for path in {*now, *self.stamps}:
            if now.get(path) == self.stamps.get(path):
                continue
            if path in now:
                os.unlink(f"{self.path}/{path}")
            if path in self.seeds:
                self._write(self.seeds[path])
        return True

    def _write(self, seed: Seed) -> None:
        path = f"{self.path}/{seed.path}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, seed.data)
            os.fchmod(fd, seed.mode)
            os.utime(fd, (PAST, PAST + 1))  # read before it was written: the next read moves the access time
            if self.owner is not None:
                os.fchown(fd, *self.owner)
        finally:
            os.close(fd)

    def _own(self, path: str) -> None:
        if self.owner is not None:
            os.chown(path, *self.owner)

    def read_since(self) -> set[str]:
        """Relative paths of seeds whose access time moved. To be asked before anything here is opened."""
        found = set()
        for path in self.seeds:
            try:
                status = os.lstat(f"{self.path}/{path}")
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode) and status.st_atime_ns != PAST * 1_000_000_000:
                found.add(path)
        return found

    def changes(self) -> list[Change]:
        """What was made, changed and removed, by path; directories alone do not count."""
        now = dict(entries(self.path))
        found, room = [], MOST_READ
        for path in sorted({*now, *self.stamps}):
            seed, stamp = self.seeds.get(path), now.get(path)
            if stamp == self.stamps.get(path) or path in QUIET:
                continue
            before = seed.data if seed is not None else b""
            after = content(f"{self.path}/{path}", min(room, MOST_FILE)) if stamp is not None else b""
            room -= len(after)
            if seed is not None and stamp is not None and after == before and same_mode(stamp, self.stamps[path]):
                continue
            kind = "deleted" if stamp is None else "created" if seed is None else "changed"
            found.append(Change(path, kind, before, after))
        return found

    def made_folders(self) -> list[str]:
        """Directories that were not there before."""
        return sorted(path for path, _what in directories(self.path) if path not in self.folders)

    def size(self) -> int:
        """Bytes on disk."""
        return sum(stamp[1] for _path, stamp in entries(self.path))


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def same_mode(one: Stamp, other: Stamp) -> bool:
    return one[0] == other[0]


def parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


def entries(top: str) -> Iterator[tuple[str, Stamp]]:
    """Everything below a directory but directories: relative path, and mode, size on disk, inode and times."""
    return ((path, stamp_of(status)) for path, status in walked(top) if not stat.S_ISDIR(status.st_mode))


def directories(top: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """The directories below one, with mode and owner."""
    return ((path, (status.st_mode, status.st_uid)) for path, status in walked(top) if stat.S_ISDIR(status.st_mode))


def walked(top: str) -> Iterator[tuple[str, os.stat_result]]:
    waiting, seen = [""], 0
    while waiting and seen < MOST_ENTRIES:
        folder = waiting.pop()
        for each in listed(f"{top}/{folder}", top):
            seen += 1
            path = f"{folder}/{each.name}" if folder else each.name
            try:
                status = each.stat(follow_symlinks=False)
            except OSError:
                continue  # it went away
            if stat.S_ISDIR(status.st_mode):
                waiting.append(path)
            yield path, status


def stamp_of(status: os.stat_result) -> Stamp:
    size = status.st_blocks * 512
    return status.st_mode, size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def listed(folder: str, top: str) -> list[os.DirEntry[str]]:
    """Its entries; one that its owner closed is opened up first, and one that can't be listed has none."""
    try:
        with os.scandir(folder) as listing:
            return list(listing)
    except PermissionError:
        pass
    except OSError:
        return []
    try:
        open_up(folder, top)
        with os.scandir(folder) as listing:
            return list(listing)
    except OSError:
        return []


def open_up(folder: str, top: str) -> None:
    """Let its owner list a directory. A run may be going on: what it swaps for a link to elsewhere is left as it is."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        place = f"/proc/self/fd/{fd}"
        if f"{os.readlink(place)}/".startswith(f"{os.path.realpath(top)}/"):
            os.chmod(place, 0o700)
    finally:
        os.close(fd)


def content(path: str, most: int) -> bytes:
    """The beginning of a file; a link's target; nothing of what is neither. No link is followed."""
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            return os.fsencode(os.readlink(path))
        if not stat.S_ISREG(status.st_mode):
            return b""
        if not status.st_mode & 0o400:
            os.chmod(path, stat.S_IMODE(status.st_mode) | 0o400)  # the run is over: nobody swaps it for a link
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, most) if most > 0 else b""
    except OSError:
        return b""
    finally:
        os.close(fd)


def difference(path: str, before: bytes, after: bytes, most: int = MOST_DIFF) -> str:
    """A unified diff, cut; of what is no text its sizes."""
    if before == after:
        return "its mode was changed"
    try:
        old, new = before.decode(), after.decode()
        if "\0" in old + new:
            raise ValueError
    except ValueError:
        return f"binary: {len(before)} bytes before, {len(after)} after"
    limit = 64 << 10
    lines = difflib.unified_diff(
        old[:limit].splitlines(), new[:limit].splitlines(),
        f"a/{path}" if before else "/dev/null", f"b/{path}" if after else "/dev/null", lineterm="", n=2,
    )  # fmt: skip
    text = "\n".join(lines)
    return text if len(text) <= most else f"{text[:most]}\n[cut]"
