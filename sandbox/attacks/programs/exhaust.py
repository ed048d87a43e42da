"""Exhaustion: what a program takes ends at the limits of its policy. Tried with small ones, in small steps."""

from __future__ import annotations

import mmap
import os
import signal
import time

from stockade.sandbox.attacks.toolbox import Given, any_of, attempt, call, done, each_refused

GROUP = "K resource exhaustion"
LIMITS, SIZED = "limit of the policy", "temporary directories with a size"
BOX = "limits"
MEMORY, TMP, FILE, FILES = 300 << 20, 8 << 20, 4 << 20, 200
"""What is tried; the policy of this box allows less of each."""


@attempt(LIMITS, box=BOX)
def much_memory(given: Given) -> object:
    """Take more memory than the policy grants, in one piece and in many."""
    try:
        return len(bytearray(MEMORY)) == MEMORY
    except MemoryError:
        pass
    pieces = []
    try:
        for _turn in range(MEMORY >> 22):
            pieces.append(bytearray(1 << 22))
    except MemoryError:
        return False
    return True


@attempt(
    LIMITS,
    box=BOX,
    allowed="limits.memory counts private memory: shared memory between processes is not bounded by it",
)
def shared_memory_past_the_limit(given: Given) -> object:
    """Take it as shared memory, which the limit does not count."""
    with mmap.mmap(-1, 128 << 20) as area:
        for place in range(0, 128 << 20, 1 << 20):
            area[place] = 1
    return True


@attempt(SIZED, box=BOX, control=lambda given: fill(f"{given.beside}/filler"))
def fill_temporary_directories(given: Given) -> object:
    """Fill /tmp, /var/tmp, /dev/shm, /run and HOME, each of which is memory"""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    tops = ("/tmp", "/var/tmp", "/dev/shm", "/run", os.environ.get("HOME", "/tmp"))  # noqa: S108
    return any_of(fill_in_pieces, tops)


@attempt("read-only mount", box=BOX, control=lambda given: fill(f"{given.beside}/filler"))
def fill_other_directories(given: Given) -> object:
    """Fill /, /dev and the mount points of covers, which are memory too"""
    tops = ("/", "/dev", "/home", "/root", "/mnt", f"{given.place}/vault", "/etc", "/proc")
    return any_of(fill_in_pieces, tops)


def fill(path: str, size: int = TMP) -> bool:
    with open(path, "wb") as file:
        for _turn in range(size >> 20):
            file.write(bytes(1 << 20))
    return True


def fill_in_pieces(top: str) -> bool:
    """Files below the limit on one file, so that it is the directory that is full."""
    for number in range(6):
        fill(f"{top}/filler-{number}", 1 << 20)
        fill(f"{top}/filler-{number}b", 1 << 20)
    return True


@attempt(LIMITS, box=BOX)
def large_file(given: Given) -> object:
    """Write a file that is larger than the policy grants."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    return fill("large", FILE)


@attempt(LIMITS, box=BOX)
def sparse_file(given: Given) -> object:
    """Make it large without writing (truncate, fallocate)."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open("sparse", "wb") as file:
        return each_refused(
            {
                "truncate": lambda: done(os.truncate, file.fileno(), FILE),
                "fallocate": lambda: done(os.posix_fallocate, file.fileno(), 0, FILE),
            }
        )


@attempt(LIMITS, box=BOX)
def many_files(given: Given) -> object:
    """Open more files than the policy grants."""
    made = []
    try:
        for _turn in range(FILES):
            made.append(os.open("/dev/null", os.O_RDONLY))
    finally:
        for fd in made:
            os.close(fd)
    return True


@attempt("pid namespace, ended with its run", box=BOX, facts=("processes",))
def outlive_the_run(given: Given) -> object:
    """Leave a process behind in a session of its own, deaf to signals."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            call("prctl", 15, given.token[-15:].encode(), 0, 0, 0)  # its name, by which it can be found
            time.sleep(3)
        os._exit(0)
    time.sleep(0.1)
    return False
