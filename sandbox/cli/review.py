"""``stockade review``: what hooks that somebody else wrote do, before they are installed."""

from __future__ import annotations

import os
import sys

from stockade.policies.record import Record
from stockade.sandbox.cli import exits, shared
from stockade.sandbox.cli.document import render, reserve
from stockade.sandbox.cli.hooks_list import DIALECT
from stockade.sandbox.cli.options import APPEND, FLAG, OPTIONAL_FILE, VALUE, Option, UsageError, parse, render_help
from stockade.sandbox.cli.style import colour_on, escape
from stockade.sandbox.review.model import SEVERITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import ExitStack
    from typing import IO, Any

    from stockade.sandbox.review.bench import Bench
    from stockade.sandbox.review.model import Review, ReviewFinding
    from stockade.sandbox.review.parallel import Progress
    from stockade.sandbox.review.suggest import Suggestion

USAGE = "stockade review [OPTIONS] PATH\n       stockade review [OPTIONS] OLD NEW"
SUMMARY = """\
Run every handler of a plugin, a repository, a hooks file or a single script in the recorder, with planted credentials \
and nothing that can leave, and report what it does. With two paths: what changed in behaviour from OLD to NEW. Nothing \
of the tree is executed outside of the sandbox."""
EPILOG = (
    "Exit codes: 0 nothing as bad as LEVEL; 1 something is (of two versions: something new is); 125 it could not be\n"
    "reviewed, or not all of it: a handler that was not exercised is never taken for a clean one."
)
OPTIONS = (
    Option(("--fail-on",), "level", VALUE, "LEVEL", f"exit with 1 from this on: {', '.join(SEVERITIES)} (high)"),
    Option(("--accept-unreviewed",), "accept", FLAG, "", "let handlers that could not be exercised be no failure"),
    Option(("--suggest-policy",), "suggest", OPTIONAL_FILE, "FILE", "print the narrowest policy that does (or write it)"),
    Option(("--html",), "html", VALUE, "FILE", "write a report for people, in one file", "Reports"),
    Option(("--sarif",), "sarif", VALUE, "FILE", "write the findings as SARIF 2.1.0", "Reports"),
    shared.JSON.replace(group="Reports"),
    DIALECT.replace(group="Runs"),
    Option(("--case",), "case", APPEND, "NAME", "only this event of the corpus", "Runs"),
    Option(("--jobs",), "jobs", VALUE, "N", "runs at once (as many as there are cores)", "Runs"),
    Option(("--timeout",), "timeout", VALUE, "SECONDS", "for each run (5)", "Runs"),
    Option(("--budget",), "budget", VALUE, "SECONDS", "for everything; what is left then is not reviewed", "Runs"),
    shared.HELP,
)  # fmt: skip


class Asked(Record):
    """What a command line says."""

    paths: tuple[str, ...]
    level: str
    accept: bool
    suggest: str | bool | None
    json: str | bool | None
    html: str | None
    sarif: str | None
    runs: dict[str, Any]
    """Arguments of ``review``."""


def main(argv: Sequence[str]) -> int:
    parsed = parse(OPTIONS, argv, rest="args")
    if parsed.values["help"]:
        sys.stdout.write(render_help(USAGE, SUMMARY, OPTIONS, EPILOG))
        return exits.OK
    asked = understood(parsed.values, parsed.rest)
    return compared(asked) if len(asked.paths) == 2 else reviewed(asked)


def understood(values: dict[str, Any], paths: Sequence[str]) -> Asked:
    """Raises UsageError for what can't be meant."""
    if not 1 <= len(paths) <= 2:
        cause = "no path was given" if not paths else f"{escape(paths[2])!r} is one too many"
        raise UsageError(f"could not review: {cause}", remedy="Name a path, or an old and a new one.")
    level = values["level"] or "high"
    if level not in SEVERITIES:
        remedy = f"Use one of {', '.join(SEVERITIES)}."
        raise UsageError(f"could not use --fail-on {escape(str(level))!r}: it is no severity", remedy=remedy)
    if len(paths) == 2 and (values["html"] or values["sarif"] or values["suggest"]):
        raise UsageError(
            "could not combine two paths with --html, --sarif or --suggest-policy: those are about one version",
            remedy="Review NEW alone for them.",
        )
    runs = {
        "dialect": values["dialect"],
        "cases": values["case"] or None,
        "jobs": number(values["jobs"], "--jobs", whole=True),
        "budget": number(values["budget"], "--budget"),
    }
    timeout = number(values["timeout"], "--timeout")
    runs |= {} if timeout is None else {"timeout": timeout}
    kept = {name: values[name] for name in ("accept", "suggest", "json", "html", "sarif")}
    return Asked(tuple(paths), level, runs=runs, **kept)


def number(text: str | None, flag: str, *, whole: bool = False) -> Any:
    """A number above 0; None for None. Raises UsageError."""
    if text is None:
        return None
    try:
        value = int(text) if whole else float(text.removesuffix("s"))
    except ValueError:
        value = 0
    if not 0 < value < 1e6:
        kind = "a whole number" if whole else "seconds"
        raise UsageError(f"could not use {flag} {escape(text)!r}", remedy=f"Give {kind} above 0.")
    return value


# --- one version ---------------------------------------------------------------------------------------------


def reviewed(asked: Asked) -> int:
    from contextlib import ExitStack

    if asked.html is not None:
        from stockade.sandbox.review import html

        html.ready()
    with ExitStack() as stack:
        files = {name: opened(stack, getattr(asked, name), asked) for name in ("json", "html", "sarif", "suggest")}
        review, suggestion = carried_out(asked)
        for name, text in reports(review, suggestion, asked):
            file = files[name]
            (file or sys.stdout).write(text)
        stream = sys.stderr if asked.suggest is True or asked.json is True else sys.stdout
        if asked.json is not True:
            stream.write(told(review, stream))
            stream.write(suggestion.table(colour_on(stream)) if suggestion is not None else "")
    return code(review, review.findings, asked)


def opened(stack: ExitStack, path: str | bool | None, asked: Asked) -> IO[str] | None:
    """A file for a report, before anything runs. In the reviewed tree no link is followed: it may have been planted."""
    if not isinstance(path, str):
        return None
    places = [os.path.realpath(each) for each in asked.paths]
    return stack.enter_context(
        reserve(path, [each if os.path.isdir(each) else os.path.dirname(each) for each in places])
    )


def carried_out(asked: Asked) -> tuple[Review, Suggestion | None]:
    """The review, and what it suggests: tried while everything is still set up for it."""
    from stockade.sandbox.review.observed import given
    from stockade.sandbox.review.review import exercise_again, review
    from stockade.sandbox.review.suggest import suggest

    made: list[Suggestion | None] = [None]

    def then(bench: Bench, found: Review) -> Review:
        ran = {run.handler for run in given(found)}
        handlers = [each for each in found.handlers if each.label in ran]
        more = {name: value for name, value in asked.runs.items() if name in ("timeout", "cases")}
        made[0] = suggest(found, lambda policy: exercise_again(handlers, bench, policy=policy, **more))
        return found

    after = then if asked.suggest is not None else None
    with Counter() as progress:
        return review(asked.paths[0], progress=progress, then=after, **asked.runs), made[0]


def reports(review: Review, suggestion: Suggestion | None, asked: Asked) -> Iterator[tuple[str, str]]:
    """The reports that were asked for, by name: the only place that knows who writes which."""
    if asked.json is not None:
        from stockade.sandbox.review import document

        extra = {"suggestion": suggestion.to_json()} if suggestion is not None else {}
        yield "json", render({**document.render(review), **extra})
    if asked.html is not None:
        from stockade.sandbox.review import html

        yield "html", html.render(review)
    if asked.sarif is not None:
        from stockade.sandbox.review import sarif

        yield "sarif", sarif.render(review, prefix=from_here(asked.paths[0]))
    if asked.suggest is not None and suggestion is not None and not (asked.suggest is True and asked.json is True):
        yield "suggest", suggestion.toml


def from_here(path: str) -> str:
    """The way to the reviewed directory from the current one, which is a checkout's root in CI; empty for any other."""
    folder = os.path.realpath(path if os.path.isdir(path) else os.path.dirname(path) or os.curdir)
    way = os.path.relpath(folder, os.path.realpath(os.curdir))
    return "" if way == os.curdir or way.split(os.sep)[0] == os.pardir else way


def told(review: Review, stream: Any) -> str:
    """The summary; on a terminal as large as that is."""
    import shutil

    from stockade.sandbox.review import text

    if not stream.isatty():
        return text.render(review, height=1000)
    size = shutil.get_terminal_size()
    return text.render(review, on=colour_on(stream), width=max(size.columns, 40), height=max(size.lines - 1, 12))


def code(review: Review, findings: Sequence[ReviewFinding], asked: Asked) -> int:
    """1 outranks 125: what was found stands, whatever else was not looked at."""
    from stockade.sandbox.review.summary import summarise

    if any(SEVERITIES.index(each.severity) <= SEVERITIES.index(asked.level) for each in findings):
        return exits.NOT_GOOD
    return exits.FAILED if summarise(review).not_reviewed and not asked.accept else exits.OK


# --- two versions --------------------------------------------------------------------------------------------


def compared(asked: Asked) -> int:
    from contextlib import ExitStack

    from stockade.sandbox.review.changes import lines
    from stockade.sandbox.review.compare import compare
    from stockade.sandbox.review.review import review

    with ExitStack() as stack:
        file = opened(stack, asked.json, asked)
        with Counter() as progress:
            old, new = (review(path, progress=progress, **asked.runs) for path in asked.paths)
        found = compare(old, new)
        if asked.json is not None:
            (file or sys.stdout).write(render(found.to_json()))
        if asked.json is not True:
            sys.stdout.write("".join(f"{each}\n" for each in lines(found, colour_on(sys.stdout))))
    return max(code(old, (), asked), code(new, found.appeared, asked), key=lambda each: (each == 1, each))


# --- progress ------------------------------------------------------------------------------------------------


class Counter:
    """A line that counts runs, on a terminal and only after a second; a context manager that takes it away again."""

    def __init__(self) -> None:
        import time

        self.clock = time.monotonic
        self.began = self.clock()
        self.on = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.shown = False

    def __enter__(self) -> Callable[[Progress], None]:
        return self.show

    def __exit__(self, *_raised: object) -> None:
        if self.shown:
            self._write("")

    def show(self, state: Progress) -> None:
        if self.on and self.clock() - self.began > 1:
            self.shown = True
            self._write(f"{state.done} of {state.total} runs")

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
