"""Claude Code's events, and the fields that answers to them may have. Tables alone."""

from __future__ import annotations

from stockade.sandbox.hooks.dialects.answers import words
from stockade.sandbox.hooks.model import EventRule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from stockade.sandbox.hooks.dialects.answers import Fields

STOPS: Mapping[str, bool] = {"blocks": True}
EVENTS: Mapping[str, EventRule] = {
    "SessionStart": EventRule("session_start"),
    "Setup": EventRule("setup"),
    "SessionEnd": EventRule("session_end"),
    "UserPromptSubmit": EventRule("prompt_submit", **STOPS),
    "UserPromptExpansion": EventRule("prompt_submit", **STOPS),
    "PreToolUse": EventRule("pre_tool", **STOPS),
    "PermissionRequest": EventRule("permission_request", **STOPS),
    "PermissionDenied": EventRule("other"),
    "PostToolUse": EventRule("post_tool", feedback=True),
    "PostToolUseFailure": EventRule("post_tool_failure", feedback=True),
    "PostToolBatch": EventRule("post_tool_batch", **STOPS),
    "Notification": EventRule("notification"),
    "MessageDisplay": EventRule("other"),
    "SubagentStart": EventRule("subagent_start"),
    "SubagentStop": EventRule("subagent_stop", **STOPS),
    "Stop": EventRule("stop", **STOPS),
    "StopFailure": EventRule("stop_failure"),
    "TaskCreated": EventRule("other", **STOPS),
    "TaskCompleted": EventRule("other", **STOPS),
    "TeammateIdle": EventRule("other", **STOPS),
    "InstructionsLoaded": EventRule("other"),
    "ConfigChange": EventRule("config_change", **STOPS),
    "CwdChanged": EventRule("other"),
    "DirectoryAdded": EventRule("other"),
    "FileChanged": EventRule("other"),
    "WorktreeCreate": EventRule("other", **STOPS),
    "WorktreeRemove": EventRule("other"),
    "PreCompact": EventRule("pre_compact", **STOPS),
    "PostCompact": EventRule("post_compact"),
    "Elicitation": EventRule("other", **STOPS),
    "ElicitationResult": EventRule("other", **STOPS),
}

TOP: Fields = {
    "continue": bool, "stopReason": str, "suppressOutput": bool, "systemMessage": str, "terminalSequence": str,
    "decision": ("approve", "block"), "reason": str, "hookSpecificOutput": dict,
}  # fmt: skip
CONTEXT: Fields = {"additionalContext": str}
NESTED: Mapping[str, Fields] = {
    "SessionStart": {
        **CONTEXT, "initialUserMessage": str, "sessionTitle": str, "watchPaths": list, "reloadSkills": bool
    },
    "Setup": CONTEXT,
    "UserPromptSubmit": {**CONTEXT, "sessionTitle": str, "suppressOriginalPrompt": bool},
    "UserPromptExpansion": CONTEXT,
    "PreToolUse": {
        **CONTEXT, "permissionDecision": ("allow", "deny", "ask", "defer"), "permissionDecisionReason": str,
        "updatedInput": dict,
    },
    "PermissionRequest": {"decision": dict},
    "PermissionDenied": {"retry": bool},
    "PostToolUse": {
        **CONTEXT, "updatedToolOutput": object, "updatedMCPToolOutput": object, "classifierContext": object
    },
    "PostToolUseFailure": CONTEXT,
    "MessageDisplay": {"displayContent": str},
    "SubagentStart": CONTEXT,
    "SubagentStop": CONTEXT,
    "Stop": CONTEXT,
    "CwdChanged": {"watchPaths": list},
    "FileChanged": {"watchPaths": list},
    "Elicitation": {"action": ("accept", "decline", "cancel"), "content": dict},
    "ElicitationResult": {"action": ("accept", "decline", "cancel"), "content": dict},
}  # fmt: skip
"""What ``hookSpecificOutput`` may hold."""
PERMISSION: Fields = {
    "behavior": ("allow", "deny"), "message": str, "interrupt": bool, "updatedInput": dict, "updatedPermissions": list
}  # fmt: skip
DEEP = frozenset(key for fields in NESTED.values() for key in fields) | set(PERMISSION)
MODELLED = words(
    "additionalContext permissionDecision permissionDecisionReason updatedInput decision updatedToolOutput action"
)
TAKES_BLOCK = words(
    "UserPromptSubmit UserPromptExpansion PostToolUse PostToolUseFailure PostToolBatch SubagentStop Stop TaskCreated"
    " ConfigChange PreCompact"
)
"""Events that honour ``decision: block``."""
TEXT_IS_CONTEXT = frozenset(("SessionStart", "UserPromptSubmit", "UserPromptExpansion"))
TOOL_EVENTS = frozenset(
    ("PreToolUse", "PermissionRequest", "PermissionDenied", "PostToolUse", "PostToolUseFailure")
)
EXIT_ONLY = frozenset(
    ("PreCompact", "TaskCompleted", "TeammateIdle", "WorktreeCreate", "Elicitation", "ElicitationResult")
)
"""Blocking events that are told a deny by exit code 2: their JSON has no word for it, or no room for a reason."""
VERDICTS = {"approve": "allow", "block": "deny", "accept": "allow", "decline": "deny", "cancel": "deny"}
