"""The filters in the real kernel, under bwrap: each refusal with a control, and ordinary programs that must work.

A call that needs a capability fails with EPERM in the box anyway, so an errno alone proves nothing. Besides the
real program we load one whose errnos are shifted by 1000, to values that no kernel returns: those are the filter's.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stockade.sandbox import bpf, seccomp
from stockade.sandbox import seccomp_rules as rules

pytestmark = pytest.mark.kernel

MACHINE = os.uname().machine
PATH = "/usr/local/bin:/usr/bin:/bin"
SHIFT = 1000
SIGSYS = 31
SIGCHLD = 17
HIGH = 1 << 32

Call = tuple[int, ...]

# Each call is made in a child of its own: some kill, some fork. The result is an errno, 0, or minus a signal.
TRY_CALLS = """
import ctypes, json, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def by_int80(number):
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes([0x53, 0xB8]) + number.to_bytes(4, "little") + bytes([0xCD, 0x80, 0x5B, 0xC3]))
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()

def attempt(number, args):
    if number < 0:
        return 0 if by_int80(-number) > 0 else 1
    caller = os.getpid()
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_ulong(arg) for arg in args])
    if os.getpid() != caller:
        os._exit(0)
    return ctypes.get_errno() if result == -1 else 0

def in_child(number, args):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        os.write(writer, str(attempt(number, args)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return int(text) if text else code

print(json.dumps([in_child(number, args) for number, *args in json.loads(sys.argv[1])]))
"""


def box(
    bwrap: str, program: bytes, command: list[str], workspace: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in a box that differs by nothing but ``--seccomp``; an empty program means none."""
    line = [bwrap, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    if workspace is not None:
        line += ["--bind", str(workspace), str(workspace), "--chdir", str(workspace)]
    line += ["--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--cap-drop", "ALL"]
    line += ["--die-with-parent", "--setenv", "HOME", str(workspace or "/tmp")]
    fd = os.memfd_create("filter")
    try:
        os.write(fd, program)
        os.lseek(fd, 0, os.SEEK_SET)
        line += ["--seccomp", str(fd)] if program else []
        return subprocess.run(
            [*line, "--", *command],
            pass_fds=(fd,),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={"PATH": PATH, "LANG": "C.UTF-8"},
            timeout=100,
        )
    finally:
        os.close(fd)


def shifted(program: bytes) -> bytes:
    """The same filter with errnos that no kernel returns."""
    refuse = range(bpf.ERRNO, bpf.ERRNO + SHIFT)
    code = [op.replace(k=op.k + SHIFT) if op.code == 0x06 and op.k in refuse else op for op in bpf.decode(program)]
    return bpf.encode(code)


@functools.cache
def outcomes(bwrap: str, kind: str, shift: bool, calls: tuple[Call, ...]) -> dict[Call, int]:
    program = b"" if kind == "off" else seccomp.filter_program(kind)
    done = box(bwrap, shifted(program) if shift else program, [sys.executable, "-c", TRY_CALLS, json.dumps(calls)])
    assert done.returncode == 0, done.stderr
    return dict(zip(calls, json.loads(done.stdout), strict=True))


def number_of(name: str) -> int:
    number = seccomp.call_number(name, MACHINE)
    assert number is not None
    return number


# --- calls refused whatever the arguments ------------------------------------------------------------------

DENIED = {
    name: errno
    for errno, _reason, names in rules.DENY
    for name in names.split()
    if seccomp.call_number(name, MACHINE) is not None
}
DENIED_CALLS = tuple((number_of(name), 0, 0, 0, 0, 0, 0) for name in DENIED)
kinds = pytest.mark.parametrize("kind", ["default", "strict"])


@kinds
@pytest.mark.parametrize("name", DENIED)
def test_denied_call(bwrap: str, kind: str, name: str) -> None:
    call = (number_of(name), 0, 0, 0, 0, 0, 0)
    assert outcomes(bwrap, kind, False, DENIED_CALLS)[call] == DENIED[name]
    assert outcomes(bwrap, kind, True, DENIED_CALLS)[call] == DENIED[name] + SHIFT
    assert outcomes(bwrap, "off", False, DENIED_CALLS)[call] < SHIFT


STRICT_DENIED = [
    name
    for _reason, names in rules.STRICT_DENY
    for name in names.split()
    if seccomp.call_number(name, MACHINE) is not None
]
STRICT_CALLS = tuple((number_of(name), 0, 0, 0, 0, 0, 0) for name in STRICT_DENIED)


@pytest.mark.parametrize("name", STRICT_DENIED)
def test_call_denied_by_strict_alone(bwrap: str, name: str) -> None:
    call = (number_of(name), 0, 0, 0, 0, 0, 0)
    assert outcomes(bwrap, "strict", False, STRICT_CALLS)[call] == 1
    assert outcomes(bwrap, "strict", True, STRICT_CALLS)[call] == 1 + SHIFT
    assert 0 <= outcomes(bwrap, "default", True, STRICT_CALLS)[call] < SHIFT


def test_an_unheard_of_call_is_absent_in_strict(bwrap: str) -> None:
    call = (1000, 0, 0, 0, 0, 0, 0)
    assert outcomes(bwrap, "strict", True, (call,))[call] == 38 + SHIFT
    assert outcomes(bwrap, "default", True, (call,))[call] == 38


# --- calls refused for their arguments ---------------------------------------------------------------------

SOCKET, PAIR, IOCTL, CLONE, UNSHARE = map(number_of, ("socket", "socketpair", "ioctl", "clone", "unshare"))
STREAM, DATAGRAM, RAW, PACKET = 1, 2, 3, 10
PASSES = 0
BY_ARGUMENT: dict[str, tuple[Call, int]] = {
    "AF_UNIX": ((SOCKET, 1, STREAM, 0), PASSES),
    "AF_INET": ((SOCKET, 2, STREAM, 0), PASSES),
    "AF_INET datagram, cloexec": ((SOCKET, 2, DATAGRAM | 0x80000, 17), PASSES),
    "AF_INET6": ((SOCKET, 10, STREAM, 0), PASSES),
    "AF_NETLINK route": ((SOCKET, 16, RAW, 0), PASSES),
    "AF_NETLINK diag": ((SOCKET, 16, RAW, 4), 97),
    "AF_NETLINK audit": ((SOCKET, 16, RAW, 9), 97),
    "AF_NETLINK netfilter": ((SOCKET, 16, RAW, 12), 97),
    "AF_NETLINK uevent": ((SOCKET, 16, RAW, 15), 97),
    "AF_NETLINK netfilter, high half": ((SOCKET, 16 | HIGH, RAW, 12 | HIGH), 97),
    "AF_UNSPEC": ((SOCKET, 0, STREAM, 0), 97),
    **{f"family {family}": ((SOCKET, family, STREAM, 0), 97) for family in range(3, 10)},
    **{f"family {family}": ((SOCKET, family, STREAM, 0), 97) for family in (11, 12, 13, 14, 15)},
    "AF_PACKET": ((SOCKET, 17, RAW, 0), 97),
    "AF_PACKET, high half": ((SOCKET, 17 | HIGH, RAW, 0), 97),
    "SOCK_PACKET": ((SOCKET, 2, PACKET, 0), 97),
    "SOCK_PACKET, flags and high half": ((SOCKET, 2 | HIGH, PACKET | 0x80000 | HIGH, 0), 97),
    "AF_ALG": ((SOCKET, 38, 5, 0), 97),
    "AF_VSOCK": ((SOCKET, 40, STREAM, 0), 97),
    "AF_XDP": ((SOCKET, 44, RAW, 0), 97),
    "family -1": ((SOCKET, 2**64 - 1, STREAM, 0), 97),
    "pair AF_INET": ((PAIR, 2, STREAM, 0, 0), 97),
    "pair AF_TIPC": ((PAIR, 30, STREAM, 0, 0), 97),
    "TIOCSTI": ((IOCTL, 0, 0x5412, 0), 1),
    "TIOCSTI, high half": ((IOCTL, 0, 0x5412 | HIGH, 0), 1),
    "TIOCLINUX": ((IOCTL, 0, 0x541C, 0), 1),
    "TIOCLINUX, high half": ((IOCTL, 0, 0x541C | 0xFFFFFFFF << 32, 0), 1),
    "clone": ((CLONE, SIGCHLD, 0, 0, 0, 0), PASSES),
    **{f"clone {name}": ((CLONE, SIGCHLD | bit, 0, 0, 0, 0), 1) for name, bit in rules.NAMESPACES},
    "clone, two namespaces": ((CLONE, SIGCHLD | 0x50000000, 0, 0, 0, 0), 1),
    "unshare CLONE_FILES": ((UNSHARE, 0x400), PASSES),
    **{f"unshare {name}": ((UNSHARE, bit), 1) for name, bit in rules.NAMESPACES},
    "unshare CLONE_NEWTIME": ((UNSHARE, 0x80), 1),
    "unshare, two namespaces": ((UNSHARE, 0x10020000), 1),
}
ARGUMENT_CALLS = tuple(call for call, _errno in BY_ARGUMENT.values())


@kinds
@pytest.mark.parametrize("name", BY_ARGUMENT)
def test_call_by_argument(bwrap: str, kind: str, name: str) -> None:
    call, errno = BY_ARGUMENT[name]
    assert outcomes(bwrap, kind, False, ARGUMENT_CALLS)[call] == errno
    assert outcomes(bwrap, kind, True, ARGUMENT_CALLS)[call] == (errno + SHIFT if errno else 0)
    assert outcomes(bwrap, "off", False, ARGUMENT_CALLS)[call] < SHIFT


@pytest.mark.parametrize("name", ["clone CLONE_NEWUSER", "unshare CLONE_NEWUSER", "unshare, two namespaces"])
def test_without_the_filter_namespaces_can_be_made(bwrap: str, name: str) -> None:
    assert outcomes(bwrap, "off", False, ARGUMENT_CALLS)[BY_ARGUMENT[name][0]] == 0


def test_an_unfiltered_ioctl_looks_at_the_low_half(bwrap: str) -> None:
    """The kernel takes a dirty high half for the same request, so a rule that compares 64 bits has a hole."""
    plain, dirty = (IOCTL, 2, 0x5401, 0), (IOCTL, 2, 0x5401 | HIGH, 0)
    answers = outcomes(bwrap, "off", False, (plain, dirty))
    assert answers[plain] == answers[dirty]


# --- other architectures -----------------------------------------------------------------------------------


@kinds
@pytest.mark.skipif(MACHINE != "x86_64", reason="only x86_64 has 32-bit and x32 entries")
@pytest.mark.parametrize(("entry", "call"), [("int 0x80", (-20,)), ("x32", (0x40000000 | 39, 0))])
def test_foreign_entry_kills(bwrap: str, kind: str, entry: str, call: Call) -> None:
    getpid = (39, 0)
    control = outcomes(bwrap, "off", False, (call,))[call]
    assert control != -SIGSYS
    # A kernel without 32-bit emulation answers int 0x80 by itself, with SIGSEGV, before any filter is asked.
    killed = control if control < 0 else -SIGSYS
    assert outcomes(bwrap, kind, False, (call, getpid)) == {call: killed, getpid: 0}, entry


# --- programs that must work -------------------------------------------------------------------------------

PYTHON = """
import asyncio, concurrent.futures, multiprocessing, os, shutil, socket, subprocess, sys, tempfile, threading
async def child():
    process = await asyncio.create_subprocess_exec("echo", "async", stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0]
def serve():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.sendall(b"x")
        return server.accept()[0].recv(1)
if __name__ == "__main__":
    print(asyncio.run(child()), serve(), socket.socketpair()[0].family.name)
    print(subprocess.run(["echo", "run"], capture_output=True, text=True).stdout)
    with concurrent.futures.ThreadPoolExecutor() as pool, multiprocessing.get_context("fork").Pool(2) as workers:
        print(list(pool.map(abs, [-1])), workers.map(abs, [-2, -3]))
    with tempfile.NamedTemporaryFile(dir=".") as file:
        shutil.copyfile(sys.executable, file.name)
    os.mkfifo("fifo")
"""
NODE = """
const {Worker} = require('worker_threads'), fs = require('fs'), net = require('net');
fs.writeFileSync('out', 'x'); fs.copyFileSync('out', 'copy');
console.log(require('child_process').execFileSync('echo', ['child']).toString(), fs.readdirSync('.').sort());
const worker = new Worker('require("worker_threads").parentPort.postMessage(1)', {eval: true});
worker.on('message', (m) => console.log(m));
const server = net.createServer((s) => s.end('bye')).listen(0, '127.0.0.1', () =>
  net.connect(server.address().port, '127.0.0.1').on('data', (d) => { console.log(String(d)); server.close(); }));
"""
GIT = """
git init -q . && git config user.name a && git config user.email a@example.com
echo x > file && git add . && git commit -qm first && git branch other && git gc -q && git clone -q . clone
git -C clone log --format=%s && git status --short
"""
C_SOURCE = "#include <stdio.h>\n#include <pthread.h>\nstatic void *f(void *x) { return x; }\n"
C_SOURCE += (
    'int main(void) { pthread_t t; pthread_create(&t, 0, f, 0); pthread_join(t, 0); puts("ran"); return 0; }\n'
)
MAKE = "all: a b\n\tcat a b\n%:\n\techo $@ > $@\n"
BASH = """
set -euo pipefail
mkdir d; cd d; printf '%s\\n' b a | sort | tee sorted; cat <(echo sub) - <<< here; (ulimit -n; trap 'echo bye' EXIT)
sleep 5 & kill %1; wait || true; ln -s sorted link; chmod 600 link; cp -a link copy; mv copy moved; touch -d @0 x
tar cf - . | tar tf - | sort; find . -type l | sort
mkfifo p; (echo fifo > p &); cat p; rm -r ../d; date +%Y > /dev/null
"""
PROGRAMS = {
    "python3": (["python3", "main.py"], {"main.py": PYTHON}, "b'async\\n' b'x' AF_UNIX"),
    "this-python": ([sys.executable, "main.py"], {"main.py": PYTHON}, "[1] [2, 3]"),
    "node": (["node", "main.js"], {"main.js": NODE}, "bye"),
    "git": (["bash", "-ec", GIT], {}, "first"),
    "gcc": (["bash", "-ec", "gcc -pipe -O2 main.c -o main -lpthread && ./main"], {"main.c": C_SOURCE}, "ran"),
    "make": (["make", "-s", "-j4"], {"Makefile": MAKE}, "a\nb"),
    "bash": (["bash", "-c", BASH], {}, "sub\nhere"),
}


def installed(name: str) -> bool:
    return name == "this-python" or shutil.which(name, path=PATH) is not None


@pytest.mark.parametrize("kind", ["off", "default", "strict"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_ordinary_program_works(bwrap: str, kind: str, name: str, workspace: Path) -> None:
    """``off`` is the control: where that fails, the filter is not to blame."""
    if not installed(name):
        pytest.skip(f"{name} is not installed")
    command, files, said = PROGRAMS[name]
    for file, text in files.items():
        (workspace / file).write_text(text)
    program = b"" if kind == "off" else seccomp.filter_program(kind)
    done = box(bwrap, program, command, workspace)
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout


@pytest.mark.parametrize(("kind", "mode"), [("off", "0"), ("default", "2"), ("strict", "2")])
def test_the_kernel_says_that_a_filter_is_on(bwrap: str, kind: str, mode: str) -> None:
    program = b"" if kind == "off" else seccomp.filter_program(kind)
    done = box(bwrap, program, ["grep", "^Seccomp:", "/proc/self/status"])
    assert done.stdout.split() == ["Seccomp:", mode]
