"""What a review knows: handlers, what each did for each event, what that means. Pure values."""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.netns.egress import EgressAttempt
    from stockade.sandbox.hooks.finding import Finding as StaticFinding
    from stockade.sandbox.hooks.model import HookSpec

SEVERITIES = ("critical", "high", "medium", "low", "info")
"""Worst first."""


class Handler(Record):
    """One handler of the reviewed tree."""

    label: str
    """Unique in the review, and the same for the same handler in another version: event, file and position."""
    spec: HookSpec
    scripts: tuple[str, ...] = ()
    """Files that it executes, relative to the reviewed root where they lie in it."""
    language: str = ""
    static: tuple[StaticFinding, ...] = ()


class Case(Record):
    """One event of the corpus."""

    name: str
    """``benign-shell``, ``destructive-shell``, ``write-credential`` ..."""
    event: str
    """The host's own name."""
    payload: Any
    about: str = ""
    """What it is, in words."""


class Sighting(Record):
    """A canary's token where it does not belong."""

    canary: str
    """Which one: ``ssh-key``, ``aws-credentials``, ``dotenv`` ..."""
    where: str
    """``egress``, ``stdout``, ``stderr``, ``file`` or ``argv``."""
    encoding: str
    """``plain``, ``base64``, ``hex``, ``url``, ``reversed``, ``gzip``, ``split`` ..."""
    place: str
    """Of a request its destination, of a file its path, of a command line the program."""
    excerpt: str = ""
    """What was around it, the token itself masked."""


class Touched(Record):
    """A file of the box that a handler made, changed or removed."""

    path: str
    kind: str
    """``created``, ``changed`` or ``deleted``."""
    diff: str = ""
    """A unified diff where it is text, capped."""
    area: str = ""
    """``workspace``, ``home``, ``tmp`` or ``elsewhere``."""


class Exercise(Record):
    """One run of one handler for one event."""

    handler: str
    """Its label."""
    case: str
    event: str
    attempt: int = 1
    """The same event is given more than once: is the answer the same?"""
    egress_kind: str = "record"
    """``record``, or ``none``: does it answer differently when it can reach nothing?"""
    outcome: str = ""
    exit_code: int | None = None
    reason: str = ""
    decision: str | None = None
    """As judged (confined); None: no objection."""
    host_decision: str | None = None
    """As its own host would read it."""
    across: tuple[tuple[str, str], ...] = ()
    """Dialect and what it would make of the same end."""
    duration: float = 0.0
    enforcement: str = ""
    egress: tuple[EgressAttempt, ...] = ()
    touched: tuple[Touched, ...] = ()
    reads: tuple[str, ...] = ()
    """Canaries whose file was opened."""
    read_method: str = ""
    """``strace`` or ``atime``: how reads were observed; empty when they were not."""
    opened: tuple[str, ...] = ()
    """Paths that it opened or tried to (with strace), libraries and locales of the system left out."""
    commands: tuple[str, ...] = ()
    """Programs that it executed, as command lines (with strace)."""
    sightings: tuple[Sighting, ...] = ()
    denials: tuple[Any, ...] = ()
    left_running: int = 0
    """Processes that were still there when the handler itself had ended."""
    answered: tuple[str, ...] = ()
    """Codes of what is odd about its answer."""
    stdout: str = ""
    stderr: str = ""
    """Capped, for evidence."""
    incomplete: str = ""
    """Why what was seen of it is not everything (it ended what watched it, sent or wrote too much); empty when it is."""
    failed: str = ""
    """Why it could not be exercised; empty when it was."""


class Evidence(Record):
    """What a finding rests on."""

    kind: str
    """``request``, ``file``, ``diff``, ``line``, ``command``, ``output``, ``answer`` or ``denial``."""
    text: str
    file: str = ""
    """Of the reviewed tree, relative."""
    line: int = 0
    case: str = ""


class ReviewFinding(Record):
    """One thing that a handler does."""

    rule: str
    severity: str
    title: str
    handler: str
    event: str
    evidence: tuple[Evidence, ...]
    meaning: str
    remedy: str
    file: str = ""
    line: int = 0


class Review(Record):
    """Everything that a review came to."""

    path: str
    handlers: tuple[Handler, ...] = ()
    exercises: tuple[Exercise, ...] = ()
    findings: tuple[ReviewFinding, ...] = ()
    """Worst first."""
    not_reviewed: tuple[tuple[str, str], ...] = ()
    """Handler (or file) and why: never the same as clean."""
    problems: tuple[str, ...] = ()
    canaries: tuple[tuple[str, str], ...] = ()
    """Each canary and where it was: a path (``~/...``, or relative to the sample project) or ``$VARIABLE``."""
    read_method: str = ""
    duration: float = 0.0
    version: str = ""
