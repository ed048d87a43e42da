"""What all handlers of one event come to, for a caller in Python. Pure."""

from __future__ import annotations

from stockade.policies.record import Record
from stockade.sandbox.hooks import changes as rewriting
from stockade.sandbox.hooks.merge import merge
from stockade.sandbox.hooks.merge import rewritten as rewrites
from stockade.sandbox.hooks.model import HookOutcome, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stockade.sandbox.hooks.model import EventRule, HookEvent, HookRun, HookSpec, MergedOutcome
    from stockade.sandbox.hooks.runhook import HookResult
    from stockade.sandbox.hooks.schedule import Skipped

SCHEMA = "stockade.hooks/1"


class HandlerResult(Record):
    """What came of one handler."""

    label: str
    spec: HookSpec
    outcome: HookOutcome
    """What counts, by the failure policy and the confined rule."""
    cause: str = ""
    """Why it failed or denied, in our own words: nothing of what it was told or said."""
    duration: float = 0.0
    run: HookRun | None = None
    """How it ended, for a command."""
    result: HookResult | None = None
    """All of it, for a command."""
    detached: bool = False

    def to_json(self) -> dict[str, Any]:
        from stockade.sandbox.result import plain

        own: dict[str, Any] = {"label": self.label, "event": self.spec.event, "source": self.spec.source}
        own |= {
            "pointer": self.spec.pointer,
            "form": self.spec.form,
            "duration": self.duration,
            "cause": self.cause,
        }
        told = self.result.to_json() if self.result is not None else None
        return {**own, "outcome": plain(self.outcome), "detached": self.detached, "result": told}


class Aggregate(Record):
    """What is to become of the event.

    ``decision`` is ``deny``, ``modify`` or ``allow``. It is ``deny`` also where a handler halts the turn, and where one
    wants the user to be asked or the call to be deferred: a caller who can ask looks at ``merged.verdict``.
    """

    decision: str
    reason: str
    changes: dict[str, Any]
    """Fields of the tool's input (of the payload, where there is no tool) that are other than they were."""
    payload: Any
    """The payload with all changes: what to go on with."""
    merged: MergedOutcome
    results: tuple[HandlerResult, ...]
    """In order of priority, then of configuration; never of ending."""
    blocking: bool
    """Whether the host lets this event be denied."""
    skipped: tuple[Skipped, ...] = ()
    detached: tuple[str, ...] = ()
    """Labels of handlers that were started beside this and decide nothing."""
    notes: tuple[str, ...] = ()

    @property
    def halts_turn(self) -> bool:
        """Whether the agent's whole turn is to end."""
        return self.merged.halt

    @property
    def context(self) -> tuple[str, ...]:
        """Text for the model."""
        return self.merged.context

    def to_json(self) -> dict[str, Any]:
        """A document of plain values, ``"schema": "stockade.hooks/1"``."""
        from stockade.sandbox.result import plain

        names = ("decision", "reason", "changes", "payload", "blocking", "halts_turn", "context", "notes")
        fields = {name: plain(getattr(self, name)) for name in names}
        merged = {name: plain(value) for name, value in self.merged.as_dict().items() if name != "outcomes"}
        return {
            "schema": SCHEMA,
            **fields,
            "merged": merged,
            "results": [each.to_json() for each in self.results],
            "skipped": [plain(each) for each in self.skipped],
            "detached": list(self.detached),
        }


def merged_of(steps: Sequence[Sequence[HandlerResult]], *, on_conflict: str) -> MergedOutcome:
    """One outcome out of all. Rewrites of handlers that did not run at once are no conflict: the later one saw them."""
    results = [each for step in steps for each in step]
    outcomes = [each.outcome for each in results]
    whole = merge(outcomes, labels=[each.label for each in results])
    at_once: list[Problem] = []
    done = 0
    for step in steps:
        before = [HookOutcome()] * done
        at_once += rewrites([*before, *(each.outcome for each in step)])[2]
        done += len(step)
    others = [each for each in whole.conflicts if each not in rewrites(outcomes)[2]]
    conflicts = (*at_once, *others)
    if not conflicts or on_conflict == "last" or whole.verdict == "deny":
        return whole.replace(conflicts=conflicts)
    reason = "; ".join(each.text for each in conflicts)
    return whole.replace(
        verdict="deny", reason=reason, winners=(), updated_input=None, updated_output=None, conflicts=conflicts
    )


def aggregate(
    before: HookEvent,
    after: HookEvent,
    steps: Sequence[Sequence[HandlerResult]],
    rule: EventRule,
    *,
    on_conflict: str = "last",
    skipped: Sequence[Skipped] = (),
    detached: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Aggregate:
    """``after`` is the event as the handlers left it; it counts only where nobody denied."""
    merged = merged_of(steps, on_conflict=on_conflict)
    decision, reason = decided(merged)
    kept = after if merged.updated_input is not None and decision == "modify" else before
    return Aggregate(
        decision,
        reason,
        changed(before, kept),
        payload_of(kept),
        rewriting.fitted(merged, before, after),
        tuple(each for step in steps for each in step),
        rule.blocks,
        tuple(skipped),
        tuple(detached),
        tuple(notes),
    )


def decided(merged: MergedOutcome) -> tuple[str, str]:
    if merged.verdict == "deny":
        return "deny", merged.reason
    if merged.halt:
        return "deny", merged.stop_reason or "a hook halts the turn"
    if merged.verdict in ("ask", "defer"):
        wants = "the user to be asked" if merged.verdict == "ask" else "the call to be deferred"
        return "deny", f"a hook wants {wants}: {merged.reason}" if merged.reason else f"a hook wants {wants}"
    if merged.updated_input is not None or merged.updated_output is not None:
        return "modify", merged.reason
    return "allow", merged.reason


def changed(before: HookEvent, after: HookEvent) -> dict[str, Any]:
    old, new = rewriting.current(before), rewriting.current(after)
    both = isinstance(old, dict) and isinstance(new, dict)
    return rewriting.difference(old, new) if both else {}


def payload_of(event: HookEvent) -> Any:
    """The payload as its caller knows it: without Nous's envelope."""
    return event.raw.get("payload") if event.dialect == "nous" else event.raw
