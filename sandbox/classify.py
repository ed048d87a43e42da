"""From evidence to an outcome (pure). Rules are tried in order; each has a name, and the first that fits decides.

A failure of the runner outranks everything: what never ran was not denied. No rule reads what the program
printed. ``exit_code`` of bwrap's status record exists only when the program was really executed.
"""

from __future__ import annotations

import errno
import os

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    from stockade.sandbox.evidence import Evidence
    from stockade.sandbox.program import Diagnosis
else:
    import _signal as signal  # ``signal`` itself costs as much as enum

OUTCOMES = ("exited", "signalled", "timed_out", "stopped", "lost", "runner_failed", "not_executed")


class Outcome(Record):
    """What happened. ``rule`` names the rule that decided, for reviewers and tests."""

    outcome: str
    exit_code: int | None
    signal: int | None
    returncode: int
    """What ``stockade run`` exits with."""
    reason: str
    started: bool
    """Whether the program was executed; also true for ``lost``, when nobody can know."""
    rule: str


class Case(Record):
    """Everything the rules may look at."""

    evidence: Evidence
    confined: bool
    diagnosis: Diagnosis
    """Why the program could not be executed, as looked up before the start (code 0: no reason was found)."""
    message: str
    """What bwrap printed, quoted in the reason and never interpreted."""
    timeout: float | None


def classify(case: Case) -> Outcome:
    """The outcome of a run."""
    for rule in RULES:
        outcome = rule(case)
        if outcome is not None:
            return outcome
    raise AssertionError("the last rule always fits")


def failed(reason: str, rule: str) -> Outcome:
    return Outcome("runner_failed", None, None, 125, reason, started=False, rule=rule)


def keeper_lost(case: Case) -> Outcome | None:
    evidence = case.evidence
    if not evidence.keeper_lost:
        return None
    if not evidence.released:
        return failed("the keeper of the sandbox ended before the program was started", "keeper_lost")
    return Outcome(
        "lost", None, None, 125, "the keeper of the sandbox ended during the run", started=True, rule="keeper_lost"
    )


def lease_lost(case: Case) -> Outcome | None:
    """Whatever the program did after its network went away says nothing about the program."""
    if case.evidence.lease_failure:
        return failed(case.evidence.lease_failure, "lease_lost")
    part = case.evidence.lease_lost
    if not part:
        return None
    reason = f"the leased network broke: {part} ended during the run"
    return Outcome("runner_failed", None, None, 125, reason, started=case.evidence.released, rule="lease_lost")


def step_failed(case: Case) -> Outcome | None:
    """A step between fork and exec failed. Unconfined, the last step executes the program itself."""
    evidence = case.evidence
    if not evidence.failed_step:
        return None
    cause = os.strerror(evidence.failed_errno).lower()
    if evidence.failed_step == "execute" and not case.confined:
        code = 127 if evidence.failed_errno in (errno.ENOENT, errno.ENOTDIR) else 126
        return not_executed(code, f"could not execute the program: {cause}", "step_failed")
    about = f" ({evidence.failed_detail})" if evidence.failed_detail else ""
    return failed(
        f"could not start the sandbox: step {evidence.failed_step!r} failed{about}: {cause}", "step_failed"
    )


def gate_kept_shut(case: Case) -> Outcome | None:
    if not case.evidence.gate_failure:
        return None
    return failed(f"the program was not let go: {case.evidence.gate_failure}", "gate_kept_shut")


def deadline_passed(case: Case) -> Outcome | None:
    """Only when the deadline ended it: a program that had ended by itself keeps its own outcome."""
    evidence = case.evidence
    if not evidence.deadline_passed:
        return None
    started = evidence.released
    about = "" if started else " before the program was started"
    reason = f"timed out after {case.timeout:g} s{about}" if case.timeout is not None else f"timed out{about}"
    return Outcome("timed_out", None, None, 124, reason, started=started, rule="deadline_passed")


def cpu_spent(case: Case) -> Outcome | None:
    """We ended it because it had used all of its processor time."""
    evidence = case.evidence
    if not evidence.cpu_spent:
        return None
    reason = f"timed out after {evidence.cpu_spent:.2f} s of processor time"
    return Outcome("timed_out", None, None, 124, reason, started=evidence.released, rule="cpu_spent")


def crowded(case: Case) -> Outcome | None:
    """We killed it because it had more processes and threads than its limit, which the kernel does not set for root."""
    evidence = case.evidence
    if not evidence.crowd:
        return None
    reason = f"killed by SIGKILL: it had {evidence.crowd} processes and threads at once, more than limits.processes"
    return Outcome("signalled", 137, 9, 137, reason, started=evidence.released, rule="crowded")


def stopped(case: Case) -> Outcome | None:
    evidence = case.evidence
    number = evidence.stop_signal
    if not number:
        return None
    code = evidence.exit_code if not evidence.killed else None
    returncode = code if code is not None else 128 + number
    reason = f"stopped by {signal_name(number)}" + (
        ", then killed" if evidence.killed and evidence.released else ""
    )
    return Outcome("stopped", code, None, returncode, reason, started=evidence.released, rule="stopped")


def garbled(case: Case) -> Outcome | None:
    """A program can write into pid 1 of its box and have bwrap report a code that no process ends with.

    It must not pass for one that never ran, and what it did end with is not known.
    """
    if not (case.evidence.garbled and case.evidence.released):
        return None
    reason = "bubblewrap's status records make no sense: the program tampered with its box"
    return Outcome("lost", None, None, 125, reason, started=True, rule="garbled")


def executed(case: Case) -> Outcome | None:
    """bwrap reports an exit code, or an unconfined program ended by itself.

    A code of a program that was never let go is not believed.
    """
    code = case.evidence.exit_code
    if code is None or (case.confined and not case.evidence.released):
        return None
    number = code - 128
    if case.confined and is_signal(number):
        reason = f"likely killed by {signal_name(number)}: exit code {code} can also be the program's own"
        return Outcome("signalled", code, number, code, reason, started=True, rule="executed")
    # A launcher such as env was executed and found nothing to start: what was seen before goes with its code.
    why = f": {case.diagnosis.reason}" if code in (126, 127) and case.diagnosis.code else ""
    return Outcome("exited", code, None, code, f"exited with code {code}{why}", started=True, rule="executed")


def unconfined_signal(case: Case) -> Outcome | None:
    status = case.evidence.wait_status
    if case.confined or status is None or not os.WIFSIGNALED(status):
        return None
    number = os.WTERMSIG(status)
    reason = f"killed by {signal_name(number)}"
    return Outcome("signalled", 128 + number, number, 128 + number, reason, started=True, rule="unconfined_signal")


def out_of_memory(case: Case) -> Outcome | None:
    """The kernel killed everything in the run's cgroup, bwrap's monitor too, and counted that itself."""
    status, counted = case.evidence.wait_status, dict(case.evidence.counted)
    if not (counted.get("oom_kill") and case.evidence.released) or status is None or not os.WIFSIGNALED(status):
        return None
    why = "it needed more memory than its limit" if counted.get("oom") else "the host was out of memory"
    return Outcome("signalled", 137, 9, 137, f"killed by SIGKILL: {why}", started=True, rule="out_of_memory")


def monitor_died(case: Case) -> Outcome | None:
    """bwrap's monitor was killed, and not by us."""
    status = case.evidence.wait_status
    if status is None or not os.WIFSIGNALED(status):
        return None
    number = os.WTERMSIG(status)
    if not case.evidence.released:
        return failed(
            f"bubblewrap was killed by {signal_name(number)} before the program was started", "monitor_died"
        )
    reason = f"bubblewrap was killed by {signal_name(number)}; the program may have run"
    return Outcome("lost", None, None, 125, reason, started=True, rule="monitor_died")


def program_not_executable(case: Case) -> Outcome | None:
    """Set-up went through, nothing was executed, and the lookup before the start says why."""
    if case.diagnosis.code == 0 or not case.evidence.released:
        return None
    diagnosis = case.diagnosis
    reason = f"{diagnosis.reason}; {diagnosis.remedy}" if diagnosis.remedy else diagnosis.reason
    return not_executed(diagnosis.code, reason, "program_not_executable")


def never_executed(case: Case) -> Outcome:
    """bwrap ended by itself without an exit code: the program never ran, whatever bwrap's own code was."""
    said = f": {case.message}" if case.message else ""
    status = case.evidence.wait_status
    if status is not None and os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        return failed(f"bubblewrap ended with code 0 and did not run the program{said}", "never_executed")
    return failed(f"bubblewrap could not set up the sandbox{said}", "never_executed")


def not_executed(code: int, reason: str, rule: str) -> Outcome:
    return Outcome("not_executed", code, None, code, reason, started=False, rule=rule)


def is_signal(number: int) -> bool:
    return 0 < number < signal.NSIG and number != 127


def signal_name(number: int) -> str:
    from signal import Signals

    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


RULES: tuple[Callable[[Case], Outcome | None], ...] = (
    keeper_lost,
    lease_lost,
    step_failed,
    gate_kept_shut,
    deadline_passed,
    cpu_spent,
    crowded,
    stopped,
    garbled,
    executed,
    unconfined_signal,
    out_of_memory,
    monitor_died,
    program_not_executable,
    never_executed,
)
"""Tried in this order. Deadline and stop come before the exit code, since ending the program is what made it."""
