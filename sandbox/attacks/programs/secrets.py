"""Secrets: the caller's environment, home, keys, queues and memory, and what the kernel tells of the host."""

from __future__ import annotations

import ctypes
import os
import pwd
import re
import resource

from stockade.sandbox.attacks.toolbox import (
    Absent,
    Given,
    any_of,
    attempt,
    checked,
    ctypes_array,
    each_refused,
    libc,
    openable,
    read,
    syscall,
)

GROUP = "B environment, home, secrets"
VIEW, HOME = "mount namespace: it is not in the view", "an empty home of its own"
ENVIRONMENT = "cleared environment"
IPC = "IPC namespace"
KEYS = "syscall filter"
MODES = "uid drop, file modes and masks"
KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219}
ADD_KEY = {"x86_64": 248, "aarch64": 217, "riscv64": 217}
REQUEST_KEY = {"x86_64": 249, "aarch64": 218, "riscv64": 218}
SYSLOG = {"x86_64": 103, "aarch64": 116, "riscv64": 116}
MQ_OPEN = {"x86_64": 240, "aarch64": 180, "riscv64": 180}
SESSION, USER = -3, -4
READ, SEARCH, LINK, DESCRIBE, TO_PARENT, PERSISTENT = 11, 10, 8, 6, 18, 22


# --- home --------------------------------------------------------------------------------------------------


@attempt(HOME)
def read_the_home(given: Given) -> object:
    """Read an SSH key, cloud credentials and .netrc of the caller's home."""
    names = (".ssh/id_ed25519", ".aws/credentials", ".netrc")
    return any_of(lambda name: given.secret in read(f"{given.home}/{name}"), names)


@attempt(HOME, control=lambda given: given.secret in read(f"{given.home}/.netrc"))
def read_home_by_tilde(given: Given) -> object:
    """Find the home by ``~`` without HOME, by the account database, and by the parents of all directories"""
    os.environ.pop("HOME", None)
    homes = {os.path.expanduser("~"), pwd.getpwuid(os.getuid()).pw_dir, "/proc/self/cwd/../home", "/proc/1/cwd"}
    return any_of(lambda home: given.secret in read(f"{home}/.netrc"), sorted(homes))


@attempt(HOME, facts=("home",))
def plant_a_profile(given: Given) -> object:
    """Write a shell profile that runs at the caller's next login."""
    with open(f"{given.home}/.bashrc", "w") as file:
        file.write("evil\n")
    return os.path.exists(f"{given.home}/.netrc")


@attempt(VIEW, control=lambda given: os.listdir("/home") or os.listdir("/root"))
def list_homes(given: Given) -> object:
    """List other users' homes and root's"""
    found = [f"{top}/{name}" for top in ("/home", "/root") if os.path.isdir(top) for name in os.listdir(top)]
    return ", ".join(path for path in found if os.path.isdir(path) and os.listdir(path))


# --- environment -------------------------------------------------------------------------------------------


@attempt(ENVIRONMENT)
def own_environment(given: Given) -> object:
    """Find a secret variable of the caller in the program's own environment."""
    return any(given.secret in value for value in os.environ.values())


@attempt(ENVIRONMENT)
def environments_in_proc(given: Given) -> object:
    """Read the environment of every process that /proc shows, the box's first one above all."""

    def found(pid: str) -> bool:
        return given.secret in read(f"/proc/{pid}/environ", 1 << 17)

    return any_of(found, [pid for pid in os.listdir("/proc") if pid.isdigit()])


@attempt(ENVIRONMENT, control=lambda given: given.secret in memory_of(given.victim))
def memory_of_the_first_process(given: Given) -> object:
    """Search the memory of the box's first process, which may be traced, for the caller's secrets"""
    return given.secret in memory_of(1)


@attempt("options by descriptor", control=lambda given: given.secret in read(f"/proc/{given.victim}/cmdline"))
def command_line_of_the_first_process(given: Given) -> object:
    """Find paths of the host and values of variables in the first process's command line"""
    line = read("/proc/1/cmdline", 1 << 17)
    return [word for word in (given.top, given.secret, "--setenv") if word in line]


def memory_of(pid: int) -> str:
    """Everything writable in a process, as text."""
    found = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            low, high, modes = re.split("[- ]", line)[:3]
            if modes.startswith("rw"):
                memory.seek(int(low, 16))
                try:
                    found.append(memory.read(min(int(high, 16) - int(low, 16), 1 << 24)).decode("latin-1"))
                except OSError:
                    continue
    return "".join(found)


# --- descriptors -------------------------------------------------------------------------------------------


@attempt("descriptor closing")
def inherited_descriptors(given: Given) -> object:
    """Use a descriptor that the caller left open: a directory, a file, a connected socket."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        target = os.readlink(f"/proc/self/fd/{name}") if os.path.lexists(f"/proc/self/fd/{name}") else ""
        if target.startswith("socket:") or target.startswith(given.top):
            found.append(f"{name}: {target}")
    return ", ".join(found)


def leading_out(given: Given, pid: int) -> str:
    def leads_out(name: str) -> object:
        path = f"/proc/{pid}/fd/{name}"
        return os.path.isdir(path) and "beside" in os.listdir(path)

    return any_of(leads_out, os.listdir(f"/proc/{pid}/fd"))


@attempt("descriptor closing", control=lambda given: leading_out(given, given.victim))
def descriptors_of_the_first_process(given: Given) -> object:
    """Walk out through a descriptor of the box's first process that still leads to a directory of the host"""
    return leading_out(given, 1)


# --- files of the system -----------------------------------------------------------------------------------


@attempt(MODES)
def password_hashes(given: Given) -> object:
    """Read the password hashes."""
    return any_of(read, ("/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/security/opasswd"))


@attempt(MODES)
def private_keys_of_the_host(given: Given) -> object:
    """Read the host's SSH and TLS keys."""
    tops = ("/etc/ssh", "/etc/ssl/private", "/etc/letsencrypt")
    paths = [f"{top}/{name}" for top in tops if os.path.isdir(top) for name in listed(top)]
    keys = [path for path in paths if path.endswith(("_key", ".key", ".pem")) and not os.path.isdir(path)]
    if not keys:
        raise Absent("this host has none")
    return any_of(read, keys)


def listed(top: str) -> list[str]:
    try:
        return os.listdir(top)
    except OSError:
        return []


@attempt(MODES, control=lambda given: os.listdir("/var/log"))
def logs(given: Given) -> object:
    """Read the host's logs and mails, and what others have in their spools"""
    return ", ".join(
        name for top in ("/var/log", "/var/mail", "/var/spool/cron", "/var/backups") for name in listed(top)
    )


@attempt(VIEW)
def temporary_files_of_others(given: Given) -> object:
    """Read what other programs have in /tmp, /var/tmp, /run and /dev/shm."""
    tops = ("/tmp", "/var/tmp", "/run", "/dev/shm")  # noqa: S108
    found = [f"{top}/{name}" for top in tops for name in listed(top) if f"{top}/{name}" not in given.top]
    return ", ".join(
        path for path in found if os.path.isfile(path) or (os.path.isdir(path) and given.top not in path)
    )


@attempt(VIEW, control=lambda given: os.listdir("/sys"))
def hardware_and_firmware(given: Given) -> object:
    """Read serial numbers, firmware variables and the kernel's symbols in /sys"""
    tops = ("/sys/class", "/sys/firmware", "/sys/kernel", "/sys/block", "/sys/fs", "/sys/module", "/boot")
    return any_of(os.listdir, tops)


# --- kernel keys -------------------------------------------------------------------------------------------


def key_content(number: int) -> str:
    buffer = ctypes.create_string_buffer(100)
    size = syscall(KEYCTL, READ, number, buffer, 100)
    return buffer.raw[:size].decode("latin-1")


def need_key(given: Given) -> int:
    if not given.key:
        raise Absent("this kernel has no keys, or the machine's call numbers are not known")
    return int(given.key)


@attempt(KEYS)
def search_the_session_keyring(given: Given) -> object:
    """Search the caller's session keyring, which no namespace separates, and read the key."""
    need_key(given)
    return given.secret in key_content(syscall(KEYCTL, SEARCH, SESSION, b"user", given.token.encode(), 0))


@attempt(KEYS)
def key_by_number(given: Given) -> object:
    """Read the caller's key by its number."""
    return given.secret in key_content(need_key(given))


@attempt(KEYS, control=lambda given: syscall(REQUEST_KEY, b"user", given.token.encode(), None, 0) > 0)
def request_the_key(given: Given) -> object:
    """Request it by name, through all keyrings"""
    need_key(given)
    return given.secret in key_content(syscall(REQUEST_KEY, b"user", given.token.encode(), None, 0))


@attempt(KEYS)
def link_keys_into_the_user_keyring(given: Given) -> object:
    """Add a key of its own, as a message to other programs of the same user or to fill their quota."""
    return syscall(ADD_KEY, b"user", b"stockade-planted", b"x", 1, SESSION) > 0


@attempt(KEYS, control=lambda given: syscall(KEYCTL, DESCRIBE, need_key(given), None, 0) > 0)
def keyring_of_the_parent(given: Given) -> object:
    """Replace the session keyring of the parent process, or take the persistent keyring of the uid"""
    return each_refused(
        {
            "persistent": lambda: syscall(KEYCTL, PERSISTENT, -1, SESSION) > 0,
            "parent": lambda: syscall(KEYCTL, TO_PARENT) == 0,
        }
    )


@attempt("mask over /proc/keys", control=lambda given: given.token in read("/proc/keys", 1 << 17))
def list_keys(given: Given) -> object:
    """List the caller's keys in /proc/keys"""
    return given.token in read("/proc/keys", 1 << 17)


# --- queues and shared memory ------------------------------------------------------------------------------


@attempt(IPC)
def shared_memory(given: Given) -> object:
    """Attach a System V segment of the host by its number, and read it."""
    libc.shmat.restype = ctypes.c_void_p
    place = libc.shmat(given.ipc["segment"], None, 0o10000)
    checked(-1 if place in (None, ctypes.c_void_p(-1).value) else 0, "shmat")
    return given.secret in ctypes.string_at(place, 100).decode("latin-1")


@attempt(IPC)
def message_queue(given: Given) -> object:
    """Send to a System V message queue of the host."""
    message = ctypes.create_string_buffer(b"\1\0\0\0\0\0\0\0evil")
    return checked(libc.msgsnd(given.ipc["queue"], message, 4, 0o4000), "msgsnd") == 0


@attempt(IPC)
def semaphores(given: Given) -> object:
    """Change a System V semaphore of the host."""
    return checked(libc.semop(given.ipc["semaphores"], ctypes_array(b"\0\0\1\0\0\0"), 1), "semop") == 0


@attempt(IPC, control=lambda given: read("/proc/sysvipc/shm", 1 << 16).count("\n") > 1)
def list_shared_memory(given: Given) -> object:
    """List the host's segments in /proc/sysvipc"""
    return read("/proc/sysvipc/shm", 1 << 16).count("\n") > 1


# --- what the kernel tells ---------------------------------------------------------------------------------


@attempt("syscall filter", control=lambda given: syscall(SYSLOG, 10, None, 0) > 0)
def kernel_log(given: Given) -> object:
    """Read the kernel's log by syslog(2), with its addresses and other programs' faults"""
    buffer = ctypes.create_string_buffer(1 << 16)
    return syscall(SYSLOG, 3, buffer, 1 << 16) > 0


@attempt(VIEW)
def kernel_log_device(given: Given) -> object:
    """Read it from /dev/kmsg and /proc/kmsg."""
    return any_of(openable, ("/dev/kmsg", "/proc/kmsg"))


@attempt("uid drop and capability drop")
def kernel_addresses(given: Given) -> object:
    """Read kernel addresses that are not zero from /proc/kallsyms and /proc/modules."""
    lines = read("/proc/kallsyms", 4096).splitlines()
    return [line for line in lines if line and line.split(" ")[0].strip("0")]


@attempt("uid drop and capability drop")
def kernel_memory(given: Given) -> object:
    """Open the kernel's memory: /proc/kcore, /dev/mem, /dev/kmem."""
    return any_of(openable, ("/proc/kcore", "/dev/mem", "/dev/kmem"))


def core_limit(given: Given) -> int:
    """The largest core file; no crash is caused where a program of the host would be started for it."""
    if read("/proc/sys/kernel/core_pattern").startswith("|"):
        raise Absent("a crash would start the host's own handler of core files")
    return resource.getrlimit(resource.RLIMIT_CORE)[1]


@attempt("limits: no core files", control=core_limit)
def core_dump(given: Given) -> object:
    """Crash, so that a core file with the memory of the process is written on the host"""
    core_limit(given)
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    pid = os.fork()
    if pid == 0:
        ctypes.string_at(0)
    return os.WCOREDUMP(os.waitpid(pid, 0)[1]) and "core was dumped"
