"""The supervisor's side of the keeper: start one, hand jobs to it, see it off.

The command line forks its keeper, early, so that it gets ready while the policy is still being read. A library
call shares one stand-alone keeper per process: forking a caller that may have threads is not safe.
"""

from __future__ import annotations

import errno
import os
import select
import sys

from stockade.policies.errors import StockadeError
from stockade.sandbox.messages import send_job

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any
else:
    import _signal as signal
    import _socket as socket  # ``socket`` itself costs as much as enum and selectors

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BOOT = (
    "import sys; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1]); "
    "from stockade.sandbox.keeper import serve; serve(int(sys.argv[2]), int(sys.argv[3]), lasting=True)"
)
CONTROL_FD = 3
LAST_WAIT = 500
"""Milliseconds that the end of this process waits for the keeper's."""


class Link:
    """The control socket of a keeper, and whose it is: a forked copy of this process must not use it."""

    def __init__(self, control: socket.socket, pid: int) -> None:
        self.control = control
        self.pid = pid
        self.owner = os.getpid()
        self.leased = False

    def close(self) -> None:
        """Let the keeper end (it ends its runs first), and wait a little so that no zombie is left."""
        self.control.close()
        if self.owner != os.getpid() or (self.leased and ours_alone):
            # A command line that leased a network does not wait for the connector, which takes 35 ms to go.
            return
        try:
            pidfd = os.pidfd_open(self.pid)
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.poll(LAST_WAIT)
            os.close(pidfd)
            os.waitpid(self.pid, os.WNOHANG)
        except OSError:
            pass  # somebody waits for every child of this process


_link: Link | None = None
ours_alone = False
"""Set by the console script: this process has one thread and nobody else's code."""


def fork_keeper_if_ours(*, leased: bool = False) -> None:
    if ours_alone:
        fork_keeper(leased=leased)


def fork_keeper(*, leased: bool = False) -> None:
    """Make this process's keeper by forking it. Only for a process of ours with a single thread.

    ``leased``: the run will need a leased network, as far as is known yet.
    """
    global _link
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    supervisor = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        raise no_keeper(error) from None
    if pid == 0:
        try:
            ours.close()
            from stockade.sandbox.keeper import serve

            serve(theirs.detach(), supervisor, lasting=False, leased=leased)
        finally:
            os._exit(0)
    theirs.close()
    _link = Link(ours, pid)


def no_keeper(error: OSError) -> StockadeError:
    many = error.errno == errno.EAGAIN
    return StockadeError(
        f"could not start the keeper: {(error.strerror or str(error)).lower()}",
        remedy="Too many processes of this user are running: try again, or raise the limit (ulimit -u)."
        if many
        else "",
    )


def start_keeper() -> Link:
    """Start the stand-alone keeper of this process."""
    if not sys.executable:
        raise StockadeError("could not start the keeper: this process does not know its own interpreter")
    from stockade.sandbox.processes import has_cgroups

    if os.geteuid() != 0 and has_cgroups():
        from stockade.sandbox import scope

        if (link := scope.start_keeper()) is not None:
            return link
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fd = theirs.detach()
    try:
        command = [sys.executable, "-I", "-S", "-c", BOOT, ROOT, str(CONTROL_FD), str(os.getpid())]
        env = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
        # A descriptor that has this number already keeps its close-on-exec flag through dup2(2).
        os.set_inheritable(fd, fd == CONTROL_FD)
        actions = [] if fd == CONTROL_FD else [(os.POSIX_SPAWN_DUP2, fd, CONTROL_FD)]
        return Link(ours, os.posix_spawn(sys.executable, command, env, file_actions=actions))
    except OSError as error:
        raise no_keeper(error) from None
    finally:
        os.close(fd)


def begin(job: dict[str, Any], fds: list[int]) -> tuple[int, int]:
    """Start a job. Returns the descriptors for orders (write) and events (read)."""
    orders_read, orders = os.pipe()
    try:
        events, events_write = os.pipe()
    except OSError:
        os.close(orders_read)
        os.close(orders)
        raise
    try:
        hand_over(job, [orders_read, events_write, *fds])
    except BaseException:
        os.close(orders)
        os.close(events)
        raise
    finally:
        os.close(orders_read)
        os.close(events_write)
    return orders, events


def hand_over(job: dict[str, Any], fds: list[int]) -> None:
    if _link is not None and _link.owner == os.getpid() and try_send(_link, job, fds):
        return
    from stockade.sandbox.locks import KEEPER_LOCK

    with KEEPER_LOCK:
        if not try_send(shared(), job, fds):
            end_keeper()
            send_job(shared().control, job, fds)


def try_send(link: Link, job: dict[str, Any], fds: list[int]) -> bool:
    """Whether the keeper took it; one that is gone does not."""
    try:
        link.leased |= job.get("service", False)
        send_job(link.control, job, fds)
    except (BrokenPipeError, ConnectionError, OSError) as error:
        if isinstance(error, ConnectionError) or link.control.fileno() < 0:
            return False
        raise
    return True


def shared() -> Link:
    """The keeper of this process, started when it is first needed."""
    global _link
    if _link is None or _link.owner != os.getpid():
        import atexit

        _link = start_keeper()
        atexit.register(end_keeper)
    return _link


def wake() -> None:
    """Have a keeper go on that somebody stopped: who waits for its word would wait for as long as that lasts."""
    if _link is not None and _link.owner == os.getpid():
        try:
            os.kill(_link.pid, signal.SIGCONT)
        except OSError:
            pass  # it has ended, and its closed pipes say so


def end_keeper() -> None:
    """End this process's keeper, if it has one, with every run that is still going on. The next run starts another.

    Happens by itself when the process ends; for tests, and for programs that count their children.
    """
    global _link
    if edge := sys.modules.get("stockade.sandbox.edge.proxy"):
        edge.end()  # its proxy is a child of the keeper, which waits for it
    link, _link = _link, None
    if link is not None and link.owner == os.getpid():
        link.close()
