"""What users of agent hooks ask for and report most, as far as it is about several handlers: 4, 5, 11, 13, 14, 15.

With real commands, confined unless a test says otherwise; the others are in test_needs.
"""

from __future__ import annotations

import json
import os

import pytest
from boxes import PYTHON, own_state  # noqa: F401
from hookbox import event, says

from stockade.sandbox.hooks.runner import HookRunner

NAMES = ["claude", "codex", "antigravity", "agy", "gemini", "cursor", "nous"]


def allow(**fields):
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow", **fields}}


def settings(place, *handlers, matcher="Bash", name="ws/.claude/settings.json", at="PreToolUse"):
    """A settings file with one group."""
    hooks = [{"type": "command", **each} for each in handlers]
    return place.put(name, json.dumps({"hooks": {at: [{"matcher": matcher, "hooks": hooks}]}}))


def exec_form(argv, **fields):
    return {"command": argv[0], "args": argv[1:], **fields}


def told(place, command="ls", **fields):
    return event(command, cwd=place.ws, **fields)


def call(place, *words, given=None, **options):
    data = given if isinstance(given, bytes) else json.dumps(told(place) if given is None else given).encode()
    return place.call("hooks", "run", *map(str, words), input=data, **options)


def document(done):
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


# --- 4: failures ----------------------------------------------------------------------------------------------

BROKEN = {
    "crash": [PYTHON, "-c", "raise SystemExit(1)"],
    "signal": [PYTHON, "-c", "import os; os.kill(os.getpid(), 9)"],
    "timeout": ["sleep", "30"],
    "not json": [PYTHON, "-c", "print('{not json')"],
}


@pytest.mark.parametrize("how", BROKEN)
def test_need_4_a_guard_that_breaks_fails_closed_confined_and_where_it_says_so(place, how):
    path = settings(place, exec_form(BROKEN[how], timeout=0.5 if how == "timeout" else 20))
    confined = HookRunner.from_file(path).run("PreToolUse", told(place))
    assert (confined.decision, confined.results[0].run.enforcement) != ("allow", "none")
    assert confined.decision == "deny"
    assert HookRunner.from_file(path, trusted=True).run("PreToolUse", told(place)).decision == "allow"
    closed = HookRunner.from_file(path, trusted=True, on_failure="closed").run("PreToolUse", told(place))
    assert (closed.decision, closed.merged.outcomes[0].source) == ("deny", "failure_policy")


def test_need_4_the_hosts_own_fail_closed_is_read(place):
    handler = {"command": "exit 1", "failClosed": True}
    path = place.put("ws/.cursor/hooks.json", json.dumps({"version": 1, "hooks": {"preToolUse": [handler]}}))
    payload = {
        "hook_event_name": "preToolUse",
        "tool_name": "Shell",
        "tool_input": {},
        "workspace_roots": [place.ws],
    }
    assert HookRunner.from_file(path, trusted=True).run("preToolUse", payload).decision == "deny"
    handler["failClosed"] = False
    path = place.put("ws/.cursor/hooks.json", json.dumps({"version": 1, "hooks": {"preToolUse": [handler]}}))
    assert HookRunner.from_file(path, trusted=True).run("preToolUse", payload).decision == "allow"


# --- 5: launch failures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ([PYTHON, "{ws}/missing.py"], "missing.py"),
        (["bash", "{ws}/missing.sh"], "missing.sh"),
        (["no-such-interpreter", "{ws}/hook"], "no-such-interpreter"),
        (["{ws}/not-executable"], "not-executable"),
    ],
)
def test_need_5_a_launch_failure_is_neither_a_block_nor_a_pass(place, argv, named):
    """Every one of them is a deny that says what is missing, whatever the interpreter would have made of it."""
    place.put("ws/not-executable", "#!/bin/sh\n")
    path = settings(place, exec_form([word.format(ws=place.ws) for word in argv]))
    found = HookRunner.from_file(path).run("PreToolUse", told(place))
    assert found.decision == "deny"
    assert named in found.reason
    assert found.results[0].outcome.status in ("runner_failed", "not_run")
    place.put("ws/there.py", "print('{}')")
    works = settings(place, exec_form([PYTHON, f"{place.ws}/there.py"]))
    assert HookRunner.from_file(works).run("PreToolUse", told(place)).decision == "allow"


@pytest.mark.parametrize("command", ["", "a\0b"])
def test_need_5_a_command_that_can_not_be_started_is_a_deny_and_the_others_run(place, command):
    runner = HookRunner(cwd=place.ws)
    runner.register([PYTHON, "-c", "pass"], name="good")
    runner.register(["env", command or "\0"], name="bad")
    found = runner.run("PreToolUse", told(place))
    assert [each.outcome.verdict for each in found.results] == ["none", "deny"]
    assert "NUL" in found.results[1].cause


# --- 11: order and rewrites -----------------------------------------------------------------------------------


def rewrites(command, wait_for="", then=""):
    """A hook that rewrites the command, once a file is there; it leaves one of its own."""
    program = f"""
import json, os, time
while {wait_for!r} and not os.path.exists({wait_for!r}):
    time.sleep(0.005)
print(json.dumps({allow(updatedInput={"command": command})!r}))
if {then!r}:
    open({then!r}, "w").close()
"""
    return [PYTHON, "-c", program]


def test_need_11_rewrites_count_in_order_of_configuration_not_of_ending(place):
    """The first handler waits for the second, and still does not win."""
    marker = os.path.join(place.ws, "second-is-through")
    path = settings(
        place, exec_form(rewrites("first", wait_for=marker), timeout=30), exec_form(rewrites("second", then=marker))
    )
    found = HookRunner.from_file(path, trusted=True).run("PreToolUse", told(place))
    assert (found.decision, found.changes) == ("modify", {"command": "second"})
    assert os.path.exists(marker), "they ran at once"
    assert [each.code for each in found.merged.conflicts] == ["rewrite"]
    strict = HookRunner.from_file(path, trusted=True, on_conflict="deny").run("PreToolUse", told(place))
    assert (strict.decision, strict.changes) == ("deny", {})


def test_need_11_one_after_another_each_sees_what_the_one_before_it_changed(place):
    program = (
        "import json, sys; event = json.load(sys.stdin); given = event['tool_input']; "
        "given['command'] += '!'; print(json.dumps({'hookSpecificOutput': {'hookEventName': 'PreToolUse', "
        "'permissionDecision': 'allow', 'updatedInput': given}}))"
    )
    again = exec_form([PYTHON, "-c", program, "{}"])
    path = settings(place, again, {**again, "args": [*again["args"], "other"]})
    found = HookRunner.from_file(path, sequential=True).run("PreToolUse", told(place))
    assert (found.changes, found.merged.conflicts) == ({"command": "ls!!"}, ())
    at_once = HookRunner.from_file(path).run("PreToolUse", told(place))
    assert at_once.changes == {"command": "ls!"}


def test_need_11_a_host_that_runs_in_order_is_run_in_order(place):
    program = "import sys; open(sys.argv[1], 'a').write(sys.argv[2])"
    log = os.path.join(place.ws, "log")
    runner = HookRunner(dialect="antigravity", trusted=True, cwd=place.ws)
    for name in "abcdef":
        spec_argv = [PYTHON, "-c", program, log, name]
        runner.register(spec_argv)
    payload = {"tool_call": {"name": "code_execution", "args": {}}}
    assert runner.run("pre_tool", payload).decision == "allow"
    with open(log) as file:
        assert file.read() == "abcdef"


def test_need_11_a_gemini_group_that_is_sequential_makes_all_so(place):
    program = (
        "import json, sys; given = json.load(sys.stdin)['tool_input']; print(json.dumps({'hookSpecificOutput': "
        "{'tool_input': {'command': given['command'] + '!'}}}))"
    )
    handlers = [{"type": "command", "name": name, "command": f'{PYTHON} -c "{program}" {name}'} for name in "ab"]
    groups = [{"matcher": "*", "hooks": [each]} for each in handlers]
    payload = {"hook_event_name": "BeforeTool", "tool_name": "sh", "tool_input": {"command": "ls"}, "cwd": place.ws}
    seen = {}
    for sequential in (False, True):
        groups[0]["sequential"] = sequential
        path = place.put("ws/.gemini/settings.json", json.dumps({"hooks": {"BeforeTool": groups}}))
        seen[sequential] = HookRunner.from_file(path).run("BeforeTool", payload).changes
    assert seen == {False: {"command": "ls!"}, True: {"command": "ls!!"}}


# --- 13: configured and never fires ---------------------------------------------------------------------------


def test_need_13_what_never_fires_says_why(place):
    path = settings(place, {"command": "true"})
    done = call(place, "--config", path, given=told(place, tool_name="Edit"))
    assert (done.returncode, done.stdout) == (0, b"")
    assert f"no handler of {path} runs for PreToolUse".encode() in done.stderr
    assert b"(line 1): its matcher 'Bash' does not match 'Edit'" in done.stderr
    fires = call(place, "--config", path)
    assert b"no handler" not in fires.stderr


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}}, b"it is for Stop, not for"),
        ({"hooks": {"PreToolUse": [{"hooks": [{"type": "prompt", "prompt": "ok?"}]}]}}, b"type prompt are not run"),
        ({"PreToolUse": [{"hooks": [{"type": "command", "command": "true"}]}], "hooks": {}}, b"stands beside hooks"),
        ({"PreToolUse": [{"hooks": [{"type": "command", "command": "true"}]}]}, b"stand at the top of the file"),
        ({"hooks": {"preToolUse": [{"hooks": [{"type": "command", "command": "true"}]}]}}, b"Did you mean PreToolUse?"),
        ({"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "true", "if": "Bash(git *)"}]}]}},
         b"its condition 'Bash(git *)' does not hold"),
        ({"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "true"}]}]}, "disableAllHooks": True},
         b"it is disabled"),
        ({"hooks": {}}, b"no handler of"),
    ],
)  # fmt: skip
def test_need_13_every_reason_is_told(place, content, why):
    path = place.put("ws/.claude/settings.json", json.dumps(content))
    done = call(place, "--config", path)
    assert done.returncode == 0
    assert why in done.stderr, done.stderr
    as_json = document(call(place, "--config", path, "--json"))
    assert (as_json["decision"], as_json["results"]) == ("allow", [])


def test_need_13_a_group_that_is_switched_off_does_not_run_and_says_so(place):
    group = {"enabled": False, "pre_tool_execution": [{"hooks": [{"type": "command", "command": "exit 3"}]}]}
    place.put("ws/.agents/hooks.json", json.dumps({"guard": group}))
    payload = {"tool_call": {"name": "read_file", "args": {}}}
    done = call(place, given=payload)
    assert (done.returncode, b"it is disabled" in done.stderr) == (0, True)
    group["enabled"] = True
    place.put("ws/.agents/hooks.json", json.dumps({"guard": group}))
    assert b"guard: failed" in call(place, given=payload).stderr


# --- 14: seconds and milliseconds -----------------------------------------------------------------------------


def test_need_14_the_unit_of_a_timeout_is_the_hosts(place):
    """The same number is half a second for one host and eight minutes for another."""
    handler = {"type": "command", "name": "slow", "command": "sleep 30", "timeout": 500}
    gemini = place.put("ws/.gemini/settings.json", json.dumps({"hooks": {"BeforeTool": [{"hooks": [handler]}]}}))
    payload = {"hook_event_name": "BeforeTool", "tool_name": "sh", "tool_input": {}, "cwd": place.ws}
    found = HookRunner.from_file(gemini).run("BeforeTool", payload)
    assert (found.results[0].run.timed_out, found.results[0].spec.timeout) == (True, 0.5)
    claude = settings(place, {"command": "true", "timeout": 500})
    assert HookRunner.from_file(claude).registry.entries[0].spec.timeout == 500.0


# --- 15: what is going on -------------------------------------------------------------------------------------


def test_need_15_each_hook_its_time_and_what_it_said(place):
    records = []
    path = settings(place, exec_form(says(allow())), exec_form(says("", 3)), exec_form([PYTHON, "-c", "input()"]))
    runner = HookRunner.from_file(path, trusted=True, log=records.append)
    found = runner.run("PreToolUse", told(place, "echo s3cret"))
    ends = {each["hook"]: each for each in records if each["record"] == "result"}
    assert [each.label for each in found.results] == list(
        dict.fromkeys(each["hook"] for each in found_order(records))
    )
    assert [ends[each.label]["outcome"] for each in found.results] == ["ok", "failed", "ok"]
    assert ends[found.results[1].label]["cause"].startswith("exit code 3")
    assert all(each["duration"] > 0 for each in ends.values())
    assert "s3cret" not in repr(records)


def found_order(records):
    """Invoked records by the place of their handler."""
    return sorted((each for each in records if each["record"] == "invoked"), key=lambda each: each["hook"])


def test_need_15_a_dry_run_shows_what_every_host_would_make_of_it(place):
    path = settings(place, exec_form([PYTHON, "-c", "import sys; sys.exit(2)"]), exec_form(says("{}")))
    done = call(place, "--config", path, "--explain", "--trusted")
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 2
    assert lines[0].startswith("PreToolUse (claude): deny")
    assert lines[1].split() == ["HANDLER", "END", "TIME", *NAMES]
    first = [each.strip() for each in lines[2].split("  ") if each.strip()]
    assert (first[1], first[3:]) == (
        "exit 2",
        ["denied", "goes ahead", "goes ahead", "denied (?)", "goes ahead", "denied", "denied"],
    )
    assert "(empty_stderr)" in done.stdout.decode()
    shown = document(call(place, "--config", path, "--explain", "--json", "--trusted"))
    assert {one["dialect"]: one["effect"] for one in shown["hosts"][shown["results"][0]["label"]]}[
        "codex"
    ] == "goes ahead"


# --- wrapped and pinned handlers ------------------------------------------------------------------------------


def test_a_wrapped_file_works_here_too(place):
    """A wrapper within the box could make no box of its own; and what was wrapped is not run bare."""
    marker = place.path("victim", "x")
    program = f"import json, os; json.load(open(0)); os.path.exists('/proc/1') and open({marker!r}, 'w')"
    path = settings(place, exec_form([PYTHON, "-c", program]))
    wrapped = place.call("hooks", "wrap", "--write", path)
    assert wrapped.returncode == 0, wrapped.stderr
    with open(path) as file:
        assert "hook" in json.load(file)["hooks"]["PreToolUse"][0]["hooks"][0]["args"]
    found = HookRunner.from_file(path, cwd=place.ws).run("PreToolUse", told(place))
    assert found.results[0].run.argv[0] == PYTHON
    assert (found.results[0].run.enforcement != "none", os.path.exists(marker)) == (True, False)
    own = HookRunner.from_file(path, cwd=place.ws, trusted=True).run("PreToolUse", told(place))
    assert (own.results[0].run.argv[0] != PYTHON, os.path.exists(marker)) == (True, False)
    assert place.call("hooks", "unwrap", "--write", path).returncode == 0
    HookRunner.from_file(path, cwd=place.ws, trusted=True).run("PreToolUse", told(place))
    assert os.path.exists(marker)


@pytest.mark.parametrize("words", [(), ("--trusted",)], ids=["confined", "trusted"])
def test_need_10_a_pinned_hook_that_changed_is_refused(place, words):
    script = place.put("ws/guard.py", "print('{}')")
    path = settings(place, exec_form([PYTHON, script]))
    pinned = place.call("hooks", "pin", "--write", path)
    assert pinned.returncode == 0, pinned.stderr
    assert document(call(place, "--config", path, "--json", *words))["decision"] == "allow"
    place.put("ws/guard.py", f"open({place.path('victim', 'x')!r}, 'w')")
    found = document(call(place, "--config", path, "--json", *words))
    assert found["decision"] == "deny"
    assert "not as it was pinned" in found["reason"]
    assert "guard.py" in found["reason"]
    assert not os.path.exists(place.path("victim", "x"))
