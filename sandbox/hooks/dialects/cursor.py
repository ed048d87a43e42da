"""Cursor: what its hooks read, what it makes of their answers, what it is told. Pure.

Exit code 0 is followed by JSON, 2 blocks, every other end and every invalid answer lets the action go ahead;
``failClosed`` is a matter of the handler, not of the answer.
"""

from __future__ import annotations

from stockade.policies.text import quoted
from stockade.sandbox.hooks import jsontext
from stockade.sandbox.hooks.dialects import answers, payloads, replies
from stockade.sandbox.hooks.model import EventRule, HookEvent, HookOutcome, Problem, Reply, ToolCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stockade.sandbox.hooks.model import HookRun, MergedOutcome

NAME = "cursor"
PROVISIONAL = False
DEFAULT_TIMEOUT = 60.0
"""The vendor states none; this one is chosen."""
TIMEOUT_UNIT = 1.0
VARIABLES = (
    "CURSOR_PROJECT_DIR", "CURSOR_VERSION", "CURSOR_USER_EMAIL", "CURSOR_TRANSCRIPT_PATH", "CURSOR_CODE_REMOTE",
    "CLAUDE_PROJECT_DIR",
)  # fmt: skip

EVENTS: Mapping[str, EventRule] = {
    "preToolUse": EventRule("pre_tool", True),
    "beforeShellExecution": EventRule("pre_tool", True),
    "beforeMCPExecution": EventRule("pre_tool", True),
    "postToolUse": EventRule("post_tool"),
    "afterShellExecution": EventRule("post_tool"),
    "afterMCPExecution": EventRule("post_tool"),
    "postToolUseFailure": EventRule("post_tool_failure"),
    "sessionStart": EventRule("session_start"),
    "sessionEnd": EventRule("session_end"),
    "subagentStart": EventRule("subagent_start", True),
    "subagentStop": EventRule("subagent_stop", True),
    "beforeReadFile": EventRule("file_read", True),
    "beforeTabFileRead": EventRule("file_read", True),
    "afterFileEdit": EventRule("file_edit"),
    "afterTabFileEdit": EventRule("file_edit"),
    "beforeSubmitPrompt": EventRule("prompt_submit", True),
    "preCompact": EventRule("pre_compact"),
    "stop": EventRule("stop", True),
    "afterAgentResponse": EventRule("post_model"),
    "afterAgentThought": EventRule("other"),
    "workspaceOpen": EventRule("other"),
}
PERMISSION = answers.words(
    "preToolUse beforeShellExecution beforeMCPExecution subagentStart beforeReadFile beforeTabFileRead"
)
"""Events that are answered by ``permission``."""
ASKS = answers.words("beforeShellExecution beforeMCPExecution")
"""Events that really ask."""
STOPS = ("stop", "subagentStop")
"""A deny is ``followup_message`` here: the agent goes on."""
FIELDS: answers.Fields = {
    "permission": ("allow", "deny", "ask"), "user_message": str, "agent_message": str, "userMessage": str,
    "agentMessage": str, "updated_input": dict, "additional_context": str, "updated_mcp_tool_output": object,
    "continue": bool, "followup_message": str, "env": dict, "pluginPaths": list,
}  # fmt: skip
OLD = ("userMessage", "agentMessage")
TOOL_EVENTS = ("preToolUse", "postToolUse", "postToolUseFailure")


# --- events --------------------------------------------------------------------------------------------------


def read_event(raw: Mapping[str, Any]) -> HookEvent:
    """A payload in neutral terms. Raises RequestError for what is no event of this host."""
    payloads.own(raw, NAME)
    name = payloads.text_field(raw, "hook_event_name", NAME, needed=True)
    project = payloads.first_path(raw, "workspace_roots", NAME)
    return HookEvent(
        NAME,
        name,
        rule(name).kind,
        raw,
        cwd=payloads.text_field(raw, "cwd", NAME, path=True) or project,
        session_id=payloads.text_field(raw, "conversation_id", NAME),
        project_dir=project,
        transcript_path=payloads.text_field(raw, "transcript_path", NAME, path=True),
        tool=tool(name, raw),
    )


def tool(name: str, raw: Mapping[str, Any]) -> ToolCall | None:
    """The tool of an event; older events name none, their input are their own fields."""
    if name in ("beforeShellExecution", "afterShellExecution"):
        return ToolCall("Shell", {"command": payloads.text_field(raw, "command", NAME, needed=True)})
    if name in ("beforeReadFile", "beforeTabFileRead"):
        return ToolCall("Read", {"file_path": payloads.text_field(raw, "file_path", NAME, needed=True, path=True)})
    if name in ("afterFileEdit", "afterTabFileEdit"):
        return ToolCall("Write", {"file_path": payloads.text_field(raw, "file_path", NAME, needed=True, path=True)})
    if name in ("beforeMCPExecution", "afterMCPExecution"):
        return ToolCall(payloads.text_field(raw, "tool_name", NAME, needed=True), mcp_input(raw.get("tool_input")))
    keys = ("tool_name", "tool_input", "tool_use_id")
    return payloads.tool_call(raw, NAME, needed=name in TOOL_EVENTS, keys=keys)


def mcp_input(value: Any) -> Any:
    """The input of an MCP tool, which comes as a text that holds JSON."""
    if value is None or isinstance(value, dict):
        return value
    if not isinstance(value, str):
        raise payloads.unusable(NAME, f"the field tool_input is no text: {quoted(value)}")
    said = jsontext.read(value.encode("utf-8", "replace"))
    return said.value if said.form == "object" else value


def rule(name: str) -> EventRule:
    """The rule of an event; that of an unknown one blocks nothing."""
    return EVENTS.get(name, payloads.OTHER)


def payload(event: HookEvent) -> bytes:
    """The JSON that the host writes."""
    return payloads.written(event.raw, NAME)


def shell_argv(command: str) -> tuple[str, ...]:
    """``sh -c``; the vendor says no more than that it is a shell."""
    return ("/bin/sh", "-c", command)


def variables(event: HookEvent, root: str) -> dict[str, str]:
    """The project in both spellings, and what the payload tells of host, user and transcript."""
    found = {
        "CURSOR_PROJECT_DIR": event.project_dir or event.cwd,
        "CLAUDE_PROJECT_DIR": event.project_dir or event.cwd,
        "CURSOR_VERSION": event.raw.get("cursor_version"),
        "CURSOR_USER_EMAIL": event.raw.get("user_email"),
        "CURSOR_TRANSCRIPT_PATH": event.transcript_path,
    }
    return payloads.settable(found)


# --- what an end means ---------------------------------------------------------------------------------------


def decode(name: str, run: HookRun) -> HookOutcome:
    """What Cursor makes of a run."""
    nothing = answers.no_answer(run)
    if nothing is not None:
        return nothing
    said = answers.read(run)
    if run.exit_code == 2 and rule(name).blocks:
        return answers.blocked(run, said.problems, document=said.value)
    if run.exit_code != 0 or said.form not in ("empty", "object"):
        return answers.failed(run, said.problems, document=said.value)
    if said.form == "empty":
        return HookOutcome(problems=said.problems)
    wrong, odd = answers.misfits(said.value, FIELDS)
    if wrong:
        return answers.failed(run, (*said.problems, *wrong, *odd), document=said.value)
    return understood(name, said.value, [*said.problems, *odd])


def understood(name: str, given: Mapping[str, Any], problems: list[Problem]) -> HookOutcome:
    problems += [
        Problem("old_field", f"{quoted(key)} is the spelling of earlier releases") for key in OLD if key in given
    ]
    user = given.get("user_message", given.get("userMessage", ""))
    agent = given.get("agent_message", given.get("agentMessage", ""))
    verdict = decided(name, given, problems)
    reason = given["followup_message"] if verdict == "deny" and name in STOPS else user or agent
    if verdict == "deny" and not reason.strip():
        problems.append(Problem("missing_reason", "it denies and gives no reason"))
    says = verdict in ("deny", "ask")
    return HookOutcome(
        verdict,
        reason=reason if says else "",
        context=answers.texts(agent if agent != reason or not says else "", given.get("additional_context")),
        system_messages=() if says else answers.texts(user),
        updated_input=given.get("updated_input") if name == "preToolUse" else None,
        updated_output=given.get("updated_mcp_tool_output") if name == "postToolUse" else None,
        extras=tuple((key, given[key]) for key in ("env", "pluginPaths") if key in given),
        source="none" if verdict == "none" else "json",
        status="blocked" if verdict == "deny" else "ok",
        problems=tuple(problems),
        document=given,
    )


def decided(name: str, given: Mapping[str, Any], problems: list[Problem]) -> str:
    if name in STOPS:
        return "deny" if given.get("followup_message", "").strip() else "none"
    if name == "beforeSubmitPrompt":
        return "deny" if given.get("continue") is False else "none"
    odd = [
        key
        for key in ("continue", "followup_message", *(() if name in PERMISSION else ("permission",)))
        if key in given
    ]
    problems += [Problem("misplaced_field", f"{quoted(key)} does not count on {name}") for key in odd]
    permission: str = given.get("permission", "none") if name in PERMISSION else "none"
    if permission != "ask" or name in ASKS:
        return permission
    if name == "subagentStart":
        return "deny"
    problems.append(Problem("unenforced", f"ask does not ask on {name}"))
    return "none"


# --- what it is told -----------------------------------------------------------------------------------------


def encode(name: str, merged: MergedOutcome) -> Reply:
    """The answer in Cursor's words, on stdout and exit code 0.

    Ask stands before a command line or an MCP tool alone, else it becomes a deny, and so do defer, a halt and a change
    that the event can't be told; a halt at the end of a turn is no follow-up. What there is no field for goes to
    stderr. A deny of what can't be denied is an error of the hook, one of an unknown event exit code 2.
    """
    return replies.told(name, merged, say)


def say(name: str, merged: MergedOutcome) -> Reply:
    if name in STOPS and merged.halt:
        return Reply(
            b"", replies.lines(*answers.texts(merged.stop_reason, *merged.system_messages, *merged.context))
        )
    merged = replies.without_halt(merged)
    if merged.verdict != "deny" and (unsaid := untold(name, merged)):
        merged = replies.refusal(merged, unsaid)
    asks = merged.verdict == "ask" and name in ASKS
    verdict = "deny" if merged.verdict in ("ask", "defer") and not asks else merged.verdict
    given, lost = beside(name, merged)
    if verdict == "deny" and not rule(name).blocks:
        everything = (*merged.system_messages, *merged.context)
        stderr = replies.lines(replies.stated(merged.reason), *everything)
        return Reply(b"", stderr, 1 if name in EVENTS else 2)
    reason = replies.stated(merged.reason)
    if verdict == "deny" and name in STOPS:
        given["followup_message"] = reason
    elif verdict == "deny" and name == "beforeSubmitPrompt":
        given |= {"continue": False, "user_message": reason}
    elif verdict != "none" and name in PERMISSION:
        given["permission"] = verdict
        said = reason if verdict == "deny" else replies.clean(merged.reason)
        given |= {"user_message": said, "agent_message": given.get("agent_message", said)} if said else {}
    if merged.updated_input is not None and verdict != "deny":
        given["updated_input"] = merged.updated_input
    return replies.document(given, stderr=lost)


def beside(name: str, merged: MergedOutcome) -> tuple[dict[str, Any], bytes]:
    """What is said beside a verdict; and what only stderr is left for."""
    given = answers.fitting(merged.extras, ("env", "pluginPaths"), FIELDS)
    lost = list(merged.system_messages)
    if merged.updated_output is not None:
        given["updated_mcp_tool_output"] = merged.updated_output
    if merged.context and name in ("sessionStart", "postToolUse"):
        given["additional_context"] = replies.joined(merged.context)
    elif merged.context and name in PERMISSION:
        given["agent_message"] = replies.joined(merged.context)
    else:
        lost += merged.context
    return given, replies.lines(*lost)


def untold(name: str, merged: MergedOutcome) -> str:
    if merged.updated_output is not None and name != "postToolUse":
        return f"a hook changed the output of {name}, which Cursor can't be told"
    if merged.updated_input is None:
        return ""
    if name != "preToolUse":
        return f"a hook changed the input of {name}, which Cursor can't be told"
    if merged.update_mode != "replace" or not isinstance(merged.updated_input, dict):
        return "a hook changed a part of the input, Cursor can only be told the whole"
    return ""
