"""Other processes: nobody outside to signal, trace or read, and nothing to gain from the box's first one."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import struct
import time

from stockade.sandbox.attacks.toolbox import (
    OWN,
    Given,
    any_of,
    attempt,
    call,
    done,
    each_refused,
    libc,
    openable,
    read,
    status,
    syscall,
)

GROUP = "E namespaces, capabilities, root"
CAPABILITIES, USER, PID = "capability drop", "user namespace: one uid is mapped", "pid namespace"
PIDFD_OPEN, PIDFD_GETFD = 434, 438
PROCESS_VM_READV = {"x86_64": 310, "aarch64": 270, "riscv64": 270}
KCMP = {"x86_64": 312, "aarch64": 272, "riscv64": 272}
PRLIMIT = {"x86_64": 302, "aarch64": 261, "riscv64": 261}
PTRACE_ATTACH, PTRACE_SEIZE, PTRACE_DETACH = 16, 0x4206, 17


def ended(pid: int) -> bool:
    """Waits until a process that was killed is dead: that takes a moment."""
    for _turn in range(500):
        with open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] in "ZX":
                return True
        time.sleep(0.002)
    return False


# --- processes outside -------------------------------------------------------------------------------------


@attempt(PID, facts=("victim",))
def signal_a_process(given: Given) -> object:
    """Kill a process of the host by its number."""
    return done(os.kill, given.victim, signal.SIGKILL) and ended(given.victim)


@attempt(PID, facts=("victim",))
def signal_a_group(given: Given) -> object:
    """Kill its process group."""
    return done(os.killpg, given.victim, signal.SIGKILL) and ended(given.victim)


@attempt(PID)
def descriptor_of_a_process(given: Given) -> object:
    """Open a descriptor of a process of the host (pidfd_open)."""
    return syscall(PIDFD_OPEN, given.victim, 0) > 0


@attempt(PID)
def trace_a_process(given: Given) -> object:
    """Trace a process of the host (ptrace)."""
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    return call("ptrace", PTRACE_SEIZE, given.victim, None, None) == 0


@attempt(PID)
def memory_of_a_process(given: Given) -> object:
    """Read the memory of a process of the host (process_vm_readv, /proc/PID/mem)."""
    buffer = ctypes.create_string_buffer(8)
    own = struct.pack("=QQ", ctypes.addressof(buffer), 8)

    def by_call() -> bool:
        with open(f"/proc/{given.victim}/maps") as file:
            place = int(file.readline().split("-")[0], 16)
        return syscall(PROCESS_VM_READV, given.victim, own, 1, struct.pack("=QQ", place, 8), 1, 0) > 0

    return each_refused({"call": by_call, "file": lambda: openable(f"/proc/{given.victim}/mem")})


@attempt(PID)
def process_directory(given: Given) -> object:
    """Look into /proc of a process of the host: root, cwd, environ, fd."""
    names = ("root", "cwd", "environ", "fd/0", "ns/net")
    return any_of(
        lambda name: (
            os.readlink(f"/proc/{given.victim}/{name}")
            if name != "environ"
            else read(f"/proc/{given.victim}/environ")
        ),
        names,
    )


@attempt(PID)
def steer_a_process(given: Given) -> object:
    """Change limits, priority or placement of a process of the host."""
    old = ctypes.create_string_buffer(16)
    return each_refused(
        {
            "limits": lambda: syscall(PRLIMIT, given.victim, 7, None, old) == 0,
            "priority": lambda: done(os.setpriority, os.PRIO_PROCESS, given.victim, 19),
            "processors": lambda: done(os.sched_setaffinity, given.victim, os.sched_getaffinity(0)),
        }
    )


@attempt(PID)
def compare_with_a_process(given: Given) -> object:
    """Compare descriptors with those of a process of the host (kcmp)."""
    return syscall(KCMP, os.getpid(), given.victim, 0, 0, 0) >= 0


@attempt(PID, control=lambda given: len([pid for pid in os.listdir("/proc") if pid.isdigit()]) > 3)
def list_processes(given: Given) -> object:
    """List the host's processes and their command lines"""
    pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
    return [pid for pid in pids if given.token in read(f"/proc/{pid}/cmdline")]


# --- the box's own first process ---------------------------------------------------------------------------


@attempt("root-owned or read-only program file", control=lambda given: openable("/proc/self/exe"))
def overwrite_the_launcher(given: Given) -> object:
    """Overwrite the program that set up the box, by /proc/1/exe and by its path"""
    return any_of(lambda path: openable(path, os.O_WRONLY), ("/proc/1/exe", "/usr/bin/bwrap", "/proc/self/exe"))


@attempt(
    CAPABILITIES,
    control=lambda given: os.getppid() > 0,
    allowed="the box's first process has no more rights than the program: it may be traced, and gives nothing",
)
def trace_the_first_process(given: Given) -> object:
    """Trace the box's first process, in the hope of rights that it has left"""
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    call("ptrace", PTRACE_SEIZE, 1, None, None)
    libc.ptrace(PTRACE_DETACH, 1, None, None)
    return "traced: " + (
        "no capability there" if not status("CapPrm", "1").strip("0") else f"CAPABILITIES {status('CapPrm', '1')}"
    )


@attempt(CAPABILITIES, control=OWN)
def rights_of_the_first_process(given: Given) -> object:
    """Find a capability or another uid in any process of the box."""
    pids = (
        [pid for pid in os.listdir("/proc") if pid.isdigit()]
        if os.getppid() == 1 or not status("CapEff").strip("0")
        else ["self"]
    )
    return [pid for pid in pids if any(status(name, pid).strip("0") for name in ("CapEff", "CapPrm", "CapBnd"))]


@attempt(
    "descriptor closing",
    control=lambda given: syscall(PIDFD_GETFD, syscall(PIDFD_OPEN, given.victim, 0), 0, 0) >= 0,
)
def descriptors_by_pidfd(given: Given) -> object:
    """Take the descriptors of the box's first process out of it (pidfd_getfd) and find one that leads out"""
    first = syscall(PIDFD_OPEN, 1, 0)
    found = []
    for number in range(64):
        try:
            fd = syscall(PIDFD_GETFD, first, number, 0)
        except OSError:
            continue
        mode = os.fstat(fd).st_mode
        target = os.readlink(f"/proc/self/fd/{fd}")
        if stat.S_ISDIR(mode) or stat.S_ISSOCK(mode) or (stat.S_ISREG(mode) and not target.startswith("/memfd")):
            found.append(target)
    return ", ".join(found)
