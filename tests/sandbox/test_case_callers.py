"""Callers of every kind: threads, event loops, forked copies, odd signal settings. None is disturbed, or disturbs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading

import pytest
from boxes import PATIENCE, own_state, processes_with, wait_until  # noqa: F401

import stockade
from stockade.sandbox import keeperlink

pytestmark = pytest.mark.kernel

RUN = (sys.executable, "-m", "stockade", "run")


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


def running(token):
    """The processes of a run that has got as far as its program: monitor, pid 1 of the box, program."""
    return wait_until(lambda: len(processes_with(token)) > 2 and processes_with(token), "the program runs")


class Background:
    """A run in a thread of its own."""

    def __init__(self, command):
        self.results = []
        work = lambda: self.results.append(stockade.run(command, timeout=PATIENCE))  # noqa: E731
        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()

    def end(self):
        self.thread.join(PATIENCE)
        assert self.results, "the run did not return"
        return self.results[0]


def run_script(text, *arguments):
    """A program that uses the library in its own way; it says what it saw on stdout."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", text, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


ADOPTS = """
import ctypes, json, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # what is orphaned comes to us, and we reap nothing
for command in json.loads(sys.argv[1]):
    assert subprocess.run(command).returncode == 0, command
with open("/proc/thread-self/children") as file:
    print(json.dumps(file.read().split()))
"""


def test_no_zombie_is_left_to_a_parent_that_does_not_reap():
    """In a container pid 1 is often no init."""
    library = "import stockade\nfor _ in range(5): assert stockade.run(['true']).ok"
    commands = [[*RUN, "--", "true"]] * 5 + [[sys.executable, "-c", library]]
    assert run_script(ADOPTS, json.dumps(commands)) == []
    orphan = ["/bin/sh", "-c", "sleep 0 & exit 0"]
    assert len(run_script(ADOPTS, json.dumps([orphan]))) == 1  # control: it would have been seen


@pytest.mark.parametrize(
    "prepare",
    [
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "signal.signal(signal.SIGCHLD, reap_all)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))",
        "os.close(0)",
        "os.close(0); os.close(1); os.close(2); report = os.open(sys.argv[1], os.O_WRONLY)",
        "os.closerange(0, 3); [os.open('/dev/null', os.O_RDWR) for _ in range(900)]; report = 1",
    ],
    ids=["ignores SIGCHLD", "reaps everything", "blocks all signals", "no stdin", "no streams", "many descriptors"],
)
def test_odd_callers_get_a_true_result(tmp_path, prepare):
    text = f"""
import json, os, signal, sys
def reap_all(number, frame):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
report = -1
{prepare}
import stockade
results = [stockade.run("cat; exit 3", stdin=b"fed", timeout=15) for _ in range(3)]
with open(sys.argv[1], "w") as file:
    json.dump([(each.outcome, each.exit_code, each.stdout.decode()) for each in results], file)
"""
    report = tmp_path / "report.json"
    report.touch()
    done = subprocess.run([sys.executable, "-c", text, report], timeout=PATIENCE, check=False)
    assert done.returncode in (0, 120)  # 120: the interpreter could not flush a stream that is closed
    assert json.loads(report.read_text()) == [["exited", 3, "fed"]] * 3


def test_a_forked_copy_of_the_caller_has_a_keeper_of_its_own():
    text = """
import json, multiprocessing, os
import stockade
from stockade.sandbox import keeperlink
def child(queue):
    queue.put((stockade.run("echo child").stdout.decode(), keeperlink.shared().pid))
assert stockade.run(["true"]).ok
before = keeperlink.shared().pid
context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
process = context.Process(target=child, args=(queue,))
process.start()
said, other = queue.get()
process.join()
after = stockade.run("echo parent").stdout.decode()
print(json.dumps([said, after, other != before, keeperlink.shared().pid == before]))
"""
    assert run_script(text) == ["child\n", "parent\n", True, True]


def test_a_copy_that_is_forked_while_another_thread_starts_a_run_is_not_stuck():
    """Whatever a thread held at that moment, the copy has no such thread that would ever let go of it."""
    text = """
import json, os, threading
import stockade
from stockade.sandbox import locks
assert stockade.run(["true"]).ok
held, done = threading.Event(), threading.Event()
def hold():
    with locks.KEEPER_LOCK:
        held.set()
        done.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, stockade.run("echo child", timeout=10).stdout)
    os._exit(0)
os.close(write)
said = os.read(read, 99).decode()
done.set()
thread.join()
print(json.dumps([said, stockade.run("echo parent").stdout.decode()]))
"""
    assert run_script(text) == ["child\n", "parent\n"]


def test_runs_of_many_threads_keep_apart():
    """Also when the thread that started the keeper has ended long ago."""
    keeperlink.end_keeper()
    first = Background(["true"])
    assert first.end().ok
    runs = [Background(f"echo out-{n}; echo err-{n} >&2; exit {n}") for n in range(20)]
    for n, run in enumerate(runs):
        result = run.end()
        assert (result.outcome, result.exit_code) == ("exited", n), result.reason
        assert (result.stdout, result.stderr) == (f"out-{n}\n".encode(), f"err-{n}\n".encode())


def test_cancelling_kills_the_run_before_it_returns(token):
    async def cancelled(times):
        task = asyncio.create_task(stockade.arun(script("sleep 300; :", token)))
        await asyncio.to_thread(running, token)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes_with(token) == []

    for times in (1, 3):
        asyncio.run(cancelled(times))


def test_cancelling_at_once_starts_nothing_that_stays(token):
    async def main():
        tasks = [asyncio.create_task(stockade.arun(script("sleep 300; :", token))) for _ in range(5)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(main())
    assert [type(each) for each in results] == [asyncio.CancelledError] * 5
    assert processes_with(token) == []


def test_many_awaited_runs_go_on_at_the_same_time():
    async def main():
        return await asyncio.gather(*(stockade.arun(f"sleep 0.2; exit {n}") for n in range(10)))

    assert [result.exit_code for result in asyncio.run(main())] == list(range(10))


def descriptors(pid):
    """What a process has open, without the numbers."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}").split(":")[0])
    return sorted(found)


RUNS = 100


def test_many_runs_leave_no_descriptor(place):
    """Neither here nor in the keeper: of a good run, a missing program, a timeout, a refused start."""

    def mixed():
        assert stockade.run("cat", stdin=b"x" * 100_000).ok
        assert stockade.run(["no-such-command"]).outcome == "not_executed"
        assert stockade.run(["true"], policy="workspace-write", cwd=place.ws).ok
        with pytest.raises(stockade.RequestError):
            stockade.run(["true"], cwd="/nonexistent")

    mixed()
    keeper = keeperlink.shared().pid
    here, there = descriptors(os.getpid()), descriptors(keeper)
    for _ in range(RUNS // 3):
        mixed()
    assert keeperlink.shared().pid == keeper
    assert descriptors(os.getpid()) == here
    # Between two runs it makes the child that waits for the next one, which takes three.
    assert len(descriptors(keeper)) <= len(there) + 3
