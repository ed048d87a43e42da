"""Processes as the kernel lists them in /proc: whose child is whose, and which namespaces one is in."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Collection, Sequence

    import psutil
else:
    import _signal as signal  # ``signal`` itself costs as much as enum


def has_cgroups() -> bool:
    """Whether the unified hierarchy of cgroups is at its usual place."""
    return os.access("/sys/fs/cgroup/cgroup.controllers", os.F_OK)


def namespace(pid: int | None, name: str) -> str:
    return os.readlink(f"/proc/{'self' if pid is None else pid}/ns/{name}")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is there, and somebody else's
    return True


def is_zombie(pid: int) -> bool:
    """Whether a process has ended, be it that its parent has not asked yet."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in (b"Z", b"X")
    except OSError:
        return True


def descendants(pid: int) -> list[int]:
    """Every process below ``pid``, by the kernel's own lists of children."""
    return crowd(pid, None)[0]


def crowd(pid: int, most: int | None) -> tuple[list[int], int]:
    """Every process below ``pid``, and how many threads they are. With ``most`` no more is listed than shows more."""
    if not os.path.exists("/proc/thread-self/children"):
        return psutil_crowd(pid)
    below, _own = family(pid)
    found, waiting = list(below), below
    threads = len(found)
    while waiting and (most is None or threads <= most):
        below, own = family(waiting.pop())
        found += below
        waiting += below
        threads += len(below) + max(own - 1, 0)
    return found, threads


def children(pid: int) -> list[int]:
    return family(pid)[0]


def family(pid: int) -> tuple[list[int], int]:
    """A process's children, and how many threads it has itself."""
    found: list[int] = []
    tasks: list[str] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        for task in tasks:
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        pass  # it ended meanwhile
    return found, len(tasks)


def psutil_crowd(pid: int) -> tuple[list[int], int]:
    """For kernels without CONFIG_PROC_CHILDREN: reads every process of the host."""
    import psutil

    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return [], 0
    return [process.pid for process in found], sum(map(threads_of, found))


def threads_of(process: psutil.Process) -> int:
    import psutil

    try:
        return int(process.num_threads())
    except psutil.Error:
        return 1  # it ended meanwhile


def tell(pids: Sequence[int], numbers: Sequence[int], top: int, inside: str) -> None:
    """Signal processes of a listing made just before, but nobody who has the number of one that ended meanwhile.

    ``top``: what they are all below. ``inside``: the pid namespace of their box, or empty.
    """
    tree = {top, *pids}
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        except OSError:
            pidfd = -1  # no more descriptors: then by number
        try:
            # Asked after it was opened: whoever has the number now is the one that would be signalled.
            for number in numbers if belongs(pid, tree, top, inside) else ():
                if pidfd < 0:
                    os.kill(pid, number)
                else:
                    signal.pidfd_send_signal(pidfd, number)
        except OSError:
            pass  # it ended meanwhile
        finally:
            if pidfd >= 0:
                os.close(pidfd)


def belongs(pid: int, tree: Collection[int], top: int, inside: str) -> bool:
    """Whether a process is in a box, or at least has its parent in a tree, or is of the session that ``top`` leads."""
    try:
        if inside and namespace(pid, "pid") == inside:
            return True
    except OSError:
        pass  # what executes a file that it can't read does not show its namespaces
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            _state, parent_, _group, session = file.read().rpartition(b") ")[2].split()[:4]
    except (OSError, ValueError):
        return False
    return int(parent_) in tree or int(session) == top


def own_children() -> list[int]:
    """Our children, adopted ones included."""
    try:
        with open("/proc/thread-self/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:
        # CONFIG_PROC_CHILDREN is off
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent(pid) == os.getpid()]


def parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def starts_namespace(pid: int) -> bool:
    """Whether a process is pid 1 of a pid namespace below ours."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"NSpid:"):
                    ids = line.split()[1:]
                    return len(ids) > 1 and ids[-1] == b"1"
    except OSError:
        pass
    return False
