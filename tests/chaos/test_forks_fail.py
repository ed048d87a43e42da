"""The first, the second, ... the last fork of a run fails for want of memory: said as what it is, and nothing is left.

Each fork of supervisor, keeper, bubblewrap, connector and program is one of them, threads too.
"""

from __future__ import annotations

import collections
import errno
import os
import sys

import amount
import driver
import forkfault
import pytest
import verdicts

pytestmark = pytest.mark.kernel

SHORT = ["sh", "-c", "echo up; sleep 0.01; exit 7"]
BY_ITSELF = ("sh", "sleep")
MOST = 40
WORDS = (
    "can't start new thread",
    "cannot fork",
    "could not set up the sandbox",
    "it ended before the link was there",
    "too many processes",
    "no process could be started",
)


@pytest.fixture
def forks(watch):
    made = forkfault.Forks(f"{watch.where.top}/forks")
    yield made
    made.close()


def prefix(place):
    return [sys.executable, forkfault.__file__, f"{place.top}/forks"]


def text_of(answer):
    return (answer.get("message", "") + answer.get("reason", "") + answer.get("stderr", "")).lower()


def says_why(answer, code):
    """In its own words, or in those of whoever could not fork."""
    words = (os.strerror(code).lower(), *WORDS)
    return any(word in text_of(answer) for word in words)


def undisturbed(made, way):
    """The run after a fault; once more where the trial before it met a fork that was interrupted.

    A fork that waits to be looked at can be interrupted by a signal, as no other fork can: a shell then can't fork.
    """
    for _ in range(6):
        answer = made.run(way, SHORT)
        if "could not be tried" not in answer.get("message", ""):
            break
    return answer


@pytest.mark.parametrize(
    ("way", "code", "all_after"),
    [
        *((way, errno.ENOMEM, later) for way in ("none", "allow", "record", "overlay") for later in (False, True)),
        ("none", errno.EAGAIN, False),
    ],
)
def test_every_fork_fails_once(watch, forks, way, code, all_after):
    """``all``: that one and all that come after it, as where memory has really run out."""
    found, who = collections.Counter(), collections.Counter()
    with driver.driver(watch.where, prefix(watch.where)) as made:
        assert verdicts.ended_by_itself(undisturbed(made, way))
        for number in range(MOST):
            watch.idle(made.pid)
            forks.fail(range(number, MOST * 50 if all_after else number + 1), code)
            answer = made.run(way, SHORT)
            failed = list(forks.failed)
            forks.fail(range(0), code)
            who.update(failed)
            context = f"({os.strerror(code)} for fork {number} by {failed}) {answer}"
            if not failed:
                break
            found[answer.get("outcome", answer.get("raised"))] += 1
            assert not verdicts.wrong_with(answer), context
            if not verdicts.ended_by_itself(answer):
                by_program = failed[0] in BY_ITSELF and answer.get("outcome") == "exited"
                assert by_program or says_why(answer, code), context
            after = undisturbed(made, way)
            assert verdicts.ended_by_itself(after), f"{after} after {context}"
        else:
            raise AssertionError(f"a run has more than {MOST} forks: {who}")
        watch.idle(made.pid)
    assert number >= 2, who
    assert who


def able(made, order):
    """What is found without a fault; like ``undisturbed``, more than once."""
    for _ in range(6):
        answer = made.ask(**order)
        if answer["stored"]:
            break
    assert answer["stored"], answer
    return answer


REFUSALS = ("missing", "disabled", "too old")
"""What only a host can be found to be that was tried."""


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EAGAIN])
@pytest.mark.parametrize("all_after", [False, True])
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_host_that_could_not_be_tried_is_not_found_wanting(watch, forks, code, all_after, whole):
    """A fork fails while the host's capabilities are tried: what that says is not kept either."""
    order = {"probe": "whole" if whole else "basic"}
    spoilt = 0
    with driver.driver(watch.where, prefix(watch.where)) as made:
        usual = able(made, order)
        for number in amount.turns(4 * MOST, 4 * MOST, 10) if whole else range(MOST):
            forks.fail(range(number, MOST * 50 if all_after else number + 1), code)
            answer = made.ask(**order)
            failed = list(forks.failed)
            forks.fail(range(0), code)
            if not failed:
                break
            context = f"({os.strerror(code)} for fork {number} by {failed}) {answer}"
            if "raised" in answer:
                assert answer["raised"] == "StockadeError", context
                assert says_why(answer, code), context
                continue
            for name, (state, detail) in answer["found"].items():
                # Pasta, which is stopped by a signal in its fork: see ``undisturbed``.
                same = usual["found"][name][0] == state or name == "pasta"
                assert state not in REFUSALS or same, f"{name}: {detail} {context}"
                if state == "unknown" and not detail.startswith("not tried"):
                    spoilt += 1
                    assert says_why({"message": detail}, code), context
            assert answer["aside"] == usual["aside"], context
            whole_again = all(answer["found"][name][0] == "ok" for name in ("proc", "seccomp", "user-namespaces"))
            assert answer["stored"] == whole_again, context
        else:
            assert whole, "the trial never ended without a failed fork"
        assert number >= 2
        assert spoilt or not all_after
        able(made, order)
