"""A private directory for what runs leave us: made, held, and removed whatever a program left in it.

Nobody but its owner can enter it, and a lock on it says that somebody still needs it: what a process left that was
killed together with its keeper is swept by the next one. Nothing here follows a link, and no tree is too deep.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from stockade.policies.record import Record

PREFIX = "stockade-changes-"
ATTEMPTS = 100
NEEDED = 5
"""Descriptors that ``remove`` has open at once, and one more."""
SPARE = "moved-"
"""Deep directories are brought up under such names to be emptied: no path is ever longer than two names."""


class Private(Record):
    """A directory of mode 0700 and the descriptor that holds it."""

    path: str
    fd: int


def make(parent: str, prefix: str = PREFIX) -> Private:
    """A new private directory in ``parent``, whose name begins with ``prefix``. Raises OSError."""
    for _attempt in range(ATTEMPTS):
        path = f"{parent}/{prefix}{os.urandom(8).hex()}"
        os.mkdir(path, 0o700)
        try:
            fd = hold(path)
        except OSError:
            os.rmdir(path)
            raise
        if fd is not None:
            return Private(path, fd)
    raise OSError(errno.EBUSY, "somebody removes what is made there", parent)


def room_to_remove() -> None:
    """Raises OSError where too few descriptors are left to remove again what is to be made now."""
    made: list[int] = []
    try:
        for _each in range(NEEDED):
            made.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    finally:
        for fd in made:
            os.close(fd)


def hold(path: str) -> int | None:
    """A locked descriptor of a directory just made; None when a sweep was faster."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.lstat(path)):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return None


def sweep(parent: str, prefix: str = PREFIX) -> None:
    """Remove what nobody holds any more. Raises nothing: what can't be removed is tried again next time."""
    try:
        names = [name for name in os.listdir(parent) if is_ours(name, prefix)]
    except OSError:
        return
    for name in names:
        try:
            remove_abandoned(f"{parent}/{name}")
        except OSError:
            pass  # it is held, somebody else's, or gone


def is_ours(name: str, prefix: str) -> bool:
    """Whether ``make`` gives such names."""
    rest = name.removeprefix(prefix)
    return len(name) - len(rest) == len(prefix) and len(rest) == 16 and set(rest) <= set("0123456789abcdef")


def remove_abandoned(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_uid == os.geteuid():
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(path)
    finally:
        os.close(fd)


def discard(path: str) -> None:
    """``remove``, where nothing can be done about a failure."""
    try:
        remove(path)
    except OSError:
        pass  # it is gone already


def remove(path: str) -> None:
    """Remove a directory that only we can change, with all that is in it. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        empty(fd)
    finally:
        os.close(fd)
    os.rmdir(path)


def empty(top: int) -> None:
    """Remove everything in an open directory: its directories are emptied into it until there are none."""
    serial = 0
    while names := os.listdir(top):
        for name in names:
            if is_directory(name, top):
                serial = dissolve(top, name, serial)
            else:
                os.unlink(name, dir_fd=top)


def dissolve(top: int, name: str, serial: int) -> int:
    """Remove one directory of ``top``; the directories in it become entries of ``top``. Returns the next number."""
    inner = enter(top, name)
    try:
        for each in os.listdir(inner):
            if not is_directory(each, inner):
                os.unlink(each, dir_fd=inner)
                continue
            # Its entry for the parent changes with the move: that takes the right to write it.
            open_up(each, inner)
            serial = free_number(top, serial)
            os.rename(each, f"{SPARE}{serial}", src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
    return serial


def free_number(top: int, serial: int) -> int:
    while True:
        serial += 1
        try:
            os.stat(f"{SPARE}{serial}", dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            return serial


def enter(top: int, name: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=top)
    except PermissionError:
        open_up(name, top)
        return os.open(name, flags, dir_fd=top)
    if os.fstat(fd).st_mode & 0o700 != 0o700:
        os.fchmod(fd, 0o700)
    return fd


def open_up(name: str, top: int) -> None:
    """Give its owner every right on a directory: on what was opened, whatever the name leads to by then."""
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)


def is_directory(name: str, top: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode)
