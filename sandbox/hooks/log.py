"""Two records for each handler that is started: that it was, and what came of it. For a sink that the caller supplies.

Never the payload, a stream, a header or a command line: what a handler said may repeat what it was told.
"""

from __future__ import annotations

import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from stockade.sandbox.hooks.aggregate import HandlerResult
    from stockade.sandbox.hooks.model import HookEvent
    from stockade.sandbox.hooks.registry import Entry

    Sink = Callable[[dict[str, Any]], object]

SCHEMA = "stockade.hooklog/1"


class Log:
    """Hands records to the sink, one at a time. A sink that fails changes no decision; ``faults`` says how it did."""

    def __init__(self, sink: Sink | None) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self._number = 0
        self.faults: list[str] = []

    def invoked(self, entry: Entry, event: HookEvent) -> str:
        """Record that a handler is started; returns what its other record has as ``id``, too."""
        with self._lock:
            self._number += 1
            number = self._number
        identity = f"{event.session_id[:64]}#{number}" if event.session_id else f"#{number}"
        self._put(head("invoked", identity, entry, event))
        return identity

    def result(self, identity: str, entry: Entry, event: HookEvent, result: HandlerResult) -> None:
        """Record how it ended."""
        self._put({**head("result", identity, entry, event), **ending(result)})

    def _put(self, record: dict[str, Any]) -> None:
        if self._sink is None:
            return
        with self._lock:
            try:
                self._sink(record)
            except Exception as error:
                self.faults.append(f"the log failed: {type(error).__name__}")


def head(record: str, identity: str, entry: Entry, event: HookEvent) -> dict[str, Any]:
    now = time.time()
    stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z"
    return {
        "schema": SCHEMA,
        "record": record,
        "id": identity,
        "time": stamp,
        "hook": entry.label,
        "event": event.name,
        "kind": event.kind,
        "dialect": event.dialect,
        "form": entry.spec.form,
    }


def ending(result: HandlerResult) -> dict[str, Any]:
    """What may be told of an end. ``duration`` is seconds."""
    outcome, run = result.outcome, result.run
    return {
        "duration": round(result.duration, 6),
        "outcome": outcome.status,
        "decision": None if outcome.verdict == "none" else outcome.verdict,
        "halt": outcome.halt,
        "changed": outcome.updated_input is not None or outcome.updated_output is not None,
        "source": outcome.source,
        "cause": result.cause,
        "problems": [each.code for each in outcome.problems],
        "exit_code": None if run is None else run.exit_code,
        "signal": None if run is None else run.signal,
        "enforcement": None if run is None else run.enforcement,
        "detached": result.detached,
    }
