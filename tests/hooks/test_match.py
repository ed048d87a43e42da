"""Which handlers run for an event, by the rule of each host; what can't be told runs."""

from __future__ import annotations

import pytest

from stockade.policies.errors import RequestError
from stockade.sandbox.hooks import patterns
from stockade.sandbox.hooks.dialects import dialect
from stockade.sandbox.hooks.match import matcher_problem, matches
from stockade.sandbox.hooks.model import HookEvent, HookSpec, ToolCall


def spec(host: str, event: str, matcher: str | None = None, **more) -> HookSpec:
    kind = dialect(host).rule(event).kind
    return HookSpec(host, event, kind, "shell", "x", matcher=matcher, **more)


def event(host: str, name: str, tool: str = "", tool_input=None, **raw) -> HookEvent:
    call = ToolCall(tool, tool_input) if tool else None
    return HookEvent(host, name, dialect(host).rule(name).kind, raw, cwd="/w", project_dir="/w", tool=call)


def runs(host: str, name: str, matcher: str | None, tool: str = "", **raw) -> bool:
    return matches(spec(host, name, matcher), event(host, name, tool, **raw)).runs


TOOLS = [
    # host, matcher, tool, runs
    ("claude", None, "Bash", True),
    ("claude", "", "Bash", True),
    ("claude", "*", "Bash", True),
    ("claude", "Bash", "Bash", True),
    ("claude", "Bash", "BashOutput", False),
    ("claude", "bash", "Bash", False),
    ("claude", "Edit|Write", "Write", True),
    ("claude", "Edit, Write", "Write", True),
    ("claude", "Edit|Write", "MultiEdit", False),
    ("claude", "mcp__a-b__c", "mcp__a-b__c", True),
    ("claude", "Edit.*", "MultiEdit", True),
    ("claude", "^Edit$", "MultiEdit", False),
    ("claude", "^Edit$", "Edit\n", False),
    ("claude", "mcp__.*__write", "mcp__fs__write_file", True),
    ("claude", "^(?!Bash)", "Edit", True),
    ("claude", "^(?!Bash)", "Bash", False),
    ("claude", r"(?<server>a|b)__\k<server>", "mcp__a__a", True),
    ("claude", r"(?<server>a|b)__\k<server>", "mcp__a__b", False),
    ("claude", r"\u0042ash", "Bash", True),
    ("claude", r"[^]ash", "Bash", True),
    ("claude", "[]ash", "Bash", False),
    ("codex", "Bash", "Bash", True),
    ("codex", "Bash|Edit", "Edit", True),
    ("codex", "Edit", "apply_patch", True),
    ("codex", "Write|Read", "apply_patch", True),
    ("codex", "^Edit$", "apply_patch", True),
    ("codex", "apply_patch", "apply_patch", True),
    ("codex", "Read", "apply_patch", False),
    ("codex", "Bash, Edit", "Edit", False),
    ("codex", "(?i)bash", "Bash", True),
    ("codex", "Ba.h", "xBash", True),
    ("codex", "(?=Bash)", "Bash", False),
    ("codex", "[", "Bash", False),
    ("antigravity", "*", "read_file", True),
    ("antigravity", ".*", "read_file", True),
    ("antigravity", "", "read_file", True),
    ("antigravity", "file", "read_file", True),
    ("antigravity", "^read_file$", "read_file", True),
    ("antigravity", "read_file|write_file", "write_file", True),
    ("antigravity", "^file$", "read_file", False),
    ("antigravity", "write", "read_file", False),
    ("agy", "run_.*", "run_command", True),
    ("agy", "write", "run_command", False),
    ("gemini", "write_.*", "write_file", True),
    ("gemini", "file", "write_file", True),
    ("gemini", " * ", "write_file", True),
    ("gemini", "^file", "write_file", False),
    ("gemini", "a[", "a[", True),
    ("gemini", "a[", "xa[", False),
    ("cursor", "Shell|Read", "Shell", True),
    ("cursor", "Rea", "Read", True),
    ("cursor", "MCP:x", "MCP:x", True),
    ("cursor", "Write", "Read", False),
    ("nous", "read_file", "read_file", True),
    ("nous", "read_file", "write_file", False),
]
PRE_TOOL = {
    "claude": "PreToolUse", "codex": "PreToolUse", "antigravity": "pre_tool_execution", "agy": "PreToolUse",
    "gemini": "BeforeTool", "cursor": "preToolUse", "nous": "pre_tool_use",
}  # fmt: skip


@pytest.mark.parametrize(("host", "matcher", "tool", "expected"), TOOLS)
def test_matchers_of_tools(host, matcher, tool, expected):
    assert runs(host, PRE_TOOL[host], matcher, tool) is expected


FIELDS = [
    ("claude", "SessionStart", "startup", {"source": "startup"}, True),
    ("claude", "SessionStart", "startup", {"source": "resume"}, False),
    ("claude", "PreCompact", "manual|auto", {"trigger": "auto"}, True),
    ("claude", "Notification", "idle", {"notification_type": "permission"}, False),
    ("claude", "FileChanged", ".envrc|.env", {"file_path": "/w/.env"}, True),
    ("claude", "FileChanged", "a|b", {"file_path": "/w/b"}, True),
    ("claude", "FileChanged", "a|b", {"file_path": "/b/w"}, False),
    ("claude", "Stop", "anything", {}, True),
    ("claude", "UserPromptSubmit", "Bash", {"prompt": "x"}, True),
    ("codex", "UserPromptSubmit", "Bash", {"prompt": "x"}, True),
    ("codex", "Stop", "[", {}, True),
    ("codex", "SessionStart", "startup|resume", {"source": "clear"}, False),
    ("gemini", "SessionStart", "startup", {"source": "startup"}, True),
    ("gemini", "SessionStart", "start.*", {"source": "startup"}, False),
    ("gemini", "BeforeModel", "x", {}, True),
    ("cursor", "beforeShellExecution", r"git\s+push", {"command": "cd x && git push -f"}, True),
    ("cursor", "beforeShellExecution", r"git\s+push", {"command": "git pull"}, False),
    ("cursor", "beforeReadFile", "Secret", {"file_path": "/x"}, True),
    ("agy", "Stop", "x", {}, True),
]


@pytest.mark.parametrize(("host", "name", "matcher", "raw", "expected"), FIELDS)
def test_matchers_of_other_events(host, name, matcher, raw, expected):
    assert runs(host, name, matcher, **raw) is expected


def test_another_event_and_a_handler_that_is_off_never_run():
    here = event("claude", "PreToolUse", "Bash")
    assert matches(spec("claude", "PreToolUse"), here).runs
    assert not matches(spec("claude", "PostToolUse"), here).runs
    assert not matches(spec("claude", "PreToolUse", enabled=False), here).runs


UNTOLD = [
    ("claude", "PreToolUse", "[", "Bash", "bad_pattern"),
    ("claude", "PreToolUse", "C++", "Bash", "bad_pattern"),
    ("claude", "PreToolUse", "(?i)bash", "Edit", "bad_pattern"),
    ("claude", "PreToolUse", "(?P<x>a)", "Edit", "bad_pattern"),
    ("claude", "PreToolUse", r"\p{L}", "Edit", "bad_pattern"),
    ("claude", "PreToolUse", "(?=(a+)+$)x", "Edit", "bad_pattern"),
    ("claude", "PreToolUse", "x" * 3000 + ".", "Edit", "bad_pattern"),
    ("antigravity", "pre_tool_execution", "(?=a)", "read_file", "bad_pattern"),
    ("cursor", "preToolUse", "(", "Read", "bad_pattern"),
    ("claude", "PreToolUse", "Bash", "", "no_subject"),
    ("cursor", "beforeReadFile", "x", "", "matcher_unknown"),
]


@pytest.mark.parametrize(("host", "name", "matcher", "tool", "code"), UNTOLD)
def test_what_can_not_be_told_runs_and_says_why(host, name, matcher, tool, code):
    found = matches(spec(host, name, matcher), event(host, name, tool))
    assert found.runs
    assert [each.code for each in found.problems] == [code]


def test_codex_drops_what_it_can_not_read_and_that_is_said():
    found = matches(spec("codex", "PreToolUse", "("), event("codex", "PreToolUse", "Bash"))
    assert not found.runs
    assert [each.code for each in found.problems] == ["bad_pattern"]


@pytest.mark.parametrize("matcher", ["(a+)+$", "(a|a)*$", "(a|aa)+$", "a*a*a*a*a*a*a*a*b", "(?:a?){50}a{50}"])
def test_patterns_that_backtrack_for_ever_end_at_once_with_re2(matcher):
    assert patterns.js_pattern(matcher).engine == "re2"
    assert isinstance(runs("claude", "PreToolUse", matcher, "a" * 50_000 + "!"), bool)


SLOW = [
    "(a+)+$",
    "(a|a)*$",
    "(a|aa)+$",
    "a*a*a*a*a*a*a*a*b",
    "(a|a)" * 30 + "b",
    "(a?){9}(a?){9}(a?){9}",
    "((a{1,9}){1,9}){1,9}$",
]


@pytest.mark.parametrize("matcher", SLOW)
def test_and_are_not_tried_without_it(matcher, monkeypatch):
    monkeypatch.setattr(patterns, "re2_module", lambda: None)
    found = matches(spec("claude", "PreToolUse", matcher), event("claude", "PreToolUse", "a" * 5000 + "!"))
    assert (found.runs, [each.code for each in found.problems]) == (True, ["bad_pattern"])


@pytest.mark.parametrize(
    ("host", "matcher", "tool", "expected"), [each for each in TOOLS if each[0] not in ("antigravity", "agy")]
)
def test_without_re2_ordinary_matchers_mean_the_same(host, matcher, tool, expected, monkeypatch):
    monkeypatch.setattr(patterns, "re2_module", lambda: None)
    assert runs(host, PRE_TOOL[host], matcher, tool) is expected


def test_antigravity_without_re2_names_what_to_install(monkeypatch):
    monkeypatch.setattr(patterns, "re2_module", lambda: None)
    assert runs("antigravity", "pre_tool_execution", "*", "read_file")
    assert not runs("antigravity", "pre_tool_execution", "write", "read_file")
    with pytest.raises(RequestError, match="re2") as caught:
        runs("antigravity", "pre_tool_execution", "^read", "read_file")
    assert "stockade[hooks]" in caught.value.remedy


PROBLEMS = [
    ("claude", "PreToolUse", "Bash", None),
    ("claude", "PreToolUse", "^Ba", None),
    ("claude", "Stop", "*", None),
    ("claude", "Stop", "x", "matcher_ignored"),
    ("claude", "MadeUp", "x", None),
    ("claude", "PreToolUse", "(", "bad_pattern"),
    ("codex", "UserPromptSubmit", "x", "matcher_ignored"),
    ("codex", "PreToolUse", "(?<!a)b", "bad_pattern"),
    ("gemini", "SessionStart", "(", None),
    ("gemini", "BeforeTool", "(", "bad_pattern"),
]


@pytest.mark.parametrize(("host", "name", "matcher", "code"), PROBLEMS)
def test_what_is_wrong_with_a_matcher(host, name, matcher, code):
    problem = matcher_problem(spec(host, name, matcher))
    assert (problem and problem.code) == code


CONDITIONS = [
    # rule, tool, input, runs
    ("Bash", "Bash", {"command": "ls"}, True),
    ("Bash", "Edit", {}, False),
    ("Bash(*)", "Bash", {"command": "ls"}, True),
    ("Bash(git *)", "Bash", {"command": "git push"}, True),
    ("Bash(git *)", "Bash", {"command": "git"}, True),
    ("Bash(git *)", "Bash", {"command": "gitk"}, False),
    ("Bash(git:*)", "Bash", {"command": "git log"}, True),
    ("Bash(git push)", "Bash", {"command": "git push"}, True),
    ("Bash(git push)", "Bash", {"command": "git push -f"}, False),
    ("Bash(git * main)", "Bash", {"command": "git push origin main"}, True),
    ("Bash(git *)", "Bash", {"command": "cd x && git push"}, True),
    ("Bash(git *)", "Bash", {"command": "A=1 git push"}, True),
    ("Bash(git *)", "Bash", {"command": "echo $(git rev-parse HEAD)"}, True),
    ("Bash(git *)", "Bash", {"command": 'echo "x `git log` y"'}, True),
    ("Bash(git *)", "Bash", {"command": "sh -c 'git push'"}, True),
    ("Bash(git *)", "Bash", {"command": "timeout 5 git push"}, True),
    ("Bash(git *)", "Bash", {"command": "g''it push"}, True),
    ("Bash(git *)", "Bash", {"command": "echo 'git push'"}, False),
    ("Bash(git *)", "Bash", {"command": "echo git"}, False),
    ("Bash(git *)", "Bash", {"command": "echo 'unfinished"}, True),
    ("Bash(git *)", "Bash", {"command": "$X push"}, True),
    ("Bash(git *)", "Bash", {}, True),
    ("Edit(*.ts)", "Edit", {"file_path": "/w/src/a.ts"}, True),
    ("Edit(*.ts)", "Write", {"file_path": "/w/a.ts"}, True),
    ("Edit(*.ts)", "Edit", {"file_path": "/w/a.tsx"}, False),
    ("Edit(src/**)", "Edit", {"file_path": "/w/src/x/a.py"}, True),
    ("Edit(src/*.py)", "Edit", {"file_path": "/w/src/a.py"}, True),
    ("Edit(src/*.py)", "Edit", {"file_path": "/w/src/x/a.py"}, False),
    ("Edit(src/*.py)", "Edit", {"file_path": "/w/x/../src/a.py"}, True),
    ("Edit(//etc/**)", "Edit", {"file_path": "/etc/passwd"}, True),
    ("Edit(//etc/**)", "Edit", {"file_path": "/w/etc/passwd"}, False),
    ("Read(.env)", "Grep", {"path": "/w/.env"}, True),
    ("Edit(*.ts)", "Edit", {}, True),
    ("WebFetch(domain:a.example)", "WebFetch", {"url": "https://A.example/x"}, True),
    ("WebFetch(domain:a.example)", "WebFetch", {"url": "https://b.example/x"}, False),
    ("Agent(Explore)", "Task", {"subagent_type": "Explore"}, True),
    ("mcp__fs", "mcp__fs__write", {}, True),
    ("mcp__fs__*", "mcp__fs__write", {}, True),
    ("mcp__fs", "mcp__other__write", {}, False),
    ("Skill(x)", "Skill", {"skill": "y"}, True),
    ("not a rule", "Bash", {"command": "ls"}, True),
]


@pytest.mark.parametrize(("rule", "tool", "given", "expected"), CONDITIONS)
def test_the_condition_filters_and_never_in_doubt(rule, tool, given, expected):
    found = matches(spec("claude", "PreToolUse", condition=rule), event("claude", "PreToolUse", tool, given))
    assert found.runs is expected


def test_a_condition_on_another_event_keeps_the_handler_from_running():
    found = matches(spec("claude", "Stop", condition="Bash(git *)"), event("claude", "Stop"))
    assert (found.runs, [each.code for each in found.problems]) == (False, ["if_never"])


def test_a_condition_with_many_stars_ends():
    rule = f"Bash({'*a' * 60}b)"
    here = event("claude", "PreToolUse", "Bash", {"command": "a" * 5000})
    assert isinstance(matches(spec("claude", "PreToolUse", condition=rule), here).runs, bool)
