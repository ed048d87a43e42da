"""What users of agent hooks ask for and report most, each by its name; the runner's own are in test_runner_needs.

Every refusal or bound stands beside a run that shows the same hook at work where nothing is in its way.
"""

from __future__ import annotations

import json
import os

import pytest
from boxes import PYTHON, own_state, processes_with, wait_until  # noqa: F401
from hookbox import ALLOW, DENY, call, decision, event, says

import stockade

CONFINED = pytest.mark.parametrize("trusted", [False, True], ids=["confined", "direct"])


def run(place, hook, told=None, **options):
    return stockade.run_hook(hook, event() if told is None else told, **{"cwd": place.ws, **options})


@CONFINED
def test_need_1_the_turn_ends_though_a_descendant_holds_stdout(place, trusted):
    """A sleeper keeps stdout open: the answer counts when the hook itself ends, long before its sleeper."""
    hook = ["sh", "-c", f"sleep 67.{os.getpid()} & echo '{json.dumps(DENY)}'"]
    result = run(place, hook, trusted=trusted, timeout=30)
    assert (result.outcome, result.decision) == ("exited", "deny")
    assert result.duration < 25
    if not trusted:
        assert not processes_with(f"67.{os.getpid()}")
    for pid in processes_with(f"67.{os.getpid()}"):
        os.kill(pid, 9)


@CONFINED
def test_need_2_the_whole_tree_goes_at_a_timeout(place, trusted):
    token = f"68.{os.getpid()}{int(trusted)}"
    hook = ["sh", "-c", f"sh -c 'setsid sleep {token} & sleep {token}' & sleep {token}"]
    result = run(place, hook, trusted=trusted, timeout=1)
    assert result.outcome == "timed_out"
    wait_until(lambda: not processes_with(token), "every process of the hook is gone")


@CONFINED
def test_need_3_a_hook_that_ignores_sigterm_is_killed(place, trusted):
    token = f"69.{os.getpid()}{int(trusted)}"
    loop = f"trap '' TERM INT HUP; while :; do sleep {token}; done"
    result = run(place, ["sh", "-c", loop], trusted=trusted, timeout=0.5)
    assert result.outcome == "timed_out"
    wait_until(lambda: not processes_with(token), "it is gone")


def test_need_6_a_banner_before_the_json_is_no_consent(place):
    banner = "Welcome to this shell!\n"
    done = call(place, "--", *says(banner + json.dumps(DENY)))
    assert decision(done) == "deny"
    assert b"other text before" in done.stdout
    assert decision(call(place, "--", *says(json.dumps(DENY)))) == "deny"
    assert decision(call(place, "--", *says(json.dumps(ALLOW)))) == "allow"


def test_need_7_two_documents_are_no_consent(place):
    for text in (json.dumps(ALLOW) + json.dumps(DENY), json.dumps(ALLOW) + "\ndone\n"):
        result = run(place, says(text), trusted=False)
        assert result.blocked, text
        assert "more after" in result.reason
    assert run(place, says(json.dumps(ALLOW) + "\n"), trusted=False).decision == "allow"


def test_need_8_an_unquoted_root_with_a_blank_in_it_is_named(place):
    place.put("ws/my plug/guard.py", "print()")
    root = os.path.join(place.ws, "my plug")
    bad = run(place, "python3 $CLAUDE_PLUGIN_ROOT/guard.py", root=root, trusted=False)
    assert (bad.blocked, bad.started) == (True, False)
    assert os.path.join(place.ws, "my") in bad.reason
    good = run(place, 'python3 "$CLAUDE_PLUGIN_ROOT/guard.py"', root=root, trusted=False)
    assert (good.blocked, good.exit_code) == (False, 0)


def test_need_9_no_secret_of_the_caller_reaches_a_foreign_hook(place, monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "CLAUDE_ENV_FILE", "SSH_AUTH_SOCK"):
        monkeypatch.setenv(name, "s3cr3t-value")
    look = [PYTHON, "-c", "import os; print(dict(os.environ)); print(open('/proc/self/environ').read())"]
    assert b"s3cr3t-value" not in run(place, look, trusted=False).stdout
    assert b"s3cr3t-value" in run(place, look, trusted=True).stdout
    named = run(place, look, trusted=False, env={"GITHUB_TOKEN": os.environ["GITHUB_TOKEN"]})
    assert named.stdout.count(b"s3cr3t-value") == 2


HOOKS_FILES = (
    ".claude/settings.json", ".codex/hooks.json", ".cursor/hooks.json", ".agents/hooks.json", ".gemini/settings.json",
    ".claude/hooks/guard.sh",
)  # fmt: skip


@pytest.mark.parametrize("name", HOOKS_FILES)
def test_need_10_a_hook_cannot_write_hooks(place, name):
    path = place.put(f"ws/{name}", "{}", 0o666)
    os.chmod(os.path.dirname(path), 0o777)
    write = f"open({path!r}, 'w').write('evil'); open({place.ws!r} + '/free', 'w')"
    result = run(place, [PYTHON, "-c", write], trusted=False, policy="workspace-write")
    assert result.blocked
    with open(path) as file:
        assert file.read() == "{}"
    free = run(place, [PYTHON, "-c", f"open({place.ws!r} + '/free', 'w')"], trusted=False, policy="workspace-write")
    assert not free.blocked
    assert os.path.exists(os.path.join(place.ws, "free"))


@CONFINED
def test_need_12_a_huge_event_that_nobody_reads_harms_nothing(place, trusted):
    told = event("x" * 20_000_000)
    result = run(place, ["sh", "-c", "exec <&-; exit 0"], told, trusted=trusted)
    assert (result.outcome, result.exit_code, result.blocked) == ("exited", 0, False)
    read = run(place, ["sh", "-c", "wc -c"], told, trusted=trusted)
    assert int(read.stdout) > 20_000_000


@CONFINED
def test_need_12_a_hook_that_ends_before_its_event_was_written(place, trusted):
    result = run(place, says(DENY), event("y" * 5_000_000), trusted=trusted)
    assert result.decision == "deny"
