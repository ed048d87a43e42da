"""What was done to files (pure): by where they are, and by what stands in the difference."""

from __future__ import annotations

import re

from stockade.sandbox.review.acts import ACTS
from stockade.sandbox.review.findings.places import HARMFUL_GIT, HARMFUL_VARIABLES, OWN_STATE, normal, place_of
from stockade.sandbox.review.findings.seen import Found, gathered, piece
from stockade.sandbox.review.model import SEVERITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stockade.sandbox.review.findings.seen import Seen
    from stockade.sandbox.review.model import Evidence, Exercise, Touched

MOST_DIFF = 400
INTERNAL = re.compile(
    r"(^|/)\.git/(?!(hooks/|config$|info/attributes$))|(^|/)(__pycache__|node_modules|\.venv)/|\.pyc$"
)
"""What programs keep in a project for themselves."""

AFTER_WRITING = ("post_tool", "post_tool_failure", "post_tool_batch", "file_edit")
NAMED = tuple(
    each.input["path"].removeprefix("{project}/") for each in ACTS if "{project}/" in each.input.get("path", "")
)
"""What the corpus writes and reads in the project."""


def look(seen: Seen) -> Iterator[Found]:
    """A finding for each rule, as bad as the worst of its files."""
    hits: dict[str, list[tuple[str, Exercise, Touched, str]]] = {}
    for run in seen.runs:
        for touched in run.touched:
            verdict = judged(touched) or unasked(seen, touched)
            if verdict is not None:
                rule, severity, about = verdict
                hits.setdefault(rule, []).append((severity, run, touched, about))
    for rule, found in hits.items():
        found.sort(key=lambda hit: SEVERITIES.index(hit[0]))
        yield Found(
            rule,
            gathered(changed(run, touched, about) for _severity, run, touched, about in found),
            severity=found[0][0],
            needles=tuple(touched.path.rpartition("/")[2] for _severity, _run, touched, _about in found),
        )


def unasked(seen: Seen, touched: Touched) -> tuple[str, str, str] | None:
    """Files of the project other than the one that was just written; what it makes anew counts less."""
    if touched.area != "workspace" or touched.kind == "deleted" or INTERNAL.search(touched.path):
        return None
    if seen.rule.kind in AFTER_WRITING and touched.path in NAMED:
        return None
    return "changes-files", "medium" if touched.kind == "changed" else "low", "a file of the project"


def judged(touched: Touched) -> tuple[str, str, str] | None:
    """Rule, severity and what the file is; None where nothing is wrong with it."""
    if touched.area == "tmp":
        return None
    place = place_of(touched.path, touched.area)
    if place is not None:
        return place.rule, worse(place.rule, place.severity, touched), place.about
    if touched.kind == "deleted" and touched.path.endswith(".git/HEAD"):
        return "deletes-files", "high", "the project's history"
    if touched.area == "workspace":
        deleted = touched.kind == "deleted" and not INTERNAL.search(touched.path)
        return ("deletes-files", "medium", "a file of the project") if deleted else None
    if OWN_STATE.search(normal(touched.path, touched.area)):
        return "writes-outside", "info", "a program's own records"
    return "writes-outside", "high" if touched.kind == "deleted" else "medium", "outside of the workspace"


def worse(rule: str, severity: str, touched: Touched) -> str:
    """What is written decides too: git's configuration can run programs, a variable can be PATH."""
    if rule == "persists" and severity == "high" and HARMFUL_GIT.search(touched.diff):
        return "critical"
    if rule == "env-files" and severity in ("medium", "high") and HARMFUL_VARIABLES.search(touched.diff):
        return "high"
    return severity


def changed(run: Exercise, touched: Touched, about: str) -> Evidence:
    head = f"{touched.kind} {touched.path} ({about})"
    if not touched.diff:
        return piece("file", head, run)
    return piece("diff", f"{head}\n{touched.diff[:MOST_DIFF]}", run)
