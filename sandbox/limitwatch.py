"""Which limits of a run are reached, as far as that can be seen from outside while it goes on.

Loaded only when a run lasts. Everything rests on the kernel's own counts, none on what the program says. What is
seen is that a limit was reached; whether something was then refused only a cgroup's counters tell.
"""

from __future__ import annotations

import os

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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


def unclaimed(before: Mapping[tuple[int, int], Row], rows: Iterable[Row]) -> float:
    """Seconds of processes that ended since an earlier look and that nobody was given when they did (pure).

    Whoever is waited for leaves its times to its parent; one that nobody waits for (its parent ignores SIGCHLD) takes
    them along. What others gained meanwhile is taken off, whoever they had it from: never too much is counted.
    """
    after = {(row.pid, row.began): row for row in rows}
    ended = sum(row.own + row.waited for key, row in before.items() if key not in after)
    gained = sum(row.waited - (before[key].waited if key in before else 0.0) for key, row in after.items())
    return max(0.0, ended - gained)


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
        self.before: dict[tuple[int, int], Row] = {}
        self.unclaimed = 0.0
        self.held: list[tuple[str, int]] | None = None
        """The sized places: a descriptor keeps one alive after its box, so that it can be asked at the end."""

    def look(self, pids: Sequence[int]) -> None:
        """``pids``: what is below the box's first process at this moment."""
        everybody = (self.box, *pids)
        rows = self.rows(everybody)
        self.see_processes(rows)
        self.see_cpu(rows)
        self.see_files(everybody)
        self.see_places()

    def rows(self, everybody: Sequence[int]) -> list[Row]:
        """Children before their parents where times are added up: one that ends meanwhile is then seen to be waited for.

        First those of the look before: the kernel's list of children may leave one out while others end.
        """
        if self.bounds.cpu is None or self.cgroup:
            return rows_of(everybody)
        listed = set(everybody)
        again = rows_of(pid for pid, _began in self.before if pid not in listed)
        # A number may be somebody else's by now.
        return [*(row for row in again if (row.pid, row.began) in self.before), *rows_of(reversed(everybody))]

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
        if spent is None:
            spent = self.added_up(rows)
        self.cpu = max(self.cpu, spent)
        if self.cpu >= most:
            self.reached["limits.cpu"] = f"{self.cpu:.2f} s of processor time"

    def added_up(self, rows: Sequence[Row]) -> float:
        """What all have used, and those that ended, as far as they were seen."""
        self.unclaimed += unclaimed(self.before, rows)
        self.before = {(row.pid, row.began): row for row in rows}
        return self.unclaimed + sum(row.own + row.waited for row in rows)

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
