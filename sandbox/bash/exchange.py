"""One command's way through a kept shell: send it, read its output, hear its end.

Only what the shell itself wrote counts as the end: the kernel says of every message which process sent it, and no
process without privileges can send one as another. The end also has to carry a token that is new for each command.
A command that sets out to make its own shell lie can: it runs in that shell. No output can, and no child, unless it
takes the shell over as a debugger.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time

from stockade.sandbox.bash import feed
from stockade.sandbox.processes import children, is_zombie, parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    from stockade.sandbox.bash.calls import Taken
    from stockade.sandbox.bash.feed import End
    from stockade.sandbox.bash.shell import Shell
    from stockade.sandbox.bash.spill import Spill
    from stockade.sandbox.stopper import Stopper
else:
    import _signal as signal  # ``signal`` itself costs as much as enum

GRACE = 0.1
"""Seconds between the polite stop and the kill when the time is over, as for every run."""

CREDENTIALS = struct.Struct("iII")
"""pid, uid, gid (unix(7))."""

ROOM = socket.CMSG_SPACE(CREDENTIALS.size)
"""For credentials alone: descriptors that somebody sends along don't fit, and the kernel drops them."""

CHUNK = 1 << 16


class Exchange:
    """Ends with ``end``, or with ``over``: the shell is gone, and its run says how."""

    def __init__(
        self, shell: Shell, data: bytes, token: bytes, until: float | None, stopper: Stopper | None
    ) -> None:
        """``until`` is a time of ``time.monotonic``; ``stopper`` that of the call."""
        self.shell, self.token, self.until, self.stopper = shell, token, until, stopper
        self.end: End | None = None
        self.over = False
        self.timed_out = False
        self.broken = ""
        """Why the shell was ended: it told what no shell of ours does."""
        self.imitated = False
        """Whether another process than the shell spoke."""
        self.others = False
        """Whether something was running already that an earlier command had left."""
        self._pending = memoryview(data)
        self._told = b""
        self._kill_at: float | None = None
        self._streams: list[Spill] = []
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._poll = select.poll()

    @classmethod
    def of(cls, shell: Shell, command: str, until: float | None, stopper: Stopper | None) -> Exchange:
        token = os.urandom(8).hex().encode()
        return cls(shell, feed.frame(command, token, bash=shell.bash), token, until, stopper)

    def listen(self, taken: Taken) -> None:
        """Keep what the shell's pipes bring meanwhile."""
        self.others = self._others()
        for number, tap in self.shell.taps.items():
            stream = taken.make(number, os.dup(tap.fd))
            self._streams.append(stream)
            self._watch(tap.fd, select.POLLIN, lambda fd, stream=stream: self._on_output(fd, stream))  # type: ignore[misc]

    def _others(self) -> bool:
        """Processes beside the shell: its children, and in a box those that the first process has adopted."""
        pid = self.shell.pid
        there = children(pid)
        if self.shell.confined:
            there += [each for each in children(parent(pid)) if each != pid]
        return any(not is_zombie(each) for each in there)

    def carry_out(self) -> None:
        """Returns with the command's end, or when the shell is gone."""
        shell = self.shell
        self._watch(shell.done, select.POLLIN, self._on_done)
        self._watch(shell.ours.fileno(), select.POLLIN, self._on_shell)
        if self.stopper is not None:
            self._watch(self.stopper.read, select.POLLIN, self._on_stop)
        try:
            self._send()
            while self.end is None and not self.over:
                for fd, _events in self._poll.poll(self._patience()):
                    self._handlers[fd](fd)
                self._check_time()
        except BaseException:
            shell.kill()  # what goes on in it now belongs to no call
            raise
        finally:
            for stream in self._streams:
                stream.finish()

    def told(self, outcome: str) -> tuple[str, ...]:
        """What is to be known of this command."""
        notes = []
        if self.others:
            notes.append("what earlier commands left running may have written into this output")
        if self.imitated:
            notes.append("another process than the shell told that the command was through: it was ignored")
        if self.over and outcome not in ("runner_failed", "not_executed"):
            notes.append("the kept shell ended with this command: the next call begins in a fresh one")
        return tuple(notes)

    def _watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def _patience(self) -> float | None:
        times = [when for when in (self.until, self._kill_at) if when is not None]
        return max(0.0, min(times) - time.monotonic()) * 1000 + 0.5 if times else None

    def _check_time(self) -> None:
        now = time.monotonic()
        if self.end is None and self.until is not None and now >= self.until:
            self.until, self._kill_at = None, now + GRACE
            self.timed_out = True
            self.shell.stopper.request(signal.SIGTERM)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self.shell.stopper.request(signal.SIGKILL)

    def _send(self) -> None:
        """As much as the socket takes; the rest when it takes more."""
        try:
            while self._pending:
                self._pending = self._pending[self.shell.ours.send(self._pending) :]
        except BlockingIOError:
            pass
        except OSError:
            self._pending = self._pending[:0]  # nobody is there to read: the end of the run says why
        wanted = select.POLLIN | (select.POLLOUT if self._pending else 0)
        if self.shell.ours.fileno() in self._handlers:
            self._poll.modify(self.shell.ours, wanted)

    def _on_shell(self, fd: int) -> None:
        if self._pending:
            self._send()
        try:
            data, ancillary, _flags, _address = self.shell.ours.recvmsg(CHUNK, ROOM, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if data:
            self._hear(data, sender(ancillary))
        else:
            # Nobody has the other end any more: the shell is gone, or became another program.
            self._poll.unregister(fd)
            del self._handlers[fd]

    def _hear(self, data: bytes, pid: int) -> None:
        """The kernel never joins what different processes wrote."""
        shell = self.shell
        if shell.greeted and pid != shell.pid:
            self.imitated = True
            return
        if self.timed_out:
            return  # whatever it tells now: it is being ended
        self._told += data
        try:
            self.end = feed.read_end(self._told, self.token)
        except ValueError:
            self.broken = (
                self.broken or "the shell told what it never tells by itself: the command tampered with it"
            )
            shell.stopper.request(signal.SIGKILL)
            return
        if self.end is not None and not shell.greeted:
            shell.greet(pid)

    def _on_output(self, fd: int, stream: Spill) -> None:
        stream.handle(fd, select.POLLIN)
        if stream.fd < 0:
            self._poll.unregister(fd)
            del self._handlers[fd]

    def _on_done(self, _fd: int) -> None:
        self.over = True

    def _on_stop(self, fd: int) -> None:
        for number in os.read(fd, 64):
            self.shell.stopper.request(number)


def sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Which process sent a message, as this process sees it; 0 when the kernel did not say."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) == CREDENTIALS.size:
            pid: int = CREDENTIALS.unpack(data)[0]
            return pid
    return 0
