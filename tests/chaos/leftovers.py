"""What is left after runs: processes, zombies, namespaces, mounts, links, descriptors, files.

The process of the tests is the subreaper of what it starts, so nothing that a killed driver leaves can get away.
``test_leftovers`` plants one of each kind and has it found.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import tempfile
import time

import processtree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any

PATIENCE = 20.0
"""Seconds for what should come at once, on a busy machine."""
PR_SET_CHILD_SUBREAPER = 36
KINDS = ("net:[", "user:[", "mnt:[", "pid:[", "ipc:[", "uts:[", "cgroup:[", "time:[")
IDLE = {"supervisor", "keeper", "spare"}
"""Roles that a driver between two runs may have below it."""

libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def subreaper() -> Iterator[None]:
    """Orphans come to this process."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class Place:
    """Where a driver works: a workspace, a home, a cache and a directory for temporary files, all its own."""

    def __init__(self, top: str) -> None:
        self.top = top
        self.work, self.home, self.cache, self.temporary = (
            f"{top}/{name}" for name in ("work", "home", "cache", "tmp")
        )
        for directory in (self.work, self.home, self.cache, self.temporary):
            os.mkdir(directory)
        for directory in (self.work, self.home, self.temporary):
            os.chmod(directory, 0o777)
        os.chmod(self.cache, 0o700)

    @property
    def env(self) -> dict[str, str]:
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": self.home,
            "XDG_CACHE_HOME": self.cache,
            "TMPDIR": self.temporary,
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def files(self) -> list[str]:
        """What nobody meant to stay: all but the files that the cache keeps under their own names."""
        found = everything(self.work) + everything(self.temporary) + everything(self.home)
        cache = f"{self.cache}/stockade"
        found += [path for path in everything(cache) if is_unfinished(os.path.relpath(path, cache))]
        return found


def everything(top: str) -> list[str]:
    """All paths below it; what goes while we look is no matter."""
    return sorted(f"{at}/{name}" for at, folders, files in os.walk(top) for name in (*folders, *files))


def is_unfinished(name: str) -> bool:
    """A temporary file or a layer in the cache, not an entry of it."""
    return name.startswith((".", "stockade-")) or "/" in name


@contextlib.contextmanager
def place() -> Iterator[Place]:
    """Not below the tests' own temporary directory: an unprivileged uid can't come there."""
    top = tempfile.mkdtemp(dir="/var/tmp", prefix="stockade-chaos-")
    os.chmod(top, 0o755)
    try:
        yield Place(top)
    finally:
        shutil.rmtree(top)


class Watch:
    """Sees what has come to be since it was made."""

    def __init__(self, where: Place) -> None:
        self.where = where
        self.own = os.getpid()
        self.before = set(processtree.below(self.own))
        self.links = links()
        self.mounts = mounts(self.own)
        self.descriptors = descriptors(self.own)

    def processes(self) -> list[int]:
        """Those that are left below us, zombies too. Reaps orphans that ended."""
        reap_orphans(self.before)
        return [pid for pid in processtree.below(self.own) if pid not in self.before]

    def left(self) -> list[str]:
        """One line for each thing that is left, once nothing is meant to run."""
        found = [describe(pid) for pid in self.processes()]
        found += [f"descriptor {each}" for each in sorted(descriptors(self.own) - self.descriptors)]
        return found + self.left_beside()

    def left_beside(self) -> list[str]:
        """The same without processes and without descriptors of our own."""
        found = [f"namespace held by {each}" for each in held_namespaces(self.own)]
        found += [f"mount {each}" for each in sorted(mounts(self.own) - self.mounts)]
        found += [f"link {each}" for each in sorted(links() - self.links)]
        return found + [f"file {each}" for each in self.where.files()]

    def nothing_left(self, context: str = "") -> None:
        settle(self.left, context)

    def no_process_left(self, context: str = "") -> None:
        settle(lambda: [describe(pid) for pid in self.processes()], context)

    def idle(self, driver: int, context: str = "", dead: Collection[int] = ()) -> None:
        """Of a driver between two runs: a keeper, its children that wait, and nothing else.

        ``dead``: children that waited and were killed; the keeper sees that when it needs them.
        """
        settle(lambda: busy(driver, dead) + self.left_beside(), context)


def settle(look: Callable[[], list[str]], context: str) -> None:
    until = time.monotonic() + PATIENCE
    while (left := look()) and time.monotonic() < until:
        time.sleep(0.004)
    assert not left, f"left: {left} {context}"


def wait_for(look: Callable[[], Any], what: str) -> Any:
    """What ``look`` finds, once it finds something."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if found := look():
            return found
        time.sleep(0.001)
    raise AssertionError(f"there was no {what} within {PATIENCE:.0f} s")


def busy(driver: int, dead: Collection[int] = ()) -> list[str]:
    """Roles below a driver that only a run needs, and zombies of its keeper."""
    found = [f"{role} {pids}" for role, pids in processtree.roles(driver).items() if role not in IDLE]
    for keeper in processtree.keepers(driver):
        ended = [pid for pid in processtree.children(keeper) if processtree.state_of(pid)[0] == "Z"]
        # The helper of a connector that was killed while it attached: collected with the next run.
        helpers = [pid for pid in ended if processtree.name_of(pid) in processtree.CONNECTORS]
        found += [describe(pid) for pid in ended if pid not in dead and pid not in helpers[:2]]
    return found + [f"namespace held by {each}" for each in held_namespaces(driver)]


def describe(pid: int) -> str:
    letter = processtree.state_of(pid)[0]
    return f"process {pid} {processtree.name_of(pid)!r} {letter}" if letter else f"process {pid}, just gone"


def descriptors(pid: int) -> set[str]:
    """Number and target of each."""
    found = set()
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{number}")
                if target != f"/proc/{pid}/fd":
                    found.add(f"{number} -> {target}")
    return found


def held_namespaces(pid: int) -> list[str]:
    """Namespaces kept by something else than a process in them: a descriptor, or a mount.

    Their numbers tell nothing: the kernel gives that of one that is gone to the next one, which may be anybody's.
    """
    found = [each for each in descriptors(pid) if each.partition(" -> ")[2].startswith(KINDS)]
    return found + [each for each in mounts(pid) if " - nsfs " in each]


def mounts(pid: int) -> set[str]:
    return set(processtree.read(pid, "mountinfo").splitlines())


def links() -> set[str]:
    return {name for _index, name in socket.if_nameindex()}


def reap_orphans(known: set[int]) -> None:
    """Those that came to us; those that are waited for by name are among the known, or living."""
    for pid in processtree.children(os.getpid()):
        if pid not in known and processtree.state_of(pid)[0] == "Z" and pid not in waited_for:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


waited_for: set[int] = set()
"""Drivers: whoever started them reaps them."""
