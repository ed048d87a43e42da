"""Children of the keeper that become a run: forked when they are needed, or kept ready beforehand.

A fork of a Python process costs most of a millisecond, so an idle keeper has one child waiting for its job.
A burst of runs finds none and forks as it goes.
"""

from __future__ import annotations

import marshal
import os
import select

from stockade.sandbox import childsteps
from stockade.sandbox.messages import receive_job, send_job

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any

    Failure = tuple[str, int, str]
else:
    import _signal as signal
    import _socket as socket

EXEC_FAILED = 255

SILENT = 500
"""Milliseconds without a word after which a child is taken for stopped, and told to go on."""


class Child:
    """A forked child that waits for its job on ``orders`` and reports a failed step on ``errors``."""

    def __init__(self) -> None:
        orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        errors, errors_write = os.pipe()
        keeper = os.getpid()
        try:
            self.pid = os.fork()
        except OSError:
            os.close(errors)
            os.close(errors_write)
            raise
        if self.pid == 0:
            try:
                wait_and_become(theirs, errors_write, keeper)
            finally:
                os._exit(EXEC_FAILED)
        theirs.close()
        os.close(errors_write)
        self.orders, self.errors = orders, errors

    def become(self, job: dict[str, Any], fds: list[int]) -> Failure | None:
        """Give it its job; returns when it was executed, or which step failed. Raises OSError when it is gone."""
        try:
            send_job(self.orders, job, fds)
            self.orders.close()
            report = self.report()
        finally:
            os.close(self.errors)
        if not report:
            return None
        os.waitpid(self.pid, 0)
        step, code, detail = marshal.loads(report)  # noqa: S302  (written by our own child)
        return step, code, detail

    def report(self) -> bytes:
        """What it says; nothing once it was executed. Nobody else is served meanwhile: it must not stay stopped."""
        poll = select.poll()
        poll.register(self.errors, select.POLLIN)
        while not poll.poll(SILENT):
            os.kill(self.pid, signal.SIGCONT)
        return read_all(self.errors)

    def dismiss(self) -> None:
        """End one that has had no job."""
        self.orders.close()
        os.close(self.errors)
        os.kill(self.pid, signal.SIGCONT)
        os.waitpid(self.pid, 0)


def wait_and_become(orders: socket.socket, errors: int, keeper: int) -> None:
    """In the child: hold nothing of other runs, wait for the job, perform its steps, execute."""
    highest = max(map(int, os.listdir("/proc/self/fd")))
    childsteps.close_others({0, 1, 2, orders.fileno(), errors}, highest + 1)
    message = receive_job(orders)
    if message is not None:
        job, fds = message
        childsteps.become({**job, "keeper": keeper}, fds, errors)


def read_all(fd: int) -> bytes:
    report = b""
    while part := os.read(fd, 4096):
        report += part
    return report
