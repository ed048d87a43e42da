"""The confined rule (pure): a hook that ran confined can allow only by ending as its protocol allows.

``decode`` says what a host would make of a run. Here that is made stricter, never milder: once stockade is the
gate, a hook that crashed, hung, was cut off or never ran is no consent.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.sandbox.hooks.model import HookOutcome, HookRun

BROKEN = (
    "banner", "second_document", "trailing", "bom", "invalid_utf8", "not_a_number", "duplicate_key", "truncated",
    "syntax", "too_deep", "unknown_verdict", "unenforced",
)  # fmt: skip
"""Problems of an answer with which hosts see something else in it, or nothing, each in its own way."""

VERDICT_KEYS = ("decision", "permissionDecision", "permission", "behavior", "result")
REFUSALS = ("deny", "block", "denied", "blocked", "reject", "forbid")
PASSED_ON = (
    "updatedInput", "updated_input", "tool_input", "changes", "overwrite", "updatedToolOutput", "updatedMCPToolOutput",
    "updated_mcp_tool_output", "llm_request", "llm_response", "content", "env",
)  # fmt: skip
FAILED = ("failed", "timed_out", "denied_by_sandbox", "runner_failed", "not_run")


def judge(outcome: HookOutcome, run: HookRun, *, fail_closed: bool = False) -> HookOutcome:
    """What counts. ``outcome`` is the dialect's own reading of ``run``; ``fail_closed`` is for unconfined hooks.

    A deny stays what it is. Anything else of a confined run that has a fault becomes a deny, with the cause.
    """
    if outcome.verdict == "deny" and not run.runner_failed:
        return outcome.replace(status="blocked") if outcome.status == "ok" else outcome
    if run.runner_failed or run.enforcement != "none":
        cause = fault(outcome, run)
        return outcome if not cause else denied(outcome, cause, status_of(run))
    if fail_closed and (outcome.status in FAILED or not run.started):
        return denied(outcome, fault(outcome, run) or "it failed", status_of(run))
    return outcome


def fault(outcome: HookOutcome, run: HookRun) -> str:
    """What keeps a confined run from being a consent; empty when nothing does."""
    how = ending(run)
    if how:
        return how
    broken = [each.text for each in outcome.problems if each.code in BROKEN]
    if outcome.status in FAILED or broken:
        texts = broken or [each.text for each in outcome.problems] or ["it is not what its host reads"]
        return f"its answer can't be used: {texts[0]}"
    if not outcome.halt and refuses(outcome.document):
        return "its answer holds a refusal that its host would not see"
    return ""


def ending(run: HookRun) -> str:
    """How the run ended, where that is not with code 0."""
    if run.runner_failed:
        return run.reason or "the sandbox failed"
    if run.timed_out:
        return run.reason or "it timed out"
    if not run.started or run.spawn_error:
        return run.spawn_error or run.reason or "it was never executed"
    if run.signal is not None:
        return run.reason or f"it was killed by signal {run.signal}"
    if run.exit_code is None:
        return run.reason or "it ended without an exit code"
    if run.exit_code == 2:
        return said(run.stderr) or "it ended with code 2, which refuses, and said nothing"
    if run.exit_code != 0:
        words = said(run.stderr)
        about = f": {words}" if words else ""
        return f"it ended with code {run.exit_code}, which is no answer{about}"
    if run.stdout_truncated or run.stderr_truncated:
        return "its output is longer than limits.output"
    return ""


def said(stderr: bytes) -> str:
    """The end of what it printed for people, for a reason: quoted, never interpreted."""
    return stderr.decode("utf-8", "replace").strip()[-500:]


def status_of(run: HookRun) -> str:
    if run.runner_failed:
        return "runner_failed"
    if run.timed_out:
        return "timed_out"
    if not run.started:
        return "not_run"
    if run.denied:
        return "denied_by_sandbox"
    return "blocked" if run.exit_code == 2 else "failed"


def denied(outcome: HookOutcome, cause: str, status: str) -> HookOutcome:
    """A refusal with its cause, and nothing else of the answer: no rewrite, no text for the model."""
    return outcome.replace(
        verdict="deny",
        reason=cause,
        context=(),
        updated_input=None,
        updated_output=None,
        extras=(),
        source="exit_code" if status == "blocked" else "failure_policy",
        status=status,
    )


def refuses(document: Any) -> bool:
    """Whether a refusal stands anywhere in the levels at which hosts look for one; also of what stands in a list or a text.

    What is passed on for the tool is none of the hook's own words.
    """
    level = list(objects(document))
    for _deep in range(3):
        if any(map(says_no, level)):
            return True
        level = [
            inner
            for each in level
            for key, inner in each.items()
            if isinstance(inner, dict) and key not in PASSED_ON
        ]
    return False


def says_no(level: dict[str, Any]) -> bool:
    """In a word of any host, by ``continue: false``, or by ``block: true``, which no host knows and hooks use."""
    if level.get("continue") is False or level.get("block") is True:
        return True
    said = [level[key] for key in VERDICT_KEYS if isinstance(level.get(key), str)]
    return any(each.strip().lower() in REFUSALS for each in said)


def objects(document: Any) -> tuple[dict[str, Any], ...]:
    """The object that a document is; those of a list, or of a text that holds JSON."""
    if isinstance(document, str) and document.lstrip()[:1] in ("{", "["):
        from stockade.sandbox.hooks.jsontext import NotJson, parse

        try:
            document = parse(document)[0]
        except NotJson:
            return ()
    if isinstance(document, dict):
        return (document,)
    return tuple(each for each in document if isinstance(each, dict)) if isinstance(document, list) else ()
