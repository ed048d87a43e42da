"""A box that lost its monitor before it was tied to it, and then everybody who knew of it, goes with the next look."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

import pytest
from boxes import own_state, wait_until  # noqa: F401

import stockade
from stockade.sandbox import argv, bwrap, launch, orphans

pytestmark = pytest.mark.kernel

OPTIONS = ("--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--die-with-parent")
PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(autouse=True)
def subreaper():
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@contextlib.contextmanager
def waiting(*, args=argv.ARGS_FD):
    """A box at its gate: its pid, that of its monitor, and the gate."""
    gate_read, gate = os.pipe()
    words = (*OPTIONS, "--block-fd", str(argv.BLOCK_FD), "--sync-fd", str(argv.SYNC_FD))
    options = launch.content(b"".join(word.encode() + b"\0" for word in words), "args")
    fds = [(options, args), (gate_read, argv.BLOCK_FD), (gate, argv.SYNC_FD)]
    high = [(os.dup2(fd, 300 + number, inheritable=True), number) for fd, number in fds]
    moves = [(os.POSIX_SPAWN_DUP2, fd, number) for fd, number in high]
    moves += [(os.POSIX_SPAWN_CLOSE, fd) for fd, _number in high]
    command = ["bwrap", "--args", str(args), "--", "sleep", "60"]
    monitor = os.posix_spawn(bwrap.locate(), command, {}, file_actions=moves)
    for fd in (options, gate_read, *(fd for fd, _number in high)):
        os.close(fd)
    box = 0
    try:
        box = wait_until(lambda: child_of(monitor), "there is a box")
        wait_until(lambda: state_of(box) == "S" and own_root(box), "it waits at its gate")
        yield box, monitor, gate
    finally:
        os.close(gate)
        for pid in (monitor, box):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def child_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return int((file.read().split() or [0])[0])


def state_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def own_root(pid):
    """Whether it has set itself up: all that is left to do waits for the gate."""
    with open(f"/proc/{pid}/mountinfo") as file:
        return " /newroot" not in file.read() and os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink(
            "/proc/self/ns/mnt"
        )


def lose_monitor(monitor, box):
    os.kill(monitor, signal.SIGKILL)
    os.waitpid(monitor, 0)
    wait_until(lambda: orphans.parent(box) == os.getpid(), "the box is an orphan")
    assert state_of(box) == "S", "it outlives its monitor: that is what this is about"


def let_go(gate):
    """Its number stays, the pipe's end is gone."""
    other = os.open(os.devnull, os.O_RDONLY)
    os.dup2(other, gate)
    os.close(other)


def test_one_that_nobody_can_let_go_is_ended():
    with waiting() as (box, monitor, gate):
        assert orphans.end_abandoned() == 0  # its monitor is there
        lose_monitor(monitor, box)
        assert orphans.end_abandoned() == 0  # this process has its gate
        assert state_of(box) == "S"
        let_go(gate)
        assert orphans.end_abandoned() == 1
        assert os.WTERMSIG(os.waitpid(box, 0)[1]) == signal.SIGKILL


def test_doctor_does_it():
    with waiting() as (box, monitor, gate):
        lose_monitor(monitor, box)
        let_go(gate)
        stockade.probe()
        assert os.WTERMSIG(os.waitpid(box, 0)[1]) == signal.SIGKILL


def test_that_of_another_program_is_not_touched():
    with waiting(args=argv.ARGS_FD + 20) as (box, monitor, gate):
        lose_monitor(monitor, box)
        let_go(gate)
        assert orphans.end_abandoned() == 0
        assert state_of(box) == "S"


def test_a_running_box_is_not_touched(tmp_path):
    """Neither by its own supervisor's process nor by another one."""
    import threading

    results = []
    run = threading.Thread(
        target=lambda: results.append(stockade.run(["sleep", "1"], policy="read-only", mode="auto"))
    )
    run.start()
    while run.is_alive():
        assert orphans.end_abandoned() == 0
    run.join()
    assert (results[0].outcome, results[0].exit_code) == ("exited", 0)
