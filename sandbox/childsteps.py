"""What a forked child of the keeper does before it becomes bwrap or the program: a flat list of steps.

Runs single-threaded between fork and exec. Each step may raise OSError; the first one that does is reported
with its name on the error pipe, and nothing is executed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import marshal
import os
import resource
import select

from stockade.sandbox.messages import HOLDER_FD

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any
else:
    import _signal as signal  # ``signal`` itself costs as much as enum

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_CAPBSET_DROP, CAP_SETFCAP = 24, 31
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE, MS_NOSUID, MS_NODEV = 0x1000, 0x4000, 0x40000, 0x2, 0x4
KEYCTL_JOIN_SESSION_KEYRING = 1
KEYCTL_NUMBER = {
    "x86_64": 250,
    "aarch64": 219,
    "riscv64": 219,
    "armv7l": 311,
    "i686": 288,
    "ppc64le": 271,
    "s390x": 280,
}
CAPABILITY_VERSION_3 = 0x20080522

HIGH = 400
"""Descriptors are parked here and above while they are moved to the numbers the argv speaks of."""

IGNORED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
)  # fmt: skip
"""What the keeper, Python or a caller may have set to be ignored."""

libc = ctypes.CDLL(None, use_errno=True)


def call(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


def become_subreaper() -> None:
    call(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def become(job: dict[str, Any], fds: list[int], error_write: int) -> None:
    """Perform every step, then execute the program, or serve as the holder of a lease.

    Returns only after a failure, which was reported, or after the holder's end.
    """
    name = "holder"
    try:
        if job["program"] is None:
            from stockade.netns import holder

            holder.preload(job["holder"]["site"])
        name = "descriptors"
        error_write = fcntl.fcntl(error_write, fcntl.F_DUPFD_CLOEXEC, HIGH)
        for name, step in STEPS:  # noqa: B007  (the failed one is reported)
            step(job, fds)
        if job["program"] is not None:
            name = "execute"
            execute(job)
    except OSError as error:
        detail = os.fsdecode(error.filename) if isinstance(error.filename, bytes | str) else ""
        os.write(error_write, marshal.dumps((name, error.errno or errno.EIO, detail)))
        return
    os.close(error_write)
    holder.serve(job["holder"], HOLDER_FD)


def join_cgroup(job: dict[str, Any], fds: list[int]) -> None:
    """Enter the cgroup of the run, where there is one: all that is started from here on is counted in it."""
    path = job.get("cgroup")
    if path is not None:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, b"0")
        os.close(fd)


def own_session(job: dict[str, Any], fds: list[int]) -> None:
    os.setsid()
    call(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def empty_keyring(job: dict[str, Any], fds: list[int]) -> None:
    """Kernel keyrings are not namespaced: without this the caller's session keyring can be read inside."""
    number = KEYCTL_NUMBER.get(os.uname().machine)
    if job["confined"] and number is not None:
        libc.syscall(number, KEYCTL_JOIN_SESSION_KEYRING, None)


def stage_sources(job: dict[str, Any], fds: list[int]) -> None:
    """Bring sources below directories that an unprivileged uid can't enter to a place that it can.

    Root only, in a mount namespace of this child. bwrap resolves a source by path even when it is given as
    a descriptor, under the uid it runs as.
    """
    if not job["staged"]:
        return
    call(libc.unshare(CLONE_NEWNS), "unshare")
    mount(b"none", b"/", b"", MS_REC | MS_PRIVATE)
    # Before the stage is mounted: it may cover the place where they are.
    sources = [open_same(fds[index]) for _name, index, _is_directory in job["staged"]]
    stage = os.fsencode(job["stage"])
    mount(b"stage", stage, b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=0755,size=64k")
    for (name, _index, is_directory), source in zip(job["staged"], sources, strict=True):
        place = stage + b"/" + os.fsencode(name)
        if is_directory:
            os.mkdir(place, 0o755)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(b"/proc/self/fd/%d" % source, place, b"", MS_BIND | MS_REC)
        os.close(source)


def open_same(fd: int) -> int:
    """What ``fd`` was opened on, opened anew and compared: ``fd`` belongs to the old mount namespace."""
    path = os.readlink(b"/proc/self/fd/%d" % fd)
    again = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not os.path.samestat(os.fstat(fd), os.fstat(again)):
        raise OSError(errno.ESTALE, "it was replaced", path)
    return again


def mount(source: bytes, target: bytes, kind: bytes, flags: int, options: bytes = b"") -> None:
    call(libc.mount(source, target, kind, ctypes.c_ulong(flags), options), os.fsdecode(target))


def move_descriptors(job: dict[str, Any], fds: list[int]) -> None:
    """Put each descriptor at the number the argv speaks of, and close everything else."""
    parked = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH) for fd in fds]
    wanted = job["numbers"]
    for fd, number in zip(parked, wanted, strict=True):
        if number is not None:
            os.dup2(fd, number, inheritable=True)
    close_others({number for number in wanted if number is not None}, HIGH)


def close_others(keep: set[int], end: int) -> None:
    """Close every descriptor below ``end`` but those to keep."""
    low = 0
    for number in [*sorted(keep), end]:
        if low < number:  # an empty range would reach the kernel as "up to the last one"
            os.closerange(low, number)
        low = number + 1


def reset_signals(job: dict[str, Any], fds: list[int]) -> None:
    """Undo what is ignored: exec resets only handlers. An ignored SIGCHLD hangs bwrap below 0.11.1."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


original_files = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The caller's own limit of open files, which an unconfined program gets back."""


def make_room_for_descriptors() -> None:
    """A low soft limit of open files must not keep the keeper from parking descriptors."""
    soft, hard = original_files
    wanted = 4 * HIGH if hard == resource.RLIM_INFINITY else min(4 * HIGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def set_limits(job: dict[str, Any], fds: list[int]) -> None:
    if not job["confined"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, original_files)
    for name, value in job["limits"]:
        number = getattr(resource, f"RLIMIT_{name}")
        _soft, hard = resource.getrlimit(number)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # SIGXCPU first, which names its reason; a second later SIGKILL.
        last = most + 1 if name == "CPU" and most != hard else most
        resource.setrlimit(number, (most, last))


def drop_privileges(job: dict[str, Any], fds: list[int]) -> None:
    if job["credentials"] is not None:
        take_credentials(*job["credentials"])
        # The death signal is cleared when credentials change.
        call(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    elif job["confined"]:
        # bwrap refuses to start with ambient capabilities of an ordinary user.
        libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        if os.geteuid() != 0:
            clear_capabilities()


def take_credentials(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def clear_capabilities() -> None:
    """Empty the effective, permitted and inheritable sets of a process that is not root."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    call(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def enter_directory(job: dict[str, Any], fds: list[int]) -> None:
    os.chdir(job["cwd"])


def take_terminal(job: dict[str, Any], fds: list[int]) -> None:
    """Unconfined runs only: inside a box the program takes the terminal for itself."""
    if job["terminal"] is not None:
        import termios

        fcntl.ioctl(job["terminal"], termios.TIOCSCTTY, 0)


def join_lease(job: dict[str, Any], fds: list[int]) -> None:
    """Enter the namespaces of a lease. The uid in force owns them, and has no power over them after exec."""
    if job["lease"] is None:
        return
    for number, kind in zip(job["lease"], (CLONE_NEWUSER, CLONE_NEWNET), strict=True):
        call(libc.setns(number, kind), "setns")
        os.close(number)
    # The uid is 0 in there: without this, executing bwrap would give it power over the lease's rules. One stays,
    # without which a namespace below can't map that uid (user_namespaces(7)).
    for capability in range(last_capability() + 1):
        if capability != CAP_SETFCAP:
            call(libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0), "prctl")
    # Entering the user namespace changed the capabilities, which cleared the death signal.
    call(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def take_leash(job: dict[str, Any], fds: list[int]) -> None:
    """Have the kernel kill this process when the other end of a pipe is closed, for a program that watches none.

    It belongs to the open pipe and to this pid, and outlives an exec that clears the death signal, as one into
    another security domain does. Nothing may be written there: that would be a signal too.
    """
    number = job.get("leash")
    if number is None:
        return
    fcntl.fcntl(number, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(number, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.O_ASYNC)
    # No signal comes for what was closed before.
    poll = select.poll()
    poll.register(number, 0)
    if poll.poll(0):
        raise OSError(errno.EPIPE, os.strerror(errno.EPIPE), "leash")


def still_kept(job: dict[str, Any], fds: list[int]) -> None:
    """A keeper that was killed before the death signal was set is never heard of: then nobody would end this."""
    if os.getppid() != job["keeper"]:
        raise OSError(errno.ESRCH, os.strerror(errno.ESRCH), "keeper")


def last_capability() -> int:
    with open("/proc/sys/kernel/cap_last_cap", "rb") as file:
        return int(file.read())


def execute(job: dict[str, Any]) -> None:
    program = job["program"]
    if b"/" in program:
        os.execve(program, job["argv"], job["env"])  # noqa: S606  (no shell is wanted)
    os.execvpe(program, job["argv"], job["env"])  # noqa: S606


STEPS: tuple[tuple[str, Callable[[dict[str, Any], list[int]], None]], ...] = (
    ("cgroup", join_cgroup),
    ("session", own_session),
    ("keyring", empty_keyring),
    ("stage", stage_sources),
    ("descriptors", move_descriptors),
    ("terminal", take_terminal),
    ("signals", reset_signals),
    ("limits", set_limits),
    ("credentials", drop_privileges),
    ("directory", enter_directory),
    ("lease", join_lease),
    ("leash", take_leash),
    ("keeper", still_kept),
)
"""In this order: the cgroup is joined with the keeper's rights, whatever the run's are; staging needs root and the
original descriptors; limits may need root; the directory and the lease are entered with the rights of the
run; a leash takes the final uid; whether the keeper is there is asked when its death would be heard of. Then the
program is executed."""
