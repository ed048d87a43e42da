"""What is at a path, where runs must agree on the answer.

A stand-in is an empty directory that keeps a protected name from coming into being during a run. Whoever looks
at that name meanwhile, another run above all, must find nothing there: it goes with the run.
"""

from __future__ import annotations

import os
import stat

MODE = 0o1511
"""Odd enough that nobody's own directory has it."""


def is_stand_in(mode: int) -> bool:
    """Whether ``st_mode`` is that of a stand-in."""
    return stat.S_ISDIR(mode) and stat.S_IMODE(mode) == MODE


def here() -> str:
    """The current directory; a name that leads nowhere when it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return "/proc/self/cwd"


def present(path: str) -> bool:
    """Whether there is anything at ``path`` but a stand-in; a link is not followed."""
    try:
        return not is_stand_in(os.lstat(path).st_mode)
    except OSError:
        return False
