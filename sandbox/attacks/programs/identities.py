"""Identities and other processes: no other user, no capability, nobody outside to signal, trace or read."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import socket
import stat
import struct
import subprocess

from stockade.sandbox.attacks.toolbox import (
    OWN,
    Given,
    any_of,
    attempt,
    call,
    done,
    each_refused,
    read,
    status,
    syscall,
)

GROUP = "E namespaces, capabilities, root"
CAPABILITIES, USER, PID = "capability drop", "user namespace: one uid is mapped", "pid namespace"
NO_NEW = "no new privileges"
CAPSET = {"x86_64": 126, "aarch64": 91, "riscv64": 91}
IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "riscv64": 30}
PR_CAP_AMBIENT, PR_CAPBSET_READ, PR_GET_NO_NEW_PRIVS, PR_SET_NO_NEW_PRIVS = 47, 23, 39, 38
CAP_SYS_ADMIN = 21


# --- identities --------------------------------------------------------------------------------------------


@attempt(CAPABILITIES, control=OWN)
def hold_a_capability(given: Given) -> object:
    """Hold any capability, in any set."""
    sets = {name: status(name) for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")}
    return [f"{name} {value}" for name, value in sets.items() if value.strip("0")]


@attempt(CAPABILITIES, control=OWN)
def raise_capabilities(given: Given) -> object:
    """Take all of them (capset)."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0), 8)
    low, high = (int(status("CapPrm"), 16) or (1 << 41) - 1) & 0xFFFFFFFF, int(status("CapPrm"), 16) >> 32
    data = struct.pack("=6I", low, low, 0, high, high, 0)
    return syscall(CAPSET, header, data) == 0


@attempt(CAPABILITIES, control=OWN)
def raise_an_ambient_capability(given: Given) -> object:
    """Raise an ambient capability, which survives the execution of programs."""
    if status("CapPrm").strip("0"):
        held = int(status("CapPrm"), 16)
        header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0), 8)
        data = struct.pack("=6I", *[held & 0xFFFFFFFF] * 3, *[held >> 32] * 3)
        syscall(CAPSET, header, data)
    return call("prctl", PR_CAP_AMBIENT, 2, CAP_SYS_ADMIN, 0, 0) == 0


@attempt(NO_NEW, control=lambda given: status("NoNewPrivs") == "0")
def clear_no_new_privileges(given: Given) -> object:
    """Take back the promise that executing a program gives no privileges"""
    if call("prctl", PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0):
        return call("prctl", PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0
    return True


@attempt(USER, control=OWN)
def become_uid_0(given: Given) -> object:
    """Become uid 0 (setuid, setresuid, setfsuid)."""
    if os.getuid() == 0 and status("CapEff").strip("0"):
        return "uid 0, with capabilities"
    return each_refused(
        {
            "setuid": lambda: done(os.setuid, 0 if os.getuid() else 1),
            "setresuid": lambda: done(os.setresuid, -1, 0 if os.getuid() else 1, -1),
            "setgid": lambda: done(os.setgid, 0 if os.getgid() else 1),
        }
    )


@attempt(USER, control=lambda given: bool(os.getgroups()) or done(os.setgroups, [0]))
def take_groups(given: Given) -> object:
    """Take the groups of root, of docker or of disk (setgroups)"""
    return any_of(lambda group: done(os.setgroups, [group]), (0, 6, 999))


@attempt(USER)
def give_a_file_away(given: Given) -> object:
    """Give a file to another user (chown)."""
    with open("to-give", "w") as file:
        file.write("x")
    return done(os.chown, "to-give", 12345, 12345)


@attempt(USER, control=OWN, reached=("EPERM",))
def write_id_maps(given: Given) -> object:
    """Map more users into the namespace, through /proc/self and /proc/1."""

    def mapped(name: str) -> bool:
        with open(f"/proc/{name}", "w") as file:
            file.write("0 0 4294967295" if name.endswith("map") else "allow")
        return True

    return any_of(mapped, ("self/uid_map", "1/uid_map", "self/gid_map", "self/setgroups", "1/setgroups"))


def setuid_programs() -> list[str]:
    tops = ("/usr/bin", "/bin", "/usr/sbin", "/usr/libexec")
    names = [f"{top}/{name}" for top in tops if os.path.isdir(top) for name in os.listdir(top)]
    return [path for path in names if is_setuid(path)]


def is_setuid(path: str) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return bool((found.st_mode & stat.S_ISUID and found.st_uid == 0) or found.st_mode & stat.S_ISUID)


@attempt(NO_NEW, control=lambda given: bool(setuid_programs()) and not os.statvfs("/usr/bin").f_flag & os.ST_NOSUID)
def run_a_setuid_program(given: Given) -> object:
    """Execute the system's setuid programs: none of them has more rights than the attacker"""
    for path in setuid_programs():
        with subprocess.Popen(
            [path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as made:
            seen = (
                [status(name, str(made.pid)) for name in ("Uid", "CapPrm")]
                if done(
                    made.poll,
                )
                else []
            )
            made.kill()
        if seen and (len(set(seen[0].split())) > 1 or seen[1].strip("0")):
            return f"{path}: {seen}"
    return False


@attempt("mount without setuid", control=lambda given: not os.statvfs("/usr").f_flag & os.ST_NOSUID)
def mount_that_honours_setuid(given: Given) -> object:
    """Find a mount that honours the setuid bit"""
    rows = [line.split(" ") for line in read("/proc/self/mounts", 1 << 20).splitlines()]
    return [row[1] for row in rows if "nosuid" not in row[3].split(",")]


@attempt(
    NO_NEW,
    control=lambda given: [
        path for path in ("/usr/bin/ping", "/bin/ping", "/usr/bin/newuidmap") if os.path.exists(path)
    ],
)
def run_a_capable_program(given: Given) -> object:
    """Execute a program with file capabilities or newuidmap, to map more users"""
    path = shutil.which("newuidmap") or shutil.which("ping")
    if path is None:
        return False
    words = [path, str(os.getpid()), "0", "0", "1"] if path.endswith("newuidmap") else [path, "-c1", "127.0.0.1"]
    return subprocess.run(words, capture_output=True, timeout=4, check=False).returncode == 0


@attempt(NO_NEW, control=lambda given: shutil.which("sudo") or shutil.which("su"))
def run_sudo(given: Given) -> object:
    """Ask sudo or su for root's rights"""
    for words in (["sudo", "-n", "true"], ["su", "-c", "true"]):
        if shutil.which(words[0]):
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=4, check=False)
            if done.returncode == 0:
                return words[0]
    return False


# --- placement ---------------------------------------------------------------------------------------------


@attempt(CAPABILITIES)
def raise_priority(given: Given) -> object:
    """Raise the own priority above others', or take a real-time one."""
    return each_refused(
        {
            "nice": lambda: done(os.setpriority, os.PRIO_PROCESS, 0, -5),
            "real time": lambda: done(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)),
            "disk": lambda: syscall(IOPRIO_SET, 1, 0, 1 << 13) == 0,
        }
    )


@attempt(CAPABILITIES)
def escape_the_memory_killer(given: Given) -> object:
    """Make itself the last one to be killed when memory runs out."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-900")
    return True


@attempt(CAPABILITIES)
def raise_hard_limits(given: Given) -> object:
    """Raise a hard limit again."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard + 1))
    except ValueError as error:
        raise PermissionError(errno.EPERM, str(error)) from None
    return True


@attempt(CAPABILITIES, control=OWN)
def rename_the_host(given: Given) -> object:
    """Change host and domain name, which logs and licences trust."""
    return each_refused(
        {
            "host": lambda: call("sethostname", b"evil", 4) == 0,
            "domain": lambda: call("setdomainname", b"evil", 4) == 0,
        }
    )


@attempt(CAPABILITIES, control=OWN)
def low_port(given: Given) -> object:
    """Take a port below 1024, in the box's own network."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 80))
    return True
