"""The neutral model of hooks: one event, one handler, one run, what its answer means, and what several come to.

Pure values. What a host calls these things, and what it makes of them, is its dialect's business.
"""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

KINDS = (
    "session_start", "session_end", "setup", "prompt_submit", "pre_tool", "permission_request", "post_tool",
    "post_tool_failure", "post_tool_batch", "pre_model", "post_model", "tool_selection", "stop", "stop_failure",
    "subagent_start", "subagent_stop", "pre_compact", "post_compact", "notification", "file_read", "file_edit",
    "config_change", "other",
)  # fmt: skip
"""Canonical kinds of events. The host's own name is always kept beside them."""

VERDICTS = ("deny", "defer", "ask", "allow", "none")
"""What an answer can say, strictest first. ``none`` is no objection."""


class Problem(Record):
    """Something that is wrong with an answer or a handler: a code for programs, a text for people."""

    code: str
    text: str


class ToolCall(Record):
    """The tool that an event is about."""

    name: str
    input: Any = None
    use_id: str = ""


class EventRule(Record):
    """What a host makes of the answers to one of its events."""

    kind: str
    """The canonical kind."""
    blocks: bool = False
    """Whether a deny keeps something from happening."""
    feedback: bool = False
    """Whether a deny, which comes too late, still reaches the model."""


class HookEvent(Record):
    """One event as a host tells it."""

    dialect: str
    name: str
    """The host's own name of it."""
    kind: str
    raw: Mapping[str, Any]
    """The payload, untouched."""
    cwd: str = ""
    session_id: str = ""
    project_dir: str = ""
    transcript_path: str = ""
    tool: ToolCall | None = None


class HookSpec(Record):
    """One handler of a settings or hooks file, in neutral terms."""

    dialect: str
    event: str
    """The host's own name."""
    kind: str
    form: str
    """``argv``, ``shell``, ``http``; ``prompt``, ``agent``, ``mcp_tool`` and the like are listed, never run."""
    command: str | tuple[str, ...] = ()
    """A shell's text, or a program and its arguments."""
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    header_variables: tuple[str, ...] = ()
    """Variables that may be put into headers."""
    matcher: str | None = None
    condition: str = ""
    """The host's own further filter (Claude's ``if``)."""
    timeout: float = 0.0
    """Seconds, whatever unit the file has."""
    timeout_given: bool = False
    env: tuple[tuple[str, str], ...] = ()
    name: str = ""
    asynchronous: bool = False
    once: bool = False
    enabled: bool = True
    sequential: bool = False
    fail_closed: bool = False
    priority: int = 0
    source: str = ""
    """The file that it stands in."""
    pointer: str = ""
    """Where in that file (JSON pointer, RFC 6901)."""
    line: int = 0
    column: int = 0
    root: str = ""
    """The directory of the plugin, extension or project that it belongs to."""
    provenance: str = ""
    """``user``, ``project``, ``plugin`` ...: the kind of place that the file is."""
    raw: Mapping[str, Any] = {}
    """The handler's own entry, untouched."""


class HookRun(Record):
    """How one handler ended, by evidence: what a dialect reads an answer from."""

    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    started: bool = True
    spawn_error: str = ""
    """Why it was never executed; empty when it was."""
    runner_failed: bool = False
    """The sandbox, not the handler, failed or refused."""
    reason: str = ""
    """The runner's own account of the end."""
    enforcement: str = "none"
    """``full``, ``partial`` or ``none``."""
    denied: bool = False
    duration: float = 0.0
    argv: tuple[str, ...] = ()


class HookOutcome(Record):
    """What one handler's end means to its host."""

    verdict: str = "none"
    halt: bool = False
    """The whole turn is to end, whatever the verdict."""
    stop_reason: str = ""
    reason: str = ""
    context: tuple[str, ...] = ()
    """Text for the model."""
    system_messages: tuple[str, ...] = ()
    """Text for the user."""
    updated_input: Any = None
    update_mode: str = "replace"
    """``replace`` the tool's input, or ``merge`` over it."""
    updated_output: Any = None
    extras: tuple[tuple[str, Any], ...] = ()
    """Fields of the dialect that are not modelled here."""
    source: str = "none"
    """What the verdict comes from: ``json``, ``exit_code``, ``failure_policy``, ``not_run``, ``none`` (said nothing)."""
    status: str = "ok"
    """``ok``, ``blocked``, ``failed``, ``timed_out``, ``denied_by_sandbox``, ``runner_failed`` or ``not_run``."""
    problems: tuple[Problem, ...] = ()
    document: Any = None
    """The JSON document that was answered, if there was one."""


class MergedOutcome(Record):
    """What all handlers of one event come to."""

    verdict: str = "none"
    halt: bool = False
    stop_reason: str = ""
    reason: str = ""
    """The reasons of the strictest verdict, in order of configuration."""
    winners: tuple[int, ...] = ()
    """Which outcomes gave that verdict."""
    context: tuple[str, ...] = ()
    system_messages: tuple[str, ...] = ()
    updated_input: Any = None
    update_mode: str = "replace"
    updated_output: Any = None
    extras: tuple[tuple[str, Any], ...] = ()
    conflicts: tuple[Problem, ...] = ()
    outcomes: tuple[HookOutcome, ...] = ()


class Reply(Record):
    """What a hook process says to its host."""

    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int = 0
