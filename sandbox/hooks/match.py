"""Whether a handler runs for an event, by its own host's rule. Pure.

Where that can't be told (a pattern that no engine here can try, a field that is missing) the handler runs, and a
problem says why: a guard that is called once too often is better than one that is passed over. The one exception is
a host that itself drops what it can't read.

RE2 patterns (Antigravity) are searched for anywhere in the tool's name, not anchored: its documentation does not
say, and the other hosts do it so.
"""

from __future__ import annotations

import re

from stockade.policies.record import Record
from stockade.policies.text import quoted
from stockade.sandbox.hooks import patterns
from stockade.sandbox.hooks.model import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stockade.sandbox.hooks.model import HookEvent, HookSpec

ALL = ("", "*")
CLAUDE_EXACT = re.compile(r"[A-Za-z0-9_\-, |]*")
NARROW_EXACT = re.compile(r"[A-Za-z0-9_|]*")
"""Codex, and the two events of Claude Code that kept it."""
RE2_EXACT = re.compile(r"[A-Za-z0-9_ -]*")

TOOL = "tool_name"
CLAUDE_FIELDS: Mapping[str, str] = {
    "PreToolUse": TOOL, "PostToolUse": TOOL, "PostToolUseFailure": TOOL, "PermissionRequest": TOOL,
    "PermissionDenied": TOOL, "SessionStart": "source", "Setup": "trigger", "SessionEnd": "reason",
    "Notification": "notification_type", "SubagentStart": "agent_type", "SubagentStop": "agent_type",
    "UserPromptExpansion": "command_name", "ConfigChange": "source", "PreCompact": "trigger", "PostCompact": "trigger",
    "Elicitation": "mcp_server_name", "ElicitationResult": "mcp_server_name", "FileChanged": "file_path",
    "StopFailure": "error", "InstructionsLoaded": "load_reason", "DirectoryAdded": "source",
}  # fmt: skip
CLAUDE_NARROW = ("FileChanged", "StopFailure")
CODEX_FIELDS: Mapping[str, str] = {
    "PreToolUse": TOOL, "PostToolUse": TOOL, "PermissionRequest": TOOL, "SessionStart": "source",
    "SessionEnd": "reason", "SubagentStart": "agent_type", "SubagentStop": "agent_type", "PreCompact": "trigger",
    "PostCompact": "trigger", "StopFailure": "error",
}  # fmt: skip
CODEX_ALIASES = {"apply_patch": ("Edit", "Write")}
GEMINI_TOOLS = ("BeforeTool", "AfterTool")
GEMINI_FIELDS: Mapping[str, str] = {
    "SessionStart": "source", "SessionEnd": "reason", "PreCompress": "trigger", "Notification": "notification_type"
}  # fmt: skip
CURSOR_FIELDS: Mapping[str, str] = {
    "preToolUse": TOOL, "postToolUse": TOOL, "postToolUseFailure": TOOL, "beforeShellExecution": "command",
    "afterShellExecution": "command", "beforeMCPExecution": TOOL, "afterMCPExecution": TOOL,
    "subagentStart": "subagent_type", "subagentStop": "subagent_type",
}  # fmt: skip


class Matched(Record):
    """Whether a handler runs, and what is to be said about that."""

    runs: bool
    problems: tuple[Problem, ...] = ()


def matches(spec: HookSpec, event: HookEvent) -> Matched:
    """Whether ``spec`` runs for ``event``: switched on, for this event, by its matcher and its further filter.

    Raises RequestError only where a pattern needs google-re2 and it is not installed.
    """
    if not spec.enabled or spec.event != event.name:
        return Matched(False)
    found = RULES.get(spec.dialect, claude)(spec, event)
    if not found.runs or not spec.condition:
        return found
    from stockade.sandbox.hooks.permission import condition_holds

    filtered = condition_holds(spec, event)
    return Matched(filtered.runs, (*found.problems, *filtered.problems))


def matcher_problem(spec: HookSpec) -> Problem | None:
    """What is wrong with a handler's matcher, whatever the event: it is no pattern, or its host does not look at it."""
    text = spec.matcher
    if text is None or text in ALL:
        return None
    if ignored(spec):
        return Problem("matcher_ignored", f"the host does not look at the matcher of {spec.event}")
    if spec.dialect in ("antigravity", "agy") and patterns.re2_module() is None:
        return None
    try:
        pattern_of(spec, text)
    except patterns.BadPattern as error:
        return Problem("bad_pattern", f"the matcher {quoted(text)} can't be used: {error}")
    return None


def ignored(spec: HookSpec) -> bool:
    """Whether the host has nothing to match on this event, as far as its events are known."""
    known = {
        "claude": CLAUDE_FIELDS,
        "codex": CODEX_FIELDS,
        "gemini": {**GEMINI_FIELDS, **dict.fromkeys(GEMINI_TOOLS)},
    }
    fields = known.get(spec.dialect)
    if fields is None or spec.event in fields:
        return False
    from stockade.sandbox.hooks.dialects import dialect

    return spec.event in dialect(spec.dialect).EVENTS


def pattern_of(spec: HookSpec, text: str) -> patterns.Pattern | None:
    """The pattern that a matcher is; None where it is names. Raises BadPattern, RequestError."""
    if spec.dialect in ("claude", "nous"):
        exact = NARROW_EXACT if spec.event in CLAUDE_NARROW else CLAUDE_EXACT
        return None if exact.fullmatch(text) else patterns.js_pattern(text)
    if spec.dialect == "codex":
        return None if NARROW_EXACT.fullmatch(text) else patterns.rust_pattern(text)
    if spec.dialect in ("antigravity", "agy"):
        return None if RE2_EXACT.fullmatch(text) or text == ".*" else patterns.re2_pattern(text)
    if spec.dialect == "gemini" and spec.event not in GEMINI_TOOLS:
        return None
    return patterns.js_pattern(text)


def claude(spec: HookSpec, event: HookEvent) -> Matched:
    """Exact names, or a JavaScript pattern found anywhere."""
    field = TOOL if spec.dialect == "nous" else CLAUDE_FIELDS.get(spec.event)
    if everything(spec) or field is None:
        return Matched(True)
    subject = subject_of(event, field)
    if subject is None:
        return without(spec, field)
    if field == "file_path":
        subject = subject.rpartition("/")[2]
    return tried(spec, subject, lambda text: subject in names(text, "|,"))


def codex(spec: HookSpec, event: HookEvent) -> Matched:
    """Exact names, or a Rust pattern found anywhere; one that is none drops the whole group."""
    field = CODEX_FIELDS.get(spec.event)
    if everything(spec) or field is None:
        return Matched(True)
    subject = subject_of(event, field)
    if subject is None:
        return without(spec, field)
    answers = (subject, *CODEX_ALIASES.get(subject, ()))
    found = [tried(spec, each, lambda text, each=each: each in names(text, "|")) for each in answers]  # type: ignore[misc]
    if any(each.problems for each in found):
        return Matched(False, found[0].problems)
    return Matched(any(each.runs for each in found))


def re2_rule(spec: HookSpec, event: HookEvent) -> Matched:
    """An RE2 pattern found anywhere in the tool's name."""
    if everything(spec) or spec.matcher == ".*" or spec.event in ("PreInvocation", "PostInvocation", "Stop"):
        return Matched(True)
    subject = event.tool.name if event.tool else subject_of(event, TOOL)
    return without(spec, TOOL) if subject is None else tried(spec, subject, lambda text: text in subject)


def gemini(spec: HookSpec, event: HookEvent) -> Matched:
    """A pattern on tools (a text where it is none), the exact word on the events of a session."""
    text = (spec.matcher or "").strip()
    field = TOOL if spec.event in GEMINI_TOOLS else GEMINI_FIELDS.get(spec.event)
    if text in ALL or field is None:
        return Matched(True)
    subject = subject_of(event, field)
    if subject is None:
        return without(spec, field)
    if field != TOOL:
        return Matched(subject == text)
    found = tried(spec.replace(matcher=text), subject, lambda _text: False)
    return Matched(subject == text, found.problems) if found.problems and is_no_pattern(text) else found


def is_no_pattern(text: str) -> bool:
    """Whether the host itself would take the text for no pattern, as opposed to one that can't be tried here."""
    try:
        patterns.by_python(patterns.from_js(text))
    except patterns.BadPattern:
        return True
    return False


def cursor(spec: HookSpec, event: HookEvent) -> Matched:
    """A pattern on the kind of tool, or on the whole command line."""
    if everything(spec):
        return Matched(True)
    field = CURSOR_FIELDS.get(spec.event)
    if field is None:
        about = f"what the matcher of {spec.event} is compared with is not documented"
        return Matched(True, (Problem("matcher_unknown", about),))
    subject = subject_of(event, field)
    return without(spec, field) if subject is None else tried(spec, subject, lambda _text: False)


RULES: Mapping[str, Callable[[HookSpec, HookEvent], Matched]] = {
    "claude": claude, "codex": codex, "antigravity": re2_rule, "agy": re2_rule, "gemini": gemini, "cursor": cursor,
    "nous": claude,
}  # fmt: skip


def everything(spec: HookSpec) -> bool:
    return spec.matcher is None or spec.matcher in ALL


def names(text: str, between: str) -> list[str]:
    """The names of a list."""
    return [each.strip() for each in re.split(f"[{between}]", text)]


def subject_of(event: HookEvent, field: str) -> str | None:
    """What the matcher is compared with; None where the event does not tell."""
    if field == TOOL and event.tool is not None:
        return event.tool.name
    value = event.raw.get(field)
    return value if isinstance(value, str) else None


def without(spec: HookSpec, field: str) -> Matched:
    about = f"the event has no {field}, which the matcher {quoted(spec.matcher)} is about"
    return Matched(True, (Problem("no_subject", about),))


def tried(spec: HookSpec, subject: str, exact: Callable[[str], bool]) -> Matched:
    """By names where the matcher is names, else by its pattern."""
    text = spec.matcher or ""
    try:
        pattern = pattern_of(spec, text)
        return Matched(exact(text) if pattern is None else pattern.found_in(subject))
    except patterns.BadPattern as error:
        return Matched(True, (Problem("bad_pattern", f"the matcher {quoted(text)} can't be used: {error}"),))
