"""End a box whose keeper was killed. The supervisor is not its reaper: it can only find it, kill it and see it go.

Cold: nothing of this is needed while the keeper lives. Its counterpart is ``keeper.kill_boxes``.
"""

from __future__ import annotations

import os
import select
import signal

from stockade.sandbox.argv import SYNC_FD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

ROUNDS = 5
PATIENCE = 500
"""Milliseconds that a killed process gets to be gone."""


def end_box(known: Iterable[int], gate: int) -> None:
    """Kill the processes that are ``known`` and every other one that holds our gate.

    A box that lost its monitor before its namespaces were set up waits for it for ever, and nobody has been told
    its pid: the gate's other end, which pid 1 of a box keeps open, gives it away.
    """
    kill_each(known)
    for _round in range(ROUNDS):
        # Once more after each: a monitor may have made its box between the look and the kill.
        found = holders(gate)
        if not found:
            break
        kill_each(found)


def kill_each(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            kill_and_wait(pid)
        except OSError:
            pass  # it ended with the keeper


def holders(gate: int) -> list[int]:
    """Every other process that has this pipe where the boxes have it."""
    if gate < 0:
        return []
    pipe = f"pipe:[{os.fstat(gate).st_ino}]"
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if holds(pid, pipe)]


def holds(pid: int, pipe: str) -> bool:
    try:
        return pid != os.getpid() and os.readlink(f"/proc/{pid}/fd/{SYNC_FD}") == pipe
    except OSError:
        return False


def kill_and_wait(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(PATIENCE)
    finally:
        os.close(pidfd)
