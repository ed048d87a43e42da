"""What a keeper does to itself before its first job: lets go of all that is the caller's, and watches the caller."""

from __future__ import annotations

import os

from stockade.sandbox import childsteps

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # ``signal`` itself costs as much as enum


def settle(control_fd: int) -> None:
    """Let go of everything of the caller: terminal, session, streams, descriptors, directory, handlers."""
    os.setsid()
    os.chdir("/")
    childsteps.make_room_for_descriptors()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in {0, 1, 2} - {null}:
        os.dup2(null, fd, inheritable=False)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    childsteps.close_others({0, 1, 2, control_fd}, highest + 1)
    for number in childsteps.IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    childsteps.become_subreaper()
    # One that somebody stopped has to clear away all the same when its supervisor is gone.
    childsteps.libc.prctl(childsteps.PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)


def watch(supervisor: int) -> int:
    """A pidfd of the supervisor, or -1 when it is gone already."""
    try:
        pidfd = os.pidfd_open(supervisor)
    except ProcessLookupError:
        return -1
    if os.getppid() != supervisor:
        os.close(pidfd)
        return -1
    return pidfd
