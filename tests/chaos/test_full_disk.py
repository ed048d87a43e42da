"""No room: in the directory for temporary files, in the cache, in the workspace. Said as what it is, and nothing left."""

from __future__ import annotations

import errno
import os
import sys

import driver
import pytest
import verdicts

pytestmark = pytest.mark.kernel

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "smallworld.py")
SHORT = ["sh", "-c", "echo up; exit 7"]


def small(place, *names, size="full", inodes=0):
    """What to put before a driver: these directories of its place are small."""
    return [sys.executable, SCRIPT, *(f"{getattr(place, name)}:{size}:{inodes}" for name in names), "--"]


def inside(driven, path):
    """What is in a directory as the driver sees it, but for what filled it."""
    top = f"/proc/{driven.pid}/root{path}"
    return sorted(
        os.path.relpath(f"{at}/{name}", top)
        for at, _, files in os.walk(top)
        for name in files
        if "filler" not in at
    )


def is_full(driven, path):
    """The control: not one more file can be made there."""
    driven.ask(descriptors=True)  # it answers from its own world
    try:
        os.close(os.open(f"/proc/{driven.pid}/root{path}/more", os.O_CREAT | os.O_WRONLY))
    except OSError as error:
        return error.errno == errno.ENOSPC
    return False


def all_inside(driven, place):
    return [each for path in (place.work, place.temporary, place.home) for each in inside(driven, path)]


def warm(place, ways=("none",)):
    """Have the host known: the trial of a first run needs room of its own."""
    with driver.driver(place) as made:
        for way in ways:
            assert verdicts.ended_by_itself(made.run(way, SHORT))


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_a_full_cache_is_no_error(watch, known):
    """Nothing in it is needed: all is worked out again."""
    if known:
        warm(watch.where)
    with driver.driver(watch.where, small(watch.where, "cache")) as made:
        assert is_full(made, watch.where.cache)
        for _ in range(3):
            answer = made.run("none", SHORT)
            assert verdicts.ended_by_itself(answer), answer
        watch.idle(made.pid)
        assert inside(made, watch.where.cache) == []


def test_a_full_place_for_temporary_files_is_none_for_a_known_host(watch):
    warm(watch.where, ("none", "record"))
    with driver.driver(watch.where, small(watch.where, "temporary", "home")) as made:
        assert is_full(made, watch.where.temporary)
        for way in ("none", "record"):
            answer = made.run(way, SHORT)
            assert verdicts.ended_by_itself(answer), answer
        watch.idle(made.pid)
        assert all_inside(made, watch.where) == []


def test_a_host_that_can_not_be_tried_is_refused(watch):
    """Nothing was run, and the cause is said: not that the host could not confine."""
    with driver.driver(watch.where, small(watch.where, "temporary")) as made:
        answer = made.run("none", SHORT)
        if not verdicts.ended_by_itself(answer):  # tried in another place
            assert answer["raised"] in ("SandboxUnavailable", "StockadeError"), answer
            assert "no space left" in answer["message"].lower(), answer
        watch.idle(made.pid)


def test_a_full_workspace_has_no_room_for_stand_ins(watch):
    """A protected name that can't be covered is a run that is not started."""
    warm(watch.where)
    with driver.driver(watch.where, small(watch.where, "work")) as made:
        answer = made.run("none", SHORT)
        assert (answer["outcome"], answer["started"], answer["stdout"]) == ("runner_failed", False, ""), answer
        assert "no space left on device" in answer["reason"]
        control = made.run("none", SHORT, options={"policy": "read-only"})
        assert verdicts.ended_by_itself(control), control
        watch.idle(made.pid)
        assert all_inside(made, watch.where) == []


def test_a_program_meets_the_full_workspace_itself(watch):
    warm(watch.where)
    command = ["sh", "-c", "echo up; head -c 3000000 /dev/zero > big || exit 7"]
    with driver.driver(watch.where, small(watch.where, "work", size=1024, inodes=200)) as made:
        answer = made.run("none", command)
        assert verdicts.ended_by_itself(answer), answer
        assert "No space left on device" in answer["stderr"]
        watch.idle(made.pid)
        assert all_inside(made, watch.where) == ["big"]


@pytest.mark.root  # in a user namespace a bubblewrap of root's that lies outside of /usr belongs to nobody known
@pytest.mark.parametrize(
    "full", [("work",), ("cache",), ("cache", "temporary"), ("work", "cache", "temporary", "home")]
)
def test_an_overlay_finds_room_or_says_that_there_is_none(watch, full):
    warm(watch.where, ("none", "overlay"))
    with driver.driver(watch.where, small(watch.where, *full)) as made:
        assert all(is_full(made, getattr(watch.where, each)) for each in full)
        answer = made.run("overlay", ["sh", "-c", "echo up; echo new > made && exit 7"])
        assert not verdicts.wrong_with(answer), answer
        if not verdicts.ended_by_itself(answer):
            text = answer.get("message", "") + answer.get("reason", "") + answer.get("stderr", "")
            assert "no space left" in text.lower() or "could not make a place" in text, answer
        watch.idle(made.pid)
        assert all_inside(made, watch.where) == []
        assert inside(made, watch.where.cache) == [] or "cache" not in full
