"""Checks of what a handler's code answers: its decisions, their reasons, the streams and exit codes they go by. Pure.

Readings of somebody else's source by patterns: each says what was seen and where, none proves anything.
"""

from __future__ import annotations

import re
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stockade.sandbox.hooks.checks.about import About, Code
    from stockade.sandbox.hooks.finding import Finding

Q = r"\\{0,2}[\"']?"
"""A quote, an escaped one, or none."""
FIELD = rf"{Q}\b(?:permissionDecision|permission|decision|behavior){Q}\s*[:=]\s*{Q}"
VERDICT = re.compile(rf"{FIELD}(?:deny|block|ask|allow)\b")
DENY = re.compile(rf"{FIELD}(?:deny|block)\b")
REASON = re.compile(
    rf"{Q}\b(?:permissionDecisionReason|reason|message){Q}\s*[:=,}}]\s*(?P<empty>\\?[\"']\\?[\"'](?![\"']))?"
)
NESTED = re.compile(rf"{Q}\bhookSpecificOutput{Q}\s*[:=]\s*\{{")
NESTED_OPEN = re.compile(r"hookSpecificOutput\W*$")
BLOCK_FIELD = re.compile(rf"[{{,]\s*{Q}block{Q}\s*:\s*(?:true|True)\b")
TO_STDERR = re.compile(
    r">\s*&\s*2|file\s*=\s*sys\.stderr|sys\.stderr\.write|console\.error|process\.stderr\.write|/dev/stderr"
)
SPEAKS = re.compile(r"\b(?:echo|print|printf|console|cat)\b|stdout\.write")
EXIT = re.compile(r"(?:sys\.exit|process\.exit|\bos\._exit|\bexit)[ \t(]+(\d+)\b")
EXIT_2 = re.compile(r"(?:sys\.exit|process\.exit|\bos\._exit|\bexit)[ \t(]+2\b|process\.exitCode\s*=\s*2\b")
STATEMENT_END = re.compile(r"[;\n]")
MOST_HITS = 200
REACH = 2000
"""As many places of one kind are looked at in one text."""
NEAR = 3
"""Lines that belong together, for an eye."""


def answers(about: About, code: Code) -> Iterator[Finding]:
    """What it says to its host."""
    spec = about.spec
    if spec.dialect == "codex" and (bad := first(DENY, code, lambda around: not reasoned(around))):
        text = "it denies without a reason: Codex takes the whole answer for invalid and goes ahead"
        yield about.told(
            "deny_without_reason", "high", text, "Give a reason that is not empty.", inside=code, at=bad.start()
        )
    if spec.dialect != "gemini" and (bad := on_stderr(code)):
        severity = "medium" if EXIT_2.search(code.text) else "high"
        text = "it writes its decision to stderr, where no host reads one"
        yield about.told("json_on_stderr", severity, text, "Write it to stdout.", inside=code, at=bad.start())
    if spec.dialect in ("claude", "codex"):
        for found in islice(NESTED.finditer(code.text), MOST_HITS):
            if "hookEventName" not in enclosed(code.text, found.end() - 1):
                text = "hookSpecificOutput has no hookEventName, so the host discards it"
                remedy = f'Add "hookEventName": "{spec.event}".'
                yield about.told("no_event_name", "high", text, remedy, inside=code, at=found.start())
                break
    if found_block := BLOCK_FIELD.search(code.text):
        text = '"block": true is a field that no host defines, so it blocks nothing'
        remedy = "Use the host's own decision, or exit code 2 with a reason on stderr."
        yield about.told("undefined_field", "high", text, remedy, inside=code, at=found_block.start())


def reasoned(around: str) -> bool:
    """Whether a decision has a reason that is not empty."""
    return any(not found["empty"] for found in REASON.finditer(around))


def first(pattern: re.Pattern[str], code: Code, fits: Callable[[str], bool]) -> re.Match[str] | None:
    """The first hit whose surroundings fit."""
    return next(
        (
            found
            for found in islice(pattern.finditer(code.text), MOST_HITS)
            if fits(around_of(code.text, found.start()))
        ),
        None,
    )


def around_of(text: str, at: int) -> str:
    """The braces around a place, with those around ``hookSpecificOutput`` too; its line where there are none near."""
    start = opening(text, at)
    if start is not None and NESTED_OPEN.search(text[max(start - 40, 0) : start]):
        outer = opening(text, start)
        start = start if outer is None else outer
    if start is not None:
        return enclosed(text, start)
    end = text.find("\n", at)
    return text[text.rfind("\n", 0, at) + 1 : end if end >= 0 else len(text)]


def opening(text: str, at: int) -> int | None:
    """Where the brace around a place opens, within reach."""
    deep = 0
    for start in range(at - 1, max(at - 800, -1), -1):
        if text[start] == "{" and deep == 0:
            return start
        deep += {"}": 1, "{": -1}.get(text[start], 0)
    return None


def enclosed(text: str, start: int) -> str:
    """From an opening brace to the one that closes it, at most a page."""
    deep = 0
    for at in range(start, min(start + 2000, len(text))):
        deep += {"{": 1, "}": -1}.get(text[at], 0)
        if not deep:
            return text[start : at + 1]
    return text[start : start + 2000]


def on_stderr(code: Code) -> re.Match[str] | None:
    """A decision that is written to stderr by the same statement."""
    for found in islice(VERDICT.finditer(code.text), MOST_HITS):
        begin = max(code.text.rfind("\n", 0, found.start()), code.text.rfind(";", 0, found.start())) + 1
        limit = min(found.end() + REACH, len(code.text))
        end = STATEMENT_END.search(code.text, found.end(), limit)
        if TO_STDERR.search(code.text, max(begin, found.start() - REACH), end.start() if end else limit):
            return found
    return None


def ends(about: About, code: Code) -> Iterator[Finding]:
    """How it ends where it denies."""
    name = about.spec.dialect
    if name in ("codex", "antigravity", "agy", "cursor") and (bad := odd_exit(code)):
        text = f"it answers in JSON and ends with {bad[1]}; the host reads an answer on exit code 0 alone"
        yield about.told("json_and_exit", "high", text, "End with 0 behind an answer.", inside=code, at=bad.start())
    found = EXIT_2.search(code.text)
    if found is None:
        return
    if name == "antigravity" and about.blocks and not DENY.search(code.text):
        text = "exit code 2 blocks nothing here: every code but 0 lets the call go ahead"
        remedy = 'Write {"decision": "deny", "reason": ...} and end with 0.'
        yield about.told("exit_2_ignored", "high", text, remedy, inside=code, at=found.start())
    speaks = TO_STDERR.search(code.text) or (name == "gemini" and SPEAKS.search(code.text))
    if name in ("codex", "gemini") and not speaks:
        text = "it ends with 2 and says nothing on stderr; the host takes that for a failure and goes ahead"
        yield about.told(
            "silent_exit_2", "high", text, "Write the reason to stderr.", inside=code, at=found.start()
        )


def odd_exit(code: Code) -> re.Match[str] | None:
    """An exit with another code than 0 and 2 right behind a decision."""
    for verdict in islice(VERDICT.finditer(code.text), MOST_HITS):
        reach = verdict.end()
        for _line in range(NEAR + 1):
            reach = code.text.find("\n", reach + 1, verdict.end() + REACH)
            if reach < 0:
                reach = min(verdict.end() + REACH, len(code.text))
                break
        found = EXIT.search(code.text, verdict.end(), reach)
        if found and found[1] not in ("0", "2"):
            return found
    return None
