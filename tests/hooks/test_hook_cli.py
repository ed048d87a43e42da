"""``stockade hook`` as a host calls it: its own bytes when a hook ended well, the host's deny when it did not."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest
from boxes import PYTHON, processes_with, wait_until
from hookbox import ALLOW, DENY, STOCKADE, as_bytes, call, decision, event, project, says


def test_bytes_of_a_hook_that_ended_well_are_its_own(place):
    script = "import sys; sys.stdin.read(); sys.stderr.write('n\\xe4h'); sys.stdout.write('  {\\n} '); sys.exit(0)"
    done = call(place, "--", PYTHON, "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"  {\n} ", "näh".encode())


def test_a_guard_decides(place):
    project(place)
    free = call(place, "--", "python3", "guard.py", told=event("ls"))
    assert (free.returncode, free.stdout, free.stderr) == (0, b"", b"")
    stopped = call(place, "--", "python3", "guard.py", told=event("rm -rf x"))
    assert (stopped.returncode, decision(stopped), stopped.stderr) == (0, "deny", b"")
    assert b"no rm here" in stopped.stdout


def test_exit_2_is_passed_on_as_it_is(place):
    done = call(place, "--", "sh", "-c", "echo never >&2; exit 2")
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"never\n")


@pytest.mark.parametrize(
    ("hook", "cause"),
    [
        (["sh", "-c", "echo boom >&2; exit 1"], "code 1"),
        (["sh", "-c", "exit 3"], "code 3"),
        (["sh", "-c", "exit 126"], "126"),
        (["sh", "-c", "nosuchprogram-x | cat; exit 127"], "127"),
        (["sh", "-c", "kill -9 $$"], "SIGKILL"),
        (["nosuchprogram-x"], "nosuchprogram-x"),
        (["python3", "nosuchscript.py"], "nosuchscript.py"),
        (["sh", "-c", 'python3 "$CLAUDE_PROJECT_DIR/nosuchscript.py"'], "nosuchscript.py"),
        (["python3", "/root/x/hidden.py"], "/root/x/hidden.py"),
        (says(ALLOW, 1), "code 1"),
        (says("banner\n" + json.dumps(DENY)), "before"),
        (says(json.dumps(DENY) + json.dumps(ALLOW)), "more after"),
        (says("{'single': 1}"), "not JSON"),
        (says('{"a": NaN}'), "NaN"),
        (says('{"decision": "block", "decision": "approve"}'), "twice"),
        (says({"decision": "deny"}), ""),
        (["sh", "-c", "printf '\\357\\273\\277{}'"], "byte order"),
        (["sh", "-c", "printf '{\\377'"], "UTF-8"),
    ],
)
def test_every_other_end_is_the_hosts_own_deny(place, hook, cause):
    done = call(place, "--", *hook)
    assert decision(done) == "deny", (done.stdout, done.stderr)
    assert cause in done.stdout.decode() + done.stderr.decode()
    assert done.stderr.decode().splitlines()[-1].startswith("stockade: the hook counts as a refusal: ")


def test_a_timeout_is_a_deny_and_nothing_is_left(place):
    done = call(place, "--timeout", "0.7", "--", "sh", "-c", "trap '' TERM; sleep 61")
    assert decision(done) == "deny"
    assert b"timed out" in done.stdout


def test_fifty_megabytes_of_output_are_a_deny_not_a_crash(place):
    done = call(place, "--", "sh", "-c", "head -c 50000000 /dev/zero")
    assert decision(done) == "deny"
    assert b"limits.output" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--no-such-option", "--", "true"], None),
        (["--timeout", "soon", "--", "true"], None),
        (["--policy", "nosuch", "--", "true"], None),
        (["--allow", "http://x", "--", "true"], None),
        (["--dialect", "nosuch", "--", "true"], None),
        (["--cwd", "/nowhere", "--", "true"], None),
        (["--pinned", "nosuch", "--", "true"], None),
        ([], None),
        (["--", "true"], b""),
        (["--", "true"], b"{"),
        (["--", "true"], b"[]"),
        (["--", "true"], b"\xff"),
        (["--", "true"], b"{} {}"),
        (["--", "true"], {"no": "event"}),
        (["--", "true"], {"hook_event_name": "BeforeTool", "tool_name": "x", "tool_input": {}}),
        (["--", "true"], {"tool_call": {"name": "write_file", "args": {}}, "environment_id": "e"}),
        (["--", "true"], b"[" * 100_000),
    ],
)
def test_no_mistake_looks_like_consent(place, words, told):
    assert call(place, "--", "true").returncode == 0  # the control: rightly called, it consents
    done = call(place, *words, told=told)
    assert decision(done) == "deny", (done.returncode, done.stdout, done.stderr)
    assert b"Traceback" not in done.stderr
    assert done.stderr.startswith(b"stockade: the hook counts as a refusal: could not ")


def test_an_event_of_a_hundred_megabytes_is_refused(place):
    with open(place.path("huge"), "wb") as file:
        file.write(b'{"hook_event_name": "PreToolUse", "x": "')
        file.truncate(100 << 20)
    with open(place.path("huge"), "rb") as huge:
        done = place.call("hook", "--", "true", stdin=huge)
    assert decision(done) == "deny"
    assert b"longer than 64 MiB" in done.stderr


@pytest.mark.parametrize("dialect", ["antigravity", "agy"])
def test_a_host_that_reads_only_documents_gets_one(place, dialect):
    done = call(place, "--dialect", dialect, "--", "true", told=b"{")
    assert (done.returncode, json.loads(done.stdout)["decision"]) == (0, "deny")


def test_exit_2_for_a_host_that_ignores_it_is_said_in_its_words(place):
    told = {"tool_call": {"name": "write_file", "args": {}}, "environment_id": "e"}
    done = call(place, "--dialect", "antigravity", "--", "sh", "-c", "echo never >&2; exit 2", told=told)
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"decision": "deny", "reason": "never"}


def test_an_event_that_nothing_can_deny_gets_an_error(place):
    told = {"session_id": "s", "hook_event_name": "SessionEnd", "reason": "clear"}
    done = call(place, "--", "sh", "-c", "exit 1", told=told)
    assert done.returncode not in (0, 2)
    assert done.stderr.startswith(b"stockade: ")


def test_trusted_hooks_keep_their_hosts_rule(place):
    done = call(place, "--trusted", "--", "sh", "-c", "echo x; exit 1")
    assert (done.returncode, done.stdout) == (1, b"x\n")
    closed = call(place, "--trusted", "--fail-closed", "--", "sh", "-c", "exit 1")
    assert decision(closed) == "deny"


def test_trusted_hooks_run_directly(place):
    script = f"open({place.path('victim', 'x')!r}, 'w')"
    assert decision(call(place, "--", PYTHON, "-c", script)) == "deny"
    assert not os.path.exists(place.path("victim", "x"))
    assert call(place, "--trusted", "--", PYTHON, "-c", script).returncode == 0
    assert os.path.exists(place.path("victim", "x"))


def test_what_a_hook_needs_is_there(place):
    """Root, project, transcript and variables are true inside; HOME and /tmp are private and writable."""
    place.put("home/.claude/projects/p/t.jsonl", '{"line": 1}\n')
    place.put("home/.claude/.credentials.json", "secret")
    place.put("home/plug/hooks/data.txt", "mine")
    place.put(
        "home/plug/hooks/look.py",
        """
import json, os, sys
event = json.load(sys.stdin)
root = os.environ["CLAUDE_PLUGIN_ROOT"]
found = {
    "root": open(root + "/hooks/data.txt").read(),
    "transcript": open(event["transcript_path"]).read(),
    "cwd": os.getcwd() == event["cwd"] == os.environ["CLAUDE_PROJECT_DIR"],
    "secret": os.path.exists(os.path.expanduser("~/.claude/.credentials.json")),
    "key": "ANTHROPIC_API_KEY" in os.environ,
}
for name in (os.path.expanduser("~/log"), "/tmp/log"):
    open(name, "w").write("x")
for name in (root + "/new", event["transcript_path"], event["cwd"] + "/new"):
    try:
        open(name, "a")
        found[name] = "written"
    except OSError:
        pass
print(json.dumps({"systemMessage": json.dumps(found)}))
""",
    )
    plug = place.path("home", "plug")
    told = event(
        cwd=place.ws, transcript_path=place.path("home", ".claude/projects/p/t.jsonl"), hook_event_name="PreToolUse"
    )
    done = call(
        place,
        "--",
        "sh",
        "-c",
        'python3 "$CLAUDE_PLUGIN_ROOT/hooks/look.py"',
        told=told,
        env={"CLAUDE_PLUGIN_ROOT": plug, "CLAUDE_PROJECT_DIR": place.ws, "ANTHROPIC_API_KEY": "sk-x"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(json.loads(done.stdout)["systemMessage"])
    assert found == {"root": "mine", "transcript": '{"line": 1}\n', "cwd": True, "secret": False, "key": False}
    assert not os.path.exists(place.path("home", "log"))


def test_observing_changes_no_outcome_and_writes_it_down(place):
    audit = place.path("audit.jsonl")
    for hook, code, out in (
        (["sh", "-c", "echo hi; echo boom >&2; exit 1"], 1, b"hi\n"),
        (["sh", "-c", "cat; exit 2"], 2, as_bytes(event("secret-payload"))),
        (["sh", "-c", "touch /usr/x 2>&1; true"], 0, None),
    ):
        done = call(place, f"--observe={audit}", "--", *hook, told=event("secret-payload"))
        assert done.returncode == code
        assert out is None or done.stdout == out
    with open(audit) as file:
        lines = [json.loads(line) for line in file]
    assert [each["exit_code"] for each in lines] == [1, 2, 0]
    assert [each["decision"] for each in lines] == [None, "deny", None]
    assert [each["would_be"] for each in lines] == ["deny", "deny", None]
    assert all(each["enforcement"] in ("full", "partial") and each["tool"] == "Bash" for each in lines)
    assert "secret-payload" not in json.dumps(lines)
    assert os.stat(audit).st_mode & 0o777 == 0o600


def test_observing_keeps_fifty_megabytes(place):
    done = call(place, f"--observe={place.path('a')}", "--", "sh", "-c", "head -c 50000000 /dev/zero; exit 5")
    assert (done.returncode, len(done.stdout)) == (5, 50_000_000)


def test_an_audit_that_cannot_be_written_is_said_and_changes_nothing(place):
    done = call(place, "--observe=/nowhere/audit", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7
    assert b"could not write the audit file" in done.stderr


def sleeps(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read() == "sleep\n"
    except OSError:
        return False


@pytest.mark.parametrize("when", ["at once", "while the hook runs"])
def test_the_host_stops_waiting(place, when):
    """SIGTERM from the host: a deny is still answered, and the hook is gone."""
    token = f"63.{os.getpid()}"
    child = subprocess.Popen(
        [*STOCKADE, "hook", "--", "sh", "-c", f"sleep {token}; true"],
        cwd=place.ws,
        env=place.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    if when == "at once":
        # It waits for the event, so that it has come as far as catching signals once bytes of that are gone.
        child.stdin.write(b" " * 2_000_000)
    else:
        child.stdin.write(as_bytes(event()))
        child.stdin.close()
        wait_until(lambda: any(map(sleeps, processes_with(token))), "the hook runs")
    child.send_signal(signal.SIGTERM)
    out, err = child.stdout.read(), child.stderr.read()
    for stream in (child.stdin, child.stdout, child.stderr):
        stream.close()
    code = child.wait(20)
    assert (b'"deny"' in out) if when != "at once" else code == 2, (out, err)
    wait_until(lambda: not processes_with(token), "the hook is gone")


def test_a_host_that_does_not_read_gets_exit_2(place):
    read, write = os.pipe()
    os.close(read)
    try:
        done = place.call("hook", "--", *says(DENY), input=as_bytes(event()), stdout=write)
    finally:
        os.close(write)
    assert done.returncode == 2


def test_help_and_terminal(place):
    helped = place.call("hook", "--help")
    assert helped.returncode == 0
    assert b"--observe" in helped.stdout
    leader, follower = os.openpty()
    try:
        done = place.call("hook", "--", "true", stdin=follower)
    finally:
        os.close(leader)
        os.close(follower)
    assert (done.returncode, b"stdin is a terminal" in done.stderr) == (2, True)


def test_a_host_that_drops_the_arguments_reads_no_consent(place):
    """Older releases, and other readers of the same file, know no ``args``: they start the program alone."""
    done = place.call(input=as_bytes(event()))
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"wrap the hooks again" in done.stderr
    assert place.call(input=b"").returncode == 125
    assert place.call().returncode == 125


def test_an_event_that_its_payload_does_not_name(place):
    told = {"tool_call": {"name": "write_file", "args": {}}, "environment_id": "e"}
    words = ("--dialect", "antigravity", "--event", "post_tool_execution", "--", "sh", "-c", "exit 1")
    after = call(place, *words, told=told)
    assert after.returncode == 1  # too late to deny anything: an error
    before = call(place, *words[:2], *words[4:], told=told)
    assert json.loads(before.stdout)["decision"] == "deny"
    unknown = call(place, "--dialect", "antigravity", "--event", "nosuch", "--", "true", told=told)
    assert json.loads(unknown.stdout)["decision"] == "deny"
