"""Files that are left behind with more rights than their maker, and ways past every path."""

from __future__ import annotations

import ctypes
import fcntl
import os
import stat
import struct

from stockade.sandbox.attacks.toolbox import (
    OWN,
    Absent,
    Given,
    attempt,
    call,
    done,
    each_refused,
    openable,
    syscall,
    write,
)

GROUP = "A filesystem"
VIEW, READ_ONLY = "mount namespace: it is not in the view", "read-only mount"
FILTER = "syscall filter"
RENAME_EXCHANGE, AT_FDCWD, AT_SYMLINK_FOLLOW = 2, -100, 0x400
NAME_TO_HANDLE = {"x86_64": 303, "aarch64": 264, "riscv64": 264}
OPEN_BY_HANDLE = {"x86_64": 304, "aarch64": 265, "riscv64": 265}
FANOTIFY_INIT = {"x86_64": 300, "aarch64": 262, "riscv64": 262}
FANOTIFY_MARK = {"x86_64": 301, "aarch64": 263, "riscv64": 263}
FICLONE = 0x40049409


def link_descriptor(fd: int, path: str) -> bool:
    """A name for what a descriptor is open on; os.link does not follow the link in /proc."""
    return call("linkat", AT_FDCWD, b"/proc/self/fd/%d" % fd, AT_FDCWD, path.encode(), AT_SYMLINK_FOLLOW) == 0


# --- what is left behind -----------------------------------------------------------------------------------


@attempt(FILTER, facts=("privileged files",))
def leave_a_setuid_file(given: Given) -> object:
    """Leave a setuid program in the workspace (chmod, fchmod, fchmodat)."""
    write("setuid", "#!/bin/sh\n")
    fd = os.open("setuid", os.O_RDONLY)
    return each_refused(
        {
            "chmod": lambda: done(os.chmod, "setuid", 0o4755),
            "fchmod": lambda: done(os.fchmod, fd, 0o4755),
            "fchmodat": lambda: done(os.chmod, "setuid", 0o4755, dir_fd=os.open(".", os.O_RDONLY)),
        }
    )


@attempt(FILTER, facts=("privileged files",))
def create_a_setuid_file(given: Given) -> object:
    """Create a file that has the setuid bit from the start (open, creat, mknod)."""
    os.umask(0)
    return each_refused(
        {
            "open": lambda: os.open("setuid-1", os.O_CREAT | os.O_WRONLY, 0o4755) > 0,
            "creat": lambda: call("creat", b"setuid-2", 0o4755) > 0,
            "mknod": lambda: done(os.mknod, "setuid-3", 0o4755 | stat.S_IFREG),
        }
    )


@attempt(FILTER, facts=("privileged files",))
def name_an_unnamed_setuid_file(given: Given) -> object:
    """Create a file without a name that has the setuid bit (O_TMPFILE), then give it one."""
    fd = os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o4755)
    return link_descriptor(fd, "setuid-unnamed")


@attempt(FILTER, facts=("privileged files",))
def setuid_by_other_calls(given: Given) -> object:
    """The same by openat2 and fchmodat2, whose arguments or numbers a filter may not know."""
    write("setuid-4", "#!/bin/sh\n")
    how = struct.pack("=QQQ", os.O_CREAT | os.O_WRONLY, 0o4755, 0)
    return each_refused(
        {
            "fchmodat2": lambda: syscall(452, AT_FDCWD, b"setuid-4", 0o4755, 0) == 0,
            "openat2": lambda: syscall(437, AT_FDCWD, b"setuid-5", how, len(how)) > 0,
        }
    )


@attempt(
    FILTER,
    allowed="directories need the setgid bit, and no filter can tell them from files",
)
def leave_a_setgid_file(given: Given) -> object:
    """Leave a setgid program of the caller's group in the workspace."""
    write("setgid", "#!/bin/sh\n")
    os.chmod("setgid", 0o2755)  # noqa: S103
    return os.stat("setgid").st_mode & stat.S_ISGID


@attempt("capability drop", facts=("privileged files",))
def leave_file_capabilities(given: Given) -> object:
    """Leave a program with file capabilities in the workspace."""
    write("capable")
    os.setxattr("capable", "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 21, 0, 0, 0))
    return True


@attempt("capability drop", facts=("privileged files",))
def make_a_device_node(given: Given) -> object:
    """Make a device node in the workspace, for somebody outside to open."""
    return done(os.mknod, "made-node", 0o666 | stat.S_IFCHR, os.makedev(1, 3))


@attempt("mount without devices")
def open_a_device_node(given: Given) -> object:
    """Open a device node that is in the workspace."""
    if not os.path.lexists("node"):
        raise Absent("only root can lay one out")
    return openable("node")


@attempt("capability drop")
def overlay_attributes(given: Given) -> object:
    """Set trusted.* attributes, which overlay file systems obey."""
    os.setxattr("file", "trusted.overlay.redirect", b"/etc")
    return True


# --- past every path ---------------------------------------------------------------------------------------


def handle_of(path: bytes) -> ctypes.Array[ctypes.c_char]:
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0), 136)
    syscall(NAME_TO_HANDLE, AT_FDCWD, path, handle, ctypes.byref(ctypes.c_int()), 0)
    return handle


@attempt(FILTER)
def name_a_file_by_number(given: Given) -> object:
    """Ask for a file's handle: the number by which it can be opened past every path."""
    return len(handle_of(b"file").raw)


@attempt(FILTER)
def open_by_number(given: Given) -> object:
    """Open a file by a made-up handle: the root directory of the workspace's file system (inode 2)."""
    handle = ctypes.create_string_buffer(struct.pack("=IiII", 8, 1, 2, 0), 16)
    return syscall(OPEN_BY_HANDLE, os.open(".", os.O_RDONLY), handle, os.O_RDONLY) > 0


@attempt(FILTER, control=OWN)
def leave_by_chroot(given: Given) -> object:
    """The classic way out of a chroot: change the root below, walk up past it."""
    os.mkdir("cell")
    fd = os.open("/", os.O_RDONLY)
    call("chroot", b"cell")
    os.fchdir(fd)
    return "changed"


@attempt("capability drop")
def watch_the_file_system(given: Given) -> object:
    """Watch a whole file system by fanotify, with the paths of all that others do there."""
    fd = syscall(FANOTIFY_INIT, 0, os.O_RDONLY)
    return syscall(FANOTIFY_MARK, fd, 0x1 | 0x100, 0x20, AT_FDCWD, b"/usr") == 0


@attempt(READ_ONLY, control=lambda given: openable(f"{given.visible}/file", os.O_RDWR))
def clone_over_a_shown_file(given: Given) -> object:
    """Share the blocks of another file into a read-only one (FICLONE), past write(2)."""
    source = os.open("file", os.O_RDONLY)
    target = os.open(f"{given.visible}/file", os.O_RDWR)
    fcntl.ioctl(target, FICLONE, source)
    return True
