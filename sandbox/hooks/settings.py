"""What the handlers of one runner have in common, and what a failure of one of them counts for. Pure."""

from __future__ import annotations

from stockade.policies.record import Record
from stockade.sandbox.hooks.judge import FAILED
from stockade.sandbox.hooks.model import HookOutcome, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from stockade.sandbox.hooks.dialects.base import Dialect
    from stockade.sandbox.hooks.http import Ways
    from stockade.sandbox.hooks.model import HookEvent
    from stockade.sandbox.hooks.registry import Entry
    from stockade.sandbox.order import PolicyLike

ON_FAILURE = ("host", "closed")
CLOSED_HOSTS = ("agy",)
"""Hosts that take a failure on an event that can be denied for a deny by themselves."""


class Settings(Record):
    """Set once for a runner."""

    language: Dialect
    policy: PolicyLike = None
    options: Mapping[str, object] = {}
    """The option layer of the policy."""
    trusted: bool = False
    on_failure: str = "host"
    timeout: float = 10.0
    """Seconds for handlers that were registered without one; those of a configuration have their host's."""
    cwd: str = ""
    env: Mapping[str, str] = {}
    ways: Ways | None = None
    plain_warnings: bool = False


def is_trusted(entry: Entry, settings: Settings) -> bool:
    return settings.trusted if entry.trusted is None else entry.trusted


def seconds(entry: Entry, settings: Settings) -> float:
    """How long a handler may take: what it says, else its host's default."""
    return entry.spec.timeout if entry.spec.timeout > 0 else settings.timeout


def failed(code: str, text: str, status: str = "failed") -> HookOutcome:
    """A failure with its cause and no verdict yet."""
    return HookOutcome(source="failure_policy", status=status, problems=(Problem(code, text),))


def by_policy(outcome: HookOutcome, entry: Entry, event: HookEvent, settings: Settings) -> HookOutcome:
    """A failure as a deny where the handler, the runner or the host wants it so; everything else as it is."""
    broken = outcome.status in FAILED and outcome.verdict != "deny"
    return refused(outcome) if broken and closes(entry, event, settings) else outcome


def closes(entry: Entry, event: HookEvent, settings: Settings) -> bool:
    """Whether a failure of this handler counts as a deny."""
    language = settings.language
    host = language.NAME in CLOSED_HOSTS and language.rule(event.name).blocks
    return host or entry.spec.fail_closed or settings.on_failure == "closed"


def refused(outcome: HookOutcome) -> HookOutcome:
    """A failure as a deny, with its cause and nothing else of it."""
    cause = "; ".join(each.text for each in outcome.problems) or "it failed"
    return HookOutcome(
        "deny", reason=cause, source="failure_policy", status=outcome.status, problems=outcome.problems
    )
