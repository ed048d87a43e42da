"""Names that stay as they are even in a writable workspace: existing, missing and nested ones, and git's.

A missing name is kept from being made by a stand-in on the host for the time of the run: no way of ending a run
may leave one behind, and no other run may lose the protection by it.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading

import psutil
import pytest
from boxes import (
    cli,
    identity,
    make_place,
    open_to_all,
    own_state,
    place,
    policy,
    probe,
    processes_with,
    tree_of,
    wait_until,
)

import stockade
from stockade.policies.presets import preset_path
from stockade.sandbox import keeperlink

__all__ = ["identity", "own_state", "place"]
pytestmark = pytest.mark.kernel

PROTECTED = (".git/hooks", ".git/config", ".claude", ".codex", ".envrc", ".vscode", ".stockade.toml")


# --- protected names --------------------------------------------------------------------------------------

ATTACK = """
def attack(path):
    '''Every way to make, change, replace or remove what is at a path; returns those that went through.'''
    aside = "aside-" + path.replace("/", "-")
    ways = {
        "write": lambda: written(path), "append": lambda: open(path, "a").close(),
        "write inside": lambda: written(path + "/evil"), "make inside": lambda: os.mkdir(path + "/evil.d"),
        "make": lambda: os.mkdir(path), "make all": lambda: os.makedirs(path), "unlink": lambda: os.unlink(path),
        "remove": lambda: os.rmdir(path), "truncate": lambda: os.truncate(path, 0), "mode": lambda: os.chmod(path, 0o777),
        "time": lambda: os.utime(path, (1, 1)), "link to": lambda: os.link(path, aside + "-hard"),
        "move away": lambda: os.rename(path, aside), "symlink over": lambda: os.symlink("/tmp", path),
        "pipe": lambda: os.mkfifo(path), "attribute": lambda: os.setxattr(path, "user.evil", b"x"),
        "move a file over": lambda: (written("new-file"), os.rename("new-file", path)),
        "move a directory over": lambda: (os.makedirs("new-dir", exist_ok=True), os.rename("new-dir", path)),
        "link over": lambda: (written("other-file"), os.link("other-file", path)),
    }
    for folder, folders, files in os.walk(path) if os.path.isdir(path) else ():
        for name in (*files, *folders):
            inner = f"{folder}/{name}"
            ways[f"write {inner}"] = lambda inner=inner: written(inner)
            ways[f"move {inner}"] = lambda inner=inner: os.rename(inner, aside)
    parent = os.path.dirname(path)
    while parent:
        ways[f"move {parent} away"] = lambda parent=parent: os.rename(parent, "aside-parent")
        ways[f"remove {parent}"] = lambda parent=parent: __import__("shutil").rmtree(parent)
        parent = os.path.dirname(parent)
    return [way for way, act in ways.items() if tried(act) == "ok"]
"""


def populate(place: pathlib.Path, names: tuple[str, ...]) -> None:
    for name in names:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith((".envrc", "config", ".toml")):
            path.write_text('mode = "auto"  # as it was\n')
        else:
            path.mkdir()
            (path / "settings.json").write_text("{}")
    open_to_all(place)


def default_protected() -> tuple[str, ...]:
    import tomllib

    with open(preset_path("base"), "rb") as file:
        return tuple(tomllib.load(file)["filesystem"]["protect"])


def test_the_defaults_protect_what_runs_code_later():
    """Names whose content another tool executes are on the list of every preset."""
    assert set(PROTECTED) <= set(default_protected())


def attack_all(place, identity, names, **files):
    found = probe(
        ATTACK
        + """
found["through"] = {name: attack(name) for name in sys.argv[1:]}
found["control"] = tried(written, "ordinary")
""",
        *names,
        cwd=place,
        policy=policy(identity, filesystem={"protect": list(names), **files}),
    )
    assert found["control"] == "ok"
    return {name: ways for name, ways in found["through"].items() if ways}


def leftovers(place: pathlib.Path) -> set[str]:
    """What the attack itself made beside the protected names."""
    return {name for name in os.listdir(place) if not name.startswith(("ordinary", "new-", "other-"))}


def test_protected_names_that_exist_stay_as_they_are(place, identity):
    """No way of changing, moving, linking or replacing them or their parents goes through; nothing differs after."""
    names = default_protected()
    populate(place, names)
    before = tree_of(place)
    through = attack_all(place, identity, names)
    assert not through
    after = tree_of(place)
    assert {name: after.get(name) for name in before} == before
    assert leftovers(place) == {name.split("/")[0] for name in names}


def test_protected_names_that_are_missing_do_not_come_into_being(place, identity):
    """Nor does anything take their place, and no stand-in is left on the host."""
    through = attack_all(place, identity, default_protected())
    assert not through
    assert leftovers(place) == set()


@pytest.mark.parametrize("present", ["all", "parents", "grandparent", "none"])
def test_a_nested_name_is_protected_with_every_directory_above_it(place, identity, present):
    """Renaming a parent or a grandparent would dodge a mount on the name alone; the directories stay writable."""
    name = "a/b/guarded"
    folders = {"all": "a/b", "parents": "a/b", "grandparent": "a", "none": ""}[present]
    (place / folders).mkdir(parents=True, exist_ok=True)
    if present == "all":
        (place / name).write_text("as it was")
    open_to_all(place)
    before = tree_of(place)
    through = attack_all(place, identity, (name,))
    allowed = {way for way in through.get(name, ()) if way.startswith("remove a")}
    assert set(through.get(name, ())) <= allowed, through
    assert {key: value for key, value in tree_of(place).items() if key in before} == before
    assert not (place / "a/b/guarded").exists() or present == "all"
    assert leftovers(place) == ({"a"} if folders else set())


def test_directories_above_a_protected_name_stay_writable(place, identity):
    """Protection is of the name, not of its neighbours."""
    (place / "a/b").mkdir(parents=True)
    open_to_all(place)
    found = probe(
        """
        found["beside"] = [tried(written, "a/new"), tried(written, "a/b/new"), tried(os.mkdir, "a/b/folder")]
        found["name"] = tried(written, "a/b/guarded")
        """,
        cwd=place,
        policy=policy(identity, filesystem={"protect": ["a/b/guarded"]}),
    )
    assert found["beside"] == ["ok"] * 3
    assert found["name"] != "ok"
    assert sorted(tree_of(place)) == ["a", "a/b", "a/b/folder", "a/b/new", "a/new"]


@pytest.mark.parametrize("target", ["victim", "/nonexistent", "{outside}", "/oldroot{outside}", "."])
@pytest.mark.parametrize("name", [".claude", "sub/inner/.claude"])
def test_a_symlink_on_the_way_to_a_protected_name_is_refused_by_name(place, tmp_path, identity, target, name):
    """The program could point it elsewhere, and bubblewrap would make mount points where it leads."""
    outside = make_place(tmp_path, "outside")
    link = place / name.split("/")[0]
    link.symlink_to(target.format(outside=outside))
    with pytest.raises(stockade.PolicyError, match="symlink") as refused:
        stockade.run(["touch", "ran"], cwd=place, policy=policy(identity, filesystem={"protect": [name]}))
    assert str(link) in str(refused.value)
    assert refused.value.remedy
    assert os.listdir(outside) == []
    assert os.listdir(place) == [link.name]
    link.unlink()
    assert stockade.run(["touch", "ran"], cwd=place, policy=policy(identity, filesystem={"protect": [name]})).ok
    assert os.listdir(place) == ["ran"]


@pytest.mark.parametrize("extends", ["read-only", "workspace-write"])
def test_a_grant_of_what_holds_a_protected_name_does_not_unprotect_it(place, extends):
    """``--write .git`` gives commits, not the configuration that runs programs."""
    (place / ".git/hooks").mkdir(parents=True)
    (place / ".git/config").write_text("# as it was\n")
    open_to_all(place)
    found = probe(
        """
        found["config"] = tried(written, ".git/config")
        found["hook"] = tried(written, ".git/hooks/post-checkout")
        found["moved"] = tried(os.rename, ".git/hooks", ".git/h")
        found["control"] = tried(written, ".git/index")
        """,
        cwd=place,
        policy=policy(extends=extends, filesystem={"write": [".git"]}),
    )
    assert found == {"config": "EROFS", "hook": "EROFS", "moved": "EBUSY", "control": "ok"}
    assert (place / ".git/config").read_text() == "# as it was\n"


def test_every_writable_grant_protects_the_names_below_it(place, tmp_path, identity):
    """The list is not only about the workspace."""
    second = make_place(tmp_path, "second")
    (second / ".claude").mkdir()
    open_to_all(second)
    files = {"write": [str(second)], "protect": [".claude", ".envrc"]}
    found = probe(
        """
        top = sys.argv[1]
        found["refused"] = [tried(written, f"{top}/.claude/x"), tried(written, f"{top}/.envrc"),
                            tried(os.mkdir, f"{top}/.envrc")]
        found["control"] = tried(written, f"{top}/ordinary")
        """,
        second,
        cwd=place,
        policy=policy(identity, "read-only", filesystem=files),
    )
    assert set(found["refused"]) <= {"EROFS", "EISDIR", "EEXIST"}
    assert found["control"] == "ok"
    assert sorted(os.listdir(second)) == [".claude", "ordinary"]


# --- git --------------------------------------------------------------------------------------------------

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
PLANT = 'printf "#!/bin/sh\\ntouch %s\\n" "$1/fired" > "$1/m.sh"; chmod 777 "$1/m.sh"; git config core.fsmonitor "$1/m.sh"'


def git(place: pathlib.Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    safe = ["-c", "safe.directory=*"]
    return subprocess.run([*GIT, *safe, *words], cwd=place, env=env, capture_output=True, text=True, check=True)


def repository(place: pathlib.Path) -> pathlib.Path:
    git(place, "init", "-q")
    git(place, "commit", "-qm", "first", "--allow-empty")
    open_to_all(place)
    return place


def test_the_next_git_status_on_the_host_runs_nothing_from_the_configuration(tmp_path, identity):
    """A monitor planted in .git/config would run at the user's next look at the repository."""
    control = repository(make_place(tmp_path, "control"))
    subprocess.run(["/bin/sh", "-c", PLANT, "sh", control], cwd=control, check=True)
    git(control, "status")
    assert (control / "fired").exists()

    place = repository(make_place(tmp_path))
    before = (place / ".git/config").read_bytes()
    command = ["/bin/sh", "-c", PLANT, "sh", str(place)]
    env = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    result = stockade.run(command, cwd=place, policy=policy(identity), env=env)
    assert (result.outcome, result.exit_code) != ("exited", 0)
    assert (place / "m.sh").exists()
    git(place, "status")
    assert not (place / "fired").exists()
    assert (place / ".git/config").read_bytes() == before


def test_git_works_in_a_writable_repository_and_hooks_can_not_be_planted(tmp_path, identity):
    """Commits go through; a hook does not, and the repository can't be exchanged for another one."""
    place = repository(make_place(tmp_path))
    env = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    script = """
    touch file && git add file && git -c user.name=a -c user.email=a@example.org commit -qm second || exit 9
    for way in 'echo x > .git/hooks/post-checkout' 'mv .git .elsewhere' 'mv .git/config .git/c' 'rm -rf .git/config' \
        'rm .git/hooks/* .git/hooks' 'ln -s /tmp .git/hooks/x' 'git config core.hooksPath .'; do
        ( eval "$way" ) 2>/dev/null && echo "went through: $way"
    done
    exit 0
    """
    hooks = tree_of(place / ".git/hooks")
    result = stockade.run(script, cwd=place, policy=policy(identity), env=env)
    assert (result.outcome, result.exit_code, result.stdout) == ("exited", 0, b""), (result.stdout, result.stderr)
    assert git(place, "log", "--format=%s").stdout == "second\nfirst\n"
    assert tree_of(place / ".git/hooks") == hooks


# --- stand-ins on the host --------------------------------------------------------------------------------

MODES = """
import stockade, sys
stockade.run(sys.argv[2:], cwd=sys.argv[1], policy="workspace-write")
"""


def start(form: str, place: pathlib.Path, script: str, token: str) -> subprocess.Popen[bytes]:
    """A process of its own that runs ``script`` confined, by the library or by the command line."""
    program = ["/bin/sh", "-c", script, token]
    command = {
        "library": [sys.executable, "-c", MODES, str(place), *program],
        "command line": [sys.executable, "-m", "stockade", "run", "--policy", "workspace-write", "--", *program],
    }[form]
    return subprocess.Popen(
        command, cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def stand_ins(place: pathlib.Path) -> list[str]:
    return [name for name in os.listdir(place) if name.startswith(".")]


@pytest.mark.parametrize("form", ["library", "command line"])
@pytest.mark.parametrize("moment", ["at once", "stand-ins", "running", "ending"])
def test_no_stand_in_outlives_a_killed_supervisor(place, form, moment):
    """SIGKILL before, while and after the program runs: the host is as it was, and nothing runs on."""
    token = f"token-{os.getpid()}-{moment.replace(' ', '')}-{form.replace(' ', '')}"
    script = "touch running; while [ ! -e stop ]; do sleep 0.02; done; touch ending; exit 0"
    process = start(form, place, script, token)
    try:
        if moment == "stand-ins":
            wait_until(lambda: stand_ins(place) or process.poll() is not None, "stand-ins appear")
        elif moment in ("running", "ending"):
            wait_until((place / "running").exists, "the program runs")
            assert len(stand_ins(place)) >= 5
        if moment == "ending":
            (place / "stop").touch()
            wait_until((place / "ending").exists, "the program ends")
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not processes_with(token), "every process of the run is gone")
    wait_until(lambda: not stand_ins(place), "the stand-ins are gone")
    # A keeper that was not ready yet may still make some, and has to take them away.
    wait_until(lambda: not processes_with(str(process.pid)), "the keeper is gone")
    assert set(os.listdir(place)) <= {"running", "stop", "ending"}


@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("killed", [False, True])
def test_two_runs_share_stand_ins_and_end_in_either_order(place, first, killed):
    """The one that goes on keeps its protection, whoever made the stand-ins and however the other one ended."""
    waits = "touch $0-in; while [ ! -e $0-stop ]; do sleep 0.02; done;"
    attack = "mkdir .claude .envrc .git; echo x > .claude/x; mkdir .claude/y; mv .codex c; rmdir .vscode; echo x > .envrc; "
    started = {}
    for name in ("a", "b"):
        started[name] = start("command line", place, f"{waits} {attack} touch $0-out", name)
        wait_until((place / f"{name}-in").exists, f"{name} runs")
    last = "b" if first == "a" else "a"
    if killed:
        started[first].kill()
    else:
        (place / f"{first}-stop").touch()
    started[first].wait()
    assert len(stand_ins(place)) >= 5, "the other run still needs them"
    (place / f"{last}-stop").touch()
    assert started[last].wait() == 0
    wait_until(lambda: not stand_ins(place), "the stand-ins are gone")
    made = {"a-in", "b-in", "a-stop", "b-stop", "a-out", "b-out"}
    assert set(os.listdir(place)) <= made
    assert f"{last}-out" in os.listdir(place)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0])
@pytest.mark.parametrize("mode", [0o777, 0o2777, 0o1777])
def test_stand_ins_are_known_whatever_the_directory_and_the_umask_make_of_them(place, identity, umask, mode):
    """A group that is handed down or a strict umask changes the mode they are made with."""
    place.chmod(mode)
    keeperlink.end_keeper()  # the next one has the umask of this moment
    before = os.umask(umask)
    try:
        result = stockade.run(
            "ls -A; ls .claude; mkdir .claude/x || mkdir .claude", cwd=place, policy=policy(identity)
        )
    finally:
        os.umask(before)
        keeperlink.end_keeper()
    assert result.exit_code == 1
    assert b".claude" in result.stdout
    assert b"Permission denied" not in result.stderr
    assert os.listdir(place) == []


def test_many_runs_at_once_leave_nothing(place):
    """Starts and ends in one workspace overlap in every way; none fails, none gets through, nothing stays."""
    outcomes: list[tuple[object, ...]] = []

    def go(number: int) -> None:
        for _turn in range(4):
            result = stockade.run(
                f"touch made-{number}; mkdir .claude/x || mkdir .claude", cwd=place, policy=policy()
            )
            outcomes.append((result.outcome, result.exit_code, result.reason if result.outcome != "exited" else ""))

    threads = [threading.Thread(target=go, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [("exited", 1, "")] * 24
    assert sorted(os.listdir(place)) == [f"made-{number}" for number in range(6)]


BOTH_KILLED = """
import os, signal, stockade, sys, threading
threading.Thread(target=lambda: stockade.run("touch running; sleep 60", cwd=sys.argv[1], policy="workspace-write")).start()
while not os.path.exists(sys.argv[1] + "/running"): pass
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_stand_ins_of_a_killed_keeper_go_with_the_next_run(place):
    """With keeper and supervisor killed nobody takes them away; the next run there knows them by their mark, and does."""
    process = subprocess.Popen([sys.executable, "-c", BOTH_KILLED, str(place)], stdin=subprocess.DEVNULL)
    _pid, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert len(stand_ins(place)) >= 5
    keeper = psutil.Process(process.pid).children()[0].pid
    os.kill(keeper, signal.SIGKILL)
    process.kill()
    process.wait()
    assert len(stand_ins(place)) >= 5
    found = probe(ATTACK + 'found["through"] = attack(".claude")', cwd=place, policy=policy())
    assert found["through"] == []
    assert stand_ins(place) == []


def test_what_came_to_be_in_the_place_of_a_stand_in_is_kept(place):
    """A name that somebody on the host makes during the run is theirs: it is protected and not removed."""
    process = start("command line", place, "touch running; while [ ! -e stop ]; do sleep 0.02; done", "kept")
    wait_until((place / "running").exists, "the program runs")
    (place / ".claude").chmod(0o755)
    (place / ".claude/settings.json").write_text("{}")
    (place / "stop").touch()
    assert process.wait() == 0
    assert stand_ins(place) == [".claude"]
    assert os.listdir(place / ".claude") == ["settings.json"]


def test_the_listing_is_the_same_after_every_end(place):
    """Success, failure, a signal, a deadline and a program that is not there: the workspace is as it was."""
    (place / "file").write_text("text")
    open_to_all(place)
    before = tree_of(place)
    for command, options in (
        (["true"], {}),
        (["false"], {}),
        ("kill -9 $$", {}),
        (["sleep", "60"], {"timeout": 0.2}),
        (["nosuchprogram"], {}),
    ):
        stockade.run(command, cwd=place, policy=policy(), **options)
        assert tree_of(place) == before, command
    stopped = start("command line", place, "kill -TERM 1; sleep 60", "stopped")
    wait_until(lambda: stand_ins(place), "stand-ins appear")
    stopped.send_signal(signal.SIGTERM)
    stopped.wait()
    assert tree_of(place) == before
    assert cli("run", "--policy", "workspace-write", "--", "true", cwd=place).returncode == 0
    assert tree_of(place) == before
