"""What each host would make of one and the same run."""

from __future__ import annotations

import pytest

from stockade.policies.errors import RequestError
from stockade.sandbox.hooks.dialects import NAMES
from stockade.sandbox.hooks.explain import explain_across
from stockade.sandbox.hooks.model import HookRun

SILENT_TWO = HookRun(2)


def test_each_host_is_asked_about_its_own_event_of_the_kind() -> None:
    rows = explain_across(SILENT_TWO, "PreToolUse")
    assert tuple(row.dialect for row in rows) == NAMES
    assert {row.dialect: (row.event, row.effect) for row in rows} == {
        "claude": ("PreToolUse", "denied"),
        "codex": ("PreToolUse", "goes ahead"),
        "antigravity": ("pre_tool_execution", "goes ahead"),
        "agy": ("PreToolUse", "denied"),
        "gemini": ("BeforeTool", "goes ahead"),
        "cursor": ("preToolUse", "denied"),
        "nous": ("pre_tool_use", "denied"),
    }
    assert [row.dialect for row in rows if row.provisional] == ["agy"]
    assert rows == explain_across(SILENT_TWO, "pre_tool")


def test_a_host_without_the_event_says_so() -> None:
    rows = {row.dialect: row for row in explain_across(HookRun(2, stderr=b"go on"), "Stop")}
    assert {name: row.effect for name, row in rows.items()} == {
        "claude": "denied",
        "codex": "denied",
        "antigravity": "no such event",
        "agy": "goes ahead",
        "gemini": "denied",
        "cursor": "denied",
        "nous": "no such event",
    }
    assert (rows["nous"].event, rows["nous"].outcome) == ("", None)


@pytest.mark.parametrize(
    ("run", "event", "name", "effect"),
    [
        (HookRun(2, stderr=b"no"), "PostToolUse", "claude", "told"),
        (HookRun(0, stdout=b'{"result": "allow"}'), "pre_tool", "nous", "allowed"),
        (HookRun(0, stdout=b'{"decision": "ask"}'), "pre_tool", "gemini", "asked"),
        (HookRun(0), "TaskCreated", "claude", "goes ahead"),
        (HookRun(0), "TaskCreated", "codex", "no such event"),
        (HookRun(0, stdout=b'{"continue": false}'), "prompt_submit", "claude", "goes ahead"),
    ],
)
def test_effects(run: HookRun, event: str, name: str, effect: str) -> None:
    row = next(row for row in explain_across(run, event) if row.dialect == name)
    assert row.effect == effect
    assert row.halt == (b"continue" in run.stdout)


@pytest.mark.parametrize("name", ["other", "Nope", ""])
def test_an_event_that_no_host_has_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="no host has an event"):
        explain_across(SILENT_TWO, name)
