"""Evidence to result: classify, look for denials, list what was written."""

from __future__ import annotations

from stockade.sandbox.classify import Case, classify
from stockade.sandbox.denials import find_denials
from stockade.sandbox.result import RunResult, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.netns.lease import Report
    from stockade.policies.capability import Settlement
    from stockade.sandbox.confinement import Confinement
    from stockade.sandbox.engine import Finished
    from stockade.sandbox.order import Order
    from stockade.sandbox.program import Diagnosis
    from stockade.sandbox.writes import Manifest, WrittenFile

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
    from stockade.sandbox.cli.style import escape

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
    denials = (
        find_denials(outcome, egress=egress, streams=(err, out), quote=escape, refused=refused) if settled else ()
    )
    files, more = written(before, start)
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
        notes=(*notes, *more, *(report.notes if report is not None else ())),
        usage=Usage(evidence.cpu, evidence.peak, evidence.processes or int(outcome.started)),
        duration=finished.duration,
        policy=order.policy,
        argv=order.request.argv,
        rule=outcome.rule,
    )


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
