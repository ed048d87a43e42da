"""A real terminal in front of ``stockade run``: what the program can do to it, and what the person at it can do."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import termios

import pytest
from boxes import PATIENCE, PYTHON, own_state, processes_with, wait_until  # noqa: F401
from consoles import consoles

import stockade

pytestmark = pytest.mark.kernel

RUN = (sys.executable, "-m", "stockade", "run")
PUSH = """
import fcntl, sys, termios
try:
    for letter in b"date\\n":
        fcntl.ioctl(0, termios.TIOCSTI, bytes([letter]))
    print("PUSHED")
except OSError as error:
    print("REFUSED", error.errno)
"""
LOOP = "while :; do sleep 0.05; done"


@pytest.fixture(autouse=True)
def in_a_small_place(place, monkeypatch):
    monkeypatch.chdir(place.ws)


@pytest.fixture
def console():
    yield from consoles()


def test_pushed_keystrokes_stay_in_the_programs_own_terminal(console):
    """What a program types at itself must not be there for the caller's shell to read."""
    inside = console(*RUN, "--", PYTHON, "-c", PUSH)
    assert inside.end() == 0
    assert b"PUSHED" in inside.seen or b"REFUSED" in inside.seen
    assert inside.waiting() == 0
    # Control: the same program on that terminal without a box reaches it, where the kernel still allows it.
    bare = console(sys.executable, "-c", PUSH)
    assert bare.end() == 0
    assert (bare.waiting() > 0) == (b"PUSHED" in bare.seen)
    with open("/proc/sys/dev/tty/legacy_tiocsti") as file:
        if file.read().strip() == "1":
            assert b"PUSHED" in bare.seen


@pytest.mark.parametrize("trust", [(), ("--trusted",)], ids=["confined", "direct"])
def test_an_interrupt_key_reaches_the_programs_trap(console, trust):
    session = console(*RUN, *trust, "--", "sh", "-c", f"trap 'echo TRAPPED; exit 3' INT; echo READY; {LOOP}")
    session.expect(b"READY")
    session.type(b"\x03")
    assert session.end() == 3
    assert b"TRAPPED" in session.seen


def test_an_interrupt_key_ends_a_program_that_has_no_trap(console):
    session = console(*RUN, "--", "sh", "-c", "echo READY; exec sleep 300")
    session.expect(b"READY")
    session.type(b"\x03")
    assert session.end() == 128 + signal.SIGINT


def test_an_interactive_shell_has_job_control(console):
    session = console(*RUN, "--env", "PS1=ready> ", "--", "bash", "--norc", "--noediting", "-i")
    session.expect(b"ready> ")
    session.type(b"cat\n")
    session.type(b"hello\n")
    session.expect(b"hello", 2)  # the terminal's echo, and cat's: cat is in the foreground
    session.type(b"\x1a")
    session.expect(b"Stopped")
    session.type(b"fg\n")
    session.type(b"again\n")
    session.expect(b"again", 2)
    session.type(b"\x04")
    session.type(b"exit 7\n")
    assert session.end() == 7
    assert b"no job control" not in session.seen
    assert b"terminal process group" not in session.seen


@pytest.mark.parametrize("trust", [(), ("--trusted",)], ids=["confined", "direct"])
def test_the_window_size_is_passed_on_and_followed(console, trust):
    script = f"stty size; trap 'stty size; exit 0' WINCH; echo READY; {LOOP}"
    session = console(*RUN, *trust, "--", "sh", "-c", script, size=(33, 111))
    session.expect(b"READY")
    assert b"33 111" in session.seen
    session.resize(44, 99)
    assert session.end() == 0
    assert b"44 99" in session.seen


def test_the_program_can_ask_its_terminal(console):
    session = console(*RUN, "--", "sh", "-c", "echo READY; read x </dev/tty; echo got $x")
    session.expect(b"READY")
    session.type(b"hello\n")
    assert session.end() == 0
    assert b"got hello" in session.seen


def test_asking_without_a_terminal_fails_at_once():
    """A prompt must be an error, not a wait for keys that nobody can type."""
    result = stockade.run("read x </dev/tty", timeout=20)
    assert (result.outcome, result.denied) == ("exited", False), result.stderr
    assert result.exit_code not in (0, None)
    assert os.strerror(errno.ENXIO).encode() in result.stderr


@pytest.mark.parametrize(
    ("script", "act", "code"),
    [
        ("stty raw -echo; echo READY", None, 0),
        (f"echo READY; {LOOP}", signal.SIGTERM, 143),
        (f"trap 'exit 5' TERM; echo READY; {LOOP}", signal.SIGTERM, 5),
        (f"stty raw; echo READY; {LOOP}", signal.SIGHUP, 129),
    ],
    ids=["it set its own modes", "stopped", "stopped, with a trap", "hung up"],
)
def test_the_terminals_modes_are_as_they_were(console, script, act, code):
    session = console(*RUN, "--", "sh", "-c", script)
    session.expect(b"READY")
    if act is not None:
        assert termios.tcgetattr(session.fd) != session.modes  # raw, as long as the program has the keys
        session.process.send_signal(act)
    assert session.end() == code
    assert termios.tcgetattr(session.fd) == session.modes


def test_a_second_request_kills_a_program_that_ignores_the_first(console):
    session = console(*RUN, "-v", "--", "sh", "-c", f"trap '' INT TERM HUP; echo READY; {LOOP}")
    session.expect(b"READY")
    session.process.send_signal(signal.SIGTERM)
    session.process.send_signal(signal.SIGHUP)
    code = session.end()
    assert code in (143, 129)
    assert b"then killed" in session.seen
    assert termios.tcgetattr(session.fd) == session.modes


def test_nothing_outlives_a_terminal_that_is_closed(console):
    token = f"closed-{os.urandom(6).hex()}"
    session = console(*RUN, "--", "sh", "-c", "echo READY; sleep 300; :", token)
    session.expect(b"READY")
    assert processes_with(token)
    os.close(session.person)
    session.process.wait(PATIENCE)
    wait_until(lambda: not processes_with(token), "the run of a closed terminal is gone")
    session.person = os.open("/dev/null", os.O_RDWR)


def test_only_the_streams_that_are_a_terminal_are_one_inside(console):
    """A pipe into a run stays a pipe; keys are left to whoever has the terminal, so its modes are not touched."""
    script = "test -t 0 || echo IN-PIPE; test -t 1 && echo OUT-TERMINAL; cat"
    command = 'echo piped | "$@"'
    session = console("/bin/sh", "-c", command, "sh", *RUN, "--", "sh", "-c", script)
    assert session.end() == 0
    for said in (b"IN-PIPE", b"OUT-TERMINAL", b"piped"):
        assert said in session.seen
    assert termios.tcgetattr(session.fd) == session.modes


@pytest.mark.parametrize(
    ("command", "outcome", "code"),
    [
        (["no-such-command"], "not_executed", 127),
        (["/etc/passwd"], "not_executed", 126),
        (["sh", "-c", "exit 127"], "exited", 127),
        (["--timeout", "0.3", "--", "sleep", "300"], "timed_out", 124),
    ],
)
def test_a_terminal_does_not_change_the_verdict(console, tmp_path, command, outcome, code):
    document = tmp_path / "verdict.json"
    session = console(*RUN, f"--json={document}", *command)
    assert session.end() == code
    result = json.loads(document.read_text())
    assert (result["outcome"], result["returncode"]) == (outcome, code)


EVIL = b"\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m"


def test_a_programs_own_output_is_passed_on_byte_for_byte():
    command = [*RUN, "--", "printf", r"\033]52;c;ZXZpbA==\007\033[2J\23331m"]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (0, EVIL)


def test_quoted_output_cannot_steer_a_terminal():
    """A denial quotes the line it rests on: with its control bytes spelt out."""
    command = r"printf '\033]52;c;ZXZpbA==\007\033[2JRead-only file system\n' >&2; exit 1"
    result = stockade.run(command)
    assert result.stderr.startswith(b"\x1b]52")
    [denial] = result.denials
    assert "Read-only file system" in denial.detail
    assert "\\x1b]52" in denial.detail
    assert denial.detail.isprintable()


@pytest.mark.parametrize(
    "words",
    [
        ["--", "\x1b]52;c;evil\x07"],
        ["--cwd", "/\x1b]52;c;evil\x07", "--", "true"],
        ["--policy", "\x1b]52;c;evil\x07", "--", "true"],
        ["--\x1b]52;c;evil\x07", "--", "true"],
        ["--env", "\x1b]52;c;evil\x07", "--", "true"],
    ],
    ids=["program", "directory", "policy", "option", "variable"],
)
def test_our_own_messages_never_hold_control_bytes(words):
    done = subprocess.run([*RUN, *words], capture_output=True, timeout=PATIENCE, check=False)
    ours = b"".join(line for line in done.stderr.splitlines(keepends=True) if not line.startswith(b"bwrap: "))
    assert done.returncode in (125, 127)
    assert b"52;c;evil" in ours
    assert not set(ours) & {0x1B, 0x07, 0x9B}
