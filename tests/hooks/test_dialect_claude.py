"""What Claude Code makes of answers, and what it is told."""

from __future__ import annotations

import json

import pytest

from stockade.sandbox.hooks.dialects import claude
from stockade.sandbox.hooks.model import HookRun, MergedOutcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def nested(name: str, **fields: Any) -> str:
    return json.dumps({"hookSpecificOutput": {"hookEventName": name, **fields}})


def pre(**fields: Any) -> str:
    return nested("PreToolUse", **fields)


DENY = pre(permissionDecision="deny", permissionDecisionReason="no")
ALLOW = pre(permissionDecision="allow")
BLOCK = '{"decision": "block", "reason": "no"}'

# event, exit code, stdout, stderr; verdict, source, status, codes of problems
DECODED = [
    ("PreToolUse", 0, "", "", "none", "none", "ok", ""),
    ("PreToolUse", 0, "  {}", "", "none", "none", "ok", ""),
    ("PreToolUse", 0, "all is well", "", "none", "none", "ok", "not_json"),
    ("PreToolUse", 0, DENY, "", "deny", "json", "blocked", ""),
    ("PreToolUse", 0, pre(permissionDecision="deny"), "", "deny", "json", "blocked", "missing_reason"),
    ("PreToolUse", 0, ALLOW, "", "allow", "json", "ok", ""),
    ("PreToolUse", 0, pre(permissionDecision="defer"), "", "defer", "json", "ok", ""),
    ("PreToolUse", 0, '{"decision": "approve"}', "", "allow", "json", "ok", ""),
    ("PreToolUse", 0, BLOCK, "", "deny", "json", "blocked", ""),
    ("PreToolUse", 0, BLOCK[:-1] + ', "hookSpecificOutput": {"hookEventName": "PreToolUse",'
     ' "permissionDecision": "allow"}}', "", "allow", "json", "ok", ""),
    ("PreToolUse", 0, '{"permissionDecision": "deny"}', "", "none", "none", "ok", "misplaced_field"),
    ("PreToolUse", 0, '{"permission": "deny"}', "", "none", "none", "ok", "foreign_field"),
    ("PreToolUse", 0, '{"colour": 1}', "", "none", "none", "ok", "unknown_key"),
    ("PreToolUse", 0, '{"decision": "deny"}', "", "none", "failure_policy", "failed", "unknown_verdict"),
    ("PreToolUse", 0, pre(permissionDecision="no"), "", "none", "failure_policy", "failed", "unknown_verdict"),
    ("PreToolUse", 0, pre(permissionDecision=["deny"]), "", "none", "failure_policy", "failed", "unknown_verdict"),
    ("PreToolUse", 0, pre(updatedInput=[]), "", "none", "failure_policy", "failed", "wrong_type"),
    ("PreToolUse", 0, '{"hookSpecificOutput": []}', "", "none", "failure_policy", "failed", "wrong_type"),
    ("PreToolUse", 0, '{"hookSpecificOutput": {}}', "", "none", "failure_policy", "failed", "missing_event_name"),
    ("PreToolUse", 0, nested("Stop"), "", "none", "failure_policy", "failed", "wrong_event_name"),
    ("PreToolUse", 0, '{"a": 1', "", "none", "failure_policy", "failed", "syntax not_json"),
    ("PreToolUse", 0, '{"a": NaN}', "", "none", "failure_policy", "failed", "not_a_number not_json"),
    ("PreToolUse", 0, DENY + DENY, "", "none", "failure_policy", "failed", "second_document not_json"),
    ("PreToolUse", 0, DENY + "x", "", "none", "failure_policy", "failed", "trailing not_json"),
    ("PreToolUse", 0, "[" * 300 + "]" * 300, "", "none", "failure_policy", "failed", "too_deep not_json"),
    ("PreToolUse", 0, "hi\n" + DENY, "", "none", "none", "ok", "banner not_json"),
    ("PreToolUse", 0, "\ufeff" + DENY, "", "none", "none", "ok", "bom not_json"),
    ("PreToolUse", 0, '{"decision": "block", "decision": "approve"}', "", "allow", "json", "ok", "duplicate_key"),
    ("PreToolUse", 0, "", DENY, "none", "none", "ok", "json_on_stderr"),
    ("PreToolUse", 1, DENY, "", "deny", "json", "blocked", "exit_code"),
    ("PreToolUse", 1, "", "boom", "none", "failure_policy", "failed", "exit_code"),
    ("PreToolUse", 127, "", "sh: x: not found", "none", "failure_policy", "failed", "exit_code"),
    ("PreToolUse", 2, "", "no", "deny", "exit_code", "blocked", ""),
    ("PreToolUse", 2, "", "", "deny", "exit_code", "blocked", "empty_stderr"),
    ("PreToolUse", 2, ALLOW, "no", "deny", "exit_code", "blocked", "contradiction"),
    ("PreToolUse", 2, '{"decision": 1}', "no", "deny", "exit_code", "blocked", "unknown_verdict"),
    ("PreToolUse", 2, '{"a', "no", "deny", "exit_code", "blocked", "syntax not_json"),
    ("PreToolUse", 2, "", "python3: can't open file '/x.py': [Errno 2] No such file or directory", "deny",
     "exit_code", "blocked", "likely_accident"),
    ("PreToolUse", 2, "", "usage: x [-h]\nx: error: unrecognized arguments: -z", "deny", "exit_code", "blocked",
     "likely_accident"),
    ("PermissionRequest", 2, "", "no", "none", "failure_policy", "failed", "exit_code"),
    ("PermissionRequest", 0, nested("PermissionRequest", decision={"behavior": "deny", "message": "no"}), "", "deny",
     "json", "blocked", ""),
    ("PermissionRequest", 0, nested("PermissionRequest", decision={"behavior": "allow"}), "", "allow", "json", "ok", ""),
    ("PermissionRequest", 0, nested("PermissionRequest", decision={}), "", "none", "failure_policy", "failed",
     "unknown_verdict"),
    ("PermissionRequest", 0, BLOCK, "", "none", "none", "ok", "misplaced_field"),
    ("PostToolUse", 2, "", "look", "deny", "exit_code", "blocked", ""),
    ("PostToolUse", 0, BLOCK, "", "deny", "json", "blocked", ""),
    ("Stop", 0, BLOCK, "", "deny", "json", "blocked", ""),
    ("Notification", 2, "", "no", "none", "failure_policy", "failed", "exit_code"),
    ("Notification", 0, BLOCK, "", "none", "none", "ok", "misplaced_field"),
    ("Elicitation", 0, nested("Elicitation", action="decline"), "", "deny", "json", "blocked", ""),
    ("Elicitation", 0, nested("Elicitation", action="accept", content={}), "", "allow", "json", "ok", ""),
    ("WorktreeCreate", 0, "making\n/tree\n\n", "", "none", "none", "ok", ""),
    ("WorktreeCreate", 0, "", "", "deny", "failure_policy", "failed", "no_path"),
    ("WorktreeCreate", 1, "/tree", "", "deny", "failure_policy", "failed", "exit_code"),
    ("UserPromptSubmit", 0, "remember this", "", "none", "none", "ok", ""),
    ("NoSuchEvent", 2, "", "no", "none", "failure_policy", "failed", "exit_code"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "code", "out", "err", "verdict", "source", "status", "codes"), DECODED)
def test_what_an_end_means(
    name: str, code: int, out: str, err: str, verdict: str, source: str, status: str, codes: str
) -> None:
    found = claude.decode(name, HookRun(code, stdout=out.encode(), stderr=err.encode()))
    assert (found.verdict, found.source, found.status) == (verdict, source, status), found
    assert [each.code for each in found.problems] == codes.split()


@pytest.mark.parametrize(
    ("run", "status", "code"),
    [
        (HookRun(timed_out=True, stdout=DENY.encode()), "timed_out", "timed_out"),
        (HookRun(started=False, spawn_error="no such file"), "not_run", "not_run"),
        (HookRun(runner_failed=True, reason="no sandbox"), "runner_failed", "runner_failed"),
        (HookRun(signal=9), "failed", "signal"),
        (HookRun(signal=9, stdout=b"{}"), "failed", "signal"),
        (HookRun(0, stdout=DENY.encode(), stdout_truncated=True), "failed", "truncated"),
        (HookRun(1, denied=True), "denied_by_sandbox", "exit_code"),
    ],
)
def test_an_end_without_an_answer_lets_the_action_go_ahead(run: HookRun, status: str, code: str) -> None:
    found = claude.decode("PreToolUse", run)
    assert (found.verdict, found.status) == ("none", status)
    assert code in [each.code for each in found.problems]


def test_a_json_answer_counts_on_a_death_by_signal_too() -> None:
    found = claude.decode("PreToolUse", HookRun(signal=9, stdout=DENY.encode()))
    assert (found.verdict, found.status, [each.code for each in found.problems]) == ("deny", "blocked", ["signal"])


def test_a_change_counts_on_its_own_event_alone() -> None:
    for name in ("Stop", "UserPromptSubmit"):
        out = nested(name, updatedInput=[1], updatedToolOutput="x").encode()
        found = claude.decode(name, HookRun(0, stdout=out))
        assert (found.updated_input, found.updated_output) == (None, None)
        assert [each.code for each in found.problems] == ["misplaced_field", "misplaced_field"]


def test_the_rest_of_an_answer_is_kept() -> None:
    out = json.dumps(
        {
            "continue": False,
            "stopReason": "enough",
            "systemMessage": "told",
            "suppressOutput": True,
            "hookSpecificOutput": {
                "hookEventName": "PreToolUse",
                "updatedInput": {"command": "ls"},
                "additionalContext": "known",
            },
        }
    )
    found = claude.decode("PreToolUse", HookRun(0, stdout=out.encode()))
    assert (found.verdict, found.halt, found.stop_reason, found.source) == ("none", True, "enough", "json")
    assert (found.context, found.system_messages) == (("known",), ("told",))
    assert (found.updated_input, found.extras) == ({"command": "ls"}, (("suppressOutput", True),))
    assert found.document == json.loads(out)


def test_exit_code_2_keeps_the_halt_and_prefers_the_reason_of_the_json() -> None:
    out = '{"decision": "block", "reason": "from JSON", "continue": false}'
    found = claude.decode("PreToolUse", HookRun(2, stdout=out.encode(), stderr=b"from stderr"))
    assert (found.verdict, found.reason, found.halt) == ("deny", "from JSON", True)


@pytest.mark.parametrize(
    ("name", "merged", "expected", "code"),
    [
        ("PreToolUse", MergedOutcome(), None, 0),
        ("PreToolUse", MergedOutcome("ask", reason="sure?"),
         pre(permissionDecision="ask", permissionDecisionReason="sure?"), 0),
        ("PreToolUse", MergedOutcome("defer"), pre(permissionDecision="defer"), 0),
        ("PreToolUse", MergedOutcome(updated_input={"a": 1}), pre(updatedInput={"a": 1}), 0),
        ("PreToolUse", MergedOutcome("allow", context=("a", "b")),
         pre(additionalContext="a\n\nb", permissionDecision="allow"), 0),
        ("PermissionRequest", MergedOutcome("ask"), None, 0),
        ("PermissionRequest", MergedOutcome("allow", updated_input={"a": 1}),
         nested("PermissionRequest", decision={"behavior": "allow", "updatedInput": {"a": 1}}), 0),
        ("Stop", MergedOutcome("allow"), None, 0),
        ("Stop", MergedOutcome("ask", reason="no"), BLOCK, 0),
        ("PostToolUse", MergedOutcome(updated_output="x"), nested("PostToolUse", updatedToolOutput="x"), 0),
        ("Notification", MergedOutcome(halt=True, stop_reason="x"), '{"continue": false, "stopReason": "x"}', 0),
        ("Notification", MergedOutcome("deny", reason="no"), None, 1),
        ("TaskCompleted", MergedOutcome("deny", reason="no"), None, 2),
        ("NoSuchEvent", MergedOutcome("deny", reason="no"), None, 2),
    ],
)  # fmt: skip
def test_what_it_is_told(name: str, merged: MergedOutcome, expected: str | None, code: int) -> None:
    reply = claude.encode(name, merged)
    assert (json.loads(reply.stdout) if reply.stdout else None) == (expected and json.loads(expected))
    assert reply.exit_code == code
    assert reply.stderr == (b"no\n" if code else b"")


@pytest.mark.parametrize(
    ("name", "merged"),
    [
        ("PreToolUse", MergedOutcome("allow", updated_input={"a": 1}, update_mode="merge")),
        ("PreToolUse", MergedOutcome("allow", updated_input=["a"])),
        ("PreToolUse", MergedOutcome("allow", updated_input={"a": object()})),
        ("PreToolUse", MergedOutcome("allow", updated_input={"a": float("nan")})),
        ("PreToolUse", MergedOutcome("allow", updated_input={"a": "\udc80"})),
        ("PreToolUse", MergedOutcome("allow", updated_output="x")),
        ("UserPromptSubmit", MergedOutcome("allow", updated_input={"a": 1})),
        ("PermissionRequest", MergedOutcome("ask", updated_input={"a": 1})),
    ],
)
def test_a_change_that_it_cannot_be_told_is_a_deny(name: str, merged: MergedOutcome) -> None:
    reply = claude.encode(name, merged)
    again = claude.decode(name, HookRun(reply.exit_code, stdout=reply.stdout, stderr=reply.stderr))
    assert again.verdict == "deny"
    assert "can" in again.reason


def test_what_an_event_has_no_field_for_goes_to_stderr() -> None:
    assert claude.encode("Notification", MergedOutcome(context=("seen\x1b",))).stderr == b"seen\\x1b\n"


def test_a_worktree_is_told_its_path() -> None:
    assert claude.encode("WorktreeCreate", MergedOutcome(extras=(("path", "/t"),))).stdout == b"/t\n"
