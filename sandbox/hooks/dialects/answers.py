"""What an end and an answer hold, where dialects agree: runs without an answer, tables of fields. Pure.

No verdict comes from a text on stderr: it is a reason, or the subject of a problem.
"""

from __future__ import annotations

from stockade.policies.text import quoted
from stockade.sandbox.hooks import jsontext
from stockade.sandbox.hooks.model import HookOutcome, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from stockade.sandbox.hooks.model import HookRun

    Fields = Mapping[str, type | tuple[str, ...]]
    """Names of fields, with the type or the words that each takes."""


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MOST_REASON = 8000
"""Characters of a reason; some hosts move longer ones to a file."""

ANSWER_FIELDS = words(
    "additionalContext additional_context agentMessage agent_message changes clearContext continue decision followup_message"
    " hookSpecificOutput injectSteps overwrite permission permissionDecision permissionDecisionReason permissionOverrides"
    " reason result stopReason suppressOutput systemMessage tailToolCallRequest terminationBehavior tool_input updatedInput"
    " updated_input updatedToolOutput updatedMCPToolOutput updated_mcp_tool_output userMessage user_message"
)
"""Fields of answers in any dialect: one that a host does not know is likely meant for another host."""

ACCIDENTS = (
    "can't open file ", "cannot open ", ": error: ", "syntax error", "Syntax error", "SyntaxError", "No such file or",
    "command not found", ": not found", "grep: ", "cannot access", "invalid option", "unrecognized option",
    "illegal option", "Permission denied",
)  # fmt: skip
"""Words of interpreters and tools that end with 2 themselves."""


# --- how a run ended ------------------------------------------------------------------------------------------


def stderr_text(run: HookRun) -> str:
    return bounded(run.stderr.decode("utf-8", "replace").strip(), MOST_REASON)


def bounded(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def no_answer(run: HookRun, verdict: str = "none") -> HookOutcome | None:
    """The outcome of a run that no answer can be read from: it never ran, or was ended; else None."""
    if run.runner_failed:
        status, source = "runner_failed", "not_run"
    elif not run.started or run.spawn_error:
        status, source = "not_run", "not_run"
    elif run.timed_out:
        status, source = "timed_out", "failure_policy"
    else:
        return None
    cause = run.reason or run.spawn_error or {"timed_out": "it ran out of time"}.get(status, "it was not run")
    return HookOutcome(
        verdict,
        reason=cause if verdict == "deny" else "",
        source=source,
        status=status,
        problems=(Problem(status, cause), *stderr_json(run)),
    )


def ending(run: HookRun) -> str:
    if run.signal is not None:
        return f"it was killed by signal {run.signal}"
    return "its exit code is not known" if run.exit_code is None else f"it ended with exit code {run.exit_code}"


def failed(run: HookRun, problems: Collection[Problem], verdict: str = "none", document: Any = None) -> HookOutcome:
    """The hook failed, or its answer is invalid; ``verdict`` is what the host makes of that."""
    ended = (
        (Problem("signal" if run.signal is not None else "exit_code", ending(run)),) if run.exit_code != 0 else ()
    )
    all_problems = (*problems, *ended)
    return HookOutcome(
        verdict,
        reason="; ".join(each.text for each in all_problems) if verdict == "deny" else "",
        source="failure_policy",
        status="denied_by_sandbox" if run.denied else "failed",
        problems=all_problems,
        document=document,
    )


def beside_end(run: HookRun, answer: HookOutcome) -> HookOutcome:
    """For hosts where a JSON answer decides whatever the end: that it was no good end shows all the same."""
    if run.exit_code == 0 and run.signal is None:
        return answer
    code = "exit_code" if run.signal is None else "signal"
    told = Problem(code, f"{ending(run)}, which does not count beside a JSON answer")
    status = "failed" if run.exit_code is None and answer.verdict != "deny" else answer.status
    return answer.replace(problems=(*answer.problems, told), status=status)


def blocked(run: HookRun, problems: Collection[Problem], reason: str = "", document: Any = None) -> HookOutcome:
    """The exit code denies; the reason is the one given, else what stands on stderr."""
    return HookOutcome(
        "deny",
        reason=reason or stderr_text(run),
        source="exit_code",
        status="blocked",
        problems=(*problems, *accident(run)),
        document=document,
    )


def accident(run: HookRun) -> tuple[Problem, ...]:
    """Whether an exit code 2 looks like the interpreter's own, or says nothing."""
    if run.exit_code != 2:
        return ()
    if not run.stderr.strip():
        return (Problem("empty_stderr", "exit code 2 with nothing on stderr"),)
    text = run.stderr[:65536].decode("utf-8", "replace")
    if any(each in text for each in ACCIDENTS):
        return (Problem("likely_accident", "exit code 2 looks like the interpreter's own, not like a decision"),)
    return ()


def stderr_json(run: HookRun) -> tuple[Problem, ...]:
    """Whether an answer stands on the wrong stream."""
    if run.stdout.strip() or not run.stderr.lstrip().startswith(b"{"):
        return ()
    if jsontext.read(run.stderr).form != "object":
        return ()
    return (Problem("json_on_stderr", "a JSON document stands on stderr, stdout is empty"),)


def read(run: HookRun, *, text_counts: bool = False) -> jsontext.Document:
    """What stdout holds, with everything odd about it; a cut stream holds nothing usable.

    ``text_counts``: text that is no JSON is an answer, too.
    """
    if run.stdout_truncated:
        found = Problem("truncated", "stdout was cut off, it is longer than what is kept")
        return jsontext.Document("broken", None, run.stdout.decode("utf-8", "replace"), (found,))
    document = jsontext.read(run.stdout)
    if document.has("invalid_utf8"):
        # Hosts read bad bytes as U+FFFD: a deny with one in its reason stays a deny.
        again = jsontext.read(run.stdout.decode("utf-8", "replace").encode())
        document = again.replace(problems=(*document.problems[:1], *again.problems))
    more = stderr_json(run)
    if document.form not in ("empty", "object") and not (text_counts and document.form == "text"):
        more = (*more, Problem("not_json", "stdout holds no JSON object"))
    return document.replace(problems=(*document.problems, *more))


# --- what a document says ------------------------------------------------------------------------------------


def misfits(
    given: Mapping[str, Any], fields: Fields, elsewhere: Collection[str] = (), *, nulls: bool = False
) -> tuple[list[Problem], list[Problem]]:
    """What the host stumbles over in an object (wrong types and words), and what it passes over (unknown keys).

    ``elsewhere`` are fields that exist at another level of the answer.
    """
    wrong, ignored = [], []
    for key, value in given.items():
        wanted = fields.get(key)
        if wanted is None:
            ignored.append(stray(key, elsewhere))
        elif nulls and value is None:
            continue
        elif isinstance(wanted, tuple):
            if value not in wanted:
                wrong.append(
                    Problem("unknown_verdict", f"{key} is {quoted(value)}, not one of {', '.join(wanted)}")
                )
        elif not isinstance(value, wanted):
            wrong.append(Problem("wrong_type", f"{key} has the wrong type: {quoted(value)}"))
    return wrong, ignored


def fitting(extras: Collection[tuple[str, Any]], names: Collection[str], fields: Fields) -> dict[str, Any]:
    """Those of the other fields that the host takes: one of a wrong type would cost it the whole answer."""
    found = {}
    for key, value in extras:
        wanted = fields.get(key)
        if key in names and isinstance(wanted, type) and isinstance(value, wanted):
            found[key] = value
    return found


def stray(key: str, elsewhere: Collection[str]) -> Problem:
    if key in elsewhere:
        return Problem("misplaced_field", f"{quoted(key)} does not count where it stands")
    if key in ANSWER_FIELDS:
        return Problem("foreign_field", f"{quoted(key)} is a field of another host")
    return Problem("unknown_key", f"{quoted(key)} is no field of this host")


def texts(*values: Any) -> tuple[str, ...]:
    """The values that are texts and say something."""
    return tuple(value for value in values if isinstance(value, str) and value.strip())
