"""The first, the second, ... the last fork of a run fails for want of memory: said as what it is, and nothing is left.

Each fork of supervisor, keeper, bubblewrap, connector and program is one of them, threads too.
"""

from __future__ import annotations

import collections
import errno
import os
import sys

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
    "no box could be started",
    "the trial did not show",
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
    for _ in range(4):
        answer = made.run(way, SHORT)
        if "trial" not in answer.get("message", ""):
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
