"""End a box whose keeper was killed. The supervisor is not its reaper: it can only find it, kill it and see it go.

And those that lost their supervisor too, which nobody is left to end. Cold: nothing of this is needed while the
keeper lives. Its counterpart is ``keeper.kill_boxes``.
"""

from __future__ import annotations

import os
import select
import signal

from stockade.sandbox.argv import ARGS_FD, SYNC_FD
from stockade.sandbox.processes import namespace, parent, starts_namespace

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


def end_abandoned() -> int:
    """Kill the boxes of this user that nobody waits for. Returns how many there were.

    bwrap ties a box to its monitor late, and a pipe can't: what the kernel sends to the group of a process when a pipe
    is closed does not reach pid 1 of a namespace. So one stays where supervisor and keeper are killed as it starts.
    """
    ended = 0
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if not is_box(pid):
                continue
            pidfd = os.pidfd_open(pid)
            try:
                if is_box(pid) and not is_held(pid):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    ended += 1
            finally:
                os.close(pidfd)
        except OSError:
            pass  # it ended, or is another user's
    return ended


def is_box(pid: int) -> bool:
    """Whether a process is the first one of a box of ours, and its monitor is gone."""
    if not starts_as_we_do(pid) or not starts_namespace(pid) or starts_as_we_do(parent(pid)):
        return False
    return is_own(pid) and os.readlink(f"/proc/{pid}/fd/{SYNC_FD}").startswith("pipe:")


def starts_as_we_do(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(4096).split(b"\0")
    except OSError:
        return False
    return os.path.basename(words[0]) == b"bwrap" and words[1:4] == [b"--args", b"%d" % ARGS_FD, b"--"]


def is_own(pid: int) -> bool:
    """Of this user, or of the one that root's runs get."""
    from stockade.sandbox.survey import NOBODY

    with open(f"/proc/{pid}/status", "rb") as file:
        real = next((int(line.split()[1]) for line in file if line.startswith(b"Uid:")), -1)
    return real == os.geteuid() or (real == NOBODY and os.geteuid() == 0)


def is_held(box: int) -> bool:
    """Whether somebody outside of a box has its gate: a supervisor has it for as long as it lives."""
    gate, inside = os.readlink(f"/proc/{box}/fd/{SYNC_FD}"), namespace(box, "pid")
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if pid != box and gate in map(os.readlink, descriptors(pid)) and namespace(pid, "pid") != inside:
                return True
        except OSError:
            continue  # it ended, or is another user's
    return False


def descriptors(pid: int) -> list[str]:
    return [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]


def kill_and_wait(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(PATIENCE)
    finally:
        os.close(pidfd)
