"""/proc and /sys: nothing that changes the host can be opened for writing, and no process outside be reached."""

from __future__ import annotations

import os

from stockade.sandbox.attacks.toolbox import Absent, Given, add, any_of, attempt, bound, openable, read

GROUP = "Proc and sys"
WRITING = "uid drop, or read-only /proc for a kept root"
VIEW = "mount namespace: it is not in the view"

KNOBS = {
    "core-pattern": ("Write core_pattern: what stands there runs as root at the next crash", WRITING,
                     "/proc/sys/kernel/core_pattern"),
    "modprobe": ("Write the path of the program that loads modules, as root", WRITING, "/proc/sys/kernel/modprobe"),
    "sysrq": ("Give the kernel an order by sysrq-trigger", WRITING, "/proc/sysrq-trigger"),
    "host-name-setting": ("Write the host's name through /proc", WRITING, "/proc/sys/kernel/hostname"),
    "namespace-limits": ("Raise or lower how many namespaces users may have", WRITING,
            "/proc/sys/user/max_user_namespaces"),
    "memory-settings": ("Change the host's memory management", WRITING, "/proc/sys/vm/overcommit_memory",
            "/proc/sys/vm/drop_caches"),
    "file-limits": ("Change the host's limits on files and pipes", WRITING, "/proc/sys/fs/file-max",
            "/proc/sys/fs/protected_hardlinks"),
    "shutdown-command": ("Write the program that the kernel runs to power off", WRITING,
            "/proc/sys/kernel/poweroff_cmd"),
    "interrupts": ("Move interrupts between processors", WRITING, "/proc/irq/default_smp_affinity"),
    "address-randomisation": ("Switch address randomisation off", WRITING, "/proc/sys/kernel/randomize_va_space"),
    "binary-formats": ("Register an interpreter for everybody's programs (binfmt_misc)", VIEW,
            "/proc/sys/fs/binfmt_misc/register"),
    "uevent-helper": ("Write the program that the kernel runs for new devices", VIEW, "/sys/kernel/uevent_helper"),
    "cgroups": ("Write into the host's cgroups: limits, members, release agents", VIEW,
                "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/tasks",
            "/sys/fs/cgroup/unified/cgroup.procs"),
    "tracing": ("Trace the kernel (tracefs, debugfs)", VIEW, "/sys/kernel/tracing/tracing_on",
            "/sys/kernel/debug/tracing/tracing_on"),
    "power": ("Put the machine to sleep", VIEW, "/sys/power/state", "/sys/kernel/reboot/mode"),
    "processors": ("Take a processor offline, in the part of /sys that is shown", "read-only mount",
                   "/sys/devices/system/cpu/cpu1/online", "/sys/devices/system/cpu/smt/control",
            "/sys/devices/system/memory/probe"),
    "firmware-variables": ("Change firmware variables", VIEW, "/sys/firmware/efi/efivars"),
    "security-modules": ("Load a policy of a security module", VIEW, "/sys/fs/selinux/load",
            "/sys/kernel/security/apparmor/.load"),
}  # fmt: skip


def writable(paths: tuple[str, ...]) -> object:
    """Opened for writing, nothing written."""
    if not any(os.path.lexists(path) for path in paths) and os.path.exists("/sys/kernel"):
        raise Absent("this kernel does not have it")
    return any_of(lambda path: openable(path, os.O_RDONLY if os.path.isdir(path) else os.O_WRONLY), paths)


for _word, (_title, _layer, *_paths) in KNOBS.items():
    add(__name__, GROUP, _word, _title, bound(lambda given, paths: writable(paths), tuple(_paths)), _layer)


@attempt("pid namespace", control=lambda given: "beside" in os.listdir(f"/proc/{given.victim}/root{given.top}"))
def roots_of_processes(given: Given) -> object:
    """Walk out through /proc/PID/root of every process in view, the first one above all"""
    pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
    return any_of(lambda pid: "beside" in os.listdir(f"/proc/{pid}/root{given.top}"), pids)


@attempt("pid namespace", control=lambda given: os.path.isdir(f"/proc/{given.victim}/cwd/"))
def directories_of_processes(given: Given) -> object:
    """Walk out through /proc/PID/cwd, and far up from there"""
    pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
    return any_of(lambda pid: read(f"/proc/{pid}/cwd/{'../' * 20}{given.beside}/secret"), pids)


@attempt("pid namespace", control=lambda given: bool(os.listdir(f"/proc/{given.victim}/map_files")))
def mapped_files_of_processes(given: Given) -> object:
    """Open what processes have mapped (/proc/PID/map_files): files that are in no view"""
    found = []
    for pid in (name for name in os.listdir("/proc") if name.isdigit() and name != str(os.getpid())):
        try:
            links = [os.readlink(f"/proc/{pid}/map_files/{name}") for name in os.listdir(f"/proc/{pid}/map_files")]
        except OSError:
            continue
        found += [link for link in links if given.top in link]
    return ", ".join(found)


@attempt("pid namespace", control=lambda given: openable("/proc/1/status"))
def another_proc(given: Given) -> object:
    """Find a second /proc, of the host, anywhere in the view"""
    rows = [line.split(" ") for line in read("/proc/self/mounts", 1 << 20).splitlines()]
    return [row[1] for row in rows if row[2] == "proc" and not (row[1] == "/proc" or row[1].startswith("/proc/"))]


@attempt(
    "mount namespace",
    control=lambda given: any("sysfs" in line for line in read("/proc/self/mounts", 1 << 20).splitlines()),
)
def kernel_file_systems(given: Given) -> object:
    """Find a writable file system of the kernel's: sysfs, cgroup, debugfs, bpf, configfs, securityfs"""
    kinds = {
        "sysfs",
        "cgroup",
        "cgroup2",
        "debugfs",
        "tracefs",
        "bpf",
        "configfs",
        "securityfs",
        "efivarfs",
        "pstore",
    }
    rows = [line.split(" ") for line in read("/proc/self/mounts", 1 << 20).splitlines()]
    return [row[1] for row in rows if row[2] in kinds and "ro" not in row[3].split(",")]


@attempt("uid drop and capability drop", control=lambda given: openable("/proc/self/mem", os.O_RDWR))
def numbers_of_processes(given: Given) -> object:
    """Choose the number of the next process (ns_last_pid), to take one that others trust"""
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write("30000")
    return True
