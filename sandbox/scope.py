"""A keeper in a scope of the user's systemd, for callers that may not divide the cgroup they are in.

systemd-run moves itself into a scope that is delegated to the user, and becomes the keeper there. Only library
calls use it: it takes tens of milliseconds, once per process. Whether to ask at all is decided in ``wanted``
(pure); whatever goes wrong then, the keeper is started without, and the limits hold for each process.
"""

from __future__ import annotations

import os
import select
import sys

from stockade.policies.capability import Capability
from stockade.policies.record import Record
from stockade.sandbox import cgroup, keeperlink
from stockade.sandbox.bwrap import find_helper

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence
else:
    import _socket as socket

PATIENCE = 2000
"""Milliseconds for systemd to make the scope and for the keeper to settle in it."""

BUS = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
"""What systemd-run needs to find the user's systemd. The keeper itself gets neither."""

DIVIDED = b"divided"
BOOT = keeperlink.BOOT.replace("lasting=True", "lasting=True, scoped=True")

_failed = False


class Facts(Record):
    """What the decision rests on."""

    unified: bool
    """Whether there is a unified hierarchy with the controllers that are needed."""
    divisible: bool
    """Whether runs get a cgroup without any of this."""
    root: bool
    helper: str | None
    """systemd-run, in a directory of the system."""
    manager: bool
    """Whether the user's systemd is running."""


def wanted(facts: Facts) -> bool:
    """Whether to ask for a scope (pure). Root needs none: where it can't divide, a scope would not help."""
    return facts.unified and not facts.divisible and not facts.root and bool(facts.helper) and facts.manager


def facts_here(root: str = cgroup.ROOT, own: str | None = None) -> Facts:
    nodes = cgroup.look(root, own)
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return Facts(
        unified=any(all(name in node.controllers for name in cgroup.WANTED) for node in nodes),
        divisible=bool(cgroup.choose(nodes).parent),
        root=os.geteuid() == 0,
        helper=find_helper("systemd-run"),
        manager=runtime.startswith("/") and os.path.exists(f"{runtime}/systemd/private"),
    )


def line(helper: str, unit: str, env: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """``command`` in a scope that is delegated to it, with ``env`` alone (pure)."""
    asked = [helper, "--user", "--scope", "--quiet", "--collect", f"--unit={unit}", "--property=Delegate=yes"]
    return [*asked, "--", "/usr/bin/env", "-i", *(f"{name}={value}" for name, value in env.items()), *command]


def bus_variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in BUS if name in environ}


def start_keeper() -> keeperlink.Link | None:
    """A keeper that can divide its scope, or None where there is none to be had."""
    global _failed
    if _failed:
        return None
    facts = facts_here()
    link = attempt(facts.helper or "") if wanted(facts) else None
    _failed = link is None
    return link


def attempt(helper: str) -> keeperlink.Link | None:
    """Start one in a scope, and wait until it says that it could divide it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = 0
    try:
        pid = spawn(helper, theirs)
        theirs.close()
        poll = select.poll()
        poll.register(ours, select.POLLIN)
        if poll.poll(PATIENCE) and ours.recv(len(DIVIDED)) == DIVIDED:
            return keeperlink.Link(ours, pid)
    except OSError:
        theirs.close()
    ours.close()
    if pid:
        end(pid)
    return None


def spawn(helper: str, theirs: socket.socket) -> int:
    fd, number = theirs.fileno(), keeperlink.CONTROL_FD
    own = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
    keeper = [sys.executable, "-I", "-S", "-c", BOOT, keeperlink.ROOT, str(number), str(os.getpid())]
    unit = f"{cgroup.owner_name(os.getpid())}-keeper.scope"
    command = line(helper, unit, own, keeper)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.set_inheritable(fd, fd == number)
        moves = [(os.POSIX_SPAWN_DUP2, null, each) for each in (0, 1, 2)]
        moves += [] if fd == number else [(os.POSIX_SPAWN_DUP2, fd, number)]
        return os.posix_spawn(helper, command, bus_variables(os.environ), file_actions=moves)
    finally:
        os.close(null)


def end(pid: int) -> None:
    try:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    except OSError:
        pass  # somebody waits for every child of this process


def trial() -> Capability:
    """Start a keeper in a scope, and end it."""
    link = attempt(find_helper("systemd-run") or "")
    if link is None:
        why = "the user's systemd gave no scope that could be divided: limits.memory is of each process"
        return Capability("cgroup", "disabled", why, cgroup.IN_SCOPE)
    link.close()
    return Capability("cgroup", "ok", "limits hold for a run as a whole (in a scope of the user's systemd)")
