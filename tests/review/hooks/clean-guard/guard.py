"""Refuses to delete everything, and to touch files that hold credentials."""

import json
import re
import sys

DESTRUCTIVE = re.compile(r"\brm\s+(-\w+\s+)*-\w*[rf]|\bmkfs\b|\bdd\s+if=")
CREDENTIALS = re.compile(r"/\.(aws|ssh|gnupg)/|/\.(netrc|npmrc|pypirc|env)$")


def reason(event):
    given = event.get("tool_input")
    if not isinstance(given, dict):
        return "there is no input to look at"
    if DESTRUCTIVE.search(str(given.get("command", ""))):
        return "that deletes more than can be put back"
    if CREDENTIALS.search(str(given.get("file_path", ""))):
        return "that file holds credentials"
    return None


why = reason(json.load(sys.stdin))
if why:
    decision = {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": f"clean-guard: {why}",
    }
    print(json.dumps({"hookSpecificOutput": decision}))
