"""A run's own cgroup (version 2): where one can be made, its limits, what the kernel counted in it, its end.

Used by the keeper, which makes and removes them, and by ``probe``. Loaded only where the host has the unified
hierarchy. It divides what was delegated to us and never changes how a cgroup that is not ours passes its
controllers on. Decisions (``own_path``, ``choose``, ``settings``) are pure; the rest reads and writes small files.
"""

from __future__ import annotations

import errno
import os
import select

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = "/sys/fs/cgroup"
WANTED = ("memory", "pids")
PREFIX = "stockade"
LEAF = "stockade-keeper"
"""Where the keeper itself sits in a scope of its own: a cgroup that has processes can't pass controllers on."""

MONITOR = 1
"""bubblewrap's monitor is in the cgroup too, and is none of the program's processes."""

LAST_WAIT = 1000
"""Milliseconds that a cgroup gets to become empty once everything in it was killed."""

GONE = (errno.ENOENT, errno.ENODEV)


class Node(Record):
    """One cgroup between our own and the top of what we see."""

    path: str
    controllers: tuple[str, ...]
    passed: tuple[str, ...]
    """What it passes on to those below it."""
    writable: bool
    """Whether we may make one below it, and move ourselves there."""


class Choice(Record):
    """Where cgroups for runs are made; empty with the reason and a remedy where they can't be."""

    parent: str = ""
    problem: str = ""
    remedy: str = ""


IN_SCOPE = "Start it in a scope of its own: systemd-run --user --scope -- stockade ..."


def own_path(text: str) -> str | None:
    """Our cgroup of the unified hierarchy in the words of /proc/self/cgroup; None where it is out of sight."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        if number == "0" and rest.startswith(":/"):
            path = rest[1:]
            outside = path.startswith("/..") or path.endswith(" (deleted)")
            return None if outside else path
    return None


def choose(nodes: Sequence[Node]) -> Choice:
    """The nearest cgroup, from our own upwards, that can be divided. ``nodes`` are in that order."""
    for node in nodes:
        if node.writable and all(name in node.passed for name in WANTED):
            return Choice(node.path)
    if not any(name in node.controllers for node in nodes for name in WANTED):
        return Choice(
            problem="the memory and pids controllers are not in the unified hierarchy",
            remedy="Boot with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1).",
        )
    if any(all(name in node.passed for name in WANTED) for node in nodes):
        return Choice(problem="no cgroup with the memory and pids controllers is ours to divide", remedy=IN_SCOPE)
    return Choice(
        problem="no cgroup above this process passes the memory and pids controllers on",
        remedy="Let the one that divides this host (systemd, the container's init) delegate them.",
    )


def settings(memory: int | None, processes: int | None) -> tuple[tuple[str, str, bool], ...]:
    """Files to write, their content, and whether the kernel must have the file."""
    found: list[tuple[str, str, bool]] = []
    if memory is not None:
        found = [
            ("memory.max", str(memory), True),
            ("memory.swap.max", "0", False),  # absent where the kernel has no swap
            ("memory.oom.group", "1", True),
        ]
    if processes is not None:
        found.append(("pids.max", str(processes + MONITOR), True))
    return tuple(found)


def flat(text: str) -> dict[str, int]:
    """A file of names and numbers (memory.events, cpu.stat)."""
    words = [line.split() for line in text.splitlines()]
    return {line[0]: int(line[1]) for line in words if len(line) == 2 and line[1].isdigit()}


def read(path: str) -> str:
    """The content of a small file; empty when there is none, or no more."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(65536).decode("ascii", "replace")
    except OSError:
        return ""


def write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def look(root: str = ROOT, own: str | None = None) -> list[Node]:
    """Our cgroup and those above it. ``own``: its path below ``root``; by default what the kernel says."""
    path = own if own is not None else own_path(read("/proc/self/cgroup"))
    if path is None or not os.path.exists(f"{root}/cgroup.controllers"):
        return []
    nodes = []
    while True:
        place = root + path.rstrip("/")
        if os.path.isdir(place):
            nodes.append(node(place))
        if path == "/":
            return nodes
        path = os.path.dirname(path)


def node(place: str) -> Node:
    may = os.access(place, os.W_OK | os.X_OK) and os.access(f"{place}/cgroup.procs", os.W_OK)
    passed = tuple(read(f"{place}/cgroup.subtree_control").split())
    return Node(place, tuple(read(f"{place}/cgroup.controllers").split()), passed, may)


class Group:
    """The cgroup of one run."""

    def __init__(self, path: str) -> None:
        self.path = path

    def figures(self) -> dict[str, int]:
        """What the kernel counted so far. Names that it does not know are left out.

        ``oom``: how often the limit was reached with nothing left to reclaim; ``oom_kill``: processes that were
        killed for want of memory, ours or the host's; ``forks_refused``; ``cpu`` in microseconds; ``peak`` in bytes.
        """
        memory = flat(read(f"{self.path}/memory.events"))
        found = {name: memory[name] for name in ("oom", "oom_kill") if name in memory}
        refused = flat(read(f"{self.path}/pids.events")).get("max")
        spent = flat(read(f"{self.path}/cpu.stat")).get("usage_usec")
        peak = read(f"{self.path}/memory.peak").strip()
        more = (("forks_refused", refused), ("cpu", spent), ("peak", int(peak) if peak.isdigit() else None))
        return found | {name: value for name, value in more if value is not None}

    def remove(self) -> bool:
        """End what is left in it, and remove it. Whether it is gone."""
        return remove(self.path)


def remove(path: str) -> bool:
    """Kill everything in a cgroup of ours and remove it, within a second. Whether it is gone."""
    if rmdir(path):
        return True
    try:
        write(f"{path}/cgroup.kill", "1")
        wait_empty(path)
    except OSError as error:
        if error.errno not in GONE:  # ENOENT: a kernel below 5.14 has no cgroup.kill
            return False
    return rmdir(path)


def rmdir(path: str) -> bool:
    try:
        os.rmdir(path)
    except OSError as error:
        return error.errno in GONE
    return True


def wait_empty(path: str) -> None:
    """Until the kernel says that no living process is in it; zombies don't count."""
    with open(f"{path}/cgroup.events", "rb", buffering=0) as file:
        poll = select.poll()
        poll.register(file, select.POLLPRI)
        for _ in range(10):
            file.seek(0)
            if b"populated 0" in file.read(4096):
                return
            poll.poll(LAST_WAIT // 10)


class Groups:
    """Makes the cgroups of one keeper's runs, below ``parent``."""

    def __init__(self, parent: str) -> None:
        self.parent = parent
        self.owner = owner_name(os.getpid())
        self.made = 0

    def make(self, memory: int | None, processes: int | None) -> Group:
        """A cgroup with limits in bytes and processes. Raises OSError; then nothing is left of it."""
        self.made += 1
        path = f"{self.parent}/{self.owner}-{self.made}"
        os.mkdir(path)
        try:
            for name, value, needed in settings(memory, processes):
                if needed or os.path.exists(f"{path}/{name}"):
                    write(f"{path}/{name}", value)
        except OSError:
            rmdir(path)
            raise
        return Group(path)

    def sweep(self) -> None:
        """Remove what keepers that were killed have left. Never one of a keeper that lives, or of elsewhere."""
        for name in stale(os.listdir(self.parent), owner_name):
            remove(f"{self.parent}/{name}")


def owner_name(pid: int) -> str:
    """Names a process for good: its pid namespace, its pid and when it started. Another one never has it.

    One that has ended has another name, even if nobody has waited for it yet.
    """
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    start = fields[19] if len(fields) > 19 and fields[0] not in ("Z", "X") else "0"
    return f"{PREFIX}-{os.stat('/proc/self/ns/pid').st_ino}-{pid}-{start}"


def stale(names: Iterable[str], owner=owner_name) -> list[str]:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Those of ``names`` whose keeper is gone (pure, given ``owner``: the name a living pid would give now)."""
    found = []
    for name in names:
        words = name.split("-")
        if len(words) != 5 or words[0] != PREFIX or not all(word.isdigit() for word in words[1:]):
            continue
        now = owner(int(words[2]))
        same_namespace = now.split("-")[1] == words[1]
        if same_namespace and not name.startswith(f"{now}-"):
            found.append(name)
    return found


def open_groups(root: str = ROOT, own: str | None = None) -> Groups | None:
    """What this process can divide, with what others left there cleared away; None where there is nothing."""
    choice = choose(look(root, own))
    if not choice.parent:
        return None
    groups = Groups(choice.parent)
    try:
        groups.sweep()
    except OSError:
        return None
    return groups


def clear_away(path: str) -> None:
    """After the death of a keeper: remove the cgroup of its run, and others that it may have left."""
    if path:
        remove(path)
    open_groups()


def settle_in_scope(root: str = ROOT, own: str | None = None) -> bool:
    """In a scope that was delegated to this process alone: make room for runs beside it. Whether that worked."""
    path = own if own is not None else own_path(read("/proc/self/cgroup"))
    if path is None or PREFIX not in path:
        return False
    place = root + path
    try:
        os.mkdir(f"{place}/{LEAF}")
        write(f"{place}/{LEAF}/cgroup.procs", "0")
        write(f"{place}/cgroup.subtree_control", " ".join(f"+{name}" for name in WANTED))
    except OSError:
        return False
    return True
