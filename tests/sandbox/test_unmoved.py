"""Whether a way stayed the same: whose renames count, and what is seen of them."""

from __future__ import annotations

import os
import stat
import time

import pytest

from stockade.sandbox import unmoved

OWN, OTHER, ROOT = 1000, 1001, 0


def status(uid: int, mode: int) -> os.stat_result:
    return os.stat_result((stat.S_IFDIR | mode, 1, 1, 2, uid, uid, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("parent", "child", "exposed"),
    [
        (status(OWN, 0o755), OWN, False),
        (status(ROOT, 0o755), OTHER, False),
        (status(OTHER, 0o755), OWN, True),
        (status(OTHER, 0o1777), OWN, True),
        (status(OWN, 0o775), OWN, True),
        (status(OWN, 0o757), OWN, True),
        (status(ROOT, 0o1777), OWN, False),
        (status(ROOT, 0o1777), ROOT, False),
        (status(ROOT, 0o1777), OTHER, True),
    ],
)
def test_who_may_rename_it(parent, child, exposed):
    assert unmoved.exposed(parent, status(child, 0o755), OWN) is exposed


@pytest.fixture
def way(tmp_path):
    """A directory, below one in which others may rename."""
    (tmp_path / "open/inner/ws").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    return tmp_path / "open/inner/ws"


def noted(path) -> tuple[unmoved.Step, ...]:
    return tuple(step for step in unmoved.note(str(path)) if step.path.startswith(str(path.parent.parent)))


def test_only_what_others_may_rename_is_noted(way):
    assert [step.path for step in noted(way)] == [str(way.parent)]


@pytest.mark.parametrize("back", [False, True])
def test_a_rename_is_seen_even_if_it_was_taken_back(way, back):
    steps = noted(way)
    assert unmoved.moved(steps) == ""
    os.rename(way.parent, way.parent.parent / "aside")
    if back:
        os.rename(way.parent.parent / "aside", way.parent)
    assert unmoved.moved(steps) == str(way.parent)


def test_what_others_do_beside_it_is_none(way):
    steps = noted(way)
    (way.parent.parent / "beside").mkdir()
    (way / "below").mkdir()
    assert unmoved.moved(steps) == ""


def test_what_is_changed_all_the_time_is_never_the_same(way, monkeypatch):
    """Two changes in one tick of the clock would have the same time."""
    monkeypatch.setattr(unmoved.time, "sleep", lambda _seconds: os.chmod(way.parent, 0o755))
    os.chmod(way.parent, 0o700)
    assert time.time_ns() - way.parent.stat().st_ctime_ns < 1e9
    monkeypatch.setattr(unmoved, "FRESH", 60.0)
    assert unmoved.moved(noted(way)) == str(way.parent)


def test_a_box_that_has_ended_is_not_waited_for():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    with pytest.raises(ProcessLookupError):
        unmoved.wait_mounted(pid, "/nowhere")


def test_one_that_has_none_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(unmoved, "PATIENCE", 0.01)
    assert not unmoved.wait_mounted(os.getpid(), "/nowhere")
