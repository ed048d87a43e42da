"""Claude Code: what its hooks read, what it makes of their answers, what it is told. Pure.

A valid JSON object decides on every exit code but 2; exit code 2 blocks whatever the object says; all else lets
the action go ahead.
"""

from __future__ import annotations

from stockade.policies.text import quoted
from stockade.sandbox.hooks.dialects import answers, payloads, replies
from stockade.sandbox.hooks.dialects.claude_fields import (
    DEEP,
    EXIT_ONLY,
    MODELLED,
    NESTED,
    PERMISSION,
    TAKES_BLOCK,
    TEXT_IS_CONTEXT,
    TOOL_EVENTS,
    TOP,
    VERDICTS,
)  # fmt: skip
from stockade.sandbox.hooks.dialects.claude_fields import (
    EVENTS as EVENTS,
)
from stockade.sandbox.hooks.model import HookEvent, HookOutcome, Problem, Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stockade.sandbox.hooks.model import EventRule, HookRun, MergedOutcome

NAME = "claude"
PROVISIONAL = False
DEFAULT_TIMEOUT = 600.0
TIMEOUT_UNIT = 1.0
VARIABLES = (
    "CLAUDE_PROJECT_DIR", "CLAUDE_PLUGIN_ROOT", "CLAUDE_PLUGIN_DATA", "CLAUDE_PLUGIN_OPTION_*", "CLAUDE_EFFORT",
    "CLAUDE_CODE_REMOTE",
)  # fmt: skip


# --- events --------------------------------------------------------------------------------------------------


def read_event(raw: Mapping[str, Any]) -> HookEvent:
    """A payload in neutral terms. Raises RequestError for what is no event of this host."""
    return payloads.pascal_event(raw, NAME, EVENTS, TOOL_EVENTS)


def rule(name: str) -> EventRule:
    """The rule of an event; that of an unknown one blocks nothing."""
    return EVENTS.get(name, payloads.OTHER)


def payload(event: HookEvent) -> bytes:
    """The JSON that the host writes, and a newline."""
    return payloads.written(event.raw, NAME) + b"\n"


def shell_argv(command: str) -> tuple[str, ...]:
    """``sh -c``, as for every handler without ``args``."""
    return ("/bin/sh", "-c", command)


def variables(event: HookEvent, root: str) -> dict[str, str]:
    """The project's and the plugin's directory, and the effort where the event tells it."""
    found: dict[str, Any] = {"CLAUDE_PROJECT_DIR": event.project_dir or event.cwd, "CLAUDE_PLUGIN_ROOT": root}
    effort = event.raw.get("effort")
    if isinstance(effort, dict):
        found["CLAUDE_EFFORT"] = effort.get("level")
    return payloads.settable(found)


# --- what an end means ---------------------------------------------------------------------------------------


def decode(name: str, run: HookRun) -> HookOutcome:
    """What Claude Code makes of a run."""
    nothing = answers.no_answer(run)
    if nothing is not None:
        return nothing
    if name == "WorktreeCreate":
        return worktree(run)
    said = answers.read(run, text_counts=name in TEXT_IS_CONTEXT)
    answer, wrong, odd = understood(name, said.value) if said.form == "object" else (HookOutcome(), [], [])
    problems = (*said.problems, *wrong, *odd)
    if run.exit_code == 2 and exit_blocks(name):
        return vetoed(run, HookOutcome() if wrong else answer, problems, said.value)
    if said.form == "broken" or wrong:
        return answers.failed(run, problems, document=said.value)
    if said.form == "object":
        return answers.beside_end(run, answer.replace(problems=problems, document=said.value))
    if run.exit_code != 0:
        return answers.failed(run, problems, document=said.value)
    context = (said.text,) if said.text and name in TEXT_IS_CONTEXT else ()
    return HookOutcome(context=context, problems=problems, document=said.value)


def exit_blocks(name: str) -> bool:
    """Whether exit code 2 counts: not for a permission request."""
    known = rule(name)
    return (known.blocks or known.feedback) and name != "PermissionRequest"


def vetoed(run: HookRun, answer: HookOutcome, problems: tuple[Problem, ...], document: Any) -> HookOutcome:
    """Exit code 2 on an event that it blocks: only the rest of a valid answer counts beside it."""
    if answer.verdict not in ("deny", "none"):
        problems = (
            *problems,
            Problem("contradiction", f"exit code 2 denies, the JSON answer says {answer.verdict}"),
        )
    reason = answer.reason if answer.verdict == "deny" else ""
    made = answers.blocked(run, problems, reason, document)
    return made.replace(
        halt=answer.halt,
        stop_reason=answer.stop_reason,
        context=answer.context,
        system_messages=answer.system_messages,
    )


def worktree(run: HookRun) -> HookOutcome:
    """Its answer is a path, the last line of stdout; every failure keeps the worktree from being made."""
    said = [line.strip() for line in run.stdout.decode("utf-8", "replace").splitlines() if line.strip()]
    if run.exit_code == 2:
        return answers.blocked(run, ())
    if run.exit_code != 0 or run.stdout_truncated or not said:
        missing = () if said else (Problem("no_path", "stdout names no path"),)
        return answers.failed(run, missing, "deny")
    return HookOutcome(extras=(("path", said[-1]),))


def understood(name: str, given: Mapping[str, Any]) -> tuple[HookOutcome, list[Problem], list[Problem]]:
    """The answer that an object is; what makes it invalid; what is merely odd about it."""
    wrong, odd = answers.misfits(given, TOP, DEEP)
    nested = given.get("hookSpecificOutput", {})
    if isinstance(nested, dict) and "hookSpecificOutput" in given:
        more_wrong, more_odd = nested_misfits(name, nested)
        wrong, odd = wrong + more_wrong, odd + more_odd
    if wrong:
        return HookOutcome(), wrong, odd
    verdict, reason = decided(name, given, nested, odd)
    if verdict == "deny" and not reason.strip() and "action" not in nested:
        odd.append(Problem("missing_reason", "it denies and gives no reason"))
    permission = nested.get("decision", {}) if name == "PermissionRequest" else {}
    answer = HookOutcome(
        verdict,
        given.get("continue") is False,
        given.get("stopReason", "") if given.get("continue") is False else "",
        reason,
        answers.texts(nested.get("additionalContext")) if "additionalContext" in NESTED.get(name, ()) else (),
        answers.texts(given.get("systemMessage")),
        (permission or (nested if name == "PreToolUse" else {})).get("updatedInput"),
        updated_output=nested.get("updatedToolOutput") if name == "PostToolUse" else None,
        extras=extras(name, given, nested, permission),
        source="json" if verdict != "none" or given.get("continue") is False else "none",
        status="blocked" if verdict == "deny" else "ok",
    )
    return answer, [], odd


def nested_misfits(name: str, nested: Mapping[str, Any]) -> tuple[list[Problem], list[Problem]]:
    about = nested.get("hookEventName")
    wrong, odd = answers.misfits(
        {key: value for key, value in nested.items() if key != "hookEventName"},
        NESTED.get(name, {}),
        DEEP | set(TOP),
    )
    if about is None:
        wrong.append(Problem("missing_event_name", "hookSpecificOutput has no hookEventName"))
    elif about != name:
        wrong.append(Problem("wrong_event_name", f"hookEventName is {quoted(about)}, the event is {name}"))
    if name == "PermissionRequest" and isinstance(nested.get("decision"), dict):
        more_wrong, more_odd = answers.misfits(nested["decision"], PERMISSION, DEEP)
        wrong, odd = wrong + more_wrong, odd + more_odd
        if "behavior" not in nested["decision"]:
            wrong.append(Problem("unknown_verdict", "decision has no behavior"))
    return wrong, odd


def decided(name: str, given: Mapping[str, Any], nested: Mapping[str, Any], odd: list[Problem]) -> tuple[str, str]:
    """The verdict and its reason: the event's own field, else the older one at the top."""
    if name == "PreToolUse" and "permissionDecision" in nested:
        return nested["permissionDecision"], nested.get("permissionDecisionReason", "")
    if name == "PermissionRequest" and "decision" in nested:
        return nested["decision"]["behavior"], nested["decision"].get("message", "")
    if "action" in nested and name in ("Elicitation", "ElicitationResult"):
        return VERDICTS[nested["action"]], ""
    if "decision" not in given:
        return "none", ""
    if name in TAKES_BLOCK or name == "PreToolUse":
        return VERDICTS[given["decision"]], given.get("reason", "")
    odd.append(Problem("misplaced_field", f"'decision' does not count on {name}"))
    return "none", ""


def extras(
    name: str, given: Mapping[str, Any], nested: Mapping[str, Any], permission: Mapping[str, Any]
) -> tuple[tuple[str, Any], ...]:
    fields = {key: given[key] for key in ("suppressOutput", "terminalSequence") if key in given}
    fields |= {key: nested[key] for key in NESTED.get(name, ()) if key in nested and key not in MODELLED}
    fields |= {key: permission[key] for key in ("interrupt", "updatedPermissions") if key in permission}
    return tuple(fields.items())


# --- what it is told -----------------------------------------------------------------------------------------


def encode(name: str, merged: MergedOutcome) -> Reply:
    """The answer in Claude Code's words.

    What the event has no word for becomes the nearest stricter one: ask and defer a deny (on a permission request no
    decision, so that the user is asked), a change that can't be told a deny. A deny of an event that nothing can
    block any more is a non-blocking error; one of an event that is not known here is exit code 2. Further fields of
    other hosts, or of a wrong type, are left out.
    """
    return replies.told(name, merged, say)


def say(name: str, merged: MergedOutcome) -> Reply:
    unsaid = untold_change(name, merged)
    if unsaid and merged.verdict != "deny":
        merged = replies.refusal(merged, unsaid)
    verdict = nearest(name, merged.verdict)
    top, lost = said_at_top(name, verdict, merged)
    if verdict == "deny" and (name in EXIT_ONLY or name not in EVENTS):
        return replies.document(top, 2, replies.lines(replies.stated(merged.reason)) + lost)
    if verdict == "deny" and not (rule(name).blocks or rule(name).feedback):
        return replies.too_late(merged, top, lost)
    if name == "WorktreeCreate":
        return Reply(str(dict(merged.extras).get("path", "")).encode() + b"\n")
    nested = said_nested(name, verdict, merged)
    if nested:
        top["hookSpecificOutput"] = {"hookEventName": name, **nested}
    return replies.document(top, stderr=lost)


def untold_change(name: str, merged: MergedOutcome) -> str:
    """Why a change can't be told, or an empty text."""
    if merged.updated_input is not None:
        if name not in ("PreToolUse", "PermissionRequest"):
            return f"a hook changed the input of {name}, which Claude Code can't be told"
        if merged.update_mode != "replace" or not isinstance(merged.updated_input, dict):
            return "a hook changed a part of the input, Claude Code can only be told the whole"
        if name == "PermissionRequest" and merged.verdict != "allow":
            return "a hook changed the input without allowing it, which Claude Code can't be told"
    if merged.updated_output is not None and name != "PostToolUse":
        return f"a hook changed the output of {name}, which Claude Code can't be told"
    return ""


def nearest(name: str, verdict: str) -> str:
    if verdict in ("ask", "defer") and name != "PreToolUse":
        return "none" if name == "PermissionRequest" else "deny"
    return verdict


def said_at_top(name: str, verdict: str, merged: MergedOutcome) -> tuple[dict[str, Any], bytes]:
    """The fields at the top; and what only stderr is left for."""
    top: dict[str, Any] = {}
    if merged.halt:
        top |= {"continue": False, "stopReason": replies.stated(merged.stop_reason or merged.reason)}
    if merged.system_messages:
        top["systemMessage"] = replies.joined(merged.system_messages, "\n")
    top |= answers.fitting(merged.extras, ("suppressOutput", "terminalSequence"), TOP)
    if verdict == "deny" and name in TAKES_BLOCK:
        top |= {"decision": "block", "reason": replies.stated(merged.reason)}
    takes_context = "additionalContext" in NESTED.get(name, ())
    return top, b"" if takes_context else replies.lines(*merged.context)


def said_nested(name: str, verdict: str, merged: MergedOutcome) -> dict[str, Any]:
    fields = NESTED.get(name, {})
    nested = answers.fitting(merged.extras, fields.keys() - MODELLED, fields)
    if merged.context and "additionalContext" in fields:
        nested["additionalContext"] = replies.joined(merged.context)
    if name == "PreToolUse" and verdict != "none":
        reason = replies.stated(merged.reason) if verdict == "deny" else replies.clean(merged.reason)
        nested |= {"permissionDecision": verdict} | ({"permissionDecisionReason": reason} if reason else {})
    if name == "PreToolUse" and merged.updated_input is not None and verdict != "deny":
        nested["updatedInput"] = merged.updated_input
    if name == "PostToolUse" and merged.updated_output is not None:
        nested["updatedToolOutput"] = merged.updated_output
    if name == "PermissionRequest" and verdict in ("allow", "deny"):
        nested["decision"] = permission(verdict, merged)
    return nested


def permission(verdict: str, merged: MergedOutcome) -> dict[str, Any]:
    given = answers.fitting(merged.extras, ("interrupt", "updatedPermissions"), PERMISSION)
    if verdict == "deny":
        stop = {"interrupt": True} if given.get("interrupt") else {}
        return {"behavior": "deny", "message": replies.stated(merged.reason), **stop}
    more = {"updatedPermissions": given["updatedPermissions"]} if "updatedPermissions" in given else {}
    if merged.updated_input is not None:
        more["updatedInput"] = merged.updated_input
    return {"behavior": "allow", **more}
