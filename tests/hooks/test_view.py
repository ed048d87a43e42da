"""What a hook is shown beside its workspace."""

from __future__ import annotations

import os

import pytest

from stockade.sandbox.hooks.dialects import dialect
from stockade.sandbox.hooks.model import HookEvent
from stockade.sandbox.hooks.view import may_show, place_of, reads, root_of, variables, withheld
from stockade.sandbox.hooks.words import Target


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        ("~/guard.py", "~/guard.py"),
        ("~/bin/guard.py", "~/bin/guard.py"),
        ("~/tools/guards/guard.py", "~/tools/guards"),
        ("~/.claude/hooks/guard.py", "~/.claude/hooks"),
        ("~/.claude/guard.py", "~/.claude/guard.py"),  # credentials lie beside it
        ("~/.ssh/x/guard.py", "~/.ssh/x/guard.py"),
        ("~/.config/gh/guard.py", "~/.config/gh/guard.py"),
        ("/usr/bin/python3", ""),
    ],
)
def test_below_a_home_a_script_brings_as_little_as_it_can(tmp_path, script, shown):
    home = os.path.realpath(tmp_path)
    assert place_of(script.replace("~", home), "/", home) == shown.replace("~", home)


def test_in_a_shared_place_only_a_directory_of_its_own_is_shown():
    assert place_of("/tmp/guard.py", "/", "/home/x") == "/tmp/guard.py"
    assert place_of("/tmp/plugin/guard.py", "/", "/home/x") == "/tmp/plugin"


@pytest.mark.parametrize(
    "path", ["/", "/home", "/root", "/usr", "/etc", "/tmp", "/var", "/proc/1", "/nowhere/at/all"]
)
def test_nothing_that_holds_a_home_or_the_system_is_shown(path):
    assert not may_show(path, "/home/x")


def test_what_an_event_names(tmp_path):
    home = tmp_path / "home"
    for name in ("home/proj/sub", "home/plug/hooks", "home/.claude/projects/p"):
        (tmp_path / name).mkdir(parents=True)
    transcript = home / ".claude/projects/p/t.jsonl"
    transcript.write_text("{}")
    event = HookEvent("claude", "Stop", "stop", {}, project_dir=str(home / "proj"), transcript_path=str(transcript))
    found = Target("python3", str(home / "plug/hooks/x.py"))
    shown = reads(event, str(home / "plug"), found, cwd=str(home / "proj/sub"), home=str(home))
    assert shown == [str(home / "plug"), str(home / "proj"), str(transcript)]
    assert reads(event, str(home), None, cwd=str(home / "proj"), home=str(home)) == [str(transcript)]


def test_variables_of_the_host_and_nobody_elses():
    event = HookEvent("claude", "Stop", "stop", {}, cwd="/w")
    caller = {
        "CLAUDE_PROJECT_DIR": "/p", "ANTHROPIC_API_KEY": "secret", "CLAUDE_ENV_FILE": "/e", "CLAUDE_PLUGIN_OPTION_X": "1",
    }  # fmt: skip
    found = variables(dialect("claude"), event, "/r", caller)
    assert found == {"CLAUDE_PROJECT_DIR": "/p", "CLAUDE_PLUGIN_ROOT": "/r", "CLAUDE_PLUGIN_OPTION_X": "1"}


def test_the_root_is_given_or_told_by_the_host():
    assert root_of("/given", {"CLAUDE_PLUGIN_ROOT": "/told"}) == "/given"
    assert root_of("", {"PLUGIN_ROOT": "/told"}) == "/told"
    assert root_of("", {}) == ""


def test_names_withheld():
    assert withheld(["LANG", "AWS_SECRET", "X"], ["LANG", "LC_*"], ["X"]) == ("AWS_SECRET",)
