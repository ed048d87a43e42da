"""A review as SARIF 2.1.0 (pure), for code scanning services and editors; places are files of the reviewed tree.

Texts are plain, never markdown. A reader of SARIF still looks for placeholders (``{0}``) and links (``[a](b)``) in
them, so that foreign text is kept from having any.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from urllib.parse import quote

from stockade.policies.record import Record
from stockade.sandbox.review.findings.rules import RULES
from stockade.sandbox.review.foreign import cell, line
from stockade.sandbox.review.summary import rank, summarise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from stockade.sandbox.review.model import Evidence, Review, ReviewFinding
    from stockade.sandbox.review.summary import Summary

VERSION = "2.1.0"
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {"critical": "error", "high": "error", "medium": "warning", "low": "note", "info": "note"}
SCORES = ("9.5", "8.0", "5.5", "3.0", "0.0")
"""By severity, worst first, on the scale that code scanning services use."""
ROOT = "%SRCROOT%"
"""The name that readers know for the root of the checkout."""
MOST_TEXT = 1000
TAG = re.compile(r"<(?=[A-Za-z/!?])")
UNSAFE = {ord(each): f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"}
"""Spelt out in the file, so that it can stand in a page's script too."""


class Places(Record):
    """Where the files lie, for whoever reads the report."""

    root: str
    """The reviewed directory; of a single file, the one that it lies in."""
    prefix: str
    """Its path from the root of the checkout."""

    def uri(self, file: str) -> str:
        """A relative reference, or empty for what is not in the reviewed tree."""
        if os.path.isabs(file):
            file = os.path.relpath(file, self.root) if os.path.isabs(self.root) else ""
        inside = os.path.normpath(file) if file else "."
        if inside == ".." or inside.startswith(("../", "/")):
            return ""
        whole = os.path.normpath(os.path.join(self.prefix, inside)) if self.prefix else inside
        outside = whole == "." or whole == ".." or whole.startswith(("../", "/"))
        return "" if outside else quote(bytes_of(whole), safe="/-._~")


def bytes_of(path: str) -> bytes:
    """A path as the file system has it; what can't be one is made readable."""
    try:
        return os.fsencode(path)
    except UnicodeEncodeError:
        return path.encode("utf-8", "backslashreplace")


def render(review: Review, *, prefix: str = "") -> str:
    """The text of a SARIF file.

    prefix: the path from the root of the checkout to the reviewed directory, where that is not the root itself.
    """
    summary = summarise(review)
    text = json.dumps(log(review, summary, prefix), indent=1, ensure_ascii=False)
    return text.translate(UNSAFE).encode("utf-8", "replace").decode() + "\n"


def log(review: Review, summary: Summary, prefix: str) -> dict[str, Any]:
    order = list(dict.fromkeys(each.rule for each in summary.findings))
    places = Places(root_of(review), prefix)
    driver: dict[str, Any] = {"name": "stockade", "rules": [rule(each, summary.findings) for each in order]}
    if review.version:
        driver["version"] = line(review.version)
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"description": {"text": "The root of the checkout."}}},
        "invocations": [invocation(review, summary)],
        "results": [result(each, order.index(each.rule), review, places) for each in summary.findings],
    }
    return {"$schema": SCHEMA, "version": VERSION, "runs": [run]}


def root_of(review: Review) -> str:
    """The reviewed directory: of a file that handlers come from or consist of, the one around it."""
    path = review.path
    files = {each.spec.source for each in review.handlers}
    files |= {os.path.join(os.path.dirname(path), each) for handler in review.handlers for each in handler.scripts}
    return os.path.dirname(path) if path in files else path


def rule(name: str, findings: Iterable[ReviewFinding]) -> dict[str, Any]:
    """One kind of finding; its score is that of the worst of them."""
    own = [each for each in findings if each.rule == name]
    known = RULES.get(name)
    title, meaning, remedy = (
        (known.title, known.meaning, known.remedy) if known else (own[0].title, own[0].meaning, own[0].remedy)
    )
    worst = min(rank(each.severity) for each in own)
    return {
        "id": line(name),
        "shortDescription": {"text": said(f"A hook {title}")},
        "fullDescription": {"text": said(meaning)},
        "help": {"text": said(remedy)},
        "defaultConfiguration": {"level": level(own[0].severity)},
        "properties": {"security-severity": SCORES[worst], "tags": ["security", "hooks"]},
    }


def result(finding: ReviewFinding, index: int, review: Review, places: Places) -> dict[str, Any]:
    first = finding.evidence[0].text if finding.evidence else ""
    text = f"{finding.event} handler {finding.handler} {finding.title}."
    found: dict[str, Any] = {
        "ruleId": line(finding.rule),
        "ruleIndex": index,
        "level": level(finding.severity),
        "message": {"text": said(f"{text} {' '.join(first.split())}".strip())},
        "locations": [location(*place_of(finding, review), places)],
        "partialFingerprints": {"stockadeFinding/v1": fingerprint(finding)},
        "properties": {
            "severity": line(finding.severity),
            "handler": cell(finding.handler),
            "event": cell(finding.event),
        },
    }
    related = [about(each, places, at) for at, each in enumerate(finding.evidence, 1)]
    return found | ({"relatedLocations": related} if related else {})


def place_of(finding: ReviewFinding, review: Review) -> tuple[str, int]:
    """Its own place, or that of its handler's entry."""
    if finding.file:
        return finding.file, finding.line
    specs = [each.spec for each in review.handlers if each.label == finding.handler]
    return (specs[0].source, specs[0].line) if specs else ("", 0)


def location(file: str, number: int, places: Places) -> dict[str, Any]:
    """A line of a file; of what lies outside the reviewed tree only the name."""
    uri = places.uri(file)
    if not uri:
        return {"message": {"text": said(f"Outside of the reviewed files: {file}" if file else "No file.")}}
    artifact = {"uri": uri, "uriBaseId": ROOT}
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": max(1, number)}}}


def about(evidence: Evidence, places: Places, number: int) -> dict[str, Any]:
    """A piece of evidence, at its line if it has one."""
    place = location(evidence.file, evidence.line, places) if evidence.file else {}
    during = f" ({evidence.case})" if evidence.case else ""
    text = said(f"{evidence.kind}{during}: {' '.join(evidence.text.split())}")
    return {"id": number, **place, "message": {"text": text}}


def invocation(review: Review, summary: Summary) -> dict[str, Any]:
    """What could not be reviewed stands here as an error, so that no service takes the rest for everything."""
    notices = [notice("error", f"Not reviewed: {name}: {why}") for name, why in summary.not_reviewed]
    notices += [notice("note", f"Limit of this review: {each}") for each in review.problems]
    complete = not summary.not_reviewed
    return {"executionSuccessful": complete, "toolExecutionNotifications": notices}


def notice(severity: str, text: str) -> dict[str, Any]:
    return {"level": severity, "message": {"text": said(text)}}


def level(severity: str) -> str:
    return LEVELS.get(severity, "error")


def fingerprint(finding: ReviewFinding) -> str:
    """The same for the same finding of another run; the evidence, which may differ each time, has no part in it."""
    parts = (finding.rule, finding.handler, finding.event, finding.file, finding.title)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()


def said(text: str) -> str:
    """A plain message without placeholders, links and tags, and no formula when a list of them is exported."""
    shown = TAG.sub("\u2039", cell(text, MOST_TEXT)).replace("](", "] (")
    return shown.replace("{", "{{").replace("}", "}}") or "-"
