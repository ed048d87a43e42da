"""Handlers that run detached: they decide nothing, are waited for or ended, and leave nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from boxes import PYTHON, own_state, processes_with, wait_until  # noqa: F401
from hookbox import event

from stockade.sandbox.hooks.model import HookSpec
from stockade.sandbox.hooks.runner import HookRunner, run_hooks

WAITING = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(60)"
TRUSTED = pytest.mark.parametrize("trusted", [True, False], ids=["direct", "confined"])


def spec(argv, **fields):
    return HookSpec(
        "claude", "PreToolUse", "pre_tool", "argv", tuple(argv), asynchronous=True, timeout=60.0, **fields
    )


def says(document):
    return [PYTHON, "-c", f"print({json.dumps(document)!r})"]


def runner(place, *specs, **options):
    return HookRunner(specs, **{"cwd": place.ws, "write": [place.ws], **options})


@TRUSTED
def test_a_detached_handler_decides_nothing_and_its_result_comes_later(place, trusted):
    records = []
    made = runner(place, spec(says({"decision": "block", "reason": "late"})), trusted=trusted, log=records.append)
    found = made.run("PreToolUse", event(cwd=place.ws))
    assert (found.decision, found.results, found.detached) == ("allow", (), ("PreToolUse:argv",))
    assert len(found.detached) == 1
    late = made.quiesce(30)
    assert [(each.outcome.verdict, each.detached) for each in late] == [("deny", True)]
    assert (made.finished(), made.quiesce(1)) == ((), ()), "a result is given once"
    assert [each["record"] for each in records] == ["invoked", "result"]
    assert records[1]["detached"]


@TRUSTED
def test_nobody_waits_for_it_and_quiesce_ends_it(place, trusted):
    marker = os.path.join(place.ws, f"begun-{os.getpid()}-{int(trusted)}")
    made = runner(place, spec([PYTHON, "-c", WAITING, marker]), trusted=trusted)
    assert made.run("PreToolUse", event(cwd=place.ws)).decision == "allow"
    wait_until(lambda: os.path.exists(marker), "it runs")
    assert made.detached.labels() != ()
    ended = made.quiesce(0)
    assert [each.cause for each in ended] == ["it was stopped"]
    assert made.detached.labels() == ()
    wait_until(lambda: not processes_with(marker), "it is gone")


def test_what_is_ended_before_it_began_does_not_run_on(place):
    marker = os.path.join(place.ws, f"never-{os.getpid()}")
    made = runner(
        place, *[spec([PYTHON, "-c", WAITING, marker], name=str(each)) for each in range(4)], trusted=True
    )
    made.run("PreToolUse", event(cwd=place.ws))
    made.quiesce(0)
    wait_until(lambda: not processes_with(marker), "all are gone")


def test_leaving_the_runner_ends_them(place):
    marker = os.path.join(place.ws, f"context-{os.getpid()}")
    with runner(place, spec([PYTHON, "-c", WAITING, marker]), trusted=True) as made:
        made.run("PreToolUse", event(cwd=place.ws))
        wait_until(lambda: os.path.exists(marker), "it runs")
    wait_until(lambda: not processes_with(marker), "it is gone")
    os.unlink(marker)
    run_hooks(
        [spec([PYTHON, "-c", WAITING, marker])], "PreToolUse", event(cwd=place.ws), trusted=True, cwd=place.ws
    )
    wait_until(lambda: not processes_with(marker), "it is gone")


@TRUSTED
def test_nothing_outlives_the_interpreter(place, trusted):
    """It ends without a word, with a handler still running and nobody asking for it."""
    marker = os.path.join(place.ws, f"exit-{os.getpid()}-{int(trusted)}")
    program = f"""
import os, time
from stockade.sandbox.hooks.runner import HookRunner
from stockade.sandbox.hooks.model import HookSpec
spec = HookSpec("claude", "PreToolUse", "pre_tool", "argv", {(PYTHON, "-c", WAITING, marker)!r}, asynchronous=True,
                timeout=60.0)
runner = HookRunner([spec], trusted={trusted}, cwd={place.ws!r}, write=[{place.ws!r}])
print(runner.run("PreToolUse", {event(cwd=place.ws)!r}).decision)
while not os.path.exists({marker!r}):
    time.sleep(0.005)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=place.env, cwd=place.ws
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "allow\n", "")
    assert os.path.exists(marker)
    wait_until(lambda: not processes_with(marker), "it is gone")


def test_a_later_event_may_find_it_still_running(place):
    marker = os.path.join(place.ws, f"twice-{os.getpid()}")
    made = runner(place, spec([PYTHON, "-c", WAITING, marker]), trusted=True)
    for _ in range(2):
        assert len(made.run("PreToolUse", event(cwd=place.ws)).detached) == 1
    wait_until(lambda: len(made.detached.labels()) == 2, "both run")
    assert len(made.quiesce(0)) == 2
    wait_until(lambda: not processes_with(marker), "both are gone")


def test_one_that_can_not_be_started_is_a_result_too(place):
    made = runner(place, spec(["/no/such/program"]), spec(["\0"]))
    assert made.run("PreToolUse", event(cwd=place.ws)).decision == "allow"
    late = made.quiesce(30)
    assert sorted(each.outcome.status for each in late) == ["not_run", "runner_failed"]


def test_once_is_once(place):
    made = HookRunner([spec(["true"]).replace(asynchronous=False, once=True)], cwd=place.ws, trusted=True)
    assert len(made.run("PreToolUse", event(cwd=place.ws)).results) == 1
    again = made.run("PreToolUse", event(cwd=place.ws))
    assert (again.results, again.skipped[0].why) == ((), "it runs once, and has run")
