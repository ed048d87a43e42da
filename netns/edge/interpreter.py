"""Which Python runs the edge's proxy, and how it is started. Starts nothing and imports nothing of the proxy's."""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "STOCKADE_EDGE_PYTHON"
REMEDY = (
    "pip install 'stockade[edge]'; where it can't be installed beside stockade[mcp] (Python 3.11), "
    "put it into an environment of its own and set STOCKADE_EDGE_PYTHON to its python"
)


def find_interpreter(environ: Mapping[str, str]) -> tuple[str, str]:
    """The path of the Python that runs the proxy, and an empty text; or an empty path and the cause why there is none.

    ``environ`` is the caller's environment. What the variable names is never passed over for something else.
    """
    named = environ.get(VARIABLE, "")
    if named:
        fault = _fault(named)
        return ("", f"{VARIABLE} {fault}") if fault else (named, "")
    import importlib.util

    if sys.executable and importlib.util.find_spec("mitmproxy") is not None:
        return sys.executable, ""
    return "", "mitmproxy is not installed"


def child_argv(python: str) -> list[str]:
    """The command of the proxy. It is to be started with its end of a ``SOCK_SEQPACKET`` pair as descriptor 0."""
    return [python, "-I", "-B", os.path.join(os.path.dirname(os.path.abspath(__file__)), "child.py")]


def _fault(path: str) -> str:
    """What is wrong with ``path`` as a program to be trusted with secrets; empty if nothing is."""
    if not os.path.isabs(path):
        return "is not an absolute path"
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return "names no file"
    if not stat.S_ISREG(found.st_mode) or not os.access(path, os.X_OK):
        return "names no program"
    if _is_others(found) or _is_others(os.stat(os.path.dirname(path))):
        return "names a program that others can change"
    return ""


def _is_others(found: os.stat_result) -> bool:
    """Whether another user may write there; in a sticky folder nobody replaces what is somebody else's."""
    if found.st_mode & stat.S_IWOTH and not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
        return True
    return found.st_uid not in (0, os.geteuid()) and not _is_nobodys(found.st_uid)


def _is_nobodys(uid: int) -> bool:
    """Whether ``uid`` stands for all that this user namespace does not map, root of the host among them."""
    with open("/proc/sys/kernel/overflowuid", "rb") as file:
        stand_in = int(file.read())
    with open("/proc/self/uid_map", "rb") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return uid == stand_in and not any(first <= uid < first + count for first, _outside, count in ranges)
