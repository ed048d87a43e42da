"""What changed in behaviour between two versions of a tree (pure): two reviews in, differences out."""

from __future__ import annotations

import re

from stockade.policies.record import Record
from stockade.sandbox.review.model import SEVERITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from stockade.netns.egress import EgressAttempt
    from stockade.sandbox.review.model import Exercise, Review, ReviewFinding

SCHEMA = "stockade.review-compare/1"
KINDS = ("sends", "contacts", "opens", "files", "runs", "leaves", "answers", "scripts")
"""What a behaviour is about, the worst first."""
LONG_LABEL = re.compile(r"[^.\s/:]{24,}")
"""What is made of random letters looks different each time, and is the same behaviour."""


class Change(Record):
    """One thing that a handler does in one of the versions only."""

    handler: str
    kind: str
    old: str
    """Empty: it is new."""
    new: str
    """Empty: it does so no more."""


class Graver(Record):
    """A finding that both versions have, of another severity."""

    old: ReviewFinding
    new: ReviewFinding


class Comparison(Record):
    """What is different between two versions. Handlers are told apart by their labels."""

    old: str
    new: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    appeared: tuple[ReviewFinding, ...]
    """Findings of the new version alone, or that are graver there; the worst first."""
    gone: tuple[ReviewFinding, ...]
    regraded: tuple[Graver, ...]
    changes: tuple[Change, ...]
    unknown: tuple[tuple[str, str], ...]
    """Handlers that could not be exercised in one of them, and why: nothing is known of their changes."""

    @property
    def same(self) -> bool:
        """Whether nothing was seen to differ, and everything could be compared."""
        return not (self.added or self.removed or self.appeared or self.gone or self.changes or self.unknown)

    def to_json(self) -> dict[str, Any]:
        from stockade.sandbox.result import plain

        return {"schema": SCHEMA, **plain(self.as_dict()), "same": self.same}


def compare(old: Review, new: Review) -> Comparison:
    """The differences between two reviews, the worst first."""
    before, after = keyed(old.findings), keyed(new.findings)
    both = [key for key in after if key in before]
    regraded = [Graver(before[key], after[key]) for key in both if before[key].severity != after[key].severity]
    graver = [each.new for each in regraded if rank(each.new) < rank(each.old)]
    appeared = [*(after[key] for key in after if key not in before), *graver]
    labels_old, labels_new = labels(old), labels(new)
    unknown = dict((*old.not_reviewed, *new.not_reviewed))
    shared = [label for label in labels_old if label in labels_new and label not in unknown]
    return Comparison(
        old=old.path,
        new=new.path,
        added=tuple(label for label in labels_new if label not in labels_old),
        removed=tuple(label for label in labels_old if label not in labels_new),
        appeared=tuple(sorted(appeared, key=rank)),
        gone=tuple(before[key] for key in before if key not in after),
        regraded=tuple(regraded),
        changes=tuple(change for label in shared for change in changes(label, old, new)),
        unknown=tuple(unknown.items()),
    )


def keyed(findings: Iterable[ReviewFinding]) -> dict[tuple[str, str], ReviewFinding]:
    return {(each.handler, each.rule): each for each in findings}


def rank(finding: ReviewFinding) -> int:
    return SEVERITIES.index(finding.severity)


def labels(review: Review) -> list[str]:
    return [each.label for each in review.handlers]


def changes(label: str, old: Review, new: Review) -> Iterator[Change]:
    """What one handler does in one version only, and answers that are others now."""
    before, after = behaviour(label, old), behaviour(label, new)
    for kind in KINDS:
        if kind == "answers":
            yield from answers(label, old, new)
            continue
        one, two = before.get(kind, {}), after.get(kind, {})
        yield from (Change(label, kind, "", text) for text in two if text not in one)
        yield from (Change(label, kind, text, "") for text in one if text not in two)


def behaviour(label: str, review: Review) -> dict[str, dict[str, None]]:
    """Texts of what a handler did, by kind, without what differs from run to run."""
    found: dict[str, dict[str, None]] = {}
    for run in runs_of(label, review):
        for kind, text in acts(run):
            found.setdefault(kind, {})[text] = None
    for handler in review.handlers:
        if handler.label == label:
            found["scripts"] = dict.fromkeys(relative(handler.scripts))
    return found


def relative(paths: Iterable[str]) -> list[str]:
    """Scripts of the tree: those elsewhere are the same ones, or lie where the tree lies."""
    return [path for path in paths if not path.startswith("/")]


def runs_of(label: str, review: Review) -> list[Exercise]:
    return [run for run in review.exercises if run.handler == label and not run.failed]


def acts(run: Exercise) -> Iterator[tuple[str, str]]:
    for sighting in run.sightings:
        yield "sends", f"{sighting.canary} ({sighting.encoding}) in {sighting.where}"
    for attempt in run.egress:
        yield "contacts", contact(attempt)
    for name in run.reads:
        yield "opens", name
    for touched in run.touched:
        if touched.area != "tmp":
            yield "files", f"{touched.kind} {shortened(touched.path)}"
    for command in run.commands:
        yield "runs", program(command)
    if run.left_running:
        yield "leaves", "processes that go on running"


def contact(attempt: EgressAttempt) -> str:
    port = f":{attempt.port}" if attempt.port else ""
    return f"{attempt.protocol} {shortened(attempt.host)}{port}"


def shortened(text: str) -> str:
    return LONG_LABEL.sub("(letters)", text)


def program(command: str) -> str:
    """The program of a command line: its arguments may have the event in them."""
    word = command.split(maxsplit=1)[0] if command.split() else ""
    return word.rpartition("/")[2] or word


def answers(label: str, old: Review, new: Review) -> Iterator[Change]:
    """Cases that both were given, and that got other answers."""
    before, after = given(label, old), given(label, new)
    for key in before:
        if key in after and before[key] != after[key]:
            case, kind = key
            where = "" if kind == "record" else " without a network"
            one, two = " or ".join(before[key]), " or ".join(after[key])
            yield Change(label, "answers", f"{case}{where}: {one}", f"{case}{where}: {two}")


def given(label: str, review: Review) -> dict[tuple[str, str], tuple[str, ...]]:
    """Every answer to a case, in an order of their own: a handler that answers at will does so in both."""
    found: dict[tuple[str, str], set[str]] = {}
    for run in runs_of(label, review):
        found.setdefault((run.case, run.egress_kind), set()).add(answer(run))
    return {key: tuple(sorted(texts)) for key, texts in found.items()}


def answer(run: Exercise) -> str:
    how = f"exit {run.exit_code}" if run.outcome == "exited" else run.outcome.replace("_", " ")
    return f"{how}, {run.host_decision or 'no objection'}"
