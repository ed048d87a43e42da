"""What a dialect is: a module with these names. Only type checkers load this file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from stockade.sandbox.hooks.model import EventRule, HookEvent, HookOutcome, HookRun, MergedOutcome, Reply


class Dialect(Protocol):
    """A host's hook protocol. All functions are pure."""

    @property
    def NAME(self) -> str:
        """As in ``--dialect``."""

    @property
    def PROVISIONAL(self) -> bool:
        """Whether it rests on others' test notes alone."""

    @property
    def EVENTS(self) -> Mapping[str, EventRule]:
        """The host's events by their own names."""

    @property
    def DEFAULT_TIMEOUT(self) -> float:
        """Seconds for a handler that says nothing."""

    @property
    def TIMEOUT_UNIT(self) -> float:
        """Seconds per unit of the ``timeout`` key of its files: 1.0 or 0.001."""

    @property
    def VARIABLES(self) -> tuple[str, ...]:
        """The host's own environment variables that a hook of it expects: names, or ``PREFIX*``. No secrets, and
        none by which a hook could plant something (``CLAUDE_ENV_FILE``)."""

    def read_event(self, raw: Mapping[str, Any]) -> HookEvent:
        """A payload in neutral terms. Raises RequestError (which field, what is wrong) for what is no event of
        this host; an unknown event of the right shape has kind ``other``."""

    def rule(self, name: str) -> EventRule:
        """The rule of an event; that of an unknown one blocks nothing, and its kind is ``other``."""

    def payload(self, event: HookEvent) -> bytes:
        """The bytes that the host writes to a hook's stdin."""

    def shell_argv(self, command: str) -> tuple[str, ...]:
        """How the host runs a command that is a text."""

    def variables(self, event: HookEvent, root: str) -> dict[str, str]:
        """The variables that the host sets for this event; ``root`` is the hook's plugin directory or empty."""

    def decode(self, name: str, run: HookRun) -> HookOutcome:
        """What the host makes of a run for the event ``name``, confined or not: nothing is made stricter here.

        ``status`` is ``failed`` (``timed_out``, ``not_run`` ...) wherever the host takes the answer for invalid or
        the hook for failed, whatever verdict follows from that; ``problems`` says why.
        """

    def encode(self, name: str, merged: MergedOutcome) -> Reply:
        """The answer in the host's words. A deny of a blocking event is one that the host obeys."""
