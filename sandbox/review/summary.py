"""What a review comes to (pure): one verdict, counts, the findings in order, and what was not reviewed."""

from __future__ import annotations

from stockade.policies.record import Record
from stockade.sandbox.review.foreign import counted, listed
from stockade.sandbox.review.model import SEVERITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.review.model import Review, ReviewFinding

VERDICTS = ("bad", "incomplete", "attention", "clean", "empty")
"""``bad``: something critical or high. ``incomplete``: nothing like that, but not everything was reviewed.
``attention``: only lesser findings. ``clean``: every handler was exercised and nothing was found but remarks.
``empty``: no handler was found."""
GRAVE = ("critical", "high")
NOT_RUN = "it was not run, and the review does not say why"


class Summary(Record):
    """What stands at the top of every report."""

    verdict: str
    headline: str
    """The verdict in words."""
    detail: str
    counts: tuple[tuple[str, int], ...]
    """Findings by severity, worst first, all severities."""
    findings: tuple[ReviewFinding, ...]
    """Worst first."""
    not_reviewed: tuple[tuple[str, str], ...]
    """With those handlers that were never run though nobody says why."""
    runs: int
    failed_runs: int


def summarise(review: Review) -> Summary:
    """The verdict on a review. A handler that was not exercised keeps it from being clean."""
    findings = tuple(sorted(review.findings, key=lambda each: rank(each.severity)))
    counts = tuple(
        (name, sum(rank(each.severity) == at for each in findings)) for at, name in enumerate(SEVERITIES)
    )
    left_out = unreviewed(review)
    failed = sum(bool(each.failed) for each in review.exercises)
    verdict = judged(dict(counts), review, left_out)
    headline, detail = worded(verdict, dict(counts), len(review.handlers), len(left_out))
    if review.problems:
        detail += f" {counted(len(review.problems), 'note')} on the limits of this review."
    return Summary(verdict, headline, detail, counts, findings, left_out, len(review.exercises), failed)


def rank(severity: str) -> int:
    """0 is the worst; so is a severity that is not known."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else 0


def unreviewed(review: Review) -> tuple[tuple[str, str], ...]:
    """What the review says it left out, and every handler of which no run succeeded."""
    told = {name for name, _why in review.not_reviewed}
    ran = {each.handler for each in review.exercises if not each.failed}
    why = {each.handler: each.failed for each in review.exercises if each.failed}
    silent = [each.label for each in review.handlers if each.label not in told and each.label not in ran]
    return (*review.not_reviewed, *((label, why.get(label, NOT_RUN)) for label in silent))


def judged(counts: dict[str, int], review: Review, left_out: tuple[tuple[str, str], ...]) -> str:
    if any(counts[each] for each in GRAVE):
        return "bad"
    if left_out:
        return "incomplete"
    if counts["medium"] or counts["low"]:
        return "attention"
    return "clean" if review.handlers else "empty"


def worded(verdict: str, counts: dict[str, int], handlers: int, left_out: int) -> tuple[str, str]:
    """The headline, and a sentence below it."""
    found = [f"{counts[each]:,} {each}" for each in SEVERITIES if counts[each]]
    told = f"{listed(found)} {'finding' if sum(counts.values()) == 1 else 'findings'}" if found else "no findings"
    missing = (
        f" {counted(left_out, 'entry').replace('entrys', 'entries')} could not be reviewed." if left_out else ""
    )
    texts = {
        "bad": ("Do not install", f"{told}.{missing}"),
        "incomplete": (
            "Not fully reviewed",
            f"{told} in what was reviewed.{missing} That is not the same as clean.",
        ),
        "attention": ("Look before you install", f"{told}; none is high or critical."),
        "clean": ("Nothing found", f"{counted(handlers, 'handler')} exercised; {told}."),
        "empty": ("No hooks found", "There was no handler to review in this path, so nothing was run."),
    }
    headline, detail = texts[verdict]
    return headline, detail[:1].upper() + detail[1:]
