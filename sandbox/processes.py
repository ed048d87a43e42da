"""Processes as the kernel lists them in /proc: whose child is whose, and which namespaces one is in."""

from __future__ import annotations

import os


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
    if not os.path.exists("/proc/thread-self/children"):
        return psutil_descendants(pid)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children(waiting.pop())
        found += below
        waiting += below
    return found


def children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        pass  # it ended meanwhile
    return found


def psutil_descendants(pid: int) -> list[int]:
    """For kernels without CONFIG_PROC_CHILDREN: reads every process of the host."""
    import psutil

    try:
        return [process.pid for process in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


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
