"""Stockade's own files: a directory that only we can write, read and replaced without following anything.

What is stored decides what foreign code may do, so a file or directory that others could write is not used.
Nothing here is needed: without a place to store, everything is worked out again.
"""

from __future__ import annotations

import os
import stat

MOST = 1 << 20


def cache_dir() -> str | None:
    """``$XDG_CACHE_HOME/stockade`` or ``~/.cache/stockade``; None where there is no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):
        home = os.environ.get("HOME", "")
        if not home.startswith("/"):
            return None
        base = f"{home}/.cache"
    return f"{base}/stockade"


def read_private(directory: str, name: str) -> bytes | None:
    """The whole of a regular file of ours, at most 1 MiB; None when there is none or others could have written it."""
    try:
        parent = open_private(directory)
    except (OSError, ValueError):
        return None
    try:
        # O_NONBLOCK: a fifo with this name must not hang us.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return None
    finally:
        os.close(parent)
    try:
        info = os.fstat(fd)
        if not (stat.S_ISREG(info.st_mode) and is_private(info)) or info.st_size > MOST:
            return None
        content = os.read(fd, info.st_size + 1)  # a buffer of the most there may be costs more than reading
        return content if len(content) == info.st_size else None
    except OSError:
        return None
    finally:
        os.close(fd)


def store_private(directory: str, name: str, content: bytes) -> None:
    """Put a file in place at once; that it can't be stored is no error. A home that does not exist is not made."""
    if not os.path.isdir(os.path.dirname(os.path.dirname(directory))):
        return
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        parent = open_private(directory)
    except (OSError, ValueError):
        return
    try:
        replace(parent, name, content)
    except OSError:
        pass
    finally:
        os.close(parent)


def remove(directory: str, name: str) -> None:
    try:
        os.unlink(os.path.join(directory, name))
    except OSError:
        pass


def open_private(path: str) -> int:
    """A descriptor of the directory, or ``OSError`` when it isn't ours alone to write."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not is_private(os.fstat(fd)):
        os.close(fd)
        raise PermissionError(f"others can write {path!r}")
    return fd


def is_private(info: os.stat_result) -> bool:
    return info.st_uid == os.geteuid() and not info.st_mode & 0o022


def replace(directory: int, name: str, content: bytes) -> None:
    """It has no name until it is whole, where the file system can do that: who is killed meanwhile leaves nothing."""
    temporary = f".{name}.{os.urandom(8).hex()}"
    fd, named = open_new(directory, temporary)
    try:
        with os.fdopen(fd, "wb", buffering=0) as file:
            write_all(file.fileno(), content)
            if not named and linked(fd, directory, name):
                return
            if not named:
                linked(fd, directory, temporary)
                named = True
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        if named:
            os.unlink(temporary, dir_fd=directory)
        raise


def linked(fd: int, directory: int, name: str) -> bool:
    """Give a file without a name this one; False when there is such a file."""
    try:
        os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=directory, follow_symlinks=True)
    except FileExistsError:
        return False
    return True


def open_new(directory: int, name: str) -> tuple[int, bool]:
    """A new file to write, and whether it has its name already."""
    try:
        return os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=directory), False
    except OSError:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=directory), True


def write_all(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]
