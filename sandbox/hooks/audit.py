"""What ``--observe`` writes: one line of JSON for each hook that ran. Never the event's payload or the streams."""

from __future__ import annotations

import os
import time

from stockade.policies.errors import StockadeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.sandbox.hooks.model import HookEvent
    from stockade.sandbox.hooks.runhook import HookResult

SCHEMA = "stockade.audit/1"
NAME = "hooks.jsonl"
KEPT = (
    "dialect", "event", "argv", "outcome", "exit_code", "signal", "reason", "started", "decision", "blocked", "duration",
    "enforcement", "degraded", "denied", "denials", "egress", "egress_dropped", "files_written", "notes", "usage",
    "stdout_bytes", "stderr_bytes", "withheld",
)  # fmt: skip


def entry(event: HookEvent, result: HookResult) -> dict[str, Any]:
    """The line of one run. ``decision`` is the host's reading: nothing was made stricter."""
    from stockade.sandbox.result import plain

    told = {name: plain(getattr(result, name)) for name in KEPT}
    host = result.host_answer
    told |= {
        "decision": None if host.verdict == "none" else host.verdict,
        "blocked": host.verdict == "deny",
        "would_be": None if result.answer.verdict == "none" else result.answer.verdict,
        "problems": [each.code for each in host.problems],
    }
    for attempt in told["egress"]:
        attempt.pop("data", None)
    tool = event.tool.name if event.tool is not None else None
    head = {"schema": SCHEMA, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "tool": tool}
    return {**head, "session_id": event.session_id, **told}


def default_path() -> str:
    """``$XDG_STATE_HOME/stockade/hooks.jsonl`` or ``~/.local/state/stockade/hooks.jsonl``."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):
        base = os.path.join(os.environ.get("HOME", "") or "/", ".local", "state")
    return os.path.join(base, "stockade", NAME)


def append(path: str, line: dict[str, Any]) -> None:
    """Add one line in a single write. Raises StockadeError."""
    from stockade.sandbox.hooks.jsontext import dumps

    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        if path == default_path():
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        fd = os.open(path, flags, 0o600)
        try:
            os.write(fd, dumps(line) + b"\n")
        finally:
            os.close(fd)
    except OSError as error:
        raise StockadeError(
            f"could not write the audit file {path!r}: {(error.strerror or str(error)).lower()}",
            remedy="Name another with --observe=FILE.",
        ) from None
