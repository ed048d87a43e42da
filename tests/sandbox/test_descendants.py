"""Who is below a process, by the kernel's lists of children or, where there are none, by psutil."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stockade.sandbox import processes
from stockade.sandbox.processes import children, crowd, descendants, psutil_crowd

TREE = "sleep 300 & echo $!; sh -c 'sleep 300 & echo $!; wait' & echo $!; wait"


@pytest.fixture
def tree():
    """A shell with two children, one of which has a child too. Their pids come by a pipe, after they started."""
    process = subprocess.Popen(["/bin/sh", "-c", TREE], stdout=subprocess.PIPE, text=True, start_new_session=True)
    below = sorted(int(process.stdout.readline()) for _ in range(3))
    yield process.pid, below
    os.killpg(process.pid, 9)
    process.wait()
    process.stdout.close()


def test_everything_below_is_found(tree):
    top, below = tree
    assert sorted(descendants(top)) == below
    assert set(children(top)) < set(below)
    assert len(children(top)) == 2


def test_psutil_finds_the_same(tree):
    top, below = tree
    assert sorted(psutil_crowd(top)[0]) == below


def test_a_kernel_without_lists_of_children_is_asked_by_psutil(tree, monkeypatch):
    top, below = tree
    exists = os.path.exists
    monkeypatch.setattr(processes.os.path, "exists", lambda path: "children" not in path and exists(path))
    assert sorted(descendants(top)) == below


def test_the_process_itself_and_those_beside_it_are_not_among_them(tree):
    top, _below = tree
    assert top not in descendants(top)
    assert os.getpid() not in descendants(top)
    assert top in descendants(os.getpid())


def test_a_process_that_is_gone_has_none():
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    assert descendants(process.pid) == []
    assert psutil_crowd(process.pid) == ([], 0)


THREADS = """
import threading, time
for _ in range(5):
    threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
print(flush=True)
time.sleep(300)
"""


@pytest.fixture
def threaded():
    """A shell with one child of six threads."""
    command = ["/bin/sh", "-c", '"$0" -c "$1"; exit', sys.executable, THREADS]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    process.stdout.readline()
    yield process.pid
    os.killpg(process.pid, 9)
    process.wait()
    process.stdout.close()


def test_threads_count(threaded):
    assert crowd(threaded, None)[1] == 6
    assert psutil_crowd(threaded)[1] == 6
    assert len(descendants(threaded)) == 1


def test_a_crowd_is_not_listed_further_than_shows_it(tree):
    top, below = tree
    assert crowd(top, 3)[1] == crowd(top, None)[1] == 3
    listed, count = crowd(top, 1)
    assert count > 1
    assert set(listed) < set(below)


def test_a_process_without_children_has_none(tree):
    _top, below = tree
    leaf = next(pid for pid in below if not children(pid))
    assert descendants(leaf) == []
