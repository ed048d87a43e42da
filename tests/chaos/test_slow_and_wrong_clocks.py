"""Readers that take their time, or never come; and a wall clock that jumps while a run goes on."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time

import leftovers
import pytest

import stockade
from stockade.sandbox import keeperlink

pytestmark = pytest.mark.kernel

RUN = [sys.executable, "-m", "stockade", "run"]
MUCH = 600_000
"""Bytes; a pipe holds a tenth of it."""
WRITER = f"head -c {MUCH} /dev/zero; head -c {MUCH} /dev/zero >&2; exit 7"


@pytest.fixture
def called(watch):
    """The command line, in a place of its own; whatever the test does, it is gone afterwards."""
    started = []

    def call(*words, **options):
        process = subprocess.Popen(
            [*RUN, *words], cwd=watch.where.work, env=watch.where.env, stdin=subprocess.DEVNULL, **options
        )
        leftovers.waited_for.add(process.pid)
        started.append(process)
        return process

    yield call
    for process in started:
        process.kill()
        process.wait()
        leftovers.waited_for.discard(process.pid)


def test_a_slow_reader_gets_all_of_it(called):
    """The program waits for its reader, and ends as it would have anyway."""
    streams = {1: os.pipe(), 2: os.pipe()}
    process = called("--", "sh", "-c", WRITER, stdout=streams[1][1], stderr=streams[2][1])
    for _read, write in streams.values():
        os.close(write)
    got = {read: 0 for read, _write in streams.values()}
    waiting = set(got)
    while waiting:
        for read in select.select(waiting, [], [])[0]:
            data = os.read(read, 4096)
            time.sleep(0.0002)
            got[read] += len(data)
            if not data:
                waiting.discard(read)
    assert process.wait(leftovers.PATIENCE) == 7
    assert got[streams[1][0]] == MUCH
    assert got[streams[2][0]] >= MUCH
    for read in got:
        os.close(read)


@pytest.mark.parametrize("gone", [False, True], ids=["never reads", "gone"])
def test_a_reader_that_never_comes_holds_nobody_beyond_the_limit(watch, called, tmp_path, gone):
    """One that is gone is the program's to notice: its writes fail."""
    document = tmp_path / "verdict.json"
    read, write = os.pipe()
    words = [f"--json={document}", "--timeout", "700ms", "--", "sh", "-c", f"head -c {MUCH} /dev/zero; exit 7"]
    # What stockade has to say itself goes elsewhere: it would wait for its reader, once the run is over.
    process = called(*words, stdout=write, stderr=write if gone else subprocess.DEVNULL)
    os.close(write)
    if gone:
        os.close(read)
    code = process.wait(leftovers.PATIENCE)
    verdict = json.loads(document.read_text())
    expected = ("exited", 7) if gone else ("timed_out", 124)
    assert (verdict["outcome"], code) == expected, verdict["reason"]
    if not gone:
        os.close(read)
    watch.nothing_left()


# --- the clock ------------------------------------------------------------------------------------------------


class Jumping:
    """A wall clock that leaps by an hour, forth or back, whenever somebody looks at it."""

    def __init__(self, step: float) -> None:
        self.step, self.looks = step, 0
        self.real, self.real_ns = time.time, time.time_ns

    def shift(self) -> float:
        self.looks += 1
        return self.step * self.looks

    def time(self) -> float:
        return self.real() + self.shift()

    def time_ns(self) -> int:
        return self.real_ns() + int(self.shift() * 1e9)


@pytest.fixture(params=[3600.0, -3600.0], ids=["forth", "back"])
def jumping(request, monkeypatch, watch):
    """For this process; its keeper and what it starts keep the right time, as nothing there looks at it."""
    for name, value in watch.where.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(watch.where.work)
    keeperlink.end_keeper()
    clock = Jumping(request.param)
    monkeypatch.setattr(time, "time", clock.time)
    monkeypatch.setattr(time, "time_ns", clock.time_ns)
    yield clock
    keeperlink.end_keeper()


OPTIONS = [{}, {"policy": "workspace-write"}, {"record_egress": True}, {"allow": ["192.0.2.1"]}]


@pytest.mark.parametrize("options", OPTIONS, ids=["read-only", "workspace", "record", "allow"])
def test_a_jump_of_the_clock_ends_nothing_and_lengthens_nothing(watch, jumping, options):
    result = stockade.run("exit 7", timeout=60, **options)
    assert (result.outcome, result.exit_code) == ("exited", 7), result.reason
    assert 0 <= result.duration < 60
    result = stockade.run("sleep 60", timeout=0.4, **options)
    assert (result.outcome, result.returncode) == ("timed_out", 124)
    assert 0.2 < result.duration < 60
    time.time()
    assert jumping.looks  # the control: the clock that jumps is the one that a look goes to


def test_when_a_destination_was_seen_first_is_told_by_a_clock_that_does_not_jump(watch, jumping):
    result = stockade.run("getent hosts a.example b.example; sleep 0.05; exit 7", record_egress=True, timeout=60)
    assert result.exit_code == 7, result.stderr
    seen = [each.first_seen for each in result.egress]
    assert len(seen) == 2
    assert all(0 <= each <= result.duration + 1 for each in seen), (seen, result.duration)
