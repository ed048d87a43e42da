"""What the kernel tests of hooks share: a project with hooks in it, events, and ways to run them."""

from __future__ import annotations

import json
import os
import sys

from boxes import PYTHON
from clirun import Place

STOCKADE = (sys.executable, "-m", "stockade")

GUARD = """
import json, sys
event = json.load(sys.stdin)
if "rm " in event["tool_input"].get("command", ""):
    print(json.dumps({"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny",
                                             "permissionDecisionReason": "no rm here"}}))
"""

DENY, ALLOW, ASK = (
    {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": verdict, **more}}
    for verdict, more in (("deny", {"permissionDecisionReason": "no"}), ("allow", {}), ("ask", {}))
)


def event(command: str = "ls", **fields: object) -> dict[str, object]:
    """A PreToolUse of Claude Code."""
    return {
        "session_id": "s",
        "hook_event_name": "PreToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": command},
        "tool_use_id": "t",
        **fields,
    }


def as_bytes(told: object) -> bytes:
    return json.dumps(told).encode()


def says(document: object, code: int = 0) -> list[str]:
    """A hook that prints a document (or a text) and ends."""
    text = document if isinstance(document, str) else json.dumps(document)
    return [PYTHON, "-c", f"import sys; sys.stdout.write({text!r}); sys.exit({code})"]


def decision(done) -> str | None:
    """What Claude Code would make of a finished process before a tool runs."""
    from stockade.sandbox.hooks.dialects import claude
    from stockade.sandbox.hooks.model import HookRun

    run = HookRun(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)
    return claude.decode("PreToolUse", run).verdict


def call(place: Place, *words: object, told: object = None, **options: object):
    """``stockade hook``, with an event on stdin."""
    data = told if isinstance(told, bytes) else as_bytes(event() if told is None else told)
    return place.call("hook", *map(str, words), input=data, **options)


def project(place: Place) -> str:
    """A workspace with a guard in it."""
    place.put("ws/guard.py", GUARD)
    return os.path.join(place.ws, "guard.py")
