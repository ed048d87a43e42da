"""Hand a job to a keeper. The descriptors of a launch are opened here and closed here, whatever happens."""

from __future__ import annotations

import os
import sys

from stockade.policies.errors import StockadeError
from stockade.sandbox import argv as lines
from stockade.sandbox.messages import send_job
from stockade.sandbox.mounts import BIND, BIND_RO, below

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    from stockade.sandbox.plan import Plan

STAGE = "/dev/shm"  # noqa: S108  (a mount point in a private mount namespace; nothing is written on the host)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BOOT = (
    "import sys; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1]); "
    "from stockade.sandbox.keeper import serve_control; serve_control(int(sys.argv[2]), int(sys.argv[3]))"
)
CONTROL_FD = 3


class Launch:
    """Descriptors to hand on, each with the number it shall have in the child (None: only for the keeper)."""

    def __init__(self) -> None:
        self.fds: list[int] = []
        self.numbers: list[int | None] = []
        self._owned: list[int] = []

    def give(self, fd: int, number: int | None, *, owned: bool = True) -> int:
        """Add a descriptor; an ``owned`` one is closed on our side once the job was handed over."""
        self.fds.append(fd)
        self.numbers.append(number)
        if owned:
            self._owned.append(fd)
        return len(self.fds) - 1

    def close(self) -> None:
        for fd in dict.fromkeys(self._owned):
            os.close(fd)
        self._owned = []


def content(data: bytes, name: str) -> int:
    """A memfd that reads ``data`` from its start."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def confined_job(
    plan: Plan, bwrap: str, launch: Launch, *, filter_program: bytes, by_descriptor: bool
) -> dict[str, Any]:
    """The job of a confined start; its descriptors are added to ``launch``."""
    staged, places = stage(plan, launch)
    line = lines.render(
        plan, supervised=True, seccomp=bool(filter_program), by_descriptor=by_descriptor, staged=places
    )
    options = b"".join(os.fsencode(option) + b"\0" for option in line.options)
    launch.give(content(options, "stockade-args"), lines.ARGS_FD)
    if filter_program:
        launch.give(content(filter_program, "stockade-filter"), lines.SECCOMP_FD)
    for source in line.sources:
        fd = open_source(source.path) if source.path else content(source.data, "stockade-file")
        launch.give(fd, source.number)
    command = [bwrap, "--args", str(lines.ARGS_FD), "--", *plan.argv]
    outer = tuple((name, value) for name, value in plan.limits if name != "NPROC")
    return {
        "confined": True,
        "program": os.fsencode(bwrap),
        "argv": [os.fsencode(word) for word in command],
        "env": {},
        "cwd": b"/",
        "credentials": plan.credentials,
        "limits": resource_numbers(outer),
        "stubs": [os.fsencode(path) for path in plan.stubs],
        "staged": staged,
        "stage": STAGE,
        "terminal": None,
    }


def stage(plan: Plan, launch: Launch) -> tuple[list[tuple[str, int, bool]], dict[str, str]]:
    """Sources that the unprivileged uid can't reach by path: opened here, bound to a reachable place by the keeper."""
    staged: list[tuple[str, int, bool]] = []
    places: dict[str, str] = {}
    if plan.credentials is None:
        return staged, places
    for mount in plan.mounts:
        if mount.op in (BIND, BIND_RO) and mount.source not in places and not reachable(mount.source):
            name = str(len(staged))
            staged.append((name, launch.give(open_source(mount.source), None), os.path.isdir(mount.source)))
            places[mount.source] = f"{STAGE}/{name}"
    return staged, places


def reachable(path: str) -> bool:
    """Whether others may pass through every directory above ``path``."""
    parent = os.path.dirname(path)
    while True:
        if not os.stat(parent).st_mode & 0o001:
            return False
        if parent == "/":
            return not below(path, STAGE)
        parent = os.path.dirname(parent)


def open_source(path: str) -> int:
    """Open a bind source once, its last component not followed."""
    try:
        return os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise StockadeError(
            f"could not open {path!r} to show it inside: {(error.strerror or '').lower()}"
        ) from None


def resource_numbers(limits: tuple[tuple[str, int], ...]) -> list[tuple[int, int]]:
    import resource

    return [(getattr(resource, f"RLIMIT_{name}"), value) for name, value in limits]


def begin(job: dict[str, Any], launch: Launch, *, fork: bool) -> tuple[int, int]:
    """Start the job under a keeper. Returns the descriptors for orders (write) and events (read).

    ``fork`` makes the keeper by forking this process, which must have a single thread (the command line);
    otherwise one stand-alone keeper serves every run of this process.
    """
    orders_read, orders = os.pipe()
    events, events_write = os.pipe()
    try:
        if fork:
            _fork_keeper({**job, "numbers": launch.numbers}, launch.fds, orders_read, events_write)
        else:
            _send({**job, "numbers": launch.numbers}, [orders_read, events_write, *launch.fds])
    except BaseException:
        os.close(orders)
        os.close(events)
        raise
    finally:
        os.close(orders_read)
        os.close(events_write)
    return orders, events


def _fork_keeper(job: dict[str, Any], fds: list[int], orders: int, events: int) -> None:
    from stockade.sandbox import keeper

    supervisor = os.getpid()
    if os.fork() == 0:
        keeper.serve_job(job, fds, orders, events, supervisor)


class _Shared:
    """The stand-alone keeper of this process, and who started it: a forked copy of us must not use it."""

    control: socket.socket | None = None
    owner = 0
    pid = 0


def _send(job: dict[str, Any], fds: list[int]) -> None:
    from stockade.sandbox.locks import KEEPER_LOCK

    with KEEPER_LOCK:
        try:
            send_job(_control(), job, fds)
        except (BrokenPipeError, ConnectionError):
            _forget()
            send_job(_control(), job, fds)


def _control() -> socket.socket:
    import socket

    if _Shared.control is not None and _Shared.owner == os.getpid():
        return _Shared.control
    if not sys.executable:
        raise StockadeError("could not start the keeper: this process does not know its own interpreter")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-I", "-S", "-c", BOOT, ROOT, str(CONTROL_FD), str(os.getpid())]
        env = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
        actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), CONTROL_FD)]
        if theirs.fileno() == CONTROL_FD:
            theirs.set_inheritable(True)
            actions = []
        _Shared.pid = os.posix_spawn(sys.executable, command, env, file_actions=actions)
    _Shared.control, _Shared.owner = ours, os.getpid()
    return ours


def _forget() -> None:
    if _Shared.control is not None:
        _Shared.control.close()
    _Shared.control = None


def end_keeper() -> None:
    """End this process's stand-alone keeper, if it has one, and wait for it. The next run starts another.

    Happens by itself when the process ends; for tests and for programs that count their children.
    """
    if _Shared.control is not None and _Shared.owner == os.getpid():
        _forget()
        try:
            os.waitpid(_Shared.pid, 0)
        except ChildProcessError:
            pass  # somebody waits for every child of this process
