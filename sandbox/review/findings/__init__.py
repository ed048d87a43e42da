"""From what handlers did to what it means (pure): every rule looks at every handler; no finding without evidence."""

from __future__ import annotations

from stockade.sandbox.review.findings import answers, files, programs, refused, secrets, text, traffic
from stockade.sandbox.review.findings.rules import RULES
from stockade.sandbox.review.findings.seen import gathered, seen
from stockade.sandbox.review.model import SEVERITIES, ReviewFinding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from stockade.sandbox.review.findings.seen import Found, Seen
    from stockade.sandbox.review.model import Exercise, Handler

LOOKS = (traffic.look, secrets.look, files.look, programs.look, answers.look, text.look, refused.look)
UNREAD: Mapping[str, str] = {}


def find(
    handlers: Iterable[Handler],
    exercises: Iterable[Exercise],
    *,
    not_reviewed: Iterable[tuple[str, str]] = (),
    sources: Mapping[str, str] = UNREAD,
    root: str = "",
) -> list[ReviewFinding]:
    """What the runs and the texts of handlers show, the worst first; each rule once for each handler.

    not_reviewed: handlers (by label) about which nothing can be said, and why: no finding comes from their runs, only
        from their text.
    sources: the texts of scripts by their path in the reviewed tree, to look for lines in.
    root: the reviewed tree: places in it are told from there.
    """
    runs = list(exercises)
    unknown = {label for label, _why in not_reviewed}
    found: list[ReviewFinding] = []
    for handler in handlers:
        known = seen(handler, () if handler.label in unknown else runs, sources, root)
        found += [put(each, known) for each in combined(looked(known))]
    order = list(RULES)
    return sorted(found, key=lambda each: (SEVERITIES.index(each.severity), order.index(each.rule), each.handler))


def looked(known: Seen) -> Iterator[Found]:
    for look in LOOKS:
        yield from look(known)


def combined(found: Iterable[Found]) -> list[Found]:
    """One for each rule: as bad as the worst of them, with what that one says first."""
    by_rule: dict[str, Found] = {}
    for each in found:
        other = by_rule.get(each.rule)
        by_rule[each.rule] = each if other is None else together(other, each)
    return [each for each in by_rule.values() if each.evidence]


def together(one: Found, two: Found) -> Found:
    worst, other = sorted((one, two), key=lambda each: SEVERITIES.index(severity_of(each)))
    return worst.replace(
        evidence=gathered((*worst.evidence, *other.evidence)),
        severity=severity_of(worst),
        needles=(*worst.needles, *other.needles),
    )


def severity_of(found: Found) -> str:
    return found.severity or RULES[found.rule].severity


def put(found: Found, known: Seen) -> ReviewFinding:
    """The finding in words, with the place in the reviewed files that it is about."""
    rule = RULES[found.rule]
    file, line = place_in(found, known)
    return ReviewFinding(
        rule=rule.id,
        severity=severity_of(found),
        title=found.title or rule.title,
        handler=known.handler.label,
        event=known.handler.spec.event,
        evidence=found.evidence,
        meaning=rule.meaning,
        remedy=rule.remedy,
        file=file,
        line=line,
    )


def place_in(found: Found, known: Seen) -> tuple[str, int]:
    """The line that evidence names, else the first in its scripts that has one of the needles, else the script."""
    for each in found.evidence:
        if each.file and each.line:
            return each.file, each.line
    for needle in filter(lambda text: len(text) > 1, found.needles):
        for path, source in known.sources.items():
            at = source.find(needle)
            if at >= 0:
                return path, source.count("\n", 0, at) + 1
    inside = [path for path in known.handler.scripts if not path.startswith("/")]
    return (inside[0], 1) if inside else (known.relative(known.handler.spec.source), known.handler.spec.line)
