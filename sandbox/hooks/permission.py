"""Claude Code's ``if``: one permission rule that filters a handler. Pure.

It is a filter and no gate: a command that can't be taken apart, or a rule that is not understood, lets the handler
run.
"""

from __future__ import annotations

import os
import re

from stockade.policies.text import quoted
from stockade.sandbox.hooks import patterns
from stockade.sandbox.hooks.match import Matched
from stockade.sandbox.hooks.model import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from stockade.sandbox.hooks.model import HookEvent, HookSpec

RULE = re.compile(r"(?P<tool>[A-Za-z_][\w.*-]*)(?:\((?P<inner>.*)\))?", re.DOTALL)
EVENTS = ("PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest", "PermissionDenied")
"""The only events that have it; on others a handler with it never runs."""
GROUPS = {
    "Edit": ("Edit", "Write", "MultiEdit", "NotebookEdit"),
    "Read": ("Read", "Grep", "Glob", "LS"),
    "Agent": ("Agent", "Task"),
    "Task": ("Agent", "Task"),
}
"""A rule for one tool covers those of its kind."""
PATHS = ("file_path", "path", "notebook_path")
FILE_TOOLS = ("Edit", "Write", "MultiEdit", "NotebookEdit", "Read", "Grep", "Glob", "LS")


def condition_problem(text: str, event: str) -> Problem | None:
    """What is wrong with a rule, whatever the payload."""
    if event not in EVENTS:
        return Problem("if_never", f"a handler with if never runs on {event}")
    if not RULE.fullmatch(text.strip()):
        return Problem("bad_if", f"the rule {quoted(text)} is none, so the handler always runs")
    return None


def condition_holds(spec: HookSpec, event: HookEvent) -> Matched:
    """Whether the rule lets the handler run."""
    problem = condition_problem(spec.condition, spec.event)
    if problem is not None:
        return Matched(problem.code != "if_never", (problem,))
    found = RULE.fullmatch(spec.condition.strip())
    assert found is not None
    tool = event.tool
    if tool is None:
        return Matched(True, (Problem("no_subject", "the event has no tool, which the rule is about"),))
    if not covers(found["tool"], tool.name):
        return Matched(False)
    if found["inner"] is None or found["inner"].strip() in ("", "*"):
        return Matched(True)
    try:
        return judged(found["inner"], tool.name, tool.input, spec, event)
    except patterns.BadPattern as error:
        return unsure(f"the rule {quoted(spec.condition)} can't be tried: {error}")


def unsure(why: str) -> Matched:
    return Matched(True, (Problem("if_unsure", why),))


def covers(rule: str, name: str) -> bool:
    """Whether a rule is about this tool: itself, one of its kind, or all of an MCP server."""
    if rule == name or name in GROUPS.get(rule, ()):
        return True
    if rule.startswith("mcp__"):
        return name.startswith(rule + "__") or ("*" in rule and glob(rule, name, slash=False))
    return False


def judged(inner: str, name: str, given: Any, spec: HookSpec, event: HookEvent) -> Matched:
    fields = given if isinstance(given, dict) else {}
    if name == "Bash":
        return command(inner, fields.get("command"))
    if name in FILE_TOOLS:
        path = next((fields[key] for key in PATHS if isinstance(fields.get(key), str)), None)
        return unsure("the call names no path") if path is None else Matched(path_matches(inner, path, spec, event))
    if name == "WebFetch" and inner.startswith("domain:"):
        return domain(inner.removeprefix("domain:").strip(), fields.get("url"))
    if name in ("Agent", "Task") and isinstance(fields.get("subagent_type"), str):
        return Matched(glob(inner, fields["subagent_type"], slash=False))
    return unsure(f"a rule with {quoted(inner)} for {name} is not understood here")


def domain(wanted: str, url: object) -> Matched:
    from urllib.parse import urlsplit

    try:
        host = urlsplit(url).hostname if isinstance(url, str) else None
    except ValueError:
        host = None
    if host is None:
        return unsure("the call names no host")
    return Matched(glob(wanted.lower(), host.lower(), slash=False))


def command(pattern: str, given: object) -> Matched:
    """Whether any command in a shell's text fits."""
    if not isinstance(given, str):
        return unsure("the call has no command")
    from stockade.sandbox.hooks.shelltext import commands, unfinished

    if unfinished(given) or len(given) > 100_000:
        return unsure("the command can't be taken apart")
    found = commands(given, {})
    if any(each.words and each.words[0].text is None for each in found):
        return unsure("which program the command runs can't be told")
    texts = [given.strip(), *(text for each in found for text in spelt(each.texts()))]
    return Matched(any(fits(pattern, text) for text in texts))


def spelt(texts: tuple[str, ...]) -> Iterator[str]:
    """A simple command, also without what only starts it."""
    from stockade.sandbox.hooks.scripts import launched

    yield " ".join(texts)
    if skip := launched(texts):
        yield " ".join(texts[skip:])


def fits(pattern: str, text: str) -> bool:
    """``git *`` and ``git:*`` are git, alone or with anything behind it; other stars are any text."""
    for ending in (":*", " *"):
        if pattern.endswith(ending) and "*" not in pattern[: -len(ending)]:
            start = pattern[: -len(ending)]
            return text == start or text.startswith(start + " ")
    return glob(pattern, text, slash=False)


def path_matches(pattern: str, path: str, spec: HookSpec, event: HookEvent) -> bool:
    """A pattern as in .gitignore: one without a slash is about the name at any depth."""
    path = os.path.normpath(os.path.join(event.cwd or "/", path))
    if pattern.startswith("//"):
        return glob(pattern[1:], path)
    if pattern.startswith("~/"):
        return glob(os.path.expanduser("~") + pattern[1:], path)
    base = spec.root if pattern.startswith("/") and spec.root else event.project_dir or event.cwd
    inner = pattern.removeprefix("./").lstrip("/").rstrip("/")
    relative = os.path.relpath(path, base) if base else path.lstrip("/")
    if "/" in inner:
        return glob(inner, relative) or glob(inner + "/**", relative)
    if pattern.startswith(("/", "./")):
        return glob(inner, relative) or glob(inner + "/**", relative)
    return any(glob(inner, each) for each in path.split("/"))


def glob(pattern: str, text: str, *, slash: bool = True) -> bool:
    """Whether a pattern with stars is all of a text; with ``slash`` one star stays within a directory."""
    made, at = [], 0
    while at < len(pattern):
        if slash and pattern.startswith("**/", at):
            made.append("(?:.*/)?")
            at += 3
        elif pattern.startswith("**", at):
            made.append(".*")
            at += 2
        elif pattern[at] == "*":
            made.append("[^/]*" if slash else ".*")
            at += 1
        elif pattern[at] == "?" and slash:
            made.append("[^/]")
            at += 1
        else:
            made.append(re.escape(pattern[at]))
            at += 1
    patterns.bounded(pattern)
    return patterns.compiled(rf"^(?s:{''.join(made)}){patterns.END}").found_in(text)
