"""Overlay workspaces in real boxes: what is captured, what the host keeps, what stays protected, and what is left."""

from __future__ import annotations

import json
import os
import pathlib
import pty
import select
import signal
import subprocess
import sys

import pytest
from boxes import (
    PRELUDE,
    PYTHON,
    ROOT,
    USERS,
    cli,
    identity,
    open_to_all,
    own_state,
    place,
    policy,
    probe,
    probe_command,
    tree_of,
    wait_until,
)

import stockade
from stockade.policies.errors import NotApplied, PolicyError, RequestError, SandboxUnavailable, StockadeError
from stockade.sandbox import bwrap as binaries
from stockade.sandbox import hostcache, overlaytrial, private, state, unmoved
from stockade.sandbox import overlay as overlaying
from stockade.sandbox import probe as probing
from stockade.sandbox.survey import NOBODY

__all__ = ["identity", "own_state", "place"]
pytestmark = pytest.mark.kernel

OVERLAY = {"filesystem": {"workspace": "overlay"}}


def overlay(identity: str = "auto", **filesystem: object):
    return policy(identity, filesystem={"workspace": "overlay", **filesystem})


def fill(place: pathlib.Path, identity: str) -> None:
    """Files of the run's own user: those of others can't be taken over."""
    for name, text in {
        "a": "old a\n",
        "b": "old b\n",
        "d/x": "old x\n",
        "d/e/y": "old y\n",
        ".git/config": "[core]\n",
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    (place / ".git/hooks").mkdir()
    if identity == "dropped":
        for path in (place, *place.rglob("*")):
            os.chown(path, NOBODY, NOBODY)


@pytest.fixture
def filled(place, identity):
    fill(place, identity)
    return place


def run(command, place, identity="auto", *, expect=0, **options):
    result = stockade.run(command, cwd=place, timeout=60, **{"policy": overlay(identity), **options})
    assert (result.outcome, result.exit_code) == ("exited", expect), (result.reason, result.stderr)
    return result


def listed(result, place):
    return [(file.kind, os.path.relpath(file.path, place)) for file in result.files_written]


def kept_places() -> list[str]:
    cache = state.cache_dir()
    return [name for name in os.listdir(cache) if name.startswith(private.PREFIX)] if os.path.isdir(cache) else []


# --- captured, and the host left alone ---------------------------------------------------------------------

WORK = """
set -e
[ "$(cat a)" = "old a" ]
echo new > a; rm b; mv d/x moved; rm -r d/e; mkdir -p n/m; echo deep > n/m/file; chmod 700 d
ln -s a link; [ "$(cat a)" = new ]; [ ! -e b ]; [ "$(cat moved)" = "old x" ]
"""


def test_writes_are_captured_and_applied_when_asked(filled, identity):
    before = tree_of(filled)
    with run(WORK, filled, identity).changes as changes:
        assert tree_of(filled) == before
        result_files = [(file.kind, os.path.relpath(file.path, filled)) for file in changes.files]
        assert result_files == [
            ("changed", "a"), ("deleted", "b"), ("changed", "d"), ("deleted", "d/e"), ("deleted", "d/e/y"),
            ("deleted", "d/x"), ("created", "link"), ("created", "moved"), ("created", "n"), ("created", "n/m"),
            ("created", "n/m/file"),
        ]  # fmt: skip
        diff = changes.diff()
        assert "-old a\n+new\n" in diff
        assert "deleted file mode 100644\n--- a/b\n" in diff
        changes.apply()
    assert {name: what[-1] for name, what in tree_of(filled).items() if what[0] != "other"} == {
        ".git/config": b"[core]\n", "a": b"new\n", "link": "a", "moved": b"old x\n", "n/m/file": b"deep\n",
    }  # fmt: skip
    assert (filled / "d").stat().st_mode & 0o777 == 0o700
    assert not kept_places()


def test_the_same_program_writes_a_read_write_workspace(filled, identity):
    """The control: what is captured above really reaches the host without an overlay."""
    result = stockade.run(WORK, cwd=filled, policy=policy(identity), timeout=60)
    assert result.ok, result.stderr
    assert (filled / "a").read_text() == "new\n"
    assert result.changes is None
    with pytest.raises(StockadeError, match="it captured none"):
        result.diff()
    with pytest.raises(StockadeError, match="it captured none"):
        result.apply()


def test_result_has_both_methods(filled, identity):
    result = run("echo new > a", filled, identity)
    assert "+new\n" in result.diff()
    assert [file.kind for file in result.apply().files] == ["changed"]
    assert (filled / "a").read_text() == "new\n"
    result.changes.close()


def test_a_run_that_changes_nothing(filled, identity):
    with run("cat a d/x > /dev/null; ls -lR . > /dev/null", filled, identity).changes as changes:
        assert changes.files == ()
        assert changes.diff() == ""
        assert changes.left_out() == ()


def test_a_write_that_is_taken_back_is_seen(filled, identity):
    script = "cp -p a keep; echo x > a; cat keep > a; touch -r keep a; rm keep; echo x > gone; rm gone"
    before = tree_of(filled)
    result = run(script, filled, identity)
    assert listed(result, filled) == [("changed", "a")]
    assert result.diff() == ""
    result.apply()
    assert tree_of(filled) == before
    result.changes.close()


GONE_WITH_D = "-d/e -d/e/y -d/x"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("rm -r d && mkdir d && echo n > d/n", "=d -d/e -d/e/y +d/n -d/x"),
        ("rm -r d && mkdir -p d/e && echo n > d/e/n", "=d =d/e +d/e/n -d/e/y -d/x"),
        ("rm -r d && echo n > d", f"=d {GONE_WITH_D}"),
        ("rm a && mkdir a && echo n > a/n", "=a +a/n"),
        ("ln a second", "=a +second"),
        ("chmod 600 a", "=a"),
        ("touch a", "=a"),
        ("mv a A", "+A -a"),
        ("mv d D", f"+D +D/e +D/e/y +D/x -d {GONE_WITH_D}"),
        ("mkfifo p", "+p"),
    ],
)
def test_what_is_recorded_and_what_it_comes_to(filled, identity, script, expected):
    before = tree_of(filled)
    marks = {"created": "+", "changed": "=", "deleted": "-"}
    with run(script, filled, identity).changes as changes:
        said = [marks[file.kind] + os.path.relpath(file.path, filled) for file in changes.files]
        assert said == expected.split()
        assert tree_of(filled) == before
        changes.apply()
    found = set(tree_of(filled))
    assert found >= {each[1:] for each in said if each[0] != "-"} - {"p"}
    assert not found & {each[1:] for each in said if each[0] == "-"}
    assert "p" not in found


def test_names_that_are_no_text(filled, identity):
    body = """
    for name in (b"new\\nline", b"\\xff\\xfe", b"-x"):
        with open(name, "wb") as file:
            file.write(name)
    """
    command = [PYTHON, "-I", "-S", "-c", PRELUDE + "\n".join(line[4:] for line in body.splitlines())]
    result = run(command, filled, identity)
    assert [kind for kind, _ in listed(result, filled)] == ["created"] * 3
    json.dumps(result.to_json())
    result.apply()
    for name in (b"new\nline", b"\xff\xfe", b"-x"):
        with open(os.path.join(os.fsencode(filled), name), "rb") as file:
            assert file.read() == name
    result.changes.close()


def test_what_others_do_meanwhile_is_a_conflict(filled, identity):
    result = run("echo new > a; echo new > n", filled, identity)
    (filled / "a").write_text("theirs\n")
    with pytest.raises(NotApplied) as caught:
        result.apply()
    assert [each.path for each in caught.value.conflicts] == [str(filled / "a")]
    assert (filled / "a").read_text() == "theirs\n"
    assert not (filled / "n").exists()
    result.changes.close()


def test_captured_and_granted_writes_are_one_list(filled, identity, tmp_path):
    beside = tmp_path / "beside"
    beside.mkdir()
    beside.chmod(0o777)
    result = run(
        f"echo 1 > a; echo 2 > {beside}/file", filled, identity, policy=overlay(identity, write=[str(beside)])
    )
    assert {file.path for file in result.files_written} == {str(filled / "a"), str(beside / "file")}
    assert (beside / "file").read_text() == "2\n"
    assert (filled / "a").read_text() == "old a\n"
    result.changes.close()


def test_a_grant_inside_is_written_through_and_said(filled, identity):
    (filled / "out").mkdir()
    (filled / "out").chmod(0o777)
    result = run("echo 1 > out/file; echo 2 > a", filled, identity, policy=overlay(identity, write=["out"]))
    assert (filled / "out/file").read_text() == "1\n"
    assert (filled / "a").read_text() == "old a\n"
    assert any("it goes to the host" in note for note in result.notes)
    result.changes.close()


@pytest.mark.parametrize("grant", [".", ".."])
def test_a_grant_of_the_workspace_beside_it_is_refused(filled, identity, grant):
    path = os.path.normpath(os.path.join(filled, grant))
    filled.parent.chmod(0o777)
    before = tree_of(filled)
    with pytest.raises(PolicyError, match="could not overlay"):
        run("echo evil > a", filled, identity, policy=overlay(identity, write=[path]))
    assert tree_of(filled) == before


def test_a_home_that_holds_the_workspace_is_refused(filled, identity):
    filled.parent.chmod(0o777)
    with pytest.raises(PolicyError, match="could not overlay"):
        run("true", filled, identity, policy=overlay(identity, home=str(filled.parent)))


# --- protected, hidden, out of sight -----------------------------------------------------------------------


def test_protected_names_stay_and_never_come_into_being(filled, identity):
    before = tree_of(filled)
    result = probe(
        """
        found["hook"] = tried(written, ".git/hooks/pre-commit")
        found["config"] = tried(written, ".git/config")
        found["remove"] = tried(os.unlink, ".git/config")
        found["rename"] = tried(os.rename, ".git", "moved")
        found["new"] = tried(written, ".claude/settings.json")
        found["envrc"] = tried(os.rmdir, ".envrc")
        found["allowed"] = tried(written, ".git/HEAD")
        """,
        cwd=filled,
        policy=overlay(identity),
    )
    assert result.pop("allowed") == "ok"
    assert set(result.values()) <= {"EROFS", "EBUSY", "EXDEV"}, result
    assert tree_of(filled) == before


def test_a_directory_above_a_protected_name_can_not_be_replaced(filled, identity):
    script = "mv .git .moved; rm -rf .git; mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit; true"
    result = run(script, filled, identity)
    assert not any(name.startswith(".git/hooks") for _kind, name in listed(result, filled))
    result.apply()
    assert os.listdir(filled / ".git/hooks") == []
    assert (filled / ".git/config").read_text() == "[core]\n"
    result.changes.close()


def test_hidden_files_stay_hidden(filled, identity):
    (filled / ".env").write_text("SECRET=1\n")
    (filled / "keys").mkdir()
    (filled / "keys/one").write_text("secret\n")
    open_to_all(filled)
    found = probe(
        """
        found["read"] = tried(open, ".env")
        found["text"] = read(".env") if found["read"] == "ok" else ""
        found["listed"] = os.listdir("keys")
        found["moved"] = tried(os.rename, ".env", "x")
        found["other"] = read("b")
        """,
        cwd=filled,
        policy=overlay(identity, hide=["**/.env*", "keys/"]),
    )
    assert found["text"] == ""
    assert found["listed"] == []
    assert found["moved"] == "EBUSY"
    assert found["other"] == "old b\n"


def test_the_layer_is_not_visible_inside(filled, identity):
    found = probe(
        """
        text = read("/proc/self/mountinfo")
        line = next(line for line in text.splitlines() if " overlay " in line)
        options = dict(each.partition("=")[::2] for each in line.split()[-1].split(","))
        found["upper"] = options["upperdir"].removeprefix("/oldroot")
        found["seen"] = [path for path in (found["upper"], os.path.dirname(found["upper"])) if os.path.lexists(path)]
        found["written"] = tried(written, "proof")
        """,
        cwd=filled,
        policy=overlay(identity),
    )
    assert found["seen"] == []
    assert found["written"] == "ok"
    assert "/upper" in found["upper"]


def test_the_program_can_not_write_the_marks_of_the_layer(filled, identity):
    """Deletions and replaced directories are marked by devices and attributes: those of the program are none."""
    body = """
    found["device"] = tried(os.mknod, "b2", stat.S_IFCHR | 0o666, os.makedev(0, 0))
    for name in ("opaque", "whiteout", "redirect", "origin", "metacopy"):
        found[name] = tried(os.setxattr, "d", "user.overlay." + name, b"y")
    os.unlink("a")
    written("a", "")
    found["file"] = tried(os.setxattr, "a", "user.overlay.whiteout", b"y")
    found["plain"] = tried(os.setxattr, "a", "user.mine", b"y")
    """
    result = run(probe_command(body), filled, identity)
    found = json.loads(result.stdout)
    assert found["device"] in ("EPERM", "EACCES")
    assert found["plain"] == "ok"
    with result.changes as changes:
        assert [file for file in listed(result, filled) if file != ("changed", "a")] in ([], [("changed", "d")])
        changes.apply()
    assert sorted(os.listdir(filled / "d")) == ["e", "x"]
    assert (filled / "a").read_text() == ""


def test_a_leftover_pipe_does_not_hold_us_up(filled, identity):
    with run("mkfifo p; chmod 666 p; mkdir s; mkfifo s/q", filled, identity).changes as changes:
        assert "# created pipe: p\n" in changes.diff()
        assert [os.path.basename(each.path) for each in changes.apply().left_out] == ["p", "q"]
    assert os.listdir(filled / "s") == []


# --- nothing is left ---------------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path, identity):
    """A workspace in a directory in which others may rename it, beside another one of the caller's."""
    for name in ("own", "other"):
        (tmp_path / "shared" / name).mkdir(parents=True)
        (tmp_path / "shared" / name / name).write_text("")
        if identity == "dropped":
            os.chown(tmp_path / "shared" / name, NOBODY, NOBODY)
    (tmp_path / "shared").chmod(0o777)
    return tmp_path / "shared"


def swapping(monkeypatch, shared, *, back):
    """Exchange the workspace when everything was looked at, and before bubblewrap looks; perhaps back again."""
    real, own, waited = overlaying.Layer.job, shared / "own", unmoved.wait_mounted

    def job(self, job, launch):
        whole = real(self, job, launch)
        os.rename(own, shared / "aside")
        os.rename(shared / "other", own)
        return whole

    def wait_mounted(box, dest):
        done = waited(box, dest)
        assert done
        if back:
            os.rename(own, shared / "other")
            os.rename(shared / "aside", own)
        return done

    monkeypatch.setattr(overlaying.Layer, "job", job)
    monkeypatch.setattr(unmoved, "wait_mounted", wait_mounted)


@pytest.mark.parametrize("back", [False, True])
def test_another_directory_in_its_place_is_not_let_see(shared, identity, monkeypatch, back):
    assert run("ls", shared / "own", identity).stdout == b"own\n"
    swapping(monkeypatch, shared, back=back)
    result = stockade.run("ls", cwd=shared / "own", policy=overlay(identity), timeout=60)
    if identity == "dropped":  # then no name is looked up
        assert (result.outcome, result.stdout) == ("exited", b"own\n")
        return
    assert (result.outcome, result.started, result.stdout) == ("runner_failed", False, b"")
    assert f"{shared}/own was moved or changed while the overlay was made" in result.reason


def test_a_box_that_does_not_get_its_overlay_is_not_let_go(shared, identity, monkeypatch):
    monkeypatch.setattr(unmoved, "wait_mounted", lambda *_: False)
    result = stockade.run("ls", cwd=shared / "own", policy=overlay(identity), timeout=60)
    if identity == "dropped":
        assert result.stdout == b"own\n"
    else:
        assert (result.outcome, result.started) == ("runner_failed", False)
        assert "the overlay was not mounted in time" in result.reason


def test_where_nobody_else_may_rename_it_nothing_is_waited_for(filled, identity, monkeypatch):
    monkeypatch.setattr(unmoved, "wait_mounted", lambda *_: pytest.fail("nobody has to"))
    run("cat a", filled, identity)


def test_the_layer_is_gone_with_the_result(filled, identity):
    result = run("echo 1 > a", filled, identity)
    assert len(kept_places()) == 1
    del result
    import gc

    gc.collect()
    assert not kept_places()


def test_a_program_that_never_ran_leaves_nothing(filled, identity):
    result = stockade.run(["/no/such/program"], cwd=filled, policy=overlay(identity), timeout=60)
    assert (result.outcome, result.changes, result.files_written) == ("not_executed", None, ())
    assert not kept_places()


def test_a_run_that_timed_out_can_be_looked_at(filled, identity):
    result = stockade.run("echo half > a; sleep 60", cwd=filled, policy=overlay(identity), timeout=1)
    assert result.outcome == "timed_out"
    assert listed(result, filled) == [("changed", "a")]
    assert (filled / "a").read_text() == "old a\n"
    result.changes.close()
    assert not kept_places()


HOLDER = """
import os, sys, time
import stockade
from stockade.policies.model import parse_tree
tree = {"extends": "workspace-write", "filesystem": {"workspace": "overlay"}, "process": {"user": sys.argv[1]}}
command = sys.argv[2]
if command != "wait":
    print("started", flush=True)
result = stockade.run(command if command != "wait" else "echo 1 > a; mkdir shut; echo x > shut/f; chmod 0 shut",
                      policy=parse_tree(tree, "a test"), timeout=60)
print("ran", result.outcome, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("when", ["after the run", "during the run"])
def test_a_supervisor_that_is_killed_leaves_nothing(filled, identity, when):
    command = (
        "wait" if when == "after the run" else "echo 1 > a; mkdir -p x/y; chmod 0 x; echo up > /dev/null; sleep 300"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, USERS[identity], command], cwd=filled, stdout=subprocess.PIPE, text=True
    )
    try:
        said = child.stdout.readline()
        assert said.startswith("ran exited" if when == "after the run" else "started")
        wait_until(kept_places, "a layer was made")
        if when == "during the run":
            layer = os.path.join(state.cache_dir(), kept_places()[0], "box/upper/x")
            wait_until(lambda: os.path.exists(layer), "the program wrote")
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    wait_until(lambda: not kept_places(), "the layer was removed")
    assert (filled / "a").read_text() == "old a\n"


def test_what_a_killed_keeper_left_is_swept_by_the_next_run(filled, identity):
    run("echo 1 > a", filled, identity).changes.close()
    left = private.make(state.cache_dir())
    os.mkdir(f"{left.path}/box")
    os.close(left.fd)
    held = private.make(state.cache_dir())
    run("echo 1 > a", filled, identity).changes.close()
    assert kept_places() == [os.path.basename(held.path)]
    os.close(held.fd)
    private.discard(held.path)


# --- what the host must offer ------------------------------------------------------------------------------


@pytest.fixture
def fresh():
    """Nothing is remembered of this host, before and after."""
    probing.forget()
    yield
    probing.forget()


def test_the_host_can_do_it_and_says_how(fresh):
    host = stockade.probe()
    capability = host.by_name()["overlay"]
    assert capability.state == "ok", capability
    assert "the workspace was left alone" in capability.detail
    assert f"captured by {probing.known(overlaid=True).bwrap.path} in {host.upper or '/'}" in capability.detail


def test_a_plain_run_does_not_look_for_it(fresh):
    assert probing.known().state("overlay") == "unknown"
    assert probing.known(overlaid=True).state("overlay") == "ok"


def test_a_finding_is_remembered(fresh, monkeypatch):
    first = probing.known(overlaid=True)
    probing._known = probing._overlaid = None
    monkeypatch.setattr(overlaytrial, "find", lambda _usual: pytest.fail("it was looked for again"))
    again = probing.known(overlaid=True)
    assert (again.bwrap, again.upper, again.capabilities) == (first.bwrap, first.upper, first.capabilities)


def test_an_older_bubblewrap_is_refused_with_the_remedy(fresh, filled, identity, monkeypatch):
    """The binary is there, and says that it has no overlays; nothing else is done instead."""
    real = binaries.inspect
    monkeypatch.setattr(
        binaries,
        "inspect",
        lambda path: real(path).replace(
            options=tuple(each for each in real(path).options if each != "--overlay-src")
        ),
    )
    before = tree_of(filled)
    with pytest.raises(SandboxUnavailable) as caught:
        run("echo evil > a", filled, identity)
    assert caught.value.missing[0] == "overlay"
    assert "older than 0.11" in caught.value.message
    assert "pip install 'stockade[bwrap]'" in caught.value.remedy
    assert tree_of(filled) == before
    assert stockade.run("true", cwd=filled, policy=policy(identity), timeout=60).ok


def test_one_that_can_do_it_is_preferred(fresh, bwrap):
    """With each binary that is installed as the system's: what can't is passed over."""
    host = probing.known(overlaid=True)
    assert host.bwrap.has("--overlay-src")
    usual = binaries.inspect(bwrap)
    chosen, _capability = overlaytrial.choose()
    assert chosen == host.bwrap
    if usual.has("--overlay-src") and bwrap == binaries.find_helper("bwrap"):
        assert chosen.path == bwrap


def test_one_that_others_can_replace_is_not_used(fresh, tmp_path, monkeypatch):
    copy = tmp_path / "bwrap"
    copy.write_bytes(pathlib.Path(overlaytrial.choose()[0].path).read_bytes())
    copy.chmod(0o777)
    monkeypatch.setattr(overlaytrial, "candidates", lambda: [str(copy)])
    binary, capability = overlaytrial.choose()
    assert binary is None
    assert "writable by everybody" in capability.detail


def test_places_are_tried_until_one_can_hold_a_layer(fresh, tmp_path, monkeypatch):
    """/proc can't, as another overlay can't; the next place is taken."""
    host = probing.known(overlaid=True)
    monkeypatch.setattr(overlaytrial, "places", lambda: ["/proc/self", host.upper])
    capability, place = overlaytrial.try_places(host.bwrap, host)
    assert (capability.state, place) == ("ok", host.upper)
    monkeypatch.setattr(overlaytrial, "places", lambda: ["/proc/self"])
    capability, place = overlaytrial.try_places(host.bwrap, host)
    assert (capability.state, place) == ("missing", "")
    assert capability.remedy.startswith("Set TMPDIR")


def test_every_place_is_one_that_no_box_shows(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", "/usr")
    assert "/usr" not in overlaytrial.places()
    monkeypatch.setenv("TMPDIR", "/dev/shm")
    assert overlaytrial.places()[1] == "/dev/shm"
    assert overlaytrial.places()[0] == state.cache_dir()


def test_a_forged_finding_is_not_used(fresh):
    host = probing.known(overlaid=True)
    directory = state.cache_dir()
    os.chmod(os.path.join(directory, hostcache.OVERLAY), 0o666)
    probing._known = probing._overlaid = None
    assert overlaytrial.recalled() is None
    os.chmod(os.path.join(directory, hostcache.OVERLAY), 0o600)
    assert overlaytrial.recalled().bwrap == host.bwrap


def test_confine_needs_no_keeper_and_so_has_no_overlay(filled):
    with pytest.raises(RequestError, match="an overlay workspace needs one"):
        stockade.confine(["true"], policy=overlay(), cwd=filled)


@pytest.mark.root
def test_a_workspace_with_a_mount_in_it_is_refused(tmp_path):
    script = f"""
    mkdir -p {tmp_path}/ws/inner && mount -t tmpfs none {tmp_path}/ws/inner && cd {tmp_path}/ws &&
    {sys.executable} -m stockade run --workspace overlay -- true
    """
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True)
    assert done.returncode == 125
    assert "another file system is mounted at" in done.stderr


@pytest.mark.root
def test_files_of_others_can_not_be_changed_and_it_is_said(tmp_path):
    place = tmp_path / "open"
    place.mkdir()
    os.chown(place, NOBODY, NOBODY)
    (place / "theirs").write_text("old\n")
    (place / "theirs").chmod(0o666)
    result = run("echo new > mine; echo new > theirs", place, "dropped", expect=2)
    assert listed(result, place) == [("created", "mine")]
    assert (place / "theirs").read_text() == "old\n"
    result.changes.close()


@pytest.mark.root
def test_root_is_kept_unless_the_workspace_is_the_other_uids(tmp_path):
    """Whoever may write it: a layer takes over only what belongs to the run's own user and group."""
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    with run("id -u; echo > n", place).changes as changes:
        assert len(changes.files) == 1
    assert run("id -u", place).stdout == b"0\n"
    with pytest.raises(RequestError, match="could not run unprivileged"):
        run("true", place, "dropped")
    os.chown(place, NOBODY, NOBODY)
    assert run("id -u", place).stdout == b"65534\n"
    os.chown(place, 1234, 1234)
    result = run("echo > n", place, "kept")
    assert any("can't be changed in an overlay" in note for note in result.notes)


# --- the command line --------------------------------------------------------------------------------------


def shell(place, *words, **options):
    return cli("run", "--workspace", "overlay", *words, cwd=place, **options)


@pytest.fixture
def own(tmp_path):
    """A workspace of the caller's own, as on the command line."""
    place = tmp_path / "own"
    place.mkdir()
    fill(place, "kept" if ROOT else "user")
    return place


def test_by_default_the_diff_is_shown_and_nothing_kept(own):
    before = tree_of(own)
    done = shell(own, "--", "sh", "-c", "echo out; echo new > a; printf '\\033[2Jx\\n' > esc")
    assert (done.returncode, done.stdout) == (0, "out\n")
    assert "-old a\n+new\n" in done.stderr
    assert "+\\x1b[2Jx\n" in done.stderr
    assert "\x1b" not in done.stderr
    assert "the changes are dropped" in done.stderr
    assert tree_of(own) == before
    assert not kept_places()


@pytest.mark.parametrize(("separator", "shown"), [(r"\r", r"\r"), (r"\f", r"\x0c"), (r"\342\200\250", r"\u2028")])
def test_a_line_can_not_pass_for_several(own, separator, shown):
    """Only a newline ends a line of the diff: nothing of the program's begins one without a mark before it."""
    done = shell(own, "--", "sh", "-c", f"printf 'x{separator}-gone{separator}--- a/other\\n' > a")
    assert f"\n+x{shown}-gone{shown}--- a/other\n" in done.stderr


def test_keep_yes_applies(own):
    done = shell(own, "--keep", "yes", "--", "sh", "-c", "echo new > a; rm b; ln -s /etc out; exit 3")
    assert done.returncode == 3
    assert "kept 2 changes" in done.stderr
    assert "a link that leads out of the workspace" in done.stderr
    assert (own / "a").read_text() == "new\n"
    assert not (own / "b").exists()
    assert not os.path.lexists(own / "out")


def test_keep_yes_does_not_keep_what_was_cut_short(own):
    before = tree_of(own)
    done = shell(own, "--keep", "yes", "--timeout", "1s", "--", "sh", "-c", "echo half > a; sleep 60")
    assert done.returncode == 124
    assert "the changes are not kept: timed_out" in done.stderr
    assert tree_of(own) == before


def test_no_changes_are_no_words(own):
    done = shell(own, "--keep", "yes", "--", "true")
    assert done.returncode == 0
    assert "changes" not in done.stderr
    assert "diff" not in done.stderr


def test_the_document_has_the_diff(own):
    done = shell(own, "--json", "--keep", "yes", "--", "sh", "-c", "echo new > a")
    document = json.loads(done.stdout)
    assert "+new\n" in document["diff"]
    assert [file["kind"] for file in document["files_written"]] == ["changed"]
    assert "+new" not in done.stderr
    assert (own / "a").read_text() == "new\n"
    plain = cli("run", "--json", "--", "true", cwd=own)
    assert "diff" not in json.loads(plain.stdout)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--keep", "maybe"], "it is no choice"),
        (["--keep", "ask"], "no terminal"),
        (["--trusted", "--mode", "off"], "contradict each other"),
    ],
)
def test_what_can_not_be_asked_for(own, words, text):
    before = tree_of(own)
    done = shell(own, *words, "--", "sh", "-c", "echo evil > a")
    assert done.returncode == 125
    assert text in done.stderr
    assert tree_of(own) == before


def test_keep_without_an_overlay(own):
    done = cli("run", "--keep", "yes", "--", "true", cwd=own)
    assert done.returncode == 125
    assert "nothing is captured" in done.stderr


def test_trusted_code_is_confined_too_if_its_writes_are_to_be_captured(own):
    before = tree_of(own)
    assert shell(own, "--trusted", "--", "sh", "-c", "echo new > a").returncode == 0
    assert tree_of(own) == before


def test_a_dry_run_shows_an_overlay_and_makes_nothing(own):
    done = shell(own, "--dry-run", "--", "true")
    assert done.returncode == 0
    assert f"--overlay-src {own} --tmp-overlay {own}" in done.stdout
    assert not kept_places()


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (b"y\n", True),
        (b"YES\n", True),
        (b"n\n", False),
        (b"\n", False),
        (b"\x04", False),
        (b"y\x04\x04", False),  # the end of the input in the middle of an answer
        (b"yes, but\n", False),
        (b"\xff\n", False),
    ],
)
def test_a_terminal_is_asked(own, answer, kept):
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "stockade", "run", "--workspace", "overlay", "--", "sh", "-c", "echo new > a"]
    child = subprocess.Popen(
        command, cwd=own, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True, close_fds=True
    )
    os.close(terminal)
    seen = b""
    asked = False
    try:
        while True:
            if not select.select([controller], [], [], 30)[0]:
                pytest.fail(f"nothing came: {seen!r}")
            try:
                part = os.read(controller, 4096)
            except OSError:
                break
            if not part:
                break
            seen += part
            if b"[y/N] " in seen and not asked:
                asked = True
                assert (own / "a").read_text() == "old a\n"
                os.write(controller, answer)
    finally:
        os.close(controller)
        if child.poll() is None and not asked:
            child.send_signal(signal.SIGKILL)
        child.wait(timeout=30)
    assert asked
    assert child.returncode == 0
    assert ((own / "a").read_text() == "new\n") is kept
    assert (b"kept 1 changes" in seen) is kept
