"""Build what is to come to the host out of sight: copies of what the layer has, in a directory of ours.

Set-id bits are never given, and nothing but files, links and directories is made. No link is followed.
"""

from __future__ import annotations

import errno
import os
import stat

from stockade.sandbox.present import LIST, PASS, READ, Meanwhile, open_below
from stockade.sandbox.writes import row_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.captured import Change, Entry
    from stockade.sandbox.operations import Operation
    from stockade.sandbox.present import Site
    from stockade.sandbox.writes import Row

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
PART = 1 << 20
KEPT_ATTRIBUTES = ("user.", "system.posix_acl_access")


def build(operation: Operation, place: bytes, folder: int, site: Site, layer: int) -> None:
    """What ``operation`` puts, as ``place`` in ``folder``. Raises OSError, Meanwhile."""
    top = operation.change
    make_entry(top, place, folder, site, layer)
    inner = [(each, place + each.path[len(top.path) :]) for each in operation.inner if each.after is not None]
    for each, inner_place in inner:
        make_entry(each, inner_place, folder, site, layer)
    # Deepest first: some can't be written any more once they have their mode.
    for each, inner_place in reversed(inner):
        if each.after is not None and each.after.kind == "dir":
            close_up(inner_place, each.after.mode, folder)


def make_entry(change: Change, place: bytes, folder: int, site: Site, layer: int) -> None:
    entry = change.after
    assert entry is not None
    head, name = os.path.split(place)
    parent = open_below(folder, head, PASS)
    try:
        if entry.kind == "dir":
            os.mkdir(name, 0o700, dir_fd=parent)
        elif entry.kind == "link":
            os.symlink(entry.target, name, dir_fd=parent)
        else:
            copy(change, entry, parent, name, site, layer)
    finally:
        os.close(parent)


def copy(change: Change, entry: Entry, parent: int, name: bytes, site: Site, layer: int) -> None:
    """A file of the layer as ``name`` in ``parent``; like the one it replaces in what is not content or mode."""
    source = open_layer(layer, change.path)
    target = -1
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            raise OSError(errno.EINVAL, "it is no file", change.path)
        target = os.open(name, NEW, 0o600, dir_fd=parent)
        copy_data(source, target)
        if change.before is not None and stat.S_ISREG(change.before[0]):
            like_old(change.path, change.before, target, site)
        os.fchmod(target, entry.mode & 0o777)
        os.utime(target, ns=(entry.mtime, entry.mtime))
    finally:
        os.close(source)
        if target >= 0:
            os.close(target)


def like_old(path: bytes, before: Row, target: int, site: Site) -> None:
    """Owner, group, access list and own attributes of the file that is replaced: of no other that has its name by now."""
    head, name = os.path.split(path)
    parent = site.folder(head)
    try:
        old = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    finally:
        os.close(parent)
    try:
        status, own = os.fstat(old), os.fstat(target)
        if row_of(status) != before:
            raise Meanwhile(path, "it was changed at this moment")
        if (status.st_uid, status.st_gid) != (own.st_uid, own.st_gid):
            os.fchown(target, status.st_uid, status.st_gid)
        for each in os.listxattr(f"/proc/self/fd/{old}"):
            if each.startswith(KEPT_ATTRIBUTES):
                os.setxattr(target, each, os.getxattr(f"/proc/self/fd/{old}", each))
    finally:
        os.close(old)


def close_up(place: bytes, mode: int, folder: int) -> None:
    fd = open_below(folder, place, LIST)
    try:
        set_mode(fd, mode)
    finally:
        os.close(fd)


def set_mode(fd: int, mode: int) -> None:
    """Permissions and the sticky bit of a directory; that new files take its group stays as it is."""
    os.fchmod(fd, mode & 0o1777 | os.fstat(fd).st_mode & stat.S_ISGID)


def open_layer(layer: int, path: bytes) -> int:
    """Open a file of the layer for reading, also one that the program closed to its owner."""
    try:
        return open_below(layer, path, READ)
    except PermissionError:
        fd = open_below(layer, path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.chmod(f"/proc/self/fd/{fd}", 0o600)
        finally:
            os.close(fd)
        return open_below(layer, path, READ)


def copy_data(source: int, target: int) -> None:
    """Copy a file, its holes as holes."""
    end = os.fstat(source).st_size
    at = 0
    while at < end:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
            hole = os.lseek(source, at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # nothing but a hole is left
        os.lseek(source, at, os.SEEK_SET)
        os.lseek(target, at, os.SEEK_SET)
        while at < hole:
            part = os.read(source, min(PART, hole - at))
            if not part:
                return
            at += len(part)
            while part:
                part = part[os.write(target, part) :]
    os.ftruncate(target, end)
