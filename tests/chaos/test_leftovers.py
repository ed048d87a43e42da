"""The watcher of these tests can see: each kind of leftover is planted, found, and not found any more once it is gone."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading

import driver
import leftovers
import processtree
import pytest
import verdicts

pytestmark = pytest.mark.kernel

ORPHAN = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\n"
HERE = os.path.dirname(os.path.abspath(__file__))


@contextlib.contextmanager
def a_process(watch):
    """Let go by its parent, in a session of its own."""
    subprocess.run([sys.executable, "-I", "-S", "-c", ORPHAN], check=True)
    [pid] = watch.processes()
    yield
    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def a_zombie(watch):
    child = subprocess.Popen(["/bin/true"])
    leftovers.waited_for.add(child.pid)
    leftovers.wait_for(lambda: processtree.state_of(child.pid)[0] == "Z", "zombie")
    yield
    child.wait()
    leftovers.waited_for.discard(child.pid)


@contextlib.contextmanager
def a_descriptor(watch):
    read, write = os.pipe()
    yield
    os.close(read)
    os.close(write)


@contextlib.contextmanager
def a_namespace(watch):
    """Of a process that is gone."""
    with subprocess.Popen(["unshare", "-Urn", "sleep", "60"]) as child:
        own = processtree.namespace(os.getpid(), "net")
        leftovers.wait_for(lambda: processtree.namespace(child.pid, "net") not in ("", own), "namespace")
        fd = os.open(f"/proc/{child.pid}/ns/net", os.O_RDONLY)
        child.kill()
    yield
    os.close(fd)


def a_file(name):
    @contextlib.contextmanager
    def planted(watch):
        os.makedirs(os.path.join(watch.where.top, name))
        yield
        shutil.rmtree(os.path.join(watch.where.top, *name.split("/")[:2]))

    return planted


FILES = {
    "stand-in": "work/.git/hooks",
    "temporary file": "tmp/stockade-probe-x",
    "file at home": "home/x",
    "layer": "cache/stockade/stockade-changes-x",
    "half a cache entry": "cache/stockade/.host.0123",
}


@pytest.mark.parametrize(
    ("plant", "line"),
    [
        (a_process, "process"),
        (a_zombie, " Z"),
        (a_descriptor, "descriptor"),
        (a_namespace, "namespace held by"),
        *((a_file(name), f"/{name}") for name in FILES.values()),
    ],
    ids=["process", "zombie", "descriptor", "namespace", *FILES],
)
def test_what_is_planted_is_found(watch, plant, line):
    assert watch.left() == []
    with plant(watch):
        assert any(line in each for each in watch.left()), watch.left()
    watch.nothing_left()


MOUNTED = """
import sys
sys.path.insert(0, sys.argv[1])
import leftovers, smallworld
smallworld.enter()
place = leftovers.Place(sys.argv[2])
watch = leftovers.Watch(place)
assert watch.left() == [], watch.left()
smallworld.make_small(place.work + ":64:16")
assert any("mount " in each for each in watch.left()), watch.left()
"""


def test_a_mount_is_found(tmp_path):
    """In a mount namespace of the test's own."""
    done = subprocess.run(
        [sys.executable, "-c", MOUNTED, HERE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("role", ["monitor", "init", "program"])
def test_a_run_that_goes_on_is_not_idle(watch, role):
    with driver.driver(watch.where) as made:
        made.send("none", ["sh", "-c", "echo up; sleep 60"], options={"timeout": 1.0})
        leftovers.wait_for(lambda: processtree.find(made.pid, role), role)
        assert any(each.startswith(role) for each in leftovers.busy(made.pid))
        assert verdicts.timed_out(made.answer())
        watch.idle(made.pid)


def test_only_the_process_that_was_meant_is_hit(watch):
    """A pid that has been given to another process since has another time of start."""
    with subprocess.Popen(["sleep", "60"]) as child:
        meant = processtree.identify(child.pid)
        assert not processtree.hit(meant._replace(began="1"), signal.SIGKILL)
        assert processtree.is_there(meant)
        assert processtree.hit(meant, signal.SIGKILL)
    assert not processtree.is_there(meant)
    assert not processtree.hit(meant, signal.SIGKILL)


RIGHT = {
    "outcome": "lost", "started": True, "stdout": verdicts.UP, "exit_code": None, "returncode": 125,
    "reason": "the keeper of the sandbox ended during the run",
}  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"outcome": "exited", "exit_code": 0},
        {"outcome": "fine"},
        {"started": False},
        {"stdout": "something else\n"},
        {"outcome": "runner_failed", "started": False},
        {"outcome": "runner_failed", "reason": "bubblewrap was killed by SIGKILL; the program may have run"},
        {"outcome": "timed_out", "returncode": 124, "reason": "timed out after 5 s"},
    ],
)
def test_a_wrong_outcome_is_seen(wrong):
    """The control of the judge."""
    assert not verdicts.wrong_with(RIGHT)
    assert verdicts.fits_kill(RIGHT, "keeper", forever=True)
    answer = {**RIGHT, **wrong}
    assert verdicts.wrong_with(answer) or not verdicts.fits_kill(answer, "keeper", forever=True)


def test_threads_have_children_too(watch):
    """What another thread started is found below its process."""
    started = []
    thread = threading.Thread(target=lambda: started.append(subprocess.Popen(["sleep", "60"])))
    thread.start()
    thread.join()
    try:
        assert started[0].pid in processtree.below(os.getpid())
    finally:
        started[0].kill()
        started[0].wait()
