"""The corpus: what hosts tell is understood by their dialects, and fits the handler that is tried with it."""

from __future__ import annotations

import json

import pytest

from stockade.sandbox.hooks.dialects import NAMES, dialect
from stockade.sandbox.hooks.model import HookSpec
from stockade.sandbox.review import corpus, envelopes
from stockade.sandbox.review.acts import ACTS, HUGE

SETTING = corpus.Setting("/w/orders-api", "/home/dev", "/home/dev/t.jsonl", "TOKEN0123456789abcdef")
EVENTS = [(name, event) for name in NAMES for event in dialect(name).EVENTS]


def spec(name: str = "claude", event: str = "PreToolUse", **more: object) -> HookSpec:
    return HookSpec(name, event, dialect(name).rule(event).kind, "argv", ("true",), **more)


def names(chosen: corpus.Chosen) -> list[str]:
    return [each.name for each in chosen.cases]


@pytest.mark.parametrize(("name", "event"), EVENTS)
def test_every_event_of_every_host_has_cases_that_its_dialect_reads(name: str, event: str) -> None:
    handler = spec(name, event)
    for case in corpus.candidates(handler, SETTING):
        told = corpus.event_of(handler, case)
        assert (told.name, told.dialect) == (event, name)
        assert json.loads(dialect(name).payload(told)) == case.payload
        assert case.about
    assert names(corpus.choose(handler, SETTING))
    assert len({each.name for each in corpus.candidates(handler, SETTING)}) == len(
        corpus.candidates(handler, SETTING)
    )


@pytest.mark.parametrize(("name", "event"), EVENTS)
def test_names_of_cases_are_known(name: str, event: str) -> None:
    known = corpus.names_of_cases()
    assert all(each.name in known for each in corpus.candidates(spec(name, event), SETTING))


@pytest.mark.parametrize(
    ("name", "event", "matcher", "first"),
    [
        ("claude", "PreToolUse", "Bash", ["benign-shell", "destructive-shell", "commit-shell", "hostile-shell"]),
        ("claude", "PreToolUse", "Write|Edit", ["write-source", "write-credential", "huge-write", "edit-source"]),
        ("claude", "PreToolUse", "Read", ["read-secret", "read-source"]),
        ("claude", "PreToolUse", "mcp__github__.*", ["mcp-call"]),
        ("claude", "PostToolUse", "^Edit$", ["edit-source"]),
        ("codex", "PreToolUse", "apply_patch", ["write-source", "write-credential", "huge-write", "edit-source"]),
        ("gemini", "BeforeTool", "read_file", ["read-secret", "read-source"]),
        ("cursor", "beforeShellExecution", "git commit", ["commit-shell"]),
        ("antigravity", "pre_tool_execution", "*", ["benign-shell", "destructive-shell", "write-source"]),
        ("agy", "PreToolUse", "view_file", ["read-secret", "read-source"]),
        ("nous", "pre_tool_use", "bash", ["benign-shell", "destructive-shell", "commit-shell"]),
        ("claude", "SessionStart", "resume", ["session-resume"]),
        ("claude", "PreCompact", "auto", ["compact-auto"]),
        ("claude", "UserPromptSubmit", None, ["benign-prompt", "secret-prompt", "hostile-prompt", "huge-prompt"]),
        ("claude", "Stop", None, ["stop", "stop-again"]),
    ],
)
def test_cases_are_those_that_the_matcher_lets_through(
    name: str, event: str, matcher: str | None, first: list[str]
) -> None:
    chosen = corpus.choose(spec(name, event, matcher=matcher), SETTING)
    assert names(chosen)[: len(first)] == first
    assert not chosen.forced


@pytest.mark.parametrize("matcher", ["Task", "mcp__memory__store", "mcp__db__.*|Task", "^NotebookEdit$"])
def test_a_tool_that_only_the_matcher_knows_is_called(matcher: str) -> None:
    chosen = corpus.choose(spec(matcher=matcher), SETTING)
    assert names(chosen)[0] == "named-tool"
    assert not chosen.forced


def test_a_matcher_that_nothing_fits_is_said_and_something_is_given_all_the_same() -> None:
    chosen = corpus.choose(spec(event="SessionStart", matcher="never-said"), SETTING)
    assert chosen.forced
    assert chosen.cases


def test_what_finds_no_room_is_named() -> None:
    chosen = corpus.choose(spec(), SETTING)
    assert len(chosen.cases) == corpus.MOST_CASES
    assert set(names(chosen)) | set(chosen.left_out) == {act.name for act in ACTS}


def test_switched_off_handlers_are_tried_as_if_they_were_on() -> None:
    assert not corpus.choose(spec(enabled=False, matcher="Bash"), SETTING).forced


def test_chosen_names_are_given_alone() -> None:
    assert names(corpus.choose(spec(), SETTING, ["read-secret"])) == ["read-secret"]
    assert names(corpus.choose(spec(), SETTING, ["stop"])) == []


def test_payloads_have_the_paths_and_the_secret_of_the_setting() -> None:
    cases = {each.name: json.dumps(each.payload) for each in corpus.candidates(spec(), SETTING)}
    assert "/w/orders-api/src/orders.py" in cases["write-source"]
    assert "/home/dev/.aws/credentials" in cases["write-credential"]
    assert SETTING.token in cases["write-credential"]
    assert len(cases["huge-write"]) > HUGE
    assert "{project}" not in "".join(cases.values())
    assert SETTING.token not in cases["benign-shell"]


def test_the_result_of_a_tool_is_told_after_it() -> None:
    cases = {each.name: each.payload for each in corpus.candidates(spec(event="PostToolUse"), SETTING)}
    assert SETTING.token in cases["read-secret"]["tool_response"]["stdout"]
    failures = corpus.candidates(spec(event="PostToolUseFailure"), SETTING)
    assert all("error" in each.payload for each in failures)


def test_tool_names_are_read_of_every_shape() -> None:
    for name, event in (
        ("claude", "PreToolUse"),
        ("agy", "PreToolUse"),
        ("antigravity", "pre_tool_execution"),
        ("nous", "pre_tool_use"),
    ):
        assert envelopes.tool_name(corpus.candidates(spec(name, event), SETTING)[0].payload)
