"""End what a direct run let go of. Nothing confines such a run, but a keeper is the reaper of all that it starts.

Only for one that had to be ended: a program that ends by itself may leave a server behind. Cold, and part of
the keeper's process: nothing is imported that the keeper does not have.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 100
"""Each one kills a generation: what those had started is adopted then."""


def end(listed: Callable[[], list[int]], session: int | None) -> None:
    """Kill and reap what is ``listed``, until nothing is; of one session only, where a number is given."""
    for _round in range(ROUNDS):
        left = [pid for pid in listed() if session is None or session_of(pid) == session]
        if not left:
            return
        for pid in left:
            kill_and_reap(pid)


def kill_and_reap(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # it ended meanwhile, and somebody has heard of it


def session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0
