"""Real pairs: one stands for the caller's terminal, the other is ours, and a child sits at its end."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import select
import struct
import subprocess
import sys
import termios
import time

import pytest

from stockade.sandbox import terminal as module
from stockade.sandbox.terminal import Terminal, adopt

PATIENCE = 30


class Outer:
    """The caller's terminal: ``fd`` is what the caller has, ``type`` and ``seen`` are the person in front of it."""

    def __init__(self):
        self.person, self.fd = os.openpty()
        os.set_blocking(self.person, False)
        self.seen = b""

    def type(self, keys):
        assert os.write(self.person, keys) == len(keys)

    def look(self):
        with contextlib.suppress(BlockingIOError, OSError):
            while True:
                self.seen += os.read(self.person, 65536)

    def modes(self):
        return termios.tcgetattr(self.fd)

    def keys_wait(self, milliseconds=0):
        """The kernel carries keys over in its own time: give it some where they are expected."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(milliseconds))

    def close(self):
        for fd in (self.person, self.fd):
            with contextlib.suppress(OSError):
                os.close(fd)


@pytest.fixture
def outer():
    made = Outer()
    yield made
    made.close()


@contextlib.contextmanager
def program(terminal, code, *, only_output=False):
    """A Python program on the inner terminal."""
    slave = terminal.slave
    child = subprocess.Popen(
        [sys.executable, "-u", "-c", code],
        stdin=subprocess.DEVNULL if only_output else slave,
        stdout=slave,
        stderr=slave,
        preexec_fn=lambda: adopt(1),
    )
    terminal.release_slave()
    try:
        yield child
    finally:
        child.kill()
        child.wait(PATIENCE)


def attend(terminal, outer, until):
    """The owner's loop: returns what the program printed when ``until()`` is true."""
    printed, end = b"", time.monotonic() + PATIENCE
    while True:
        outer.look()
        if until():
            return printed
        assert time.monotonic() < end, (printed, outer.seen)
        poll = select.poll()
        for fd, events in terminal.fds():
            poll.register(fd, events)
        poll.register(outer.person, select.POLLIN)
        for fd, events in poll.poll(1000):
            if fd != outer.person:
                printed += terminal.handle(fd, events) or b""


def run(outer, code, **options):
    """The program to its end; returns what it printed and its exit code."""
    keys = None if options.get("only_output") else outer.fd
    with Terminal(keys, outer.fd) as terminal, program(terminal, code, **options) as child:
        printed = attend(terminal, outer, lambda: terminal.drained)
        return printed, child.wait(PATIENCE)


def is_raw(modes):
    return not modes[3] & (termios.ICANON | termios.ISIG | termios.ECHO) and not modes[1] & termios.OPOST


def test_raw_while_entered_and_restored_after(outer):
    before = outer.modes()
    assert not is_raw(before)
    with Terminal(outer.fd, outer.fd):
        assert is_raw(outer.modes())
    assert outer.modes() == before


def note_and_raise(during, outer, error):
    during.append(outer.modes())
    raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_restored_when_an_exception_passes(outer, error):
    before, during = outer.modes(), []
    with pytest.raises(error), Terminal(outer.fd, outer.fd):
        note_and_raise(during, outer, error)
    assert is_raw(during[0])
    assert outer.modes() == before


def test_restored_when_entering_fails(outer, monkeypatch):
    before, descriptors = outer.modes(), os.listdir("/proc/self/fd")
    monkeypatch.setattr(Terminal, "resume", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError), Terminal(outer.fd, outer.fd):
        pass
    assert outer.modes() == before
    assert os.listdir("/proc/self/fd") == descriptors


def test_only_output_leaves_the_outer_alone(outer):
    before = outer.modes()
    with Terminal(None, outer.fd) as terminal:
        assert outer.modes() == before
        inner = termios.tcgetattr(terminal.slave)
        assert not inner[1] & termios.OPOST
        assert not inner[3] & termios.ECHO
        assert outer.fd not in [fd for fd, _ in terminal.fds()]
    assert outer.modes() == before


def test_modes_and_size_are_copied(outer):
    modes = outer.modes()
    modes[6][termios.VERASE] = b"\x08"
    termios.tcsetattr(outer.fd, termios.TCSANOW, modes)
    size = struct.pack("HHHH", 41, 132, 640, 480)
    fcntl.ioctl(outer.fd, termios.TIOCSWINSZ, size)
    with Terminal(outer.fd, outer.fd) as terminal:
        assert termios.tcgetattr(terminal.slave) == modes
        assert fcntl.ioctl(terminal.slave, termios.TIOCGWINSZ, bytes(8)) == size


def test_a_new_size_reaches_the_program(outer):
    code = """
import os, signal
signal.signal(signal.SIGWINCH, lambda *_: (print("size", *os.get_terminal_size(0)), os._exit(0)))
print("ready")
signal.pause()
"""
    with Terminal(outer.fd, outer.fd) as terminal, program(terminal, code) as child:
        attend(terminal, outer, lambda: b"ready\r\n" in outer.seen)
        termios.tcsetwinsize(outer.fd, (33, 99))
        terminal.resize()
        attend(terminal, outer, lambda: terminal.drained)
        assert b"size 99 33" in outer.seen
        assert child.wait(PATIENCE) == 0


def test_ctrl_c_interrupts_the_program_and_not_us(outer):
    code = """
import os, signal
signal.signal(signal.SIGINT, lambda *_: (print("interrupted"), os._exit(7)))
print("ready")
while True: signal.pause()
"""
    with Terminal(outer.fd, outer.fd) as terminal, program(terminal, code) as child:
        attend(terminal, outer, lambda: b"ready\r\n" in outer.seen)
        outer.type(b"\x03")
        attend(terminal, outer, lambda: terminal.drained)
        assert b"interrupted" in outer.seen
        assert child.wait(PATIENCE) == 7


def test_keys_are_typed_at_the_program_and_echoed_once(outer):
    outer_before = outer.modes()
    code = "print('ready'); print('got', repr(input()))"
    with Terminal(outer.fd, outer.fd) as terminal, program(terminal, code):
        attend(terminal, outer, lambda: b"ready\r\n" in outer.seen)
        outer.type(b"hello\r")
        attend(terminal, outer, lambda: terminal.drained)
    assert outer.seen == b"ready\r\nhello\r\ngot 'hello'\r\n"
    assert outer.modes() == outer_before


EVERY_BYTE = "import os; os.write(1, bytes(range(256)) * 40 + b'\\nend')"


def test_the_outer_sees_exactly_what_it_would_have_seen_directly(outer):
    direct = Outer()
    subprocess.run(
        [sys.executable, "-c", "import os; os.write(1, b'a\\tb\\n\\x1b[1m\\xff')"], stdout=direct.fd, check=True
    )
    direct.look()
    run(outer, "import os; os.write(1, b'a\\tb\\n\\x1b[1m\\xff')")
    direct.close()
    assert outer.seen == direct.seen == b"a\tb\r\n\x1b[1m\xff"


def test_output_is_exact_byte_for_byte(outer):
    expected = bytes(range(256)) * 40 + b"\nend"
    assert run(outer, EVERY_BYTE) == (expected.replace(b"\n", b"\r\n"), 0)
    assert outer.seen == expected.replace(b"\n", b"\r\n")


def test_output_only_is_captured_untouched_and_cooked_by_the_outer(outer):
    expected = bytes(range(256)) * 40 + b"\nend"
    assert run(outer, EVERY_BYTE, only_output=True) == (expected, 0)
    assert outer.seen == expected.replace(b"\n", b"\r\n")


def test_a_slow_outer_holds_the_program_back_and_loses_nothing(outer):
    amount = 1_000_000
    code = f"import os; data = memoryview(b'x' * {amount})\nwhile data: data = data[os.write(1, data):]"
    with Terminal(outer.fd, outer.fd) as terminal, program(terminal, code):
        for _ in range(200):
            poll = select.poll()
            wanted = [row for row in terminal.fds() if row[1] & select.POLLIN]
            for fd, events in wanted:
                poll.register(fd, events)
            for fd, events in poll.poll(20 if len(wanted) < 2 else 1000):
                terminal.handle(fd, events)
            assert len(terminal._to_outer) < 2 * module._HIGH
            if len(wanted) < 2:
                break
        assert len(terminal._to_outer) >= module._HIGH
        attend(terminal, outer, lambda: terminal.drained)
        outer.look()
    assert outer.seen == b"x" * amount


def test_what_is_typed_faster_than_it_is_read_is_kept(outer):
    typed = os.urandom(300_000)
    code = f"""
import hashlib, os, tty
tty.setraw(0)
print("ready\\r")
data = b""
while len(data) < {len(typed)}: data += os.read(0, 65536)
print(hashlib.sha256(data).hexdigest())
"""
    with Terminal(outer.fd, outer.fd) as terminal, program(terminal, code):
        attend(terminal, outer, lambda: b"ready\r\n" in outer.seen)
        terminal.feed(typed)
        attend(terminal, outer, lambda: terminal.drained)
    assert hashlib.sha256(typed).hexdigest().encode() in outer.seen


def test_keys_are_left_with_the_outer_while_too_many_wait_for_the_program(outer):
    with Terminal(outer.fd, outer.fd) as terminal:
        assert terminal._in in [fd for fd, _ in terminal.fds()]
        terminal.feed(b"x" * 300_000)
        assert len(terminal._to_program) >= module._HIGH
        assert terminal._in not in [fd for fd, _ in terminal.fds()]


PUSH = """
import fcntl, os, sys, termios, tty
tty.setraw(0)
try:
    fcntl.ioctl(0, termios.TIOCSTI, b"X")
    said = "pushed"
except OSError:
    said = "refused"
"""


def test_pushed_keys_stay_in_the_inner_terminal(outer):
    run(outer, PUSH + "print(said, os.read(0, 1) if said == 'pushed' else '')")
    assert not outer.keys_wait()
    if b"refused" in outer.seen:
        return  # this kernel lets nobody push
    assert outer.seen == b"pushed b'X'\n"


def test_the_control_keys_pushed_at_a_terminal_that_is_shared_do_arrive(outer):
    child = subprocess.Popen(
        [sys.executable, "-u", "-c", PUSH + "print(said, file=sys.stderr); import signal; signal.pause()"],
        stdin=outer.fd,
        stdout=outer.fd,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: adopt(0),
    )
    try:
        said = child.stderr.readline()
        assert (os.read(outer.fd, 1) == b"X") if said == b"pushed\n" else said == b"refused\n"
    finally:
        child.kill()
        child.communicate()


def test_modes_set_by_the_program_stay_in_the_inner_terminal(outer):
    before = outer.modes()
    with Terminal(outer.fd, outer.fd) as terminal:
        raw = outer.modes()
        with program(terminal, "import termios; a = termios.tcgetattr(0); a[3] = 0; termios.tcsetattr(0, 0, a)"):
            attend(terminal, outer, lambda: terminal.drained)
        assert outer.modes() == raw
    assert outer.modes() == before


def test_unread_keys_are_dropped_at_the_end(outer):
    """A terminal's answer to a question that the program printed must not reach the caller's shell."""
    with Terminal(outer.fd, outer.fd):
        outer.type(b"\x1b[?1;2c\r")
        assert outer.keys_wait(PATIENCE * 1000)
    assert not outer.keys_wait()
    outer.type(b"kept\n")
    assert outer.keys_wait(PATIENCE * 1000)


def test_a_vanished_outer_is_a_hangup_and_the_program_is_still_read_to_its_end(outer):
    code = "input(); print('x' * 200000)"
    with Terminal(outer.fd, outer.fd) as terminal, program(terminal, code) as child:
        os.close(outer.person)
        terminal.feed(b"\r")
        printed = terminal.drain(PATIENCE)
        assert terminal.hangup
        assert terminal.drained
        assert len(printed) >= 200000
        assert child.wait(PATIENCE) == 0
        assert terminal.fds() == []
    outer.person = os.open("/dev/null", os.O_RDONLY)


def test_a_hangup_is_seen_on_the_keys_too(outer):
    with Terminal(outer.fd, outer.fd) as terminal:
        os.close(outer.person)
        poll = select.poll()
        for fd, events in terminal.fds():
            poll.register(fd, events)
        for fd, events in poll.poll(PATIENCE * 1000):
            terminal.handle(fd, events)
        assert terminal.hangup
        assert [fd for fd, _ in terminal.fds()] == [terminal._master]
    outer.person = os.open("/dev/null", os.O_RDONLY)


def test_the_drain_is_bounded_when_a_survivor_keeps_the_slave(outer):
    with Terminal(outer.fd, outer.fd) as terminal:
        survivor = os.dup(terminal.slave)
        os.write(survivor, b"last words")
        assert terminal.drain(0.05) == b"last words"
        assert not terminal.eof
        os.close(survivor)
        assert terminal.drain(PATIENCE) == b""
        assert terminal.drained


def test_no_descriptor_leaks_none_is_inherited_and_the_callers_stay_blocking(outer):
    before = sorted(os.listdir("/proc/self/fd"), key=int)
    with Terminal(outer.fd, outer.fd) as terminal:
        for fd in (terminal._master, terminal.slave, terminal._in, terminal._out):
            assert not os.get_inheritable(fd)
        assert os.get_blocking(outer.fd)
        assert os.get_blocking(terminal.slave)
        assert not os.get_blocking(terminal._out)
    assert sorted(os.listdir("/proc/self/fd"), key=int) == before


def test_a_terminal_that_cannot_be_opened_again_is_used_as_it_is(outer, monkeypatch):
    """As after su: the device belongs to another user."""
    genuine = os.open

    def refuse(path, *rest, **named):
        if str(path).startswith("/proc/self/fd/"):
            raise PermissionError(13, "refused")
        return genuine(path, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    assert run(outer, "print('hi')")[0] == b"hi\r\n"
    assert outer.seen == b"hi\r\n"


def test_input_that_is_no_terminal_is_not_touched(outer):
    reader, writer = os.pipe()
    with Terminal(reader, outer.fd) as terminal:
        os.write(writer, b"for someone else")
        assert [fd for fd, _ in terminal.fds()] == [terminal._master]
        assert not is_raw(outer.modes())
    assert os.read(reader, 99) == b"for someone else"
    os.close(reader)
    os.close(writer)


def test_no_terminal_at_all_is_an_os_error():
    null = os.open(os.devnull, os.O_RDWR)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="ioctl"), Terminal(None, null):
        pass
    assert os.listdir("/proc/self/fd") == before
    os.close(null)


JOB = """
import os, signal, sys, termios
from stockade.sandbox.terminal import Terminal, adopt
adopt(0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
said, say = os.pipe()
go, start = os.pipe()
job = os.fork()
if job == 0:
    try:
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.setpgid(0, 0)
        before = termios.tcgetattr(0)
        with Terminal(0, 0) as terminal:
            assert termios.tcgetattr(0) == before, "background: modes were set"
            assert len(terminal.fds()) == 1, "background: keys are read"
            inner = termios.tcgetattr(terminal.slave)
            assert not inner[1] & termios.OPOST and not inner[3] & termios.ECHO
            os.write(say, b"b")
            assert os.read(go, 1) == b"f"
            terminal.resume()
            assert not termios.tcgetattr(0)[3] & termios.ICANON, "foreground: not raw"
            assert len(terminal.fds()) == 2
            inner = termios.tcgetattr(terminal.slave)
            assert inner[1] & termios.OPOST and inner[3] & termios.ECHO
            os.write(say, b"f")
            assert os.read(go, 1) == b"s"
        os._exit(0)
    except BaseException as error:
        os.write(2, repr(error).encode())
        os._exit(3)
modes = termios.tcgetattr(0)

def wait_for(letter):
    if os.read(said, 1) != letter:
        os._exit(4)

os.close(say)
wait_for(b"b")
os.tcsetpgrp(0, job)
os.write(start, b"f")
wait_for(b"f")
os.tcsetpgrp(0, os.getpgrp())
if "reset" in sys.argv:
    modes[3] &= ~termios.ECHOE
    termios.tcsetattr(0, termios.TCSANOW, modes)
os.write(start, b"s")
_, status = os.waitpid(job, os.WUNTRACED)
if os.WIFSTOPPED(status):
    os.kill(job, signal.SIGKILL)
    os.write(2, b"the job was stopped")
    os._exit(5)
assert termios.tcgetattr(0) == modes, "not as the shell wants it"
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("shell", [["keeps"], ["reset"]])
def test_job_control(outer, shell):
    """Background: hands off. Foreground: raw. Left in the background: restored, unless the shell has reset it."""
    child = subprocess.Popen(
        [sys.executable, "-c", JOB, *shell], stdin=outer.fd, stdout=outer.fd, stderr=subprocess.PIPE
    )
    _, complaint = child.communicate(timeout=PATIENCE)
    assert (child.returncode, complaint) == (0, b"")
