"""Attacks on what stands between a hook and its host: a consent that no hook gave, a secret that no hook needs."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import threading

import pytest
from boxes import PYTHON, processes_with, wait_until
from hookbox import ALLOW, DENY, STOCKADE, as_bytes, call, decision, event, says

from stockade.policies.errors import RequestError
from stockade.sandbox.hooks import view
from stockade.sandbox.hooks.judge import judge, refuses
from stockade.sandbox.hooks.model import HookOutcome, HookRun
from stockade.sandbox.hooks.words import script_of

HOSTED = {"tool_call": {"name": "write_file", "args": {}}, "environment_id": "e"}
AGY = {"conversationId": "c", "toolCall": {"name": "write_file", "args": {}}}
CURSOR = {
    "conversation_id": "c", "hook_event_name": "preToolUse", "cursor_version": "1", "tool_name": "Shell", "tool_input": {},
}  # fmt: skip
LONG = "no" * 200_000


# --- streams -------------------------------------------------------------------------------------------------


def through_pipe(place, words, told, *, blocking=False):
    """Exit code and stdout of a call whose stdout is a pipe that is read late, in small pieces."""
    read, write = os.pipe()
    os.set_blocking(write, blocking)
    child = subprocess.Popen(
        [*STOCKADE, "hook", *words],
        cwd=place.ws, env=place.env, stdin=subprocess.PIPE, stdout=write, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(write)
    child.stdin.write(as_bytes(told))
    child.stdin.close()
    found = b""
    while piece := os.read(read, 512 if len(found) < 65536 else 1 << 16):
        found += piece
    os.close(read)
    return child.wait(30), found


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(
    ("dialect", "told", "answer"),
    [
        (
            "claude",
            event(),
            {"hookSpecificOutput": {**DENY["hookSpecificOutput"], "permissionDecisionReason": LONG}},
        ),
        ("antigravity", HOSTED, {"decision": "deny", "reason": LONG}),
    ],
)
def test_a_deny_longer_than_a_pipe_comes_out_whole(place, blocking, dialect, told, answer):
    """A host that ignores exit codes would read half a document as consent."""
    place.put("ws/answer", json.dumps(answer))
    code, out = through_pipe(place, ["--dialect", dialect, "--", "cat", "answer"], told, blocking=blocking)
    assert (code, json.loads(out)) == (0, answer)


def test_an_event_on_a_stream_that_its_host_left_non_blocking(place):
    read, write = os.pipe()
    os.set_blocking(read, False)
    child = subprocess.Popen(
        [*STOCKADE, "hook", "--", *says(ALLOW)],
        cwd=place.ws, env=place.env, stdin=read, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(read)
    data = as_bytes(event("x" * 300_000))
    for start in range(0, len(data), 50_000):
        os.write(write, data[start : start + 50_000])
    os.close(write)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, json.loads(out), err) == (0, ALLOW, b"")


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&-", ">/dev/full", ">/dev/full 2>/dev/full"])
@pytest.mark.parametrize(("dialect", "told"), [("claude", event()), ("antigravity", HOSTED)])
def test_a_deny_that_nobody_can_read_is_told_by_the_exit_code(place, closed, dialect, told):
    words = [*STOCKADE, "hook", "--dialect", dialect, "--", "sh", "-c", "cat > /dev/null; exit 1"]
    done = place.call("-c", f'"$@" {closed}', "sh", *words, command=("sh",), input=as_bytes(told))
    assert done.returncode == 2
    assert "2>" in closed or done.stderr


def test_a_hook_that_is_wanted_for_nothing_but_its_side_effect_may_print_to_dev_null(place):
    with open(os.devnull, "w") as nowhere:
        assert call(place, "--", "sh", "-c", "cat > /dev/null; echo hi", stdout=nowhere).returncode == 0


@pytest.mark.parametrize("name", ["deny", "allow"])
def test_a_full_stderr_costs_no_answer(place, name):
    answer = {"deny": DENY, "allow": ALLOW}[name]
    with open("/dev/full", "w") as full:
        done = call(place, "--", *says(answer), stderr=full)
    assert (done.returncode, json.loads(done.stdout)) == (0, answer)


# --- signals -------------------------------------------------------------------------------------------------

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""The last ends an interpreter that is still starting with code 1, and nothing of ours can help it."""


def started(place, *words):
    return subprocess.Popen(
        [*STOCKADE, "hook", *words],
        cwd=place.ws, env=place.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_signals_at_any_moment_make_no_consent(place):
    """Its own answer, a deny, or an end by the signal before anything was answered; and nothing is left."""
    chance = random.Random(5)
    token = f"64.{os.getpid()}"
    hooks = [
        ["--", "sh", "-c", "cat > /dev/null; printf own"],
        ["--", "sh", "-c", "exit 1"],
        ["--", "sh", "-c", f"sleep {token}; true"],
        ["--no-such-option"],
    ]
    for turn in range(24):
        child = started(place, *hooks[turn % len(hooks)])
        storm = threading.Timer(chance.uniform(0.03, 0.2), strike, (child, chance.choice(SIGNALS[:2])))
        storm.start()
        out, err = child.communicate(as_bytes(event()), timeout=30)
        storm.join()
        code = child.returncode
        run = HookRun(
            exit_code=code if code >= 0 else None, signal=-code if code < 0 else None, stdout=out, stderr=err
        )
        own = (code, out) == (0, b"own")
        assert own or (code < 0 and not out) or verdict_of(run) == "deny", (turn, code, out, err)
        assert code < 0 or b"Traceback" not in err  # the interpreter's own, before it runs anything of ours
    wait_until(lambda: not processes_with(token), "no hook is left")


def strike(child, number):
    for _ in range(3):
        child.send_signal(number)


def verdict_of(run):
    from stockade.sandbox.hooks.dialects import claude

    return claude.decode("PreToolUse", run).verdict


def test_more_signals_do_not_cut_the_refusal_short(place):
    child = started(place, "--", "true")
    child.stdin.write(b" " * 2_000_000)  # once it has read of these, it catches signals
    for number in (*SIGNALS, *SIGNALS):
        child.send_signal(number)
    out, err = child.stdout.read(), child.stderr.read()
    for stream in (child.stdin, child.stdout, child.stderr):
        stream.close()
    assert (child.wait(30), out) == (2, b"")
    assert err.count(b"counts as a refusal") == 1
    assert b"Traceback" not in err


def test_a_hook_whose_own_module_does_not_load_is_refused(monkeypatch, capfd):
    from stockade.sandbox.cli import main

    monkeypatch.setitem(main.COMMANDS, "hook", ("stockade.no_such_module", ""))
    assert main.main(["hook", "--", "true"]) == 2
    assert main.main(["hook", "--dialect", "antigravity", "--", "true"]) == 0
    assert json.loads(capfd.readouterr().out)["decision"] == "deny"
    assert main.main(["hook", "--dialect=agy", "--", "true"]) == 0
    assert json.loads(capfd.readouterr().out)["decision"] == "deny"


# --- secrets of a home ---------------------------------------------------------------------------------------

LOOK = """
for name in ~/.ssh/id_rsa ~/.netrc ~/.claude/.credentials.json ~/.claude/projects/p/t.jsonl; do
    if [ -s "$name" ]; then echo "seen $name"; fi
done
exit 0
"""


@pytest.fixture
def secrets(place):
    for name in (".ssh/id_rsa", ".netrc", ".claude/.credentials.json"):
        place.put(f"home/{name}", "secret\n")
    place.put("home/.claude/projects/p/t.jsonl", "{}\n")
    os.symlink(place.path("home/.ssh/id_rsa"), place.path("home/.claude/projects/p/planted.jsonl"))
    os.symlink(place.path("home/.ssh/id_rsa"), place.path("ws/guard.sh"))
    place.put("ws/evil.sh", LOOK)
    return place


@pytest.mark.parametrize(
    "hook",
    [
        ["env", "BASH_ENV=./evil.sh", "bash", "~/.ssh/id_rsa"],
        ["sh", "-c", "BASH_ENV=./evil.sh bash ~/.ssh/id_rsa"],
        ["env", "BASH_ENV=./evil.sh", "bash", "~/.netrc"],
        ["env", "BASH_ENV=./evil.sh", "bash", "~/.claude/.credentials.json"],
        ["env", "BASH_ENV=./evil.sh", "bash", "./guard.sh"],
        ["~/.netrc"],
    ],
)
def test_a_command_can_not_have_a_secret_shown_by_calling_it_its_script(secrets, hook):
    home = secrets.path("home")
    done = call(
        secrets, "--", *(word.replace("~", home) if word != hook[-1] or hook[0] != "sh" else word for word in hook)
    )
    assert b"seen" not in done.stdout + done.stderr
    assert decision(done) == "deny"


def test_a_script_of_a_home_is_shown(secrets):
    """The control."""
    secrets.put("home/.claude/hooks/guard.sh", "echo ran")
    secrets.put("home/own", "#!/bin/sh\necho ran")
    for script in ("~/.claude/hooks/guard.sh", "~/own"):
        done = call(secrets, "--", "sh", "-c", f"sh {script}")
        assert (done.returncode, done.stdout) == (0, b"ran\n"), done.stderr


@pytest.mark.parametrize(
    ("transcript", "seen"),
    [
        (".claude/projects/p/t.jsonl", ["t.jsonl"]),
        (".claude/projects/p/planted.jsonl", []),
        (".ssh/id_rsa", []),
        (".netrc", []),
        (".claude/.credentials.json", []),
        (".claude/projects/p", []),
        (".claude", []),
        ("", []),
    ],
)
def test_of_a_home_a_transcript_shows_itself_or_nothing(secrets, transcript, seen):
    told = event(transcript_path=secrets.path("home", transcript))
    done = call(secrets, "--", "sh", "evil.sh", told=told)
    assert done.returncode == 0, done.stderr
    assert [os.path.basename(line) for line in done.stdout.decode().split("\n") if line] == seen


@pytest.mark.parametrize("path", ["/etc/shadow", "/etc/ssl/private", "/proc/1/environ", "/sys/kernel"])
def test_what_the_box_covers_is_not_shown_by_naming_it_as_a_transcript(path):
    assert not view.may_show(path, "/home/x")


def test_homes_of_others_are_homes():
    assert not view.may_show("/home/other", "/home/x")
    assert view.place_of("/home/other/guard.sh", "/", "/home/x") == "/home/other/guard.sh"
    assert view.place_of("/root/.ssh/x/guard.sh", "/", "/home/x") == "/root/.ssh/x/guard.sh"
    assert view.home_of("/home/other/.ssh/id_rsa", "/home/x") == "/home/other"
    assert view.home_of("/srv/x", "/home/x") == ""


@pytest.mark.parametrize("text", ["/\ud800", "/a\0b", "relative"])
def test_a_transcript_that_is_no_path_is_said_to_be_none(place, text):
    done = call(place, "--", "true", told=event(transcript_path=text))
    assert decision(done) == "deny"
    assert b"the field transcript_path" in done.stderr
    assert b"internal error" not in done.stderr


# --- answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "refused"),
    [
        ([{"decision": "block"}], True),
        (json.dumps({"decision": "deny"}), True),
        ({"continue": False}, True),
        ({"block": True}, True),
        ({"hookSpecificOutput": {"updatedInput": {"decision": "deny", "block": True}}}, False),
        ({"result": "modify", "changes": {"result": "blocked"}}, False),
        ([1, "deny", None], False),
        ("deny", False),
        ("{deny", False),
        ({"block": "yes", "continue": True}, False),
    ],
)
def test_a_refusal_in_another_place_is_seen(document, refused):
    assert refuses(document) is refused


def test_a_flood_on_either_stream_is_no_consent():
    for stream in ("stdout_truncated", "stderr_truncated"):
        run = HookRun(exit_code=0, enforcement="full", **{stream: True})
        assert "limits.output" in judge(HookOutcome(), run).reason
        assert judge(HookOutcome(), run.replace(enforcement="none")).verdict == "none"


@pytest.mark.parametrize(
    ("dialect", "told", "hook"),
    [
        ("claude", event(), says([{"decision": "block"}])),
        ("claude", event(), says(json.dumps(json.dumps({"decision": "block"})))),
        ("claude", event(), says('info: { "decision": "block" }')),
        ("cursor", CURSOR, says({"continue": False})),
        ("cursor", CURSOR, says({"permission": "ask"})),
        ("antigravity", HOSTED, says({"continue": False})),
        ("agy", AGY, says({"decision": "allow"}, 1)),
        ("agy", AGY, says({"decision": "allow"}, 2)),
        ("agy", AGY, [PYTHON, "-c", 'import os; os.write(1, b\'{"decision": "allow"}\'); os.kill(os.getpid(), 9)']),
        ("agy", AGY, ["true"]),
    ],
)
def test_what_a_host_may_read_as_consent_is_told_as_a_deny(place, dialect, told, hook):
    """Plainly, with code 0 and a document that the host knows."""
    from stockade.sandbox.hooks.dialects import dialect as load

    done = call(place, "--dialect", dialect, "--", *hook, told=told)
    run = HookRun(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)
    found = load(dialect).decode(
        str(told.get("hook_event_name", "pre_tool_execution" if told is HOSTED else "PreToolUse")), run
    )
    assert (done.returncode, found.verdict, found.source) == (0, "deny", "json")


def test_a_failed_hook_still_ends_the_turn(place):
    done = call(place, "--", *says({"continue": False, "stopReason": "enough"}, 1))
    assert decision(done) == "deny"
    assert (json.loads(done.stdout)["continue"], json.loads(done.stdout)["stopReason"]) == (False, "enough")


# --- commands ------------------------------------------------------------------------------------------------


def test_text_behind_a_shells_c_is_no_script():
    assert script_of("sh", ["-c", "exit 1"]) == ""
    assert script_of("bash", ["-lc", "guard.sh"]) == ""
    assert script_of("sh", ["-e", "guard.sh"]) == "guard.sh"


def test_unwrap_makes_up_no_command():
    """``"$SHELL"`` as a shell's text is somebody else's: no text of ours."""
    from stockade.sandbox.hooks.rewrite import original

    command, head = original({"command": 'stockade hook --dialect cursor -- sh -c "$SHELL"'}, "cursor")
    assert (command.words, bool(head)) == (('sh -c "$SHELL"',), True)


@pytest.mark.parametrize("text", ["echo a\\\n", "echo $X\\\n", "\\\n", "a \\ \\\n"])
def test_a_here_document_is_not_used_for_what_it_would_change(text):
    """The comment behind it would become a part of its last word."""
    from stockade.sandbox.hooks.quoting import literal

    with pytest.raises(ValueError, match="backslash"):
        literal(text)
    assert literal("echo a \\\n")


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("way", ["hook", "hooks run"])
def test_a_pinned_script_that_is_swapped_while_it_runs_is_refused(place, way, swapped):
    """It may be the other one that ran: between the look at it and its start there is time."""
    place.put("ws/guard.sh", "cat > /dev/null; touch ~/x; until [ -e go ]; do sleep 0.01; done")
    entry = {"type": "command", "command": f"sh guard.sh {os.getpid()}.swap"}
    file = place.put(
        "ws/.claude/settings.json", json.dumps({"hooks": {"PreToolUse": [{"matcher": "*", "hooks": [entry]}]}})
    )
    assert place.call("hooks", "pin", "--write", file).returncode == 0
    words = ["hooks", "run", "--config", file]
    if way == "hook":
        assert place.call("hooks", "wrap", "--write", "--command", "stockade", file).returncode == 0
        with open(file) as text:
            words = json.load(text)["hooks"]["PreToolUse"][0]["hooks"][0]["args"]
        assert "--pinned" in words
    child = subprocess.Popen(
        [*STOCKADE, *words],
        cwd=place.ws, env=place.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    child.stdin.write(as_bytes(event(cwd=place.ws)))
    child.stdin.close()
    wait_until(lambda: len(processes_with(f"{os.getpid()}.swap")) > 1, "the hook runs")
    if swapped:
        place.put("ws/guard.sh", "exit 0")
    place.put("ws/go")
    out, err = child.stdout.read(), child.stderr.read()
    child.stdout.close()
    child.stderr.close()
    assert (child.wait(30), b"not as it was pinned" in out) == (0, swapped), (out, err)


def test_a_full_disk_is_named_as_one():
    from stockade.sandbox.hooks.ondisk import failed
    from stockade.sandbox.hooks.source import HooksFileError

    with pytest.raises(HooksFileError) as caught:
        failed("write", "x", OSError(errno.ENOSPC, "No space left on device"))
    assert caught.value.remedy == "Make room."


def test_a_matcher_that_is_no_text_is_refused():
    import stockade

    with pytest.raises(RequestError, match="matcher"):
        stockade.HookRunner().register(lambda name, payload: None, event="pre_tool", matcher=5)
