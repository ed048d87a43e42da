"""Whose code it is: by place, by git, and that asking git runs nothing of the repository's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from stockade.policies.provenance import foreign_by_path, provenance, tracked

GIT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "HOME": "/nonexistent",
    "PATH": os.environ["PATH"],
}
IDENTITY = (
    "-c",
    "user.name=t",
    "-c",
    "user.email=t@t.test",
    "-c",
    "protocol.file.allow=always",
    "-c",
    "commit.gpgSign=false",
)


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *IDENTITY, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=GIT).stdout


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "repo"
    folder.mkdir()
    git(folder, "init", "-q")
    for name in ("hook.sh", "node_modules/x/i.js", "vendor/v.sh", "[odd] *.sh", "sub/deep.sh"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("#!/bin/sh\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "all")
    (folder / "untracked.sh").write_text("#!/bin/sh\n")
    return folder


@pytest.mark.parametrize(
    ("path", "project", "foreign"),
    [
        ("/home/u/p/hook.sh", "/home/u/p", False),
        ("/home/u/p/a/b/hook.sh", "/home/u/p", False),
        ("/home/u/p/plugins", "/home/u/p", False),
        ("/home/u/p", "/home/u/p", True),
        ("/home/u/px/hook.sh", "/home/u/p", True),
        ("/home/u/hook.sh", "/home/u/p", True),
        ("/usr/bin/env", "/home/u/p", True),
        ("/home/u/p/node_modules/x/i.js", "/home/u/p", True),
        ("/home/u/p/a/site-packages/x.py", "/home/u/p", True),
        ("/home/u/p/a/dist-packages/x.py", "/home/u/p", True),
        ("/home/u/p/.venv/bin/x", "/home/u/p", True),
        ("/home/u/p/venv/bin/x", "/home/u/p", True),
        ("/home/u/p/vendor/x", "/home/u/p", True),
        ("/home/u/p/plugins/x", "/home/u/p", True),
        ("/home/u/p/.claude/plugins/x/h.sh", "/home/u/p", True),
        ("/home/u/p/.claude/hooks/h.sh", "/home/u/p", False),
        ("/home/u/p/.git/hooks/pre-commit", "/home/u/p", True),
        ("/home/u/Downloads/x.sh", "/home/u", True),
        ("/home/u/Downloads/p/x.sh", "/home/u/Downloads/p", True),
        ("/home/u/.claude/plugins/p/x.sh", "/home/u/.claude/plugins/p", True),
        ("/home/u/dev/plugins/p/x.sh", "/home/u/dev/plugins/p", False),
        ("/home/u/q/node_modules/p/x.sh", "/home/u/q/node_modules/p", True),
        ("/tmp/x.sh", "/tmp", True),
        ("/tmp/x.sh", "/", True),
        ("/tmp/p/x.sh", "/tmp/p", False),
        ("/home/u/x.sh", "/", True),
    ],
)
def test_by_path(path: str, project: str, foreign: bool) -> None:
    assert foreign_by_path(path, project) is foreign


@pytest.mark.parametrize("name", ["hook.sh", "[odd] *.sh", "sub/deep.sh"])
def test_tracked_is_trusted(repo: Path, name: str) -> None:
    assert provenance(str(repo / name), str(repo)) == "trusted"


@pytest.mark.parametrize(
    "name", ["untracked.sh", "absent.sh", "node_modules/x/i.js", "vendor/v.sh", "sub", ".", "..", "*.sh"]
)
def test_the_rest_is_foreign(repo: Path, name: str) -> None:
    assert provenance(str(repo / name), str(repo)) == "foreign"


def test_links_are_resolved_first(repo: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.sh"
    outside.write_text("#!/bin/sh\n")
    (repo / "link.sh").symlink_to(outside)
    (repo / "inner.sh").symlink_to("hook.sh")
    git(repo, "add", "link.sh", "inner.sh")
    assert provenance(str(repo / "link.sh"), str(repo)) == "foreign"
    assert provenance(str(repo / "inner.sh"), str(repo)) == "trusted"
    (tmp_path / "alias").symlink_to(repo)
    assert provenance(str(tmp_path / "alias" / "hook.sh"), str(tmp_path / "alias")) == "trusted"


def test_no_repository_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_text("#!/bin/sh\n")
    assert provenance(str(tmp_path / "x.sh"), str(tmp_path)) == "foreign"
    assert provenance("x\0.sh", str(tmp_path)) == "foreign"


def test_nested_clone_and_submodule_are_foreign(repo: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "x.sh").write_text("#!/bin/sh\n")
    git(other, "add", "-A")
    git(other, "commit", "-q", "-m", "x")
    git(repo, "clone", "-q", str(other), "clone")
    git(repo, "submodule", "--quiet", "add", str(other), "module")
    assert provenance(str(other / "x.sh"), str(other)) == "trusted"
    assert provenance(str(repo / "clone" / "x.sh"), str(repo)) == "foreign"
    assert provenance(str(repo / "module" / "x.sh"), str(repo)) == "foreign"
    assert provenance(str(repo / "module" / "x.sh"), str(repo / "module")) == "foreign"


def test_worktree_is_the_same_project(repo: Path, tmp_path: Path) -> None:
    git(repo, "worktree", "add", "-q", str(tmp_path / "modules" / "tree"))
    tree = (tmp_path / "modules" / "tree").resolve()
    assert provenance(str(tree / "hook.sh"), str(tree)) == "trusted"


def test_nothing_of_the_repository_runs(repo: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    script = tmp_path / "evil.sh"
    script.write_text(f"#!/bin/sh\necho ran >> {marker}\n")
    script.chmod(0o755)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        (hooks / name).write_bytes(script.read_bytes())
        (hooks / name).chmod(0o755)
    config = {
        "core.fsmonitor": str(script), "core.hooksPath": str(hooks), "core.pager": str(script),
        "core.sshCommand": str(script), "core.editor": str(script), "diff.external": str(script),
        "alias.ls-files": f"!{script}", "filter.x.clean": str(script),
    }  # fmt: skip
    for key, value in config.items():
        git(repo, "config", key, value)
    subprocess.run(["git", "-C", str(repo), "status"], check=False, capture_output=True, env=GIT)
    assert marker.exists(), "positive control: an ordinary git status runs the planted monitor"
    marker.unlink()
    assert provenance(str(repo / "hook.sh"), str(repo)) == "trusted"
    assert provenance(str(repo / "untracked.sh"), str(repo)) == "foreign"
    assert not marker.exists()


def test_the_callers_git_variables_do_not_matter(
    repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GIT_DIR", str(repo / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance(str(repo / "hook.sh"), str(repo)) == "trusted"
    assert not tracked(str(repo / "untracked.sh"), str(repo))


def test_without_git_nothing_is_known(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stockade.policies.provenance.GIT", ("/nonexistent/git",))
    assert provenance(str(repo / "hook.sh"), str(repo)) == "foreign"


def test_broken_repository_is_foreign(repo: Path) -> None:
    (repo / ".git" / "index").write_bytes(b"not an index")
    assert provenance(str(repo / "hook.sh"), str(repo)) == "foreign"
