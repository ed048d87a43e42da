"""What is seen of limits from outside: the arithmetic by tables, a look at real processes against a control."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.sandbox.evidence import Bounds
from stockade.sandbox.limitwatch import (
    TICKS,
    LimitWatch,
    Row,
    at_once,
    full,
    open_inside,
    parse_stat,
    rows_of,
    unclaimed,
)


def stat_line(name="python3", *, began=77, threads=3, own=(5, 6), waited=(7, 8)):
    before = f"42 ({name}) S 1 42 42 0 -1 4194304 100 0 0 0".split(" ", 1)[1]
    return f"42 {before} {own[0]} {own[1]} {waited[0]} {waited[1]} 20 0 {threads} 0 {began} 1000 200\n"


@pytest.mark.parametrize("name", ["python3", "a b", ") S 9 (", "((", ""])
def test_a_name_that_the_program_chose_shifts_no_field(name):
    assert parse_stat(42, stat_line(name)) == Row(42, 77, 3, 11 / TICKS, 15 / TICKS)


@pytest.mark.parametrize("text", ["", "42 (x", "42 (x) S 1 2", "\n"])
def test_a_process_that_is_no_more_has_no_row(text):
    assert parse_stat(42, text) is None


def row(pid, threads=1, began=1):
    return Row(pid, began, threads, 0.0, 0.0)


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        ([row(1), row(2)], [row(1), row(2)], 2),
        ([row(1), row(2)], [row(1)], 1),  # one ended while the list was read
        ([row(1)], [row(1), row(3)], 1),  # one began
        ([row(1), row(2)], [row(1), row(2, began=2)], 1),  # a pid that was given away again
        ([row(1, threads=5)], [row(1, threads=3)], 3),
        ([row(1, threads=3)], [row(1, threads=5)], 3),
        ([], [row(1)], 0),
    ],
)
def test_only_those_count_that_outlasted_the_reading(first, second, count):
    assert at_once(first, second) == count


def times(**processes):
    """Name to (own, waited)."""
    return [Row(ord(name), 1, 1, own, waited) for name, (own, waited) in processes.items()]


@pytest.mark.parametrize(
    ("before", "after", "seconds"),
    [
        ({"a": (1, 0), "b": (2, 0)}, {"a": (1, 0), "b": (3, 0)}, 0.0),
        ({"a": (1, 0), "b": (2, 0)}, {"a": (1, 0)}, 2.0),  # nobody waited for b
        ({"a": (1, 0), "b": (2, 0)}, {"a": (1, 2.5)}, 0.0),  # a did
        ({"a": (1, 0), "b": (2, 3)}, {"a": (1, 0)}, 5.0),  # with all that b had waited for
        ({"a": (1, 0), "b": (2, 0), "c": (3, 0)}, {"a": (1, 2.5)}, 2.5),  # b or c, and nobody can tell which
        ({"a": (1, 0), "b": (2, 0), "c": (3, 0)}, {"a": (1, 5.5)}, 0.0),  # c was b's, and b was a's
        ({"a": (1, 4), "b": (2, 0)}, {"a": (1, 4)}, 2.0),
        (
            {"a": (1, 0), "b": (2, 0)},
            {"a": (1, 0), "c": (0, 1.5)},
            0.5,
        ),  # a new one may have been the one that waited
        ({"a": (1, 0)}, {"a": (1, 9)}, 0.0),  # one that was never seen
        ({}, {"a": (1, 2)}, 0.0),
    ],
)
def test_time_that_ended_with_a_process(before, after, seconds):
    known = {(row.pid, row.began): row for row in times(**before)}
    assert unclaimed(known, times(**after)) == seconds


def test_a_number_that_was_given_away_again_is_another_process():
    old = Row(5, 1, 1, 2.0, 0.0)
    assert unclaimed({(5, 1): old}, [Row(5, 2, 1, 0.5, 0.0)]) == 2.0


def test_one_that_a_list_left_out_is_no_end_and_a_stranger_with_its_number_is_nobody(worker):
    """As the kernel's list of children may, while others end."""
    watch = LimitWatch(Bounds(cpu=1e9), os.getpid())
    watch.look([worker])
    (key,) = [key for key in watch.before if key[0] == worker]
    watch.look([])
    assert key in watch.before
    assert watch.unclaimed == 0.0
    watch.before = {(worker, 1): Row(worker, 1, 1, 7.0, 0.0)}  # began at another time: it has ended
    watch.look([])
    assert worker not in {pid for pid, _began in watch.before}
    watch.close()


@settings(max_examples=200)
@given(st.randoms(use_true_random=False))
def test_never_more_is_counted_than_was_used(lot):
    """Processes that come, work, wait for their children or not, and go, looked at now and then; each look takes place
    at one moment."""
    living = {1: [0.0, 0.0, None]}
    used, serial, watch = 0.0, 1, LimitWatch(Bounds(cpu=1e9), 1)
    for _ in range(60):
        act, one = lot.choice("fwwexl"), lot.choice(list(living))
        if act == "f":
            serial += 1
            living[serial] = [0.0, 0.0, one]
        elif act == "w":
            amount = lot.random()
            living[one][0] += amount
            used += amount
        elif act in "ex" and one != 1:
            own, waited, parent = living.pop(one)
            for other in living.values():
                other[2] = 1 if other[2] == one else other[2]
            if act == "e":  # it is waited for
                living[parent if parent in living else 1][1] += own + waited
        else:
            spent = watch.added_up([Row(pid, 1, 1, own, waited) for pid, (own, waited, _) in living.items()])
            assert spent <= used + 1e-6


@pytest.mark.parametrize(
    ("numbers", "is_full"),
    [
        ((100, 1, 50, 1), False),
        ((100, 0, 50, 1), True),
        ((100, 1, 50, 0), True),
        ((0, 0, 0, 0), False),  # a file system without limits reports none
        ((100, 7, 0, 0), False),
    ],
)
def test_when_a_place_is_full(numbers, is_full):
    assert full(*numbers) is is_full


THREADS = """
import os, sys, threading
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
for _ in range(4):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
for _ in range(3_000_000):
    pass
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def worker():
    command = [sys.executable, "-I", "-S", "-c", THREADS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.stdin.close()


def looked(pid, **bounds):
    watch = LimitWatch(Bounds(**bounds), pid)
    watch.look([])
    watch.close()
    return set(watch.reached)


def test_a_limit_counts_as_reached_from_its_value_on(worker):
    (found,) = rows_of([worker])
    assert found.threads == 5
    assert looked(worker, processes=5) == {"limits.processes"}
    assert looked(worker, processes=6) == set()
    assert looked(worker, cpu=found.own) == {"limits.cpu"}
    assert looked(worker, cpu=3600.0) == set()


def test_open_files_are_counted_where_the_kernel_tells(worker):
    count = os.stat(f"/proc/{worker}/fd").st_size
    told = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (6, 2)
    assert (count >= 23) is told
    assert looked(worker, open_files=max(count, 1)) == ({"limits.open_files"} if told else set())
    assert looked(worker, open_files=count + 1) == set()


def test_places_of_what_has_the_hosts_root_are_not_looked_at(worker):
    """Before bubblewrap has changed its root, its /tmp is the host's."""
    watch = LimitWatch(Bounds(places=("/tmp",)), worker)
    watch.look([])
    assert watch.held is None
    watch.close()


def test_no_link_leads_a_look_to_another_place(tmp_path):
    (tmp_path / "real/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("/")
    (tmp_path / "real/last").symlink_to("deep")
    top = os.open(tmp_path, os.O_PATH)
    before = set(os.listdir("/proc/self/fd"))
    for path in ("/link/tmp", "/real/last", "/real/none"):
        with pytest.raises(OSError, match=path.rpartition("/")[0].strip("/") + "|" + path.rpartition("/")[2]):
            open_inside(top, path)
    assert set(os.listdir("/proc/self/fd")) == before
    fd = open_inside(top, "/real/deep")  # control
    assert os.path.samestat(os.fstat(fd), os.stat(tmp_path / "real/deep"))
    os.close(fd)
    os.close(top)


def test_what_has_ended_is_no_error(worker):
    gone = subprocess.Popen(["true"])
    gone.wait()
    watch = LimitWatch(Bounds(1.0, 1, 1, ("/tmp",)), gone.pid)
    watch.look([gone.pid])
    watch.close()
    assert watch.reached == {}
