"""Stand-ins for protected names: shared, marked, removed by the last, and never taken for somebody's own."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading

import pytest

import stockade
from stockade.policies.places import MODE, is_stand_in, present
from stockade.sandbox import stubs
from stockade.sandbox.tree import HostTree


def name(tmp_path):
    return tmp_path / ".claude"


def hold(path):
    return stubs.hold(os.fsencode(path))


def test_it_is_made_empty_and_marked_and_goes_with_the_run(tmp_path):
    held = hold(name(tmp_path))
    assert os.listdir(name(tmp_path)) == []
    assert is_stand_in(name(tmp_path).lstat().st_mode)
    stubs.release(held)
    assert os.listdir(tmp_path) == []


def test_the_mark_does_not_depend_on_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        held = hold(name(tmp_path))
        assert stat.S_IMODE(name(tmp_path).lstat().st_mode) == MODE
        stubs.release(held)
    finally:
        os.umask(before)


def test_two_runs_share_it_and_the_last_removes_it(tmp_path):
    first, second, third = (hold(name(tmp_path)) for _ in range(3))
    inode = name(tmp_path).stat().st_ino
    stubs.release(second)
    assert name(tmp_path).stat().st_ino == inode
    stubs.release(first)
    assert name(tmp_path).stat().st_ino == inode
    stubs.release(third)
    assert not name(tmp_path).exists()


def test_after_the_last_a_new_one_is_made(tmp_path):
    stubs.release(hold(name(tmp_path)))
    held = hold(name(tmp_path))
    assert is_stand_in(name(tmp_path).stat().st_mode)
    stubs.release(held)


def test_somebodys_own_empty_directory_is_left_alone(tmp_path):
    name(tmp_path).mkdir(mode=0o750)
    before = name(tmp_path).stat()
    stubs.release(hold(name(tmp_path)))
    after = name(tmp_path).stat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)


def test_what_somebody_put_into_it_is_kept(tmp_path):
    held = hold(name(tmp_path))
    name(tmp_path).chmod(0o755)
    (name(tmp_path) / "settings.json").write_text("{}")
    name(tmp_path).chmod(MODE)
    stubs.release(held)
    name(tmp_path).chmod(0o755)
    assert (name(tmp_path) / "settings.json").read_text() == "{}"


def test_one_that_somebody_took_for_their_own_is_kept(tmp_path):
    held = hold(name(tmp_path))
    name(tmp_path).chmod(0o755)
    stubs.release(held)
    assert name(tmp_path).is_dir()


@pytest.mark.parametrize("kind", ["file", "link", "dangling", "fifo"])
def test_anything_else_in_its_place_is_an_error_and_stays(tmp_path, kind):
    if kind == "file":
        name(tmp_path).write_text("mine")
    elif kind == "fifo":
        os.mkfifo(name(tmp_path))
    else:
        (tmp_path / "target").mkdir() if kind == "link" else None
        name(tmp_path).symlink_to(tmp_path / "target")
    before = name(tmp_path).lstat()
    with pytest.raises(OSError, match="Not a directory"):
        hold(name(tmp_path))
    assert name(tmp_path).lstat().st_ino == before.st_ino
    assert len(os.listdir("/proc/self/fd")) < 200


def test_a_link_in_place_of_its_directory_is_not_followed(tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "work").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        hold(tmp_path / "work" / "x")
    assert os.listdir(tmp_path / "victim") == []


def test_a_directory_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        hold(tmp_path / "gone" / "x")


def test_no_descriptor_is_left(tmp_path):
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        stubs.release(hold(name(tmp_path)))
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "none" / "x"):
        with pytest.raises(OSError, match=r"."):
            hold(path)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_one_that_vanishes_between_making_and_locking_is_made_again(tmp_path, monkeypatch):
    """What a release of another run can do at any moment."""
    real = fcntl.flock
    undone = []

    def flock(fd, how):
        if how & fcntl.LOCK_SH and len(undone) < 3:
            undone.append(os.rmdir(name(tmp_path)))
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    held = hold(name(tmp_path))
    assert len(undone) == 3
    assert name(tmp_path).stat().st_ino == os.fstat(held.fd).st_ino
    stubs.release(held)
    assert os.listdir(tmp_path) == []


def test_a_late_release_leaves_alone_what_another_run_made_meanwhile(tmp_path, monkeypatch):
    """Removing it would take the mount off that name in the other run's box."""
    first, second = hold(name(tmp_path)), hold(name(tmp_path))
    real = fcntl.flock
    third = []

    def flock(fd, how):
        real(fd, how)
        if how == fcntl.LOCK_UN and fd == first.fd and not third:
            third.append(None)
            stubs.release(second)
            third.append(hold(name(tmp_path)))

    monkeypatch.setattr(fcntl, "flock", flock)
    stubs.release(first)
    assert name(tmp_path).stat().st_ino == os.fstat(third[1].fd).st_ino
    stubs.release(third[1])
    assert os.listdir(tmp_path) == []


def test_one_that_keeps_vanishing_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda fd, how: os.rmdir(name(tmp_path)))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="the stand-in keeps changing"):
        hold(name(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before


def test_many_threads_at_once(tmp_path):
    failures = []

    def work():
        try:
            for _ in range(40):
                held = hold(name(tmp_path))
                assert name(tmp_path).stat().st_ino == os.fstat(held.fd).st_ino
                stubs.release(held)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert os.listdir(tmp_path) == []


def test_many_processes_at_once(tmp_path):
    program = (
        "import os, sys; from stockade.sandbox import stubs\n"
        "for _ in range(150):\n"
        "    held = stubs.hold(os.fsencode(sys.argv[1]))\n"
        "    assert os.stat(sys.argv[1]).st_ino == os.fstat(held.fd).st_ino\n"
        "    stubs.release(held)\n"
    )
    command = [sys.executable, "-c", program, str(name(tmp_path))]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(4)]
    said = [process.communicate(timeout=60)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 4, said
    assert os.listdir(tmp_path) == []


# --- what others see --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "answer"),
    [
        (stat.S_IFDIR | MODE, True),
        (stat.S_IFREG | MODE, False),
        (stat.S_IFLNK | MODE, False),
        (stat.S_IFDIR | 0o755, False),
        (stat.S_IFDIR | 0o511, False),
    ],
)
def test_the_mark(mode, answer):
    assert is_stand_in(mode) is answer


def test_to_other_runs_there_is_nothing(tmp_path):
    held = hold(name(tmp_path))
    assert HostTree().node(str(name(tmp_path))) is None
    assert not present(str(name(tmp_path)))
    stubs.release(held)
    name(tmp_path).mkdir()
    assert HostTree().node(str(name(tmp_path))).kind == "dir"
    assert present(str(name(tmp_path)))
    name(tmp_path).rmdir()
    name(tmp_path).symlink_to("nowhere")
    assert present(str(name(tmp_path)))


@pytest.fixture
def project():
    """A workspace that any user can come to and write: a root caller's run drops to another one."""
    path = tempfile.mkdtemp(dir="/var/tmp", prefix="stockade-test-")
    os.chmod(path, 0o777)
    yield path
    shutil.rmtree(path)


@pytest.mark.kernel
def test_runs_in_one_writable_workspace_at_once_do_not_see_each_others(project):
    """Each of them holds the others back until all have started; only their own files are left and reported."""
    script = (
        "touch here-$0; i=0; while [ $i -lt 400 ] && [ $(ls | grep -c here-) -lt 3 ]; do sleep 0.05; i=$((i+1)); done;"
        " ls -A .git && (: > .git/config) 2>/dev/null && echo WROTE; ls | grep -c here-"
    )
    results = {}

    def work(number):
        command = ["sh", "-c", script, str(number)]
        results[number] = stockade.run(command, policy="workspace-write", cwd=project, timeout=30)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results.values():
        assert (result.outcome, result.exit_code, result.stdout) == ("exited", 0, b"3\n"), result
        assert {os.path.basename(file.path) for file in result.files_written} <= {"here-0", "here-1", "here-2"}
    assert sorted(os.listdir(project)) == ["here-0", "here-1", "here-2"]
