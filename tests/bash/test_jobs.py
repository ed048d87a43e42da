"""Background jobs: what is read and when, what is written, how they end, and that nothing of one is left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from boxes import IDENTITIES, PATIENCE, make_place, policy, processes_with, wait_until
from hypothesis import given
from hypothesis import strategies as st

import stockade
from stockade.policies.errors import RequestError, SandboxUnavailable, StockadeError
from stockade.sandbox import conduct
from stockade.sandbox.bash import jobs as module
from stockade.sandbox.bash.backlog import SLACK, Backlog
from stockade.sandbox.bash.jobs import write_all

kernel = pytest.mark.kernel


# --- the backlog -----------------------------------------------------------------------------------------------


def test_a_backlog_is_read_by_parts():
    backlog = Backlog()
    backlog.keep(b"one\n")
    first = backlog.read(0)
    backlog.keep(b"two\n")
    second = backlog.read(first.next)
    assert (first.data, first.since, first.dropped, first.open) == (b"one\n", 0, 0, True)
    assert (second.data, second.since, second.next) == (b"two\n", 4, 8)
    assert backlog.read(2).data == b"e\ntwo\n"
    assert backlog.read(8).data == b""
    backlog.close()
    assert not backlog.read(8).open


def test_what_is_dropped_is_counted():
    backlog = Backlog(kept=10)
    backlog.keep(b"x" * SLACK + b"0123456789")
    assert backlog.read(0).dropped == 0
    backlog.keep(b"a")
    piece = backlog.read(0)
    assert (piece.data, piece.since, piece.dropped) == (b"123456789a", SLACK + 1, SLACK + 1)
    assert backlog.read(SLACK + 5).dropped == 0


def test_a_character_is_not_cut():
    backlog = Backlog(kept=5)
    backlog.keep("a€".encode()[:3])
    assert backlog.read(0).data == b"a"
    backlog.keep("€".encode()[2:])
    assert backlog.read(1).data == "€".encode()
    backlog.keep(b"x" * SLACK + "€€".encode())
    piece = backlog.read(0)
    assert piece.data == "€".encode()
    assert piece.next == backlog.total
    assert piece.dropped == piece.since


def test_half_a_character_at_the_end_is_told():
    backlog = Backlog()
    backlog.keep("€".encode()[:2])
    assert backlog.read(0).data == b""
    backlog.close()
    assert backlog.read(0).data == "€".encode()[:2]


@given(st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=30))
def test_everything_is_read_once_or_said_to_be_dropped(steps):
    backlog = Backlog(kept=16)
    backlog_slack = b"." * SLACK  # else nothing would ever be dropped
    whole, at, seen = b"", 0, 0
    for number, (data, reads) in enumerate(steps):
        data += backlog_slack if number % 7 == 6 else b""
        backlog.keep(data)
        whole += data
        if reads:
            piece = backlog.read(at)
            assert piece.data == whole[piece.since : piece.next]
            assert piece.since == at + piece.dropped
            seen += piece.dropped + len(piece.data)
            at = piece.next
    backlog.close()
    piece = backlog.read(at)
    assert seen + piece.dropped + len(piece.data) == len(whole)
    assert whole.endswith(piece.data)


@pytest.mark.parametrize("since", [-1, 4, True, 1.0, "1", None])
def test_a_place_that_is_none(since):
    backlog = Backlog()
    backlog.keep(b"abc")
    with pytest.raises(RequestError, match="could not read from"):
        backlog.read(since)


@pytest.mark.parametrize("wait", [None, 0, -1, 1e-3])
def test_nothing_yet(wait):
    assert Backlog().read(0, wait).data == b""


@pytest.mark.parametrize("wait", [PATIENCE, float("inf"), 1e30])
def test_a_reader_is_woken(wait):
    backlog = Backlog()
    found = []
    thread = threading.Thread(target=lambda: found.append(backlog.read(0, wait)))
    thread.start()
    backlog.keep(b"here")
    thread.join(PATIENCE)
    assert found[0].data == b"here"


def test_a_reader_is_woken_by_the_end():
    backlog = Backlog()
    found = []
    thread = threading.Thread(target=lambda: found.append(backlog.read(0, float("inf"))))
    thread.start()
    backlog.close()
    thread.join(PATIENCE)
    assert (found[0].data, found[0].open) == (b"", False)


def test_a_full_pipe():
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)
        taken = write_all(write, b"x" * (1 << 21), time.monotonic() - 1)
        assert 0 < taken < 1 << 21
        assert write_all(write, b"", time.monotonic()) == 0
    finally:
        os.close(read)
        os.close(write)


# --- jobs ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=IDENTITIES)
def tool(request, tmp_path):
    place = make_place(tmp_path, "ws")
    with stockade.BashTool(policy(request.param), cwd=place) as made:
        yield made


@pytest.fixture
def token():
    """Seconds to sleep that nobody else sleeps."""
    return f"77.{int.from_bytes(os.urandom(6), 'big')}"


def started(tool, command, **options):
    """A job that has said something."""
    job = tool.start(command, **options)
    assert tool.read(job, wait=PATIENCE).data
    return job


@kernel
def test_a_job_from_start_to_end(tool):
    job = started(tool, "echo one; read line; echo got $line; echo two >&2; exit 3")
    state = tool.poll(job)
    assert (state.job, state.command[:8], state.mode, state.bytes) == (job, "echo one", "workspace-write", 4)
    first = tool.read(job)
    assert (first.data, first.running, first.dropped) == (b"one\n", True, 0)
    assert tool.wait(job, 0).job == job
    tool.write(job, "word\n")
    result = tool.wait(job, PATIENCE)
    assert (result.job, result.outcome, result.exit_code) == (job, "exited", 3)
    assert (result.stdout, result.stderr) == (b"one\ngot word\n", b"two\n")
    rest = tool.read(job, first.next)
    assert sorted(rest.data.splitlines()) == [b"got word", b"two"]
    assert not rest.running
    assert tool.poll(job) == result == tool.wait(job) == tool.stop(job)
    assert tool.list() == (result,)


@kernel
def test_what_does_not_fit_is_said_to_be_dropped(tool):
    job = tool.start("head -c 700000 /dev/zero | tr '\\0' 'x'; echo end")
    result = tool.wait(job, PATIENCE)
    chunk = tool.read(job)
    assert chunk.dropped > 0
    assert chunk.since == chunk.dropped
    assert chunk.dropped + len(chunk.data) == 700_004 == result.stdout_bytes
    assert chunk.data.endswith(b"xend\n")
    assert os.path.getsize(result.stdout_file) == 700_004


@kernel
def test_bytes_are_left_alone(tool):
    job = tool.start(r"printf '\377\0\033[31m\r\n\303'")
    tool.wait(job, PATIENCE)
    assert tool.read(job).data == b"\xff\x00\x1b[31m\r\n\xc3"


@kernel
def test_following_a_job(tool):
    job = tool.start("for i in 1 2 3; do echo $i; sleep 0.02; done")
    chunks = list(tool.follow(job))
    assert b"".join(chunk.data for chunk in chunks) == b"1\n2\n3\n"
    assert tool.poll(job).exit_code == 0
    assert list(tool.follow(job, 6)) == []


@kernel
def test_waiting_takes_no_time_of_the_processor(tool):
    job = started(tool, "echo up; read line; echo $line")
    before = time.thread_time()
    assert tool.read(job, 3, wait=0.3).data == b""
    assert tool.wait(job, 0.3).job == job
    assert time.thread_time() - before < 0.05
    tool.write(job, b"x\n")
    assert tool.read(job, 3, wait=PATIENCE).data == b"x\n"


@kernel
def test_input_is_closed(tool):
    job = tool.start("cat; echo over")
    tool.write(job, b"a\xff\n")
    tool.write(job, b"b\n", end=True)
    with pytest.raises(RequestError, match=f"could not write to {job}: "):
        tool.write(job, b"c\n")
    assert tool.wait(job, PATIENCE).stdout == b"a\xff\nb\nover\n"


@kernel
@pytest.mark.parametrize("data", [b"", b"x", "text"])
def test_no_input_for_a_job_that_has_ended(tool, data):
    job = tool.start("true")
    tool.wait(job, PATIENCE)
    with pytest.raises(RequestError, match=f"could not write to {job}: it has ended"):
        tool.write(job, data)


@kernel
def test_a_program_that_does_not_read(tool, monkeypatch):
    monkeypatch.setattr(module, "WRITE_SECONDS", 0.05)
    job = started(tool, "echo up; sleep 60")
    with pytest.raises(RequestError, match=r"it took \d+ of 4000000 bytes in 0.05 seconds"):
        tool.write(job, b"x" * 4_000_000)
    tool.stop(job, 0)


@kernel
def test_a_writer_is_let_go_when_the_job_ends(tool):
    job = started(tool, "echo up; sleep 60")
    errors = []

    def write():
        with pytest.raises(RequestError) as caught:
            tool.write(job, b"x" * 4_000_000)
        errors.append(caught.value)

    thread = threading.Thread(target=write)
    thread.start()
    tool.stop(job, 0)
    thread.join(module.WRITE_SECONDS / 2)
    assert "it has ended" in str(errors[0])


@pytest.mark.parametrize("data", [1, None, ["x"], "\ud800"])
@kernel
def test_what_is_no_input(tool, data):
    job = started(tool, "echo up; read line; echo $line")
    with pytest.raises(RequestError):
        tool.write(job, data)
    tool.write(job, bytearray(b"fine\n"))
    assert tool.wait(job, PATIENCE).stdout == b"up\nfine\n"


@kernel
def test_a_polite_stop(tool, token):
    job = started(tool, f"trap 'echo bye; exit 7' TERM; echo up; sleep {token} & wait")
    assert processes_with(token)
    result = tool.stop(job, PATIENCE)
    assert (result.outcome, result.exit_code, result.stdout) == ("stopped", 7, b"up\nbye\n")
    assert not processes_with(token)


@kernel
def test_a_stop_that_is_not_heard(tool, token):
    job = started(tool, f"trap '' TERM; echo up; sleep {token}; sleep {token}")
    assert processes_with(token)
    result = tool.stop(job, 0.05)
    assert (result.outcome, result.exit_code) == ("stopped", None)
    assert "killed" in result.reason
    assert not processes_with(token)


@kernel
def test_a_job_has_no_end_unless_it_is_given_one(tool):
    assert tool.poll(started(tool, "echo up; sleep 60")).job
    job = tool.start("sleep 60", timeout=0.2)
    result = tool.wait(job, PATIENCE)
    assert (result.timed_out, result.outcome, result.job) == (True, "timed_out", job)


@kernel
def test_a_denial_in_the_background(tool):
    job = tool.start("touch /usr/from-a-job")
    result = tool.wait(job, PATIENCE)
    assert (result.exit_code, result.sandbox.denied, result.sandbox.runner_failed) == (1, True, False)
    assert not os.path.exists("/usr/from-a-job")
    control = tool.start("touch here")
    assert not tool.wait(control, PATIENCE).sandbox.denied
    assert os.path.exists(f"{tool.cwd}/here")


@kernel
def test_a_shell_that_is_not_there(tmp_path):
    with stockade.BashTool(cwd=tmp_path, shell="no-such-shell") as tool:
        result = tool.wait(tool.start("true"), PATIENCE)
        assert (result.outcome, result.sandbox.runner_failed, result.exit_code) == ("not_executed", True, None)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SandboxUnavailable("could not confine: no", mode="auto", remedy="Do."), "could not confine: no Do."),
        (StockadeError("could not x: y"), "could not x: y"),
        (ValueError("odd"), "could not run the job: ValueError: odd"),
    ],
)
def test_what_can_not_be_started_settles_as_a_failure_of_the_runner(tmp_path, monkeypatch, error, reason):
    def fails(*_arguments, **_options):
        raise error

    monkeypatch.setattr(conduct, "carry_out", fails)
    with stockade.BashTool(cwd=tmp_path) as tool:
        job = tool.start("true")
        result = tool.wait(job, PATIENCE)
        assert (result.outcome, result.sandbox.runner_failed, result.sandbox.denied) == (
            "runner_failed",
            True,
            False,
        )
        assert (result.reason, result.job, result.exit_code) == (reason, job, None)
        assert not tool.read(job).running


@kernel
def test_only_so_many_run_at_once(tmp_path):
    with stockade.BashTool(cwd=tmp_path, jobs=2) as tool:
        first = tool.start("sleep 60")
        tool.start("sleep 60")
        with pytest.raises(RequestError, match="2 are running, and 2 may") as caught:
            tool.start("true")
        assert "jobs=" in caught.value.remedy
        tool.stop(first, 0)
        assert tool.wait(tool.start("echo third"), PATIENCE).stdout == b"third\n"


def test_no_jobs_at_all(tmp_path):
    with stockade.BashTool(cwd=tmp_path, jobs=0) as tool, pytest.raises(RequestError, match="0 may"):
        tool.start("true")


@kernel
def test_only_so_many_are_remembered(tool, monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED", 2)
    running = tool.start("sleep 60")
    ended = []
    for _ in range(4):
        ended.append(tool.start("true"))
        tool.wait(ended[-1], PATIENCE)
    tool.start("true")
    assert [each.job for each in tool.list()][:3] == [running, *ended[2:]]
    with pytest.raises(RequestError, match=f"could not find job '{ended[0]}'"):
        tool.poll(ended[0])


@pytest.mark.parametrize("job", ["job-7", "", None, 3, ["x"], "\x1b[31m"])
@pytest.mark.parametrize("ask", ["poll", "wait", "read", "stop"])
def test_a_job_that_nobody_knows(tmp_path, job, ask):
    with stockade.BashTool(cwd=tmp_path) as tool, pytest.raises(RequestError, match="could not find job") as caught:
        getattr(tool, ask)(job)
    assert "\x1b" not in str(caught.value)


@kernel
def test_a_job_outlives_the_thread_that_started_it(tool):
    found = []
    thread = threading.Thread(target=lambda: found.append(started(tool, "echo up; read line; echo $line")))
    thread.start()
    thread.join()
    tool.write(found[0], b"still\n")
    assert tool.wait(found[0], PATIENCE).stdout == b"up\nstill\n"


@kernel
def test_many_threads_use_one_job(tool):
    job = started(tool, "echo up; cat")
    threads = [threading.Thread(target=tool.write, args=(job, b"x" * 999 + b"\n")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tool.write(job, b"", end=True)
    assert tool.wait(job, PATIENCE).stdout == b"up\n" + (b"x" * 999 + b"\n") * 8


@kernel
def test_close_ends_what_runs(tmp_path, token):
    tool = stockade.BashTool(cwd=make_place(tmp_path))
    jobs = [started(tool, f"echo up; sleep {token}") for _ in range(3)]
    background = tool._background()
    assert len(processes_with(token)) >= 3
    tool.close()
    assert not processes_with(token)
    assert {background.poll(job).outcome for job in jobs} == {"stopped"}
    with pytest.raises(RequestError, match="closed"):
        tool.start("true")
    background.close()


@kernel
def test_a_job_does_not_hold_descriptors_after_its_end(tool):
    tool.wait(tool.start("echo 1"), PATIENCE)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        tool.wait(tool.start("echo 1"), PATIENCE)
    assert len(os.listdir("/proc/self/fd")) == before


@kernel
def test_steady_output_is_gathered(tool):
    job = started(tool, "while :; do echo line; done | head -n 200000; exit 5")
    result = tool.wait(job, PATIENCE)
    assert (result.exit_code, result.stdout_bytes) == (5, 1_000_000)
    assert tool.read(job).data.endswith(b"line\nline\n")


# --- the end of the process -----------------------------------------------------------------------------------


def script(body, *words):
    """A program of its own that uses the tool, as a process that tells when it is ready."""
    text = "import os, sys, stockade\n" + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", text, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


STARTS = """
tool = stockade.BashTool(cwd=sys.argv[1])
job = tool.start(f"echo up; sleep {sys.argv[2]} & sleep {sys.argv[2]}")
tool.read(job, wait=20)
print("ready", flush=True)
sys.stdin.readline()
"""


@kernel
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "exit"])
def test_jobs_die_with_the_process(tmp_path, token, how):
    place = make_place(tmp_path)
    with script(STARTS, place, token) as process:
        assert process.stdout.readline() == "ready\n"
        assert len(processes_with(token)) >= 2
        if how == "exit":
            process.stdin.write("\n")
            process.stdin.flush()
        else:
            process.send_signal(getattr(signal, how))
        process.wait(PATIENCE)
    wait_until(lambda: not processes_with(token), "the job was gone")


@kernel
def test_a_fork_leaves_the_jobs_alone(tmp_path, token):
    body = """
    tool = stockade.BashTool(cwd=sys.argv[1])
    job = tool.start(f"echo up; read line; echo $line {sys.argv[2]}")
    tool.read(job, wait=20)
    if os.fork() == 0:
        try:
            tool.poll(job)
        except stockade.StockadeError as error:
            print(error, flush=True)
        tool.close()
        sys.exit()  # runs what is registered for the end of a process
    os.wait()
    tool.write(job, "still there\\n")
    print(tool.wait(job, 20).stdout.decode(), flush=True)
    tool.close()
    """
    with script(body, make_place(tmp_path), token) as process:
        out, _ = process.communicate(timeout=PATIENCE * 2)
    assert "it belongs to process" in out
    assert f"still there {token}" in out


def test_the_poll_of_a_pipe_with_no_reader_ends():
    """What lets a blocked writer go when the job ends."""
    read, write = os.pipe()
    poll = select.poll()
    poll.register(write, select.POLLOUT)
    os.close(read)
    assert poll.poll(1000)
    os.close(write)
