"""What is found in a path, and what can't be reviewed, with the reason."""

from __future__ import annotations

import json

import pytest

from stockade.policies.errors import RequestError
from stockade.sandbox.review import discovery


def command(text: str, **more: object) -> dict[str, object]:
    return {"type": "command", "command": text, "timeout": 5, **more}


def hooks_file(path, **events: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"hooks": {event: [{"hooks": handlers}] for event, handlers in events.items()}}
    path.write_text(json.dumps(document, indent=1))


@pytest.fixture
def plugin(tmp_path):
    top = tmp_path / "plugin"
    (top / "scripts").mkdir(parents=True)
    (top / "scripts/guard.py").write_text("print()\n")
    root = '"${CLAUDE_PLUGIN_ROOT}"'
    hooks_file(
        top / "hooks/hooks.json",
        PreToolUse=[command(f"python3 {root}/scripts/guard.py"), command(f"node {root}/gone.js")],
        Stop=[
            command("echo done"),
            {"type": "http", "url": "https://hooks.example/x"},
            {"type": "prompt", "prompt": "?"},
        ],
    )
    return top


def test_handlers_are_found_with_scripts_language_and_static_findings(plugin) -> None:
    found = discovery.find(plugin)
    labels = [each.label for each in found.handlers]
    assert labels == [
        f"hooks/hooks.json {name}" for name in ("PreToolUse 1", "PreToolUse 2", "Stop 1", "Stop 2", "Stop 3")
    ]
    guard, gone, done, *_rest = found.handlers
    assert (guard.scripts, guard.language) == (("scripts/guard.py",), "python")
    assert (gone.language, done.language) == ("javascript", "shell")
    assert "missing_script" in {each.code for each in gone.static}
    assert found.root == str(plugin)


def test_what_is_no_program_is_not_reviewed(plugin) -> None:
    left = dict(discovery.find(plugin).not_reviewed)
    assert "a request that the host sends" in left["hooks/hooks.json Stop 2"]
    assert "a prompt for a model" in left["hooks/hooks.json Stop 3"]
    assert "hooks/hooks.json PreToolUse 1" not in left


def test_labels_are_the_same_for_another_copy(plugin, tmp_path) -> None:
    import shutil

    shutil.copytree(plugin, tmp_path / "newer")
    assert [each.label for each in discovery.find(tmp_path / "newer").handlers] == [
        each.label for each in discovery.find(plugin).handlers
    ]


def test_the_file_alone_finds_the_same(plugin) -> None:
    assert [each.label for each in discovery.find(plugin / "hooks/hooks.json").handlers] == [
        each.label for each in discovery.find(plugin).handlers
    ]


def test_archives_are_named_and_left_packed(plugin) -> None:
    (plugin / "extra.zip").write_bytes(b"PK\x03\x04")
    (plugin / "node_modules").mkdir()
    (plugin / "node_modules/x.tgz").write_bytes(b"")
    left = dict(discovery.find(plugin).not_reviewed)
    assert "it is an archive" in left["extra.zip"]
    assert "it is an archive" in dict(discovery.find(plugin / "extra.zip").not_reviewed)["extra.zip"]


def test_a_broken_file_is_not_reviewed(plugin) -> None:
    (plugin / ".claude").mkdir()
    (plugin / ".claude/settings.json").write_text('{"hooks": {')
    found = discovery.find(plugin)
    assert any(name == ".claude/settings.json" for name, _why in found.not_reviewed)
    assert found.handlers


@pytest.mark.parametrize(
    ("name", "text", "dialect", "events"),
    [
        ("g.sh", "#!/bin/sh\ncat\n", "claude", ["PreToolUse", "UserPromptSubmit", "SessionStart"]),
        ("g.py", "if e['hook_event_name'] == 'Stop': pass\n", "claude", ["Stop"]),
        ("g.py", "BeforeTool\nAfterTool\n", "gemini", ["BeforeTool", "AfterTool"]),
        ("g.js", "beforeShellExecution", "cursor", ["beforeShellExecution"]),
        ("g.sh", "# for pre_tool_execution", "antigravity", ["pre_tool_execution"]),
    ],
)
def test_a_script_alone_tells_what_it_is_for(
    tmp_path, name: str, text: str, dialect: str, events: list[str]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    found = discovery.find(path)
    assert [each.spec.event for each in found.handlers] == events
    assert {each.spec.dialect for each in found.handlers} == {dialect}
    assert "no hooks file says how it is used" in found.problems[0]


def test_an_executable_script_is_started_as_it_is(tmp_path) -> None:
    path = tmp_path / "guard"
    path.write_text("#!/usr/bin/env python3\n")
    assert discovery.find(path).not_reviewed or discovery.find(path).handlers
    path.chmod(0o755)
    (first, *_more) = discovery.find(path).handlers
    assert (first.spec.command, first.language) == ((str(path),), "python")


def test_what_nothing_tells_how_to_start_is_not_reviewed(tmp_path) -> None:
    path = tmp_path / "thing.awk"
    path.write_text("{ print }\n")
    found = discovery.find(path)
    assert found.handlers == ()
    assert "not executable" in dict(found.not_reviewed)["thing.awk"]


def test_nothing_is_there(tmp_path) -> None:
    with pytest.raises(RequestError, match="no such file"):
        discovery.find(tmp_path / "none")
    assert discovery.find(tmp_path).handlers == ()
