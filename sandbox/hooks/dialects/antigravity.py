"""Google Antigravity, hosted agents: what its hooks read, what it makes of their answers, what it is told. Pure.

Exit code 0 and a JSON object with ``decision: deny`` is its only deny; every other end lets the tool run, exit
code 2 as well.
"""

from __future__ import annotations

from stockade.sandbox.hooks.dialects import answers, payloads, replies
from stockade.sandbox.hooks.model import EventRule, HookEvent, HookOutcome, Problem, Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stockade.sandbox.hooks.model import HookRun, MergedOutcome

NAME = "antigravity"
PROVISIONAL = False
DEFAULT_TIMEOUT = 30.0
TIMEOUT_UNIT = 1.0
VARIABLES: tuple[str, ...] = ()
EVENTS: Mapping[str, EventRule] = {
    "pre_tool_execution": EventRule("pre_tool", True),
    "post_tool_execution": EventRule("post_tool"),
}
FIELDS: answers.Fields = {"decision": ("allow", "deny"), "reason": str}


def read_event(raw: Mapping[str, Any]) -> HookEvent:
    """A payload in neutral terms. Raises RequestError for what is no event of this host.

    The payload does not name its event: one with ``error`` is the end of a tool, every other is taken for the start,
    which can be denied.
    """
    payloads.own(raw, NAME)
    if not isinstance(raw.get("tool_call"), dict):
        raise payloads.unusable(NAME, "the field tool_call is missing or no object")
    name = "post_tool_execution" if "error" in raw else "pre_tool_execution"
    return HookEvent(
        NAME,
        name,
        rule(name).kind,
        raw,
        session_id=payloads.text_field(raw, "environment_id", NAME),
        tool=payloads.tool_call(raw["tool_call"], NAME, needed=True, keys=("name", "args", "id")),
    )


def rule(name: str) -> EventRule:
    """The rule of an event; that of an unknown one blocks nothing."""
    return EVENTS.get(name, payloads.OTHER)


def payload(event: HookEvent) -> bytes:
    """The JSON that the host writes."""
    return payloads.written(event.raw, NAME)


def shell_argv(command: str) -> tuple[str, ...]:
    """A command line: ``sh -c``."""
    return ("/bin/sh", "-c", command)


def variables(event: HookEvent, root: str) -> dict[str, str]:
    """None."""
    return {}


def decode(name: str, run: HookRun) -> HookOutcome:
    """What the host makes of a run; answers to anything but the start of a tool are not looked at."""
    nothing = answers.no_answer(run)
    if nothing is not None:
        return nothing
    said = answers.read(run)
    if run.exit_code != 0 or said.form not in ("empty", "object"):
        problems = (*said.problems, *answers.accident(run))
        return answers.failed(run, problems, document=said.value)
    if said.form == "empty" or not rule(name).blocks:
        return HookOutcome(problems=said.problems, document=said.value)
    wrong, odd = answers.misfits(said.value, FIELDS)
    if wrong:
        return answers.failed(run, (*said.problems, *wrong, *odd), document=said.value)
    verdict, reason = said.value.get("decision", "none"), said.value.get("reason", "")
    if verdict == "deny" and not reason.strip():
        odd.append(Problem("missing_reason", "it denies and gives no reason"))
    return HookOutcome(
        verdict,
        reason=reason,
        source="none" if verdict == "none" else "json",
        status="blocked" if verdict == "deny" else "ok",
        problems=(*said.problems, *odd),
        document=said.value,
    )


def encode(name: str, merged: MergedOutcome) -> Reply:
    """The answer in the host's words, always on exit code 0 where it can be obeyed.

    It knows allow and deny alone: ask, defer, a halt and every change become a deny. What it has no field for goes
    to stderr. A deny after the tool is an error of the hook.
    """
    return replies.told(name, merged, say)


def say(name: str, merged: MergedOutcome) -> Reply:
    merged = replies.without_halt(merged)
    if merged.verdict != "deny" and (merged.updated_input is not None or merged.updated_output is not None):
        merged = replies.refusal(merged, "a hook changed the call, which Antigravity can't be told")
    lost = replies.lines(*merged.context, *merged.system_messages)
    if merged.verdict in ("none", "allow"):
        said = {"decision": "allow"} if merged.verdict == "allow" and name == "pre_tool_execution" else {}
        return replies.document(said, stderr=lost)
    if name == "post_tool_execution":
        return Reply(b"", replies.lines(replies.stated(merged.reason)) + lost, 1)
    return replies.document({"decision": "deny", "reason": replies.stated(merged.reason)}, stderr=lost)
