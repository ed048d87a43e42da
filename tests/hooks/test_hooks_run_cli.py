"""``stockade hooks run``: what it prints, where, and how it ends."""

from __future__ import annotations

import json
import os

import pytest
from boxes import PYTHON
from hookbox import event

DENY = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny",
                               "permissionDecisionReason": "no rm"}}  # fmt: skip
PAYLOADS = {
    "claude": {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {}},
    "gemini": {"hook_event_name": "BeforeTool", "tool_name": "sh", "tool_input": {}},
    "antigravity": {"tool_call": {"name": "read_file", "args": {}}},
}
FILES = {
    "claude": (".claude/settings.json", lambda handler: {"hooks": {"PreToolUse": [{"hooks": [handler]}]}}),
    "gemini": (".gemini/settings.json", lambda handler: {"hooks": {"BeforeTool": [{"hooks": [handler]}]}}),
    "antigravity": (".agents/hooks.json", lambda handler: {"g": {"pre_tool_execution": [{"hooks": [handler]}]}}),
}


def configure(place, dialect="claude", command="true", **fields):
    name, around = FILES[dialect]
    return place.put(f"ws/{name}", json.dumps(around({"type": "command", "command": command, **fields})))


def run(place, *words, given=None, **options):
    told = event(cwd=place.ws) if given is None else given
    data = told if isinstance(told, bytes) else json.dumps(told).encode()
    return place.call("hooks", "run", *words, input=data, **options)


def printing(document):
    return f"cat > /dev/null; echo '{json.dumps(document)}'"


def test_the_answer_is_what_the_host_would_be_given(place):
    configure(place, command=printing(DENY))
    done = run(place)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout) == DENY
    configure(place, command="cat > /dev/null")
    quiet = run(place)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, b"", b"")


@pytest.mark.parametrize("dialect", FILES)
def test_handlers_are_confined_unless_trusted(place, dialect):
    victim = place.path("victim", "x")
    configure(place, dialect, f"touch {victim}")
    assert run(place, given={**PAYLOADS[dialect], "cwd": place.ws}).returncode == 0
    assert not os.path.exists(victim)
    run(place, "--trusted", given={**PAYLOADS[dialect], "cwd": place.ws})
    assert os.path.exists(victim)


def test_the_policy_options_count(place):
    configure(place, command="touch made")
    run(place)
    assert not os.path.exists(os.path.join(place.ws, "made"))
    run(place, "--workspace", "read-write")
    assert os.path.exists(os.path.join(place.ws, "made"))
    configure(place, command='test "$WORD" = here || exit 1')
    assert json.loads(run(place, "--env", "WORD=here", "--json").stdout)["decision"] == "allow"
    assert json.loads(run(place, "--json").stdout)["decision"] == "deny"


def test_the_document(place):
    path = configure(place, command=printing(DENY))
    done = run(place, "--json")
    assert done.returncode == 2
    found = json.loads(done.stdout)
    assert (found["schema"], found["decision"], found["reason"]) == ("stockade.hooks/1", "deny", "no rm")
    assert (found["event"], found["dialect"], found["blocking"]) == ("PreToolUse", "claude", True)
    one = found["results"][0]
    assert (one["source"], one["pointer"]) == (path, "/hooks/PreToolUse/0/hooks/0")
    assert (one["result"]["schema"], one["outcome"]["verdict"]) == ("stockade.hook/1", "deny")
    assert "hosts" not in found
    configure(place)
    assert run(place, "--json").returncode == 0


def test_several_files_and_a_directory(place):
    configure(place, command="exit 3")
    place.put("ws/.claude/settings.local.json",
              json.dumps({"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "exit 4"}]}]}}))  # fmt: skip
    found = json.loads(run(place, "--json", "--trusted").stdout)
    assert [each["result"]["exit_code"] for each in found["results"]] == [4, 3]
    both = ["--config", ".claude/settings.json", "--config", ".claude/settings.local.json"]
    found = json.loads(run(place, "--json", "--trusted", *both).stdout)
    assert [each["result"]["exit_code"] for each in found["results"]] == [3, 4]


def test_the_same_handler_in_two_files_runs_once(place):
    configure(place, command="exit 3")
    content = json.dumps(FILES["claude"][1]({"type": "command", "command": "exit 3"}))
    place.put("ws/.claude/settings.local.json", content)
    found = json.loads(run(place, "--json", "--trusted").stdout)
    assert (len(found["results"]), found["skipped"][0]["why"]) == (
        1,
        f"it is the same as {found['results'][0]['label']}",
    )


def test_files_of_several_hosts_want_a_word(place):
    configure(place)
    configure(place, "gemini")
    refused = run(place)
    assert refused.returncode == 125
    assert b"of several hosts (claude, gemini)" in refused.stderr
    assert b"--dialect" in refused.stderr
    assert run(place, "--dialect", "claude").returncode == 0


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (None, b"hooks.json"),
        (b"", b":1:1:"),
        (b'{"hooks": {\n  "PreToolUse" []}}', b":2:16:"),
        (b"[]", b"an object"),
        (b'{"hooks": []}', b"/hooks"),
        (b'{"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": 5}]}]}}', b"/command"),
        (b"\xff", b"UTF-8"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True], ids=["answer", "json"])
def test_a_file_that_can_not_be_used_is_a_deny_with_its_place(place, content, where, as_json):
    path = place.path("ws", "hooks.json")
    if content is not None:
        with open(path, "wb") as file:
            file.write(content)
    words = ["--config", path, "--dialect", "claude", "--event", "PreToolUse", *(["--json"] if as_json else [])]
    done = run(place, *words)
    assert where in done.stderr, done.stderr
    assert b"Traceback" not in done.stderr
    answer = json.loads(done.stdout)
    if as_json:
        assert (done.returncode, answer["decision"]) == (125, "deny")
        assert answer["error"]["type"] == "HooksFileError"
    else:
        assert (done.returncode, answer["hookSpecificOutput"]["permissionDecision"]) == (0, "deny")


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", b"there is none"),
        (b"{", b"line 1"),
        (b"[]", b"not an object"),
        (b"\xff{}", b"UTF-8"),
        (json.dumps(PAYLOADS["gemini"]).encode(), b"gemini"),
        (b'{"hook_event_name": "PreToolUse"}', b"tool_name"),
        (b'{"hook_event_name": "Stop"}', b"the event is PreToolUse"),
        (b'{"a": "' + b"x" * (65 << 20) + b'"}', b"longer than 64 MiB"),
    ],
)
def test_an_event_that_can_not_be_used_is_a_deny_where_one_is_due(place, data, cause):
    victim = place.path("victim", "ran")
    configure(place, command=f"touch {victim}")
    done = run(place, "--event", "PreToolUse", "--dialect", "claude", "--trusted", given=data)
    assert cause in done.stderr, done.stderr
    assert json.loads(done.stdout)["hookSpecificOutput"]["permissionDecision"] == "deny"
    assert not os.path.exists(victim)
    run(place, "--event", "PreToolUse", "--trusted")
    assert os.path.exists(victim)


def test_what_is_not_known_to_block_ends_with_125(place):
    configure(place)
    for words, data in (((), b"{"), (("--event", "Notification"), b"{"), (("--event", "PreTolUse"), b"{}")):
        done = run(place, *words, given=data)
        assert (done.returncode, done.stdout) == (125, b""), done.stderr
        assert done.stderr.startswith(b"stockade: could not")


@pytest.mark.parametrize("words", [["--no-such"], ["extra"], ["--config"], ["--dialect", "emacs"], ["--json=x"]])
def test_a_command_line_that_can_not_be_understood(place, words):
    configure(place)
    done = run(place, *words)
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"Traceback" not in done.stderr


def test_the_help_text(place):
    done = place.call("hooks", "run", "--help")
    assert done.returncode == 0
    for word in (b"--config", b"--event", b"--explain", b"--trusted", b"--policy", b"--json", b"125"):
        assert word in done.stdout


def test_a_directory_without_hooks_is_told(place):
    done = run(place)
    assert done.returncode == 125
    assert b"could not find a hooks file" in done.stderr


def test_foreign_text_does_not_reach_the_terminal(place):
    path = place.put("ws/a\x1b]0;evil\x07.json", "{")
    done = run(place, "--config", path)
    assert b"\x1b" not in done.stderr + done.stdout
    assert done.returncode == 125


def test_detached_handlers_are_waited_for(place):
    name, around = FILES["claude"]
    program = f"{PYTHON} -c 'import json, sys; json.load(sys.stdin); print(1)'"
    place.put(f"ws/{name}", json.dumps(around({"type": "command", "command": program, "async": True})))
    found = json.loads(run(place, "--json").stdout)
    assert (found["results"], len(found["detached"])) == ([], 1)
    assert found["detached_results"][0]["result"]["stdout"] == "1\n"


def test_one_after_another_and_stop_at_deny(place):
    handlers = [{"type": "command", "command": command} for command in ("true", "echo no >&2; exit 2", "true # c")]
    place.put("ws/.claude/settings.json", json.dumps({"hooks": {"PreToolUse": [{"hooks": handlers}]}}))
    assert len(json.loads(run(place, "--json").stdout)["results"]) == 3
    found = json.loads(run(place, "--json", "--sequential", "--stop-at-deny").stdout)
    assert len(found["results"]) == 2
    assert found["skipped"][0]["why"].endswith("denied before it")


def test_with_a_policy_that_can_not_be_read_every_handler_is_a_deny(place):
    configure(place)
    done = run(place, "--policy", "/no/such.toml", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["decision"]) == (2, "deny")
    assert "/no/such.toml" in found["reason"]
