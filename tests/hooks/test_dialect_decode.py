"""What the hosts other than Claude Code make of answers, beyond the table of one event that they all share."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.sandbox.hooks.dialects import NAMES, dialect
from stockade.sandbox.hooks.model import VERDICTS, HookOutcome, HookRun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def nested(name: str, **fields: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": name, **fields}}


def pre(**fields: Any) -> dict[str, Any]:
    return nested("PreToolUse", **fields)


BLOCK = {"decision": "block", "reason": "no"}
DENY = {"decision": "deny", "reason": "no"}
ANGLE = {
    "hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": {"behavior": "deny", "message": "no"}}
}

# event, exit code, stdout, stderr; verdict, source, status, codes of problems
CODEX = [
    ("PreToolUse", 0, pre(permissionDecision="deny", permissionDecisionReason=" "), "",
     "none failure_policy failed", "missing_reason"),
    ("PreToolUse", 0, pre(permissionDecision="allow"), "", "none failure_policy failed", "unsupported"),
    ("PreToolUse", 0, pre(permissionDecision="allow", updatedInput={"a": 1}), "", "allow json ok", ""),
    ("PreToolUse", 0, pre(updatedInput={"a": 1}), "", "none failure_policy failed", "unsupported"),
    ("PreToolUse", 0, nested("Stop", permissionDecision="deny", permissionDecisionReason="no"), "",
     "deny json blocked", "wrong_event_name"),
    ("PreToolUse", 0, nested("Nope", permissionDecision="deny", permissionDecisionReason="no"), "",
     "none failure_policy failed",
     "unknown_verdict"),
    ("PreToolUse", 0, BLOCK, "", "deny json blocked", ""),
    ("PreToolUse", 0, {"decision": "approve"}, "", "none failure_policy failed", "unsupported"),
    ("PreToolUse", 0, {"stopReason": "x"}, "", "none failure_policy failed", "unsupported"),
    ("PreToolUse", 0, {"suppressOutput": True}, "", "none failure_policy failed", "unsupported"),
    ("PreToolUse", 0, {"suppressOutput": None, "hookSpecificOutput": None}, "", "none none ok", ""),
    ("PreToolUse", 0, {"hookSpecificOutput": 1}, "", "none failure_policy failed", "wrong_type"),
    ("PreToolUse", 0, {"hookSpecificOutput": {}}, "", "none failure_policy failed", "missing_event_name"),
    ("PreToolUse", 0, pre(colour=1), "", "none failure_policy failed", "unknown_key"),
    ("PreToolUse", 0, '{"decision": "block", "reason": "a", "reason": "b"}', "",
     "none failure_policy failed", "duplicate_key"),
    ("PreToolUse", 0, "[]", "", "none failure_policy failed", "not_json"),
    ("PreToolUse", 0, "[oops", "", "none failure_policy failed", "syntax not_json"),
    ("PreToolUse", 0, "hello", "", "none none ok", "not_json"),
    ("PreToolUse", 2, BLOCK, " \n", "none failure_policy failed", "empty_stderr exit_code"),
    ("UserPromptSubmit", 0, "remember", "", "none none ok", ""),
    ("UserPromptSubmit", 0, {"decision": "block"}, "", "none failure_policy failed", "missing_reason"),
    ("UserPromptSubmit", 0, {"continue": False}, "", "none json ok", ""),
    ("Stop", 0, "all done", "", "none failure_policy failed", "not_json"),
    ("Stop", 0, BLOCK, "", "deny json blocked", ""),
    ("Stop", 0, nested("Stop", additionalContext="x"), "", "none failure_policy failed", "misplaced_field"),
    ("PostToolUse", 0, BLOCK, "", "deny json blocked", ""),
    ("PostToolUse", 2, "", "no", "deny exit_code blocked", ""),
    ("SessionEnd", 2, "", "no", "none failure_policy failed", "exit_code"),
    ("PermissionRequest", 0, ANGLE, "", "deny json blocked", ""),
    ("PermissionRequest", 2, "", "no", "deny exit_code blocked", ""),
    ("PermissionRequest", 0, nested("PermissionRequest", decision={"behavior": "allow"}), "", "allow json ok", ""),
    ("PermissionRequest", 0, nested("PermissionRequest", decision={"behavior": "deny"}), "",
     "deny json blocked", "missing_reason"),
    ("PermissionRequest", 0, nested("PermissionRequest", decision={"behavior": "deny", "interrupt": True}), "",
     "none failure_policy failed", "unsupported"),
    ("PermissionRequest", 0, nested("PermissionRequest", decision={"behavior": "allow", "updatedInput": {}}), "",
     "none failure_policy failed", "unsupported"),
    ("PermissionRequest", 0, nested("PermissionRequest", decision={"message": "x"}), "",
     "none failure_policy failed",
     "unsupported"),
]  # fmt: skip
ANTIGRAVITY = [
    ("pre_tool_execution", 0, "fine", "", "none failure_policy failed", "not_json"),
    ("pre_tool_execution", 0, {"decision": "ask"}, "", "none failure_policy failed", "unknown_verdict"),
    ("pre_tool_execution", 0, {"decision": "allow"}, "", "allow json ok", ""),
    ("pre_tool_execution", 0, {"permissionDecision": "deny"}, "", "none none ok", "foreign_field"),
    ("pre_tool_execution", 2, DENY, "no", "none failure_policy failed", "exit_code"),
    ("post_tool_execution", 0, DENY, "", "none none ok", ""),
]
AGY = [
    ("PreToolUse", 0, {"decision": "allow"}, "", "allow json ok", ""),
    ("PreToolUse", 0, {"decision": "force_ask"}, "", "ask json ok", ""),
    ("PreToolUse", 0, {"decision": "maybe"}, "", "deny failure_policy failed", "unknown_verdict"),
    ("PreToolUse", 0, {}, "", "deny failure_policy failed", "no_decision"),
    ("PreToolUse", 0, "", "", "deny failure_policy failed", "no_decision"),
    ("PreToolUse", 0, {"decision": "allow", "overwrite": []}, "", "deny failure_policy failed", "wrong_type"),
    ("PreToolUse", 1, {"decision": "allow"}, "", "deny failure_policy failed", "exit_code"),
    ("PostToolUse", 1, "", "boom", "none failure_policy failed", "exit_code"),
    ("PostToolUse", 0, "", "", "none none ok", ""),
    ("Stop", 0, {"decision": "continue", "reason": "more"}, "", "deny json blocked", ""),
    ("Stop", 0, "", "", "none none ok", ""),
    ("PreInvocation", 0, {"injectSteps": []}, "", "none none ok", ""),
]
GEMINI = [
    ("BeforeTool", 0, json.dumps(json.dumps(DENY)), "", "deny json blocked", "not_json json_in_text"),
    ("BeforeTool", 0, '"just text"', "", "none none ok", "not_json"),
    ("BeforeTool", 0, "[]", "", "none none ok", "not_json"),
    ("BeforeTool", 0, "fine", "", "none none ok", "not_json"),
    ("BeforeTool", 0, '{"a', "", "none failure_policy failed", "syntax not_json"),
    ("BeforeTool", 0, "", "just a note", "none none ok", ""),
    ("BeforeTool", 5, "no", "", "deny exit_code blocked", "not_json"),
    ("BeforeTool", 2, "", "", "none failure_policy failed", "empty_stderr exit_code"),
    ("BeforeTool", 1, "careful", "", "none failure_policy failed", "not_json exit_code"),
    ("BeforeTool", 0, {"decision": "maybe"}, "", "none none ok", "unknown_verdict"),
    ("BeforeTool", 0, {"decision": ["deny"]}, "", "none none ok", "unknown_verdict"),
    ("BeforeTool", 0, {"decision": "block"}, "", "deny json blocked", "missing_reason"),
    ("BeforeTool", 0, {"tool_input": {}}, "", "none none ok", "misplaced_field"),
    ("SessionEnd", 2, "", "no", "none failure_policy failed", "exit_code"),
    ("AfterTool", 0, DENY, "", "deny json blocked", ""),
]
CURSOR = [
    ("preToolUse", 0, {"permission": "ask"}, "", "none none ok", "unenforced"),
    ("beforeShellExecution", 0, {"permission": "ask"}, "", "ask json ok", ""),
    ("subagentStart", 0, {"permission": "ask"}, "", "deny json blocked", "missing_reason"),
    ("preToolUse", 0, {"permission": "deny", "userMessage": "no"}, "", "deny json blocked", "old_field"),
    ("preToolUse", 0, {"permission": "nope"}, "", "none failure_policy failed", "unknown_verdict"),
    ("preToolUse", 0, {"decision": "deny"}, "", "none none ok", "foreign_field"),
    ("preToolUse", 0, {"continue": False}, "", "none none ok", "misplaced_field"),
    ("beforeSubmitPrompt", 0, {"continue": False, "user_message": "no"}, "", "deny json blocked", ""),
    ("stop", 0, {"followup_message": "go on"}, "", "deny json blocked", ""),
    ("stop", 0, {"followup_message": " "}, "", "none none ok", ""),
    ("afterFileEdit", 2, "", "no", "none failure_policy failed", "exit_code"),
    ("afterFileEdit", 0, {"permission": "deny"}, "", "none none ok", "misplaced_field"),
]
NOUS = [
    ("pre_tool_use", 0, {"result": "modify", "changes": {"a": 1}}, "", "none json ok", ""),
    ("pre_tool_use", 0, {"result": "modify"}, "", "none failure_policy failed", "wrong_type"),
    ("pre_tool_use", 0, {"result": "perhaps"}, "", "none failure_policy failed", "unknown_verdict"),
    ("pre_tool_use", 0, {"result": "deny", "reason": 3}, "", "deny json blocked", "missing_reason"),
    ("pre_tool_use", 0, "fine", "", "none failure_policy failed", "not_json"),
    ("post_tool_use", 0, {"result": "deny"}, "", "none json ok", "misplaced_field"),
    ("post_tool_use", 2, "", "no", "none failure_policy failed", "exit_code"),
]
DECODED = [
    (name, *row)
    for name, rows in (
        ("codex", CODEX), ("antigravity", ANTIGRAVITY), ("agy", AGY), ("gemini", GEMINI), ("cursor", CURSOR), ("nous", NOUS)
    )
    for row in rows
]  # fmt: skip


@pytest.mark.parametrize(("name", "event", "code", "out", "err", "expected", "codes"), DECODED)
def test_what_an_end_means(
    name: str, event: str, code: int, out: str | dict[str, Any], err: str, expected: str, codes: str
) -> None:
    stdout = (out if isinstance(out, str) else json.dumps(out)).encode()
    found = dialect(name).decode(event, HookRun(code, stdout=stdout, stderr=err.encode()))
    assert f"{found.verdict} {found.source} {found.status}" == expected, found
    assert [each.code for each in found.problems] == codes.split()


def decode(name: str, event: str, value: Any, **more: Any) -> HookOutcome:
    found: HookOutcome = dialect(name).decode(event, HookRun(0, stdout=json.dumps(value).encode(), **more))
    return found


def test_the_rest_of_an_answer_is_kept() -> None:
    change = {"a": 1}
    found = decode(
        "codex", "PreToolUse", pre(permissionDecision="allow", updatedInput=change, additionalContext="c")
    )
    assert (found.updated_input, found.update_mode, found.context) == (change, "replace", ("c",))
    found = decode("codex", "Stop", {"continue": False, "stopReason": "s", "systemMessage": "m", **BLOCK})
    assert (found.verdict, found.halt, found.stop_reason, found.system_messages) == ("deny", True, "s", ("m",))
    found = decode("agy", "PreToolUse", {"decision": "force_ask", "overwrite": change, "permissionOverrides": [1]})
    assert (found.updated_input, found.update_mode) == (change, "merge")
    assert found.extras == (("permissionOverrides", [1]), ("force_ask", True))
    inner = {"tool_input": change, "additionalContext": "c", "clearContext": True}
    found = decode("gemini", "BeforeTool", {"hookSpecificOutput": inner, "continue": False, "stopReason": "s"})
    assert (found.updated_input, found.update_mode, found.context) == (change, "merge", ("c",))
    assert (found.halt, found.stop_reason, found.extras) == (True, "s", (("clearContext", True),))
    found = decode(
        "cursor", "preToolUse", {"permission": "deny", "user_message": "u", "agent_message": "a", "env": {}}
    )
    assert (found.reason, found.context, found.extras) == ("u", ("a",), (("env", {}),))
    found = decode("cursor", "preToolUse", {"permission": "allow", "user_message": "u", "updated_input": change})
    assert (found.system_messages, found.updated_input) == (("u",), change)
    found = decode("cursor", "postToolUse", {"updated_mcp_tool_output": 1, "additional_context": "c"})
    assert (found.updated_output, found.context) == (1, ("c",))
    found = decode("nous", "pre_tool_use", {"result": "modify", "changes": change})
    assert (found.updated_input, found.update_mode) == (change, "merge")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("run", "status"),
    [
        (HookRun(timed_out=True, reason="10 s are over"), "timed_out"),
        (HookRun(started=False, spawn_error="no such file"), "not_run"),
        (HookRun(0, runner_failed=True, reason="no sandbox"), "runner_failed"),
        (HookRun(signal=11), "failed"),
        (HookRun(), "failed"),
        (HookRun(0, stdout=b'{"decision": "allow"', stdout_truncated=True), "failed"),
        (HookRun(1, stderr=b"boom", denied=True), "denied_by_sandbox"),
    ],
    ids=["timed-out", "not-run", "runner-failed", "signal", "unknown", "truncated", "denied"],
)
def test_an_end_without_an_answer(name: str, run: HookRun, status: str) -> None:
    host = dialect(name)
    event = next(event for event, rule in host.EVENTS.items() if rule.kind == "pre_tool")
    found = host.decode(event, run)
    assert found.status == status
    assert found.verdict == ("deny" if name == "agy" else "none")
    assert found.source == ("not_run" if status in ("not_run", "runner_failed") else "failure_policy")
    assert found.problems
    assert bool(found.reason) == (name == "agy")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "nous"])
def test_a_bad_byte_in_its_reason_undoes_no_deny(name: str) -> None:
    host = dialect(name)
    event = next(event for event, rule in host.EVENTS.items() if rule.kind == "pre_tool")
    told = pre(permissionDecision="deny", permissionDecisionReason="no!") if name in ("claude", "codex") else DENY
    told = {"permission": "deny", "user_message": "no!"} if name == "cursor" else told
    found = host.decode(event, HookRun(0, stdout=json.dumps(told).encode().replace(b"no", b"n\xff")))
    assert found.verdict == "deny"
    assert "invalid_utf8" in [each.code for each in found.problems]


@settings(max_examples=400)
@given(
    where=st.sampled_from([(name, event) for name in NAMES for event in (*dialect(name).EVENTS, "Brand.New")]),
    code=st.none() | st.sampled_from([0, 1, 2, 3]),
    value=st.recursive(
        st.none() | st.booleans() | st.text(max_size=3) | st.sampled_from(["deny", "allow", "block", "PreToolUse"]),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
            st.sampled_from([
                "decision", "permission", "result", "hookSpecificOutput", "hookEventName", "permissionDecision",
                "behavior", "continue", "reason", "changes", "updatedInput", "user_message", "followup_message",
                "tool_input", "action", "stopReason", "additionalContext", "permissionDecisionReason",
            ]), inner, max_size=3
        ),
        max_leaves=6,
    ),
    tail=st.binary(max_size=3),
    stderr=st.sampled_from([b"", b"no", b"{}", b'{"decision": "deny"}', b"\xff"]),
)  # fmt: skip
def test_any_answer_is_read_without_an_exception(
    where: tuple[str, str], code: int | None, value: Any, tail: bytes, stderr: bytes
) -> None:
    name, event = where
    run = HookRun(code, stdout=json.dumps(value).encode() + tail, stderr=stderr)
    found = dialect(name).decode(event, run)
    assert found.verdict in VERDICTS
    assert isinstance(found.reason, str)
    assert all(isinstance(text, str) for text in (*found.context, *found.system_messages, found.stop_reason))
    if found.status == "failed":
        assert found.problems
        # Claude and Gemini read a document whatever the end was; the run has failed all the same.
        if code is not None or name not in ("claude", "gemini"):
            assert found.verdict == (
                "deny" if (name, event) in {("agy", "PreToolUse"), ("claude", "WorktreeCreate")} else "none"
            )
    if found.verdict == "deny" and name != "gemini":
        assert found == dialect(name).decode(event, run) != HookOutcome()
    dialect(name).encode(event, merged_of(found))


def merged_of(found: HookOutcome) -> Any:
    from stockade.sandbox.hooks.merge import merge

    return merge([found])
