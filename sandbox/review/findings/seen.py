"""One handler with all its runs, and what follows from them about its kind (pure). What every rule looks at."""

from __future__ import annotations

import re

from stockade.policies.record import Record
from stockade.sandbox.hooks.dialects import NAMES, dialect
from stockade.sandbox.review.model import Evidence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from stockade.sandbox.hooks.model import EventRule
    from stockade.sandbox.review.model import Exercise, Handler

MOST_TEXT = 600
MOST_EVIDENCE = 8
GUARDING = re.compile(
    r"guard|block|den(y|ies)|protect|prevent|forbid|safe|secur|firewall|gate|polic(y|e)|danger|restrict|enforce",
    re.IGNORECASE,
)
GATES = ("pre_tool", "permission_request", "prompt_submit", "file_read", "file_edit", "pre_model")
DANGEROUS = re.compile(r"destruct|credential|secret|danger|exfil|force-push|curl-pipe|rm-", re.IGNORECASE)
"""Names of cases that a guard is there for."""

IN_CI = "@ci"
"""Ends the name of a case that was given with the variables of a build server."""


class Found(Record):
    """What a rule has seen, before it is put into words."""

    rule: str
    evidence: tuple[Evidence, ...]
    severity: str = ""
    """Where it is not the rule's own."""
    title: str = ""
    needles: tuple[str, ...] = ()
    """Texts by which the place in its scripts can be found."""


class Seen(Record):
    """A handler, the runs in which it was really exercised, and its own text."""

    handler: Handler
    runs: tuple[Exercise, ...]
    rule: EventRule
    sources: Mapping[str, str]
    """Of its scripts, by their path in the reviewed tree."""
    root: str = ""
    """The reviewed tree."""

    @property
    def recorded(self) -> tuple[Exercise, ...]:
        """The runs in the recorder: those that had a network, as far as they could tell."""
        return tuple(run for run in self.runs if run.egress_kind == "record")

    @property
    def gate(self) -> bool:
        """Whether it stands before something that can be refused."""
        return self.rule.blocks and self.rule.kind in GATES

    @property
    def refuses(self) -> bool:
        """Whether it ever refused by its host's own protocol."""
        return any(run.host_decision in ("deny", "ask") for run in self.runs)

    @property
    def named_guard(self) -> bool:
        """Whether its name, its command or its scripts call it a guard."""
        spec = self.handler.spec
        command = spec.command if isinstance(spec.command, str) else " ".join(spec.command)
        return any(GUARDING.search(text) for text in (spec.name, command, *self.handler.scripts))

    def relative(self, path: str) -> str:
        """A path as reports have it: from the root where it lies below that."""
        top = self.root.rstrip("/") + "/"
        return path[len(top) :] if self.root and path.startswith(top) else path

    @property
    def guard(self) -> bool:
        return self.gate and (self.refuses or self.named_guard)


def seen(handler: Handler, exercises: Iterable[Exercise], sources: Mapping[str, str], root: str = "") -> Seen:
    """What is known of one handler. Runs that came to nothing (``failed``) are no evidence of anything."""
    runs = tuple(run for run in exercises if run.handler == handler.label and not run.failed)
    own = {path: text for path, text in sources.items() if path in handler.scripts}
    language = dialect(handler.spec.dialect if handler.spec.dialect in NAMES else "claude")
    return Seen(handler, runs, language.rule(handler.spec.event), own, root)


def dangerous(run: Exercise) -> bool:
    """Whether its event is one that a guard should refuse."""
    return bool(DANGEROUS.search(run.case))


def piece(kind: str, text: str, run: Exercise | None = None, *, file: str = "", line: int = 0) -> Evidence:
    return Evidence(kind, text[:MOST_TEXT], file, line, run.case if run is not None else "")


def gathered(pieces: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Each once, whatever case it comes from, and not more than can be read."""
    return tuple(first_of_each(pieces))[:MOST_EVIDENCE]


def first_of_each(pieces: Iterable[Evidence]) -> Iterator[Evidence]:
    met: set[tuple[object, ...]] = set()
    for each in pieces:
        key = (each.kind, each.text, each.file, each.line)
        if key not in met:
            met.add(key)
            yield each
