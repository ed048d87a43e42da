"""Calls that reach deep into the kernel, each made so that nothing would come of it, and ways around the filter."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct

from stockade.sandbox.attacks.toolbox import OWN, Absent, Given, add, any_of, attempt, bound, call, libc, syscall

GROUP = "Kernel interfaces"
FILTER = "syscall filter"
BAD = 1
"""An address that no process has anything at."""

CALLS: dict[str, tuple[str, dict[str, int] | int, tuple[object, ...], tuple[str, ...]]] = {
    "bpf": ("Load a program into the kernel (bpf)", {"x86_64": 321, "aarch64": 280, "riscv64": 280},
            (0, BAD, 4096), ("E2BIG", "EINVAL", "EFAULT")),
    "perf": ("Count events of the kernel and of others (perf_event_open)", {"x86_64": 298, "aarch64": 241, "riscv64": 241},
             (BAD, 0, -1, -1, 0), ("EFAULT", "EINVAL", "E2BIG")),
    "userfaultfd": ("Hold the kernel at page faults (userfaultfd)", {"x86_64": 323, "aarch64": 282, "riscv64": 282},
                    (1,), ()),
    "io-uring": ("Do I/O that no filter sees (io_uring)", 425, (0, BAD), ("EFAULT", "EINVAL")),
    "module": ("Load a kernel module (init_module)", {"x86_64": 175, "aarch64": 105, "riscv64": 105},
               (BAD, 0, BAD), ("EFAULT", "EINVAL", "ENOEXEC")),
    "module-by-descriptor": ("Load one from a descriptor (finit_module)", {"x86_64": 313, "aarch64": 273, "riscv64": 273},
                             (-1, b"", 0), ("EBADF", "EINVAL", "ENOEXEC")),
    "remove-module": ("Remove one (delete_module), with flags that make nothing of it",
                      {"x86_64": 176, "aarch64": 106, "riscv64": 106}, (BAD, 0), ("EFAULT", "EINVAL", "ENOENT")),
    "kexec": ("Put another kernel in place (kexec_load)", {"x86_64": 246, "aarch64": 104, "riscv64": 104},
              (0, 17, BAD, 1 << 62), ("EINVAL", "EFAULT", "EADDRNOTAVAIL")),
    "reboot": ("Restart the machine (reboot), with a magic number that is none",
               {"x86_64": 169, "aarch64": 142, "riscv64": 142}, (1, 2, 3, 0), ("EINVAL",)),
    "swap": ("Swap to a file (swapon)", {"x86_64": 167, "aarch64": 224, "riscv64": 224},
             (BAD, 1 << 30), ("EFAULT", "EINVAL")),
    "accounting": ("Log every process of the host (acct)", {"x86_64": 163, "aarch64": 89, "riscv64": 89},
                   (b"/nonexistent/file",), ("ENOENT", "EINVAL")),
    "quota": ("Change quotas of a file system (quotactl)", {"x86_64": 179, "aarch64": 60, "riscv64": 60},
              (0x800002 << 8, b"/nonexistent", 0, BAD), ("ENOENT", "EINVAL", "ENOTBLK", "EFAULT", "ENODEV")),
    "clock": ("Set the clock (settimeofday), to nothing", {"x86_64": 164, "aarch64": 170, "riscv64": 170}, (0, 0), ()),
    "clock-by-number": ("Set it by clock_settime, to a time that is none",
                        {"x86_64": 227, "aarch64": 112, "riscv64": 112}, (0, struct.pack("=qq", 0, 1 << 60)), ("EINVAL",)),
    "clock-rate": ("Change its rate (adjtimex), by a request that only reads",
                   {"x86_64": 159, "aarch64": 171, "riscv64": 171}, (bytes(208),), ()),
    "ports": ("Reach the hardware's ports (iopl)", {"x86_64": 172}, (3,), ()),
    "segments": ("Change segments of the processor (modify_ldt)", {"x86_64": 154}, (0, bytes(8), 8), ()),
    "handle": ("Enter a namespace by a descriptor (setns), a bad one", {"x86_64": 308, "aarch64": 268, "riscv64": 268},
               (-1, 0), ("EBADF",)),
}  # fmt: skip
for _word, (_title, _numbers, _arguments, _reached) in CALLS.items():
    add(
        __name__, GROUP, _word, _title,
        bound(lambda given, numbers, words: syscall(numbers, *words) >= 0, _numbers, _arguments),
        FILTER, reached=_reached,
    )  # fmt: skip


# --- around the filter -------------------------------------------------------------------------------------

KEYCTL, GETPID = {"x86_64": 250, "aarch64": 219, "riscv64": 219}, 39
ADD_SECCOMP = {"x86_64": 317, "aarch64": 277, "riscv64": 277}
PTRACE_TRACEME, PTRACE_SYSCALL, PTRACE_POKEUSER, PTRACE_SEIZE, PTRACE_SETOPTIONS = 0, 24, 6, 0x4206, 0x4200
SUSPEND_SECCOMP, TRACESYSGOOD = 0x200000, 1
SECCOMP_SET_MODE_FILTER, NEW_LISTENER, ALLOW = 1, 8, 0x7FFF0000


def keyring(given: Given) -> object:
    """A call that is refused, and works elsewhere."""
    return syscall(KEYCTL, 0, -3, 1) > 0


def need_x86() -> bool:
    if os.uname().machine != "x86_64":
        raise Absent("only x86_64 has this entry")
    return True


@attempt(FILTER, control=lambda given: need_x86() and by_int80(20))
def old_entry(given: Given) -> object:
    """Call by the 32-bit entry (int 0x80), where numbers mean other calls"""
    need_x86()
    return by_int80(288) != 0


def by_int80(number: int) -> int:
    """The answer of the 32-bit call ``number`` with empty arguments, in a child: it may be killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(bytes([0x53, 0x31, 0xDB, 0xB8]) + number.to_bytes(4, "little") + bytes([0xCD, 0x80, 0x5B, 0xC3]))
        answer = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
        os.write(writer, str(answer).encode())
        os._exit(0)
    os.close(writer)
    text = os.read(reader, 100)
    killed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not text:
        os.kill(os.getpid(), -killed if killed < 0 else signal.SIGKILL)
    return int(text)


@attempt(FILTER, reached=("ENOSYS",), control=lambda given: need_x86() and syscall(0x40000000 | GETPID))
def x32_entry(given: Given) -> object:
    """Call by the x32 numbers, which a filter may not have thought of"""
    need_x86()
    return syscall(0x40000000 | 250, 0, -3, 1) > 0


@attempt(FILTER, control=keyring)
def allow_by_a_second_filter(given: Given) -> object:
    """Load a second filter that allows everything, and call again"""
    program = struct.pack("=HBBI", 6, 0, 0, ALLOW)
    buffer = ctypes.create_string_buffer(program, 8)
    syscall(ADD_SECCOMP, SECCOMP_SET_MODE_FILTER, 0, struct.pack("=HxxxxxxQ", 1, ctypes.addressof(buffer)))
    return keyring(given)


@attempt(FILTER, control=keyring)
def allow_by_a_listener(given: Given) -> object:
    """Have a refused call handled by a listener of its own instead (user notification)"""
    need_x86()
    signal.setitimer(signal.ITIMER_REAL, 0.3)  # without the first filter the call waits for the listener
    program = struct.pack("=HBBIHBBIHBBIHBBI", 0x20, 0, 0, 0, 0x15, 0, 1, 250, 6, 0, 0, 0x7FC00000, 6, 0, 0, ALLOW)
    buffer = ctypes.create_string_buffer(program, 32)
    words = struct.pack("=HxxxxxxQ", 4, ctypes.addressof(buffer))
    syscall(ADD_SECCOMP, SECCOMP_SET_MODE_FILTER, NEW_LISTENER, words)
    return keyring(given)


def traced_child(act: object) -> int:
    """A child that stops before ``act``, traced by this process."""
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    pid = os.fork()
    if pid == 0:
        libc.ptrace(PTRACE_TRACEME, 0, None, None)
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            found = act()  # type: ignore[operator]
        except OSError:
            found = False
        os._exit(7 if found else 0)
    os.waitpid(pid, 0)
    return pid


@attempt(FILTER, control=lambda given: need_x86() and call_exchanged())
def exchange_the_call(given: Given) -> object:
    """Trace a child and exchange an allowed call for a refused one after it was made"""
    need_x86()
    return call_exchanged()


def call_exchanged() -> bool:
    """getpid in the child, exchanged for keyctl(GET_KEYRING_ID, SESSION, create) at its entry."""
    pid = traced_child(lambda: syscall(GETPID, 0, -3, 1) != os.getpid())
    entering, exchanged = True, False
    while True:
        call("ptrace", PTRACE_SYSCALL, pid, None, None)
        status = os.waitpid(pid, 0)[1]
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            return exchanged and os.WIFEXITED(status) and os.WEXITSTATUS(status) == 7
        if entering and not exchanged and call_number(pid) == GETPID:
            call("ptrace", PTRACE_POKEUSER, pid, ctypes.c_void_p(15 * 8), ctypes.c_void_p(250))
            exchanged = True
        entering = not entering


def call_number(pid: int) -> int:
    with open(f"/proc/{pid}/syscall") as file:
        return int(file.read().split()[0])


@attempt("capability drop")
def suspend_the_filter(given: Given) -> object:
    """Have the filter of a traced child suspended, as checkpointing tools do."""
    pid = traced_child(lambda: False)
    try:
        return call("ptrace", PTRACE_SETOPTIONS, pid, None, ctypes.c_void_p(SUSPEND_SECCOMP)) == 0
    finally:
        os.kill(pid, signal.SIGKILL)


@attempt(FILTER)
def type_into_the_terminal(given: Given) -> object:
    """Push keystrokes into a terminal (TIOCSTI, TIOCLINUX), also with bits in the request that the kernel ignores."""
    numbers = {"x86_64": 16, "aarch64": 29, "riscv64": 29}
    _person, own = os.openpty()
    call("ioctl", own, 0x540E, 0)
    return any_of(lambda request: syscall(numbers, own, request, b"x") == 0, (0x5412, 0x5412 | 1 << 40, 0x541C))


@attempt("capability drop", control=OWN, reached=("EPERM",))
def load_without_a_filter(given: Given) -> object:
    """Load a program into the kernel that a socket runs (the old packet filter), and read the kernel with it."""
    program = struct.pack("=HBBIHBBI", 0x20, 0, 0, 0xFFFFF000, 6, 0, 0, 0xFFFF)
    buffer = ctypes.create_string_buffer(program, 16)
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_RAW, 17) as made:
        made.setsockopt(socket.SOL_SOCKET, 26, struct.pack("=HxxxxxxQ", 2, ctypes.addressof(buffer)))
    return True
