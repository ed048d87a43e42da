"""Evidence to result: classify, look for denials, list what was written."""

from __future__ import annotations

import os

from stockade.sandbox.classify import Case, classify
from stockade.sandbox.cli.style import escape
from stockade.sandbox.denials import find_denials
from stockade.sandbox.result import RunResult, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from stockade.netns.lease import Report
    from stockade.policies.capability import Settlement
    from stockade.policies.resolved import Resolved
    from stockade.sandbox.classify import Outcome
    from stockade.sandbox.confinement import Confinement
    from stockade.sandbox.engine import Finished
    from stockade.sandbox.evidence import Evidence
    from stockade.sandbox.order import Order
    from stockade.sandbox.program import Diagnosis
    from stockade.sandbox.writes import Manifest, WrittenFile

MOST_LOOKED_AT = 1000
KIND, REGULAR = 0o170000, 0o100000
QUOTED = 300
"""Characters of bubblewrap's own words in a reason."""


def verdict(
    order: Order,
    finished: Finished,
    diagnosis: Diagnosis,
    *,
    settled: Settlement | None,
    notes: tuple[str, ...],
    before: Manifest | None,
    start: Confinement | None,
    report: Report | None = None,
) -> RunResult:
    """Evidence to result."""
    evidence = finished.evidence
    out = finished.stdout.data if finished.stdout else b""
    err = finished.stderr.data if finished.stderr else b""
    unstarted = evidence.exit_code is None
    case = Case(
        evidence=evidence,
        confined=settled is not None,
        diagnosis=diagnosis,
        message=escape(err.decode("utf-8", "replace").strip()[-QUOTED:]) if unstarted else "",
        timeout=order.policy.timeout,
    )
    outcome = classify(case)
    egress = order.policy.egress
    refused = network_denials(report, egress)
    files, more = written(before, start)
    denials = (
        find_denials(
            outcome,
            egress=egress,
            streams=(err, out),
            quote=escape,
            refused=refused,
            reached=limits_reached(evidence, files, order.policy.file_size),
            value_of=lambda key: limit_text(order.policy, key),
        )
        if settled
        else ()
    )
    return RunResult(
        outcome=outcome.outcome,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        returncode=outcome.returncode,
        reason=outcome.reason,
        started=outcome.started,
        denied=bool(denials),
        denials=denials,
        stdout=out,
        stderr=err,
        stdout_truncated=bool(finished.stdout and finished.stdout.truncated),
        stderr_truncated=bool(finished.stderr and finished.stderr.truncated),
        stdout_bytes=finished.stdout.total if finished.stdout else 0,
        stderr_bytes=finished.stderr.total if finished.stderr else 0,
        egress=report.egress if report is not None else (),
        egress_dropped=report.dropped if report is not None else None,
        files_written=files,
        enforcement=settled.level if settled else "none",
        degraded=tuple(f"{each.name}: {each.detail}" for each in settled.missing) if settled else (),
        notes=(*still_true(notes, evidence), *more, *(report.notes if report is not None else ())),
        usage=used(evidence, outcome),
        duration=finished.duration,
        policy=order.policy,
        argv=order.request.argv,
        rule=outcome.rule,
        changes=None,
        requests=report.requests if report is not None else (),
    )


def used(evidence: Evidence, outcome: Outcome) -> Usage:
    """Where the run had a cgroup, by the kernel's figures for all of it; else by what its processes left behind."""
    counted = dict(evidence.counted)
    cpu = counted["cpu"] / 1_000_000 if "cpu" in counted else evidence.cpu
    return Usage(
        cpu, counted.get("peak", evidence.peak), evidence.processes or int(outcome.started), bool(evidence.cgroup)
    )


def limits_reached(
    evidence: Evidence, files: Sequence[WrittenFile] | None, file_size: int | None
) -> dict[str, str]:
    """Limits that were reached, and what was seen: the kernel's counters, looks from outside, files of the full size."""
    found = dict(evidence.reached)
    if evidence.crowd:
        found["limits.processes"] = f"{evidence.crowd} processes and threads at once"
    counted = dict(evidence.counted)
    if counted.get("oom"):
        found["limits.memory"] = "all together needed more, and the kernel ended them"
    if counted.get("forks_refused"):
        found["limits.processes"] = f"the kernel refused {counted['forks_refused']} more"
    if files and file_size is not None and (path := of_full_size(files, file_size)):
        found["limits.file_size"] = f"{path!r} is as large as that"
    return found


def of_full_size(files: Sequence[WrittenFile], size: int) -> str:
    """A written file at the limit: the kernel cuts a write there."""
    for file in files[:MOST_LOOKED_AT]:
        try:
            info = os.lstat(file.path)
        except OSError:
            continue
        if file.kind != "deleted" and info.st_size == size and info.st_mode & KIND == REGULAR:
            return file.path
    return ""


def limit_text(policy: Resolved, key: str) -> str:
    """The value of a limit as a policy file has it."""
    from stockade.policies.fields import ATTRIBUTES, render_values

    return str(render_values({key: getattr(policy, ATTRIBUTES[key])})[key])


def still_true(notes: tuple[str, ...], evidence: Evidence) -> tuple[str, ...]:
    """A cgroup binds root's processes too."""
    from stockade.sandbox.plan import UNBOUND

    return tuple(note for note in notes if note != UNBOUND or not evidence.cgroup)


def network_denials(report: Report | None, kind: str) -> list[tuple[str, str, str]]:
    if report is None:
        return []
    from stockade.netns.egress import denials

    return denials(report.egress, kind)


def written(
    before: Manifest | None, start: Confinement | None
) -> tuple[tuple[WrittenFile, ...] | None, tuple[str, ...]]:
    """Files written, and what to know about the list. None: not recorded. A read-only view leaves nothing to write."""
    if start is None:
        return None, ()
    if before is None:
        return (), ()
    from stockade.sandbox import writes

    after = writes.take(start.plan.writable)
    if not (before.complete and after.complete):
        return None, ("files written are not known: the writable directories hold too many files",)
    # The program could not touch these places: a stand-in that came or went there is another run's.
    return tuple(file for file in writes.changed(before, after) if file.path not in start.plan.stubs), ()
