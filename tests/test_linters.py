"""The sources hold what the rules say: linters, types, words that must not be committed, the import budget."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BARE = {"sandbox", "netns", "policies"}
HEAVY = {"asyncio", "json", "msgspec", "psutil", "argparse", "dataclasses", "typing"}
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|farm)/")


def committed_files() -> list[Path]:
    """What is committed or would be; links are left out, their targets are files of the repository themselves."""
    listing = ["git", "-C", str(ROOT), "-c", f"safe.directory={ROOT}", "ls-files", "-coz", "--exclude-standard"]
    done = subprocess.run(listing, capture_output=True, check=True)
    paths = [ROOT / os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def python_trees() -> list[tuple[str, ast.Module]]:
    files = [path for path in committed_files() if path.suffix == ".py"]
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_bytes())) for path in files]


@pytest.mark.lint
@pytest.mark.parametrize(
    "command",
    [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]],
    ids=["ruff-check", "ruff-format", "mypy"],
)
def test_linter_is_content(command: list[str]) -> None:
    tool = shutil.which(command[0], path=str(Path(sys.executable).parent))
    if tool is None:
        pytest.skip(f"{command[0]} is not installed beside {sys.executable}")
    done = subprocess.run([tool, *command[1:]], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}", pytrace=False)


@pytest.mark.lint
def test_no_path_of_one_machine_is_committed() -> None:
    found = []
    for path in committed_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE_PATH.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("cd /{}/x", True),
        ("path=/{}/a", True),
        ('"/{}/main"', True),
        ("/home/me/{}/x", False),
        ("~/{}/x", False),
        ("/{}space/x", False),
    ],
)
def test_a_machine_path_is_told_from_an_ordinary_one(text: str, *, matches: bool) -> None:
    for name in ("work", "farm"):
        assert bool(MACHINE_PATH.search(text.format(name))) is matches


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []


def runs_a_shell(node: ast.AST) -> bool:
    return isinstance(node, ast.keyword) and node.arg == "shell" and getattr(node.value, "value", None) is True


@pytest.mark.lint
def test_no_bare_import_of_our_folders() -> None:
    found = [
        f"{path}:{getattr(node, 'lineno', 0)}: {name}"
        for path, tree in python_trees()
        for node in ast.walk(tree)
        for name in imported(node)
        if name.split(".")[0] in BARE
    ]
    assert not found, "\n".join(found)


@pytest.mark.lint
def test_no_call_goes_through_a_shell() -> None:
    found = [
        f"{path}:{getattr(node, 'lineno', 0)}"
        for path, tree in python_trees()
        for node in ast.walk(tree)
        if runs_a_shell(node)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "names"),
    [("import netns.lease", ["netns.lease"]), ("from sandbox import run", ["sandbox"]), ("from . import x", [])],
)
def test_imports_are_found(source: str, names: list[str]) -> None:
    assert [name for node in ast.walk(ast.parse(source)) for name in imported(node)] == names


def test_a_shell_is_found() -> None:
    assert any(runs_a_shell(node) for node in ast.walk(ast.parse("f('x', shell=True)")))
    assert not any(runs_a_shell(node) for node in ast.walk(ast.parse("f('x', shell=False)")))


def modules_after(statement: str) -> set[str]:
    """Without site and its .pth files, which import things of their own and would hide ours."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_stockade_costs_next_to_nothing() -> None:
    bare = modules_after("pass")
    assert HEAVY & (modules_after("import json, typing") - bare) >= {"json", "typing"}, "the check sees an import"
    assert sorted((modules_after("import stockade") - bare) & HEAVY) == []
