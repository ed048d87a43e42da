"""The directory of ours inside of a workspace while changes are applied: made, held, cleared away, and swept.

A lock on it says that an apply is under way. One that was killed leaves it: the next apply in that workspace removes
it, unless it may hold the only copy of something that was moved away. No link is followed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re

from stockade.sandbox import private
from stockade.sandbox.present import LIST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

TEMPORARY = ".stockade-"
DONE = ".done"
"""Ends the name of one that holds nothing any more that anybody needs."""
OURS = re.compile(r"\.stockade-[0-9a-f]{16}(\.done)?\Z")
STAGED = re.compile(r"new[0-9]+\Z")
"""What is built from a layer, and not in its place yet."""


def make(root: int) -> tuple[str, int]:
    """A new directory in ``root``: its name and a descriptor that holds it. Raises OSError."""
    for _attempt in range(private.ATTEMPTS):
        name = f"{TEMPORARY}{os.urandom(8).hex()}"
        os.mkdir(name, 0o700, dir_fd=root)
        try:
            folder = os.open(name, LIST, dir_fd=root)
        except FileNotFoundError:
            continue  # a sweep was faster
        if hold(root, name, folder):
            return name, folder
        os.close(folder)
    raise OSError(errno.EBUSY, "somebody removes what is made there", TEMPORARY)


def hold(root: int, name: str, folder: int) -> bool:
    """Lock what was just made. False when a sweep has it, or had it."""
    try:
        fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # no locks on this file system: then a sweep gets none either, and leaves it alone
    try:
        return os.path.samestat(os.fstat(folder), os.stat(name, dir_fd=root, follow_symlinks=False))
    except FileNotFoundError:
        return False


def clear(root: int, name: str, folder: int) -> None:
    """Remove it with what was moved away. What can't be removed is ours, closed to others, and named after us."""
    try:
        os.rename(name, name + DONE, src_dir_fd=root, dst_dir_fd=root)
        name += DONE
    except OSError:
        pass
    try:
        private.empty(folder)
        os.rmdir(name, dir_fd=root)
    except OSError:
        pass


def sweep(root: int, spared: Collection[str]) -> None:
    """Remove what applies left that were killed. ``spared``: names that are somebody else's business. Raises nothing."""
    try:
        names = [name for name in names_in(root) if OURS.match(name) and name not in spared]
    except OSError:
        return
    for name in names:
        try:
            remove_abandoned(root, name)
        except OSError:
            pass  # it is held, somebody else's, or gone


def names_in(root: int) -> list[str]:
    """``root`` may be a descriptor that only passes."""
    fd = os.open(".", LIST, dir_fd=root)
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


def remove_abandoned(root: int, name: str) -> None:
    folder = os.open(name, LIST, dir_fd=root)
    try:
        status = os.fstat(folder)
        if status.st_uid != os.geteuid() or status.st_mode & 0o777 != 0o700:
            return
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not name.endswith(DONE) and not all(map(STAGED.match, os.listdir(folder))):
            return  # what was moved away may be nowhere else
        private.empty(folder)
        os.rmdir(name, dir_fd=root)
    finally:
        os.close(folder)
