"""What each host's files may hold: the fields of a handler by its type, and where they stand. Tables alone."""

from __future__ import annotations

from stockade.policies.record import Record
from stockade.sandbox.hooks.source import COMMENTS, RELAXED, STRICT, Syntax

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Kinds of fields: text, texts (a list), number, whole, switch, table, map (of texts), null-or-number, any.
Fields = dict[str, str]

COMMAND: Fields = {"command": "text"}
HTTP: Fields = {"url": "text", "headers": "map"}


class Host(Record):
    """The shape of one host's hooks files."""

    layout: str
    """``groups``: event -> list of {matcher, hooks}. ``flat``: event -> list of handlers."""
    syntax: Syntax
    common: Mapping[str, str]
    """Fields that every handler may have."""
    types: Mapping[str, Mapping[str, str]]
    """Types of handlers that the host knows, and the fields of each."""
    group: Mapping[str, str] = {"matcher": "text", "hooks": "any"}
    named: bool = False
    """Whether groups of events have names at the top of the file."""
    flat_events: tuple[str, ...] = ()
    """Events whose handlers stand in the list themselves, in a host with groups."""
    default_type: str = ""
    """The type of a handler that says none; empty where the host wants one."""
    idle_types: tuple[str, ...] = ()
    """Types that the host reads and then skips."""
    whole_timeouts: bool = False
    not_events: tuple[str, ...] = ()
    """Keys beside the events."""
    nulls: bool = False
    """Whether ``null`` is the same as absent."""


HOSTS: Mapping[str, Host] = {
    "claude": Host(
        "groups",
        RELAXED,
        {"type": "text", "if": "text", "timeout": "number", "statusMessage": "text", "once": "switch"},
        {
            "command": {**COMMAND, "args": "texts", "async": "switch", "asyncRewake": "switch", "shell": "text",
                "rewakeMessage": "text", "rewakeSummary": "text",
            },
            "http": {**HTTP, "allowedEnvVars": "texts"},
            "mcp_tool": {"server": "text", "tool": "text", "input": "table"},
            "prompt": {"prompt": "text", "model": "text"},
            "agent": {"prompt": "text", "model": "text"},
        },
    ),
    "codex": Host(
        "groups",
        STRICT,
        {"type": "text", "timeout": "number", "statusMessage": "text"},
        {
            "command": {
                **COMMAND, "commandWindows": "text", "async": "switch", "additionalContextLimit": "number"
            },
            "mcp_tool": {"server": "text", "tool": "text", "input": "table"},
            "prompt": {"prompt": "text"},
            "agent": {"prompt": "text"},
        },
        idle_types=("prompt", "agent"),
        whole_timeouts=True,
        not_events=("state", "managed_dir", "windows_managed_dir"),
        nulls=True,
    ),
    "antigravity": Host(
        "groups",
        STRICT,
        {"type": "text", "timeout": "number"},
        {"command": COMMAND, "http": HTTP},
        named=True,
        whole_timeouts=True,
        not_events=("enabled",),
    ),
    "agy": Host(
        "groups",
        STRICT,
        {"type": "text", "timeout": "number"},
        {"command": COMMAND, "prompt": {"prompt": "text", "model": "text"}},
        named=True,
        flat_events=("PreInvocation", "PostInvocation", "Stop", "SessionStart"),
        whole_timeouts=True,
        not_events=("enabled",),
    ),
    "gemini": Host(
        "groups",
        COMMENTS,
        {"type": "text", "timeout": "number", "name": "text", "description": "text"},
        {"command": {**COMMAND, "env": "map"}},
        group={"matcher": "text", "sequential": "switch", "hooks": "any"},
        not_events=("enabled", "disabled", "notifications"),
    ),
    "cursor": Host(
        "flat",
        RELAXED,
        {"type": "text", "timeout": "number", "matcher": "text", "failClosed": "switch", "loop_limit": "null-or-number"},
        {"command": COMMAND, "prompt": {"prompt": "text", "model": "text"}},
        default_type="command",
    ),
}  # fmt: skip

REQUIRED = {
    "command": ("command",),
    "http": ("url",),
    "prompt": ("prompt",),
    "agent": ("prompt",),
    "mcp_tool": ("tool",),
}

CLAUDE_TIMEOUTS = {"prompt": 30.0, "agent": 60.0}
CLAUDE_EVENT_TIMEOUTS = {"UserPromptSubmit": 30.0, "MessageDisplay": 10.0, "SessionEnd": 1.5}
CLAUDE_SESSION_END_MOST = 60.0
CODEX_SESSION_END = (1.0, 3.0)
"""Its default, and the most."""


def default_timeout(dialect: str, event: str, kind: str, usual: float) -> float:
    """Seconds that a handler gets which says nothing. ``usual`` is the dialect's own default."""
    if dialect == "claude":
        return min(CLAUDE_EVENT_TIMEOUTS.get(event, 600.0), CLAUDE_TIMEOUTS.get(kind, usual))
    if dialect == "codex" and event == "SessionEnd":
        return CODEX_SESSION_END[0]
    return usual


def bounded_timeout(dialect: str, event: str, seconds: float) -> float:
    """What the host makes of a timeout that was given."""
    if dialect == "codex":
        return min(max(seconds, 1.0), CODEX_SESSION_END[1] if event == "SessionEnd" else seconds + 1.0)
    if dialect == "claude" and event == "SessionEnd":
        return min(seconds, CLAUDE_SESSION_END_MOST)
    return seconds
