"""Which limits of a run are reached, as far as that can be seen from outside while it goes on.

Loaded only when a run lasts. Everything rests on the kernel's own counts, none on what the program says. What is
seen is that a limit was reached; whether something was then refused only a cgroup's counters tell.
"""

from __future__ import annotations

import os

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stockade.sandbox.evidence import Bounds

TICKS = os.sysconf("SC_CLK_TCK")
PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Row(Record):
    """One process of the box at one moment. Times are seconds."""

    pid: int
    began: int
    threads: int
    own: float
    waited: float
    """Of children that ended and were waited for."""


def parse_stat(pid: int, text: str) -> Row | None:
    """What /proc/PID/stat says (pure); None for one that is no more."""
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20:
        return None
    own, waited = (int(fields[at]) + int(fields[at + 1]) for at in (11, 13))
    return Row(pid, int(fields[19]), int(fields[17]), own / TICKS, waited / TICKS)


def at_once(first: Iterable[Row], second: Iterable[Row]) -> int:
    """How many threads surely were there at one moment between two readings, whatever came and went (pure)."""
    before = {(row.pid, row.began): row.threads for row in first}
    return sum(min(row.threads, before.get((row.pid, row.began), 0)) for row in second)


def full(blocks: int, free_blocks: int, files: int, free_files: int) -> bool:
    """Whether nothing more fits on a file system (pure). One without inode limits reports none at all."""
    return (blocks > 0 and free_blocks == 0) or (files > 0 and free_files == 0)


class LimitWatch:
    """Looks at one box, and remembers what was reached."""

    def __init__(self, bounds: Bounds, box: int, cgroup: str = "") -> None:
        self.bounds, self.box, self.cgroup = bounds, box, cgroup
        self.reached: dict[str, str] = {}
        """The policy's key, and what was seen."""
        self.cpu = 0.0
        self.held: list[tuple[str, int]] | None = None
        """The sized places: a descriptor keeps one alive after its box, so that it can be asked at the end."""

    def look(self, pids: Sequence[int]) -> None:
        """``pids``: what is below the box's first process at this moment."""
        everybody = (self.box, *pids)
        rows = rows_of(everybody)
        self.see_processes(rows)
        self.see_cpu(rows)
        self.see_files(everybody)
        self.see_places()

    def see_processes(self, rows: Sequence[Row]) -> None:
        most = self.bounds.processes
        if most is None or "limits.processes" in self.reached or sum(row.threads for row in rows) < most:
            return
        # While the list was read some ended and others began: only those are counted that outlasted the reading.
        count = at_once(rows, rows_of([row.pid for row in rows]))
        if count >= most:
            self.reached["limits.processes"] = f"{count} processes and threads at once"

    def see_cpu(self, rows: Sequence[Row]) -> None:
        most = self.bounds.cpu
        if most is None:
            return
        spent = self.counted_cpu()
        self.cpu = max(self.cpu, spent if spent is not None else sum(row.own + row.waited for row in rows))
        if self.cpu >= most:
            self.reached["limits.cpu"] = f"{self.cpu:.2f} s of processor time"

    def counted_cpu(self) -> float | None:
        """What the kernel counted for the whole run; None where it has no cgroup."""
        if not self.cgroup:
            return None
        from stockade.sandbox import cgroup

        spent = cgroup.flat(cgroup.read(f"{self.cgroup}/cpu.stat")).get("usage_usec")
        return None if spent is None else spent / 1_000_000

    def see_files(self, pids: Iterable[int]) -> None:
        most = self.bounds.open_files
        if most is None or "limits.open_files" in self.reached:
            return
        for pid in pids:
            try:
                # The size of this directory is the number of open descriptors, from Linux 6.2 on; 0 before.
                count = os.stat(f"/proc/{pid}/fd").st_size
            except OSError:
                continue  # it ended meanwhile
            if count >= most:
                self.reached["limits.open_files"] = f"{count} open in one process"
                return

    def see_places(self) -> None:
        if self.held is None:
            self.hold()
        for place, fd in self.held or ():
            info = os.fstatvfs(fd)
            if full(info.f_blocks, info.f_bfree, info.f_files, info.f_ffree):
                size = info.f_blocks * info.f_frsize >> 10
                self.reached.setdefault("limits.tmp", f"{place} with its {size} KiB was full")

    def hold(self) -> None:
        """Open the sized places, once the box is set up: before that its root is still the host's."""
        held: list[tuple[str, int]] = []
        top = -1
        try:
            top = os.open(f"/proc/{self.box}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            if os.path.samestat(os.fstat(top), os.stat("/")):
                return
            for place in self.bounds.places:
                held.append((place, open_inside(top, place)))
        except OSError:  # not set up yet, or gone: the next look tries again
            for _place, fd in held:
                os.close(fd)
            return
        finally:
            if top >= 0:
                os.close(top)
        self.held = held

    def close(self) -> None:
        """A last look at the places, and let go of them."""
        if self.held is None:  # the box is gone: its pid may be another's by now
            return
        self.see_places()
        for _place, fd in self.held:
            os.close(fd)
        self.held = []


def open_inside(top: int, path: str) -> int:
    """A directory below ``top``. A link on the way, which would lead to a place of the host, is an OSError."""
    fd = os.dup(top)
    try:
        for name in path.strip("/").split("/"):
            outer, fd = fd, os.open(name, PATH, dir_fd=fd)
            os.close(outer)
    except OSError:
        os.close(fd)
        raise
    return fd


def rows_of(pids: Iterable[int]) -> list[Row]:
    found = []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
                row = parse_stat(pid, file.read(4096).decode("utf-8", "replace"))
        except OSError:
            continue
        if row is not None:
            found.append(row)
    return found
