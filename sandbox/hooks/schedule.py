"""Which handlers run for an event, in which order, and which of them at once. Pure.

Lower priority first, equal ones in order of registration. Where the host runs its handlers at once, those of its
configuration do so here too; handlers that were registered one by one run one by one.
"""

from __future__ import annotations

from stockade.policies.record import Record
from stockade.sandbox.hooks.commands import COPIED
from stockade.sandbox.hooks.registry import RUNNABLE, Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from stockade.sandbox.hooks.model import HookEvent

    Mismatch = Callable[[Entry, HookEvent], tuple[str, tuple[str, ...]]]
    """Why a handler of the event does not match it (empty when it does), and notes."""

AT_ONCE = ("claude", "codex", "gemini")
"""Hosts that run handlers of one event at once; of the others it is known, or assumed, that they don't."""
STOPS_AT_DENY = ("nous",)


class Skipped(Record):
    """A handler that did not run, and why."""

    label: str
    why: str


class Plan(Record):
    """``steps`` run one after another, the handlers of one step at once; ``detached`` ones beside them."""

    steps: tuple[tuple[Entry, ...], ...] = ()
    detached: tuple[Entry, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(each for step in self.steps for each in step)


def plan(entries: Sequence[Entry], event: HookEvent, mismatch: Mismatch, *, sequential: bool | None = None) -> Plan:
    """``sequential``: True runs all one by one, False those of the configuration at once, None as the host does."""
    chosen: list[Entry] = []
    skipped: list[Skipped] = []
    notes: list[str] = []
    for entry in entries:
        why = why_not(entry, event)
        if not why:
            why, more = mismatch(entry, event)
            notes += more
        if why:
            skipped.append(Skipped(entry.label, why))
        else:
            chosen.append(entry)
    chosen, twice = deduplicated(chosen, event.dialect)
    ordered = sorted(chosen, key=lambda entry: entry.spec.priority)  # stable
    detached = [entry for entry in ordered if entry.spec.asynchronous and entry.function is None]
    waited = [entry for entry in ordered if entry not in detached]
    at_once = event.dialect in AT_ONCE if sequential is None else not sequential
    if sequential is None and any(entry.spec.sequential for entry in waited):
        at_once = False
    return Plan(steps(waited, at_once), tuple(detached), (*skipped, *twice), tuple(notes))


def why_not(entry: Entry, event: HookEvent) -> str:
    """Why a handler is not one of this event, or can't run at all; the matcher is not looked at."""
    spec = entry.spec
    if not is_for(entry, event):
        return f"it is for {spec.event or spec.kind}, not for {event.name}"
    if not spec.enabled:
        return "it is disabled"
    if spec.form not in RUNNABLE:
        return f"handlers of the type {spec.form} are not run here"
    return ""


def is_for(entry: Entry, event: HookEvent) -> bool:
    if entry.any_event:
        return True
    return entry.spec.kind == event.kind if entry.by_kind else entry.spec.event == event.name


def deduplicated(entries: Iterable[Entry], dialect: str) -> tuple[list[Entry], list[Skipped]]:
    """Each handler once where the host does so."""
    seen: dict[object, Entry] = {}
    kept: list[Entry] = []
    twice: list[Skipped] = []
    for entry in entries:
        key = identity(entry, dialect) if entry.together else None
        if key is not None and key in seen:
            twice.append(Skipped(entry.label, f"it is the same as {seen[key].label}"))
            continue
        if key is not None:
            seen[key] = entry
        kept.append(entry)
    return kept, twice


def identity(entry: Entry, dialect: str) -> object:
    """What makes two handlers the same one for their host; None where each runs."""
    spec = entry.spec
    if dialect == "claude" and spec.provenance not in COPIED:
        return (spec.form, spec.command, spec.url)
    return (spec.name, spec.command) if dialect == "gemini" else None


def steps(entries: Sequence[Entry], at_once: bool) -> tuple[tuple[Entry, ...], ...]:
    """Neighbours of one priority that may run together stand in one step."""
    made: list[list[Entry]] = []
    for entry in entries:
        last = made[-1][-1] if made else None
        joins = at_once and last is not None and entry.together and last.together
        if joins and last is not None and last.spec.priority == entry.spec.priority:
            made[-1].append(entry)
        else:
            made.append([entry])
    return tuple(tuple(step) for step in made)
