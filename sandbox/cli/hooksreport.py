"""What ``stockade hooks run`` tells besides the answer: the document, the table of hosts, what never fired and why."""

from __future__ import annotations

import sys

from stockade.sandbox.cli.document import render
from stockade.sandbox.cli.style import colour_on, escape, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stockade.policies.errors import StockadeError
    from stockade.sandbox.hooks.aggregate import Aggregate, HandlerResult
    from stockade.sandbox.hooks.explain import Explained
    from stockade.sandbox.hooks.runner import HookRunner

COLOURS = {"denied": "red", "goes ahead": "green", "allowed": "green", "asked": "yellow", "deferred": "yellow"}
MOST_SKIPPED = 20


def print_document(
    found: Aggregate, late: Sequence[HandlerResult], event: str, runner: HookRunner, *, explain: bool
) -> None:
    """``"schema": "stockade.hooks/1"``. ``explain`` adds what each host would make of each end."""
    document = {**found.to_json(), "event": event, "dialect": runner.language.NAME}
    document["detached_results"] = [each.to_json() for each in late]
    if explain:
        document["hosts"] = {
            each.label: [brief(one) for one in explained(each, event)] for each in (*found.results, *late)
        }
    sys.stdout.write(render(document))


def brief(one: Explained) -> dict[str, Any]:
    """Without the outcome: that is the same answer read once more."""
    problems = [each.as_dict() for each in one.outcome.problems] if one.outcome is not None else []
    fields = {name: value for name, value in one.as_dict().items() if name != "outcome"}
    return {**fields, "problems": problems}


def print_error(error: StockadeError) -> None:
    from stockade.sandbox.hooks.aggregate import SCHEMA

    told = {"type": type(error).__name__, **vars(error)}
    sys.stdout.write(render({"schema": SCHEMA, "decision": "deny", "reason": error.message, "error": told}))


def explained(result: HandlerResult, event: str) -> tuple[Explained, ...]:
    """What each host would make of a command's end; nothing for other handlers, and for events that no host has."""
    from stockade.policies.errors import RequestError
    from stockade.sandbox.hooks.explain import explain_across

    if result.run is None:
        return ()
    try:
        return explain_across(result.run, event)
    except RequestError:
        return ()


def print_table(found: Aggregate, late: Sequence[HandlerResult], event: str, runner: HookRunner) -> None:
    """What it comes to; then a row for each handler: how it ended, how long it took, and what each host would make of
    that."""
    from stockade.sandbox.hooks.dialects import NAMES

    because = f": {found.reason}" if found.reason else ""
    sys.stdout.write(escape(f"{event} ({runner.language.NAME}): {found.decision}{because}") + "\n")
    results = (*found.results, *late)
    if not results:
        return
    rows: list[list[str | tuple[str, str]]] = [["HANDLER", "END", "TIME", *NAMES]]
    for result in results:
        views = {one.dialect: one for one in explained(result, event)}
        cells: list[str | tuple[str, str]] = [result.label, ending(result), f"{result.duration * 1000:.0f} ms"]
        rows.append(cells + [cell(views[name]) if name in views else "-" for name in NAMES])
    sys.stdout.write(table(rows, colour_on(sys.stdout), header=True))
    for result in results:
        for one in explained(result, event):
            for problem in one.outcome.problems if one.outcome is not None else ():
                sys.stdout.write(escape(f"{result.label}: {one.dialect}: {problem.text} ({problem.code})") + "\n")


def cell(one: Explained) -> str | tuple[str, str]:
    text = f"{one.effect}, halt" if one.halt else one.effect
    text += " (?)" if one.provisional else ""
    return (text, COLOURS[one.effect]) if one.effect in COLOURS else text


def ending(result: HandlerResult) -> str:
    run = result.run
    if run is None or run.runner_failed or not run.started:
        return result.outcome.status
    if run.timed_out:
        return "timed out"
    return f"signal {run.signal}" if run.signal is not None else f"exit {run.exit_code}"


def say_what_is_odd(found: Aggregate, event: str, runner: HookRunner) -> None:
    """Lines on stderr: handlers that failed, notes, and where none fired at all, why each of them did not."""
    from stockade.sandbox.cli.main import say
    from stockade.sandbox.hooks.judge import FAILED

    for result in found.results:
        if result.outcome.status in FAILED:
            say(f"{result.label}: {result.outcome.status.replace('_', ' ')}: {result.cause}")
    for note in found.notes:
        say(note)
    fired = bool(found.results or found.detached)
    for problem in runner.problems:
        if not fired or problem.severity == "high":
            say(f"{problem.place}: {problem.text}. {problem.remedy}")
    if fired:
        return
    say(f"no handler of {', '.join(runner.files)} runs for {event}")
    places = {entry.label: entry.spec for entry in runner.registry.entries}
    for each in found.skipped[:MOST_SKIPPED]:
        spec = places[each.label]
        say(f"  {each.label} (line {spec.line}): {each.why}", plain=True)
    if len(found.skipped) > MOST_SKIPPED:
        say(f"  and {len(found.skipped) - MOST_SKIPPED} more", plain=True)
