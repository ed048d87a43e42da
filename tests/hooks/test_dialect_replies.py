"""What hosts are told, for every dialect: a deny is one that the host obeys, nothing is told weaker than it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.sandbox.hooks.dialects import NAMES, dialect
from stockade.sandbox.hooks.model import VERDICTS, HookOutcome, HookRun, MergedOutcome, Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EVENTS = [(name, event, rule) for name in NAMES for event, rule in dialect(name).EVENTS.items()]
TELLING = [(name, event) for name, event, rule in EVENTS if rule.blocks or rule.feedback]
TOO_LATE = [(name, event) for name, event, rule in EVENTS if not (rule.blocks or rule.feedback)]
NO_FOLLOW_UP = {("agy", "Stop"), ("cursor", "stop"), ("cursor", "subagentStop")}
"""Ends of turns where a deny means going on, so that a halt is no deny."""
NASTY = (
    "", " ", "\n", "\0", "\x1b[2J", "\ud800", "\udc80", "\u2028", "\u200b", "\ufeff", "\u3000", "\\ud800",
    '{"continue": true}', '{"decision": "allow"}', "x" * 60_000,
)  # fmt: skip
ANY_TEXT = st.text(st.characters(), max_size=20) | st.sampled_from(NASTY[:-1])
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(ANY_TEXT, inner, max_size=2),
    max_leaves=4,
)
CHANGE = st.none() | st.dictionaries(ANY_TEXT, ANY_JSON, max_size=2) | ANY_JSON


def merged_outcomes(verdicts: tuple[str, ...] = VERDICTS) -> st.SearchStrategy[MergedOutcome]:
    return st.builds(
        MergedOutcome,
        st.sampled_from(verdicts),
        st.booleans(),
        ANY_TEXT,
        ANY_TEXT,
        context=st.lists(ANY_TEXT, max_size=2).map(tuple),
        system_messages=st.lists(ANY_TEXT, max_size=2).map(tuple),
        updated_input=CHANGE,
        update_mode=st.sampled_from(("replace", "merge")),
        updated_output=ANY_JSON,
        extras=st.lists(
            st.tuples(st.sampled_from(["suppressOutput", "interrupt", "updatedPermissions", "env", "path", "x"]), ANY_JSON),
            max_size=2,
        ).map(tuple),
    )  # fmt: skip


def heard(name: str, event: str, reply: Reply) -> HookOutcome:
    found: HookOutcome = dialect(name).decode(
        event, HookRun(reply.exit_code, stdout=reply.stdout, stderr=reply.stderr)
    )
    return found


def strict(data: bytes) -> Any:
    """Read as the strictest host does: UTF-8, no lone surrogates, no NaN."""

    def refuse(word: str) -> Any:
        raise ValueError(word)

    value = json.loads(data.decode(), parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode()
    return value


@pytest.mark.parametrize("reason", NASTY, ids=range(len(NASTY)))
@pytest.mark.parametrize(("name", "event"), TELLING)
def test_a_deny_is_obeyed_whatever_its_reason(name: str, event: str, reason: str) -> None:
    reply = dialect(name).encode(event, MergedOutcome("deny", reason=reason))
    found = heard(name, event, reply)
    assert (found.verdict, found.status) == ("deny", "blocked")
    assert found.reason.strip()
    assert {each.code for each in found.problems} <= ({"json_on_stderr"} if reply.exit_code else set())
    if reply.stdout:
        strict(reply.stdout)


@settings(max_examples=400)
@given(where=st.sampled_from(TELLING), merged=merged_outcomes(("deny",)))
def test_a_deny_is_obeyed_whatever_stands_beside_it(where: tuple[str, str], merged: MergedOutcome) -> None:
    name, event = where
    if (name, event) in NO_FOLLOW_UP:
        merged = merged.replace(halt=False)
    reply = dialect(name).encode(event, merged)
    found = heard(name, event, reply)
    assert found.verdict == "deny"
    assert found.updated_input is None
    if reply.stdout:
        strict(reply.stdout)


@settings(max_examples=800)
@given(where=st.sampled_from(TELLING), merged=merged_outcomes())
def test_nothing_is_told_weaker_than_it_is(where: tuple[str, str], merged: MergedOutcome) -> None:
    name, event = where
    found = heard(name, event, dialect(name).encode(event, merged))
    if (name, event) in NO_FOLLOW_UP and merged.halt:
        assert found.verdict == "none"
        return
    if merged.halt:
        assert found.halt or found.verdict == "deny"
    changed = merged.updated_input is not None or merged.updated_output is not None
    if changed and merged.verdict != "deny" and found.verdict != "deny":
        assert found.updated_input == merged.updated_input
        assert found.updated_output == merged.updated_output
    asks_by_itself = event == "PermissionRequest" and merged.verdict in ("ask", "defer")
    needs_a_decision = name == "agy" and merged.verdict == "none"
    allow_may_be_silence = merged.verdict == "allow"
    if not (asks_by_itself or needs_a_decision or allow_may_be_silence):
        assert VERDICTS.index(found.verdict) <= VERDICTS.index(merged.verdict)
    if asks_by_itself:
        assert found.verdict in ("none", "deny")


@pytest.mark.parametrize(("name", "event"), TELLING)
@pytest.mark.parametrize("verdict", ["none", "allow"])
def test_no_objection_denies_nothing(name: str, event: str, verdict: str) -> None:
    reply = dialect(name).encode(event, MergedOutcome(verdict, extras=(("path", "/tree"),)))
    found = heard(name, event, reply)
    assert (found.verdict in ("none", "allow"), found.status, reply.exit_code) == (True, "ok", 0)
    assert found.problems == ()
    if verdict == "none" and (name, event) not in {("agy", "PreToolUse"), ("claude", "WorktreeCreate")}:
        assert reply == Reply()


@settings(max_examples=400)
@given(where=st.sampled_from(TOO_LATE), merged=merged_outcomes(("deny",)))
def test_a_deny_that_comes_too_late_is_never_silent(where: tuple[str, str], merged: MergedOutcome) -> None:
    name, event = where
    reply = dialect(name).encode(event, merged)
    if reply.exit_code == 0:
        assert heard(name, event, reply).halt
        assert "systemMessage" in strict(reply.stdout)
    else:
        assert (reply.stdout, reply.exit_code) == (b"", 1)
        assert reply.stderr.strip()
        assert reply.stderr.replace(b"\n", b" ").decode().isprintable()


@pytest.mark.parametrize("name", NAMES)
def test_a_deny_of_an_unknown_event_is_the_strongest_that_there_is(name: str) -> None:
    reply = dialect(name).encode("Brand.New", MergedOutcome("deny", reason="no"))
    if name in ("antigravity", "agy", "gemini"):
        assert (json.loads(reply.stdout), reply.exit_code) == ({"decision": "deny", "reason": "no"}, 0)
    else:
        assert (reply.stdout, reply.stderr, reply.exit_code) == (b"", b"no\n", 2)


@pytest.mark.parametrize(
    ("name", "event", "merged", "expected"),
    [
        ("codex", "PreToolUse", MergedOutcome("allow"), None),
        ("codex", "PreToolUse", MergedOutcome("ask", reason="sure?"),
         {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny",
                                 "permissionDecisionReason": "sure?"}}),
        ("codex", "PermissionRequest", MergedOutcome("ask"), None),
        ("codex", "Stop", MergedOutcome(halt=True, stop_reason="x"), {"continue": False, "stopReason": "x"}),
        ("antigravity", "pre_tool_execution", MergedOutcome(halt=True, stop_reason="x"), {"decision": "deny", "reason": "x"}),
        ("antigravity", "pre_tool_execution", MergedOutcome("allow"), {"decision": "allow"}),
        ("agy", "PreToolUse", MergedOutcome(), {"decision": "allow"}),
        ("agy", "PreToolUse", MergedOutcome("ask", extras=(("force_ask", True),)), {"decision": "force_ask"}),
        ("agy", "PreToolUse", MergedOutcome("allow", updated_input={"a": 1}, update_mode="merge"),
         {"decision": "allow", "overwrite": {"a": 1}}),
        ("agy", "Stop", MergedOutcome("deny", reason="more"), {"decision": "continue", "reason": "more"}),
        ("gemini", "BeforeTool", MergedOutcome(updated_input={"a": 1}, update_mode="merge"),
         {"hookSpecificOutput": {"hookEventName": "BeforeTool", "tool_input": {"a": 1}}}),
        ("gemini", "AfterAgent", MergedOutcome("deny", reason="x", extras=(("clearContext", True), ("toolConfig", {}))),
         {"decision": "deny", "reason": "x",
          "hookSpecificOutput": {"hookEventName": "AfterAgent", "clearContext": True}}),
        ("cursor", "preToolUse", MergedOutcome("deny", reason="x", context=("c",)),
         {"permission": "deny", "user_message": "x", "agent_message": "c"}),
        ("cursor", "beforeShellExecution", MergedOutcome("ask", reason="x"),
         {"permission": "ask", "user_message": "x", "agent_message": "x"}),
        ("cursor", "beforeSubmitPrompt", MergedOutcome("deny", reason="x"), {"continue": False, "user_message": "x"}),
        ("cursor", "stop", MergedOutcome("deny", reason="x"), {"followup_message": "x"}),
        ("nous", "pre_tool_use", MergedOutcome(updated_input={"a": 1}, update_mode="merge"),
         {"result": "modify", "changes": {"a": 1}}),
    ],
)  # fmt: skip
def test_what_is_told(name: str, event: str, merged: MergedOutcome, expected: Any) -> None:
    reply = dialect(name).encode(event, merged)
    assert (json.loads(reply.stdout) if reply.stdout else None) == expected
    assert (reply.stderr, reply.exit_code) == (b"", 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_long_reason_is_cut(name: str) -> None:
    event = next(event for event, rule in dialect(name).EVENTS.items() if rule.kind == "pre_tool")
    assert len(dialect(name).encode(event, MergedOutcome("deny", reason="x" * 100_000)).stdout) < 20_000
