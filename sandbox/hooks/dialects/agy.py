"""Antigravity's command line and IDE: what its hooks read, what it makes of their answers, what it is told. Pure.

Provisional: it rests on others' test notes of version 1.1. Before a tool everything but exit code 0 with an
explicit decision is a deny.
"""

from __future__ import annotations

from stockade.sandbox.hooks.dialects import answers, payloads, replies
from stockade.sandbox.hooks.model import EventRule, HookEvent, HookOutcome, Problem, Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stockade.sandbox.hooks.model import HookRun, MergedOutcome

NAME = "agy"
PROVISIONAL = True
DEFAULT_TIMEOUT = 30.0
TIMEOUT_UNIT = 1.0
VARIABLES: tuple[str, ...] = ()
EVENTS: Mapping[str, EventRule] = {
    "PreToolUse": EventRule("pre_tool", True),
    "PostToolUse": EventRule("post_tool"),
    "PreInvocation": EventRule("pre_model"),
    "PostInvocation": EventRule("post_model"),
    "Stop": EventRule("stop", True),
    "SessionStart": EventRule("session_start"),
}
FIELDS: Mapping[str, answers.Fields] = {
    "PreToolUse": {
        "decision": ("allow", "deny", "ask", "force_ask"), "reason": str, "permissionOverrides": object,
        "overwrite": dict,
    },
    "PreInvocation": {"injectSteps": list},
    "PostInvocation": {"terminationBehavior": object},
    "Stop": {"decision": ("continue",), "reason": str},
}  # fmt: skip
EXTRAS = ("permissionOverrides", "injectSteps", "terminationBehavior")


def read_event(raw: Mapping[str, Any]) -> HookEvent:
    """A payload in neutral terms. Raises RequestError for what is no event of this host."""
    payloads.own(raw, NAME)
    name = event_name(raw)
    called = raw.get("toolCall")
    if called is not None and not isinstance(called, dict):
        raise payloads.unusable(NAME, "the field toolCall is no object")
    if name == "PreToolUse" and called is None:
        raise payloads.unusable(NAME, "the field toolCall is missing")
    project = payloads.first_path(raw, "workspacePaths", NAME)
    return HookEvent(
        NAME,
        name,
        rule(name).kind,
        raw,
        cwd=project,
        session_id=payloads.text_field(raw, "conversationId", NAME),
        project_dir=project,
        transcript_path=payloads.text_field(raw, "transcriptPath", NAME, path=True),
        tool=payloads.tool_call(called, NAME, needed=True, keys=("name", "args", "id")) if called else None,
    )


def event_name(raw: Mapping[str, Any]) -> str:
    """The event's name where the payload has it, else what the fields point to: a tool's call is taken for its start,
    which can be denied.
    """
    given = raw.get("hookEventName")
    if isinstance(given, str) and given:
        return given
    if "toolCall" in raw:
        return "PreToolUse"
    if "conversationId" not in raw:
        raise payloads.unusable(NAME, "it has neither toolCall nor conversationId")
    return "Stop" if "terminationReason" in raw or "fullyIdle" in raw else "other"


def rule(name: str) -> EventRule:
    """The rule of an event; that of an unknown one blocks nothing."""
    return EVENTS.get(name, payloads.OTHER)


def payload(event: HookEvent) -> bytes:
    """The JSON that the host writes."""
    return payloads.written(event.raw, NAME)


def shell_argv(command: str) -> tuple[str, ...]:
    """``sh -c``."""
    return ("/bin/sh", "-c", command)


def variables(event: HookEvent, root: str) -> dict[str, str]:
    """None is known."""
    return {}


def decode(name: str, run: HookRun) -> HookOutcome:
    """What agy makes of a run."""
    closed = "deny" if name == "PreToolUse" else "none"
    nothing = answers.no_answer(run, closed)
    if nothing is not None:
        return nothing
    said = answers.read(run)
    if run.exit_code == 2 and closed == "deny":
        return answers.blocked(run, said.problems, document=said.value)
    given: Mapping[str, Any] = said.value if said.form == "object" else {}
    wrong, odd = answers.misfits(given, FIELDS.get(name, {}), FIELDS["PreToolUse"])
    if closed == "deny" and "decision" not in given and said.form in ("empty", "object"):
        wrong.append(Problem("no_decision", "it answered without a decision, which this host wants"))
    if run.exit_code != 0 or wrong or said.form not in ("empty", "object"):
        return answers.failed(run, (*said.problems, *wrong, *odd), closed, said.value)
    return understood(name, given, (*said.problems, *odd))


def understood(name: str, given: Mapping[str, Any], problems: tuple[Problem, ...]) -> HookOutcome:
    words = {"force_ask": "ask", "continue": "deny"}
    decision = given.get("decision", "none") if name in ("PreToolUse", "Stop") else "none"
    verdict, reason = words.get(decision, decision), given.get("reason", "")
    if verdict == "deny" and not reason.strip():
        problems = (*problems, Problem("missing_reason", "it denies and gives no reason"))
    forced = (("force_ask", True),) if decision == "force_ask" else ()
    return HookOutcome(
        verdict,
        reason=reason if verdict != "none" else "",
        updated_input=given.get("overwrite") if name == "PreToolUse" else None,
        update_mode="merge" if name == "PreToolUse" and "overwrite" in given else "replace",
        extras=(*((key, given[key]) for key in EXTRAS if key in FIELDS.get(name, ()) and key in given), *forced),
        source="none" if verdict == "none" else "json",
        status="blocked" if verdict == "deny" else "ok",
        problems=problems,
        document=given or None,
    )


def encode(name: str, merged: MergedOutcome) -> Reply:
    """The answer in agy's words; before a tool always a decision, so no objection is an allow.

    Defer, a halt, and a change that is not laid over the arguments become a deny; the end of a turn is held up by
    ``continue``, and not by a halt. A deny of what can't be denied is an error of the hook; one of an unknown event is
    told like that of a tool.
    """
    return replies.told(name, merged, say)


def say(name: str, merged: MergedOutcome) -> Reply:
    if name == "Stop" and merged.halt:
        return Reply(b"", replies.lines(*answers.texts(merged.stop_reason, *merged.system_messages)))
    merged = replies.without_halt(merged)
    if merged.verdict != "deny" and (unsaid := untold(name, merged)):
        merged = replies.refusal(merged, unsaid)
    asks = merged.verdict == "ask" and name == "PreToolUse"
    verdict = "deny" if merged.verdict in ("ask", "defer") and not asks else merged.verdict
    lost = replies.lines(*merged.context, *merged.system_messages)
    if verdict == "deny" and name in EVENTS and not rule(name).blocks:
        return Reply(b"", replies.lines(replies.stated(merged.reason)) + lost, 1)
    return replies.document(said(name, verdict, merged), stderr=lost)


def untold(name: str, merged: MergedOutcome) -> str:
    if merged.updated_output is not None:
        return "a hook changed the output, which agy can't be told"
    if merged.updated_input is None:
        return ""
    if name != "PreToolUse" or merged.update_mode != "merge" or not isinstance(merged.updated_input, dict):
        return "a hook replaced the whole input, agy can only be told what to change in a tool's arguments"
    return ""


def said(name: str, verdict: str, merged: MergedOutcome) -> dict[str, Any]:
    fields = answers.fitting(merged.extras, EXTRAS, FIELDS.get(name, {}))
    if verdict == "deny":
        word = "continue" if name == "Stop" else "deny"
        return {"decision": word, "reason": replies.stated(merged.reason)}
    if name != "PreToolUse":
        return fields
    word = {"none": "allow", "ask": "force_ask" if ("force_ask", True) in merged.extras else "ask"}.get(
        verdict, verdict
    )
    reason = replies.clean(merged.reason)
    fields |= {"decision": word} | ({"reason": reason} if reason else {})
    return fields | ({"overwrite": merged.updated_input} if merged.updated_input is not None else {})
