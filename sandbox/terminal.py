"""A pseudo-terminal between the caller's terminal and the confined program.

The program gets the slave of a new pair and never a descriptor of the outer terminal, so keystrokes that it
pushes (TIOCSTI) and modes that it sets stay in its own. The outer terminal is raw while the program may read
it: Ctrl-C, Ctrl-Z and Ctrl-\\ are bytes for the inner line discipline, which signals the program's own
foreground group. What the program printed is all that goes out.

The owner polls ``fds()`` and hands what is ready to ``handle()``; nothing here blocks. Imported only where a
terminal is in play (``termios`` is the one module it needs beyond the hot ones).
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import termios
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from types import TracebackType
    from typing import Any, Self
else:
    import _signal as signal  # without its enums, which cost 7 ms

_HIGH = 65536
"""Bytes that may wait in one direction before its source is no longer read."""
_IFLAG, _OFLAG, _CFLAG, _LFLAG, _CC = 0, 1, 2, 3, 6
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR
_GONE = (errno.EIO, errno.EPIPE, errno.ENXIO, errno.EBADF)


def adopt(slave: int) -> None:
    """In the child, before it execs: a new session whose controlling terminal is ``slave``.

    Without it the program has no terminal to be signalled by: Ctrl-C and a new size would reach nobody.
    Raises ``OSError`` when the caller leads a process group already.
    """
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)


class Terminal:
    """Owns the pair, and the outer terminal's modes while it is entered."""

    slave: int
    """For the child's descriptors; -1 once released."""
    eof: bool
    """The program side is closed by everyone: nothing more will come."""
    hangup: bool
    """The outer terminal is gone. Output is still read, and dropped."""

    def __init__(self, outer_in: int | None, outer_out: int) -> None:
        """``outer_in``: where keys come from; None, or not a terminal, when the program's input is not ours.

        ``outer_out``: where the output goes. One of the two must be a terminal. Both stay the caller's: they
        are neither closed nor made non-blocking (that flag would be shared with the caller's shell).
        """
        self.eof = self.hangup = False
        self.slave = self._master = self._in = self._out = -1
        self._keys = outer_in if outer_in is not None and os.isatty(outer_in) else None
        self._given_out = outer_out
        self._size_of = outer_out if self._keys is None else self._keys
        self._saved: list[Any] | None = None
        self._raw: list[Any] | None = None
        self._to_program, self._to_outer = bytearray(), bytearray()

    def __enter__(self) -> Self:
        """Raises ``OSError`` when there is no pair to be had or the outer terminal has gone."""
        try:
            self._master, self.slave = os.openpty()
            os.set_blocking(self._master, False)
            self._out = _own(self._given_out, os.O_WRONLY)
            if self._keys is not None:
                self._in = _own(self._keys, os.O_RDONLY)
            modes = termios.tcgetattr(self._size_of)
            termios.tcsetattr(self.slave, termios.TCSANOW, _only_output(modes))
            self.resize()
            self.resume()
        except BaseException as error:
            self.__exit__(None, None, None)
            if isinstance(error, termios.error):
                raise OSError(*error.args) from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            self._restore()
        finally:
            for fd in (self._master, self.slave, self._in, self._out):
                if fd >= 0:
                    os.close(fd)
            self.slave = self._master = self._in = self._out = -1

    @property
    def drained(self) -> bool:
        """All that the program printed has reached the outer terminal (or that is gone)."""
        return self.eof and not self._to_outer

    def release_slave(self) -> None:
        """After the child has it. As long as we hold it open too, the end of the output can't be seen."""
        if self.slave >= 0:
            os.close(self.slave)
            self.slave = -1

    def resize(self) -> None:
        """Give the program the outer size (call on SIGWINCH); the kernel signals its foreground group."""
        try:
            size = fcntl.ioctl(self._size_of, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        except OSError:
            return  # no terminal any more: reading or writing it will say so

    def resume(self) -> None:
        """Take the outer terminal if it is ours to take (call on SIGCONT: the shell has reset its modes).

        In the background it is left as it is: setting modes or reading keys would stop this process.
        """
        if self._keys is None or not self._foreground():
            return
        try:
            if self._saved is None:
                self._saved = termios.tcgetattr(self._keys)
                self._let_the_slave_cook(self._saved)
            _set(self._keys, _made_raw(self._saved))
            self._raw = termios.tcgetattr(self._keys)
        except termios.error:
            self.hangup = True

    def feed(self, data: bytes) -> None:
        """Type ``data`` at the program; what does not fit now is kept until ``handle`` can write it."""
        self._to_program += data
        self._write_program()

    def fds(self) -> list[tuple[int, int]]:
        """(descriptor, events) for ``select.poll``; ask again after every ``handle``."""
        wanted = []
        master = select.POLLIN if len(self._to_outer) < _HIGH else 0
        master |= select.POLLOUT if self._to_program else 0
        if master and not self.eof:
            wanted.append((self._master, master))
        if self._raw is not None and not self.hangup and len(self._to_program) < _HIGH and self._foreground():
            wanted.append((self._in, select.POLLIN))
        if self._to_outer and not self.hangup:
            wanted.append((self._out, select.POLLOUT))
        return wanted

    def handle(self, fd: int, events: int) -> bytes | None:
        """Act on what poll said of a descriptor of ``fds()``; returns what the program printed, if anything."""
        if fd == self._in and events & _READABLE:
            self._read_keys()
        elif fd == self._out:
            self._write_outer()
        elif fd == self._master:
            if events & select.POLLOUT:
                self._write_program()
            if events & _READABLE:
                return self._read_program()
        return None

    def drain(self, seconds: float) -> bytes:
        """When the program is gone: pass on what is left, for at most ``seconds``; returns it.

        ``seconds`` also bounds the wait for a slave that a survivor keeps open.
        """
        self.release_slave()
        until = time.monotonic() + seconds
        left = bytearray()
        while not self.drained and (remaining := until - time.monotonic()) > 0:
            poll = select.poll()
            for fd, events in self.fds():
                if fd != self._in:
                    poll.register(fd, events)
            for fd, events in poll.poll(remaining * 1000):
                left += self.handle(fd, events) or b""
        return bytes(left)

    def _read_keys(self) -> None:
        if not self._foreground():
            return
        data = _read(self._in)
        if data:
            self.feed(data)
        elif data is not None:
            self.hangup = True

    def _read_program(self) -> bytes | None:
        data = _read(self._master)
        if not data:
            self.eof = self.eof or data is not None
            return None
        self._to_outer += data
        self._write_outer()
        return data

    def _write_program(self) -> None:
        if not _write(self._master, self._to_program):
            self._to_program.clear()  # nobody has the slave open: these keys have no reader

    def _write_outer(self) -> None:
        if self.hangup or not _write(self._out, self._to_outer):
            self.hangup = True
            self._to_outer.clear()

    def _foreground(self) -> bool:
        """Is the outer terminal this process's to read and set: foreground, or job control is not concerned."""
        try:
            return self._keys is not None and os.tcgetpgrp(self._keys) == os.getpgrp()
        except OSError as error:
            return error.errno in (errno.ENOTTY, errno.EIO)  # not the controlling terminal; hung up: a read says so

    def _let_the_slave_cook(self, modes: list[Any]) -> None:
        """From now on the outer terminal is raw: output processing and echo are the slave's again."""
        current = termios.tcgetattr(self._master)
        current[_OFLAG] |= modes[_OFLAG] & (termios.OPOST | termios.ONLCR)
        current[_LFLAG] |= modes[_LFLAG] & termios.ECHO
        termios.tcsetattr(self._master, termios.TCSANOW, current)

    def _restore(self) -> None:
        """The modes as they were. In the background only if no one has set others since.

        Unread input is dropped: answers of the terminal to questions that the program printed must not be
        typed at the caller's shell.
        """
        if self._keys is None or self._saved is None:
            return
        try:
            if self._foreground() or termios.tcgetattr(self._keys) == self._raw:
                _set(self._keys, self._saved, flush=True)
        except termios.error:
            return  # hung up: there is nothing left to restore


def _own(fd: int, how: int) -> int:
    """A descriptor of our own for the same file, non-blocking if it is a terminal that may be opened again."""
    if os.isatty(fd):
        try:
            return os.open(f"/proc/self/fd/{fd}", how | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            pass  # another user's terminal (su, sudo): writing it may have to wait
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def _set(fd: int, modes: list[Any], *, flush: bool = False) -> None:
    """Set modes, with SIGTTOU blocked: a process that has just gone to the background must not stop here.

    TCSANOW: waiting for output to drain would hang on a terminal that nobody reads.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        if flush:
            termios.tcflush(fd, termios.TCIFLUSH)
        termios.tcsetattr(fd, termios.TCSANOW, modes)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _only_output(modes: list[Any]) -> list[Any]:
    """For the slave while the outer terminal cooks: newlines are translated and keys echoed there, once."""
    changed = [*modes[:_CC], list(modes[_CC])]
    changed[_OFLAG] &= ~(termios.OPOST | termios.ONLCR)
    changed[_LFLAG] &= ~termios.ECHO
    return changed


def _made_raw(modes: list[Any]) -> list[Any]:
    """Every key is one byte for us, nothing is echoed and output is passed as it is."""
    raw = [*modes[:_CC], list(modes[_CC])]
    raw[_IFLAG] &= ~(
        termios.IGNBRK | termios.BRKINT | termios.PARMRK | termios.ISTRIP
        | termios.INLCR | termios.IGNCR | termios.ICRNL | termios.IXON
    )  # fmt: skip
    raw[_OFLAG] &= ~termios.OPOST
    raw[_CFLAG] = raw[_CFLAG] & ~(termios.CSIZE | termios.PARENB) | termios.CS8
    raw[_LFLAG] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
    raw[_CC][termios.VMIN], raw[_CC][termios.VTIME] = 1, 0
    return raw


def _read(fd: int) -> bytes | None:
    """Empty when the other side is gone, None when there is nothing yet."""
    try:
        return os.read(fd, _HIGH)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno in _GONE:
            return b""
        raise


def _write(fd: int, waiting: bytearray) -> bool:
    """Write what fits and take it out of ``waiting``; False when the other side is gone."""
    try:
        while waiting:
            written = os.write(fd, waiting[:_HIGH])
            if written == 0:
                break
            del waiting[:written]
    except BlockingIOError:
        pass
    except OSError as error:
        if error.errno in _GONE:
            return False
        raise
    return True
