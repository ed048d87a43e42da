"""A lease lives as long as its run, whoever dies first and whenever: afterwards nothing of it is left.

And a run whose network went away is a failure of the runner with the part named, never the program's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import leasewatch
import psutil
import pytest
from leasewatch import KINDS, WAYS, Watch, command, wait_for

import stockade
from stockade.netns import lease as lease_module
from stockade.netns.errors import LeaseFailed
from stockade.netns.lease import Lease
from stockade.sandbox import keeperlink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.kernel

MOMENTS = [round(random.Random(seed).uniform(0.0, 0.16), 4) for seed in range(8)]
"""Seconds after the start: the interpreter starts, the keeper is forked, the lease is made, the program runs."""
ROW = int(os.environ.get("STOCKADE_SOAK", "100"))
"""Leases in a row in one process; STOCKADE_SOAK=500 for more."""
PARTS = {"allow": ["holder", "slirp4netns"], "record": ["holder"], "pasta": ["holder", "pasta"]}
PAIRS = [(kind, part) for kind, parts in PARTS.items() for part in parts]


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> str:
    """Knows this host: the trial of a first run has a box of its own, which these tests are not about."""
    path = str(tmp_path_factory.mktemp("cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", path)
        assert stockade.probe().by_name()["bwrap"].state == "ok"
    return path


@pytest.fixture
def place(request, monkeypatch, cache) -> Iterator[leasewatch.Place]:
    """``kind`` of a test may be any of WAYS."""
    way = request.node.callspec.params.get("kind") if hasattr(request.node, "callspec") else None
    with leasewatch.place(cache) as made:
        if way == "pasta":
            made.connect_by(way)
        for name, value in made.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(made.work)
        yield made


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Of a process that has no keeper yet."""
    keeperlink.end_keeper()
    with leasewatch.subreaper():
        yield Watch()
        keeperlink.end_keeper()


@contextlib.contextmanager
def supervisor(place, kind, *program) -> Iterator[subprocess.Popen[bytes]]:
    process = place.start(command(kind, *program))
    try:
        yield process
    except AssertionError as error:
        process.kill()
        said = "" if process.stderr.closed else process.stderr.read().decode()
        raise AssertionError(f"{error}\n{said}") from error
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def options(kind):
    return {"record_egress": True} if kind == "record" else {"allow": ["192.0.2.1"]}


# --- the supervisor -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WAYS)
def test_an_undisturbed_run_leaves_nothing(place, watch, kind):
    with supervisor(place, kind, "sh", "-c", "exit 7") as process:
        assert process.wait(leasewatch.PATIENCE) == 7
    watch.assert_nothing_left(place)


def ask_to_end(process, number):
    """Twice if it must be: an interrupt that hits the import machinery is dropped by Python. What it said."""
    process.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(leasewatch.PATIENCE / 4)
    process.send_signal(number)
    _out, err = process.communicate(timeout=leasewatch.PATIENCE)
    return err.decode()


SIGNALS = ("SIGKILL", "SIGINT", "SIGTERM")


@pytest.mark.parametrize(
    ("kind", "name"), [*((kind, name) for kind in KINDS for name in SIGNALS), ("pasta", "SIGKILL")]
)
def test_supervisor_ends_at_any_moment(place, watch, kind, name):
    number = getattr(signal, name)
    for moment in MOMENTS:
        with supervisor(place, kind) as process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(moment)
            begun = bool(psutil.Process(process.pid).children())
            err = ask_to_end(process, number)
            # Until its keeper is there, this may be Python's own start, which ends interrupts in ways of its own.
            good = process.returncode in (-number, 128 + number) or (not begun and process.returncode != 0)
            assert good, f"after {moment} s it ended with {process.returncode}: {err}"
        watch.assert_nothing_left(place)


@pytest.mark.parametrize(
    ("kind", "part"), [*PAIRS, *((kind, part) for kind in WAYS for part in ("bwrap", "sleep"))]
)
def test_supervisor_is_killed_when_a_part_has_just_come(place, watch, kind, part):
    with supervisor(place, kind) as process:
        watch.one(part)
        process.kill()
        process.wait(leasewatch.PATIENCE)
    watch.assert_nothing_left(place)


@pytest.mark.parametrize("kind", WAYS)
def test_supervisor_is_killed_and_its_keeper_before_it(place, watch, kind):
    """Then nobody is left to end anything: each part has to see for itself."""
    with supervisor(place, kind) as process:
        watch.one("sleep")
        (keeper,) = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGSTOP)
        keeper.kill()
        process.kill()
        process.wait(leasewatch.PATIENCE)
    watch.assert_nothing_left(place)


@pytest.mark.parametrize("kind", WAYS)
def test_ctrl_c_during_a_run_is_the_programs_to_answer(place, watch, kind):
    script = "trap 'echo asked; exit 9' INT; echo up; while :; do sleep 0.01; done"
    with supervisor(place, kind, "sh", "-c", script) as process:
        assert process.stdout.readline() == b"up\n"
        assert [each for part in PARTS[kind] for each in [watch.one(part)]]
        process.send_signal(signal.SIGINT)
        out, _err = process.communicate(timeout=leasewatch.PATIENCE)
        assert (out, process.returncode) == (b"asked\n", 9)
    watch.assert_nothing_left(place)


INTERRUPTED = """
import os, signal, sys, threading, time
import psutil
import stockade
from stockade.sandbox import keeperlink
options = {"record_egress": True} if sys.argv[1] == "record" else {"allow": ["192.0.2.1"]}
stockade.run(["true"], **options)
NAMES = ("slirp4netns", "bwrap", "sleep")
def parts():
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            other = os.readlink(f"/proc/{process.pid}/ns/net") != os.readlink("/proc/self/ns/net")
            found += [process.name()] if other or process.name() in NAMES else []
        except (psutil.Error, OSError):
            pass
    return found
before = threading.active_count()
for moment in map(float, sys.argv[2:]):
    timer = threading.Timer(moment, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        stockade.run(["sleep", "60"], **options)
    except KeyboardInterrupt:
        pass
    else:
        raise SystemExit("it was not interrupted")
    timer.join()
    until = time.monotonic() + 10
    while (left := [*parts(), *threading.enumerate()[before:]]) and time.monotonic() < until:
        time.sleep(0.01)
    assert not left, (moment, left)
result = stockade.run(["true"], **options)
assert (result.outcome, result.exit_code) == ("exited", 0), result.reason
keeperlink.end_keeper()
print("fine")
"""


@pytest.mark.parametrize("kind", KINDS)
def test_library_call_is_interrupted_at_any_moment(place, watch, kind):
    process = place.start([sys.executable, "-c", INTERRUPTED, kind, *(str(moment / 3) for moment in MOMENTS)])
    out, err = process.communicate(timeout=leasewatch.PATIENCE)
    assert (out, process.returncode) == (b"fine\n", 0), err.decode()
    watch.assert_nothing_left(place)


# --- a part ends under a run --------------------------------------------------------------------------------------


def in_thread(run):
    """Has ``run`` done beside; where its result will be."""
    results = []
    thread = threading.Thread(target=lambda: results.append(run()))
    thread.start()
    return thread, results


def after(kind, disturb, *program, **more):
    """The result of a run that is disturbed while its program runs."""
    thread, results = in_thread(lambda: stockade.run([*(program or leasewatch.FOREVER)], **options(kind), **more))
    try:
        disturb()
    finally:
        thread.join(leasewatch.PATIENCE)
    assert results, "the run did not end"
    return results[0]


def is_fine(kind):
    result = stockade.run(["sh", "-c", "exit 3"], **options(kind))
    return (result.outcome, result.exit_code) == ("exited", 3)


@pytest.mark.parametrize(("kind", "part"), PAIRS)
def test_part_that_is_killed_is_named(place, watch, kind, part):
    def disturb():
        watch.one("sleep")
        watch.one(part).kill()

    assert is_fine(kind)
    result = after(kind, disturb)
    assert (result.outcome, result.started, result.exit_code) == ("runner_failed", True, None)
    assert result.reason == f"the leased network broke: {part} ended during the run"
    assert (result.returncode, result.denials) == (125, ())
    assert is_fine(kind)
    keeperlink.end_keeper()
    watch.assert_nothing_left(place)


def stop(process):
    process.suspend()
    wait_for(lambda: process.status() == psutil.STATUS_STOPPED, "stop of the holder")


def endless(monkeypatch):
    """Whoever waits for the whole time for an answer is not there at the end of the test."""
    monkeypatch.setattr(lease_module, "READY_SECONDS", 3 * leasewatch.PATIENCE)


def with_a_stopped_holder(place, watch, kind):
    """The result of a run whose program ends by itself once the holder is stopped."""
    go = place.work / "go"

    def disturb():
        watch.one("sh", "until")  # not that of a trial of the host, which follows a failure
        stop(watch.one("holder"))
        go.touch()

    result = after(kind, disturb, "sh", "-c", "until [ -e go ]; do sleep 0.01; done; exit 7")
    go.unlink()
    return result


@pytest.mark.parametrize("kind", WAYS)
def test_holder_that_is_stopped_does_not_hold_the_end_of_a_run(place, watch, monkeypatch, kind):
    endless(monkeypatch)
    result = with_a_stopped_holder(place, watch, kind)
    if kind == "record":
        # Nothing leaves in any case: the program's own end holds, and what it tried is not known.
        assert (result.outcome, result.exit_code, result.egress) == ("exited", 7, ())
    else:
        assert (result.outcome, result.started, result.exit_code) == ("runner_failed", True, None)
        assert result.reason.startswith("the leased network broke: holder")
    (note,) = [note for note in result.notes if "is not known" in note]
    assert note.endswith("holder: it is stopped")
    watch_end(watch, place)


@pytest.mark.parametrize("kind", KINDS)
def test_holder_that_goes_on_is_not_given_up(place, watch, monkeypatch, kind):
    """The control: asked while it is stopped, it answers when it goes on."""
    asked = []

    def let_go(pid):
        asked.append(original(pid))
        os.kill(pid, signal.SIGCONT)
        return False

    original = lease_module.is_stopped
    monkeypatch.setattr(lease_module, "STOPPED", 0.01)
    monkeypatch.setattr(lease_module, "is_stopped", let_go)
    result = with_a_stopped_holder(place, watch, kind)
    assert asked[0]
    assert (result.outcome, result.exit_code) == ("exited", 7), result.reason
    assert not [note for note in result.notes if "is not known" in note]
    watch_end(watch, place)


class WaitingService:
    """Its thread asks the holder something, as for a name that was just resolved."""

    error = ""

    def __init__(self, lease):
        self.failures = []
        self.thread = threading.Thread(target=self.ask, args=[lease])

    def ask(self, lease):
        try:
            lease.command("add element inet stockade x { 192.0.2.1 }")
        except LeaseFailed as error:
            self.failures.append(error.message)

    def stop(self):
        self.thread.join(leasewatch.PATIENCE)
        assert not self.thread.is_alive()

    def close(self):
        pass


def test_question_that_is_under_way_is_given_up_with_the_run(monkeypatch):
    endless(monkeypatch)
    monkeypatch.setattr(lease_module, "STOPPED", 0.01)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    holder = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        stop(psutil.Process(holder.pid))
        lease = Lease(None, None)
        lease.control, lease._holder = ours, holder.pid
        lease.service = service = WaitingService(lease)
        service.thread.start()
        assert theirs.recv(100)
        assert service.thread.is_alive()
        lease.close()
        assert service.failures == ["could not lease a network: holder: it is stopped"]
        with pytest.raises(LeaseFailed, match="it is stopped"):
            lease.command("?list table inet stockade")  # what comes late would pass for the answer to this
    finally:
        holder.kill()
        holder.wait()
        theirs.close()
        ours.close()


@pytest.mark.parametrize("kind", ["allow", "pasta"])
@pytest.mark.parametrize("code", [0, 7])
def test_program_that_ends_with_its_network_is_not_blamed(place, watch, kind, code):
    """It sees its link go before anybody can tell that the connector has ended."""
    script = f"while grep -q tap0 /proc/net/dev; do :; done; exit {code}"
    (connector,) = set(PARTS[kind]) - {"holder"}

    def disturb():
        watch.one("sh", "grep -q tap0")  # not that of a trial of the host, which follows a failure
        watch.one(connector).kill()

    for _ in range(3):
        result = after(kind, disturb, "sh", "-c", script)
        assert (result.outcome, result.started) == ("runner_failed", True), result.reason
        assert connector in result.reason
    watch_end(watch, place)


def watch_end(watch, place):
    keeperlink.end_keeper()
    watch.assert_nothing_left(place)


@pytest.mark.parametrize("kind", WAYS)
def test_keeper_that_is_killed(place, watch, kind):
    def disturb():
        watch.one("sleep")
        os.kill(keeperlink._link.pid, signal.SIGKILL)

    assert is_fine(kind)
    result = after(kind, disturb)
    assert (result.outcome, result.started, result.exit_code) == ("lost", True, None)
    assert "keeper" in result.reason
    assert is_fine(kind)
    watch_end(watch, place)


@pytest.mark.parametrize(("kind", "part"), PAIRS)
@pytest.mark.parametrize("step", ["wait_rules", "wait_attached"])
def test_part_that_is_killed_before_the_program_starts(place, watch, monkeypatch, kind, part, step):
    original = getattr(Lease, step)

    def killing(lease, *until):
        original(lease, *until)
        process = watch.one(part)
        process.kill()
        wait_for(lambda: not leasewatch.is_alive(process), "end of it")

    monkeypatch.setattr(Lease, step, killing)
    result = stockade.run(["sh", "-c", "echo ran"], **options(kind))
    assert (result.outcome, result.returncode) == ("runner_failed", 125)
    assert part in result.reason
    # Once let go, it may have printed something before its network was found to be gone.
    assert result.started or result.stdout == b""
    monkeypatch.undo()
    watch_end(watch, place)


@pytest.mark.parametrize("kind", KINDS)
def test_error_between_start_and_ready(place, watch, monkeypatch, kind):
    from stockade.sandbox import conduct

    def fail(*_arguments, **_options):
        watch.one("holder")
        raise ZeroDivisionError

    assert is_fine(kind)
    descriptors = open_descriptors()
    monkeypatch.setattr(conduct, "prepare", fail)
    with pytest.raises(ZeroDivisionError):
        stockade.run(["true"], **options(kind))
    monkeypatch.undo()
    wait_for(lambda: open_descriptors() <= descriptors, "end of the service")
    wait_for(lambda: not watch.holders(), "end of the holder")
    assert is_fine(kind)
    watch_end(watch, place)


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("step", ["wait_rules", "wait_attached", "finish"])
def test_interrupt_in_each_step(place, watch, monkeypatch, kind, step):
    def interrupt(_lease, *_until):
        raise KeyboardInterrupt

    assert is_fine(kind)
    descriptors, threads = open_descriptors(), threading.active_count()
    monkeypatch.setattr(Lease, step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        stockade.run(["true"], **options(kind))
    monkeypatch.undo()
    # Fewer, where a service that a run before left behind was still ending when they were counted.
    wait_for(
        lambda: open_descriptors() <= descriptors and threading.active_count() <= threads, "end of the service"
    )
    watch_end(watch, place)


@pytest.mark.parametrize("kind", KINDS)
def test_run_that_times_out(place, watch, kind):
    result = stockade.run(["sleep", "60"], timeout=0.3, **options(kind))
    assert (result.outcome, result.returncode) == ("timed_out", 124)
    wait_for(lambda: not watch.holders() and not watch.connectors(), "end of the lease")
    watch_end(watch, place)


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("part", [None, "holder", "sleep"], ids=["at once", "lease made", "running"])
def test_awaited_run_that_is_cancelled(place, watch, kind, part):
    async def cancelled():
        task = asyncio.ensure_future(stockade.arun(["sleep", "60"], **options(kind)))
        await asyncio.sleep(0)
        if part is not None:
            await asyncio.to_thread(watch.one, part)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    wait_for(lambda: not watch.holders() and not watch.connectors(), "end of the lease")
    watch_end(watch, place)


# --- many ---------------------------------------------------------------------------------------------------------


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def zombies():
    return [process.pid for process in psutil.Process().children() if process.status() == psutil.STATUS_ZOMBIE]


def test_ten_at_once(place, watch):
    results = {}

    def one(number):
        kind = ("allow", "record")[number % 2]
        results[number] = stockade.run(["sh", "-c", f"ip link 2>&1; echo {number}; exit {number}"], **options(kind))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {number: (each.outcome, each.exit_code, each.stdout.split()[-1]) for number, each in results.items()}
    assert found == {number: ("exited", number, b"%d" % number) for number in range(10)}
    watch_end(watch, place)


def test_many_in_a_row(place, watch):
    assert all(map(is_fine, KINDS))
    keeper = psutil.Process(keeperlink._link.pid)
    settle = lambda: (time.sleep(0.02), len(watch.below()))[1]  # noqa: E731
    idle = wait_for(lambda: not watch.connectors() and not watch.holders() and settle(), "idle keeper")
    before = open_descriptors(), threading.active_count(), keeper.num_fds()
    dead = zombies()
    for number in range(ROW):
        assert is_fine(("allow", "record")[number % 2]), number
    wait_for(lambda: not watch.connectors() and not watch.holders(), "end of the last lease")
    wait_for(
        lambda: open_descriptors() <= before[0] and threading.active_count() <= before[1], "end of the services"
    )
    wait_for(lambda: keeper.num_fds() <= before[2] + 2 * 3 and len(watch.below()) <= idle + 3, "idle keeper")
    assert zombies() == dead
    watch_end(watch, place)
