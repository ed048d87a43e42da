"""What of the host is covered, and what is left alone because the box's user can't come to it or it is gone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import stockade
from stockade.sandbox import globs
from stockade.sandbox.mounts import BIND_RO, SYMLINK, Mount, host_path
from stockade.sandbox.order import passable
from stockade.sandbox.survey import NOBODY, Identity, in_reach, listening_sockets, places_to_look

STRANGER = Identity(NOBODY, NOBODY, (NOBODY, NOBODY), real_root=True, kept_root=False)
CALLER = Identity(1000, 1000, None, real_root=False, kept_root=False)


# --- where patterns lead ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "base", "rest"),
    [
        ("/etc/app/*.key", "/etc/app", "*.key"),
        ("/etc/app/key", "/etc/app", "key"),
        ("/etc", "/", "etc"),
        ("/a/**/b/c", "/a", "**/b/c"),
        ("/a/b/", "/a", "b/"),
        ("/a/./[b]/c", "/a", "[b]/c"),
        ("/a\\*/c", "/", "a\\*/c"),
    ],
)
def test_an_absolute_pattern_is_anchored(pattern, base, rest):
    assert globs.anchor(pattern) == (base, rest)


def test_relative_patterns_are_for_every_grant_and_absolute_ones_for_their_own_place():
    patterns = ("**/.env*", "/etc/app/*.key", "~/.aws/*", "/etc/app/cert")
    assert places_to_look(patterns, ("/srv/a", "/srv/b"), "/home/ann") == [
        ("/srv/a", ("**/.env*",)),
        ("/srv/b", ("**/.env*",)),
        ("/etc/app", ("*.key", "cert")),
        ("/home/ann/.aws", ("*",)),
    ]


def test_a_grant_inside_of_another_is_searched_for_what_is_meant_at_its_top():
    found = places_to_look(("**/.env*", "key", "sub/*.pem"), ("/srv",), "/home/ann", ("/srv/a/work",))
    assert found == [("/srv", ("**/.env*", "key", "sub/*.pem")), ("/srv/a/work", ("key", "sub/*.pem"))]
    assert places_to_look(("**/.env*",), ("/srv",), "/home/ann", ("/srv/a/work",)) == [("/srv", ("**/.env*",))]


# --- what the box's user can come to ----------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    """``open`` and ``shut``, each with a file, in a directory that the whole path to is open to others."""
    for name, mode in (("open", 0o755), ("shut", 0o700)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
        (tmp_path / name).chmod(mode)
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(("identity", "shut"), [(STRANGER, False), (CALLER, True)])
def test_a_mask_is_only_wanted_where_the_user_can_come(tree, identity, shut):
    grant = [str(tree)]
    assert in_reach(f"{tree}/open/file", grant, identity)
    assert in_reach(f"{tree}/shut/file", grant, identity) is shut
    assert in_reach(f"{tree}/shut", grant, identity)


def test_what_is_above_a_grant_does_not_matter(tree):
    (tree / "shut/grant").mkdir(mode=0o755)
    assert in_reach(f"{tree}/shut/grant/file", [f"{tree}/shut/grant"], STRANGER)
    assert not in_reach(f"{tree}/shut/grant/file", [], STRANGER)


# --- sockets ----------------------------------------------------------------------------------------------


@pytest.fixture
def socket_path():
    """A short path in a place that every box shows: sockets have room for 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="stockade-s-") as top:
        os.chmod(top, 0o755)
        yield f"{top}/s"


def test_a_bound_socket_is_found_until_it_is_unlinked(socket_path):
    with socket.socket(socket.AF_UNIX) as ear:
        ear.bind(socket_path)
        assert socket_path in listening_sockets()
        os.unlink(socket_path)
        assert socket_path not in listening_sockets()


@pytest.mark.kernel
def test_a_socket_that_was_unlinked_does_not_stop_a_run(socket_path):
    top = os.path.dirname(socket_path)
    with socket.socket(socket.AF_UNIX) as ear:
        ear.bind(socket_path)
        ear.listen()
        os.chmod(socket_path, 0o777)
        connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        assert subprocess.run([sys.executable, "-c", connect, socket_path]).returncode == 0
        assert stockade.run(["python3", "-c", connect, socket_path], cwd=top).exit_code == 1
        os.unlink(socket_path)
        result = stockade.run(["ls", "-A"], cwd=top)
    assert (result.outcome, result.exit_code, result.stdout) == ("exited", 0, b"")


# --- hidden -----------------------------------------------------------------------------------------------


@pytest.mark.kernel
def test_patterns_lead_out_of_the_workspace(tmp_path):
    """The other directory is only in view because it is granted; the first two runs are the controls."""
    with tempfile.TemporaryDirectory(prefix="stockade-h-") as top:
        os.chmod(top, 0o755)
        work, other = Path(top, "work"), Path(top, "other")
        for path in (work, other):
            path.mkdir(mode=0o755)
            (path / "key").write_text("secret\n")
        policy = {"read": (str(other),), "hide": ()}
        assert seen(work, other, **policy) == ["secret", "secret"]
        assert seen(work, other, **{**policy, "hide": ("key",)}) == ["", ""]
        assert seen(work, other, **{**policy, "hide": (f"{other}/k*",)}) == ["secret", ""]
        assert (work / "key").read_text() == (other / "key").read_text() == "secret\n"


def seen(work, other, *, read, hide):
    policy = stockade.Policy(extends="read-only", filesystem={"read": read, "hide": hide})
    show = "for f in ./key $0/key; do cat $f 2>/dev/null || echo; done"
    return stockade.run(["sh", "-c", show, str(other)], cwd=work, policy=policy).stdout.decode().splitlines()


@pytest.mark.kernel
@pytest.mark.root
def test_root_can_work_beside_what_a_stranger_can_not_enter(tmp_path):
    """Hidden files, protected names that do not exist, and the workspace itself below directories of root's alone."""
    work = tmp_path / "work"
    (work / "shut").mkdir(parents=True)
    (work / "shut/.env").write_text("secret\n")
    (work / ".env").write_text("secret\n")
    (work / "shut").chmod(0o700)
    work.chmod(0o777)
    tmp_path.chmod(0o700)
    result = stockade.run(
        "id -u; cat .env shut/.env; touch mine; mkdir .claude", cwd=work, policy="workspace-write"
    )
    assert (result.outcome, result.enforcement, result.stdout) == ("exited", "full", f"{NOBODY}\n".encode())
    assert sorted(os.listdir(work)) == [".env", "mine", "shut"]


# --- the rest ---------------------------------------------------------------------------------------------


def test_links_of_the_host_can_be_looked_through():
    mounts = [Mount(BIND_RO, "/usr", "/usr"), Mount(SYMLINK, "/lib64", "usr/lib64")]
    assert [host_path(mounts, path) for path in ("/lib64", "/lib64/x", "/lib")] == ["/lib64", None, None]


def test_a_directory_is_no_stream(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(stockade.RequestError, match="is a directory"):
            stockade.run("true", stdin=fd)
    finally:
        os.close(fd)
    with pytest.raises(stockade.RequestError, match="bad file descriptor"):
        passable(fd)
    with open(os.devnull) as file:
        assert passable(file.fileno()) == file.fileno()


@pytest.mark.kernel
def test_a_refusal_is_in_the_file_that_was_asked_for(tmp_path):
    file = tmp_path / "result.json"
    command = [sys.executable, "-m", "stockade", "run", f"--json={file}", "--", "true"]
    no_more = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    wrapped = ["unshare", "--user", "--map-root-user", "sh", "-c", no_more, "sh", *command]
    done = subprocess.run(wrapped, cwd=tmp_path, capture_output=True, text=True)
    document = json.loads(file.read_text())
    assert (done.returncode, done.stdout) == (125, "")
    assert (document["outcome"], document["error"]["type"]) == ("runner_failed", "SandboxUnavailable")
    assert document["reason"] in done.stderr
