"""What a confined program can write, see and leave behind on the host: the view, hidden names, links."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import stat
import subprocess

import pytest
from boxes import (
    PYTHON,
    REFUSED,
    ROOT,
    cli,
    identity,
    make_place,
    open_to_all,
    own_state,
    place,
    policy,
    probe,
    tree_of,
)

import stockade

__all__ = ["identity", "own_state", "place"]
pytestmark = pytest.mark.kernel


# --- where writes go --------------------------------------------------------------------------------------


def test_only_the_workspace_and_private_places_can_be_written(place, tmp_path, identity):
    """A write lands in the workspace or in a directory of the box's own, or it is refused; the host keeps the rest."""
    beside = make_place(tmp_path, "beside")
    (beside / "file").write_text("before")
    open_to_all(beside)
    names = ["/tmp", "/var/tmp", "/dev/shm", "/run", os.path.realpath(os.environ["HOME"])]
    unique = f"stockade-test-{os.getpid()}"
    found = probe(
        """
        place, beside, unique, *private = sys.argv[1:]
        found["workspace"] = tried(written, f"{place}/made")
        found["private"] = [tried(written, f"{top}/{unique}") for top in private]
        found["beside"] = tried(written, f"{beside}/file")
        found["system"] = {top: tried(written, f"{top}/{unique}")
                           for top in ("", "/usr", "/etc", "/usr/bin", "/dev", "/var", "/sys", "/proc", "/proc/sys")}
        found["existing"] = tried(open, "/etc/passwd", "a")
        """,
        place,
        beside,
        unique,
        *names,
        cwd=place,
        policy=policy(identity),
    )
    assert found["workspace"] == "ok"
    assert found["private"] == ["ok"] * len(names)
    assert found["beside"] in {"ENOENT", *REFUSED}
    assert set(found["system"].values()) <= {"ENOENT", *REFUSED}
    assert found["existing"] in REFUSED
    assert (place / "made").read_text() == "evil\n"
    assert (beside / "file").read_text() == "before"
    assert not [top for top in (*names, "/", "/usr", "/etc", "/var") if os.path.lexists(f"{top}/{unique}")]


def test_a_read_only_workspace_is_read_only(place, identity, host_snapshot):
    """Reading works, every way of changing something is refused, and nothing changed."""
    (place / "file").write_text("text")
    (place / "sub").mkdir()
    open_to_all(place)
    before = host_snapshot(place)
    found = probe(
        """
        found["read"] = read("file")
        found["refused"] = [tried(written, "file"), tried(written, "new"), tried(os.unlink, "file"),
                            tried(os.rename, "file", "other"), tried(os.mkdir, "d"), tried(os.rmdir, "sub"),
                            tried(os.symlink, "x", "y"), tried(os.link, "file", "hard"), tried(os.chmod, "file", 0o777),
                            tried(os.utime, "file"), tried(os.truncate, "file", 0), tried(os.mkfifo, "pipe")]
        """,
        cwd=place,
        policy=policy(identity, "read-only"),
    )
    assert found["read"] == "text"
    assert set(found["refused"]) == {"EROFS"}
    assert host_snapshot(place) == before


def test_grants_hold_in_whatever_order_they_are_listed(place):
    """A writable directory inside of a read-only one, and the other way about, for every order of the entries."""
    for name in ("a", "a/b", "a/b/c", "d"):
        (place / name).mkdir()
    open_to_all(place)
    body = """
    found.update({name: tried(written, f"{name}/made") for name in ("a", "a/b", "a/b/c", "d")})
    for name in found:
        if found[name] == "ok": os.unlink(f"{name}/made")
    """
    for writes, reads in (
        *((order, ["a/b"]) for order in itertools.permutations(["a", "a/b/c", "d"])),
        *((["d", "a/b/c", "a"], list(order)) for order in itertools.permutations(["a/b", "."])),
    ):
        files = {"write": list(writes), "read": list(reads)}
        found = probe(body, cwd=place, policy=policy(extends="read-only", filesystem=files))
        assert found == {"a": "ok", "a/b": "EROFS", "a/b/c": "ok", "d": "ok"}, files


@pytest.mark.parametrize("path", ["/", "/proc", "/proc/self/root", "~", "..", "/etc", "/usr", "/home"])
def test_a_grant_that_would_give_away_the_host_is_refused(path, tmp_path, monkeypatch):
    """The whole host, its processes, the home and the system can't be granted for writing by one entry."""
    home = make_place(tmp_path, "home")
    work = make_place(home, "work")
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(stockade.StockadeError, match="could not"):
        stockade.run(["true"], cwd=work, write=[path])
    assert stockade.run(["true"], cwd=work, write=["."]).ok


def test_the_root_directory_is_no_workspace():
    """``/`` would grant everything."""
    for preset in ("read-only", "workspace-write"):
        with pytest.raises(stockade.RequestError, match="/"):
            stockade.run(["true"], cwd="/", policy=preset)


# --- hidden names -----------------------------------------------------------------------------------------


def secrets(place: pathlib.Path) -> None:
    """A project with secrets in every shape that the default patterns know."""
    (place / "deep/er").mkdir(parents=True)
    (place / ".env").write_text("SECRET")
    (place / "deep/er/.env.local").write_text("SECRET")
    (place / "real.txt").write_text("SECRET")
    (place / "deep/.env").symlink_to("../real.txt")
    (place / "deep/.env.absolute").symlink_to(place / "deep/target")
    (place / "deep/target").write_text("SECRET")
    (place / ".env.d").mkdir()
    (place / ".env.d/key").write_text("SECRET")
    (place / "store").mkdir()
    (place / "store/key").write_text("SECRET")
    (place / "deep/er/.env.store").symlink_to("../../store")
    (place / ".env.dangling").symlink_to("ghost")
    (place / "deep/.env.far").symlink_to("/nonexistent/ghost")
    (place / ".env.circle").symlink_to(".env.circle")
    (place / ".env.long").symlink_to("deep/../deep/er/../../.env")
    (place / "plain").write_text("plain")


@pytest.mark.parametrize("extends", ["read-only", "workspace-write"])
def test_hidden_files_can_not_be_read_by_any_name(place, identity, extends, host_snapshot):
    """Files, directories and what links lead to are covered; a dangling link brings nothing into being."""
    secrets(place)
    open_to_all(place)
    before = tree_of(place)
    found = probe(
        """
        for folder, folders, files in os.walk("."):
            for name in (*folders, *files):
                path = f"{folder}/{name}"
                try:
                    content = os.listdir(path) if os.path.isdir(path) else read(path)
                except OSError as error:
                    content = errno.errorcode[error.errno]
                found[path[2:]] = content
        """,
        cwd=place,
        policy=policy(
            identity, extends, filesystem={"protect": [".claude"]} if extends == "workspace-write" else {}
        ),
    )
    assert not [name for name, content in found.items() if content == "SECRET"]
    assert not [name for name, content in found.items() if "key" in content]
    assert found["plain"] == "plain"
    assert found[".env.d"] == found["store"] == []
    assert tree_of(place) == before


def test_a_hidden_name_can_not_be_uncovered_from_inside(place, identity):
    """Moving, linking, replacing or removing it, or the directories above, shows nothing and changes nothing of it."""
    (place / "a/b").mkdir(parents=True)
    (place / "a/b/.env").write_text("SECRET")
    (place / "a/.env.d").mkdir()
    (place / "a/.env.d/key").write_text("SECRET")
    open_to_all(place)
    found = probe(
        """
        file, folder = "a/b/.env", "a/.env.d"
        found["refused"] = [tried(os.rename, file, "x"), tried(os.unlink, file), tried(os.link, file, "hard"),
                            tried(os.rename, folder, "y"), tried(os.rmdir, folder), tried(written, file),
                            tried(written, folder + "/new"), tried(os.mkdir, folder + "/new"),
                            tried(os.chmod, folder, 0o777), tried(os.symlink, "x", file)]
        os.mkdir("c")
        found["moved"] = tried(os.rename, "a", "c/a")
        found["seen"] = [tried(read, "c/a/b/.env"), os.listdir("c/a/.env.d")]
        found["back"] = tried(os.rename, "c/a", "a")
        """,
        cwd=place,
        policy=policy(identity, filesystem={"protect": []}),
    )
    assert set(found["refused"]) <= {*REFUSED, "EEXIST"}
    assert (found["moved"], found["back"]) == ("ok", "ok")
    assert found["seen"][0] != "ok"
    assert found["seen"][1] == []
    assert (place / "a/b/.env").read_text() == (place / "a/.env.d/key").read_text() == "SECRET"
    assert sorted(os.listdir(place)) == ["a", "c"]


def test_a_hidden_directory_is_empty_and_read_only(place, identity):
    """A write into it fails; one that went through and was gone later would be a lie."""
    (place / "vault").mkdir()
    (place / "vault/key").write_text("SECRET")
    open_to_all(place)
    found = probe(
        """
        found["content"] = os.listdir("vault")
        found["write"] = tried(written, "vault/new")
        found["control"] = tried(written, "new")
        """,
        cwd=place,
        policy=policy(identity, filesystem={"hide": ["vault"]}),
    )
    assert found == {"content": [], "write": "EROFS", "control": "ok"}
    assert os.listdir(place / "vault") == ["key"]


@pytest.mark.user
def test_what_can_not_be_listed_is_hidden_as_a_whole(place):
    """Nobody can say what a directory without the right to list it holds; its owner could open it up inside."""
    (place / "closed").mkdir()
    (place / "closed/.env").write_text("SECRET")
    (place / "closed").chmod(0o311)
    try:
        body = 'found["mode"] = tried(os.chmod, "closed", 0o755); found["read"] = tried(read, "closed/.env")'
        found = probe(body, cwd=place, policy=policy())
        assert found["read"] == "ENOENT"
        assert stat.S_IMODE((place / "closed").stat().st_mode) == 0o311
        shown = probe(body, cwd=place, policy=policy(filesystem={"hide": []}))
        assert shown == {"mode": "ok", "read": "ok"}
    finally:
        (place / "closed").chmod(0o755)


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_any_number_of_names_can_be_hidden(place, count):
    """Each cover is one of its own; the start does not depend on how many there are."""
    for number in range(count):
        (place / f".env.{number}").write_text("SECRET")
    (place / "plain").write_text("plain")
    open_to_all(place)
    body = 'found.update({name: tried(read, name) for name in os.listdir(".")})'
    found = probe(body, cwd=place, policy=policy(extends="read-only"))
    assert found.pop("plain") == "ok"
    assert len(found) == count
    assert "ok" not in found.values()


def test_a_cover_fits_what_it_covers(place):
    """A pattern made for files also finds a directory, a link to one, a socket's or a pipe's name: the start works."""
    (place / "hooks-real").mkdir()
    (place / "hooks-real/x").write_text("SECRET")
    (place / "hooks").symlink_to("hooks-real")
    (place / "folder").mkdir()
    os.mkfifo(place / "pipe")
    open_to_all(place)
    found = probe(
        'found["hooks"] = os.listdir("hooks"); found["folder"] = os.listdir("folder"); found["pipe"] = tried(open, "pipe")',
        cwd=place,
        policy=policy(extends="read-only", filesystem={"hide": ["hooks", "folder", "pipe"]}),
    )
    assert found["hooks"] == found["folder"] == []
    assert found["pipe"] in REFUSED


# --- links that lead elsewhere ----------------------------------------------------------------------------


def test_a_link_that_took_the_place_of_a_grant_is_not_followed(place, tmp_path):
    """A relative entry lies where programs may write: one that became a link is refused, and said."""
    victim = make_place(tmp_path, "victim")
    (place / "data").mkdir(mode=0o777)
    open_to_all(place)
    given = policy(extends="read-only", filesystem={"write": ["data"]})
    file = tmp_path / "policy.toml"
    file.write_text('extends = "read-only"\n[filesystem]\nwrite = ["data"]\n')
    assert stockade.run(["touch", "data/made"], cwd=place, policy=file).ok
    (place / "data/made").unlink()
    (place / "data").rmdir()
    (place / "data").symlink_to(victim)
    for each in (given, file):
        with pytest.raises(stockade.PolicyError, match="symlink"):
            stockade.run(["touch", str(victim / "made")], cwd=place, policy=each)
    assert os.listdir(victim) == []


EXCHANGE = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
one, two, parent = os.fsencode(sys.argv[1]), os.fsencode(sys.argv[2]), os.getppid()
while os.getppid() == parent:
    for _turn in range(100):
        assert libc.renameat2(-100, one, -100, two, 2) == 0
"""


@pytest.mark.parametrize("depth", ["the grant itself", "a directory above it"])
def test_a_grant_that_turns_into_a_link_during_the_start_is_never_followed(place, tmp_path, depth):
    """Somebody exchanges it for a link as fast as they can: a start fails, or shows what was checked."""
    victim = make_place(tmp_path, "victim")
    name = "data" if depth == "the grant itself" else "data/inner"
    for top in (place, victim):
        (top / name if top == place else top / "inner").mkdir(parents=True)
    open_to_all(place, victim)
    (place / "other").symlink_to(victim)
    file = tmp_path / "policy.toml"
    file.write_text(f'extends = "read-only"\n[filesystem]\nwrite = ["{name}"]\nprotect = []\n')
    command = f"echo evil > {victim}/evil; echo evil > {victim}/inner/evil; echo evil > {name}/evil"
    exchange = [PYTHON, "-I", "-S", "-c", EXCHANGE, str(place / "data"), str(place / "other")]
    with subprocess.Popen(exchange) as flipping:
        try:
            for _start in range(40):
                with contextlib.suppress(stockade.StockadeError):
                    result = stockade.run(command, cwd=place, policy=file, timeout=30)
                    assert result.outcome in ("exited", "runner_failed")
                assert sorted(path.name for path in victim.rglob("*")) == ["inner"]
        finally:
            flipping.kill()
    if (place / "data").is_symlink():
        (place / "data").unlink()
        (place / "other").rename(place / "data")
    assert stockade.run(["touch", f"{name}/good"], cwd=place, policy=file).ok
    assert (place / name / "good").exists()


def test_a_link_typed_by_the_user_is_followed_and_said(place, tmp_path):
    """What somebody names for this very run is meant; where it leads stands in the result."""
    target = make_place(tmp_path, "target")
    (place / "data").symlink_to(target)
    result = stockade.run(["touch", str(target / "made")], cwd=place, write=["data"])
    assert result.ok
    assert any(str(target) in note for note in result.notes)
    assert os.listdir(target) == ["made"]


@pytest.mark.parametrize("shape", ["file", "folder"])
def test_our_own_documents_do_not_follow_what_a_program_left(place, tmp_path, shape):
    """``--json=FILE`` below the workspace: a link from an earlier run must not say where it is written."""
    victim = make_place(tmp_path, "victim")
    (victim / "document.json").write_text("before")
    leads = victim if shape == "folder" else victim / "document.json"
    name = "out" if shape == "folder" else "document.json"
    planted = stockade.run(["ln", "-s", str(leads), name], cwd=place, policy=policy())
    assert planted.ok
    path = "out/document.json" if shape == "folder" else name
    done = cli("run", f"--json={path}", "--", "true", cwd=place)
    assert done.returncode == 125
    assert "could not write" in done.stderr
    assert (victim / "document.json").read_text() == "before"
    assert cli("run", "--json=good.json", "--", "true", cwd=place).returncode == 0
    assert (place / "good.json").read_text().startswith("{")


def test_paths_through_proc_do_not_lead_out(place, tmp_path, identity):
    """/proc/PID/root, cwd and fd of everything inside show the box, however far up they are followed."""
    beside = make_place(tmp_path, "beside")
    (beside / "secret").write_text("SECRET")
    open_to_all(beside)
    found = probe(
        """
        beside = sys.argv[1]
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
        found["pids"] = len(pids)
        ways = [f"/proc/{pid}/{way}" for pid in pids for way in ("root", "cwd", "cwd" + "/.." * 20, "root" + "/.." * 5)]
        found["ways"] = {way: tried(read, f"{way}{beside}/secret") for way in ways}
        found["same"] = [os.listdir(f"/proc/{pid}/root") == os.listdir("/") for pid in pids]
        fds = [f"/proc/{pid}/fd/{fd}" for pid in pids for fd in os.listdir(f"/proc/{pid}/fd")]
        found["fds"] = {fd: os.readlink(fd) for fd in fds if os.path.lexists(fd)}
        """,
        beside,
        cwd=place,
        policy=policy(identity),
    )
    assert found["pids"] == 2
    assert set(found["ways"].values()) == {"ENOENT"}
    assert all(found["same"])
    kinds = ("pipe:", "anon_inode:", "/dev/null", "/proc/")
    assert not {fd: path for fd, path in found["fds"].items() if not path.startswith(kinds)}


# --- odd things in a workspace ----------------------------------------------------------------------------


@pytest.mark.parametrize("extends", ["read-only", "workspace-write"])
def test_pipes_of_the_host_are_covered_and_hang_nothing(place, extends, host_snapshot):
    """A FIFO under any name that we look at ourselves neither blocks the start nor reaches into the box."""
    for name in ("pipe", ".env", ".envrc", ".stockade.toml.d", "sub"):
        os.mkfifo(place / name)
    open_to_all(place)
    before = host_snapshot(place)
    found = probe(
        """
        found["host"] = tried(os.open, "pipe", os.O_RDWR | os.O_NONBLOCK)
        os.mkfifo("/tmp/own")
        found["own"] = tried(os.open, "/tmp/own", os.O_RDWR | os.O_NONBLOCK)
        """,
        cwd=place,
        policy=policy(extends=extends),
    )
    assert found["host"] in REFUSED
    assert found["own"] == "ok"
    assert host_snapshot(place) == before


def test_a_pipe_in_place_of_the_project_policy_is_an_error_not_a_hang(place):
    """What can't be read is never taken for absent."""
    os.mkfifo(place / ".stockade.toml")
    with pytest.raises(stockade.PolicyError, match="regular file"):
        stockade.run(["true"], cwd=place)


@pytest.mark.root
def test_device_nodes_in_a_workspace_are_dead(place):
    """A node that somebody made there opens nothing, for a dropped and for a kept root."""
    os.mknod(place / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod(place / "kmsg", 0o666 | stat.S_IFCHR, os.makedev(1, 11))
    open_to_all(place)
    assert (place / "null").read_bytes() == b""
    for form in ("dropped", "kept"):
        body = (
            'found.update({name: tried(open, name) for name in ("null", "kmsg")}, control=tried(open, "/dev/null"))'
        )
        found = probe(body, cwd=place, policy=policy(form))
        assert found == {"null": "EACCES", "kmsg": "EACCES", "control": "ok"}


def test_names_that_are_not_text_survive(place):
    """Newlines, spaces and bytes that are no UTF-8 in hidden, protected and ordinary names."""
    odd = os.fsencode(place) + b"/o\xffd\n d\xe9r"
    os.mkdir(odd)
    with open(odd + b"/.env", "wb") as file:
        file.write(b"SECRET")
    with open(odd + b"/plain", "wb") as file:
        file.write(b"plain")
    os.chmod(odd, 0o777)
    result = stockade.run(
        'cat */plain; cat */.env; for d in *; do touch "$d/new"; done', cwd=place, policy=policy()
    )
    assert result.stdout == b"plain"
    assert os.path.exists(odd + b"/new")
    inside = stockade.run("cat .env plain; pwd", cwd=os.fsdecode(odd), policy=policy())
    assert inside.stdout == b"plain" + odd + b"\n"


if ROOT:

    def test_root_was_tested_in_both_forms():
        """The suite of a root caller runs each of these as a dropped and as a kept root."""
        assert probe('found["uid"] = os.getuid()', policy=policy("dropped", "read-only"), cwd="/usr") == {
            "uid": 65534
        }
        assert probe('found["uid"] = os.getuid()', policy=policy("kept", "read-only"), cwd="/usr") == {"uid": 0}
