"""Hooks files of each host as handlers: the fields that count, and what is told about the rest."""

from __future__ import annotations

import json

import pytest

from stockade.policies.errors import RequestError
from stockade.sandbox.hooks.config import examine, load, parse
from stockade.sandbox.hooks.source import HooksFileError

COMMAND = {"type": "command", "command": "guard"}


def at(path: str, document, **more):
    text = document if isinstance(document, str) else json.dumps(document)
    return parse(text.encode(), path, **more)


def seen(tmp_path, document, name="hooks.json", dialect="claude"):
    """What is told about a file that need not be whole."""
    path = tmp_path / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return examine(str(path), dialect)


def groups(*handlers, event="PreToolUse", **group):
    return {"hooks": {event: [{**group, "hooks": list(handlers)}]}}


CURSOR = {"version": 1, "hooks": {"stop": [{"command": "x"}]}}
PLACES = [
    ("/p/.claude/settings.json", groups(COMMAND), "claude", "project", "/p"),
    ("/p/.claude/settings.local.json", groups(COMMAND), "claude", "project-local", "/p"),
    ("/home/u/.claude/settings.json", groups(COMMAND), "claude", "user", "/home/u/.claude"),
    ("/etc/claude-code/managed-settings.json", groups(COMMAND), "claude", "managed", "/etc/claude-code"),
    ("/p/.codex/hooks.json", groups(COMMAND), "codex", "project", "/p"),
    ("/p/.agents/hooks.json", {"g": {"pre_tool_execution": [{"hooks": [COMMAND]}]}}, "antigravity", "project", "/p"),
    ("/p/.agents/hooks.json", {"g": {"PreToolUse": [{"hooks": [COMMAND]}]}}, "agy", "project", "/p"),
    ("/home/u/.gemini/config/hooks.json", {"g": {"Stop": [COMMAND]}}, "agy", "project", "/home/u/.gemini/config"),
    ("/p/.gemini/settings.json", groups(COMMAND, event="BeforeTool"), "gemini", "project", "/p"),
    ("/p/.cursor/hooks.json", {"version": 1, "hooks": {"stop": [{"command": "x"}]}}, "cursor", "project", "/p"),
    ("/home/u/.cursor/hooks.json", CURSOR, "cursor", "user", "/home/u/.cursor"),
    ("/p/hooks/hooks.json", groups(COMMAND), "claude", "file", "/p"),
    ("/p/hooks/hooks.json", groups(COMMAND, event="AfterAgent"), "gemini", "file", "/p"),
    ("/p/x/hooks-cursor.json", {"version": 1, "hooks": {"stop": [{"command": "x"}]}}, "cursor", "file", "/p/x"),
    ("/p/x/codex-hooks.json", groups(COMMAND), "codex", "file", "/p/x"),
    ("/p/.claude-plugin/plugin.json", {"name": "x", **groups(COMMAND)}, "claude", "plugin", "/p"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "document", "dialect", "provenance", "root"), PLACES)
def test_a_files_place_and_content_tell_whose_it_is(path, document, dialect, provenance, root):
    found = at(path, document, home="/home/u")
    assert (found.dialect, found.provenance, found.root) == (dialect, provenance, root)
    assert len(found.specs) == 1
    assert found.problems == ()
    assert {(each.dialect, each.provenance, each.root, each.source) for each in found.specs} == {
        (dialect, provenance, root, path)
    }


def test_an_extension_is_told_by_its_manifest(tmp_path):
    (tmp_path / "hooks").mkdir()
    (tmp_path / "gemini-extension.json").write_text("{}")
    path = tmp_path / "hooks" / "hooks.json"
    path.write_text(json.dumps(groups(COMMAND, event="SessionStart")))
    assert (load(str(path)).dialect, load(str(path)).provenance) == ("gemini", "extension")


HANDLERS = [
    ("claude", "PreToolUse", {}, {"form": "shell", "command": "guard", "kind": "pre_tool"}),
    ("claude", "PreToolUse", {"timeout": 5}, {"timeout": 5.0, "timeout_given": True}),
    ("claude", "PreToolUse", {}, {"timeout": 600.0, "timeout_given": False}),
    ("claude", "UserPromptSubmit", {}, {"timeout": 30.0}),
    ("claude", "MessageDisplay", {}, {"timeout": 10.0}),
    ("claude", "SessionEnd", {}, {"timeout": 1.5}),
    ("claude", "SessionEnd", {"timeout": 300}, {"timeout": 60.0}),
    ("claude", "PreToolUse", {"args": ["a b", "$X"]}, {"form": "argv", "command": ("guard", "a b", "$X")}),
    ("claude", "PreToolUse", {"args": []}, {"form": "argv", "command": ("guard",)}),
    ("claude", "PreToolUse", {"async": True}, {"asynchronous": True}),
    ("claude", "PreToolUse", {"asyncRewake": True}, {"asynchronous": True}),
    ("claude", "PreToolUse", {"once": True}, {"once": True}),
    ("claude", "PreToolUse", {"if": "Bash(git *)"}, {"condition": "Bash(git *)"}),
    ("codex", "PreToolUse", {"timeout": 5, "statusMessage": None}, {"timeout": 5.0}),
    ("codex", "SessionEnd", {}, {"timeout": 1.0}),
    ("codex", "SessionEnd", {"timeout": 30}, {"timeout": 3.0}),
    ("codex", "Stop", {"async": True, "commandWindows": "x"}, {"asynchronous": True, "command": "guard"}),
    ("gemini", "BeforeTool", {"timeout": 5000, "name": "n"}, {"timeout": 5.0, "name": "n"}),
    ("gemini", "BeforeTool", {"env": {"A": "1"}}, {"env": (("A", "1"),)}),
    ("gemini", "BeforeTool", {}, {"timeout": 60.0}),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "event", "fields", "expected"), HANDLERS)
def test_a_handlers_fields(dialect, event, fields, expected):
    found = at("/p/hooks.json", groups({**COMMAND, **fields}, event=event, matcher="X"), dialect=dialect)
    (spec,) = found.specs
    assert {key: getattr(spec, key) for key in expected} == expected
    assert (spec.event, spec.matcher, spec.pointer) == (event, "X", f"/hooks/{event}/0/hooks/0")
    assert spec.raw == {**COMMAND, **fields}
    assert spec.enabled
    assert found.problems == ()


OTHER_TYPES = [
    (
        {"type": "http", "url": "https://a.example/", "headers": {"X": "$T"}, "allowedEnvVars": ["T"]},
        {"form": "http", "url": "https://a.example/", "headers": (("X", "$T"),), "header_variables": ("T",)},
    ),
    ({"type": "prompt", "prompt": "ok?"}, {"form": "prompt", "timeout": 30.0}),
    ({"type": "agent", "prompt": "ok?"}, {"form": "agent", "timeout": 60.0}),
    ({"type": "mcp_tool", "server": "s", "tool": "t", "input": {}}, {"form": "mcp_tool", "timeout": 600.0}),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "expected"), OTHER_TYPES)
def test_handlers_of_other_types_are_listed(entry, expected):
    found = at("/p/.claude/settings.json", groups(entry))
    assert {key: getattr(found.specs[0], key) for key in expected} == expected
    assert found.problems == ()


def test_the_place_of_a_handler_is_where_it_stands():
    text = '{\n  "hooks": {\n    "Stop": [\n      {"hooks": [\n        {"type": "command", "command": "x"}]}]}}'
    (spec,) = at("/p/.claude/settings.json", text).specs
    assert (spec.line, spec.column) == (5, 9)


def test_cursor_handlers_stand_in_the_list_themselves():
    document = {
        "version": 1,
        "hooks": {
            "beforeShellExecution": [
                {"command": "x", "failClosed": True, "matcher": "git", "timeout": 9}, {"command": "y"}
            ]
        },
    }  # fmt: skip
    first, second = at("/p/.cursor/hooks.json", document).specs
    assert (first.fail_closed, first.matcher, first.timeout, first.kind) == (True, "git", 9.0, "pre_tool")
    assert (second.fail_closed, second.matcher, second.form) == (False, None, "shell")


def test_antigravity_groups_have_names_and_switches():
    document = {
        "off": {"enabled": False, "pre_tool_execution": [{"matcher": "*", "hooks": [COMMAND]}]},
        "on": {"enabled": True, "post_tool_execution": [{"hooks": [{"type": "http", "url": "https://a.example"}]}]},
    }
    off, on = at("/p/.agents/hooks.json", document).specs
    assert (off.name, off.enabled, off.pointer) == ("off", False, "/off/pre_tool_execution/0/hooks/0")
    assert (on.name, on.enabled, on.form, on.timeout) == ("on", True, "http", 30.0)


def test_agy_has_groups_and_flat_lists():
    document = {
        "n": {
            "PreToolUse": [{"matcher": "*", "hooks": [COMMAND]}],
            "Stop": [COMMAND, {"type": "prompt", "prompt": "p"}],
        }
    }
    found = at("/p/.agents/hooks.json", document)
    assert [(each.event, each.form, each.pointer) for each in found.specs] == [
        ("PreToolUse", "shell", "/n/PreToolUse/0/hooks/0"),
        ("Stop", "shell", "/n/Stop/0"),
        ("Stop", "prompt", "/n/Stop/1"),
    ]
    assert found.problems == ()


def test_gemini_groups_can_be_in_order_and_disabled_by_name():
    document = {
        "hooks": {
            "BeforeTool": [{"sequential": True, "hooks": [{**COMMAND, "name": "a"}, {**COMMAND, "name": "b"}]}]
        },
        "hooksConfig": {"disabled": ["b"]},
    }  # fmt: skip
    first, second = at("/p/.gemini/settings.json", document).specs
    assert (first.sequential, first.enabled, second.enabled) == (True, True, False)
    document["hooksConfig"] = {"enabled": False}
    found = at("/p/.gemini/settings.json", document)
    assert [each.enabled for each in found.specs] == [False, False]
    assert [each.code for each in found.problems] == ["disabled"]


def test_claudes_switch_turns_all_off_and_says_so():
    found = at("/p/.claude/settings.json", {**groups(COMMAND), "disableAllHooks": True})
    assert [each.enabled for each in found.specs] == [False]
    assert [(each.code, each.pointer) for each in found.problems] == [("disabled", "/disableAllHooks")]
    assert at("/p/.claude/settings.json", {**groups(COMMAND), "disableAllHooks": False}).specs[0].enabled


def test_codex_ignores_events_that_are_not_under_hooks():
    found = at("/p/.codex/hooks.json", {"PreToolUse": [{"hooks": [COMMAND]}]})
    assert [(each.enabled, each.pointer) for each in found.specs] == [(False, "/PreToolUse/0/hooks/0")]
    assert [each.code for each in found.problems] == ["bare_events"]


TOML = """\
model = "x"
[hooks.state."a:b"]
trusted_hash = "y"
[[hooks.PreToolUse]]
matcher = "^Bash$"
[[hooks.PreToolUse.hooks]]
type = "command"
command = "python3 guard.py"
timeout = 7
[[hooks.Stop]]
hooks = [{ type = "command", command = 'echo "x"' }]
"""


def test_codex_hooks_in_toml():
    found = parse(TOML.encode(), "/p/.codex/config.toml")
    assert found.dialect == "codex"
    assert [
        (each.event, each.matcher, each.command, each.timeout, each.pointer, each.line) for each in found.specs
    ] == [
        ("PreToolUse", "^Bash$", "python3 guard.py", 7.0, "/hooks/PreToolUse/0/hooks/0", 8),
        ("Stop", None, 'echo "x"', 600.0, "/hooks/Stop/0/hooks/0", 11),
    ]
    assert found.problems == ()
    with pytest.raises(HooksFileError, match=r"config\.toml:1:3: it is not TOML"):
        parse(b"a b", "/p/.codex/config.toml")


SKILL = """\
---
name: guard
description: it's a "guard": yes
hooks:
  PreToolUse:
    - matcher: "Bash|Edit"  # both
      hooks:
        - type: command
          command: ./check.sh "$CLAUDE_PROJECT_DIR"
          timeout: 5
          once: true
    - hooks:
      - type: prompt
        prompt: 'it''s fine?'
model: x
---
# hooks:
"""


def test_hooks_of_a_skill():
    found = parse(SKILL.encode(), "/p/.claude/skills/guard/SKILL.md")
    first, second = found.specs
    assert (first.matcher, first.command, first.timeout, first.once) == (
        "Bash|Edit", './check.sh "$CLAUDE_PROJECT_DIR"', 5.0, True,
    )  # fmt: skip
    assert (first.line, first.pointer) == (8, "/hooks/PreToolUse/0/hooks/0")
    assert second.raw == {"type": "prompt", "prompt": "it's fine?"}
    assert found.problems == ()
    assert parse(b"# no frontmatter\nhooks: 1\n", "/p/skills/x/SKILL.md").specs == ()


@pytest.mark.parametrize(
    "line", ["  PreToolUse: [{}]", "  PreToolUse: &a x", "  - x: |", "  Stop:\n    - a\n   - b", "  %x"]
)
def test_a_frontmatter_that_is_not_plain_is_refused(line):
    with pytest.raises(HooksFileError, match=r"SKILL\.md:\d+:\d+"):
        parse(f"---\nhooks:\n{line}\n---\n".encode(), "/p/skills/x/SKILL.md")


SHAPES = [
    ([], "", "a list", "an object with the key hooks"),
    ({"hooks": []}, "/hooks", "a list", "an object of events"),
    ({"hooks": {"Stop": {}}}, "/hooks/Stop", "an object", "a list of groups"),
    ({"hooks": {"Stop": ["x"]}}, "/hooks/Stop/0", "the string 'x'", "a group"),
    ({"hooks": {"Stop": [{}]}}, "/hooks/Stop/0", "the group has no hooks", ""),
    ({"hooks": {"Stop": [COMMAND]}}, "/hooks/Stop/0", "it is a handler, expected is a group", ""),
    (groups("x"), "/hooks/PreToolUse/0/hooks/0", "the string 'x'", "a handler"),
    (groups(COMMAND, matcher=7), "/hooks/PreToolUse/0/matcher", "the number 7", "a string"),
    (groups({"type": "command"}), "/hooks/PreToolUse/0/hooks/0", "no command", ""),
    (groups({"type": "command", "command": " "}), "/hooks/PreToolUse/0/hooks/0", "command is empty", ""),
    (groups({"type": "http"}), "/hooks/PreToolUse/0/hooks/0", "no url", ""),
    (groups({"type": "command", "command": ["a"]}), "/hooks/PreToolUse/0/hooks/0/command", "a list", "a string"),
    (groups({**COMMAND, "args": "a"}), "/hooks/PreToolUse/0/hooks/0/args", "the string 'a'", "a list of strings"),
    (groups({**COMMAND, "timeout": "30"}), "/hooks/PreToolUse/0/hooks/0/timeout", "the string '30'", "a number"),
    (groups({**COMMAND, "timeout": True}), "/hooks/PreToolUse/0/hooks/0/timeout", "the truth value true", "a number"),
    (groups({**COMMAND, "async": "yes"}), "/hooks/PreToolUse/0/hooks/0/async", "the string 'yes'", "true or false"),
    ({"hooks": {}, "disableAllHooks": "yes"}, "/disableAllHooks", "the string 'yes'", "true or false"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "pointer", "what", "wanted"), SHAPES)
def test_a_wrong_shape_is_an_error_with_its_place(tmp_path, document, pointer, what, wanted):
    found = seen(tmp_path, document, "settings.json")
    errors = [each for each in found.problems if each.severity == "error"]
    assert [each.pointer for each in errors] == [pointer]
    assert what in errors[0].text
    assert wanted in errors[0].text
    assert errors[0].line == 1
    assert errors[0].remedy
    with pytest.raises(HooksFileError) as caught:
        load(str(tmp_path / "settings.json"), "claude")
    assert f"settings.json:1:{errors[0].column}" in caught.value.message
    assert caught.value.pointer == pointer


TOLD = [
    ("claude", groups({"type": "weird", "x": 1}), "unknown_type", "high"),
    ("claude", groups({"command": "x"}), "missing_type", "high"),
    ("claude", groups({**COMMAND, "timeOut": 5}), "unknown_field", "medium"),
    ("claude", groups({**COMMAND, "failClosed": True}), "unknown_field", "medium"),
    ("claude", groups({**COMMAND, "comment": "x"}), "unknown_field", "low"),
    ("claude", groups(COMMAND, sequential=True), "unknown_field", "low"),
    ("claude", groups({**COMMAND, "timeout": None}), "null_field", "low"),
    ("claude", groups({**COMMAND, "timeout": 0}), "bad_timeout", "high"),
    ("claude", groups({**COMMAND, "timeout": -1}), "bad_timeout", "high"),
    ("claude", groups({**COMMAND, "timeout": 10**400}), "bad_timeout", "high"),
    ("codex", groups({**COMMAND, "timeout": 1.5}), "bad_timeout", "high"),
    ("codex", groups({"type": "prompt"}), "idle_type", "high"),
    ("claude", groups(COMMAND, event="preToolUse"), "unknown_event", "high"),
    ("claude", groups(COMMAND, event="BeforeTool"), "unknown_event", "high"),
    ("claude", groups(COMMAND, event="Made_Up"), "unknown_event", "medium"),
    ("claude", {**groups(COMMAND), "Stop": []}, "misplaced_event", "high"),
    ("claude", {"PreToolUse": [{"hooks": [COMMAND]}]}, "bare_events", "high"),
    ("claude", {"other": 1}, "no_hooks", "high"),
    ("cursor", {"hooks": {"stop": [{"command": "x"}]}}, "no_version", "medium"),
    ("cursor", {"version": 2, "hooks": {"stop": [{"command": "x"}]}}, "unknown_version", "medium"),
    ("claude", '{"hooks": {"Stop": [], "Stop": []}}', "duplicate_key", "high"),
    ("claude", '\ufeff{"hooks": {}}', "bom", "high"),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "document", "code", "severity"), TOLD)
def test_what_is_odd_is_kept_and_told(tmp_path, dialect, document, code, severity):
    found = seen(tmp_path, document, dialect=dialect)
    told = [each for each in found.problems if each.code == code]
    assert [each.severity for each in told] == [severity]
    assert told[0].remedy
    if not isinstance(document, str) and "other" not in document and code != "idle_type":
        assert len(found.specs) == 1


def test_an_unknown_type_keeps_its_entry_and_is_never_a_command(tmp_path):
    (spec,) = seen(tmp_path, groups({"type": "weird", "command": "rm", "url": 5, "env": 3})).specs
    assert (spec.form, spec.command, spec.url, spec.raw["command"]) == ("weird", "", "", "rm")


def test_comments_are_taken_where_the_host_takes_them():
    commented = json.dumps(groups(COMMAND)) + " // why"
    assert at("/p/.claude/settings.json", commented).specs
    assert at("/p/.gemini/settings.json", json.dumps(groups(COMMAND, event="BeforeTool")) + " // why").specs
    for path in ("/p/.codex/hooks.json", "/p/.agents/hooks.json"):
        with pytest.raises(HooksFileError, match="a comment"):
            at(path, commented)
    with pytest.raises(HooksFileError, match="a comma after the last entry"):
        at("/p/.gemini/settings.json", '{"hooks": {},}')


def test_examine_tells_what_load_raises(tmp_path):
    path = tmp_path / "hooks.json"
    path.write_text("{'a': 1}")
    (problem,) = examine(str(path)).problems
    assert (problem.code, problem.severity, problem.line, problem.column) == ("unreadable", "error", 1, 2)
    assert "a key in ' quotes" in problem.text
    with pytest.raises(HooksFileError):
        load(str(path))
    path.write_text('{"some": "thing"}')
    with pytest.raises(HooksFileError, match="which host"):
        load(str(path))
    with pytest.raises(RequestError):
        load(str(path), "nobody")
    with pytest.raises(HooksFileError, match="no hooks files"):
        load(str(path), "nous")


def test_a_manifest_points_to_its_files_wherever_they_are():
    found = at(
        "/p/.claude-plugin/plugin.json",
        {"name": "x", "hooks": ["./a.json", "../../etc/b.json", {"Stop": [{"hooks": [COMMAND]}]}]},
    )
    assert found.elsewhere == ("/p/a.json", "/etc/b.json")  # which of them are read is for who finds files
    assert [each.pointer for each in found.specs] == ["/hooks/2/Stop/0/hooks/0"]
    assert at("/p/.claude-plugin/plugin.json", {"hooks": "./hooks/hooks.json"}).elsewhere == (
        "/p/hooks/hooks.json",
    )
    assert at("/p/.claude-plugin/plugin.json", {"name": "x"}).problems == ()
