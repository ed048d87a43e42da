"""Stand-ins for protected names that do not exist yet.

A name can be kept from being created in a writable workspace only by mounting something on it, and a mount
needs a directory to sit on. So the keeper makes an empty one and removes it when the last run that needs it
has ended. Runs share them: each holds a shared lock, and only who gets the exclusive one removes. An odd mode
marks ours, so that somebody's own empty directory is never taken for one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from stockade.policies.places import MODE, is_stand_in
from stockade.policies.record import Record
from stockade.sandbox.nofollow import open_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

ATTEMPTS = 1000


class Stub(Record):
    """A held stand-in: its parent directory, its name there, and a descriptor that carries the lock."""

    parent: int
    name: bytes
    fd: int


def hold(path: bytes, owner: tuple[int, int] | None = None) -> Stub:
    """Make the stand-in at ``path``, or share the one that is there. ``owner``: uid and gid that may look into it.

    No symlink is followed on the way. Raises OSError; ENOTDIR when something that is no directory has come
    into being there.
    """
    head, name = os.path.split(path)
    parent = open_plain(head)
    try:
        for _attempt in range(ATTEMPTS):
            fd = make_and_lock(parent, name, owner)
            if fd is not None:
                return Stub(parent, name, fd)
        raise OSError(errno.EBUSY, "the stand-in keeps changing", path)
    except BaseException:
        os.close(parent)
        raise


def make_and_lock(parent: int, name: bytes, owner: tuple[int, int] | None) -> int | None:
    """A locked descriptor of the stand-in, or None when another run removed it under us."""
    try:
        os.mkdir(name, MODE, dir_fd=parent)
        made = True
    except FileExistsError:
        made = False
    try:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except FileNotFoundError:
        return None
    # Somebody who owns the parent could have put another directory there meanwhile: only what looks like what was
    # made is changed: the umask took some of it, and the parent may have handed down its group.
    if made and stat.S_IMODE(os.fstat(fd).st_mode) & ~stat.S_ISGID | 0o011 == MODE:
        give_to(fd, owner)
        os.fchmod(fd, MODE)
    try:
        # Never wait: anybody who can open it could hold a lock, and the keeper serves other runs too.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        os.sched_yield()
        return None
    if not is_at(fd, parent, name):
        os.close(fd)
        return None
    return fd


def give_to(fd: int, owner: tuple[int, int] | None) -> None:
    """Let the identity of a dropped root list it: what walks the workspace would stumble over it otherwise."""
    if owner is not None:
        try:
            os.fchown(fd, *owner)
        except OSError:
            pass  # the file system knows no such owner: it can be passed by all the same


def is_at(fd: int, parent: int, name: bytes) -> bool:
    """Whether an open directory still is what the name leads to."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=parent, follow_symlinks=False))
    except FileNotFoundError:
        return False


def clear(paths: Iterable[bytes]) -> None:
    """Remove what a keeper that was killed left behind, unless another run needs it."""
    for path in paths:
        try:
            release(hold(path))
        except OSError:
            pass  # its directory is gone, or it is somebody's


def release(stub: Stub) -> None:
    """Let go; remove the stand-in if it is ours, empty, and no other run holds it."""
    try:
        # Two runs that end together must not each wait for the other: let go first, then try alone.
        fcntl.flock(stub.fd, fcntl.LOCK_UN)
        fcntl.flock(stub.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another run may have removed ours meanwhile, and one more made its own: that one is not locked by us.
        if is_stand_in(os.fstat(stub.fd).st_mode) and is_at(stub.fd, stub.parent, stub.name):
            os.rmdir(stub.name, dir_fd=stub.parent)
    except OSError:
        pass  # held by another run, or no longer empty: then it is somebody's
    finally:
        os.close(stub.fd)
        os.close(stub.parent)
