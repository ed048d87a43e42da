"""What git would run or read in a repository below the workspace is not applied; everything else is.

That git really does so, with what is applied where nothing is protected, is the control.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from boxes import IDENTITIES, make_place, own_state, policy  # noqa: F401
from test_changes_apply import Rig, without
from test_operations import change

import stockade
from stockade.sandbox.nestedgit import like_protected
from stockade.sandbox.operations import Rules, make_work
from stockade.sandbox.survey import NOBODY

BOTH = (b".git/hooks", b".git/config")
HOOKS, CONFIG = ".git/hooks", ".git/config"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (b"a", ""),
        (b"sub/.git/hooks", HOOKS),
        (b"sub/.git/hooks/pre-commit", HOOKS),
        (b"a/b/.git/config", CONFIG),
        (b"sub/.git/config.worktree", CONFIG),
        (b"sub/.git/commondir", CONFIG),
        (b".git/commondir", CONFIG),
        (b".git/config.worktree", CONFIG),
        (b".git/modules/s/config", CONFIG),
        (b".git/modules/a/b/c/hooks/post-checkout", HOOKS),
        (b".git/modules/a/modules/b/config", CONFIG),
        (b".git/modules/a/commondir", CONFIG),
        (b".git/worktrees/w/config.worktree", CONFIG),
        (b"sub/.git/modules/s/hooks", HOOKS),
        (b"sub/.git", ""),
        (b"sub/.git/HEAD", ""),
        (b"sub/.git/objects/ab/cd", ""),
        (b"sub/.git/configx", ""),
        (b"sub/.git/refs/heads/config", ""),
        (b".git/index", ""),
        (b".git/modules", ""),
        (b".git/modules/s/HEAD", ""),
        (b".git/modules/config", ""),
        (b"sub/x.git/config", ""),
        (b"sub/.gitx/hooks", ""),
        (b"config", ""),
        (b"sub/hooks/.git", ""),
    ],
)
def test_which_names_stand_for_protected_ones(path, name):
    assert like_protected(path, BOTH) == name
    assert like_protected(path, (b".envrc", b".vscode")) == ""


@pytest.mark.parametrize(
    ("path", "protected", "names_place", "name"),
    [
        (b"sub/.git", BOTH, True, HOOKS),  # "gitdir: elsewhere", or a link there
        (b".git", BOTH, True, ""),  # the workspace's own: what is above a protected name is judged as such
        (b"sub/.git", (b".git",), False, ".git"),
        (b"sub/.git/HEAD", (b".git",), False, ".git"),
        (b"sub/.git/hooks/x", (b".git/config",), False, ""),
        (b"sub/.git/config", (b".git/hooks",), False, ""),
        (b"sub/.git/info/attributes", (b".git/info/attributes",), False, ".git/info/attributes"),
        (b"sub/.git/info", (b".git/info/attributes",), False, ""),
    ],
)
def test_what_is_protected_decides(path, protected, names_place, name):
    assert like_protected(path, protected, names_place=names_place) == name


def decided(*changes):
    found = make_work(changes, Rules(b"/ws", BOTH), {}.get)
    done = [
        (each.verb, each.change.path.decode(), [(inner.path.decode(), inner.kind) for inner in each.inner])
        for each in found.operations
    ]
    return done, [each.path for each in found.left_out]


@pytest.mark.parametrize(
    ("changes", "done", "left"),
    [
        # a repository that is new
        (
            [change(b"s", None, "dir"), change(b"s/.git", None, "dir"), change(b"s/.git/HEAD", None, "file"),
             change(b"s/.git/config", None, "file"), change(b"s/.git/hooks", None, "dir"),
             change(b"s/.git/hooks/x", None, "file")],
            [("put", "s", [("s/.git", "created"), ("s/.git/HEAD", "created")])],
            ["/ws/s/.git/config", "/ws/s/.git/hooks"],
        ),
        # one that was there
        ([change(b"s/.git/config", "file", "file")], [], ["/ws/s/.git/config"]),
        ([change(b"s/.git/config", "file")], [], ["/ws/s/.git/config"]),
        ([change(b"s/.git/hooks/x", None, "file")], [], ["/ws/s/.git/hooks/x"]),
        ([change(b"s/.git", "file", "file")], [], ["/ws/s/.git"]),
        ([change(b"s/.git", "file")], [("remove", "s/.git", [])], []),
        # one that is gone with all that it had
        (
            [change(b"s", "dir"), change(b"s/.git", "dir"), change(b"s/.git/config", "file")],
            [("remove", "s", [("s/.git", "deleted"), ("s/.git/config", "deleted")])],
            [],
        ),
        (
            [change(b"s", "dir", "file"), change(b"s/.git", "dir"), change(b"s/.git/config", "file"),
             change(b"u", None, "file")],
            [("put", "s", [("s/.git", "deleted"), ("s/.git/config", "deleted")]), ("put", "u", [])],
            [],
        ),
        # one in a directory that was made anew, which is as if it had stayed
        (
            [change(b"s", "dir", "dir", 0o755), change(b"s/.git", "dir", "dir", 0o755),
             change(b"s/.git/config", "file", "file"), change(b"s/.git/hooks", "dir"), change(b"s/.git/hooks/x", "file")],
            [],
            ["/ws/s/.git/config", "/ws/s/.git/hooks"],
        ),
    ],
)  # fmt: skip
def test_what_is_done_around_them(changes, done, left):
    assert decided(*changes) == (done, left)


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path)
    yield made
    made.close()


def test_a_directory_made_anew_around_one(rig):
    """In a real tree: it is as if the directory had stayed."""
    for name in ("HEAD", "config", "hooks/pre-commit"):
        rig.put(rig.ws / "sub/.git" / name, "old\n")
    rig.begin()
    for name in ("HEAD", "config", "hooks/pre-commit", "hooks/other"):
        rig.write(f"sub/.git/{name}")
    os.setxattr(rig.layer / "sub", "user.overlay.opaque", b"y")
    applied = rig.end(protected=(HOOKS, CONFIG)).apply()
    names = ("config", "hooks")
    assert [os.path.relpath(each.path, rig.ws) for each in applied.left_out] == [
        f"sub/.git/{name}" for name in names
    ]
    old = {"sub/.git/config": b"old\n", "sub/.git/hooks/pre-commit": b"old\n"}
    assert rig.tree() == without(**{"sub/.git/HEAD": b"new\n", **old})


EVIL = "#!/bin/sh\necho ran > {place}/ran\n"
ATTACK = """
set -e
git init -q sub
printf '%s' '{evil}' > sub/evil; chmod 755 sub/evil
git -C sub config core.fsmonitor "$PWD/sub/evil"
printf '%s' '{evil}' > sub/.git/hooks/post-index-change; chmod 755 sub/.git/hooks/post-index-change
echo text > sub/file
mkdir other; cp -r sub/.git other/settings; echo "gitdir: settings" > other/.git
"""


@pytest.mark.kernel
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("protect", [True, False])
@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_later_git_runs_nothing_of_the_programs(tmp_path, identity, protect):
    work = make_place(tmp_path)
    if identity == "dropped":
        os.chown(work, NOBODY, NOBODY)
    keep = {} if protect else {"protect": []}
    script = ATTACK.format(evil=EVIL.format(place=work).replace("\n", "\\n"))
    # printf takes the escapes from its first argument only
    script = script.replace("printf '%s' ", "printf ")
    result = stockade.run(
        ["sh", "-c", script],
        cwd=str(work),
        policy=policy(identity, filesystem={"workspace": "overlay", **keep}),
        env={"HOME": "/tmp"},
    )
    assert (result.outcome, result.exit_code) == ("exited", 0), (result.reason, result.stderr)
    with result.changes:
        applied = result.apply()
    assert (work / "sub/file").read_text() == "text\n"
    assert (work / "sub/.git/HEAD").exists()
    left = {os.path.relpath(each.path, work) for each in applied.left_out}
    for name in ("sub", "other"):
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
        command = ["git", "-c", "safe.directory=*", "-C", name, "status"]
        subprocess.run(command, cwd=work, env=environment, capture_output=True, check=False, timeout=20)
        ran = (work / "ran").exists()
        assert ran is not protect, (name, left)
        (work / "ran").unlink(missing_ok=True)
    assert left == ({"sub/.git/config", "sub/.git/hooks", "other/.git"} if protect else set())
