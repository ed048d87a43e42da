"""What can go wrong, in the words of the person who has to mend it.

StockadeError
  RequestError         the call itself is wrong (also a ValueError)
  PolicyError          a policy can't be read, contradicts itself or asks for what can't be honoured
  SandboxUnavailable   the run was refused: this host can't give what the policy asks for
  RunnerFailed         the sandbox itself failed; raised only by run(..., check=True)
  EscalationRefused    a wider mode was asked for, and not allowed
  NotApplied           what a run captured could not be applied to the workspace
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class StockadeError(Exception):
    """``message`` says "could not <verb> <object>: <cause>", ``remedy`` the next step (or is empty)."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n{self.remedy}" if self.remedy else self.message


class RequestError(StockadeError, ValueError):
    """The command, directory, environment or an option of this call can't be used. Nothing was run."""


class PolicyError(StockadeError):
    """A policy can't be read or honoured. Nothing was run."""


class SandboxUnavailable(StockadeError):
    """The run was refused because the host can't enforce the policy. Nothing was run.

    ``mode`` is the mode in force (``auto`` or ``strict``); ``missing`` names the capabilities that are not there.
    ``result`` is what is known of a call that began, and whose sandbox failed; None when none did.
    """

    code = "SANDBOX_UNAVAILABLE"

    def __init__(
        self, message: str, *, mode: str, missing: tuple[str, ...] = (), remedy: str = "", result: Any = None
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.mode = mode
        self.missing = missing
        self.result = result


class EscalationRefused(StockadeError):
    """A call asked for a wider mode than its tool has, and was not allowed it. Nothing was run. ``mode`` was asked for."""

    code = "ESCALATION_REFUSED"

    def __init__(self, message: str, *, mode: str, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.mode = mode


class RunnerFailed(StockadeError):
    """The sandbox failed before, or instead of, the command. ``result`` is the whole RunResult."""

    def __init__(self, message: str, *, result: Any, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.result = result


class NotApplied(StockadeError):
    """The changes that a run captured were not applied. ``conflicts`` (``path``, ``reason``) is what stood in the way."""

    def __init__(self, message: str, *, conflicts: tuple[Any, ...] = (), remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.conflicts = conflicts
