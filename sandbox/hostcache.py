"""What was found to work on this host, remembered for this boot. Only a host that can do everything is.

A stale or forged entry can't weaken a run: what the host refuses after all ends the run as a runner failure,
and nothing that the entry says is left out of a plan.
"""

from __future__ import annotations

import marshal
import os

from stockade.policies.capability import Capability
from stockade.sandbox import state
from stockade.sandbox.bwrap import Bwrap
from stockade.sandbox.host import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "host"
CONNECTOR = "connector"
OVERLAY = "overlay"
FORMAT = 2


def situation(program: str) -> tuple[Any, ...]:
    """What a finding depends on: this boot, this binary, this caller, and where in the kernel's eyes we are."""
    info = os.stat(program)
    own = os.stat(__file__)
    return (
        FORMAT,
        (own.st_mtime_ns, own.st_size),
        read("/proc/sys/kernel/random/boot_id"),
        (program, info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns),
        (os.geteuid(), os.getegid()),
        tuple(os.readlink(f"/proc/self/ns/{name}") for name in ("user", "mnt", "pid", "net")),
        tuple(
            line
            for line in read("/proc/self/status").splitlines()
            if line.startswith((b"Cap", b"NoNew", b"Seccomp"))
        ),
    )


def read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def recall(bwrap: str, name: str = NAME) -> Host | None:
    """The host as it was found in this situation, or None. ``name``: for which kind of run."""
    directory = state.cache_dir()
    content = state.read_private(directory, name) if directory is not None else None
    if content is None:
        return None
    try:
        key, (_path, options), capabilities, upper = marshal.loads(content)  # noqa: S302  (a file only we can write)
        if key != situation(bwrap):
            return None
        return Host(tuple(Capability(*each) for each in capabilities), Bwrap(bwrap, tuple(options)), str(upper))
    except (ValueError, EOFError, TypeError):
        return None


def remember(host: Host, name: str = NAME) -> None:
    """Keep a finding. The caller sees to it that it is a wholly positive one."""
    directory = state.cache_dir()
    if directory is None or host.bwrap is None:
        return
    capabilities = tuple(tuple(each) for each in host.capabilities)
    entry = (situation(host.bwrap.path), tuple(host.bwrap), capabilities, host.upper)
    state.store_private(directory, name, marshal.dumps(entry))


def forget() -> None:
    directory = state.cache_dir()
    if directory is not None:
        for name in (NAME, OVERLAY):
            state.remove(directory, name)


def set_aside(connector: str, *, aside: bool) -> None:
    """Remember that this connector (its path) can't attach here while another one can, or that it is not so."""
    directory = state.cache_dir()
    if directory is None:
        return
    if aside:
        state.store_private(directory, CONNECTOR, marshal.dumps(situation(connector)))
    else:
        state.remove(directory, CONNECTOR)


def is_set_aside(connector: str) -> bool:
    """Whether the last trial in this situation found so; one failing open where it did not."""
    directory = state.cache_dir()
    content = state.read_private(directory, CONNECTOR) if directory is not None else None
    if content is None:
        return False
    try:
        return bool(marshal.loads(content) == situation(connector))  # noqa: S302  (a file only we can write)
    except (ValueError, EOFError, TypeError, OSError):
        return False
