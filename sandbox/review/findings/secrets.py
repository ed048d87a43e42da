"""Credentials that were opened, and tokens of them in other places than the recorder (pure)."""

from __future__ import annotations

import re

from stockade.sandbox.review.canary import EVENT, FILES
from stockade.sandbox.review.findings.seen import Found, dangerous, gathered, piece

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stockade.sandbox.review.findings.seen import Seen
    from stockade.sandbox.review.model import Evidence, Exercise, Sighting

KINDS = {"stdout": "output", "stderr": "output", "file": "file", "argv": "command"}
WORDS = {"stdout": "on stdout", "stderr": "on stderr", "file": "in the file", "argv": "on the command line of"}
GIT_OBJECTS = re.compile(r"(^|/)\.git/(objects|refs|logs|COMMIT_EDITMSG)|^commit\b|\bgit (log|commit)\b")
OWN_TOOLS = {
    "npm": r"\b(npm|npx|pnpm|yarn)\b",
    "netrc": r"\b(git|curl|wget)\b",
    "pypi": r"\b(pip|pip3|uv|twine|poetry)\b",
}
"""Credentials that belong to a tool, which reads them for itself."""

PLACES = {"dotenv": ".env", **{name: path for name, path, _content, _mode in FILES}}
"""By canary: what a script that opens it has in its text."""


def look(seen: Seen) -> Iterator[Found]:
    yield from leaks(seen)
    yield from keeps(seen)
    yield from reads(seen)


def leaks(seen: Seen) -> Iterator[Found]:
    """Tokens in files, output and command lines; critical in a commit, which the next push sends."""
    hits = [
        (run, each)
        for run in seen.runs
        for each in run.sightings
        if each.where != "egress" and each.canary != EVENT
    ]
    if not hits:
        return
    committed = [hit for hit in hits if in_commit(hit[1])]
    hits.sort(key=lambda hit: not in_commit(hit[1]))
    yield Found(
        "leaks-secret",
        gathered(sighted(run, each) for run, each in hits),
        severity="critical" if committed else "",
        title="puts a secret into a commit" if committed else "",
        needles=("commit",) if committed else (),
    )


def keeps(seen: Seen) -> Iterator[Found]:
    """What an event carried, in a file or on a command line: a log, as a rule. Its output may say it again."""
    places = ("file", "argv")
    hits = [
        (run, each) for run in seen.runs for each in run.sightings if each.where in places and each.canary == EVENT
    ]
    if hits:
        pieces = (sighted(run, each) for run, each in hits)
        yield Found("leaks-secret", gathered(pieces), severity="low", title="keeps the secrets that events carry")


def in_commit(sighting: Sighting) -> bool:
    return sighting.where in ("file", "argv") and bool(GIT_OBJECTS.search(sighting.place))


def sighted(run: Exercise, sighting: Sighting) -> Evidence:
    how = "" if sighting.encoding == "plain" else f" ({sighting.encoding})"
    place = f" {sighting.place}" if sighting.where in ("file", "argv") else ""
    excerpt = f": {sighting.excerpt}" if sighting.excerpt else ""
    where = WORDS.get(sighting.where, f"in {sighting.where}")
    return piece(KINDS.get(sighting.where, "output"), f"{sighting.canary}{how} {where}{place}{excerpt}", run)


def reads(seen: Seen) -> Iterator[Found]:
    """High where what was read was seen again, or something was contacted; low where the event or a tool asked for it."""
    hits = [(run, name) for run in seen.runs for name in run.reads]
    if not hits:
        return
    unasked = [hit for hit in hits if not asked(*hit)]
    spread = {each.canary for run in seen.runs for each in run.sightings if each.canary != EVENT}
    # What goes out by TLS can't be looked into: reading and contacting in one run is taken for sending.
    sent = spread & {name for _run, name in unasked} or any(run.egress for run, _name in unasked)
    severity = "low" if not unasked else "high" if sent else ""
    yield Found(
        "reads-secrets",
        gathered(opened(run, name) for run, name in unasked or hits),
        severity=severity,
        needles=tuple(PLACES.get(name, name) for _run, name in hits),
    )


def asked(run: Exercise, canary: str) -> bool:
    """Whether the event was about a secret (a guard may look at it), or the tool ran whose own credential it is."""
    if dangerous(run):
        return True
    tools = next((pattern for start, pattern in OWN_TOOLS.items() if canary.startswith(start)), "")
    return bool(tools) and any(re.search(tools, command) for command in run.commands)


def opened(run: Exercise, canary: str) -> Evidence:
    by = f" (seen by {run.read_method})" if run.read_method else ""
    return piece("file", f"opened {canary}{by}", run)
