"""What an apply leaves in the workspace when it is killed, and what the next one makes of that."""

from __future__ import annotations

import os
import signal

import pytest
from test_changes_apply import Rig

from stockade.sandbox import apply as applying
from stockade.sandbox import applyplace, private

NAME = f"{applyplace.TEMPORARY}{'0123456789abcdef'}"


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path)
    yield made
    made.close()


def left(rig):
    return sorted(path.name for path in rig.ws.glob(f"{applyplace.TEMPORARY}*"))


def die(*_arguments, **_options):
    os.kill(os.getpid(), signal.SIGKILL)


def killed_in(rig, monkeypatch, owner, name):
    """Apply in a process that is killed when it gets to a function."""
    rig.write("a", "newer\n")
    rig.write("made/inner")
    changes = rig.end()
    pid = os.fork()
    if pid == 0:
        try:
            monkeypatch.setattr(owner, name, die)
            changes.apply()
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    assert len(left(rig)) == 1


def apply_again(rig):
    """Another run on what is there now."""
    rig.changes.close()
    del rig.root, rig.place
    rig.begin()
    rig.write("later")
    applied = rig.end().apply()
    assert [file.path for file in applied.files] == [str(rig.ws / "later")]


@pytest.mark.parametrize(
    ("owner", "name", "text"),
    [
        (applying.Moves, "commit", "old a\n"),  # all is built, nothing is moved
        (private, "empty", "newer\n"),  # all is in its place, and only ours is left
    ],
)
def test_what_nobody_needs_is_swept_by_the_next_apply(rig, monkeypatch, owner, name, text):
    killed_in(rig, monkeypatch, owner, name)
    assert (rig.ws / "a").read_text() == text
    apply_again(rig)
    assert left(rig) == []
    assert (rig.ws / "a").read_text() == text


def test_the_only_copy_of_a_file_stays(rig, monkeypatch):
    """Killed when the old file was moved away and the new one not there yet."""
    killed_in(rig, monkeypatch, applying.Moves, "put")
    assert not (rig.ws / "a").exists()
    apply_again(rig)
    [name] = left(rig)
    assert (rig.ws / name / "old0").read_text() == "old a\n"
    applyplace.sweep(rig.root, ())
    assert left(rig) == [name]
    os.rename(rig.ws / name, rig.ws / NAME)
    os.unlink(rig.ws / NAME / "old0")  # once somebody took it away, the rest is nothing
    applyplace.sweep(rig.root, ())
    assert left(rig) == []


@pytest.fixture
def work(tmp_path):
    """A directory as a workspace, and one beside it that nothing may happen to."""
    (tmp_path / "work").mkdir()
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/file").write_text("victim\n")
    yield tmp_path / "work"
    assert (tmp_path / "victim/file").read_text() == "victim\n"


def opened(work):
    """As ``Site`` has it."""
    return os.open(work, os.O_PATH | os.O_DIRECTORY)


def swept(work, spared=()):
    fd = opened(work)
    try:
        applyplace.sweep(fd, spared)
    finally:
        os.close(fd)


def stale(work, name=NAME, mode=0o700):
    (work / name).mkdir()
    (work / name / "new0").write_text("built\n")
    (work / name / "new1").symlink_to("../../victim")
    (work / name).chmod(mode)


def test_a_live_apply_is_left_alone(work):
    fd = opened(work)
    name, folder = applyplace.make(fd)
    (work / name / "new0").write_text("in use\n")
    swept(work)
    assert (work / name / "new0").read_text() == "in use\n"
    os.close(folder)
    swept(work)  # the control: nobody holds it now
    assert os.listdir(work) == []
    os.close(fd)


def test_a_stale_one_goes(work):
    """The control of those below; a link in it leads to the victim."""
    stale(work)
    swept(work)
    assert os.listdir(work) == []


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        (".stockade-mine", 0o700),
        (f"{NAME}0", 0o700),
        (f"x{NAME}", 0o700),
        (NAME, 0o755),
    ],
)
def test_what_is_not_surely_ours_stays(work, name, mode):
    stale(work, name, mode)
    swept(work)
    assert (work / name / "new0").read_text() == "built\n"


def test_what_an_operation_is_about_stays(work):
    stale(work)
    swept(work, {NAME})
    assert (work / NAME / "new0").read_text() == "built\n"


def test_links_and_files_of_that_name_are_not_followed_or_removed(work):
    (work / NAME).symlink_to("../victim")
    (work / f"{NAME}.done").write_text("a file\n")
    (work / NAME.replace("0", "1")).mkdir()
    (work / NAME.replace("0", "1") / "precious").write_text("not of ours\n")
    before = sorted(os.listdir(work))
    swept(work)
    assert sorted(os.listdir(work)) == before


def test_one_that_a_sweep_took_is_made_anew(work, monkeypatch):
    """A sweep between the making and the lock."""
    fd = opened(work)
    real, times = applyplace.hold, []

    def late(root, name, folder):
        times.append(name)
        if len(times) == 1:
            os.rmdir(name, dir_fd=root)
        return real(root, name, folder)

    monkeypatch.setattr(applyplace, "hold", late)
    name, folder = applyplace.make(fd)
    assert (len(times), os.listdir(work)) == (2, [name])
    os.close(folder)
    os.close(fd)


@pytest.mark.root
def test_one_of_another_user_stays(work):
    stale(work)
    os.chown(work / NAME, 65534, 65534)
    swept(work)
    assert (work / NAME / "new0").exists()
