"""Means to refuse, and falls over its own feet first."""

import json
import sys

event = json.load(sys.stdin)
if "rm -rf" in event["tool_input"]["command"]:
    print(json.dumps({"decision": "block", "reason": RULES["rm"]}))  # noqa: F821 (that is the fault)
