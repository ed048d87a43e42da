"""Whether a directory kept its name while bubblewrap looked it up there: it finds what is below an overlay by path.

A rename changes the time of change of what is renamed, and nobody can set that. So it is enough to look at those
directories of the way that somebody else may rename, before and after; most ways have none.
"""

from __future__ import annotations

import os
import stat
import time

from stockade.policies.record import Record

FRESH = 0.03
"""Seconds in which two changes may get the same time: the kernel's clock for files is coarse."""
PATIENCE = 5.0
"""Seconds for bubblewrap to mount the overlay."""


class Step(Record):
    """One directory on the way that somebody else may rename."""

    path: str
    identity: tuple[int, int, int]
    """Device, inode and time of change in nanoseconds."""


def note(path: str) -> tuple[Step, ...]:
    """The steps to ``path`` that have to be looked at again. Raises OSError."""
    found = exposed_steps(path)
    if any(is_fresh(step) for step in found):
        time.sleep(FRESH)
        found = exposed_steps(path)
    # Still being changed: never the same again.
    return tuple(step.replace(identity=(0, 0, 0)) if is_fresh(step) else step for step in found)


def exposed_steps(path: str) -> tuple[Step, ...]:
    found = []
    at, parent = "", os.lstat("/")
    for part in path.strip("/").split("/"):
        at += f"/{part}"
        status = os.lstat(at)
        if exposed(parent, status, os.geteuid()):
            found.append(Step(at, identity(status)))
        parent = status
    return tuple(found)


def exposed(parent: os.stat_result, status: os.stat_result, uid: int) -> bool:
    """Whether somebody but root and ``uid`` may rename an entry of ``parent`` (pure)."""
    trusted = (0, uid)
    if parent.st_uid not in trusted:
        return True
    if not parent.st_mode & 0o022:
        return False
    return not parent.st_mode & stat.S_ISVTX or status.st_uid not in trusted


def identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_dev, status.st_ino, status.st_ctime_ns


def is_fresh(step: Step) -> bool:
    return abs(time.time_ns() - step.identity[2]) < FRESH * 1e9


def moved(steps: tuple[Step, ...]) -> str:
    """The path of the first step that is not as it was; empty if all are."""
    for step in steps:
        try:
            if identity(os.lstat(step.path)) != step.identity:
                return step.path
        except OSError:
            return step.path
    return ""


def wait_mounted(box: int, dest: str) -> bool:
    """Wait until the box has its overlay; False when that takes too long. Raises ProcessLookupError when it has ended."""
    # While it is set up, what will be its root is one directory of it.
    places = {os.fsencode(dest), b"/newroot" + os.fsencode(dest)}
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            with open(f"/proc/{box}/mountinfo", "rb") as file:
                lines = [line.split(b" ") for line in file]
        except PermissionError:
            raise
        except OSError:  # EINVAL: it has ended, and nobody has waited for it yet
            raise ProcessLookupError(box) from None
        if any(unescape(line[4]) in places and line[line.index(b"-") + 1] == b"overlay" for line in lines):
            return True
        time.sleep(0.0005)
    return False


def unescape(field: bytes) -> bytes:
    r"""Blanks, newlines and backslashes stand as ``\040`` and so on."""
    head, *rest = field.split(b"\\")
    return head + b"".join(bytes([int(each[:3], 8)]) + each[3:] for each in rest)
