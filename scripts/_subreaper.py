"""Runs a command as its subreaper and fails if anything it started is still alive afterwards.

    _subreaper.py COMMAND...

Orphans come here instead of to pid 1: they are reaped as an init would, and none can hide. The exit status is
the command's own (128+n after a signal), or 1 when it was 0 and something was left.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
GRACE = 5.0
"""Seconds that helpers get to end by themselves after the command has."""


def main(argv: list[str]) -> int:
    if not argv:
        print("could not start: no command\nuse: _subreaper.py COMMAND...", file=sys.stderr)
        return 2
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        print(f"could not become a subreaper: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        return 1
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    pid = os.posix_spawnp(argv[0], argv, os.environ, setsigmask=[])
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda caught, _frame: os.kill(pid, caught))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the command as well
    code = wait_for(pid)
    left = wait_for_the_rest(time.monotonic() + GRACE)
    for line in left:
        print(f"left behind: {line}", file=sys.stderr)
    return code or bool(left)


def wait_for(pid: int) -> int:
    while True:
        reaped, status = os.wait()
        if reaped == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def wait_for_the_rest(deadline: float) -> list[str]:
    """Reaps until nothing is left or the time is up; what is left then is described and killed."""
    while (living := reap_and_list()) and (remaining := deadline - time.monotonic()) > 0:
        # An orphan's own children come here too and send no second signal when they arrive: look again soon.
        signal.sigtimedwait([signal.SIGCHLD], min(remaining, 0.2))
    left = {}
    while living and time.monotonic() < deadline + GRACE:  # one that even SIGKILL does not end hangs nobody
        left.update({pid: describe(pid) for pid in living if pid not in left})
        for pid in living:
            os.kill(pid, signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], 0.2)
        living = reap_and_list()
    return list(left.values())


def reap_and_list() -> list[int]:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return []
    with open("/proc/thread-self/children") as children:
        return [int(pid) for pid in children.read().split()]


def describe(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().replace(b"\0", b" ").decode("utf-8", "backslashreplace").strip()
    except OSError:
        words = ""
    return f"{pid} {words or '(no command line)'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
