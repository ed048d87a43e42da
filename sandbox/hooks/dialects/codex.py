"""OpenAI Codex: what its hooks read, what it makes of their answers, what it is told. Pure.

It reads stdout on exit code 0 alone and rejects the whole answer for one key that it does not know; exit code 2
blocks only with something on stderr. Whatever it rejects lets the tool run.
"""

from __future__ import annotations

from stockade.sandbox.hooks import jsontext
from stockade.sandbox.hooks.dialects import answers, payloads, replies
from stockade.sandbox.hooks.model import EventRule, HookEvent, HookOutcome, Problem, Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stockade.sandbox.hooks.model import HookRun, MergedOutcome

NAME = "codex"
PROVISIONAL = False
DEFAULT_TIMEOUT = 600.0
"""That of SessionEnd is 1 second."""
TIMEOUT_UNIT = 1.0
VARIABLES = ("PLUGIN_ROOT", "PLUGIN_DATA", "CLAUDE_PLUGIN_ROOT", "CLAUDE_PLUGIN_DATA")

EVENTS: Mapping[str, EventRule] = {
    "SessionStart": EventRule("session_start"),
    "SessionEnd": EventRule("session_end"),
    "SubagentStart": EventRule("subagent_start"),
    "SubagentStop": EventRule("subagent_stop", True),
    "UserPromptSubmit": EventRule("prompt_submit", True),
    "PreToolUse": EventRule("pre_tool", True),
    "PermissionRequest": EventRule("permission_request", True),
    "PostToolUse": EventRule("post_tool", feedback=True),
    "PreCompact": EventRule("pre_compact", True),
    "PostCompact": EventRule("post_compact"),
    "Stop": EventRule("stop", True),
    "Interrupt": EventRule("other"),
    "StopFailure": EventRule("stop_failure"),
}

TOP: answers.Fields = {"continue": bool, "stopReason": str, "suppressOutput": bool, "systemMessage": str}
BLOCK: answers.Fields = {"decision": ("approve", "block"), "reason": str}
CONTEXT: answers.Fields = {"hookEventName": tuple(EVENTS), "additionalContext": str}
NESTED: Mapping[str, answers.Fields] = {
    "SessionStart": CONTEXT,
    "SubagentStart": CONTEXT,
    "UserPromptSubmit": CONTEXT,
    "PostToolUse": CONTEXT,
    "PreToolUse": {
        **CONTEXT, "permissionDecision": ("allow", "deny", "ask"), "permissionDecisionReason": str,
        "updatedInput": object,
    },
    "PermissionRequest": {"hookEventName": tuple(EVENTS), "decision": dict},
}  # fmt: skip
"""What ``hookSpecificOutput`` may hold; other events have none."""
PERMISSION: answers.Fields = {
    "behavior": ("allow", "deny"), "message": str, "interrupt": bool, "updatedInput": object,
    "updatedPermissions": object,
}  # fmt: skip
DEEP = frozenset(key for fields in NESTED.values() for key in fields) | frozenset(PERMISSION)
TAKES_BLOCK = answers.words("UserPromptSubmit PreToolUse PostToolUse Stop SubagentStop")
TEXT_IS_CONTEXT = answers.words("SessionStart UserPromptSubmit SubagentStart")
TEXT_IS_INVALID = answers.words("Stop SubagentStop")
TOOL_EVENTS = answers.words("PreToolUse PermissionRequest PostToolUse")


def read_event(raw: Mapping[str, Any]) -> HookEvent:
    """A payload in neutral terms. Raises RequestError for what is no event of this host."""
    return payloads.pascal_event(raw, NAME, EVENTS, TOOL_EVENTS)


def rule(name: str) -> EventRule:
    """The rule of an event; that of an unknown one blocks nothing."""
    return EVENTS.get(name, payloads.OTHER)


def payload(event: HookEvent) -> bytes:
    """The JSON that the host writes, without a newline."""
    return payloads.written(event.raw, NAME)


def shell_argv(command: str) -> tuple[str, ...]:
    """A login shell: the host takes the user's own ($SHELL), here it is bash."""
    return ("/bin/bash", "-lc", command)


def variables(event: HookEvent, root: str) -> dict[str, str]:
    """The plugin's directory in both spellings."""
    return {"PLUGIN_ROOT": root, "CLAUDE_PLUGIN_ROOT": root} if root else {}


# --- what an end means ---------------------------------------------------------------------------------------


def decode(name: str, run: HookRun) -> HookOutcome:
    """What Codex makes of a run."""
    nothing = answers.no_answer(run)
    if nothing is not None:
        return nothing
    said = answers.read(run, text_counts=name in TEXT_IS_CONTEXT)
    if run.exit_code == 2 and (rule(name).blocks or rule(name).feedback):
        made = answers.blocked(run, said.problems)
        return made if run.stderr.strip() else answers.failed(run, made.problems)
    if run.exit_code != 0 or said.form in ("array", "broken"):
        return answers.failed(run, said.problems, document=said.value)
    if said.form == "object":
        return understood(name, run, said)
    if name in TEXT_IS_INVALID and said.form != "empty":
        return answers.failed(run, said.problems)
    context = (said.text,) if said.text and name in TEXT_IS_CONTEXT else ()
    return HookOutcome(context=context, problems=said.problems, document=said.value)


def understood(name: str, run: HookRun, said: jsontext.Document) -> HookOutcome:
    """The answer that an object is, or the failure that the host takes it for."""
    given: Mapping[str, Any] = said.value
    nested: Mapping[str, Any] = given.get("hookSpecificOutput") or {}
    wrong = strictly(name, given, nested)
    permission = (nested.get("decision") or {}) if name == "PermissionRequest" and not wrong else {}
    verdict, reason = ("none", "") if wrong else decided(given, nested, permission)
    wrong += [] if wrong else unsupported(name, given, nested, permission)
    if verdict == "deny" and not reason.strip() and name != "PermissionRequest":
        wrong.append(Problem("missing_reason", "it denies and gives no reason, so the host rejects it"))
    repeated = said.has("duplicate_key")
    if wrong or repeated:
        return answers.failed(run, (*said.problems, *wrong), document=given)
    halt = given.get("continue") is False
    odd = [Problem("missing_reason", "it denies and gives no reason")] if verdict == "deny" and not reason else []
    if nested and nested["hookEventName"] != name:
        odd.append(Problem("wrong_event_name", f"hookEventName is {nested['hookEventName']}, the event is {name}"))
    return HookOutcome(
        verdict,
        halt,
        (given.get("stopReason") or "") if halt else "",
        reason,
        answers.texts(nested.get("additionalContext")),
        answers.texts(given.get("systemMessage")),
        nested.get("updatedInput"),
        extras=(("suppressOutput", given["suppressOutput"]),) if given.get("suppressOutput") is not None else (),
        source="json" if verdict != "none" or halt else "none",
        status="blocked" if verdict == "deny" else "ok",
        problems=(*said.problems, *odd),
        document=given,
    )


def strictly(name: str, given: Mapping[str, Any], nested: Any) -> list[Problem]:
    """Everything that does not fit the host's types: unknown keys, too."""
    top: dict[str, type | tuple[str, ...]] = dict(TOP)
    top |= BLOCK if name in TAKES_BLOCK else {}
    top |= {"hookSpecificOutput": dict} if name in NESTED else {}
    wrong, unknown = answers.misfits(given, top, DEEP | {"hookSpecificOutput"} | set(BLOCK), nulls=True)
    if nested and isinstance(nested, dict) and name in NESTED:
        for part, fields in ((nested, NESTED[name]), (nested.get("decision"), PERMISSION)):
            if isinstance(part, dict):
                more_wrong, more_unknown = answers.misfits(part, fields, DEEP | set(top), nulls=True)
                wrong, unknown = wrong + more_wrong, unknown + more_unknown
    if (
        given.get("hookSpecificOutput") is not None
        and isinstance(nested, dict)
        and nested.get("hookEventName") is None
    ):
        wrong.append(Problem("missing_event_name", "hookSpecificOutput has no hookEventName"))
    return wrong + unknown


def decided(given: Mapping[str, Any], nested: Mapping[str, Any], permission: Mapping[str, Any]) -> tuple[str, str]:
    if nested.get("permissionDecision") is not None:
        return nested["permissionDecision"], nested.get("permissionDecisionReason") or ""
    if permission:
        return permission.get("behavior") or "none", permission.get("message") or ""
    return ("deny", given.get("reason") or "") if given.get("decision") == "block" else ("none", "")


def unsupported(
    name: str, given: Mapping[str, Any], nested: Mapping[str, Any], permission: Mapping[str, Any]
) -> list[Problem]:
    """What fits the types and is rejected all the same."""
    decision, change = nested.get("permissionDecision"), nested.get("updatedInput")
    rejected: list[str] = ["decision: approve"] if given.get("decision") == "approve" else []
    if name == "PreToolUse":
        rejected += ["continue: false"] if given.get("continue") is False else []
        rejected += ["stopReason"] if given.get("stopReason") is not None else []
        rejected += ["suppressOutput"] if given.get("suppressOutput") else []
        rejected += ["permissionDecision: ask"] if decision == "ask" else []
        rejected += (
            ["permissionDecision: allow without updatedInput"] if decision == "allow" and change is None else []
        )
        rejected += (
            ["updatedInput without permissionDecision: allow"] if change is not None and decision != "allow" else []
        )
    if permission:
        rejected += [key for key in ("updatedInput", "updatedPermissions") if permission.get(key) is not None]
        rejected += ["interrupt"] if permission.get("interrupt") else []
        rejected += ["a decision without behavior"] if permission.get("behavior") is None else []
    return [Problem("unsupported", f"Codex rejects {each}") for each in rejected]


# --- what it is told -----------------------------------------------------------------------------------------


def encode(name: str, merged: MergedOutcome) -> Reply:
    """The answer in Codex's words, without a key that it does not know.

    What it has no word for becomes the nearest stricter one: ask, defer, and a halt before a tool or a permission a
    deny (an ask on a permission request no decision, so that the user is asked); a change that can't be told a deny.
    A deny of an event that nothing can block any more is an error of the hook, one of an unknown event exit code 2.
    """
    return replies.told(name, merged, say)


def say(name: str, merged: MergedOutcome) -> Reply:
    if name in ("PreToolUse", "PermissionRequest"):
        merged = replies.without_halt(merged)
    if merged.verdict != "deny" and (unsaid := untold(name, merged)):
        merged = replies.refusal(merged, unsaid)
    verdict = "deny" if merged.verdict in ("ask", "defer") else merged.verdict
    if name == "PermissionRequest" and merged.verdict in ("ask", "defer"):
        verdict = "none"
    top, lost = said_at_top(name, verdict, merged)
    if verdict == "deny" and (name == "PreCompact" or name not in EVENTS):
        return Reply(b"", replies.lines(replies.stated(merged.reason), *merged.system_messages) + lost, 2)
    if verdict == "deny" and not (rule(name).blocks or rule(name).feedback):
        return replies.too_late(merged, top, lost)
    nested = said_nested(name, verdict, merged)
    if nested:
        top["hookSpecificOutput"] = {"hookEventName": name, **nested}
    return replies.document(top, stderr=lost)


def untold(name: str, merged: MergedOutcome) -> str:
    """Why this can't be told as it is, or an empty text."""
    if merged.updated_output is not None:
        return "a hook changed the output, which Codex can't be told"
    if merged.updated_input is None:
        return ""
    if name != "PreToolUse":
        return f"a hook changed the input of {name}, which Codex can't be told"
    if merged.verdict != "allow" or merged.update_mode != "replace":
        return "a hook changed the input, which Codex can only be told whole and together with an allow"
    return ""


def said_at_top(name: str, verdict: str, merged: MergedOutcome) -> tuple[dict[str, Any], bytes]:
    """The fields at the top; and what only stderr is left for."""
    top: dict[str, Any] = {}
    if merged.halt:
        top |= {"continue": False, "stopReason": replies.stated(merged.stop_reason or merged.reason)}
    if merged.system_messages:
        top["systemMessage"] = replies.joined(merged.system_messages, "\n")
    if verdict == "deny" and name in TAKES_BLOCK and name != "PreToolUse":
        top |= {"decision": "block", "reason": replies.stated(merged.reason)}
    return top, b"" if "additionalContext" in NESTED.get(name, ()) else replies.lines(*merged.context)


def said_nested(name: str, verdict: str, merged: MergedOutcome) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    if merged.context and "additionalContext" in NESTED.get(name, ()):
        nested["additionalContext"] = replies.joined(merged.context)
    reason = replies.stated(merged.reason)
    if name == "PreToolUse" and verdict == "deny":
        nested |= {"permissionDecision": "deny", "permissionDecisionReason": reason}
    elif name == "PreToolUse" and merged.updated_input is not None:
        nested |= {"permissionDecision": "allow", "updatedInput": merged.updated_input}
    if name == "PermissionRequest" and verdict != "none":
        nested["decision"] = {"behavior": verdict} | ({"message": reason} if verdict == "deny" else {})
    return nested
