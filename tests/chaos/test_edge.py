"""The proxy of the edge is killed, stopped or starved, and so is who uses it: the outcome says so, and nothing is left.

Scenarios run in a world of their own (see tests/netns/rig.py), where the server of the edge notes what reaches it.
Moments are drawn from a seed that every failure names.
"""

from __future__ import annotations

import os
import random
import sys

import pytest

CHAOS = os.path.dirname(os.path.abspath(__file__))
NETNS = os.path.join(os.path.dirname(CHAOS), "netns")
sys.path[:0] = [CHAOS, NETNS]  # scenarios are loaded from this file alone

import amount  # noqa: E402
import rig  # noqa: E402
from edgechaos import CURL, PYTHON, SECRET, URL, World, find_proxy, until  # noqa: E402
from rig import FIRST  # noqa: E402

pytestmark = [pytest.mark.kernel, pytest.mark.soak]

BROKE = "the leased network broke: the edge's proxy ended during the run"
TWICE = ("LeaseFailed", "could not open the edge: its proxy is gone")
"""The one before it was just dying, and its successor was hit too."""
ONCE = f"{CURL} {URL}/v1/echo && echo done"
ROUNDS, FULL_ROUNDS = 14, 100


# --- the proxy, at any moment ------------------------------------------------------------------------------


def moments(world, python, seed, rounds):
    """Killed or stopped for a while, from before the run begins to after its end."""
    import signal

    here, lot = World(world, python), random.Random(f"edge {seed}")
    done = [here.run(ONCE)]
    for number in range(rounds):
        kill, delay = lot.random() < 0.7, lot.uniform(0.0, 0.25)
        strike = here.later(delay, signal.SIGKILL if kill else signal.SIGSTOP, lasts=lot.uniform(0.0, 0.3))
        done.append({**here.run(f"{ONCE} && sleep 0.1"), "fault": f"round {number}: kill {kill}, {delay:.3f} s"})
        strike.join()
        done[-1]["killed"] = kill and here.struck
    return {"rounds": done, "after": here.run(ONCE), "left": here.left()}


@pytest.mark.parametrize("identity", FIRST)
def test_the_proxy_is_killed_or_stopped_at_any_moment(identity: str) -> None:
    """A run that lost its proxy is never told as the program's own failure."""
    seed = amount.seed()
    found = rig.run(moments, identity, PYTHON, seed, FULL_ROUNDS if amount.FULL else ROUNDS)
    for each in [*found["rounds"], found["after"]]:
        context = f"{each} (seed {seed})"
        assert SECRET not in each["document"], context
        if each["outcome"] == "exited":
            assert (each["code"], each["got"]) == (0, [f"Bearer {SECRET}"]), context
        else:
            assert each.get("killed"), context
            assert (each["outcome"], each["reason"]) in (("runner_failed", BROKE), TWICE), context
    assert found["after"]["outcome"] == "exited"
    assert found["left"] == []


def middle(world, python):
    """While the server thinks, and while the program does something else."""
    import signal

    here = World(world, python)
    found = {}
    for name, command in (("asked", f"{CURL} {URL}/v1/hang; echo after"), ("idle", f"{ONCE}; sleep 30")):
        here.server.hang.clear()
        strike = here.when_asked(signal.SIGKILL)
        found[name] = here.run(command)
        strike.join()
        here.server.hang.set()
    here.server.hang.clear()
    strike = here.when_asked(signal.SIGSTOP, lasts=0.3, then=here.server.hang.set)
    found["stopped"] = here.run(f"{CURL} {URL}/v1/hang && echo done")
    strike.join()
    here.server.hang.clear()
    strike = here.when_asked(signal.SIGSTOP, then=here.server.hang.set)
    found["left stopped"] = here.run(f"curl --silent --max-time 1 {URL}/v1/hang; true")
    strike.join()
    found["replaced"] = here.run(ONCE, waits=1.0)
    return {**found, "left": here.left()}


@pytest.mark.parametrize("identity", FIRST)
def test_the_proxy_ends_in_the_middle_of_a_request(identity: str) -> None:
    found = rig.run(middle, identity, PYTHON)
    for name in ("asked", "idle"):
        assert (found[name]["outcome"], found[name]["reason"], found[name]["rule"]) == (
            "runner_failed", BROKE, "lease_lost"
        ), found[name]  # fmt: skip
        assert found[name]["started"]
        assert len(found[name]["got"]) == 1, "it had begun"
    assert (found["asked"]["requests"][0]["status"], bool(found["asked"]["requests"][0]["reason"])) == (None, True)
    assert (found["stopped"]["outcome"], found["stopped"]["stdout"]) == ("exited", "done\n"), found["stopped"]
    assert found["left stopped"]["outcome"] == "exited"
    assert any("may not be all" in note for note in found["left stopped"]["notes"]), found["left stopped"]
    assert (found["replaced"]["outcome"], found["replaced"]["code"]) == ("exited", 0), found["replaced"]
    assert found["left"] == []


# --- whoever uses it ---------------------------------------------------------------------------------------


def callers(world, python):
    """The supervisor is killed in a run; a process that has a proxy is copied."""
    import signal
    import subprocess

    here = World(world, python)
    found = {}
    script = f"import sys; sys.path[:0] = sys.argv[1:4]; import edgechaos; edgechaos.alone({world.identity!r})"
    words = [sys.executable, "-c", script, CHAOS, NETNS, os.path.dirname(os.path.dirname(NETNS)), world.place]
    caller = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert caller.stdout is not None
    assert until(lambda: here.server.got), "its request has come"
    theirs = find_proxy(caller.pid)
    assert theirs is not None
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    caller.stdout.close()
    until(lambda: not theirs.is_running() or theirs.status() == "zombie")
    found["orphan"] = theirs.is_running() and theirs.status() != "zombie"
    here.server.hang.set()

    found["before"] = here.run(ONCE)
    ours = find_proxy(os.getpid())
    read, write = os.pipe()
    said, say = os.pipe()
    copy = os.fork()
    if copy == 0:
        os.close(write)
        answer = here.run(ONCE)
        own = find_proxy(os.getpid())
        good = answer["outcome"] == "exited" and answer["code"] == 0 and own is not None and own.pid != ours.pid
        os.write(say, b"good" if good else repr(answer).encode())
        os.read(read, 1)  # until the other one has looked
        here.end()
        os._exit(0)
    found["copy"] = os.read(said, 4000).decode()
    found["beside"] = here.run(ONCE)
    found["same"] = ours.is_running()
    from stockade.sandbox.edge import proxy

    proxy.dismiss()
    until(lambda: not ours.is_running() or ours.status() == "zombie")
    found["kept alive by the copy"] = ours.is_running() and ours.status() != "zombie"
    os.close(write)
    os.waitpid(copy, 0)
    for each in (read, said, say):
        os.close(each)
    return {**found, "left": here.left()}


@pytest.mark.parametrize("identity", FIRST)
def test_no_proxy_outlives_its_process_and_none_is_shared_by_copies(identity: str) -> None:
    found = rig.run(callers, identity, PYTHON)
    assert not found["orphan"]
    assert found["before"]["code"] == 0
    assert found["copy"] == "good"
    assert found["beside"]["code"] == 0
    assert found["same"]
    assert not found["kept alive by the copy"]
    assert found["left"] == []


# --- shortages ---------------------------------------------------------------------------------------------


def shortages(world, python):
    """No descriptors when the session is opened, at every step of it; and a link that is full."""
    import resource
    import signal

    here = World(world, python)
    here.run(ONCE)
    open_now = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    starved = []
    for more in range(0, 40, 4):
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + more, hard))
        starved.append(here.run(ONCE))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    found = {"starved": starved, "fed": here.run(ONCE)}

    from stockade.netns.edge import link

    link.TAKE_SECONDS = 0.02
    strike = here.when_asked(signal.SIGSTOP, lasts=1.5)
    many = "for each in $(seq 250); do curl --silent --max-time 4 {url}/v1/x & done; wait; echo over"
    found["full"] = here.run(f"{ONCE}; {many.format(url=URL)}", limits={"processes": "none"})
    strike.join()
    found["emptied"] = here.run(ONCE)
    return {**found, "left": here.left()}


@pytest.mark.parametrize("identity", FIRST)
def test_shortages_are_told_and_over_when_they_are_over(identity: str) -> None:
    found = rig.run(shortages, identity, PYTHON)
    for each in found["starved"]:
        if each["outcome"] == "exited":
            assert (each["code"], len(each["got"])) == (0, 1), each
        else:
            assert "open files" in each["reason"], each
    assert any(each["outcome"] != "exited" for each in found["starved"]), "there was a shortage"
    assert found["fed"]["code"] == 0
    assert found["full"]["outcome"] == "exited"
    assert found["full"]["stdout"].endswith("over\n"), found["full"]
    assert found["emptied"]["code"] == 0
    assert found["left"] == []


# --- many --------------------------------------------------------------------------------------------------


def many(world, python, sequential, at_once):
    """One after the other in one process, then at once, each with a secret of its own."""
    here = World(world, python)
    for number in range(5):
        here.run_with(number)
    here.rest()
    before = here.kept()
    wrong = [each for number in range(sequential) if (each := here.run_with(number))]
    here.rest()
    between = here.kept()
    wrong += here.run_together(at_once)
    here.rest()
    return {"wrong": wrong, "before": before, "between": between, "after": here.kept(), "left": here.left()}


@pytest.mark.parametrize("identity", FIRST)
def test_many_runs_know_nothing_of_each_other_and_leave_nothing(identity: str, monkeypatch) -> None:
    monkeypatch.setattr(rig, "SECONDS", 300)
    found = rig.run(many, identity, PYTHON, *((300, 40) if amount.FULL else (30, 10)))
    assert found["wrong"] == []
    before = found["before"]
    for later in (found["between"], found["after"]):
        for name in ("descriptors", "threads", "sessions", "descriptors of the proxy"):
            assert later[name] <= before[name], (name, found)
        assert later["sessions"] == 0
        for name in ("memory", "memory of the proxy"):
            assert later[name] < before[name] + (24 << 20), (name, found)
    assert found["left"] == []
