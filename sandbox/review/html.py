"""A review as one HTML file that needs nothing else: no script, no request, opened from anywhere.

The page may load nothing (its content policy says so), and whatever the hooks wrote is text in it: escaped by the
template, with control and invisible characters spelt out before. Reads the template beside it; the rest is pure.
"""

from __future__ import annotations

import base64
import hashlib
import os

from stockade.policies.errors import RequestError
from stockade.policies.record import Record
from stockade.sandbox.review import contacts, filetree, foreign, timeline
from stockade.sandbox.review.model import SEVERITIES
from stockade.sandbox.review.summary import GRAVE, rank, summarise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from jinja2 import Environment

    from stockade.sandbox.review.model import Exercise, Handler, Review, ReviewFinding
    from stockade.sandbox.review.summary import Summary

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
MOST_OPEN = 5
"""Findings that are shown unfolded: the worst."""
SYMBOLS = {"bad": "\u2716", "incomplete": "?", "attention": "!", "clean": "\u2714", "empty": "\u2013"}


class Part(Record):
    """One handler, with its runs."""

    number: int
    handler: Handler
    command: str
    declared: str
    """The file that it stands in, from the reviewed directory."""
    rows: tuple[timeline.Row, ...]
    worst: str
    """The severity of its worst finding; empty without one."""
    findings: int
    unfolded: bool


class Bait(Record):
    """One planted secret, and what became of it."""

    name: str
    place: str
    readers: tuple[str, ...]
    """Handlers that opened it."""
    seen: tuple[str, ...]
    """Where its token turned up."""


def ready() -> None:
    """Raises RequestError where a page could not be made: to be asked before anything is reviewed for one."""
    environment()


def render(review: Review) -> str:
    """The page. Raises RequestError where Jinja2 is not installed."""
    summary = summarise(review)
    style = read("report.css")
    found = contacts.contacts(review)
    values: dict[str, Any] = {
        "style": style,
        "policy": policy_of(style),
        "review": review,
        "summary": summary,
        "symbol": SYMBOLS[summary.verdict],
        "confinement": confinement(review),
        "unfolded": unfolded(summary),
        "parts": parts(review, summary),
        "contacts": found[: contacts.MOST_LISTED],
        "unlisted": max(0, len(found) - contacts.MOST_LISTED),
        "drawing": contacts.drawing(found),
        "trees": filetree.trees(review),
        "baits": baits(review),
    }
    text = environment().get_template("report.html").render(values)
    return text.encode("utf-8", "backslashreplace").decode()


def read(name: str) -> str:
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        return file.read()


def environment() -> Environment:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise RequestError(
            "could not make the HTML report: Jinja2 is not installed", remedy="pip install 'stockade[review]'"
        ) from None
    made = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        line=foreign.line, cell=foreign.cell, block=foreign.block, counted=foreign.counted, known=known
    )
    return made


def policy_of(style: str) -> str:
    """Nothing may be loaded, sent or executed; the one style sheet is known by its hash."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def confinement(review: Review) -> str:
    """How the runs were confined, by the least of them; empty where none came about."""
    levels = {each.enforcement for each in review.exercises if not each.failed}
    if not levels:
        return ""
    if not levels <= {"full", "partial"}:
        return "Not every run was confined."
    how = " as far as this host can confine" if "partial" in levels else ""
    return f"They ran confined{how}, in a network that lets nothing out."


def known(severity: str) -> str:
    """A severity as a class name of the style sheet."""
    return SEVERITIES[rank(severity)]


def unfolded(summary: Summary) -> int:
    """How many findings are unfolded to begin with: grave ones, a few."""
    grave = sum(known(each.severity) in GRAVE for each in summary.findings[:MOST_OPEN])
    return grave or min(1, len(summary.findings))


def parts(review: Review, summary: Summary) -> tuple[Part, ...]:
    """Handlers with their runs, those with the worst findings first."""
    by_label: dict[str, list[ReviewFinding]] = {}
    for finding in summary.findings:
        by_label.setdefault(finding.handler, []).append(finding)
    runs: dict[str, list[Exercise]] = {}
    for run in review.exercises:
        runs.setdefault(run.handler, []).append(run)
    last = len(SEVERITIES)
    order = sorted(
        review.handlers,
        key=lambda each: rank(by_label[each.label][0].severity) if each.label in by_label else last,
    )
    return tuple(
        part(at, each, by_label.get(each.label, []), runs.get(each.label, []), len(order) <= 3).replace(
            declared=each.spec.source.removeprefix(review.path.rstrip("/") + "/")
        )
        for at, each in enumerate(order, 1)
    )


def part(number: int, handler: Handler, found: list[ReviewFinding], runs: list[Exercise], few: bool) -> Part:
    worst = known(found[0].severity) if found else ""
    unfold = few or (worst == "critical" and number <= 3)
    rows = timeline.rows(runs)
    return Part(number, handler, command_of(handler), handler.spec.source, rows, worst, len(found), unfold)


def command_of(handler: Handler) -> str:
    spec = handler.spec
    return spec.url or command_text(spec.command)


def command_text(command: str | tuple[str, ...]) -> str:
    """A command as one would type it, near enough to read."""
    return command if isinstance(command, str) else " ".join(command)


def baits(review: Review) -> tuple[Bait, ...]:
    """The planted secrets, those that got around first."""
    readers: dict[str, dict[str, None]] = {}
    seen: dict[str, dict[str, None]] = {}
    for run in review.exercises:
        for name in run.reads:
            readers.setdefault(name, {})[run.handler] = None
        for each in run.sightings:
            how = "" if each.encoding == "plain" else f", {each.encoding}"
            seen.setdefault(each.canary, {})[f"{each.where}{how}: {each.place}"] = None
    names = {**dict.fromkeys((*readers, *seen), ""), **dict(review.canaries)}
    found = [Bait(name, names[name], tuple(readers.get(name, ())), tuple(seen.get(name, ()))) for name in names]
    return tuple(sorted(found, key=lambda each: (not each.seen, not each.readers)))
