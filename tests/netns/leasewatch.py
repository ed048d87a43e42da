"""What is left of leased runs: processes, namespaces, links, files. For the tests of a lease's lifetime.

This process is made the subreaper of what it starts: nothing that a killed supervisor leaves behind can get away.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import psutil

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

PATIENCE = 20.0
"""Seconds for what should come at once."""
PR_SET_CHILD_SUBREAPER = 36
KINDS = {"allow": ["--allow", "192.0.2.1"], "record": ["--record-egress"]}
WAYS = [*KINDS, "pasta"]
"""The kinds, and ``allow`` once more with the other connector: what a place says with ``connect_by``."""
CONNECTORS = ("slirp4netns", "pasta")
CONSOLE = "import sys; sys.argv[0] = 'stockade'; from stockade.sandbox.cli.main import console; sys.exit(console())"
FOREVER = ("sleep", "60")

libc = ctypes.CDLL(None, use_errno=True)


class Place:
    """A workspace, a home and a directory for temporary files, open to an unprivileged uid."""

    def __init__(self, top: pathlib.Path, cache: str) -> None:
        self.top, self.cache = top, cache
        self.work, self.home, self.temporary = (top / name for name in ("work", "home", "tmp"))
        for directory in (self.work, self.home, self.temporary):
            directory.mkdir()
            directory.chmod(0o777)

    @property
    def env(self) -> dict[str, str]:
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "XDG_CACHE_HOME": self.cache,
            "TMPDIR": str(self.temporary),
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            cwd=self.work,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def connect_by(self, connector: str) -> None:
        """Have runs by this home use it."""
        folder = self.home / ".config/stockade"
        folder.mkdir(parents=True)
        (folder / "policy.toml").write_text(f'[network]\nconnector = "{connector}"\n')

    def files(self) -> list[str]:
        """Everything that a run may have put here."""
        return [str(path) for place in (self.work, self.temporary) for path in place.rglob("*")]


@contextlib.contextmanager
def place(cache: str) -> Iterator[Place]:
    """Not below tmp_path: an unprivileged uid can't come there. ``cache``: where this host is known already."""
    top = pathlib.Path(tempfile.mkdtemp(dir="/var/tmp", prefix="stockade-lease-"))
    top.chmod(0o755)
    try:
        yield Place(top, cache)
    finally:
        shutil.rmtree(top)


def command(kind: str, *program: str, verbose: bool = False) -> list[str]:
    """The console script, as a process: it forks its keeper."""
    more = ["--verbose"] if verbose else []
    asked = KINDS["allow" if kind == "pasta" else kind]
    return [sys.executable, "-c", CONSOLE, "run", *asked, *more, "--", *(program or FOREVER)]


@contextlib.contextmanager
def subreaper() -> Iterator[None]:
    """Orphans come to this process, and every child that the block leaves behind is reaped."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class Watch:
    """Sees what is below this process besides what was there before."""

    def __init__(self) -> None:
        self.before = {process.pid for process in psutil.Process().children(recursive=True)}
        self.links = sorted(name for _index, name in socket.if_nameindex())
        self.own = os.readlink("/proc/self/ns/net")

    def below(self) -> list[psutil.Process]:
        """Living processes."""
        found = []
        for process in psutil.Process().children(recursive=True):
            if process.pid not in self.before and is_alive(process):
                found.append(process)
        return found

    def named(self, name: str, word: str = "") -> list[psutil.Process]:
        """Processes of this name with ``word`` on their command line."""
        return [process for process in self.below() if part_of(process) == name and word in line_of(process)]

    def connectors(self) -> list[psutil.Process]:
        return [process for name in CONNECTORS for process in self.named(name)]

    def holders(self) -> list[psutil.Process]:
        """Pythons in a network namespace that is not ours."""
        return [
            process
            for process in self.below()
            if name_of(process).startswith("python") and network_of(process.pid) not in ("", self.own)
        ]

    def one(self, part: str, word: str = "") -> psutil.Process:
        """The process of a part, once it is there; of a lease's part the only one, as that of another may be ending."""
        find = self.holders if part == "holder" else lambda: self.named(part, word)
        most = 1 if part in ("holder", *CONNECTORS) else 9
        return wait_for(lambda: found[0] if (found := find()) and len(found) <= most else None, part)

    def settled(self) -> str:
        """What is left of it all; empty once nothing is. Reaps what came to us."""
        reap_orphans(self.before)
        if left := self.below():
            return f"processes: {[(each.pid, name_of(each)) for each in left]}"
        if held := namespaces_held():
            return f"namespaces: {held}"
        links = sorted(name for _index, name in socket.if_nameindex())
        return "" if links == self.links else f"links: {links}"

    def assert_nothing_left(self, where: Place | None = None) -> None:
        until = time.monotonic() + PATIENCE
        while (left := self.settled()) and time.monotonic() < until:
            time.sleep(0.01)
        assert left == ""
        if where is not None:
            assert where.files() == []


def wait_for(look: Callable[[], object], what: str) -> Any:
    """What ``look`` finds, once it finds something."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if found := look():
            return found
        time.sleep(0.002)
    raise AssertionError(f"there was no {what} within {PATIENCE:.0f} s")


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def name_of(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def part_of(process: psutil.Process) -> str:
    """Its name; pasta is a link, and executes a build for this processor."""
    name = name_of(process)
    return "pasta" if name in ("pasta.avx2", "passt", "passt.avx2") else name


def line_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def network_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def namespaces_held() -> list[str]:
    """Namespaces that are kept alive by something else than a process in them: a descriptor of ours, or a mount.

    Their numbers tell nothing: the kernel gives that of one that is gone to the next one, which may be anybody's.
    """
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    with open("/proc/self/mountinfo") as file:
        found += [line.split(" - ")[1] for line in file]
    return [each for each in found if each.startswith(("net:[", "user:[", "nsfs"))]


def reap_orphans(known: set[int]) -> None:
    """Ended processes that were not ours at first; those that are waited for by name are left alone."""
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if process.pid not in known and process.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(process.pid, os.WNOHANG)
