"""A comparison as text for a terminal (pure): what is new first, then what is no more."""

from __future__ import annotations

from stockade.sandbox.cli.style import escape, paint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stockade.sandbox.review.compare import Change, Comparison
    from stockade.sandbox.review.model import ReviewFinding

MOST_TEXT = 160
MOST_CHANGES = 60
COLOURS = {"critical": "red", "high": "red", "medium": "yellow", "low": "cyan", "info": "dim"}
VERBS = {
    "sends": "carries away",
    "contacts": "contacts",
    "opens": "opens",
    "files": "files:",
    "runs": "runs",
    "leaves": "leaves",
    "scripts": "has the script",
}


def lines(found: Comparison, on: bool = False) -> Iterator[str]:
    """One line for each difference. ``on``: with colours."""
    if found.same:
        yield paint("No change in behaviour was seen.", "green", on)
    for label in found.added:
        yield f"+ {paint('handler', 'bold', on)} {shown(label)}"
    for label in found.removed:
        yield f"- {paint('handler', 'bold', on)} {shown(label)}"
    graver = {(each.new.handler, each.new.rule): each.old.severity for each in found.regraded}
    for finding in found.appeared:
        before = graver.get((finding.handler, finding.rule), "")
        yield f"+ {told(finding, on)}" + (f" (was {before})" if before else "")
    for finding in found.gone:
        yield f"- {told(finding, on)}"
    for change in found.changes[:MOST_CHANGES]:
        yield from changed(change)
    if len(found.changes) > MOST_CHANGES:
        yield f"and {len(found.changes) - MOST_CHANGES} more changes"
    for label, why in found.unknown:
        yield f"? {shown(label)} could not be compared: {shown(why)}"


def told(finding: ReviewFinding, on: bool) -> str:
    name = paint(finding.severity, COLOURS.get(finding.severity, "red"), on)
    rest = f": {shown(finding.evidence[0].text)}" if finding.evidence else ""
    return f"{name} {shown(finding.handler)} {shown(finding.title)}{rest}"


def changed(change: Change) -> Iterator[str]:
    label = shown(change.handler)
    if change.kind == "answers":
        yield f"~ {label} {shown(change.old)}  ->  {shown(change.new)}"
    elif change.new:
        yield f"+ {label} {VERBS[change.kind]} {shown(change.new)}"
    else:
        yield f"- {label} {VERBS[change.kind]} {shown(change.old)}"


def shown(text: str) -> str:
    """Foreign text, harmless and on one line."""
    plain = escape(" ".join(text.split()))
    return plain if len(plain) <= MOST_TEXT else plain[: MOST_TEXT - 3] + "..."
