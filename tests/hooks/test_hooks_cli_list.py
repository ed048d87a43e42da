"""``stockade hooks list`` and ``hooks check`` at the command line."""

from __future__ import annotations

import json
import os

import pytest

from stockade.sandbox.cli.main import main

GOOD = {
    "hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "guard", "timeout": 5}]}]}
}
BAD = {"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "guard || true"}]}]}}
HIGH = {"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "npx guard", "timeout": 5}]}]}}


@pytest.fixture
def settings(tmp_path):
    def write(document, name=".claude/settings.json") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return str(path)

    return write


def call(capsys, *argv):
    code = main(["hooks", *map(str, argv)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_handlers_of_a_file(settings, capsys):
    code, out, err = call(capsys, "list", settings(GOOD))
    assert (code, err) == (0, "")
    assert "(claude, project)" in out
    assert "PreToolUse  Bash  5s  shell  guard" in out
    assert out.endswith("1 handler in 1 file\n")


def test_the_handlers_of_a_directory_as_a_document(settings, capsys, tmp_path):
    settings(GOOD)
    secret = {"type": "http", "url": "https://a.example", "headers": {"X-Key": "s3cret"}}
    settings({"hooks": {"Stop": [{"hooks": [secret]}]}}, "p/hooks/hooks.json")
    code, out, err = call(capsys, "list", tmp_path, "--json")
    document = json.loads(out)
    assert (code, err, document["schema"]) == (0, "", "stockade.hooks/1")
    first, second = document["files"]
    assert first["handlers"][0] | {
        "event": "PreToolUse", "kind": "pre_tool", "matcher": "Bash", "timeout": 5.0, "timeout_given": True,
        "pointer": "/hooks/PreToolUse/0/hooks/0", "line": 1, "scripts": [], "enabled": True,
    } == first["handlers"][0]  # fmt: skip
    assert second["handlers"][0]["headers"] == ["X-Key"]
    assert "s3cret" not in out


def test_a_directory_without_hooks(tmp_path, capsys):
    code, out, _err = call(capsys, "list", tmp_path)
    assert (code, out) == (0, f"No hooks files in {tmp_path}.\n")


def test_entries_that_could_not_be_read_are_shown_with_their_place(settings, capsys):
    document = {"hooks": {"Stop": [{"type": "command"}], "Nope": [], "PreToolUse": GOOD["hooks"]["PreToolUse"]}}
    code, out, _err = call(capsys, "list", settings(document))
    assert code == 1
    assert "error  wrong_shape: 1:21 it is a handler, expected is a group (/hooks/Stop/0)" in out
    assert "unknown_event" in out
    assert "guard" in out


def test_a_file_that_is_no_json_names_line_and_column(settings, capsys):
    path = settings("{\n  hooks: {}\n}")
    code, out, _err = call(capsys, "list", path)
    assert code == 1
    assert "2:3 the key 'hooks' without quotes" in out
    code, out, _err = call(capsys, "check", path)
    assert code == 1
    assert "2:3 the key 'hooks' without quotes" in out


def test_names_that_a_terminal_would_obey_are_shown_harmless(settings, capsys, tmp_path):
    evil = "\x1b]0;pwned\x07"
    document = {
        "hooks": {f"Stop{evil}": [{"matcher": evil, "hooks": [{"type": "command", "command": f"x{evil}\n"}]}]}
    }
    settings(document, f"a{evil}/hooks/hooks.json")
    for command in ("list", "check"):
        code, out, err = call(capsys, command, tmp_path)
        assert "\x1b" not in out + err
        assert "\x07" not in out + err
        assert "\\x1b]0;pwned" in out
        assert code in (0, 1)


@pytest.mark.parametrize(
    ("document", "level", "code"),
    [
        (GOOD, None, 0),
        (GOOD, "low", 0),
        (HIGH, None, 1),
        (HIGH, "error", 0),
        (BAD, None, 0),
        (BAD, "medium", 1),
        (BAD, "high", 0),
        ({"hooks": []}, None, 1),
        ({"hooks": []}, "error", 1),
    ],
)
def test_the_exit_code_of_a_check(settings, capsys, document, level, code):
    more = [] if level is None else ["--fail-on", level]
    assert call(capsys, "check", settings(document), *more)[0] == code


def test_a_check_tells_file_key_and_remedy(settings, capsys):
    path = settings(HIGH)
    code, out, err = call(capsys, "check", path)
    assert (code, err) == (1, "")
    assert out.startswith(f"{path}\n")
    assert (
        "high   network_install: 1:38 npx fetches code when the hook runs (/hooks/PreToolUse/0/hooks/0/command)"
        in out
    )
    assert "Install it once beforehand" in out
    assert out.endswith("1 handler in 1 file: 1 high\n")


def test_a_check_as_a_document(settings, capsys, tmp_path):
    settings(HIGH)
    code, out, err = call(capsys, "check", "--json", tmp_path, tmp_path / "nowhere")
    document = json.loads(out)
    assert code == 125
    assert "No such file" in err
    assert document["schema"] == "stockade.hooks-check/1"
    assert document["counts"] == {"error": 0, "high": 1, "medium": 0, "low": 0}
    (finding,) = document["findings"]
    assert (finding["code"], finding["line"], finding["event"]) == ("network_install", 1, "PreToolUse")
    assert [each["file"] for each in document["unread"]] == [str(tmp_path / "nowhere")]


def test_nothing_found(settings, capsys):
    code, out, _err = call(capsys, "check", settings(GOOD))
    assert (code, out) == (0, "1 handler in 1 file: nothing found\n")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["list", "a", "b"], "more than one"),
        (["list", "--dialect", "nobody"], "dialect"),
        (["list", "nowhere"], "No such file"),
        (["list", "--json=x"], "--json"),
        (["check", "--fail-on", "dreadful"], "severity"),
        (["check", "nowhere"], "No such file"),
    ],
)
def test_mistakes_are_named(argv, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _out, err = call(capsys, *argv)
    assert code == 125
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["list", "check"])
def test_help(command, capsys):
    code, out, _err = call(capsys, command, "--help")
    assert code == 0
    assert out.startswith(f"usage: stockade hooks {command}")


def test_nothing_that_is_listed_or_checked_is_run(settings, capsys, tmp_path):
    canary = tmp_path / "canary"
    script = tmp_path / "guard.sh"
    script.write_text(f"#!/bin/sh\ntouch {canary}\n")
    os.chmod(script, 0o755)
    path = settings(
        {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": f"{script} $(touch {canary})"}]}]}}
    )
    call(capsys, "list", path)
    call(capsys, "check", path)
    assert not canary.exists()
