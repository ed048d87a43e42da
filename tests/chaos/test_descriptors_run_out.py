"""Every limit of open files from none to enough: a run works, or what it was short of is said, and nothing is left open."""

from __future__ import annotations

import collections
import os
import re

import driver
import leftovers
import pytest
import verdicts

pytestmark = pytest.mark.kernel

SHORT = ["sh", "-c", "echo up; exit 7"]
MOST = 64
TOO_MANY = ("too many open files", "too many references")
"""The second of an ordinary user: descriptors on their way to another process are limited by the same number."""


def open_at_rest(driven):
    def rest():
        found = driven.ask(descriptors=True)
        return found["descriptors"] if found["threads"] == 1 else None

    links = leftovers.wait_for(rest, "end of the service thread")
    return collections.Counter(re.sub(r"\d+", "N", link) for link in links)


def text_of(answer):
    return (answer.get("message", "") + answer.get("reason", "") + answer.get("stderr", "")).lower()


@pytest.mark.parametrize("way", ["none", "allow", "record", "overlay"])
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_every_limit_of_open_files(watch, way, warm):
    """``cold``: modules are still to be loaded and the keeper to be started when there is no room."""
    with driver.driver(watch.where) as known:
        answer = known.run(way, SHORT)
        assert verdicts.ended_by_itself(answer), f"{answer}"
    with driver.driver(watch.where) as made:
        if warm:
            assert verdicts.ended_by_itself(made.run(way, SHORT))
        before = open_at_rest(made)
        found = collections.Counter()
        for most in range(sum(before.values()), MOST, 2 if warm else 7):
            made.ask(limit="NOFILE", to=most)
            answer = made.run(way, SHORT)
            found[answer.get("outcome", answer.get("raised"))] += 1
            assert not verdicts.wrong_with(answer), (most, answer)
            if not verdicts.ended_by_itself(answer):
                assert any(words in text_of(answer) for words in TOO_MANY), (most, answer)
            watch.idle(made.pid, f"(limit {most})")
        made.ask(limit="NOFILE", to=None)
        answer = made.run(way, SHORT)
        assert verdicts.ended_by_itself(answer), f"{answer}"
        if os.geteuid() == 0:  # those of an ordinary user are counted together with what its other processes send
            assert found["exited"], found
        assert found.total() > found["exited"], found
        left = open_at_rest(made)
        assert sum(left.values()) <= sum(before.values()) + (0 if warm else 1), (
            left,
            before,
        )  # the keeper's socket
