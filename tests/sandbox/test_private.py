"""Private directories: closed to others, held, and removed whatever is in them and however deep."""

from __future__ import annotations

import fcntl
import os
import stat

import pytest

from stockade.sandbox import private


@pytest.fixture
def made(tmp_path):
    place = private.make(str(tmp_path))
    yield place
    os.close(place.fd)
    private.discard(place.path)


def fill(path: str) -> None:
    os.makedirs(f"{path}/a/b/c")
    for name in ("a/file", "a/b/file", "a/b/c/moved-1", "moved-1"):
        with open(f"{path}/{name}", "w") as file:
            file.write("x")
    os.mkdir(f"{path}/moved-2")
    os.mkdir(f"{path}/a/moved-3")
    os.mkfifo(f"{path}/a/pipe")


def test_nobody_else_can_enter_it(made):
    info = os.stat(made.path)
    assert stat.S_IMODE(info.st_mode) == 0o700
    assert info.st_uid == os.geteuid()


def test_everything_goes(made):
    fill(made.path)
    private.remove(made.path)
    assert not os.path.exists(made.path)


def test_closed_directories_go_too(made):
    fill(made.path)
    for name in ("a/b/c", "a/b", "a", "moved-2"):
        os.chmod(f"{made.path}/{name}", 0)
    private.remove(made.path)
    assert not os.path.exists(made.path)


def test_links_are_not_followed(made, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o500)
    (tmp_path / "file").write_text("kept")
    for number, target in enumerate((victim, tmp_path / "file", tmp_path, "/nowhere")):
        os.symlink(target, f"{made.path}/link{number}")
    private.remove(made.path)
    assert (tmp_path / "file").read_text() == "kept"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o500


def test_no_tree_is_too_deep(made):
    here = os.getcwd()
    os.chdir(made.path)
    try:
        for _ in range(300):
            os.mkdir("deep" * 50)
            os.chdir("deep" * 50)
            open("file", "w").close()
    finally:
        os.chdir(here)
    private.remove(made.path)
    assert not os.path.exists(made.path)


def test_a_sweep_takes_what_nobody_holds(tmp_path):
    held, left = private.make(str(tmp_path)), private.make(str(tmp_path))
    fill(left.path)
    (tmp_path / "other").mkdir()
    os.close(left.fd)
    private.sweep(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted(["other", os.path.basename(held.path)])
    os.close(held.fd)
    private.sweep(str(tmp_path))
    assert os.listdir(tmp_path) == ["other"]
    private.sweep(str(tmp_path / "nowhere"))


def test_a_sweep_does_not_follow_a_link_with_such_a_name(tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/file").touch()
    os.symlink(tmp_path / "victim", tmp_path / f"{private.PREFIX}0123456789abcdef")
    private.sweep(str(tmp_path))
    assert (tmp_path / "victim/file").exists()


def test_a_directory_that_a_sweep_is_looking_at_is_not_handed_out(tmp_path, monkeypatch):
    first = []
    real = os.mkdir

    def mkdir(path, *rest, **options):
        real(path, *rest, **options)
        if not first:
            first.append(os.open(path, os.O_RDONLY))
            fcntl.flock(first[0], fcntl.LOCK_EX)

    monkeypatch.setattr(os, "mkdir", mkdir)
    place = private.make(str(tmp_path))
    assert len(os.listdir(tmp_path)) == 2
    assert not os.path.samestat(os.fstat(first[0]), os.stat(place.path))
    for fd in (*first, place.fd):
        os.close(fd)


def test_what_is_gone_can_be_discarded(tmp_path):
    private.discard(str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError):
        private.remove(str(tmp_path / "nothing"))
