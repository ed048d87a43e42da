"""Open a path that has no symlink in it, component by component.

A program in another box may exchange a directory for a link at any moment: what was looked at is what gets
opened, or nothing is. openat2(2) does it in one call, but Python has no name for it and ctypes costs milliseconds.
"""

from __future__ import annotations

import errno
import os
import stat


def open_plain(path: str | bytes) -> int:
    """An O_PATH descriptor of an absolute path. Raises OSError; ELOOP for a symlink in its last component.

    A symlink before that raises ENOTDIR, like any other thing that is no directory.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open("/", flags)
    try:
        for name in os.fsencode(path).split(b"/"):
            if name:
                inner = os.open(name, flags, dir_fd=fd)
                os.close(fd)
                fd = inner
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    except OSError as error:
        os.close(fd)
        error.filename = path
        raise
    return fd
