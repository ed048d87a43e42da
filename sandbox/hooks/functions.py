"""Handlers that are functions, or modules with ``handle``: what they are called with, and what they may return.

A function runs in a thread of its own and is left to itself when its time is over: Python can't end a thread. It must
not be used for code that nobody here wrote: it runs in this very process.
"""

from __future__ import annotations

import contextvars
import copy
import threading

from stockade.policies.record import Record
from stockade.sandbox.hooks.model import VERDICTS, HookOutcome, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Handler = Callable[[str, Any], Any]

RESULTS = ("allow", "deny", "modify")
FIELDS = ("result", "reason", "changes")


class Returned(Record):
    """How a call ended. ``error`` is the exception that left it."""

    value: Any = None
    error: BaseException | None = None
    timed_out: bool = False


class Misfit(Exception):
    """What a function returned is no answer."""


def call(handler: Handler, event: str, payload: Any, timeout: float) -> Returned:
    """Call ``handler(event, payload)`` with a copy of the payload, and wait ``timeout`` seconds for it."""
    ended: list[Returned] = []
    context = contextvars.copy_context()

    def work() -> None:
        try:
            ended.append(Returned(context.run(handler, event, copy.deepcopy(payload))))
        except BaseException as error:  # SystemExit too: it is the hook that ends, not this program
            ended.append(Returned(error=error))

    thread = threading.Thread(target=work, name="stockade-hook", daemon=True)
    thread.start()
    thread.join(timeout)
    return ended[0] if ended else Returned(timed_out=True)


def outcome_of(returned: Returned, timeout: float) -> HookOutcome:
    """What a call's end means. Every failure has the status ``failed`` or ``timed_out`` and no verdict."""
    if returned.timed_out:
        return failure("timed_out", f"it did not return within {timeout:g} s", "timed_out")
    if returned.error is not None:
        error = returned.error
        return failure("exception", f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    try:
        return understood(returned.value)
    except Misfit as misfit:
        return failure("not_an_answer", str(misfit))


def failure(code: str, text: str, status: str = "failed") -> HookOutcome:
    return HookOutcome(source="failure_policy", status=status, problems=(Problem(code, text),))


def understood(value: Any) -> HookOutcome:
    """The answer that a returned value is. Raises Misfit."""
    plain = value if isinstance(value, str) else None
    if value is None or value is True or plain == "allow":
        return HookOutcome()
    if value is False or plain == "deny":
        return HookOutcome("deny", source="function", status="blocked")
    if isinstance(value, HookOutcome):
        return checked(value)
    if not isinstance(value, dict):
        discard(value)
        raise Misfit(f"it returned {type(value).__name__}, which is no answer")
    return read(value)


def read(given: Mapping[str, Any]) -> HookOutcome:
    """A mapping ``{"result": ..., "reason": ..., "changes": ...}``."""
    odd = [key for key in given if key not in FIELDS]
    if odd:
        raise Misfit(f"it returned the unknown key {odd[0]!r}")
    result, reason, changes = given.get("result"), given.get("reason"), given.get("changes")
    if result not in RESULTS:
        raise Misfit(f"its result is not one of {', '.join(RESULTS)}")
    if not isinstance(reason, str | None):
        raise Misfit(f"its reason is {type(reason).__name__}, not text")
    if (result == "modify") is not isinstance(changes, dict):
        raise Misfit("it says modify and its changes are no mapping" if result == "modify" else "it has changes")
    return HookOutcome(
        "deny" if result == "deny" else "none",
        reason=reason or "",
        updated_input=copy.deepcopy(changes),
        update_mode="merge" if result == "modify" else "replace",
        source="function",
        status="blocked" if result == "deny" else "ok",
        document=dict(given),
    )


def checked(value: HookOutcome) -> HookOutcome:
    """An outcome that a function made itself."""
    if value.verdict not in VERDICTS or value.update_mode not in ("replace", "merge"):
        raise Misfit(f"its verdict is {value.verdict!r}, its update_mode {value.update_mode!r}")
    if not isinstance(value.reason, str) or not isinstance(value.halt, bool):
        raise Misfit("its reason is no text, or its halt no bool")
    if not all(isinstance(each, tuple) for each in (value.context, value.system_messages, value.extras)):
        raise Misfit("its context, system_messages or extras are no tuples")
    source = value.source if value.source != "none" else "function"
    return value.replace(status="blocked" if value.verdict == "deny" else value.status, source=source)


def discard(value: Any) -> None:
    """A coroutine that nobody awaits would be complained about later, far from here."""
    if hasattr(value, "close") and hasattr(value, "cr_code"):
        value.close()
