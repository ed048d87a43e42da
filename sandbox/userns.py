"""Why no user namespace (or what a box needs besides) can be made here: tried call by call, then explained."""

from __future__ import annotations

import errno
import subprocess
import sys

from stockade.policies.capability import Capability
from stockade.sandbox import shortage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

TRY = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
for name, flags in (("user", 0x10000000), ("mnt", 0x20000), ("net", 0x40000000), ("ipc", 0x8000000),
                    ("uts", 0x4000000), ("pid", 0x20000000)):
    if libc.unshare(flags):
        print(name, ctypes.get_errno())
        sys.exit()
"""
LIMITS = {"user": "user", "mnt": "mnt", "net": "net", "ipc": "ipc", "uts": "uts", "pid": "pid"}


NEEDED = 8
"""Processes that a start takes: keeper, waiting child, monitor, pid 1 of the box, and what the trial runs in it."""


def short_of_processes() -> bool:
    """Whether this user can't have as many more processes as the start of a box takes."""
    started = []
    try:
        for _ in range(NEEDED):
            started.append(subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env={}))
    except BlockingIOError:
        return True
    except OSError:
        pass  # no such program: then this can't be told
    finally:
        for process in started:
            process.communicate()
    return False


def too_many_processes() -> Capability:
    return Capability(
        "user-namespaces",
        "unknown",
        "too many processes of this user are running",
        "Try again when fewer are running, or raise the limit (ulimit -u).",
    )


def first_refused() -> tuple[str, int] | None:
    """The first namespace that this host refuses to make, and errno; None when all can be made, or nobody can try."""
    command = [sys.executable, "-I", "-S", "-c", TRY]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, env={}, check=False)
    except OSError:
        return None
    words = done.stdout.split()
    return (words[0], int(words[1])) if len(words) == 2 else None


def setting(path: str) -> str:
    """The value of a kernel setting; empty where there is none."""
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def why_not(said: str) -> Capability:
    """The capability ``user-namespaces`` of a host on which no box starts. ``said`` is what bubblewrap printed."""
    refused = first_refused()
    if refused is None:
        return restricted_later(said)
    return explain(*refused, said, read=setting)


def restricted_later(said: str) -> Capability:
    """Namespaces can be made, but what bubblewrap does in them is refused: AppArmor on Ubuntu does that."""
    if setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return apparmor(said)
    from stockade.sandbox.cli.style import escape

    return Capability(
        "user-namespaces",
        "unknown",
        f"no box could be started: {escape(said) or 'bubblewrap said nothing'}",
        "Run bubblewrap by hand to see what this host refuses: bwrap --ro-bind / / --unshare-all true",
    )


def apparmor(said: str) -> Capability:
    return Capability(
        "user-namespaces",
        "disabled",
        "AppArmor gives unprivileged user namespaces no rights (kernel.apparmor_restrict_unprivileged_userns = 1)",
        "Install the profile for bubblewrap: apt install apparmor-profiles, then link "
        "/usr/share/apparmor/extra-profiles/bwrap-userns-restrict into /etc/apparmor.d and load it: apparmor_parser -r.",
    )


def explain(name: str, code: int, said: str, *, read: Callable[[str], str]) -> Capability:
    """Which knob it is (pure, given how settings are read)."""
    if read("/proc/1/comm") == "bwrap":
        return Capability(
            "user-namespaces",
            "disabled",
            f"this is a box already: making a {name} namespace in it is refused ({errno.errorcode.get(code, code)})",
            "Run outside of the sandbox you are in; it confines what is started here too.",
        )
    if code == errno.ENOSPC:
        knob = f"user.max_{LIMITS[name]}_namespaces"
        value = read(f"/proc/sys/user/max_{LIMITS[name]}_namespaces")
        return Capability(
            "user-namespaces",
            "disabled",
            f"no more {name} namespaces can be made: {knob} = {value or 'unknown'}, or this is a box already",
            f"Raise it (sysctl {knob}=10000), or run outside of the sandbox you are in.",
        )
    if read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return Capability(
            "user-namespaces",
            "disabled",
            "unprivileged user namespaces are off (kernel.unprivileged_userns_clone = 0)",
            "Turn them on: sysctl kernel.unprivileged_userns_clone=1",
        )
    if read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return apparmor(said)
    if code == errno.EAGAIN:
        return too_many_processes()
    if code == errno.ENOMEM:
        return shortage.untried("user-namespaces", shortage.CAUSES[1])
    return Capability(
        "user-namespaces",
        "disabled",
        f"making a {name} namespace is refused ({errno.errorcode.get(code, code)}), as a container's seccomp profile does",
        "Run the container with a profile that allows it (--security-opt seccomp=unconfined does), or run outside.",
    )
