"""Nous, a library for Elixir: what its hooks read, what it makes of their answers, what it is told. Pure.

Exit code 0 is followed by JSON with a ``result``, 2 denies; every other end allows.
"""

from __future__ import annotations

from stockade.policies.errors import RequestError
from stockade.sandbox.hooks import jsontext
from stockade.sandbox.hooks.dialects import answers, payloads, replies
from stockade.sandbox.hooks.model import EventRule, HookEvent, HookOutcome, Problem, Reply, ToolCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stockade.sandbox.hooks.model import HookRun, MergedOutcome

NAME = "nous"
PROVISIONAL = False
DEFAULT_TIMEOUT = 10.0
TIMEOUT_UNIT = 0.001
VARIABLES: tuple[str, ...] = ()
EVENTS: Mapping[str, EventRule] = {
    "session_start": EventRule("session_start"),
    "pre_request": EventRule("pre_model", True),
    "post_response": EventRule("post_model"),
    "pre_tool_use": EventRule("pre_tool", True),
    "post_tool_use": EventRule("post_tool"),
    "session_end": EventRule("session_end"),
}
FIELDS: answers.Fields = {"result": ("allow", "deny", "modify"), "reason": object, "changes": object}


def read_event(raw: Mapping[str, Any]) -> HookEvent:
    """A payload in neutral terms. Raises RequestError for what is no event of this host."""
    payloads.own(raw, NAME)
    name = payloads.text_field(raw, "event", NAME, needed=True)
    inner = raw.get("payload")
    if not isinstance(inner, dict):
        raise payloads.unusable(NAME, "the field payload is missing or no object")
    return HookEvent(NAME, name, rule(name).kind, raw, tool=tool(name, inner))


def tool(name: str, inner: Mapping[str, Any]) -> ToolCall | None:
    """The tool, where the payload names one; callers choose what else they put into it."""
    if name not in ("pre_tool_use", "post_tool_use") or "tool_name" not in inner:
        return None
    called = payloads.text_field(inner, "tool_name", NAME, needed=True)
    return ToolCall(called, inner.get("arguments", inner.get("tool_input")))


def rule(name: str) -> EventRule:
    """The rule of an event; that of an unknown one blocks nothing."""
    return EVENTS.get(name, payloads.OTHER)


def payload(event: HookEvent) -> bytes:
    """The JSON that the host writes."""
    return payloads.written(event.raw, NAME)


def shell_argv(command: str) -> tuple[str, ...]:
    """There is no shell here. Raises RequestError."""
    raise RequestError(
        "could not run the hook: Nous takes a program and its arguments, not a command line",
        remedy="Write the command as a list of program and arguments.",
    )


def variables(event: HookEvent, root: str) -> dict[str, str]:
    """None."""
    return {}


def decode(name: str, run: HookRun) -> HookOutcome:
    """What Nous makes of a run, ``fail_closed`` off. The deny of an event that blocks nothing is passed over there."""
    nothing = answers.no_answer(run)
    if nothing is not None:
        return nothing
    said = answers.read(run)
    if run.exit_code == 2 and rule(name).blocks:
        return answers.blocked(run, said.problems, document=said.value)
    if run.exit_code != 0 or said.form not in ("empty", "object"):
        return answers.failed(run, said.problems, document=said.value)
    if said.form == "empty":
        return HookOutcome(problems=said.problems)
    return understood(name, run, said)


def understood(name: str, run: HookRun, said: jsontext.Document) -> HookOutcome:
    given: Mapping[str, Any] = said.value
    wrong, odd = answers.misfits(given, FIELDS)
    result, changes = given.get("result", "none"), given.get("changes")
    if result == "modify" and not isinstance(changes, dict):
        wrong.append(Problem("wrong_type", "it says modify and its changes are no object"))
    if wrong or said.has("invalid_utf8"):
        return answers.failed(run, (*said.problems, *wrong, *odd), document=given)
    verdict = result if result in ("allow", "deny") else "none"
    if verdict == "deny" and not rule(name).blocks:
        verdict = "none"
        odd.append(Problem("misplaced_field", f"a deny does not count on {name}"))
    reason = given["reason"] if isinstance(given.get("reason"), str) else ""
    if verdict == "deny" and not reason.strip():
        odd.append(Problem("missing_reason", "it denies and gives no reason"))
    return HookOutcome(
        verdict,
        reason=reason,
        updated_input=changes if result == "modify" else None,
        update_mode="merge" if result == "modify" else "replace",
        source="none" if result == "none" else "json",
        status="blocked" if verdict == "deny" else "ok",
        problems=(*said.problems, *odd),
        document=given,
    )


def encode(name: str, merged: MergedOutcome) -> Reply:
    """The answer in Nous's words.

    Ask, defer, a halt, a replaced input and a changed output become a deny; what there is no field for goes to stderr.
    A deny of what can't be denied is an error of the hook, one of an unknown event exit code 2.
    """
    return replies.told(name, merged, say)


def say(name: str, merged: MergedOutcome) -> Reply:
    merged = replies.without_halt(merged)
    partial = merged.updated_input is None or (
        merged.update_mode == "merge" and isinstance(merged.updated_input, dict)
    )
    if merged.verdict != "deny" and (merged.updated_output is not None or not partial):
        merged = replies.refusal(
            merged, "a hook replaced the whole, Nous can only be told what to change in the payload"
        )
    lost = replies.lines(*merged.context, *merged.system_messages)
    if merged.verdict in ("none", "allow"):
        said: dict[str, Any] = {"result": "allow"} if merged.verdict == "allow" else {}
        if merged.updated_input is not None:
            said = {"result": "modify", "changes": merged.updated_input}
        return replies.document(said, stderr=lost)
    reason = replies.stated(merged.reason)
    if not rule(name).blocks:
        return Reply(b"", replies.lines(reason) + lost, 1 if name in EVENTS else 2)
    return replies.document({"result": "deny", "reason": reason}, stderr=lost)
