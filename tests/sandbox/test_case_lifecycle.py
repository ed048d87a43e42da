"""From start to the end of the last process: nothing outlives a run or stretches it, whoever is killed and when."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest
from boxes import PATIENCE, PYTHON, cli, own_state, processes_with, wait_until  # noqa: F401

import stockade
from stockade.sandbox import keeperlink

pytestmark = pytest.mark.kernel

RUN = (sys.executable, "-m", "stockade", "run")
LOOP = "while :; do sleep 0.05; done"


@pytest.fixture(autouse=True)
def in_a_small_place(place, monkeypatch):
    """The directory that is everybody's default here: empty, and open to whomever a run becomes."""
    monkeypatch.chdir(place.ws)


@pytest.fixture
def token():
    return f"token-{os.urandom(8).hex()}"


def script(text, token):
    """A shell command that can be found by its token, as everything that it forks can."""
    return ["sh", "-c", text, token]


def python(text, token):
    return [PYTHON, "-c", text, token]


DAEMON = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(300)
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        (lambda token: script("sleep 300 & sleep 300; :", token), "timed_out"),
        (lambda token: script("setsid sh -c 'sleep 300; :' $0 & sleep 300; :", token), "timed_out"),
        (lambda token: script("(setsid sh -c 'sleep 300; :' $0 &); exit 0", token), "exited"),
        (lambda token: script(f"trap '' TERM INT HUP; {LOOP}", token), "timed_out"),
        (lambda token: python(DAEMON + "sys.exit(0)", token), "exited"),
        (lambda token: python(DAEMON + "time.sleep(300)", token), "timed_out"),
        (lambda token: script("kill -STOP $$", token), "timed_out"),
        (lambda token: script("sh -c 'kill -STOP $$' $0 & wait", token), "timed_out"),
    ],
    ids=["child", "own session", "left behind", "deaf", "daemon", "daemon, deaf", "stopped", "stopped child"],
)
def test_nothing_outlives_the_run_and_the_deadline_holds(token, command, outcome):
    """Grandchildren keep both streams open; the run waits for none of them, and all are gone when it returns."""
    result = stockade.run(command(token), timeout=0.5)
    assert result.outcome == outcome, result.reason
    assert processes_with(token) == []


@pytest.mark.parametrize(
    "command",
    [
        lambda token: script("sleep 300 & sleep 300; :", token),
        lambda token: script("setsid sh -c 'sleep 300; :' $0 & sleep 300; :", token),
        lambda token: script("(setsid sh -c 'sleep 300; :' $0 &); sleep 300; :", token),
        lambda token: python(DAEMON + "time.sleep(300)", token),
        lambda token: python("import os\nwhile True:\n if os.fork(): os._exit(0)\n os.setsid()", token),
    ],
    ids=["child", "own session", "let go", "daemon, deaf", "always on the run"],
)
def test_nothing_of_a_direct_run_outlives_its_deadline(token, command):
    """Nothing confines it, but a hook that took too long is over, and so is all that it started."""
    result = stockade.run(["sh", "-c", '"$@"; sleep 300', "sh", *command(token)], trusted=True, timeout=0.5)
    assert (result.outcome, result.enforcement) == ("timed_out", "none")
    assert processes_with(token) == []


def test_a_direct_run_that_ends_by_itself_may_leave_a_server(token):
    """And the deadline of a later one is not the end of it."""
    try:
        assert stockade.run(python(DAEMON + "sys.exit(0)", token), trusted=True, timeout=20).ok
        wait_until(lambda: processes_with(token), "the daemon is there")
        assert stockade.run("sleep 300", trusted=True, timeout=0.3).outcome == "timed_out"
        assert processes_with(token)
    finally:
        for pid in processes_with(token):
            os.kill(pid, signal.SIGKILL)


def test_the_search_for_survivors_can_find_one(token):
    """The control of this file: a process that is there is found."""
    survivor = subprocess.Popen(["/bin/sh", "-c", "sleep 300; :", token], start_new_session=True)
    try:
        wait_until(lambda: processes_with(token), "the survivor is found")
    finally:
        os.killpg(survivor.pid, signal.SIGKILL)
        survivor.wait()


@pytest.mark.parametrize("trusted", [False, True], ids=["confined", "direct"])
def test_the_deadline_asks_before_it_kills(trusted):
    command = "trap 'echo BYE; exit 0' TERM; echo READY; sleep 300 & wait"
    result = stockade.run(command, timeout=0.5, trusted=trusted)
    assert (result.outcome, result.returncode, result.exit_code) == ("timed_out", 124, None)
    assert result.stdout == b"READY\nBYE\n"


def test_a_program_that_ends_in_time_keeps_its_own_end():
    result = stockade.run("sleep 300 & exit 5", timeout=20)
    assert (result.outcome, result.exit_code) == ("exited", 5)


class Called:
    """``stockade run`` as a process of its own, with the verdict in a file."""

    def __init__(self, tmp_path, command, *options):
        self.document = tmp_path / "verdict.json"
        self.process = subprocess.Popen(
            [*RUN, f"--json={self.document}", *options, "--", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )

    def expect(self, line):
        assert self.process.stdout.readline() == line

    def end(self):
        """Exit code, verdict and the rest of its output."""
        out, _err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, json.loads(self.document.read_text()), out


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_to_the_runner_reaches_the_program(tmp_path, token, number):
    name = number.name.removeprefix("SIG")
    called = Called(tmp_path, script(f"trap 'echo TRAPPED; exit 9' {name}; echo READY; {LOOP}", token))
    called.expect(b"READY\n")
    called.process.send_signal(number)
    code, verdict, out = called.end()
    assert (code, verdict["outcome"], verdict["exit_code"], out) == (9, "stopped", 9, b"TRAPPED\n")
    assert processes_with(token) == []


@pytest.mark.parametrize("number", SIGNALS)
def test_a_program_without_a_trap_ends_by_it(tmp_path, token, number):
    called = Called(tmp_path, script("echo READY; exec sleep 300", token))
    called.expect(b"READY\n")
    called.process.send_signal(number)
    code, verdict, _out = called.end()
    assert (code, verdict["outcome"]) == (128 + number, "stopped")
    assert verdict["reason"] == f"stopped by {number.name}"


def test_the_second_signal_kills(tmp_path, token):
    called = Called(tmp_path, script(f"trap 'echo HEARD' INT; trap '' TERM; echo READY; {LOOP}", token))
    called.expect(b"READY\n")
    called.process.send_signal(signal.SIGINT)
    called.expect(b"HEARD\n")
    called.process.send_signal(signal.SIGTERM)
    code, verdict, _out = called.end()
    assert (code, verdict["outcome"]) == (130, "stopped")
    assert verdict["reason"] == "stopped by SIGINT, then killed"
    assert processes_with(token) == []


def test_what_the_caller_ignores_or_blocks_does_not_reach_the_program():
    """An ignored SIGPIPE or SIGINT would change how the program behaves; an ignored SIGCHLD would hang bwrap."""
    trap = "trap '' CHLD PIPE INT TERM USR1; exec \"$@\""
    command = ["/bin/sh", "-c", trap, "sh", *RUN, "--", "grep", "-E", "^Sig(Ign|Blk):", "/proc/self/status"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    masks = dict(line.split(":\t") for line in done.stdout.splitlines())
    # 32 and 33 are the C library's own: no program can set them, and some containers start everything with one.
    own = 1 << 31 | 1 << 32
    assert {name: int(mask, 16) & ~own for name, mask in masks.items()} == {"SigBlk": 0, "SigIgn": 0}


LIBRARY = """
import signal, sys
import stockade
print("READY", flush=True)
sys.stdin.readline()
stockade.run(["sh", "-c", "sleep 300; :", sys.argv[1]], policy="workspace-write", cwd=sys.argv[2])
"""
STEPS = 12
"""Kills a test; four tests spread them over the first milliseconds of a run."""


@pytest.fixture
def own_workspace(place):
    """A writable workspace: a run makes stand-ins for protected names in it, which have to go too."""
    assert stockade.run(["true"]).ok  # this host is known then, and no trial of it is interrupted
    return place.ws


@pytest.mark.parametrize("late", [0, 1, 2, 3])
def test_a_killed_caller_of_the_library_leaves_nothing(token, own_workspace, late):
    """At every moment of the start: no process, no box that waits for ever, no stand-in."""
    for step in range(STEPS):
        caller = subprocess.Popen(
            [sys.executable, "-c", LIBRARY, token, own_workspace], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with caller:
            assert caller.stdout.readline() == b"READY\n"
            caller.stdin.write(b"\n")
            caller.stdin.flush()
            with contextlib.suppress(subprocess.TimeoutExpired):
                caller.wait((late * STEPS + step) * 0.0018)
            caller.kill()
        wait_until(lambda: not processes_with(token), "the run of a killed caller is gone")
        wait_until(lambda: os.listdir(own_workspace) == [], "its stand-ins are gone")


@pytest.mark.parametrize("late", [0, 1, 2, 3])
def test_a_killed_command_line_leaves_nothing(token, own_workspace, late):
    for step in range(STEPS):
        command = [*RUN, "--policy", "workspace-write", "--", *script("sleep 300; :", token)]
        with subprocess.Popen(command, cwd=own_workspace, stderr=subprocess.DEVNULL) as caller:
            with contextlib.suppress(subprocess.TimeoutExpired):
                caller.wait((late * STEPS + step) * 0.002)
            caller.kill()
        wait_until(lambda: not processes_with(token), "the run of a killed command line is gone")
        wait_until(lambda: os.listdir(own_workspace) == [], "its stand-ins are gone")


class Background:
    """A run of this process, in a thread: what it came to, while we look at it from outside."""

    def __init__(self, command, **options):
        self.results = []
        options = {"timeout": PATIENCE, **options}
        work = lambda: self.results.append(stockade.run(command, **options))  # noqa: E731
        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()

    def end(self):
        self.thread.join(PATIENCE)
        assert self.results, "the run did not return"
        return self.results[0]


def running(token):
    """The processes of a run that has got as far as its program: monitor, pid 1 of the box, program."""
    return wait_until(lambda: len(processes_with(token)) > 2 and processes_with(token), "the program runs")


def monitor_of(token):
    """bwrap outside of the box: the one whose parent is the keeper."""
    processes = running(token)  # before the keeper is asked for: a thread may be starting it just now
    [pid] = [pid for pid in processes if psutil.Process(pid).ppid() == keeperlink.shared().pid]
    return pid


def test_a_killed_keeper_is_told_as_lost(token, own_workspace):
    """It may have run to its end, nobody knows. The box goes with its keeper, and so do the stand-ins."""
    run = Background(script("sleep 300; :", token), policy="workspace-write", cwd=own_workspace)
    running(token)
    assert os.listdir(own_workspace) != []
    os.kill(keeperlink.shared().pid, signal.SIGKILL)
    result = run.end()
    assert (result.outcome, result.started, result.returncode) == ("lost", True, 125), result.reason
    wait_until(lambda: not processes_with(token), "the box is gone")
    assert os.listdir(own_workspace) == []
    assert stockade.run(["true"]).ok  # and the next run has another keeper


def test_a_keeper_killed_at_any_moment_leaves_no_box(token, own_workspace):
    for step in range(12):
        run = Background(script("sleep 300; :", token), policy="workspace-write", cwd=own_workspace)
        wait_until(lambda: processes_with(token), "bubblewrap is there")
        run.thread.join(step * 0.0005)
        os.kill(keeperlink.shared().pid, signal.SIGKILL)
        result = run.end()
        assert result.outcome in ("lost", "runner_failed"), result.reason
        wait_until(lambda: not processes_with(token), "the box is gone")
        assert os.listdir(own_workspace) == []


def test_a_killed_monitor_is_told_as_lost(token):
    run = Background(script("sleep 300; :", token))
    os.kill(monitor_of(token), signal.SIGKILL)
    result = run.end()
    assert (result.outcome, result.started, result.returncode) == ("lost", True, 125)
    assert "bubblewrap was killed by SIGKILL" in result.reason
    assert processes_with(token) == []


def test_a_killed_program_is_told_as_a_likely_signal(token):
    run = Background(script("sleep 300; :", token))
    running(token)
    [program] = psutil.Process(monitor_of(token)).children()[0].children()
    program.kill()
    result = run.end()
    assert (result.outcome, result.signal, result.exit_code) == ("signalled", 9, 137)
    assert "likely" in result.reason
    assert processes_with(token) == []
