"""What is laid out for the attacks on the host, and how to see afterwards whether one of them reached it.

A ``Bait`` is a directory of its own with secrets, a workspace and sockets in it, a victim process, kernel keys and
queues. ``Bait.facts`` looks at all of that: two looks that differ name what an attack reached.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile

from stockade.sandbox.attacks.toolbox import Absent, Given, libc, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ADD_KEY = {"x86_64": 248, "aarch64": 217, "riscv64": 217}
KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219}
JOIN_SESSION, SESSION_KEYRING = 1, -3
IPC_CREAT, IPC_RMID = 0o1000, 0
PR_SET_PDEATHSIG = 1
VARIABLE = "STOCKADE_ATTACK_TOKEN"
FILES = {
    "home/.ssh/id_ed25519": 0o644, "home/.aws/credentials": 0o644, "home/.netrc": 0o644,
    "beside/secret": 0o666, "beside/victim/file": 0o666, "visible/file": 0o666, "visible/inner/file": 0o666,
    "place/file": 0o666, "place/.env": 0o666, "place/sub/deep/.env": 0o666, "place/vault/key": 0o666,
    "place/.git/config": 0o666, "place/.git/hooks/pre-commit.sample": 0o777, "place/.git/HEAD": 0o666,
    "place/.claude/settings.json": 0o666, "place/nested/a/guarded": 0o666,
}  # fmt: skip
"""With modes: everybody may write them, so that it is never file modes alone that keep an attack from it."""
PROTECTED = (".git/hooks", ".git/config", ".claude", ".envrc", ".vscode", "nested/a/guarded", "nested/b/missing")
HIDDEN = ("**/.env*", "vault/")


class Bait:
    """One set of it. ``with`` ends the victim and removes everything; the caller must have one thread."""

    def __init__(self) -> None:
        self.top = os.path.realpath(tempfile.mkdtemp(prefix="stockade-attacks-", dir=temporary()))
        os.chmod(self.top, 0o755)  # noqa: S103  (the uid of a dropped root has to come to what it is granted)
        self.secret = f"secret-{os.urandom(12).hex()}"
        self.token = f"stockade-attack-{os.urandom(8).hex()}"
        self.victim: subprocess.Popen[bytes] | None = None
        self.listeners: dict[str, socket.socket] = {}
        self.ipc: dict[str, int] = {}
        self.key = 0
        self.left_open: list[int] = []
        self.lay_files()

    def __enter__(self) -> Bait:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.victim is not None:
            end(self.victim)
        for fd in self.left_open:
            os.close(fd)
        for pid in named(self.token):
            os.kill(pid, signal.SIGKILL)
        for listener in self.listeners.values():
            listener.close()
        for kind, number in self.ipc.items():
            remove_ipc(kind, number)
        shutil.rmtree(self.top, ignore_errors=True)

    # --- laying out ---

    def lay_files(self) -> None:
        """The tree as it is at the start; what is there already goes."""
        for name in ("home", "place", "beside", "visible"):
            shutil.rmtree(f"{self.top}/{name}", ignore_errors=True)
        for name, mode in FILES.items():
            path = f"{self.top}/{name}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(f"{self.secret}\n")
            os.chmod(path, mode)
        os.makedirs(f"{self.top}/place/nested/b")
        for folder, _folders, _files in os.walk(self.top):
            if folder != self.top:
                os.chmod(folder, 0o777)  # noqa: S103  (as above: not for file modes alone)
        os.link(f"{self.top}/place/.env", f"{self.top}/place/alias")
        for name in ("place/pipe", "visible/pipe"):
            os.mkfifo(f"{self.top}/{name}")
            os.chmod(f"{self.top}/{name}", 0o666)  # noqa: S103
        if os.geteuid() == 0:
            os.mknod(f"{self.top}/place/node", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            os.chmod(f"{self.top}/place/node", 0o666)  # noqa: S103
        for name in ("place", "visible", "beside"):
            self.listen(name, f"{self.top}/{name}/s.sock")
        self.listen("datagram", f"{self.top}/visible/d.sock", socket.SOCK_DGRAM)

    def lay_rest(self) -> None:
        """What is not a file: sockets, a process, keys and queues of this process's own."""
        self.listen("abstract", f"\0{self.token}")
        for name, address in (("loopback", "127.0.0.1"), ("loopback6", "::1"), ("any", "0.0.0.0")):  # noqa: S104
            self.listeners[name] = listening(address)
        self.listeners["udp"] = bound_udp()
        self.left_open = [os.open(self.top, os.O_RDONLY), *connected(self.listeners["loopback"])]
        for fd in self.left_open:
            os.set_inheritable(fd, True)
        self.start_victim()
        self.ipc = make_ipc(self.secret)
        self.key = hold_key(self.token, self.secret)

    def start_victim(self) -> None:
        """A process to be attacked; nothing if it lives."""
        if self.victim is not None:
            if self.victim.poll() is None:
                return
            end(self.victim)
        self.victim = subprocess.Popen(
            ["/bin/sh", "-c", "read line", self.token, self.secret],
            env={VARIABLE: self.secret, "PATH": "/usr/bin:/bin"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
            pass_fds=self.left_open[:1],
            start_new_session=True,
        )

    def listen(self, name: str, path: str, kind: int = socket.SOCK_STREAM) -> None:
        if name in self.listeners:
            self.listeners[name].close()
        made = socket.socket(socket.AF_UNIX, kind)
        made.bind(path)
        if kind == socket.SOCK_STREAM:
            made.listen(64)
        made.setblocking(False)
        if not path.startswith("\0"):
            os.chmod(path, 0o777)  # noqa: S103
        self.listeners[name] = made

    # --- what attacks are told, and what is seen of them ---

    def given(self) -> Given:
        ports = {
            name: listener.getsockname()[1]
            for name, listener in self.listeners.items()
            if listener.family != socket.AF_UNIX
        }
        return Given(
            top=self.top, place=f"{self.top}/place", beside=f"{self.top}/beside", visible=f"{self.top}/visible",
            home=f"{self.top}/home", secret=self.secret, token=self.token, ports=ports, ipc=self.ipc, key=self.key,
            victim=0 if self.victim is None else self.victim.pid, runner=os.getpid(), uid=os.geteuid(),
            lan=own_address(), namespace=os.readlink("/proc/self/ns/net"),
        )  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """Everything that must be the same after a run."""
        looks: dict[str, Callable[[], Any]] = {
            "beside": lambda: tree_of(f"{self.top}/beside"),
            "visible": lambda: tree_of(f"{self.top}/visible"),
            "home": lambda: tree_of(f"{self.top}/home"),
            "protected": lambda: [tree_of(f"{self.top}/place/{name}") for name in PROTECTED],
            "hidden": lambda: [tree_of(f"{self.top}/place/{name}") for name in (".env", "vault")],
            "privileged files": lambda: privileged_files(f"{self.top}/place"),
            "processes": lambda: named(self.token),
            "victim": lambda: self.victim is None or self.victim.poll() is None,
            "settings": kernel_settings,
            "mounts": lambda: read_all("/proc/self/mountinfo"),
            "host name": lambda: list(os.uname())[:2],
            "links": lambda: sorted(name for _number, name in socket.if_nameindex()),
        }
        found = {name: look() for name, look in looks.items()}
        return found | {f"heard {name}": heard(listener) for name, listener in self.listeners.items()}


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of facts that are not what they were."""
    return sorted(name for name in before | after if before.get(name) != after.get(name))


# --- parts -------------------------------------------------------------------------------------------------


def temporary() -> str | None:
    """A place that every box replaces by its own, so that what lies beside the workspace is not in view."""
    return next((place for place in ("/tmp", "/var/tmp") if os.access(place, os.W_OK)), None)  # noqa: S108


def listening(address: str) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    made.bind((address, 0))
    made.listen(64)
    made.setblocking(False)
    return made


def connected(listener: socket.socket) -> list[int]:
    """Both ends of a connection to it; the first is the caller's."""
    made = socket.create_connection(listener.getsockname())
    listener.setblocking(True)
    accepted = listener.accept()[0]
    listener.setblocking(False)
    return [made.detach(), accepted.detach()]


def bound_udp() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    made.setblocking(False)
    return made


def heard(listener: socket.socket) -> int:
    """How many came since the last look."""
    count = 0
    while count < 1000:
        try:
            if listener.type == socket.SOCK_DGRAM:
                listener.recv(1000)
            else:
                listener.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1
    return count


def own_address() -> str:
    """An address of this host that is not loopback's; empty if it has none. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        try:
            made.connect(("192.0.2.1", 9))
            address = str(made.getsockname()[0])
        except OSError:
            return ""
    return "" if address.startswith("127.") else address


def named(token: str) -> list[int]:
    """Processes of an attack that gave itself the end of this name."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        if read_all(f"/proc/{name}/comm").decode().strip() == token[-15:]:
            found.append(int(name))
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdin is not None:
        process.stdin.close()
    process.wait()


def die_with_parent() -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def make_ipc(secret: str) -> dict[str, int]:
    """A segment, a queue and a set of semaphores of System V, open to everybody."""
    number = int.from_bytes(os.urandom(3), "big") << 4
    made = {
        "segment": libc.shmget(number, 4096, IPC_CREAT | 0o666),
        "queue": libc.msgget(number, IPC_CREAT | 0o666),
        "semaphores": libc.semget(number, 1, IPC_CREAT | 0o666),
    }
    libc.shmat.restype = ctypes.c_void_p
    if made["segment"] >= 0:
        place = libc.shmat(made["segment"], None, 0)
        ctypes.memmove(place, secret.encode(), len(secret))
        libc.shmdt(ctypes.c_void_p(place))
    return {kind: number for kind, number in made.items() if number >= 0}


def remove_ipc(kind: str, number: int) -> None:
    if kind == "segment":
        libc.shmctl(number, IPC_RMID, None)
    elif kind == "queue":
        libc.msgctl(number, IPC_RMID, None)
    else:
        libc.semctl(number, 0, IPC_RMID)


def hold_key(name: str, secret: str) -> int:
    """A key in a session keyring of this process's own; 0 where the kernel has no keys."""
    global _joined
    try:
        if not _joined:
            syscall(KEYCTL, JOIN_SESSION, None)
            _joined = True
        return syscall(ADD_KEY, b"user", name.encode(), secret.encode(), len(secret), SESSION_KEYRING)
    except (OSError, Absent):  # no keys, or a machine whose numbers are not known: attacks on them say so
        return 0


_joined = False
"""Joining another one would lose the keys of the first."""


def tree_of(top: str) -> dict[str, Any]:
    """Every name below ``top`` with type, mode, owner and content; times are left out: looking changes them."""
    found: dict[str, Any] = {}
    waiting = [top]
    while waiting:
        path = waiting.pop()
        try:
            status = os.lstat(path)
        except OSError:
            continue
        content: object = None
        if stat.S_ISDIR(status.st_mode):
            waiting += [f"{path}/{name}" for name in os.listdir(path)]
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(status.st_mode):
            content = read_all(path), status.st_mtime_ns
        found[path] = (status.st_mode, status.st_uid, status.st_nlink, attributes(path), content)
    return found


def attributes(path: str) -> list[str]:
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError:
        return []


def read_all(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def privileged_files(top: str) -> list[str]:
    """Files that would run with other rights, or lead to a device."""
    found = []
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = f"{folder}/{name}"
            mode = os.lstat(path).st_mode
            odd = mode & stat.S_ISUID or stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
            if odd or "security.capability" in attributes(path):
                found.append(path)
    return found


def kernel_settings() -> list[bytes]:
    names = ("kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "user/max_user_namespaces", "fs/file-max")
    return [read_all(f"/proc/sys/{name}") for name in names]
