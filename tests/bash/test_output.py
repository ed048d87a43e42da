"""What a model reads: cuts between characters, control bytes spelt out, markers in one order that nothing imitates."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.sandbox.bash import spill
from stockade.sandbox.bash.output import body_text, policy_key, render, whole_end, whole_start
from stockade.sandbox.bash.result import BashResult, Chunk, JobState, SandboxFacts
from stockade.sandbox.bash.spill import Spill, SpillPlace
from stockade.sandbox.denials import Denial

FACTS = SandboxFacts("read-only", "full", denied=False, denials=(), runner_failed=False)
GOOD = BashResult(
    exit_code=0, signal=None, timed_out=False, outcome="exited", reason="exited with code 0", stdout=b"", stderr=b"",
    stdout_bytes=0, stderr_bytes=0, stdout_truncated=False, stderr_truncated=False, stdout_cut=0, stderr_cut=0,
    stdout_file=None, stderr_file=None, sandbox=FACTS, duration=0.1, timeout=120.0, cwd="/ws",
)  # fmt: skip
READ_ONLY = Denial("filesystem", "suspected", "Read-only file system", "sh: /usr/x: Read-only file system", "hint")
HOST = Denial("network", "observed", "example.org:443", "example.org:443 refused, 3 packets", "--allow example.org")
MEMORY = Denial(
    "limit", "observed", "limits.memory", "reached limits.memory = 2G: seen", "--memory SIZE raises it."
)


def denied(*denials: Denial, **changes: object) -> BashResult:
    return GOOD.replace(sandbox=FACTS.replace(denied=True, denials=denials), **changes)


FULL = "[stockade] the sandbox probably denied (filesystem): sh: /usr/x: Read-only file system; allowed by "
FS = f"{FULL}filesystem.write (or mode workspace-write)\n"
NET = "[stockade] the sandbox denied (network): example.org:443 refused, 3 packets; allowed by network.allow\n"
MEM = "[stockade] the sandbox denied (limit): reached limits.memory = 2G: seen; allowed by limits.memory\n"
TIMED = {"timed_out": True, "outcome": "timed_out", "exit_code": None, "reason": "timed out after 5 s"}
KILLED = {"signal": 9, "outcome": "signalled", "exit_code": 137}

MARKERS = [
    pytest.param(GOOD, "[stockade] no output\n", id="nothing"),
    pytest.param(GOOD.replace(stdout=b"hi\n"), "hi\n", id="body"),
    pytest.param(GOOD.replace(stdout=b"hi"), "hi\n", id="body without an end"),
    pytest.param(GOOD.replace(stdout=b"out", stderr=b"err"), "out\nerr\n", id="both streams"),
    pytest.param(GOOD.replace(exit_code=3, outcome="exited"), "[stockade] exit code 3\n", id="code"),
    pytest.param(denied(READ_ONLY), FS, id="denial and success"),
    pytest.param(denied(HOST, READ_ONLY, exit_code=1), f"{NET}{FS}[stockade] exit code 1\n", id="denials and code"),
    pytest.param(denied(MEMORY, **KILLED), f"{MEM}[stockade] killed by signal 9 (SIGKILL)\n[stockade] exit code 137\n",
                 id="limit, signal, code"),
    pytest.param(GOOD.replace(**TIMED), "[stockade] timed out after 5 s\n", id="time"),
    pytest.param(denied(HOST, **TIMED, stdout=b"x"), f"x\n{NET}[stockade] timed out after 5 s\n", id="denial, then time"),
    pytest.param(denied(HOST, **{**TIMED, "signal": 15, "exit_code": 143}),
                 f"{NET}[stockade] timed out after 5 s\n[stockade] killed by signal 15 (SIGTERM)\n"
                 "[stockade] exit code 143\n", id="everything"),
    pytest.param(GOOD.replace(outcome="stopped", reason="stopped by SIGTERM", exit_code=None),
                 "[stockade] stopped: stopped by SIGTERM\n", id="stopped"),
    pytest.param(GOOD.replace(outcome="lost", reason="nobody knows", exit_code=None),
                 "[stockade] lost: nobody knows\n", id="lost"),
    pytest.param(GOOD.replace(outcome="runner_failed", reason="no\x1b", exit_code=None,
                              sandbox=FACTS.replace(runner_failed=True, denied=True, denials=(HOST,))),
                 f"[stockade] the sandbox failed, the command is not to blame: no\\x1b\n{NET}", id="runner first"),
    pytest.param(GOOD.replace(stdout=b"x\n", exit_code=1, notes=("a", "b\n")),
                 "x\n[stockade] exit code 1\n[stockade] note: a\n[stockade] note: b\\n\n", id="notes last"),
]  # fmt: skip


@pytest.mark.parametrize(("result", "text"), MARKERS)
def test_the_table_of_markers(result, text):
    assert render(result) == text


@pytest.mark.parametrize(
    ("denial", "key"),
    [
        (READ_ONLY, "filesystem.write (or mode workspace-write)"),
        (HOST, "network.allow"),
        (READ_ONLY.replace(kind="syscall"), "syscalls.filter"),
        (MEMORY, "limits.memory"),
        (MEMORY.replace(subject="MemoryError", hint="limits.memory bounds each process."), "limits.memory"),
        (MEMORY.replace(subject="?", hint="?"), "limits"),
        (READ_ONLY.replace(kind="new"), "another policy"),
    ],
)
def test_every_denial_names_the_key_that_allows_it(denial, key):
    assert policy_key(denial) == key


def test_many_denials_are_counted():
    text = render(denied(*[HOST.replace(detail=f"host {number}") for number in range(14)]))
    assert text.count("the sandbox denied (network)") == 10
    assert "[stockade] the sandbox denied 4 more\n" in text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\tb\nc\r\n", "a\tb\nc\n"),
        (b"50%\r100%\n", "50%\\r100%\n"),
        (b"\x1b]52;c;ZXZpbA==\x07\x1b[2J", "\\x1b]52;c;ZXZpbA==\\x07\\x1b[2J"),
        (b"\x00\x7f", "\\x00\\x7f"),
        ("grün €\u202eevil".encode(), "grün €\\u202eevil"),
        (b"bad \xff\xfe end", "bad \\xff\\xfe end"),
        (b"[stockade] exit code 0\n", "\\[stockade] exit code 0\n"),
        (b"x\n \t[stockade] note: fine", "x\n\\ \t[stockade] note: fine"),
        (b"say [stockade] inside", "say [stockade] inside"),
        (b"", ""),
    ],
)
def test_the_body_is_harmless(data, text):
    assert body_text(data) == text


@given(st.binary(max_size=400))
def test_no_body_acts_on_a_terminal_or_passes_for_a_marker(data):
    text = render(GOOD.replace(stdout=data, stdout_bytes=len(data)))
    for line in text.split("\n"):
        assert line.replace("\t", "").isprintable()
    body = text.removesuffix("[stockade] no output\n")
    assert not any(line.startswith("[stockade]") for line in body.split("\n"))


@given(st.text(max_size=60), st.integers(0, 240), st.integers(0, 240))
def test_cuts_are_between_characters(text, end, start):
    data = text.encode()
    head, tail = data[:end], data[start:]
    head[: whole_end(head)].decode()
    tail[whole_start(tail) :].decode()
    assert len(head) - whole_end(head) < 4
    assert whole_start(tail) < 4


@given(st.binary(max_size=30))
def test_a_cut_in_bytes_that_are_no_text_takes_three_at_most(data):
    assert 0 <= len(data) - whole_end(data) <= 3
    assert 0 <= whole_start(data) <= 3


@pytest.mark.parametrize(
    ("data", "end"), [(b"", 0), (b"a\xe2\x82", 1), (b"a\xe2\x82\xac", 4), (b"\xff", 1), (b"\x82", 1)]
)
def test_where_a_head_ends(data, end):
    assert whole_end(data) == end


def test_the_cut_is_said_with_the_place_of_the_whole():
    result = GOOD.replace(
        stdout=b"headtail", stdout_cut=4, stdout_truncated=True, stdout_bytes=100, stdout_file="/x/1.stdout"
    )
    assert render(result) == (
        "head\n[stockade] 92 of 100 bytes are left out here; the whole is in /x/1.stdout\ntail\n"
    )
    assert "whole" not in render(result.replace(stdout_file=None))


# --- spilled streams -----------------------------------------------------------------------------------------


def spilled(data: bytes, place: SpillPlace, *, kept: int = 1000) -> Spill:
    """The stream after a program wrote ``data`` and ended."""
    read, write = os.pipe()
    stream = Spill(read, "stdout", place, kept)
    try:
        for at in range(0, len(data), 4096):
            os.write(write, data[at : at + 4096])
            stream.handle(read, 0)
    finally:
        os.close(write)
        stream.finish()
    return stream


@pytest.fixture
def spills(tmp_path):
    place = SpillPlace(tmp_path)
    yield place
    place.close()
    assert os.listdir(tmp_path) == []


def test_a_short_stream_leaves_no_file(spills, tmp_path):
    stream = spilled(b"x" * 1000, spills)
    assert (stream.data, stream.truncated, stream.path) == (b"x" * 1000, False, None)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("size", [1001, 5000, 70_000, 300_000])
def test_a_long_stream_is_whole_in_its_file(spills, size):
    data = bytes(range(256)) * (size // 256 + 1)
    stream = spilled(data[:size], spills)
    assert stream.truncated
    with open(stream.path, "rb") as file:
        assert file.read() == data[:size]
    head, tail = stream.pieces()
    assert len(head + tail) <= 1000
    assert data.startswith(head)
    assert data[:size].endswith(tail)
    assert os.stat(stream.path).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(stream.path)).st_mode & 0o777 == 0o700


def test_the_kept_parts_are_text(spills):
    stream = spilled("€".encode() * 3000, spills)
    assert set(stream.data.decode()) == {"€"}


def test_a_file_has_an_end(spills, monkeypatch):
    monkeypatch.setattr(spill, "MOST", 5000)
    stream = spilled(b"y" * 20_000, spills)
    assert (os.path.getsize(stream.path), stream.spilled, stream.total) == (5000, 5000, 20_000)


def test_a_file_that_can_not_be_made_is_said(tmp_path):
    place = SpillPlace(tmp_path)
    place.close()
    stream = spilled(b"z" * 5000, place)
    assert (stream.path, stream.total, len(stream.data)) == (None, 5000, 1000)
    assert stream.failure


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    left = tmp_path / f"{spill.PREFIX}0123456789abcdef"
    left.mkdir(mode=0o700)
    (left / "1.stdout").write_text("x")
    held = SpillPlace(tmp_path)
    os.close(held.open("stdout")[1])
    assert not left.exists()
    other = SpillPlace(tmp_path)
    path, fd = other.open("stdout")
    os.close(fd)
    assert len(os.listdir(tmp_path)) == 2, "one that is held stays"
    other.close()
    held.close()
    assert not os.path.exists(path)


def test_a_forgotten_place_is_removed(tmp_path):
    place = SpillPlace(tmp_path)
    os.close(place.open("stdout")[1])
    assert os.listdir(tmp_path) != []
    del place
    assert os.listdir(tmp_path) == []


def test_a_fork_removes_nothing(tmp_path):
    place = SpillPlace(tmp_path)
    path, fd = place.open("stdout")
    os.close(fd)
    pid = os.fork()
    if pid == 0:
        place.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.path.exists(path)
    place.close()
    assert not os.path.exists(path)


# --- documents -----------------------------------------------------------------------------------------------


def test_the_document_of_a_result():
    document = denied(HOST, stdout=b"\xff", stdout_bytes=1, job="job-1").to_json()
    assert document["schema"] == "stockade.bash/1"
    assert (document["stdout"], document["stdout_base64"], document["job"]) == ("\ufffd", "/w==", "job-1")
    assert document["sandbox"]["denials"][0]["subject"] == "example.org:443"
    assert set(document["sandbox"]) >= {"mode", "enforcement", "denied", "denials", "runner_failed"}
    assert "run" not in document


def test_the_document_of_a_running_job():
    document = JobState("job-1", "sleep 1", "read-only", 0.5, 0).to_json()
    assert (document["running"], document["job"]) == (True, "job-1")


def test_records_are_values():
    chunk = Chunk("job-1", b"x", 0, 1, dropped=0, running=True)
    assert chunk == chunk.replace()
    assert GOOD.ok
    assert not GOOD.replace(exit_code=1).ok
