"""A part that is stopped (SIGSTOP) and never told to go on: the run ends with its time limit, and nothing is left.

What is stopped answers nothing and can't clear anything away, but it can be killed. Only the keeper is needed for
that; it is told to go on by whoever waits for it.
"""

from __future__ import annotations

import signal

import driver
import leftovers
import processtree
import pytest
import verdicts

pytestmark = pytest.mark.kernel

FOREVER = ["sh", "-c", "echo up; sleep 60; exit 7"]
LIMIT = 0.6
LEASED = [("allow", "slirp4netns"), ("pasta", "pasta")]
HOLDERS = [("record", "holder"), ("allow", "holder")]
COMMON = [(way, role) for way in ("none", "record") for role in ("keeper", "monitor", "init", "program")]


@pytest.fixture
def driven(watch):
    """A driver in a place that it knows."""
    with driver.driver(watch.where) as made:
        assert verdicts.ended_by_itself(made.run("none", ["sh", "-c", "echo up; exit 7"]))
        watch.idle(made.pid)
        yield made


def stopped(driven, role):
    """The one that was stopped, once it is."""
    victim = leftovers.wait_for(lambda: processtree.find(driven.pid, role), role)
    assert processtree.hit(victim, signal.SIGSTOP)
    leftovers.wait_for(lambda: processtree.state_of(victim.pid)[0] in "Tt", f"stopped {role}")
    return victim


def when_running(driven, way, role):
    """Stop a part of a run without end, and take the answer."""
    driven.send(way, FOREVER, options={"timeout": LIMIT})
    leftovers.wait_for(lambda: "program" in processtree.roles(driven.pid), "program")
    leftovers.wait_for(lambda: name_of_program(driven) in ("sh", "sleep"), "executed program")
    victim = stopped(driven, role)
    return victim, driven.answer(60.0)


def name_of_program(driven):
    program = processtree.find(driven.pid, "program")
    return program and processtree.name_of(program.pid)


@pytest.mark.parametrize(("way", "role"), [*COMMON, *LEASED])
def test_a_stopped_part_does_not_hold_a_run_beyond_its_limit(watch, driven, way, role):
    victim, answer = when_running(driven, way, role)
    assert verdicts.timed_out(answer), answer
    assert answer["started"]
    if role != "keeper":
        leftovers.wait_for(lambda: not processtree.is_there(victim), f"end of the stopped {role}")
    watch.idle(driven.pid)
    assert verdicts.ended_by_itself(driven.run(way, ["sh", "-c", "echo up; exit 7"]))


@pytest.mark.parametrize("way", ["none", "allow", "overlay"])
def test_a_keeper_that_was_stopped_before_the_run(watch, driven, way):
    """It takes the run when it goes on; by then its time is over."""
    assert verdicts.ended_by_itself(driven.run(way, ["sh", "-c", "echo up; exit 7"]))
    watch.idle(driven.pid)
    stopped(driven, "keeper")
    answer = driven.run(way, FOREVER, options={"timeout": LIMIT})
    assert verdicts.timed_out(answer), answer
    assert not answer["started"]
    assert answer["stdout"] == ""
    processtree.hit(processtree.find(driven.pid, "keeper"), signal.SIGCONT)
    watch.idle(driven.pid)


@pytest.mark.parametrize("way", ["none", "record"])
def test_a_child_that_waits_is_told_to_go_on(watch, driven, way):
    """The keeper serves nobody else while it waits for one to be executed."""
    leftovers.wait_for(lambda: processtree.find(driven.pid, "spare"), "spare")
    stopped(driven, "spare")
    assert verdicts.ended_by_itself(driven.run(way, ["sh", "-c", "echo up; exit 7"]))
    watch.idle(driven.pid)


@pytest.mark.parametrize("way", ["none", "allow"])
def test_a_stopped_keeper_clears_away_when_its_supervisor_is_killed(watch, way):
    made = driver.Driver(watch.where)
    try:
        assert verdicts.ended_by_itself(made.run(way, ["sh", "-c", "echo up; exit 7"]))
        made.send(way, FOREVER)
        leftovers.wait_for(lambda: "program" in processtree.roles(made.pid), "program")
        stopped(made, "keeper")
    finally:
        made.kill()
    watch.nothing_left()


def test_a_supervisor_that_was_stopped_goes_on_where_it_was(watch, driven):
    driven.send("none", ["sh", "-c", "echo up; exit 7"])
    supervisor = stopped(driven, "supervisor")
    assert processtree.hit(supervisor, signal.SIGCONT)
    assert verdicts.ended_by_itself(driven.answer())


@pytest.mark.parametrize(("way", "role"), HOLDERS)
def test_a_stopped_holder_is_given_up(watch, driven, way, role):
    """Its counters can't be read. A failure of the runner names it."""
    victim, answer = when_running(driven, way, role)
    named = answer["outcome"] == "runner_failed" and "holder" in answer["reason"]
    assert verdicts.timed_out(answer) or named, answer
    leftovers.wait_for(lambda: not processtree.is_there(victim), "end of the stopped holder")
    watch.idle(driven.pid)
