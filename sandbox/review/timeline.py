"""The runs of one handler on one scale of time (pure): how long each took, and when it contacted whom."""

from __future__ import annotations

from stockade.policies.record import Record
from stockade.sandbox.review.contacts import destination, named
from stockade.sandbox.review.foreign import counted, line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from stockade.sandbox.review.model import Exercise

MOST_MARKS = 40
"""Contacts drawn of one run."""
LOOKS = {"deny": "deny", "ask": "ask", "defer": "ask", "allow": "allow"}


class Mark(Record):
    """A contact; ``at`` is in percent of the scale."""

    at: str
    title: str
    leaks: bool


class Row(Record):
    """One run."""

    case: str
    note: str
    """``again``, ``no network``: how it differs from the first with the same event."""
    answer: str
    by_host: str
    look: str
    """For its colour; never the only thing that tells."""
    seconds: str
    width: str
    """In percent of the scale."""
    marks: tuple[Mark, ...]
    words: str
    """The drawing in words."""
    run: Exercise


def rows(runs: Sequence[Exercise]) -> tuple[Row, ...]:
    """In the order in which they were made, all on the scale of the longest."""
    scale = max((each.duration for each in runs), default=0.0) or 1.0
    return tuple(row(each, scale) for each in runs)


def row(run: Exercise, scale: float) -> Row:
    known = [destination(each) for each in run.egress]
    leaking = {at for each in run.sightings if each.where == "egress" for at in named(each.place, known)}
    return Row(
        case=run.case,
        note=note(run),
        answer="could not be run" if run.failed else run.decision or "no objection",
        by_host="" if run.failed else run.host_decision or "no objection",
        look="failed" if run.failed else LOOKS.get(run.decision or "", "none"),
        seconds=f"{run.duration:.2f} s",
        width=percent(run.duration, scale),
        marks=tuple(
            Mark(
                percent(each.first_seen or 0.0, scale),
                f"{line(destination(each))} after {each.first_seen or 0.0:.2f} s",
                destination(each) in leaking,
            )
            for each in run.egress[:MOST_MARKS]
        ),
        words=words(run),
        run=run,
    )


def note(run: Exercise) -> str:
    told = ["no network"] if run.egress_kind == "none" else []
    return ", ".join([*(["again"] if run.attempt > 1 else []), *told])


def words(run: Exercise) -> str:
    made = f", {counted(len(run.egress), 'contact')}" if run.egress else ""
    more = f", {len(run.egress) - MOST_MARKS:,} not drawn" if len(run.egress) > MOST_MARKS else ""
    return f"{run.duration:.2f} seconds{made}{more}"


def percent(part: float, whole: float) -> str:
    return f"{min(100.0, max(0.0, 100 * part / whole)):.1f}%"
