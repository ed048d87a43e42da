"""What each host would make of one and the same end of a hook. Pure; loads every dialect."""

from __future__ import annotations

from stockade.policies.errors import RequestError
from stockade.policies.record import Record
from stockade.policies.text import quoted
from stockade.sandbox.hooks.dialects import NAMES, dialect
from stockade.sandbox.hooks.model import KINDS, HookOutcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.hooks.dialects.base import Dialect
    from stockade.sandbox.hooks.model import HookRun


class Explained(Record):
    """One host's view."""

    dialect: str
    provisional: bool
    event: str
    """The host's own name; empty where it has no such event."""
    effect: str
    """``denied``, ``told`` (too late, but the model reads it), ``asked``, ``deferred``, ``allowed``, ``goes ahead`` or
    ``no such event``."""
    halt: bool = False
    outcome: HookOutcome | None = None


def explain_across(run: HookRun, name_or_kind: str) -> tuple[Explained, ...]:
    """A row per dialect, in their usual order.

    ``name_or_kind`` is a canonical kind (``pre_tool``) or any host's name of an event (``PreToolUse``); each host is
    asked about its own event of that kind. Raises RequestError for a name that no host knows.
    """
    hosts = [dialect(each) for each in NAMES]
    kind = kind_of(name_or_kind, hosts)
    return tuple(explained(host, event_of(host, name_or_kind, kind), run) for host in hosts)


def kind_of(name_or_kind: str, hosts: list[Dialect]) -> str:
    if name_or_kind in KINDS and name_or_kind != "other":
        return name_or_kind
    for host in hosts:
        if name_or_kind in host.EVENTS:
            return host.EVENTS[name_or_kind].kind
    raise RequestError(
        f"could not explain the run: no host has an event {quoted(name_or_kind)}",
        remedy=f"Use a host's name of an event, or one of {', '.join(KINDS[:-1])}.",
    )


def event_of(host: Dialect, name_or_kind: str, kind: str) -> str:
    """The host's event of this very name, else its first one of the kind; empty if it has none."""
    if name_or_kind in host.EVENTS:
        return name_or_kind
    if kind == "other":
        return ""
    return next((name for name, rule in host.EVENTS.items() if rule.kind == kind), "")


def explained(host: Dialect, event: str, run: HookRun) -> Explained:
    if not event:
        return Explained(host.NAME, host.PROVISIONAL, "", "no such event")
    outcome = host.decode(event, run)
    return Explained(host.NAME, host.PROVISIONAL, event, effect(host, event, outcome), outcome.halt, outcome)


def effect(host: Dialect, event: str, outcome: HookOutcome) -> str:
    if outcome.verdict == "deny":
        rule = host.rule(event)
        return "denied" if rule.blocks else "told" if rule.feedback else "goes ahead"
    return {"ask": "asked", "defer": "deferred", "allow": "allowed"}.get(outcome.verdict, "goes ahead")
