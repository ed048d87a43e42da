"""``run_hook``: trust, confinement, and a result that says everything."""

from __future__ import annotations

import json
import os
import warnings

import pytest
from boxes import PYTHON, own_state  # noqa: F401
from hookbox import ASK, DENY, event, says

import stockade
from stockade.sandbox.hooks import runhook


@pytest.fixture
def ws(place):
    return place.ws


def run(hook, told=None, **options):
    return stockade.run_hook(hook, event() if told is None else told, **options)


def test_trusted_runs_directly_and_foreign_is_confined(ws, place):
    script = [PYTHON, "-c", f"open({place.path('victim', 'x')!r}, 'w')"]
    foreign = run(script, cwd=ws, trusted=False)
    assert foreign.blocked
    assert not os.path.exists(place.path("victim", "x"))
    assert foreign.enforcement in ("full", "partial")
    own = run(script, cwd=ws)
    assert os.path.exists(place.path("victim", "x"))
    assert (own.blocked, own.decision, own.enforcement) == (False, None, "none")


@pytest.mark.parametrize(
    ("trusted", "sandbox", "confined"),
    [
        (True, None, False),
        (True, "auto", True),
        (True, "strict", True),
        (True, False, False),
        (False, None, True),
        (False, "auto", True),
    ],
)
def test_who_is_confined(ws, trusted, sandbox, confined):
    result = run(["true"], cwd=ws, trusted=trusted, sandbox=sandbox)
    assert (result.enforcement != "none") is confined
    assert not result.blocked


def test_the_result_has_everything(ws):
    hook = [PYTHON, "-c", f"import sys; print({json.dumps(DENY)!r}); sys.stderr.write('why')"]
    result = run(hook, cwd=ws, trusted=False)
    assert (result.blocked, result.decision, result.halts_turn) == (True, "deny", False)
    assert result.json == DENY
    assert (result.stderr, json.loads(result.stdout)) == (b"why", DENY)
    assert (result.outcome, result.exit_code, result.reason) == ("exited", 0, "no")
    assert (result.event, result.kind, result.dialect, result.blocking) == (
        "PreToolUse",
        "pre_tool",
        "claude",
        True,
    )
    document = json.loads(json.dumps(result.to_json()))
    assert document["schema"] == "stockade.hook/1"
    assert (document["decision"], document["blocked"], document["json"]) == ("deny", True, DENY)
    assert isinstance(result, stockade.RunResult)
    assert isinstance(result, stockade.HookResult)


def test_ask_and_halt(ws):
    assert run(says(ASK), cwd=ws, trusted=False).decision == "ask"
    halted = run(says({"continue": False, "stopReason": "enough"}), cwd=ws, trusted=False)
    assert (halted.halts_turn, halted.answer.stop_reason) == (True, "enough")


@pytest.mark.parametrize("form", ["mapping", "bytes", "text", "event"])
def test_an_event_in_any_form_reaches_the_hook(ws, form):
    from stockade.sandbox.hooks.dialects import claude

    told = {
        "mapping": event("né"),
        "bytes": json.dumps(event("né")).encode() + b"   ",
        "text": json.dumps(event("né")),
        "event": claude.read_event(event("né")),
    }[form]
    result = run(["cat"], told, cwd=ws, trusted=False)
    assert json.loads(result.stdout)["tool_input"] == {"command": "né"}
    if form == "bytes":
        assert result.stdout == told


def test_a_text_runs_as_its_host_runs_one(ws):
    told = {"hook_event_name": "BeforeTool", "session_id": "s", "cwd": ws, "tool_name": "x", "tool_input": {}}
    result = run("echo ${BASH_VERSION:+bash}", told, dialect="gemini", trusted=False)
    assert result.stdout == b"bash\n"
    assert run("echo $0", cwd=ws).argv[:2] == ("/bin/sh", "-c")


def test_the_events_own_directory_is_the_workspace(ws):
    assert run(["pwd"], event(cwd=ws), trusted=False).stdout.decode().strip() == ws
    assert run(["pwd"], event(cwd="/nowhere/x"), cwd=ws, trusted=False).stdout.decode().strip() == ws


@pytest.mark.parametrize("trusted", [True, False])
def test_ten_seconds_unless_told_otherwise(ws, trusted):
    assert run(["true"], cwd=ws, trusted=trusted).policy.timeout == 10.0
    result = run(["sleep", "60"], cwd=ws, trusted=trusted, timeout=0.5)
    assert (result.outcome, result.blocked) == ("timed_out", not trusted)


def test_egress_options_confine_and_record(ws):
    script = "import socket; s = socket.create_connection(('203.0.113.9', 443), 2); s.sendall(b'x')"
    recorded = run([PYTHON, "-c", script], cwd=ws, record_egress=True)
    assert recorded.enforcement != "none"
    assert [(each.address, each.port, each.allowed) for each in recorded.egress] == [("203.0.113.9", 443, False)]
    empty = run(["true"], cwd=ws, egress={"allow": []})
    assert empty.policy.egress == "allow"
    assert not empty.blocked


def test_a_sandbox_that_cannot_be_had_is_a_refusal(ws, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("STOCKADE_BWRAP", "/nowhere/bwrap")
    from stockade.policies.errors import SandboxUnavailable

    def gone(_order):
        raise SandboxUnavailable(
            "could not confine the command: no bwrap", mode="auto", missing=("bwrap",), remedy="Get it."
        )

    monkeypatch.setattr("stockade.sandbox.conduct.judge", gone)
    result = run(["/bin/true"], cwd=ws, trusted=False)
    assert (result.blocked, result.started, result.outcome) == (True, False, "runner_failed")
    assert "no bwrap" in result.reason
    assert "Get it." in result.reason
    assert result.answer.status == "runner_failed"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sandbox": "maybe"}, "sandbox='maybe'"),
        ({"sandbox": 3}, "sandbox=3"),
        ({"egress": ["x"]}, "egress"),
        ({"egress": {"deny": []}}, "egress"),
        ({"egress": {"allow": "x.example"}}, "allow"),
        ({"egress": {"allow": ["http://x"]}}, "http://x"),
        ({"dialect": "nosuch"}, "nosuch"),
        ({"timeout": "soon"}, "soon"),
        ({"policy": "nosuch"}, "nosuch"),
        ({"cwd": "/nowhere"}, "/nowhere"),
        ({"egress": {"allow": []}, "record_egress": True, "sandbox": False}, "mode"),
    ],
)
def test_what_cannot_be_used_runs_nothing(ws, options, words):
    marker = os.path.join(ws, "marker")
    with pytest.raises(stockade.StockadeError, match=None) as caught:
        run(["touch", marker], **{"cwd": ws, **options})
    assert words in str(caught.value)
    assert not os.path.exists(marker)
    run(["touch", marker], cwd=ws)
    assert os.path.exists(marker)


@pytest.mark.parametrize("told", [3, None, b"{", "[]", {}, {"hook_event_name": 5}, b"\xff", {**event(), "x": {1}}])
def test_what_is_no_event_runs_nothing(ws, told):
    with pytest.raises(stockade.RequestError, match="could not "):
        stockade.run_hook(["true"], told, cwd=ws)


def test_a_policy_without_effect_is_said_once(ws, monkeypatch):
    monkeypatch.setattr(runhook, "_warned", False)
    with pytest.warns(RuntimeWarning, match="the policy has no effect: trusted is true and no mode is set"):
        run(["true"], cwd=ws, policy="hook")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(["true"], cwd=ws, policy="hook")


def test_foreign_and_off_is_a_warning_with_both_settings(ws, monkeypatch):
    from stockade.sandbox import conduct

    monkeypatch.setattr(conduct, "_warned", False)
    with pytest.warns(RuntimeWarning, match="trusted is false.*mode is off"):
        run(["true"], cwd=ws, trusted=False, sandbox=False)


def test_a_three_megabyte_event_reaches_the_hook(ws):
    told = event("x" * 3_000_000)
    result = run([PYTHON, "-c", "import sys; print(len(sys.stdin.read()))"], told, cwd=ws, trusted=False)
    assert int(result.stdout) > 3_000_000


def test_names_of_withheld_variables_and_no_values(ws, monkeypatch):
    monkeypatch.setenv("SOME_SECRET_TOKEN", "tok-123")
    result = run(["env"], cwd=ws, trusted=False)
    assert "SOME_SECRET_TOKEN" in result.withheld
    assert b"tok-123" not in result.stdout
    assert "tok-123" not in json.dumps(result.to_json())
    assert b"tok-123" in run(["env"], cwd=ws).stdout
