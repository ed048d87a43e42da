"""Thousands of runs one after the other, and hundreds at once: none lost, none misjudged, and nothing adds up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import amount
import driver
import leftovers
import processtree
import pytest
from driver import WAYS

pytestmark = [pytest.mark.kernel, pytest.mark.soak]

SHORT = ["sh", "-c", "exit 7"]
CHUNK = 100
ROW, FULL_ROW = 15, 100
"""Hundreds: 1,500 and 10,000 runs in one process."""
AT_ONCE = 200
GROWTH = 4 << 10
"""KiB that a process may grow by, over all."""


def standing(pid):
    """Descriptors, by kind, and threads and resident KiB of a process."""
    links = sorted(re.sub(r"\d+", "N", each.partition(" -> ")[2]) for each in leftovers.descriptors(pid))
    status = processtree.read(pid, "status")
    found = dict(re.findall(r"^(Threads|VmRSS):\s+(\d+)", status, re.MULTILINE))
    return links, int(found["Threads"]), int(found["VmRSS"])


def settled(pid):
    """The same, once what it does in idle moments is done: a keeper forks a child that waits."""

    def same():
        before = standing(pid)
        time.sleep(0.05)
        return before if before[:2] == standing(pid)[:2] else None

    return leftovers.wait_for(same, "rest")


def compare(name, pid, before):
    after = settled(pid)
    leftovers.settle(lambda: [] if standing(pid)[:2] == before[:2] else [f"{name}: {before}, {after}"], "")
    assert standing(pid)[2] <= before[2] + GROWTH, (name, before, after)
    return after[2] - before[2]


def at_rest(driven):
    """A keeper has a child that waits, before and after."""
    [keeper] = processtree.keepers(driven.pid)
    leftovers.wait_for(lambda: processtree.find(driven.pid, "spare"), "child that waits")
    return keeper


def test_many_runs_in_a_row_leave_nothing(watch):
    """In one process, with one keeper."""
    done = 0
    with driver.driver(watch.where) as made:
        assert made.run("none", SHORT, count=CHUNK, expect=7) == {"found": {"good": CHUNK}}
        watch.idle(made.pid)
        keeper = at_rest(made)
        before = settled(made.pid), settled(keeper)
        for _turn in amount.turns(ROW, FULL_ROW, 2):
            assert made.run("none", SHORT, count=CHUNK, expect=7) == {"found": {"good": CHUNK}}, done
            watch.idle(made.pid, f"after {done} runs")
            done += CHUNK
        assert at_rest(made) == keeper
        grown = compare("supervisor", made.pid, before[0]), compare("keeper", keeper, before[1])
    watch.nothing_left()
    print(f"{done} runs in a row; supervisor and keeper grew by {grown} KiB")


@pytest.mark.parametrize(
    ("way", "least", "most"), [("none", AT_ONCE, AT_ONCE), ("record", 30, 60), ("allow", 30, 60)]
)
def test_many_runs_at_once(watch, way, least, most):
    """On few processors: none is lost, none misjudged. Those with a network take four processes each."""
    count = most if amount.FULL else least
    with driver.driver(watch.where) as made:
        assert made.run(way, SHORT, count=1, expect=7) == {"found": {"good": 1}}
        made.send(way, SHORT, count=count, threads=count, expect=7)
        assert made.answer(300.0) == {"found": {"good": count}}
        watch.idle(made.pid)
    watch.nothing_left()


LIMITED = """
import ctypes, os, sys
uid, gid = os.geteuid(), os.getegid()
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x10000000) == 0, os.strerror(ctypes.get_errno())
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
for name in ("user", "mnt", "pid", "ipc", "uts", "net"):
    with open(f"/proc/sys/user/max_{name}_namespaces", "w") as file:
        file.write(sys.argv[1])
os.execv(sys.argv[2], sys.argv[2:])
"""
AT_MOST = 80
"""Namespaces of each kind at a time: the kernel takes its time to clear those of a network away."""


@pytest.mark.parametrize("way", WAYS if amount.FULL else ("none", "allow", "record"))
def test_namespaces_do_not_add_up(watch, way):
    """In a user namespace in which no more can be made than a few at a time: one that is left each time would show."""
    prefix = [sys.executable, "-I", "-S", "-c", LIMITED, str(AT_MOST)]
    with driver.driver(watch.where, prefix) as made:
        assert made.run(way, SHORT, count=1, expect=7) == {"found": {"good": 1}}
        assert processtree.namespace(made.pid, "user") != processtree.namespace(os.getpid(), "user")
        turns = 0
        for _turn in amount.turns(3, 8, 3):
            assert made.run(way, SHORT, count=30, expect=7) == {"found": {"good": 30}}
            turns += 30
        assert turns > AT_MOST
        watch.idle(made.pid)
    watch.nothing_left()


HOLD = """
import os, subprocess, sys
kept = []
for _ in range(int(sys.argv[1])):
    child = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; read x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    if not child.stdout.readline():
        print(len(kept))
        break
    kept.append(os.open(f"/proc/{child.pid}/ns/net", os.O_RDONLY))
    child.communicate(b"\\n")
else:
    print("all")
"""


def test_namespaces_that_are_left_run_into_that_limit(watch):
    """The control of the test above: each one that is kept by a descriptor counts."""
    command = [sys.executable, "-I", "-S", "-c", LIMITED, "20", sys.executable, "-I", "-S", "-c", HOLD]
    done = subprocess.run([*command, "30"], capture_output=True, text=True, check=True)
    assert 10 < int(done.stdout) <= 20
    done = subprocess.run([*command, "10"], capture_output=True, text=True, check=True)
    assert done.stdout == "all\n"
