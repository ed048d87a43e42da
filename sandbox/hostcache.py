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
FORMAT = 1


def situation(bwrap: str) -> tuple[Any, ...]:
    """What the finding depends on: this boot, this binary, this caller, and where in the kernel's eyes we are."""
    info = os.stat(bwrap)
    own = os.stat(__file__)
    return (
        FORMAT,
        (own.st_mtime_ns, own.st_size),
        read("/proc/sys/kernel/random/boot_id"),
        (bwrap, info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns),
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


def recall(bwrap: str) -> Host | None:
    """The host as it was found in this situation, or None."""
    directory = state.cache_dir()
    content = state.read_private(directory, NAME) if directory is not None else None
    if content is None:
        return None
    try:
        key, (_path, options), capabilities = marshal.loads(content)  # noqa: S302  (a file only we can write)
        if key != situation(bwrap):
            return None
        return Host(tuple(Capability(*each) for each in capabilities), Bwrap(bwrap, tuple(options)))
    except (ValueError, EOFError, TypeError):
        return None


def remember(host: Host) -> None:
    """Keep a finding. The caller sees to it that it is a wholly positive one."""
    directory = state.cache_dir()
    if directory is None or host.bwrap is None:
        return
    entry = (situation(host.bwrap.path), tuple(host.bwrap), tuple(tuple(each) for each in host.capabilities))
    state.store_private(directory, NAME, marshal.dumps(entry))


def forget() -> None:
    directory = state.cache_dir()
    if directory is not None:
        state.remove(directory, NAME)
