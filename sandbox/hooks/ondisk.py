"""Hooks files on disk: replaced in one step, with a copy of what was there before.

Only these functions write. What is written is decided elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat

from stockade.policies.record import Record
from stockade.sandbox.hooks.source import HooksFileError, content, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

SUFFIX = ".stockade-backup"


class Target(Record):
    """A file that is to be rewritten."""

    path: str
    """As it was named."""
    real: str
    """The file itself, symlinks followed: that is what gets replaced."""
    data: bytes

    @property
    def linked(self) -> bool:
        """Whether the name is a symlink, so that another file is written than the one named."""
        return os.path.islink(self.path)


def target(path: str) -> Target:
    """Raises HooksFileError for what can't be read."""
    return Target(path, os.path.realpath(path), content(path))


def backups(real: str) -> dict[str, bytes]:
    """The copies beside a file, the oldest first; what is no plain file of readable content is none."""
    folder, name = os.path.split(real)
    try:
        names = [each for each in os.listdir(folder) if number_of(each, name) is not None]
    except OSError:
        return {}
    found = {}
    for each in sorted(names, key=lambda each: number_of(each, name) or 0):
        path = os.path.join(folder, each)
        try:
            if not os.path.islink(path):
                found[path] = content(path)
        except HooksFileError:
            continue
    return found


def number_of(candidate: str, name: str) -> int | None:
    """0 for the first copy of ``name``, 1 for the next ...; None for another file."""
    rest = candidate.removeprefix(name + SUFFIX)
    if rest == candidate:
        return None
    return 0 if rest == "" else int(rest[1:]) if rest[0] == "." and rest[1:].isdecimal() else None


def keep(real: str, data: bytes) -> str:
    """See to it that a copy with this content exists; returns its path. Raises HooksFileError."""
    known = backups(real)
    if (same := next((path for path, held in known.items() if held == data), None)) is not None:
        return same
    number = 0
    while True:
        path = f"{real}{SUFFIX}" + (f".{number}" if number else "")
        try:
            create(path, data, os.stat(real))
        except FileExistsError:
            number += 1
        except OSError as error:
            failed("keep a copy at", path, error)
        else:
            return path


def replace(file: Target, data: bytes) -> None:
    """Put new content in the file's place, with its mode and owner. Raises HooksFileError; the file is then as it was."""
    temporary = f"{file.real}.{os.urandom(6).hex()}"
    try:
        create(temporary, data, os.stat(file.real))
        try:
            if content(file.real) != file.data:
                raise HooksFileError(
                    f"could not write {shown(file.real)}: it was changed meanwhile",
                    remedy="Do it again.",
                    path=file.path,
                )
            os.rename(temporary, file.real)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        failed("write", file.real, error)


def create(path: str, data: bytes, like: os.stat_result) -> None:
    """A new file with the mode and owner of another. Raises OSError, and leaves nothing then."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            made = os.fstat(fd)
            if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
                os.fchown(fd, like.st_uid, like.st_gid)
            os.fchmod(fd, stat.S_IMODE(like.st_mode))
            file.write(data)
            file.flush()
            os.fsync(fd)
    except BaseException:
        os.unlink(path)
        raise


def failed(verb: str, path: str, error: OSError) -> NoReturn:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    raise HooksFileError(
        f"could not {verb} {shown(path)}: {(error.strerror or str(error)).lower()}",
        remedy="Make room." if full else "Do it as the file's owner, where its directory can be written.",
        path=path,
    ) from None
