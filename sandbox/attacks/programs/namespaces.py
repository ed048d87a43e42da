"""Namespaces and mounts: no new ones, no way into others', and nothing of the view can be moved."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct

from stockade.sandbox.attacks.toolbox import (
    OWN,
    Absent,
    Given,
    add,
    any_of,
    attempt,
    bound,
    call,
    each_refused,
    syscall,
)

GROUP = "E mounts and nested namespaces"
FILTER = "syscall filter"
KINDS = {
    "user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "network": 0x40000000, "ipc": 0x8000000,
    "host-name": 0x4000000, "cgroup": 0x2000000, "time": 0x80,
}  # fmt: skip
FILES = {"user": "user", "mount": "mnt", "pid": "pid", "network": "net", "ipc": "ipc"}
CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}
CLONE3, OPEN_TREE, MOVE_MOUNT, FSOPEN, MOUNT_SETATTR, PIDFD_OPEN, STATMOUNT = 435, 428, 429, 430, 442, 434, 457
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}
MS_BIND, MS_REMOUNT, MS_RDONLY, MS_MOVE, MS_SHARED, MNT_DETACH = 0x1000, 0x20, 0x1, 0x2000, 1 << 20, 2
AT_FDCWD, AT_RECURSIVE, OPEN_TREE_CLONE = -100, 0x8000, 1
NS_GET_USERNS, NS_GET_PARENT = 0xB701, 0xB702
SIGCHLD = 17


def mount(
    source: bytes | None, target: bytes, kind: bytes | None, flags: int = 0, data: bytes | None = None
) -> bool:
    return call("mount", source, target, kind, ctypes.c_ulong(flags), data) == 0


# --- new ones ----------------------------------------------------------------------------------------------

for _kind, _flag in KINDS.items():
    add(
        __name__, GROUP, f"unshare-{_kind}", f"Make a new {_kind.replace('-', ' ')} namespace (unshare)",
        bound(lambda given, flag: call("unshare", flag) == 0, _flag), FILTER, control=OWN,
    )  # fmt: skip


@attempt(FILTER, control=OWN)
def clone_a_user_namespace(given: Given) -> object:
    """Make one with clone, whose flags are an argument."""
    pid = syscall(CLONE, KINDS["user"] | KINDS["network"] | SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)[0] == pid


@attempt(FILTER, control=OWN)
def clone3_a_user_namespace(given: Given) -> object:
    """Make one with clone3, whose flags lie in memory where no filter can look."""
    words = struct.pack("=8Q", KINDS["user"] | KINDS["mount"], 0, 0, 0, SIGCHLD, 0, 0, 0)
    pid = syscall(CLONE3, words, len(words))
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)[0] == pid


@attempt(FILTER, control=OWN)
def two_namespaces_at_once(given: Given) -> object:
    """Ask for a user and a network namespace in one call, and with a dirty upper half."""
    numbers = {"x86_64": 272, "aarch64": 97, "riscv64": 97}
    return any_of(lambda flags: syscall(numbers, flags) == 0, (0x50000000, 0x10020000 | 1 << 40))


# --- others' -----------------------------------------------------------------------------------------------

for _kind, _file in FILES.items():
    add(
        __name__, GROUP, f"join-{_kind}", f"Join the {_kind} namespace of the box's first process (setns)",
        bound(lambda given, file: call("setns", os.open(f"/proc/1/ns/{file}", os.O_RDONLY), 0) == 0, _file), FILTER,
        control=bound(lambda given, file: bool(os.readlink(f"/proc/self/ns/{file}")), _file),
    )  # fmt: skip


@attempt(FILTER, control=lambda given: syscall(PIDFD_OPEN, os.getpid(), 0) > 0)
def join_by_pidfd(given: Given) -> object:
    """Join all namespaces of the box's first process at once, by a descriptor of it"""
    return call("setns", syscall(PIDFD_OPEN, 1, 0), 0x10000000 | 0x20000 | 0x40000000) == 0


@attempt("user namespace", control=lambda given: os.readlink("/proc/self/ns/user") != "")
def namespaces_above(given: Given) -> object:
    """Get descriptors of the namespaces above: the parent, and the owner of the network"""
    return any_of(
        lambda word: fcntl.ioctl(os.open(f"/proc/self/ns/{word[0]}", os.O_RDONLY), word[1]) > 0,
        (("user", NS_GET_PARENT), ("pid", NS_GET_PARENT), ("net", NS_GET_USERNS), ("user", NS_GET_USERNS)),
    )


@attempt("network namespace", control=lambda given: os.readlink("/proc/self/ns/net") == given.namespace)
def the_callers_network(given: Given) -> object:
    """Be in the caller's network namespace"""
    return os.readlink("/proc/self/ns/net") == given.namespace


# --- mounts ------------------------------------------------------------------------------------------------


@attempt(FILTER, control=OWN)
def remount_writable(given: Given) -> object:
    """Remount the read-only host writable."""
    return any_of(
        lambda path: mount(None, path, None, MS_REMOUNT | MS_BIND, None),
        (b"/usr", b"/etc", b"/", given.visible.encode()),
    )


@attempt(FILTER, control=OWN)
def bind_over(given: Given) -> object:
    """Bind one directory over another, to change what a name shows."""
    os.makedirs("bind", exist_ok=True)
    return mount(given.visible.encode(), b"bind", None, MS_BIND)


@attempt(FILTER, control=OWN)
def uncover_hidden(given: Given) -> object:
    """Unmount what covers a hidden directory, a protected name, the home."""
    if os.listdir("vault"):
        mount(b"cover", b"vault", b"tmpfs")
    paths = (b"vault", b".env", b".git/config", given.home.encode(), b"/run", b"/tmp")
    any_of(lambda path: call("umount2", path, MNT_DETACH) == 0, paths)
    return os.listdir("vault")


@attempt(FILTER, control=OWN)
def mount_a_fresh_file_system(given: Given) -> object:
    """Mount a tmpfs, a proc, an overlay: new file systems from inside."""
    os.makedirs("fresh", exist_ok=True)
    return any_of(lambda kind: mount(kind, b"fresh", kind), (b"tmpfs", b"proc", b"sysfs", b"devpts", b"mqueue"))


@attempt(FILTER, control=OWN)
def move_a_mount(given: Given) -> object:
    """Move a mount away, so that what lies below it shows."""
    os.makedirs("target", exist_ok=True)
    os.makedirs("source", exist_ok=True)
    if not os.listdir("vault") or mount(b"x", b"source", b"tmpfs"):
        return any_of(
            lambda path: mount(path, b"target", None, MS_MOVE), (b"source", b"vault", given.home.encode())
        )
    return False


@attempt(FILTER, control=OWN)
def share_mounts(given: Given) -> object:
    """Make the mounts shared, so that changes spread to the host."""
    return mount(None, b"/", None, MS_SHARED)


@attempt(FILTER, control=OWN)
def clone_the_tree(given: Given) -> object:
    """Clone the mount tree without what covers it (open_tree), and attach it (move_mount)."""
    fd = syscall(OPEN_TREE, AT_FDCWD, given.visible.encode(), OPEN_TREE_CLONE | os.O_CLOEXEC)
    os.makedirs("attached", exist_ok=True)
    return syscall(MOVE_MOUNT, fd, b"", AT_FDCWD, b"attached", 4) == 0


@attempt(FILTER, control=OWN)
def new_mount_api(given: Given) -> object:
    """Open a file system by the new calls (fsopen)."""
    return syscall(FSOPEN, b"tmpfs", 0) > 0


@attempt(FILTER, control=OWN, reached=("EINVAL",))
def clear_read_only(given: Given) -> object:
    """Clear the read-only attribute of a mount (mount_setattr); where it is none, the kernel says EINVAL."""
    words = struct.pack("=4Q", 0, 1, 0, 0)
    return syscall(MOUNT_SETATTR, AT_FDCWD, given.visible.encode(), 0, words, len(words)) == 0


@attempt(FILTER, control=OWN)
def pivot(given: Given) -> object:
    """Change the root of the namespace (pivot_root)."""
    os.makedirs("root/old", exist_ok=True)
    if not os.path.exists("/proc/1/root/.stockade") and os.getuid() == 0:
        try:
            mount(b"x", b"root", b"tmpfs")
            os.mkdir("root/old")
        except OSError:
            pass
    return syscall(PIVOT_ROOT, b"root", b"root/old") == 0


@attempt(FILTER, control=OWN)
def mount_over_proc(given: Given) -> object:
    """Mount over /proc, to make the program's own checks lie."""
    return mount(b"x", b"/proc", b"tmpfs")


@attempt("no device and no capability", control=lambda given: os.access("/dev/fuse", os.R_OK | os.W_OK))
def file_system_of_its_own(given: Given) -> object:
    """Serve a file system by /dev/fuse"""
    return os.open("/dev/fuse", os.O_RDWR) > 0


@attempt("no more user namespaces", control=OWN)
def a_box_in_the_box(given: Given) -> object:
    """Start bubblewrap inside, to have a namespace in which one is root."""
    import shutil
    import subprocess

    path = shutil.which("bwrap", path="/usr/bin:/usr/local/bin")
    if path is None:
        raise Absent("bubblewrap is not below /usr here")
    words = [path, "--unshare-user", "--uid", "0", "--cap-add", "ALL", "--ro-bind", "/", "/", "true"]
    return subprocess.run(words, capture_output=True, check=False, timeout=5).returncode == 0


@attempt("capability drop", control=OWN)
def cgroup_release_agent(given: Given) -> object:
    """Mount a cgroup hierarchy and name a release agent, which the host runs as root."""
    os.makedirs("cgroup", exist_ok=True)
    return each_refused(
        {
            "version 2": lambda: mount(b"none", b"cgroup", b"cgroup2"),
            "version 1": lambda: mount(b"none", b"cgroup", b"cgroup", 0, b"none,name=stockade-attack"),
        }
    )
