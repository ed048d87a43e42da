"""Every rule from evidence to outcome, and which of two goes first."""

from __future__ import annotations

import errno
import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.sandbox.classify import OUTCOMES, RULES, Case, classify, is_signal, signal_name
from stockade.sandbox.evidence import Evidence
from stockade.sandbox.program import Diagnosis

FINE = Diagnosis("/usr/bin/x", 0, executes=True)
MISSING = Diagnosis(None, 127, "'x' is in no directory of PATH", "install it")
FORBIDDEN = Diagnosis("/srv/x", 126, "'/srv/x' is not executable")


def exited(code):
    """A wait status."""
    return code << 8


def outcome(*, confined=True, diagnosis=FINE, message="", timeout=None, **evidence):
    return classify(Case(Evidence(**evidence), confined, diagnosis, message, timeout))


def summary(found):
    return found.outcome, found.exit_code, found.signal, found.returncode, found.started, found.rule


RAN = {"released": True, "box_seen": True}
DIED = signal.SIGKILL
FAILED = (None, None, 125, False)
OOM = (("oom", 1), ("oom_kill", 4))

TABLE = [
    # evidence of a confined run, and what it comes to
    ({**RAN, "exit_code": 0, "wait_status": exited(0)}, ("exited", 0, None, 0, True, "executed")),
    ({**RAN, "exit_code": 1, "wait_status": exited(1)}, ("exited", 1, None, 1, True, "executed")),
    ({**RAN, "exit_code": 137, "wait_status": exited(137)}, ("signalled", 137, 9, 137, True, "executed")),
    ({**RAN, "exit_code": 128}, ("exited", 128, None, 128, True, "executed")),
    ({**RAN, "exit_code": 255}, ("exited", 255, None, 255, True, "executed")),
    # ended by us
    ({**RAN, "deadline_passed": True, "killed": True}, ("timed_out", None, None, 124, True, "deadline_passed")),
    ({**RAN, "deadline_passed": True, "exit_code": 0}, ("timed_out", None, None, 124, True, "deadline_passed")),
    ({"deadline_passed": True}, ("timed_out", None, None, 124, False, "deadline_passed")),
    ({**RAN, "cpu_spent": 1.5, "killed": True}, ("timed_out", None, None, 124, True, "cpu_spent")),
    ({**RAN, "cpu_spent": 1.5, "exit_code": 143}, ("timed_out", None, None, 124, True, "cpu_spent")),
    ({**RAN, "cpu_spent": 1.5, "deadline_passed": True}, ("timed_out", None, None, 124, True, "deadline_passed")),
    # ended by the kernel, with the monitor, for want of memory; what the program ended with before that counts
    ({**RAN, "wait_status": DIED, "counted": OOM}, ("signalled", 137, 9, 137, True, "out_of_memory")),
    ({**RAN, "exit_code": 3, "wait_status": exited(3), "counted": OOM}, ("exited", 3, None, 3, True, "executed")),
    ({**RAN, "wait_status": DIED, "counted": (("oom_kill", 0),)}, ("lost", None, None, 125, True, "monitor_died")),
    ({"wait_status": DIED, "counted": OOM}, ("runner_failed", *FAILED, "monitor_died")),
    (
        {**RAN, "wait_status": DIED, "counted": OOM, "killed": True, "stop_signal": 15},
        ("stopped", None, None, 143, True, "stopped"),
    ),
    ({**RAN, "stop_signal": 2, "exit_code": 130}, ("stopped", 130, None, 130, True, "stopped")),
    ({**RAN, "stop_signal": 15, "exit_code": 0}, ("stopped", 0, None, 0, True, "stopped")),
    ({**RAN, "stop_signal": 15, "killed": True}, ("stopped", None, None, 143, True, "stopped")),
    ({**RAN, "stop_signal": 2, "killed": True, "exit_code": 137}, ("stopped", None, None, 130, True, "stopped")),
    ({"stop_signal": 2, "killed": True}, ("stopped", None, None, 130, False, "stopped")),
    # the sandbox broke
    ({"keeper_lost": True}, ("runner_failed", *FAILED, "keeper_lost")),
    ({**RAN, "keeper_lost": True}, ("lost", None, None, 125, True, "keeper_lost")),
    ({**RAN, "keeper_lost": True, "exit_code": 0}, ("lost", None, None, 125, True, "keeper_lost")),
    ({"failed_step": "limits", "failed_errno": errno.EPERM}, ("runner_failed", *FAILED, "step_failed")),
    ({"failed_step": "execute", "failed_errno": errno.ENOENT}, ("runner_failed", *FAILED, "step_failed")),
    ({"box_seen": True, "gate_failure": "why", "killed": True}, ("runner_failed", *FAILED, "gate_kept_shut")),
    ({"wait_status": DIED}, ("runner_failed", *FAILED, "monitor_died")),
    ({**RAN, "wait_status": DIED}, ("lost", None, None, 125, True, "monitor_died")),
    ({**RAN, "garbled": True, "exit_code": 0}, ("lost", None, None, 125, True, "garbled")),
    ({**RAN, "garbled": True}, ("lost", None, None, 125, True, "garbled")),
    # bwrap ended by itself, and never reported a code that can be believed
    ({"exit_code": 0, "wait_status": exited(0)}, ("runner_failed", *FAILED, "never_executed")),
    ({"box_seen": True, "exit_code": 0}, ("runner_failed", *FAILED, "never_executed")),
    ({"wait_status": exited(1)}, ("runner_failed", *FAILED, "never_executed")),
    ({**RAN, "wait_status": exited(1)}, ("runner_failed", *FAILED, "never_executed")),
    ({**RAN, "wait_status": exited(0)}, ("runner_failed", *FAILED, "never_executed")),
    ({"garbled": True, "wait_status": exited(0)}, ("runner_failed", *FAILED, "never_executed")),
    ({}, ("runner_failed", *FAILED, "never_executed")),
]


@pytest.mark.parametrize(("evidence", "expected"), TABLE)
def test_confined(evidence, expected):
    assert summary(outcome(**evidence)) == expected


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        ({"exit_code": 0, "wait_status": 0}, ("exited", 0, None, 0, True, "executed")),
        ({"exit_code": 137, "wait_status": exited(137)}, ("exited", 137, None, 137, True, "executed")),
        ({"wait_status": signal.SIGSEGV}, ("signalled", 139, 11, 139, True, "unconfined_signal")),
        ({"wait_status": signal.SIGKILL}, ("signalled", 137, 9, 137, True, "unconfined_signal")),
        ({"deadline_passed": True, "wait_status": 15}, ("timed_out", None, None, 124, True, "deadline_passed")),
        ({"stop_signal": 15, "wait_status": 15}, ("stopped", None, None, 143, True, "stopped")),
        ({"keeper_lost": True}, ("lost", None, None, 125, True, "keeper_lost")),
        (
            {"failed_step": "execute", "failed_errno": errno.ENOENT},
            ("not_executed", 127, None, 127, False, "step_failed"),
        ),
        (
            {"failed_step": "execute", "failed_errno": errno.ENOTDIR},
            ("not_executed", 127, None, 127, False, "step_failed"),
        ),
        (
            {"failed_step": "execute", "failed_errno": errno.EACCES},
            ("not_executed", 126, None, 126, False, "step_failed"),
        ),
        (
            {"failed_step": "execute", "failed_errno": errno.ENOEXEC},
            ("not_executed", 126, None, 126, False, "step_failed"),
        ),
        ({"failed_step": "directory", "failed_errno": errno.ENOENT}, ("runner_failed", *FAILED, "step_failed")),
    ],
)
def test_unconfined(evidence, expected):
    assert summary(outcome(confined=False, released=True, **evidence)) == expected


# --- codes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", range(256))
def test_every_code_is_kept_and_only_128_and_a_signal_is_called_likely(code):
    found = outcome(**RAN, exit_code=code, wait_status=exited(code))
    likely = code - 128 if 128 < code < 128 + signal.NSIG else None
    assert (found.exit_code, found.returncode, found.started) == (code, code, True)
    assert (found.outcome, found.signal) == (("signalled", likely) if likely else ("exited", None))
    assert ("likely" in found.reason) is bool(likely)


@pytest.mark.parametrize("code", range(256))
def test_unconfined_a_code_is_never_called_a_signal(code):
    found = outcome(confined=False, released=True, exit_code=code)
    assert (found.outcome, found.signal, found.returncode) == ("exited", None, code)


def test_signals_have_names():
    assert [signal_name(number) for number in (9, 15, 33, 64)] == ["SIGKILL", "SIGTERM", "signal 33", "SIGRTMAX"]
    assert [number for number in range(-1, 130) if is_signal(number)] == list(range(1, signal.NSIG))


# --- which goes first -------------------------------------------------------------------------------------

WORST_FIRST = [
    ("keeper_lost", {"keeper_lost": True}),
    ("step_failed", {"failed_step": "limits", "failed_errno": errno.EPERM}),
    ("gate_kept_shut", {"gate_failure": "why"}),
    ("deadline_passed", {"deadline_passed": True}),
    ("stopped", {"stop_signal": 15}),
    ("garbled", {"garbled": True}),
    ("executed", {"exit_code": 0}),
    ("monitor_died", {"wait_status": DIED}),
]


@pytest.mark.parametrize("at", range(len(WORST_FIRST)))
def test_what_outranks_what(at):
    """All evidence from one rule on, the worst first: that rule decides."""
    evidence = {**RAN}
    for _name, more in WORST_FIRST[at:]:
        evidence |= more
    assert outcome(diagnosis=MISSING, **evidence).rule == WORST_FIRST[at][0]


def test_the_order_of_the_rules_is_that_of_this_file():
    names = [rule.__name__ for rule in RULES]
    assert [name for name in names if name in dict(WORST_FIRST)] == [name for name, _more in WORST_FIRST]
    assert names[-2:] == ["program_not_executable", "never_executed"]


# --- not executed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("diagnosis", "code"), [(MISSING, 127), (FORBIDDEN, 126)])
def test_a_program_that_could_not_be_executed_is_told_from_a_broken_sandbox(diagnosis, code):
    found = outcome(**RAN, wait_status=exited(1), diagnosis=diagnosis, message="bwrap: execvp x: No such file")
    assert summary(found) == ("not_executed", code, None, code, False, "program_not_executable")
    assert diagnosis.reason in found.reason
    assert diagnosis.remedy in found.reason


def test_before_the_gate_opened_the_program_is_not_to_blame():
    assert outcome(box_seen=True, wait_status=exited(1), diagnosis=MISSING).outcome == "runner_failed"


def test_a_program_that_ran_after_all_outranks_the_diagnosis():
    assert outcome(**RAN, exit_code=0, diagnosis=MISSING).outcome == "exited"


def test_a_lying_bwrap_that_ends_with_0_is_not_believed():
    for code in (0, 1, 126, 127):
        found = outcome(**RAN, wait_status=exited(code))
        assert (found.outcome, found.started, found.returncode) == ("runner_failed", False, 125)
    assert "ended with code 0 and did not run the program" in outcome(wait_status=exited(0)).reason


# --- reasons ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            outcome(wait_status=exited(1), message="bwrap: no room"),
            "bubblewrap could not set up the sandbox: bwrap: no room",
        ),
        (outcome(wait_status=exited(1)), "bubblewrap could not set up the sandbox"),
        (outcome(**RAN, deadline_passed=True, timeout=2.5), "timed out after 2.5 s"),
        (outcome(deadline_passed=True, timeout=60), "timed out after 60 s before the program was started"),
        (outcome(**RAN, deadline_passed=True), "timed out"),
        (outcome(**RAN, stop_signal=2, exit_code=0), "stopped by SIGINT"),
        (outcome(**RAN, stop_signal=2, killed=True), "stopped by SIGINT, then killed"),
        (outcome(stop_signal=2, killed=True), "stopped by SIGINT"),
        (
            outcome(failed_step="stage", failed_errno=errno.ENOENT, failed_detail="/dev/shm"),
            "could not start the sandbox: step 'stage' failed (/dev/shm): no such file or directory",
        ),
        (outcome(gate_failure="it shares net"), "the program was not let go: it shares net"),
        (outcome(**RAN, exit_code=3), "exited with code 3"),
    ],
)
def test_the_reason_says_it(found, said):
    assert found.reason == said


def test_what_bwrap_printed_decides_nothing():
    for message in ("bwrap: execvp x: No such file or directory", "exited with code 0", "Read-only file system"):
        assert summary(outcome(wait_status=exited(1), message=message)) == summary(outcome(wait_status=exited(1)))


# --- any evidence -----------------------------------------------------------------------------------------

EVIDENCE = st.builds(
    Evidence,
    failed_step=st.sampled_from(["", "limits", "execute"]),
    failed_errno=st.integers(0, 133),
    keeper_lost=st.booleans(),
    gate_failure=st.sampled_from(["", "why"]),
    released=st.booleans(),
    box_seen=st.booleans(),
    garbled=st.booleans(),
    exit_code=st.none() | st.integers(0, 255),
    wait_status=st.none() | st.integers(0, 255).map(exited) | st.integers(1, 31),
    killed=st.booleans(),
    deadline_passed=st.booleans(),
    stop_signal=st.sampled_from([0, 1, 2, 9, 15]),
    cpu_spent=st.sampled_from([0.0, 1.5]),
    counted=st.sampled_from([(), OOM, (("oom_kill", 1),), (("cpu", 1), ("forks_refused", 1))]),
)


@settings(deadline=None, max_examples=500)
@given(EVIDENCE, st.booleans(), st.sampled_from([FINE, MISSING, FORBIDDEN]))
def test_of_any_evidence_the_outcome_is_consistent(evidence, confined, diagnosis):
    found = classify(Case(evidence, confined, diagnosis, "", 1.0))
    assert found.outcome in OUTCOMES
    assert found.reason
    assert 0 <= found.returncode <= 255
    assert (found.signal is not None) == (found.outcome == "signalled")
    if found.outcome in ("exited", "signalled", "lost"):
        assert found.started
    if found.outcome in ("runner_failed", "not_executed"):
        assert not found.started
    if found.outcome in ("runner_failed", "lost"):
        assert (found.exit_code, found.returncode) == (None, 125)
    if confined and not evidence.released:
        assert found.outcome in ("runner_failed", "timed_out", "stopped")
    if evidence.keeper_lost or (evidence.gate_failure and not evidence.failed_step):
        assert found.outcome in ("runner_failed", "lost")
