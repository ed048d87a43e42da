"""Which hooks files a directory has."""

from __future__ import annotations

import json
import os

import pytest

from stockade.sandbox.hooks import discover as discovering
from stockade.sandbox.hooks.config import examine
from stockade.sandbox.hooks.config.switches import settled
from stockade.sandbox.hooks.discover import discover

COMMAND = {"type": "command", "command": "x"}
CLAUDE = {"hooks": {"Stop": [{"hooks": [COMMAND]}]}}
CURSOR = {"version": 1, "hooks": {"stop": [{"command": "x"}]}}


@pytest.fixture
def put(tmp_path):
    """Writes a file of the tree; returns its path."""

    def put(name: str, document) -> str:
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return str(path)

    (tmp_path / "tree").mkdir()
    return put


def listed(tmp_path, **named):
    top = str(tmp_path / "tree")
    return [
        (os.path.relpath(each.path, top), each.dialect, each.provenance) for each in discover(top, **named)
    ]  # fmt: skip


def test_the_projects_own_files_come_first_then_those_below(put, tmp_path):
    put(".claude/settings.json", CLAUDE)
    put(".claude/settings.local.json", CLAUDE)
    put(".codex/config.toml", '[[hooks.Stop]]\n[[hooks.Stop.hooks]]\ntype = "command"\ncommand = "x"\n')
    put(".cursor/hooks.json", CURSOR)
    put("a/.claude-plugin/plugin.json", {"name": "a"})
    put("a/hooks/hooks.json", CLAUDE)
    put(
        "a/skills/s/SKILL.md",
        "---\nhooks:\n  Stop:\n    - hooks:\n        - type: command\n          command: x\n---\n",
    )
    put("b/gemini-extension.json", "{}")
    put("b/hooks/hooks.json", {"hooks": {"BeforeTool": [{"hooks": [COMMAND]}]}})
    assert listed(tmp_path) == [
        (".claude/settings.local.json", "claude", "project-local"),
        (".claude/settings.json", "claude", "project"),
        (".codex/config.toml", "codex", "project"),
        (".cursor/hooks.json", "cursor", "project"),
        ("a/hooks/hooks.json", "claude", "plugin"),
        ("a/skills/s/SKILL.md", "claude", "file"),
        ("b/hooks/hooks.json", "gemini", "extension"),
    ]
    assert listed(tmp_path, dialect="cursor") == [(".cursor/hooks.json", "cursor", "project")]


def test_the_users_own_files_are_looked_at_when_asked(put, tmp_path):
    home = tmp_path / "home"
    (home / ".claude").mkdir(parents=True)
    (home / ".claude" / "settings.json").write_text(json.dumps(CLAUDE))
    put(".claude/settings.json", CLAUDE)
    assert [each[2] for each in listed(tmp_path)] == ["project"]
    assert [each[2] for each in listed(tmp_path, home=str(home)) if each[2] != "managed"] == ["project", "user"]


def test_a_switch_in_one_settings_file_counts_for_all(put, tmp_path):
    home = tmp_path / "home"
    (home / ".claude").mkdir(parents=True)
    (home / ".claude" / "settings.json").write_text(json.dumps(CLAUDE))
    put(".claude/settings.json", {**CLAUDE, "disableAllHooks": True})
    put(".cursor/hooks.json", CURSOR)
    put("p/hooks/hooks.json", CLAUDE)

    def on():
        found = discover(str(tmp_path / "tree"), home=str(home))
        return {each.provenance + " " + each.dialect: each.specs[0].enabled for each in found if each.specs}

    expected = {"project claude": False, "project cursor": True, "file claude": True, "user claude": False}
    assert on() == expected
    put(".claude/settings.local.json", {"disableAllHooks": False})
    assert on() == {**expected, "project claude": True, "user claude": True}
    put(".claude/settings.local.json", {"disableAllHooks": True})
    assert on() == expected


def test_managed_files_can_leave_no_others(put, tmp_path):
    managed = tmp_path / "managed-settings.json"
    managed.write_text(json.dumps({"allowManagedHooksOnly": True}))
    put(".claude/settings.json", CLAUDE)
    found = [
        examine(str(managed), "claude", provenance="managed"),
        examine(str(tmp_path / "tree/.claude/settings.json")),
    ]
    assert [each.enabled for each in found[1].specs] == [True]
    (_first, second) = settled(found)
    assert [each.enabled for each in second.specs] == [False]
    assert "allowManagedHooksOnly" in second.problems[0].text


def test_a_manifest_leads_to_its_files(put, tmp_path):
    put("p/.claude-plugin/plugin.json", {"name": "p", "hooks": "./odd/place.json"})
    put("p/odd/place.json", CLAUDE)
    assert listed(tmp_path) == [("p/odd/place.json", "claude", "plugin")]
    found = discover(str(tmp_path / "tree"))
    assert found[0].root == str(tmp_path / "tree" / "p")


def test_a_file_that_two_ways_lead_to_is_there_once(put, tmp_path):
    put("p/.claude-plugin/plugin.json", {"name": "p", "hooks": "./hooks/hooks.json"})
    put("p/hooks/hooks.json", CLAUDE)
    os.symlink("hooks", tmp_path / "tree" / "p" / "again")
    assert listed(tmp_path) == [("p/hooks/hooks.json", "claude", "plugin")]


def test_no_link_leads_out_of_the_tree(put, tmp_path):
    outside = tmp_path / "outside"
    (outside / "hooks").mkdir(parents=True)
    (outside / "hooks" / "hooks.json").write_text(json.dumps(CLAUDE))
    inside = put("hooks/hooks.json", CLAUDE)
    os.symlink(outside, tmp_path / "tree" / "linked")
    (tmp_path / "tree" / ".cursor").mkdir()
    os.symlink(outside / "hooks" / "hooks.json", tmp_path / "tree" / ".cursor" / "hooks.json")
    put("p/.claude-plugin/plugin.json", {"name": "p", "hooks": "../../outside/hooks/hooks.json"})
    os.symlink(inside, tmp_path / "tree" / "p" / "hooks.json")
    assert [each for each in listed(tmp_path) if each[1]] == [
        ("hooks/hooks.json", "claude", "file"),
        ("p/.claude-plugin/plugin.json", "claude", "plugin"),
    ]
    found = discover(str(tmp_path / "tree"))
    assert [(each.code, each.file.removeprefix(f"{tmp_path}/")) for more in found for each in more.problems] == [
        ("not_looked_at", "tree/.cursor/hooks.json"),
        ("not_looked_at", "outside/hooks/hooks.json"),
    ]
    assert {spec.source for more in found for spec in more.specs} == {str(inside)}


def test_what_others_installed_is_passed_over(put, tmp_path):
    for folder in ("node_modules/x", ".git", ".venv", "deep/node_modules/y"):
        put(f"{folder}/hooks/hooks.json", CLAUDE)
    put("deep/hooks/hooks.json", CLAUDE)
    assert [each[0] for each in listed(tmp_path)] == ["deep/hooks/hooks.json"]


def test_files_of_others_are_none_of_ours(put, tmp_path):
    put("src/hooks.json", {"useState": 1})
    put(".claude/settings.json", {"model": "x"})
    put("package.json", {"hooks": {}})
    put("docs/agents/a.md", "---\nname: a\n---\n")
    assert listed(tmp_path) == []


def test_files_of_unknown_hosts_are_told_and_not_judged(put, tmp_path):
    put("configs/other/hooks.json", {"hooks": {"PreToolUse": [COMMAND]}})
    (found,) = discover(str(tmp_path / "tree"))
    assert [(each.code, each.severity) for each in found.problems] == [("unknown_host", "low")]
    assert not found.broken


def test_broken_files_at_a_hosts_place_are_told(put, tmp_path):
    put(".claude/settings.json", "{'hooks': 1}")
    put("p/hooks/hooks.json", "nonsense")
    found = discover(str(tmp_path / "tree"))
    assert [each.problems[0].code for each in found] == ["unreadable", "unreadable"]
    assert all(each.broken for each in found)


def test_a_tree_that_is_too_large_says_so(put, tmp_path, monkeypatch):
    monkeypatch.setattr(discovering, "MOST_ENTRIES", 3)
    put(".claude/settings.json", CLAUDE)
    for number in range(5):
        put(f"x/{number}", "")
    found = discover(str(tmp_path / "tree"))
    assert found[0].specs
    assert [each.code for each in found[-1].problems] == ["not_looked_at"]


def test_a_directory_that_can_not_be_read_says_so(put, tmp_path, monkeypatch):
    put("shut/hooks/hooks.json", CLAUDE)
    listing = os.scandir

    def refusing(path):
        if str(path).endswith("/shut"):
            raise PermissionError(13, "Permission denied")
        return listing(path)

    monkeypatch.setattr(discovering.os, "scandir", refusing)
    found = discover(str(tmp_path / "tree"))
    assert [(each.code, each.severity) for each in found[-1].problems] == [("not_looked_at", "error")]
    assert "permission denied" in found[-1].problems[0].text
