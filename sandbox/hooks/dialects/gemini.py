"""Gemini CLI: what its hooks read, what it makes of their answers, what it is told. Pure.

It reads stdout, or stderr where stdout is empty; valid JSON there decides on every exit code. Other text is a
message on exit code 0, a warning on 1 and a deny on every other; no output at all never blocks.
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

NAME = "gemini"
PROVISIONAL = False
DEFAULT_TIMEOUT = 60.0
TIMEOUT_UNIT = 0.001
VARIABLES = ("GEMINI_PROJECT_DIR", "GEMINI_PLANS_DIR", "GEMINI_SESSION_ID", "GEMINI_CWD", "CLAUDE_PROJECT_DIR")
"""Named one by one: its keys begin with GEMINI_ as well."""

EVENTS: Mapping[str, EventRule] = {
    "BeforeTool": EventRule("pre_tool", True),
    "AfterTool": EventRule("post_tool", feedback=True),
    "BeforeAgent": EventRule("prompt_submit", True),
    "AfterAgent": EventRule("stop", True),
    "BeforeModel": EventRule("pre_model", True),
    "AfterModel": EventRule("post_model", feedback=True),
    "BeforeToolSelection": EventRule("tool_selection"),
    "SessionStart": EventRule("session_start"),
    "SessionEnd": EventRule("session_end"),
    "PreCompress": EventRule("pre_compact"),
    "Notification": EventRule("notification"),
}
TOP: answers.Fields = {
    "continue": bool, "stopReason": str, "systemMessage": str, "suppressOutput": bool,
    "decision": ("allow", "deny", "block", "ask", "approve"), "reason": str, "hookSpecificOutput": dict,
}  # fmt: skip
NESTED: answers.Fields = {
    "hookEventName": str, "tool_input": dict, "additionalContext": str, "tailToolCallRequest": dict,
    "clearContext": bool, "llm_request": dict, "llm_response": dict, "toolConfig": dict,
}  # fmt: skip
EXTRAS = ("tailToolCallRequest", "clearContext", "llm_request", "llm_response", "toolConfig")
VERDICTS = {"allow": "allow", "approve": "allow", "deny": "deny", "block": "deny", "ask": "ask"}
TOOL_EVENTS = ("BeforeTool", "AfterTool")
TAKES_CONTEXT = answers.words("BeforeAgent AfterTool SessionStart")


def read_event(raw: Mapping[str, Any]) -> HookEvent:
    """A payload in neutral terms. Raises RequestError for what is no event of this host."""
    return payloads.pascal_event(raw, NAME, EVENTS, TOOL_EVENTS)


def rule(name: str) -> EventRule:
    """The rule of an event; that of an unknown one blocks nothing."""
    return EVENTS.get(name, payloads.OTHER)


def payload(event: HookEvent) -> bytes:
    """The JSON that the host writes."""
    return payloads.written(event.raw, NAME)


def shell_argv(command: str) -> tuple[str, ...]:
    """``bash -c``. The host puts $GEMINI_PROJECT_DIR and its like into the text beforehand; here bash does."""
    return ("/bin/bash", "-c", command)


def variables(event: HookEvent, root: str) -> dict[str, str]:
    """The project's directory in both spellings, the working directory and the session."""
    project = event.project_dir or event.cwd
    found = {
        "GEMINI_PROJECT_DIR": project,
        "CLAUDE_PROJECT_DIR": project,
        "GEMINI_CWD": event.cwd,
        "GEMINI_SESSION_ID": event.session_id,
    }
    return payloads.settable(found)


# --- what an end means ---------------------------------------------------------------------------------------


def decode(name: str, run: HookRun) -> HookOutcome:
    """What Gemini CLI makes of a run. A death by signal counts as exit code 0 there; the status tells it all the same."""
    nothing = answers.no_answer(run)
    if nothing is not None:
        return nothing
    said = document(run)
    if said.form in ("object", "array"):
        return answers.beside_end(run, understood(name, said))
    if run.exit_code is None:
        return answers.failed(run, said.problems)
    if said.form == "empty":
        if run.exit_code == 0:
            return HookOutcome(problems=said.problems)
        return answers.failed(run, (*said.problems, *answers.accident(run)))
    if run.exit_code not in (0, 1):
        made = answers.blocked(run, said.problems, answers.bounded(said.text, answers.MOST_REASON))
        return made if rule(name).blocks or rule(name).feedback else answers.failed(run, made.problems)
    if run.exit_code == 1 or said.form == "broken":
        return answers.failed(run, said.problems).replace(system_messages=answers.texts(said.text))
    return HookOutcome(system_messages=answers.texts(said.text), problems=said.problems)


def document(run: HookRun) -> jsontext.Document:
    """What it reads: stdout, else stderr; a JSON text that holds JSON is read once more."""
    said = answers.read(run)
    if said.form == "empty" and run.stderr.strip():
        heard = answers.read(
            run.replace(stdout=run.stderr, stderr=b"", stdout_truncated=run.stderr_truncated), text_counts=True
        )
        said = heard.replace(problems=(*said.problems, *heard.problems))
    if said.form == "scalar" and isinstance(said.value, str):
        inner = jsontext.read(said.value.encode("utf-8", "replace"))
        if inner.form in ("object", "array"):
            twice = Problem("json_in_text", "the JSON document stands inside a JSON text")
            return inner.replace(problems=(*said.problems, twice, *inner.problems))
    return said


def understood(name: str, said: jsontext.Document) -> HookOutcome:
    """The answer that an object is; what the host does not know in it, it passes over."""
    given: Mapping[str, Any] = said.value if isinstance(said.value, dict) else {}
    wrong, odd = answers.misfits(given, TOP, NESTED)
    inner = given.get("hookSpecificOutput")
    nested: Mapping[str, Any] = inner if isinstance(inner, dict) else {}
    more_wrong, more_odd = answers.misfits(nested, NESTED, TOP)
    decision = given.get("decision")
    verdict = VERDICTS.get(decision, "none") if isinstance(decision, str) else "none"
    reason = given["reason"] if isinstance(given.get("reason"), str) else ""
    if verdict == "deny" and not reason.strip():
        odd.append(Problem("missing_reason", "it denies and gives no reason"))
    halt = given.get("continue") is False
    change = nested.get("tool_input") if name == "BeforeTool" else None
    return HookOutcome(
        verdict,
        halt,
        "\n".join(answers.texts(given.get("stopReason"))) if halt else "",
        reason,
        answers.texts(nested.get("additionalContext")),
        answers.texts(given.get("systemMessage")),
        change if isinstance(change, dict) else None,
        "merge" if isinstance(change, dict) else "replace",
        extras=tuple(
            (key, part[key]) for part, keys in ((given, ("suppressOutput",)), (nested, EXTRAS)) for key in keys if key in part
        ),
        source="json" if verdict != "none" or halt else "none",
        status="blocked" if verdict == "deny" else "ok",
        problems=(*said.problems, *wrong, *odd, *more_wrong, *more_odd),
        document=said.value,
    )  # fmt: skip


# --- what it is told -----------------------------------------------------------------------------------------


def encode(name: str, merged: MergedOutcome) -> Reply:
    """The answer in Gemini CLI's words, on stdout and exit code 0.

    Ask becomes a deny but before a tool, and so do defer, a change that is not laid over a tool's arguments and a
    changed output. A deny of what can't be denied is an error of the hook; one of an unknown event is told all the same.
    Nothing is said on stderr alone that could be read as an answer.
    """
    return replies.told(name, merged, say)


def say(name: str, merged: MergedOutcome) -> Reply:
    if merged.verdict != "deny" and (unsaid := untold(name, merged)):
        merged = replies.refusal(merged, unsaid)
    asks = merged.verdict == "ask" and name == "BeforeTool"
    verdict = "deny" if merged.verdict in ("ask", "defer") and not asks else merged.verdict
    takes_context = name in TAKES_CONTEXT
    messages = (*merged.system_messages, *(() if takes_context else merged.context))
    top = answers.fitting(merged.extras, ("suppressOutput",), TOP)
    if merged.halt:
        top |= {"continue": False, "stopReason": replies.stated(merged.stop_reason or merged.reason)}
    if messages:
        top["systemMessage"] = replies.joined(messages, "\n")
    if verdict == "deny" and name in EVENTS and not (rule(name).blocks or rule(name).feedback):
        reason = f"Denied: {replies.stated(merged.reason)}"
        return replies.too_late(merged.replace(reason=reason, system_messages=messages), top, b"")
    if verdict != "none":
        reason = replies.stated(merged.reason) if verdict == "deny" else replies.clean(merged.reason)
        top |= {"decision": verdict} | ({"reason": reason} if reason else {})
    nested = answers.fitting(merged.extras, ("clearContext",) if verdict == "deny" else EXTRAS, NESTED)
    if takes_context and merged.context:
        nested["additionalContext"] = replies.joined(merged.context)
    if merged.updated_input is not None and verdict != "deny":
        nested["tool_input"] = merged.updated_input
    if nested:
        top["hookSpecificOutput"] = {"hookEventName": name, **nested}
    return replies.document(top)


def untold(name: str, merged: MergedOutcome) -> str:
    if merged.updated_output is not None:
        return "a hook changed the output, which Gemini CLI can't be told"
    if merged.updated_input is None:
        return ""
    if name != "BeforeTool" or merged.update_mode != "merge" or not isinstance(merged.updated_input, dict):
        return "a hook replaced the whole input, Gemini CLI can only be told what to change in a tool's arguments"
    return ""
