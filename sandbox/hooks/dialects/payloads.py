"""Events as hosts tell them, where dialects agree: whose they are, fields of the right type. Pure."""

from __future__ import annotations

from stockade.policies.errors import RequestError
from stockade.policies.text import quoted
from stockade.sandbox.hooks import jsontext
from stockade.sandbox.hooks.dialects.answers import words
from stockade.sandbox.hooks.model import EventRule, HookEvent, ToolCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

OTHER = EventRule("other")
"""The rule of an event that is not known."""

GEMINI_NAMES = words(
    "BeforeTool AfterTool BeforeAgent AfterAgent BeforeModel AfterModel BeforeToolSelection PreCompress"
)
CURSOR_NAMES = words(
    "sessionStart sessionEnd preToolUse postToolUse postToolUseFailure subagentStart subagentStop beforeShellExecution"
    " afterShellExecution beforeMCPExecution afterMCPExecution beforeReadFile afterFileEdit beforeSubmitPrompt preCompact"
    " stop afterAgentResponse afterAgentThought beforeTabFileRead afterTabFileEdit workspaceOpen"
)


def looks_like(raw: Mapping[str, Any]) -> str:
    """The dialect that a payload bears the marks of, or an empty text."""
    name = raw.get("hook_event_name")
    if not isinstance(name, str):
        if isinstance(raw.get("tool_call"), dict):
            return "antigravity"
        if "conversationId" in raw or "toolCall" in raw:
            return "agy"
        return "nous" if isinstance(raw.get("event"), str) and "payload" in raw else ""
    if name in GEMINI_NAMES:
        return "gemini"
    if name in CURSOR_NAMES or "cursor_version" in raw:
        return "cursor"
    if "turn_id" in raw and "model" in raw:
        return "codex"
    if name in ("SessionStart", "SessionEnd", "Notification") and "timestamp" in raw:
        return "gemini"
    return "claude" if "prompt_id" in raw or "effort" in raw else ""


def own(raw: Any, dialect: str) -> None:
    """Raises RequestError for what is no object, or an event of another host."""
    if not isinstance(raw, dict):
        raise unusable(dialect, f"it is no JSON object but {quoted(raw)}")
    other = looks_like(raw)
    if other not in ("", dialect):
        raise unusable(dialect, f"it looks like one of {other}", f"Use --dialect {other} if it is that host's.")


def unusable(dialect: str, cause: str, remedy: str = "") -> RequestError:
    return RequestError(
        f"could not read the event as one of {dialect}: {cause}",
        remedy=remedy or "Pass on what the host writes to the hook's stdin, unchanged.",
    )


def text_field(raw: Mapping[str, Any], key: str, dialect: str, *, needed: bool = False, path: bool = False) -> str:
    """A field that is a text; missing and null ones are empty unless ``needed``; a ``path`` is absolute."""
    value = raw.get(key)
    if value is None and not needed:
        return ""
    if not isinstance(value, str):
        missing = "is missing" if key not in raw else f"is no text: {quoted(value)}"
        raise unusable(dialect, f"the field {key} {missing}")
    if needed and not value:
        raise unusable(dialect, f"the field {key} is empty")
    if path and value and not value.startswith("/"):
        raise unusable(dialect, f"the field {key} is no absolute path: {quoted(value)}")
    if path and "\0" in value:
        raise unusable(dialect, f"the field {key} has a NUL in it")
    if path and not encodable(value):
        raise unusable(dialect, f"the field {key} has half a surrogate pair in it")
    return value


def encodable(path: str) -> bool:
    """Whether the system can take it: bytes that are not UTF-8 stand in a path as escapes of Python's own."""
    try:
        path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def first_path(raw: Mapping[str, Any], key: str, dialect: str) -> str:
    """The first of a list of absolute paths, or an empty text."""
    value = raw.get(key)
    if value is None:
        return ""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise unusable(dialect, f"the field {key} is no list of texts: {quoted(value)}")
    found = [text_field({key: each}, key, dialect, path=True) for each in value]
    return found[0] if found else ""


def tool_call(raw: Mapping[str, Any], dialect: str, *, needed: bool, keys: tuple[str, str, str]) -> ToolCall | None:
    """The tool of an event; ``keys`` are the names of its name, input and id. Its input must be an object."""
    name_key, input_key, id_key = keys
    if not needed and not isinstance(raw.get(name_key), str):
        return None
    name = text_field(raw, name_key, dialect, needed=True)
    value = raw.get(input_key)
    if needed and not isinstance(value, dict):
        missing = "is missing" if input_key not in raw else f"is no object: {quoted(value)}"
        raise unusable(dialect, f"the field {input_key} {missing}")
    return ToolCall(name, value, text_field(raw, id_key, dialect))


def settable(found: Mapping[str, Any]) -> dict[str, str]:
    """Those that can be variables of a process: texts that say something, without a NUL or half a letter."""
    return {name: value for name, value in found.items() if isinstance(value, str) and value and can_be_set(value)}


def can_be_set(value: str) -> bool:
    try:
        return b"\0" not in value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def written(raw: Mapping[str, Any], dialect: str) -> bytes:
    """A payload's bytes as JavaScript and Rust write them. Raises RequestError for what has no JSON form."""
    try:
        return jsontext.dumps(raw, ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise unusable(
            dialect, f"it has no JSON form: {error}", "Use texts, numbers, lists and objects alone."
        ) from None


def pascal_event(
    raw: Mapping[str, Any], dialect: str, events: Mapping[str, EventRule], tool_events: Collection[str]
) -> HookEvent:
    """The event of a host with Claude Code's names of fields."""
    own(raw, dialect)
    name = text_field(raw, "hook_event_name", dialect, needed=True)
    tool_keys = ("tool_name", "tool_input", "tool_use_id")
    return HookEvent(
        dialect,
        name,
        events.get(name, OTHER).kind,
        raw,
        cwd=text_field(raw, "cwd", dialect, path=True),
        session_id=text_field(raw, "session_id", dialect),
        transcript_path=text_field(raw, "transcript_path", dialect, path=True),
        tool=tool_call(raw, dialect, needed=name in tool_events, keys=tool_keys),
    )
