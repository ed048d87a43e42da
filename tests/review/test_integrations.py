"""The GitHub Action and the pre-commit hooks: well-formed, without a way in for what the reviewed tree chooses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stockade.sandbox.cli.main import COMMANDS
from stockade.sandbox.cli.options import parse
from stockade.sandbox.cli.review import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
STEPS = ACTION["runs"]["steps"]
SPOKEN = "critical  ::error::owned\n```\n<script>\n"


def step(name: str) -> dict:
    return next(each for each in STEPS if each["name"] == name)


# --- the action -------------------------------------------------------------------------------------------


def test_the_action_is_a_composite_one() -> None:
    assert ACTION["runs"]["using"] == "composite"
    assert all(each["shell"] == "bash" for each in STEPS)
    assert all(isinstance(each["default"], str) and each["description"] for each in ACTION["inputs"].values())


def test_no_input_is_put_into_a_script() -> None:
    """An expression in a script is pasted in as text: what it says would be executed."""
    assert [each["name"] for each in STEPS if "${{" in each["run"]] == []
    assert "${{ inputs.path }}" in step("Review")["env"].values()


def test_outputs_come_from_the_step_that_writes_them() -> None:
    named = set(re.findall(r'echo "([a-z-]+)=\$', step("Review")["run"]))
    assert named == set(ACTION["outputs"])


@pytest.mark.parametrize("name", [each["name"] for each in STEPS])
def test_scripts_are_bash(name: str) -> None:
    subprocess.run(["bash", "-n"], input=step(name)["run"], text=True, check=True)


def carried_out(folder: Path, code: int) -> tuple[subprocess.CompletedProcess[str], dict[str, str], list[str]]:
    """The step, with a stockade that only notes its arguments, writes the SARIF file and ends with ``code``."""
    program = folder / "stockade/bin/stockade"
    program.parent.mkdir(parents=True)
    said = folder / "said"
    said.write_text(SPOKEN, encoding="utf-8")
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{folder}/argv\necho x >a.sarif\ncat {said}\nexit {code}\n')
    program.chmod(0o755)
    variables = {
        "PATH": os.environ["PATH"], "RUNNER_TEMP": str(folder), "GITHUB_OUTPUT": str(folder / "output"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary"), "REVIEW_PATH": "-x; $(touch owned) `id`", "FAIL_ON": "low",
        "SARIF": "a.sarif", "HTML": "a.html", "JSON": "a.json",
    }  # fmt: skip
    # As the runner starts it: bash --noprofile --norc -eo pipefail FILE
    script = folder / "step.sh"
    script.write_text(step("Review")["run"], encoding="utf-8")
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
    done = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True)
    outputs = dict(each.split("=", 1) for each in (folder / "output").read_text().splitlines())
    return done, outputs, (folder / "argv").read_text().splitlines()


@pytest.mark.parametrize("code", [0, 1, 125])
def test_the_step_ends_as_the_review_did(tmp_path: Path, code: int) -> None:
    done, outputs, argv = carried_out(tmp_path, code)
    assert done.returncode == code, done.stderr
    assert outputs == {"exit-code": str(code), "sarif": "a.sarif"}
    assert argv[-2:] == ["--", "-x; $(touch owned) `id`"]
    assert not (tmp_path / "owned").exists()
    parsed = parse(OPTIONS, argv[1:], rest="args")
    assert (parsed.values["level"], parsed.values["sarif"], parsed.values["json"]) == ("low", "a.sarif", "a.json")


def test_what_is_printed_is_no_command_and_no_markdown(tmp_path: Path) -> None:
    done, _outputs, _argv = carried_out(tmp_path, 1)
    lines = done.stdout.splitlines()
    assert (token := re.fullmatch(r"::stop-commands::([0-9a-f]{32})", lines[0]))
    assert lines[-1] == f"::{token[1]}::"
    assert lines[1:-1] == SPOKEN.splitlines()
    summary = (tmp_path / "summary").read_text().splitlines()
    assert summary == [f"    {each}" for each in SPOKEN.splitlines()]


def test_the_extras_that_it_installs_exist() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (names,) = re.findall(r"\$HERE\[([a-z,]+)\]", step("Install stockade")["run"])
    assert all(re.search(rf"^{name} = \[", project, re.MULTILINE) for name in names.split(","))


# --- pre-commit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", HOOKS, ids=lambda each: each["id"])
def test_a_hook_of_pre_commit(hook: dict) -> None:
    assert {"id", "name", "entry", "language", "files"} <= set(hook)
    assert (hook["language"], hook["pass_filenames"]) == ("python", False)
    program, command, *_ = hook["entry"].split()
    assert program == "stockade"
    assert command in COMMANDS


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("hooks/hooks.json", True),
        ("plugins/x/hooks/guard.py", True),
        (".claude/settings.json", True),
        (".agents/hooks.json", True),
        (".cursor/hooks.json", True),
        ("hooks.json", True),
        ("src/webhooks.py", False),
        ("docs/hooks.md", False),
        ("README.md", False),
    ],
)
def test_hooks_run_when_a_hook_changed(path: str, *, wanted: bool) -> None:
    assert [bool(re.search(each["files"], path)) for each in HOOKS] == [wanted] * len(HOOKS)


def test_the_check_runs_as_it_is_defined(tmp_path: Path) -> None:
    (hook,) = [each for each in HOOKS if each["id"] == "stockade-hooks-check"]
    words = [sys.executable, "-m", *hook["entry"].split(), *hook["args"]]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True).returncode == 0
