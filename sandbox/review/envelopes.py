"""How each host tells an event: its tools' names and inputs, the fields around them. Pure tables and builders."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from stockade.sandbox.review.acts import Act
    from stockade.sandbox.review.corpus import Setting

    Call = tuple[str, Mapping[str, Any]]
    Fields = Mapping[str, Any]

OWN_FIELDS: Mapping[str, tuple[str, ...]] = {
    "cursor": (
        "beforeShellExecution", "afterShellExecution", "beforeReadFile", "beforeTabFileRead", "afterFileEdit",
        "afterTabFileEdit",
    ),
}  # fmt: skip
"""Events whose tool is fixed by the event."""
FIXED = {
    "beforeShellExecution": ("shell",), "afterShellExecution": ("shell",), "beforeMCPExecution": ("mcp",),
    "afterMCPExecution": ("mcp",), "beforeReadFile": ("read",), "beforeTabFileRead": ("read",),
    "afterFileEdit": ("write", "edit"), "afterTabFileEdit": ("write", "edit"),
}  # fmt: skip


# --- tools ---------------------------------------------------------------------------------------------------


def call(dialect: str, event: str, act: Act) -> Call | None:
    """An act as a call of the host's tool; None where the host has none for it, or the event is about another."""
    if dialect == "cursor" and act.tool not in FIXED.get(event, (act.tool,)):
        return None
    maker = TOOLS[dialect].get(act.tool)
    return None if maker is None else maker(act.input)


def patch(given: Fields) -> str:
    """A write or an edit in the form of Codex."""
    path = given["path"]
    if "content" in given:
        added = "\n".join(f"+{line}" for line in given["content"].splitlines())
        return f"*** Begin Patch\n*** Add File: {path}\n{added}\n*** End Patch"
    return f"*** Begin Patch\n*** Update File: {path}\n@@\n-{given['old']}\n+{given['new']}\n*** End Patch"


def claude_shell(given: Fields) -> Call:
    return "Bash", {"command": given["command"], "description": "Run a command"}


def written(name: str, path: str, content: str) -> Callable[[Fields], Call]:
    return lambda given: (name, {path: given["path"], content: given["content"]})


def edited(name: str, path: str) -> Callable[[Fields], Call]:
    return lambda given: (name, {path: given["path"], "old_string": given["old"], "new_string": given["new"]})


def one(name: str, key: str, source: str) -> Callable[[Fields], Call]:
    return lambda given: (name, {key: given[source]})


def served(name: str) -> Callable[[Fields], Call]:
    return lambda given: (name, dict(given))


SERVER = "mcp__github__create_issue"
CLAUDE: Mapping[str, Callable[[Fields], Call]] = {
    "shell": claude_shell,
    "write": written("Write", "file_path", "content"),
    "edit": edited("Edit", "file_path"),
    "read": one("Read", "file_path", "path"),
    "fetch": served("WebFetch"),
    "mcp": served(SERVER),
}
TOOLS: Mapping[str, Mapping[str, Callable[[Fields], Call]]] = {
    "claude": CLAUDE,
    "codex": {
        "shell": one("Bash", "command", "command"),
        "write": lambda given: ("apply_patch", {"command": patch(given)}),
        "edit": lambda given: ("apply_patch", {"command": patch(given)}),
        "read": lambda given: ("Bash", {"command": f"cat {given['path']}"}),
        "mcp": served(SERVER),
    },
    "gemini": {
        "shell": one("run_shell_command", "command", "command"),
        "write": written("write_file", "file_path", "content"),
        "edit": edited("replace", "file_path"),
        "read": one("read_file", "file_path", "path"),
        "fetch": one("web_fetch", "prompt", "url"),
        "mcp": served("mcp_github_create_issue"),
    },
    "cursor": {
        "shell": one("Shell", "command", "command"),
        "write": written("Write", "file_path", "content"),
        "edit": edited("Write", "file_path"),
        "read": one("Read", "file_path", "path"),
        "mcp": served("MCP:create_issue"),
    },
    "antigravity": {
        "shell": one("code_execution", "code", "command"),
        "write": written("write_file", "path", "content"),
        "edit": lambda given: ("write_file", {"path": given["path"], "content": given["new"]}),
        "read": one("read_file", "path", "path"),
    },
    "agy": {
        "shell": one("run_command", "CommandLine", "command"),
        "write": written("write_to_file", "TargetFile", "CodeContent"),
        "edit": lambda given: (
            "replace_file_content", {"TargetFile": given["path"], "ReplacementContent": given["new"]}
        ),
        "read": one("view_file", "AbsolutePath", "path"),
        "fetch": one("read_url_content", "Url", "url"),
        "mcp": served("create_issue"),
    },
    "nous": {
        "shell": one("bash", "command", "command"),
        "write": written("file_write", "path", "content"),
        "edit": edited("file_edit", "path"),
        "read": one("file_read", "path", "path"),
        "fetch": one("web_fetch", "url", "url"),
        "mcp": served("create_issue"),
    },
}  # fmt: skip
"""By host and neutral tool: the host's name and input."""


def tool_name(payload: Fields) -> str:
    """The tool that a payload is about, whoever's it is."""
    inner = payload.get("tool_call") or payload.get("toolCall") or payload.get("payload") or payload
    name = inner.get("name") or inner.get("tool_name") if hasattr(inner, "get") else ""
    return name if isinstance(name, str) else ""


# --- moments of a session ------------------------------------------------------------------------------------

MOMENTS: Mapping[str, tuple[tuple[str, str, Fields], ...]] = {
    "session_start": (
        ("session-start", "a session starts", {"source": "startup"}),
        ("session-resume", "a session goes on", {"source": "resume"}),
        ("session-clear", "a session starts over", {"source": "clear"}),
        ("session-compact", "a session was compacted", {"source": "compact"}),
    ),
    "session_end": (
        ("session-end", "a session ends", {"reason": "prompt_input_exit"}),
        ("session-cleared", "a session is cleared", {"reason": "clear"}),
        ("session-other", "a session ends somehow", {"reason": "other"}),
    ),
    "stop": (
        ("stop", "the agent has finished", {"stop_hook_active": False}),
        ("stop-again", "the agent has finished once more", {"stop_hook_active": True}),
    ),
    "subagent_start": (("subagent-start", "a subagent starts", {}),),
    "subagent_stop": (
        ("subagent-stop", "a subagent has finished", {"stop_hook_active": False}),
        ("subagent-stop-again", "a subagent has finished once more", {"stop_hook_active": True}),
    ),
    "pre_compact": (
        ("compact", "the user has the session compacted", {"trigger": "manual"}),
        ("compact-auto", "the session is full", {"trigger": "auto"}),
    ),
    "post_compact": (("compacted", "the session was compacted", {"trigger": "auto", "compact_summary": "Totals."}),),
    "notification": (
        ("notification", "the agent wants attention", {"notification_type": "permission_prompt"}),
        ("notification-idle", "the agent waits", {"notification_type": "idle_prompt"}),
    ),
    "setup": (
        ("setup", "the project is set up", {"trigger": "init"}),
        ("setup-maintenance", "the project is tidied", {"trigger": "maintenance"}),
    ),
    "stop_failure": (("stop-failure", "the agent ended with an error", {"error": "rate_limit"}),),
    "config_change": (("config-change", "the settings were changed", {"source": "project_settings"}),),
}  # fmt: skip
MOMENT_NAMES = (*(name for rows in MOMENTS.values() for name, _about, _fields in rows), "moment", "named-tool")


def moments(dialect: str, event: str, kind: str, setting: Setting) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, meaning and fields of the events of a kind that is about no tool and no prompt."""
    rows = MOMENTS.get(kind, (("moment", f"an event of kind {kind}", {}),))
    made = [(name, about, dict(fields)) for name, about, fields in rows]
    if dialect in ("gemini", "codex") and kind == "session_end":
        made = [
            (name, about, {"reason": "exit"} if name == "session-end" else fields) for name, about, fields in made
        ]
    for _name, _about, fields in made:
        fields |= extra(event, kind, setting)
    return made


def extra(event: str, kind: str, setting: Setting) -> dict[str, Any]:
    """What else hosts say of these events, where it is known."""
    if kind in ("stop", "subagent_stop"):
        said: dict[str, Any] = {"last_assistant_message": "I added a test.", "prompt_response": "I added a test."}
        return said | ({"agent_id": "a1", "agent_type": "general-purpose"} if kind == "subagent_stop" else {})
    if kind == "subagent_start":
        return {"agent_id": "a1", "agent_type": "general-purpose", "subagent_type": "generalPurpose"}
    if kind == "notification":
        return {"message": "Claude needs your permission to use Bash", "title": "Permission"}
    if kind in ("pre_model", "post_model", "tool_selection"):
        request = {"model": "a-model", "messages": [{"role": "user", "content": "Add a test."}]}
        return {"llm_request": request, "llm_response": {"text": "I will."}, "text": "I will."}
    if kind == "post_tool_batch":
        return {"tool_calls": [{"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_response": "src"}]}
    maker = OTHERS.get(event)
    return {} if maker is None else maker(setting)


OTHERS: Mapping[str, Callable[[Setting], dict[str, Any]]] = {
    "PermissionDenied": lambda _: {
        "tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "toolu_01", "reason": "rule"
    },
    "TaskCreated": lambda _: {"task_id": "t1", "task_subject": "Test total()", "team_name": "orders"},
    "TaskCompleted": lambda _: {"task_id": "t1", "task_subject": "Test total()", "team_name": "orders"},
    "TeammateIdle": lambda _: {"teammate_name": "tester", "team_name": "orders"},
    "InstructionsLoaded": lambda place: {
        "file_path": f"{place.project}/CLAUDE.md", "memory_type": "Project", "load_reason": "session_start"
    },
    "CwdChanged": lambda place: {"old_cwd": place.project, "new_cwd": f"{place.project}/src"},
    "DirectoryAdded": lambda place: {"directory": f"{place.project}/src", "source": "command"},
    "FileChanged": lambda place: {"file_path": f"{place.project}/.env", "event": "change"},
    "WorktreeCreate": lambda _: {"name": "totals"},
    "WorktreeRemove": lambda place: {"worktree_path": f"{place.project}/.claude/worktrees/totals"},
    "MessageDisplay": lambda _: {"turn_id": "1", "message_id": "m1", "index": 0, "final": True, "delta": "Done."},
    "Elicitation": lambda _: {"mcp_server_name": "github", "message": "Which repository?"},
    "ElicitationResult": lambda _: {"mcp_server_name": "github", "action": "accept", "content": {"name": "orders"}},
}  # fmt: skip


# --- what stands around them ---------------------------------------------------------------------------------


def payload(dialect: str, event: str, kind: str, setting: Setting, fields: Fields) -> dict[str, Any]:
    """The whole payload. ``fields``: ``call`` and ``act`` of a tool, ``prompt``, or those of a moment."""
    return BUILDERS[dialect](event, kind, setting, dict(fields))


def pascal(event: str, kind: str, setting: Setting, fields: dict[str, Any]) -> dict[str, Any]:
    """Claude Code's way, which others follow."""
    called, act = fields.pop("call", None), fields.pop("act", None)
    raw = {"session_id": setting.session, "transcript_path": setting.transcript, "cwd": setting.project}
    raw |= {"hook_event_name": event}
    if called is not None:
        raw |= {"tool_name": called[0], "tool_input": dict(called[1])} | after(kind, act)
    return raw | fields


def after(kind: str, act: Act) -> dict[str, Any]:
    if kind == "post_tool":
        return {"tool_response": {"stdout": act.result, "stderr": "", "interrupted": False}, "duration_ms": 12}
    if kind == "post_tool_failure":
        return {"error": f"Command failed: {act.result}", "is_interrupt": False}
    return {}


def claude(event: str, kind: str, setting: Setting, fields: dict[str, Any]) -> dict[str, Any]:
    raw = pascal(event, kind, setting, fields) | {"permission_mode": "default"}
    return raw | ({"tool_use_id": "toolu_01A9"} if "tool_name" in raw and kind != "permission_request" else {})


def codex(event: str, kind: str, setting: Setting, fields: dict[str, Any]) -> dict[str, Any]:
    raw = pascal(event, kind, setting, fields) | {"permission_mode": "default", "model": "gpt-5", "turn_id": "3"}
    return raw | ({"tool_use_id": "call_01"} if "tool_name" in raw else {})


def gemini(event: str, kind: str, setting: Setting, fields: dict[str, Any]) -> dict[str, Any]:
    raw = pascal(event, kind, setting, fields) | {"timestamp": "2026-08-03T09:12:44.000Z"}
    if "tool_response" in raw:
        text = raw["tool_response"]["stdout"]
        raw["tool_response"] = {"llmContent": text, "returnDisplay": text}
        raw.pop("duration_ms")
    return raw


def cursor(event: str, kind: str, setting: Setting, fields: dict[str, Any]) -> dict[str, Any]:
    called, act = fields.pop("call", None), fields.pop("act", None)
    raw: dict[str, Any] = {
        "conversation_id": setting.session, "generation_id": "g1", "model": "a-model", "hook_event_name": event,
        "cursor_version": "2.4.0", "workspace_roots": [setting.project], "user_email": "dev@orders.example",
        "transcript_path": setting.transcript,
    }  # fmt: skip
    if called is not None:
        raw |= cursor_tool(event, called, act, setting)
    if kind == "stop":
        raw |= {"status": "completed", "loop_count": int(fields["stop_hook_active"])}
        return raw
    return raw | fields


def cursor_tool(event: str, called: Call, act: Act, setting: Setting) -> dict[str, Any]:
    name, given = called
    if event in ("beforeShellExecution", "afterShellExecution"):
        ended: dict[str, Any] = (
            {"output": act.result, "duration": 12} if event.startswith("after") else {"sandbox": False}
        )
        return {"command": given["command"], "cwd": setting.project, **ended}
    if event in ("beforeReadFile", "beforeTabFileRead"):
        return {"file_path": given["file_path"], "content": act.result, "attachments": []}
    if event in ("afterFileEdit", "afterTabFileEdit"):
        new = given.get("content") or given.get("new_string", "")
        edits = [{"old_string": given.get("old_string", ""), "new_string": new}]
        return {"file_path": given["file_path"], "edits": edits}
    if event in ("beforeMCPExecution", "afterMCPExecution"):
        import json

        after_it = event.startswith("after")
        told: dict[str, Any] = {"result_json": "{}", "duration": 12} if after_it else {"url": "https://mcp.example"}
        return {"tool_name": name.removeprefix("MCP:"), "tool_input": json.dumps(given), **told}
    raw: dict[str, Any] = {
        "tool_name": name,
        "tool_input": dict(given),
        "tool_use_id": "tool_1",
        "cwd": setting.project,
    }
    if event == "postToolUse":
        raw |= {"tool_output": act.result, "duration": 12}
    return raw | ({"error_message": act.result, "failure_type": "error"} if event == "postToolUseFailure" else {})


def antigravity(_event: str, kind: str, setting: Setting, fields: dict[str, Any]) -> dict[str, Any]:
    called, act = fields.pop("call", None), fields.pop("act", None)
    name, given = called if called is not None else ("list_files", {"path": setting.project})
    raw: dict[str, Any] = {"tool_call": {"name": name, "args": dict(given)}, "environment_id": setting.session}
    return raw | ({"error": act.result} if kind == "post_tool" and act is not None and act.failed else {})


def agy(event: str, kind: str, setting: Setting, fields: dict[str, Any]) -> dict[str, Any]:
    called, act = fields.pop("call", None), fields.pop("act", None)
    raw: dict[str, Any] = {
        "conversationId": setting.session, "workspacePaths": [setting.project], "transcriptPath": setting.transcript,
        "artifactDirectoryPath": f"{setting.home}/.gemini/artifacts", "modelName": "a-model",
        "hookEventName": event,
    }  # fmt: skip
    if called is not None:
        raw |= {"toolCall": {"name": called[0], "args": dict(called[1])}, "stepIdx": 4}
        return raw | ({"error": act.result} if kind == "post_tool" and act.failed else {})
    if kind == "stop":
        raw |= {"executionNum": 1 + int(fields["stop_hook_active"]), "terminationReason": "done", "fullyIdle": True}
    return raw


def nous(event: str, kind: str, _setting: Setting, fields: dict[str, Any]) -> dict[str, Any]:
    called, act = fields.pop("call", None), fields.pop("act", None)
    inner: dict[str, Any] = fields
    if called is not None:
        inner = {"tool_name": called[0], "arguments": dict(called[1])}
        inner |= {"result": act.result} if kind == "post_tool" else {}
    return {"event": event, "payload": inner}


BUILDERS: Mapping[str, Callable[[str, str, Setting, dict[str, Any]], dict[str, Any]]] = {
    "claude": claude, "codex": codex, "gemini": gemini, "cursor": cursor, "antigravity": antigravity, "agy": agy,
    "nous": nous,
}  # fmt: skip
