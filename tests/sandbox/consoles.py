"""A terminal for tests: a program leads the session of a new one, and the test is the person who sits there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time

from boxes import PATIENCE


class Console:
    """A program that leads the session of a new terminal. ``fd`` is its terminal, ``person`` is who sits there."""

    def __init__(self, *command, size=(24, 80)):
        self.person, self.fd = os.openpty()
        self.resize(*size)
        self.seen = b""
        self.modes = termios.tcgetattr(self.fd)
        self.process = subprocess.Popen(
            ["/usr/bin/setsid", "--ctty", *command],
            stdin=self.fd,
            stdout=self.fd,
            stderr=self.fd,
            env={**os.environ, "TERM": "dumb"},
        )

    def resize(self, rows, columns):
        fcntl.ioctl(self.person, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys):
        os.write(self.person, keys)

    def look(self, milliseconds):
        poll = select.poll()
        poll.register(self.person, select.POLLIN)
        if poll.poll(milliseconds):
            with contextlib.suppress(OSError):
                self.seen += os.read(self.person, 65536)
                return True
        return False

    def expect(self, text, times=1):
        until = time.monotonic() + PATIENCE
        while self.seen.count(text) < times:
            self.look(100)
            assert time.monotonic() < until, f"{text!r} did not come: {self.seen!r}"

    def end(self):
        """The exit code; everything that was printed is in ``seen`` then."""
        until = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            self.look(20)
            assert time.monotonic() < until, f"it did not end: {self.seen!r}"
        while self.look(0):
            pass
        return self.process.returncode

    def waiting(self):
        """Bytes that whoever reads this terminal next would get."""
        return int.from_bytes(fcntl.ioctl(self.fd, termios.FIONREAD, bytes(4)), sys.byteorder)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        for fd in (self.person, self.fd):
            with contextlib.suppress(OSError):
                os.close(fd)


def consoles():
    """The body of a fixture: what makes consoles, and closes them afterwards."""
    made = []

    def make(*command, **options):
        made.append(Console(*command, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
