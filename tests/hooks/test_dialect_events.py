"""What hosts tell their hooks, for every dialect: fields, other hosts' events, the bytes, the variables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.policies.errors import RequestError
from stockade.sandbox.hooks.dialects import NAMES, dialect, payloads
from stockade.sandbox.hooks.model import KINDS, HookEvent, ToolCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PASCAL = {
    "session_id": "s",
    "transcript_path": "/t.jsonl",
    "cwd": "/w",
    "hook_event_name": "PreToolUse",
    "tool_name": "Bash",
    "tool_input": {"command": "ls"},
    "tool_use_id": "u",
}
RAW: dict[str, dict[str, Any]] = {
    "claude": {**PASCAL, "permission_mode": "default", "prompt_id": "p", "effort": {"level": "high"}},
    "codex": {**PASCAL, "transcript_path": None, "model": "m", "turn_id": "1", "permission_mode": "default"},
    "antigravity": {"tool_call": {"name": "code_execution", "args": {"command": "ls"}}, "environment_id": "s"},
    "agy": {
        "conversationId": "s",
        "workspacePaths": ["/w", "/v"],
        "transcriptPath": "/t.jsonl",
        "toolCall": {"name": "run_command", "args": {"CommandLine": "ls"}},
        "stepIdx": 3,
    },
    "gemini": {**PASCAL, "hook_event_name": "BeforeTool", "timestamp": "2026-08-01T00:00:00Z"},
    "cursor": {
        "conversation_id": "s",
        "generation_id": "g",
        "hook_event_name": "preToolUse",
        "cursor_version": "2.0",
        "workspace_roots": ["/w"],
        "user_email": "me@example.com",
        "transcript_path": "/t.jsonl",
        "tool_name": "Shell",
        "tool_input": {"command": "ls"},
        "cwd": "/w/sub",
    },
    "nous": {"event": "pre_tool_use", "payload": {"tool_name": "bash", "arguments": {"command": "ls"}}},
}
READ = {
    "claude": HookEvent(
        "claude", "PreToolUse", "pre_tool", RAW["claude"], "/w", "s", "", "/t.jsonl",
        ToolCall("Bash", {"command": "ls"}, "u"),
    ),
    "codex": HookEvent(
        "codex", "PreToolUse", "pre_tool", RAW["codex"], "/w", "s", "", "", ToolCall("Bash", {"command": "ls"}, "u")
    ),
    "antigravity": HookEvent(
        "antigravity", "pre_tool_execution", "pre_tool", RAW["antigravity"], "", "s", "", "",
        ToolCall("code_execution", {"command": "ls"}),
    ),
    "agy": HookEvent(
        "agy", "PreToolUse", "pre_tool", RAW["agy"], "/w", "s", "/w", "/t.jsonl",
        ToolCall("run_command", {"CommandLine": "ls"}),
    ),
    "gemini": HookEvent(
        "gemini", "BeforeTool", "pre_tool", RAW["gemini"], "/w", "s", "", "/t.jsonl",
        ToolCall("Bash", {"command": "ls"}, "u"),
    ),
    "cursor": HookEvent(
        "cursor", "preToolUse", "pre_tool", RAW["cursor"], "/w/sub", "s", "/w", "/t.jsonl",
        ToolCall("Shell", {"command": "ls"}),
    ),
    "nous": HookEvent(
        "nous", "pre_tool_use", "pre_tool", RAW["nous"], tool=ToolCall("bash", {"command": "ls"})
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_an_event_in_neutral_terms(name: str) -> None:
    assert dialect(name).read_event(RAW[name]) == READ[name]


@pytest.mark.parametrize("name", NAMES)
def test_an_event_of_another_host_is_refused_by_name(name: str) -> None:
    for other in NAMES:
        if other != name:
            with pytest.raises(
                RequestError, match=f"could not read the event as one of {name}: it looks like one of {other}"
            ):
                dialect(name).read_event(RAW[other])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("raw", [[], None, "x", {}, 3])
def test_what_is_no_event_is_refused(name: str, raw: Any) -> None:
    with pytest.raises(RequestError, match=f"could not read the event as one of {name}"):
        dialect(name).read_event(raw)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("claude", {"hook_event_name": ""}, "hook_event_name is empty"),
        ("claude", {"cwd": "w"}, "cwd is no absolute path: 'w'"),
        ("claude", {"cwd": "/w\0"}, "cwd has a NUL"),
        ("claude", {"session_id": 3}, "session_id is no text: 3"),
        ("claude", {"transcript_path": ["/t"]}, "transcript_path is no text"),
        ("claude", {"tool_name": None}, "tool_name is no text"),
        ("claude", {"tool_input": "ls"}, "tool_input is no object: 'ls'"),
        ("claude", {"tool_input": ...}, "tool_input is missing"),
        ("claude", {"tool_name": ...}, "tool_name is missing"),
        ("codex", {"transcript_path": 1}, "transcript_path is no text"),
        ("antigravity", {"tool_call": {"args": {}}}, "name is missing"),
        ("antigravity", {"tool_call": {"name": "x", "args": 1}}, "args is no object"),
        ("antigravity", {"environment_id": 1}, "environment_id is no text"),
        ("agy", {"toolCall": []}, "toolCall is no object"),
        ("agy", {"workspacePaths": "/w"}, "workspacePaths is no list of texts"),
        ("agy", {"workspacePaths": ["w"]}, "workspacePaths is no absolute path"),
        ("gemini", {"tool_input": None}, "tool_input is no object"),
        ("cursor", {"workspace_roots": [1]}, "workspace_roots is no list of texts"),
        ("cursor", {"hook_event_name": "beforeShellExecution"}, "command is missing"),
        ("cursor", {"hook_event_name": "beforeMCPExecution", "tool_input": 1}, "tool_input is no text"),
        ("nous", {"payload": []}, "payload is missing or no object"),
        ("nous", {"event": ""}, "event is empty"),
    ],
)
def test_a_field_of_the_wrong_type_is_named(name: str, change: dict[str, Any], message: str) -> None:
    raw = {key: value for key, value in {**RAW[name], **change}.items() if value is not ...}
    with pytest.raises(RequestError, match=message):
        dialect(name).read_event(raw)


@pytest.mark.parametrize(
    ("name", "raw", "event", "kind", "tool"),
    [
        ("claude", {"hook_event_name": "Stop", "cwd": "/w"}, "Stop", "stop", None),
        ("claude", {"hook_event_name": "Brand.New", "tool_name": "x"}, "Brand.New", "other", ToolCall("x")),
        ("antigravity", {"tool_call": {"name": "x", "args": {}}, "error": "e"}, "post_tool_execution", "post_tool",
         ToolCall("x", {})),
        ("agy", {"conversationId": "c", "terminationReason": "r"}, "Stop", "stop", None),
        ("agy", {"conversationId": "c"}, "other", "other", None),
        ("agy", {"conversationId": "c", "hookEventName": "SessionStart"}, "SessionStart", "session_start", None),
        ("cursor", {"hook_event_name": "beforeShellExecution", "command": "ls"}, "beforeShellExecution", "pre_tool",
         ToolCall("Shell", {"command": "ls"})),
        ("cursor", {"hook_event_name": "beforeMCPExecution", "tool_name": "x", "tool_input": '{"a": 1}'},
         "beforeMCPExecution", "pre_tool", ToolCall("x", {"a": 1})),
        ("cursor", {"hook_event_name": "beforeMCPExecution", "tool_name": "x", "tool_input": "a"},
         "beforeMCPExecution", "pre_tool", ToolCall("x", "a")),
        ("cursor", {"hook_event_name": "beforeReadFile", "file_path": "/f", "content": "c"}, "beforeReadFile",
         "file_read", ToolCall("Read", {"file_path": "/f"})),
        ("cursor", {"hook_event_name": "afterFileEdit", "file_path": "/f"}, "afterFileEdit", "file_edit",
         ToolCall("Write", {"file_path": "/f"})),
        ("nous", {"event": "session_start", "payload": {}}, "session_start", "session_start", None),
    ],
)  # fmt: skip
def test_other_events(name: str, raw: dict[str, Any], event: str, kind: str, tool: ToolCall | None) -> None:
    found = dialect(name).read_event(raw)
    assert (found.name, found.kind, found.tool, found.raw) == (event, kind, tool, raw)


@pytest.mark.parametrize("name", NAMES)
@given(
    more=st.dictionaries(
        st.text(), st.none() | st.booleans() | st.integers() | st.text(st.characters()), max_size=3
    )
)
def test_the_bytes_hold_the_payload_as_it_came(name: str, more: dict[str, Any]) -> None:
    raw = {**more, **RAW[name]}
    data = dialect(name).payload(READ[name].replace(raw=raw))
    assert json.loads(data) == raw
    assert data.endswith(b"\n") == (name == "claude")
    assert b"\n" not in data[:-1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [object(), float("inf"), b"x"])
def test_a_payload_without_a_json_form_is_refused(name: str, value: object) -> None:
    with pytest.raises(RequestError, match="it has no JSON form"):
        dialect(name).payload(READ[name].replace(raw={"a": value}))


def test_letters_stand_for_themselves_as_hosts_write_them() -> None:
    data = dialect("codex").payload(READ["codex"].replace(raw={"a": 'é"\ud800'}))
    assert data == '{"a":"é\\"\\ud800"}'.encode()


@pytest.mark.parametrize("name", NAMES)
def test_the_constants_of_a_dialect(name: str) -> None:
    host = dialect(name)
    assert (name, name == "agy") == (host.NAME, host.PROVISIONAL)
    assert {rule.kind for rule in host.EVENTS.values()} <= set(KINDS)
    assert not any(rule.blocks and rule.feedback for rule in host.EVENTS.values())
    assert host.rule("Brand.New").as_dict() == {"kind": "other", "blocks": False, "feedback": False}
    assert (0.001 if name in ("gemini", "nous") else 1.0) == host.TIMEOUT_UNIT
    assert {"claude": 600, "codex": 600, "antigravity": 30, "agy": 30, "nous": 10}.get(
        name, 60
    ) == host.DEFAULT_TIMEOUT
    assert not any(word in each for each in host.VARIABLES for word in ("ENV_FILE", "KEY", "TOKEN", "GEMINI_*"))


def test_hosts_are_told_by_names_that_they_have() -> None:
    assert dialect("cursor").EVENTS.keys() == payloads.CURSOR_NAMES
    assert dialect("gemini").EVENTS.keys() > payloads.GEMINI_NAMES
    shared = set(dialect("claude").EVENTS) | set(dialect("codex").EVENTS)
    assert not payloads.GEMINI_NAMES & shared
    assert not payloads.CURSOR_NAMES & shared


def test_how_each_host_runs_a_command_line() -> None:
    found = {name: dialect(name).shell_argv("a b") for name in NAMES if name != "nous"}
    assert {name: argv[:-1] for name, argv in found.items()} == {
        "claude": ("/bin/sh", "-c"),
        "codex": ("/bin/bash", "-lc"),
        "antigravity": ("/bin/sh", "-c"),
        "agy": ("/bin/sh", "-c"),
        "gemini": ("/bin/bash", "-c"),
        "cursor": ("/bin/sh", "-c"),
    }
    assert {argv[-1] for argv in found.values()} == {"a b"}
    with pytest.raises(RequestError, match="a program and its arguments"):
        dialect("nous").shell_argv("a b")


def test_the_variables_that_each_host_sets() -> None:
    found = {name: dialect(name).variables(READ[name], "/root") for name in NAMES}
    assert found == {
        "claude": {"CLAUDE_PROJECT_DIR": "/w", "CLAUDE_PLUGIN_ROOT": "/root", "CLAUDE_EFFORT": "high"},
        "codex": {"PLUGIN_ROOT": "/root", "CLAUDE_PLUGIN_ROOT": "/root"},
        "antigravity": {},
        "agy": {},
        "gemini": {
            "GEMINI_PROJECT_DIR": "/w",
            "CLAUDE_PROJECT_DIR": "/w",
            "GEMINI_CWD": "/w",
            "GEMINI_SESSION_ID": "s",
        },
        "cursor": {
            "CURSOR_PROJECT_DIR": "/w",
            "CLAUDE_PROJECT_DIR": "/w",
            "CURSOR_VERSION": "2.0",
            "CURSOR_USER_EMAIL": "me@example.com",
            "CURSOR_TRANSCRIPT_PATH": "/t.jsonl",
        },
        "nous": {},
    }
    for name, variables in found.items():
        known = dialect(name).VARIABLES
        assert all(
            each in known or any(each.startswith(one[:-1]) for one in known if one.endswith("*"))
            for each in variables
        )
    assert dialect("claude").variables(READ["claude"].replace(project_dir="/p"), "")["CLAUDE_PROJECT_DIR"] == "/p"
    assert dialect("codex").variables(READ["codex"], "") == {}


def test_there_are_no_other_dialects() -> None:
    with pytest.raises(RequestError, match="there is no such dialect") as found:
        dialect("os")
    assert ", ".join(NAMES) in found.value.remedy


def test_a_dialect_costs_next_to_nothing_to_load() -> None:
    """``stockade hook`` loads one on every call."""
    root = Path(__file__).resolve().parents[2]
    program = (
        f"import sys; sys.path.insert(0, {str(root)!r});"
        "from stockade.sandbox.hooks import merge; from stockade.sandbox.hooks.dialects import NAMES, dialect;"
        "[dialect(each) for each in NAMES]; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "stockade.sandbox.hooks.dialects.nous" in loaded
    assert not loaded & {
        "re",
        "json",
        "typing",
        "dataclasses",
        "enum",
        "pathlib",
        "functools",
        "collections",
        "inspect",
    }
