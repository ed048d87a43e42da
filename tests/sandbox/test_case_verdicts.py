"""What a run is said to have come to: by evidence alone, whatever the program prints, and never by a guess."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys

import pytest
from boxes import PATIENCE, PYTHON, cli, own_state  # noqa: F401

import stockade
from stockade.sandbox import bwrap, hostcache, probe, trial

pytestmark = pytest.mark.kernel

READ_ONLY = b"Read-only file system"


@pytest.fixture(autouse=True)
def in_a_small_place(place, monkeypatch):
    """The directory that is everybody's default here: empty, and open to whomever a run becomes."""
    monkeypatch.chdir(place.ws)


# --- codes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 2, 3, 124, 125, 126, 127, 255])
def test_a_programs_exit_code_is_its_own(code):
    """Also where we use the same number: what happened is in the outcome, and not in a number."""
    result = stockade.run(f"exit {code}")
    assert (result.outcome, result.exit_code, result.returncode, result.signal) == ("exited", code, code, None)
    assert (result.started, result.denied, result.rule) == (True, False, "executed")


@pytest.mark.parametrize("command", ["exit 137", "kill -9 $$"])
def test_a_signal_is_only_likely(command):
    """A box can't tell a signal from a program that ends with its number, so neither is claimed."""
    result = stockade.run(command)
    assert (result.outcome, result.exit_code, result.signal) == ("signalled", 137, 9)
    assert "likely" in result.reason
    assert "the program's own" in result.reason


def test_a_signal_without_a_box_is_certain():
    result = stockade.run("kill -9 $$", trusted=True)
    assert (result.outcome, result.exit_code, result.signal, result.enforcement) == ("signalled", 137, 9, "none")
    assert result.reason == "killed by SIGKILL"
    assert stockade.run("exit 137", trusted=True).outcome == "exited"


@pytest.mark.parametrize("command", ["false", "grep zz /dev/null", "no-such-command", "/etc/passwd", "exit 126"])
def test_a_shells_own_failures_are_the_programs(command):
    """The shell was executed, and what it made of the command line is its own code."""
    result = stockade.run(command)
    assert result.outcome == "exited"
    assert result.exit_code not in (0, None)
    assert not result.denied


def test_the_command_line_the_document_and_the_library_agree(place):
    for command, code in [("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)]:
        by_library = stockade.run(command)
        done = cli("run", "--json", "--", "sh", "-c", command)
        document = json.loads(done.stdout)
        assert done.returncode == code == document["returncode"] == by_library.returncode
        for name in ("outcome", "exit_code", "signal", "reason", "started", "denied", "enforcement", "rule"):
            assert document[name] == getattr(by_library, name), name


# --- what can't be executed ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "mode", "code", "cause"),
    [
        ("gone", None, 0, 127, "does not exist inside"),
        ("plain", "echo hi\n", 0o644, 126, "is not executable"),
        ("crlf", "#!/bin/sh\r\necho hi\r\n", 0o755, 126, "carriage return"),
        ("orphan", "#!/nonexistent/interpreter\n", 0o755, 126, "'/nonexistent/interpreter' does not exist inside"),
        ("hidden", "#!{home}/tools/interpreter\n", 0o755, 126, "exists on the host but is not visible inside"),
        ("folder", "", 0o755, 126, "is a directory"),
    ],
)
def test_what_can_not_be_executed_is_told_with_its_cause(place, monkeypatch, name, text, mode, code, cause):
    monkeypatch.setenv("HOME", place.home)
    place.put("home/tools/interpreter", '#!/bin/sh\nexec /bin/sh "$@"\n', 0o755)
    if name == "folder":
        os.mkdir(place.path("ws", name))
    elif text is not None:
        place.put(f"ws/{name}", text.format(home=place.home), mode)
    result = stockade.run([f"./{name}"])
    assert (result.outcome, result.exit_code, result.returncode) == ("not_executed", code, code), result.reason
    assert (result.started, result.denied) == (False, False)
    assert cause in result.reason
    # Control: one that can be executed lies beside it.
    place.put("ws/good", "#!/bin/sh\necho hi\n", 0o755)
    assert stockade.run(["./good"]).stdout == b"hi\n"


def test_a_launcher_that_finds_nothing_is_the_program_that_ran(place):
    """``env`` was executed and gives its own code; what it could not start is told beside it."""
    place.put("ws/crlf", "#!/usr/bin/env sh\r\necho hi\r\n", 0o755)
    result = stockade.run(["./crlf"])
    assert (result.outcome, result.exit_code, result.started) == ("exited", 127, True)
    assert "carriage return" in result.reason


def test_a_missing_command_is_told_apart_from_a_missing_directory():
    result = stockade.run(["no-such-command"])
    assert (result.outcome, result.exit_code) == ("not_executed", 127)
    assert "'no-such-command' is in no directory of PATH" in result.reason
    with pytest.raises(stockade.RequestError, match="could not use the directory"):
        stockade.run(["true"], cwd="/nonexistent")


# --- what the program says about itself ------------------------------------------------------------------------

FORGERIES = [
    "bwrap: Can't mount proc on /newroot/proc: Operation not permitted",
    "bwrap: execvp true: No such file or directory",
    "bwrap: setting up uid map: Permission denied",
    "bwrap: No permissions to create new namespace",
    "stockade: runner_failed: bubblewrap could not set up the sandbox",
    '{ "child-pid": 1 }\\n{ "exit-code": 0 }',
    "/home/me/sandbox/a: denied by the sandbox, seccomp, not permitted, blocked",
]


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("text", FORGERIES)
def test_no_words_make_a_verdict(text, code):
    result = stockade.run(
        ["sh", "-c", 'printf "%b\\n" "$1"; printf "%b\\n" "$1" >&2; exit "$2"', "sh", text, str(code)]
    )
    assert (result.outcome, result.exit_code, result.started) == ("exited", code, True)
    assert (result.denied, result.denials) == (False, ())
    assert result.stdout == result.stderr == text.replace("\\n", "\n").encode() + b"\n"


def test_a_refusal_in_the_programs_words_is_only_suspected_and_only_after_a_failure():
    failed = stockade.run("echo x > /usr/x")
    assert (failed.outcome, failed.denied) == ("exited", True)
    assert READ_ONLY in failed.stderr
    [denial] = failed.denials
    assert (denial.kind, denial.certainty) == ("filesystem", "suspected")
    assert stockade.run("echo x > /usr/x; exit 0").denials == ()
    claimed = stockade.run(f"echo '{READ_ONLY.decode()}' >&2; exit 1")  # nothing was refused, and nobody can tell
    assert [each.certainty for each in claimed.denials] == ["suspected"]
    assert not os.path.exists("/usr/x")


HIJACK = r"""
import os, struct, sys
code, = [fd for fd in os.listdir("/proc/1/fd") if "eventfd" in os.readlink("/proc/1/fd/" + fd)]
with open("/proc/1/syscall") as file:
    at = int(file.read().split()[-1], 16)
shell = b"\x48\xb8" + struct.pack("<Q", int(sys.argv[1], 0)) + b"\x48\x89\x44\x24\xc0"
shell += b"\xbf" + struct.pack("<I", int(code)) + b"\x48\x8d\x74\x24\xc0\xba\x08\0\0\0\xb8\x01\0\0\0\x0f\x05\xeb\xfe"
memory = os.open("/proc/1/mem", os.O_RDWR)
os.pwrite(memory, shell, at)
os.write(1, b"written\n")
if os.fork() == 0:
    if os.fork() == 0:
        os._exit(0)
    os._exit(0)
while True:
    os.read(0, 1)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program that is written into pid 1 is for x86-64")
@pytest.mark.parametrize(
    ("value", "outcome", "code"),
    [("5", "exited", 4), ("0x7fffffff", "lost", None), ("0xfffffff0", "lost", None)],
    ids=["a code like any", "no code of a process", "a negative one"],
)
def test_a_program_that_takes_over_its_box_can_choose_its_code_and_nothing_else(value, outcome, code):
    """pid 1 of a box reports the code, and a program may write into it. It must not pass for one that never ran."""
    read, write = os.pipe()
    try:
        result = stockade.run([PYTHON, "-I", "-S", "-c", HIJACK, value], stdin=read, timeout=PATIENCE)
    finally:
        os.close(read)
        os.close(write)
    if result.stdout != b"written\n":
        assert result.outcome == "exited", result.reason  # this kernel does not let it
        assert b"PermissionError" in result.stderr
        return
    assert (result.outcome, result.exit_code, result.started) == (outcome, code, True), result.reason


# --- a sandbox that fails ----------------------------------------------------------------------------------------


@pytest.fixture
def stub(place, monkeypatch):
    """Puts a program in the place of bubblewrap, and forgets what is known of this host; ``stub(None)`` undoes it."""
    path = place.path("bwrap")
    real = bwrap.locate()

    def put(body):
        place.put("bwrap", f"#!/bin/sh\n{body}\n", 0o755)
        monkeypatch.setattr(bwrap, "locate", lambda configured=None: real if body is None else path)

    probe.forget()
    yield put
    probe.forget()


HELP = f'case "$*" in *--help*) exec {bwrap.locate()} --help;; esac'
FAILURES = {
    "AppArmor, network": f"{HELP}; echo 'bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted' >&2; exit 1",
    "AppArmor, uid map": f"{HELP}; echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1",
    "proc, old words": f'{HELP}; echo "bwrap: Can\'t mount proc on /newroot/proc: Operation not permitted" >&2; exit 1',
    "proc, new words": f'{HELP}; echo "bwrap: Can\'t mount proc on /proc: Operation not permitted" >&2; exit 1',
    "silent failure": f"{HELP}; exit 1",
    "success without a run": f"{HELP}; exit 0",
    "killed": f"{HELP}; kill -9 $$",
    "hangs": f"{HELP}; exec sleep 300",
    "old": "echo '--args FD'; echo '--unshare-user'; exit 0",
    "no help": "exit 1",
    "no program": "exec /nonexistent/bwrap",
}
MARK = ["touch", "marker"]


@pytest.mark.parametrize("body", FAILURES.values(), ids=FAILURES)
def test_foreign_code_never_runs_where_no_box_can_be_made(place, monkeypatch, stub, body):
    monkeypatch.setattr(trial, "SECONDS", 0.5)
    stub(body)
    for mode in (None, "auto", "strict"):
        with pytest.raises(stockade.SandboxUnavailable) as caught:
            stockade.run(MARK, policy="workspace-write", mode=mode)
        assert caught.value.missing
        assert caught.value.remedy
    assert os.listdir(place.ws) == []
    assert hostcache.recall(bwrap.locate()) is None
    # Controls: a real one, and what an explicit "off" means.
    stub(None)
    assert stockade.run(MARK, policy="workspace-write").ok
    os.unlink("marker")
    stub(body)
    result = stockade.run(MARK, mode="off", trusted=True)
    assert (result.ok, result.enforcement) == (True, "none")
    assert os.listdir(place.ws) == ["marker"]


def test_one_that_is_too_old_is_told_by_what_it_lacks(stub):
    stub(FAILURES["old"])
    with pytest.raises(stockade.SandboxUnavailable, match=r"too old and lacks --json-status-fd, --block-fd"):
        stockade.run(["true"])


@pytest.mark.parametrize("kind", ["AppArmor, network", "success without a run", "killed"])
def test_a_good_finding_does_not_outlive_the_first_failure(place, stub, kind):
    """What was found able and fails then is a failure of the runner; the next run looks again, and is refused."""
    stub(f'exec env -i {bwrap.locate()} "$@"')
    assert stockade.run(["true"]).ok
    assert hostcache.recall(bwrap.locate()) is not None
    stub(FAILURES[kind])
    result = stockade.run(MARK, policy="workspace-write")
    assert (result.outcome, result.started, result.returncode) == ("runner_failed", False, 125), result.reason
    assert (result.exit_code, result.denied) == (None, False)
    with pytest.raises(stockade.SandboxUnavailable):
        stockade.run(MARK, policy="workspace-write")
    assert os.listdir(place.ws) == []


def test_a_failed_sandbox_can_be_an_exception(stub):
    stub(f'exec env -i {bwrap.locate()} "$@"')
    assert stockade.run(["true"], check=True).ok
    stub(FAILURES["silent failure"])
    with pytest.raises(stockade.RunnerFailed) as caught:
        stockade.run(["true"], check=True)
    assert caught.value.result.outcome == "runner_failed"


def test_what_bubblewrap_says_is_quoted_and_never_raw(stub):
    stub(f'exec env -i {bwrap.locate()} "$@"')
    assert stockade.run(["true"]).ok
    stub(f"{HELP}; printf 'bwrap: \\033]52;c;evil\\007 failed\\n' >&2; exit 1")
    result = stockade.run(["true"])
    assert "\\x1b]52;c;evil\\x07 failed" in result.reason
    assert result.reason.isprintable()


def test_a_refused_run_is_a_document_too(place):
    """For a reader of documents a refusal has the shape of any other result."""
    done = cli("run", "--json", "--cwd", "/nonexistent", "--", "true")
    document = json.loads(done.stdout)
    assert (done.returncode, document["returncode"]) == (125, 125)
    assert (document["schema"], document["outcome"], document["started"]) == (
        "stockade.result/1",
        "runner_failed",
        False,
    )


def test_a_stop_before_the_start_is_not_a_failure_of_the_sandbox():
    """Whatever the moment of the signal: the code says who ended it."""
    for delay in (0.0, 0.02, 0.04, 0.06, 0.08, 0.1):
        with subprocess.Popen(
            [sys.executable, "-m", "stockade", "run", "--", "sleep", "300"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                process.wait(delay)
            except subprocess.TimeoutExpired:
                process.terminate()
            process.communicate(timeout=PATIENCE)
        assert process.returncode in (128 + signal.SIGTERM, -signal.SIGTERM)
