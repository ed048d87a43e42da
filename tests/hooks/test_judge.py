"""The confined rule, by table: what ended in no way that its protocol knows is no consent."""

from __future__ import annotations

import pytest

from stockade.sandbox.hooks.judge import BROKEN, judge
from stockade.sandbox.hooks.model import VERDICTS, HookOutcome, HookRun, Problem

ALLOW = HookOutcome(verdict="allow", source="json")
NONE = HookOutcome()
DENY = HookOutcome(verdict="deny", reason="no", source="json")
FAILED = HookOutcome(status="failed", problems=(Problem("syntax", "it is not JSON"),))


def ran(**fields):
    return HookRun(**{"exit_code": 0, "enforcement": "full", **fields})


@pytest.mark.parametrize(
    ("outcome", "run", "verdict", "cause"),
    [
        (NONE, ran(), "none", ""),
        (ALLOW, ran(), "allow", ""),
        (HookOutcome(verdict="ask"), ran(), "ask", ""),
        (DENY, ran(), "deny", "no"),
        (DENY, ran(exit_code=2), "deny", "no"),
        (NONE, ran(exit_code=2, stderr=b"never\n"), "deny", "never"),
        (ALLOW, ran(exit_code=2), "deny", "code 2"),
        (NONE, ran(exit_code=1, stderr=b"boom"), "deny", "code 1"),
        (ALLOW, ran(exit_code=1), "deny", "code 1"),
        (ALLOW, ran(exit_code=3), "deny", "code 3"),
        (NONE, ran(exit_code=127), "deny", "code 127"),
        (NONE, ran(exit_code=None, signal=9, reason="killed by SIGKILL"), "deny", "SIGKILL"),
        (ALLOW, ran(exit_code=None, timed_out=True, reason="timed out after 1 s"), "deny", "timed out"),
        (ALLOW, ran(exit_code=None, reason="stopped by SIGTERM"), "deny", "SIGTERM"),
        (NONE, ran(runner_failed=True, exit_code=None, reason="no bwrap"), "deny", "no bwrap"),
        (DENY, ran(runner_failed=True, exit_code=None, reason="no bwrap"), "deny", "no bwrap"),
        (NONE, ran(started=False, exit_code=127, spawn_error="'x' does not exist"), "deny", "does not exist"),
        (FAILED, ran(), "deny", "not JSON"),
        (ALLOW, ran(stdout_truncated=True), "deny", "limits.output"),
        (HookOutcome(document={"decision": "block"}), ran(), "deny", "refusal"),
        (HookOutcome(document={"hookSpecificOutput": {"permissionDecision": "Deny "}}), ran(), "deny", "refusal"),
        (HookOutcome(document={"x": {"decision": {"behavior": "deny"}}}), ran(), "deny", "refusal"),
        (HookOutcome(document={"note": "deny"}), ran(), "none", ""),
        # unconfined: the host's own reading
        (NONE, ran(enforcement="none", exit_code=1), "none", ""),
        (FAILED, ran(enforcement="none"), "none", ""),
        (ALLOW, ran(enforcement="none", exit_code=3), "allow", ""),
        (NONE, ran(enforcement="none", exit_code=None, timed_out=True), "none", ""),
        # ... but for a sandbox that was wanted and failed
        (NONE, ran(enforcement="none", runner_failed=True, started=False, reason="refused"), "deny", "refused"),
    ],
)
def test_the_rule(outcome, run, verdict, cause):
    found = judge(outcome, run)
    assert found.verdict == verdict
    assert cause in found.reason


@pytest.mark.parametrize("code", BROKEN)
def test_an_answer_that_hosts_read_differently_is_no_consent(code):
    odd = HookOutcome(problems=(Problem(code, f"it has {code}"),))
    assert judge(odd, ran()).verdict == "deny"
    assert judge(odd, ran(enforcement="none")).verdict == "none"


@pytest.mark.parametrize("status", ["failed", "timed_out", "not_run"])
def test_fail_closed_is_for_unconfined_hooks(status):
    outcome = HookOutcome(status=status)
    run = ran(enforcement="none", exit_code=1)
    assert judge(outcome, run).verdict == "none"
    assert judge(outcome, run, fail_closed=True).verdict == "deny"
    assert judge(NONE, ran(enforcement="none"), fail_closed=True).verdict == "none"


def test_never_milder():
    for verdict in VERDICTS:
        for run in (ran(), ran(exit_code=1), ran(enforcement="none"), ran(runner_failed=True)):
            found = judge(HookOutcome(verdict=verdict), run, fail_closed=True).verdict
            assert VERDICTS.index(found) <= VERDICTS.index(verdict)


def test_a_refusal_carries_nothing_else_of_the_answer():
    rich = ALLOW.replace(updated_input={"command": "x"}, context=("c",), extras=(("env", {}),), updated_output="o")
    found = judge(rich, ran(exit_code=1))
    assert (found.updated_input, found.context, found.extras, found.updated_output) == (None, (), (), None)


def test_the_status_says_whose_fault_it_was():
    assert judge(NONE, ran(exit_code=1, denied=True)).status == "denied_by_sandbox"
    assert judge(NONE, ran(exit_code=1)).status == "failed"
    assert judge(NONE, ran(exit_code=2)).status == "blocked"
    assert judge(NONE, ran(exit_code=None, timed_out=True)).status == "timed_out"
    assert judge(NONE, ran(runner_failed=True)).status == "runner_failed"
