"""A review as text for a terminal (pure): the verdict, the worst findings, what was not reviewed, on one screen."""

from __future__ import annotations

from stockade.policies.record import Record
from stockade.sandbox.cli.style import paint
from stockade.sandbox.review.foreign import counted, fitted, line, listed
from stockade.sandbox.review.model import SEVERITIES
from stockade.sandbox.review.summary import rank, summarise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stockade.sandbox.review.model import Review, ReviewFinding
    from stockade.sandbox.review.summary import Summary

COLOURS = {"critical": "red", "high": "red", "medium": "yellow", "low": "cyan", "info": "dim"}
VERDICT_COLOURS = {"bad": "red", "incomplete": "yellow", "attention": "yellow", "clean": "green", "empty": "yellow"}
MOST_LEFT_OUT = 3
MOST_PROBLEMS = 2
INDENT = 10
"""Columns of the widest severity, and two."""


class Row(Record):
    """Findings that say the same of the same handler."""

    finding: ReviewFinding
    times: int


def render(review: Review, *, on: bool = False, width: int = 100, height: int = 24) -> str:
    """The review in at most ``height`` lines of ``width`` columns, worst first; what finds no room is counted.

    on: whether to use colours.
    """
    summary = summarise(review)
    head, tail = list(heading(review, summary, on)), list(ending(review, summary, on))
    rows = grouped(summary.findings)
    body = list(fill(rows, max(2, height - len(head) - len(tail)), on, width))
    return "".join(f"{shortened(each, width)}\n" for each in (*head, *body, *tail))


def shortened(text: str, width: int) -> str:
    """Cut to the width, unless it has colours: such lines were fitted where they were made."""
    return text if "\x1b" in text else fitted(text, width)


def heading(review: Review, summary: Summary, on: bool) -> Iterator[str]:
    colour = VERDICT_COLOURS[summary.verdict]
    yield f"{paint(summary.headline, colour, on)}: {line(review.path, 60)}"
    yield f"{summary.detail}"
    runs = counted(summary.runs, "run")
    failed = f" ({summary.failed_runs:,} came to nothing)" if summary.failed_runs else ""
    yield f"{counted(len(review.handlers), 'handler')}, {runs}{failed}, {review.duration:.1f} s"


def ending(review: Review, summary: Summary, on: bool) -> Iterator[str]:
    for name, why in summary.not_reviewed[:MOST_LEFT_OUT]:
        yield f"not reviewed: {line(name, 60)}: {line(why, 120)}"
    if len(summary.not_reviewed) > MOST_LEFT_OUT:
        yield f"not reviewed: and {len(summary.not_reviewed) - MOST_LEFT_OUT:,} more"
    for problem in review.problems[:MOST_PROBLEMS]:
        yield f"note: {line(problem)}"
    if len(review.problems) > MOST_PROBLEMS:
        yield f"note: and {len(review.problems) - MOST_PROBLEMS:,} more"
    if review.exercises and not review.read_method:
        yield paint("Reads of credentials could not be observed here.", "dim", on)
    if review.findings:
        yield paint("--html FILE writes the whole report, --json the document.", "dim", on)


def grouped(findings: Sequence[ReviewFinding]) -> list[Row]:
    """Equal ones together, in order of the first."""
    met: dict[tuple[str, ...], list[ReviewFinding]] = {}
    for each in findings:
        met.setdefault((each.severity, each.rule, each.title, each.handler), []).append(each)
    return [Row(each[0], len(each)) for each in met.values()]


def fill(rows: Sequence[Row], room: int, on: bool, width: int) -> Iterator[str]:
    """One line for each, and for the worst of them two of detail, as long as there is room."""
    if not rows:
        return
    most = len(rows) if len(rows) <= room else room - 1
    spare = room - most - (most < len(rows))
    for row in rows[:most]:
        yield told(row, on, width)
        for detail in details(row.finding)[: max(0, spare)]:
            spare -= 1
            yield " " * INDENT + detail
    if most < len(rows):
        yield f"and {rest(rows[most:])}"


def told(row: Row, on: bool, width: int) -> str:
    severity = row.finding.severity
    times = f" ({row.times:,} times)" if row.times > 1 else ""
    said = f"{line(row.finding.handler, 60)} {line(row.finding.title, 120)}{times}"
    name = fitted(line(severity), INDENT - 2).ljust(INDENT)
    return paint(name, COLOURS.get(severity, "red"), on) + fitted(said, width - INDENT)


def details(finding: ReviewFinding) -> list[str]:
    """Where it is, and what it rests on. Each begins with a word of ours: a CI job takes lines for commands that
    begin with ``::``."""
    place = f"{finding.file}:{finding.line}" if finding.line else finding.file
    found = [f"at {line(place)}"] if place else []
    for each in finding.evidence[:1]:
        found.append(f"{line(each.kind)}: {line(' '.join(each.text.split()))}")
    return found


def rest(rows: Sequence[Row]) -> str:
    """``3 more: 1 high and 2 low``."""
    counts = [sum(row.times for row in rows if rank(row.finding.severity) == at) for at in range(len(SEVERITIES))]
    names = [f"{count:,} {name}" for count, name in zip(counts, SEVERITIES, strict=True) if count]
    return f"{sum(counts):,} more: {listed(names)}"
