"""``stockade hooks run``: all handlers of one event, as their host would run them, and what they come to."""

from __future__ import annotations

import os
import sys

from stockade.policies.errors import RequestError, StockadeError
from stockade.sandbox.cli import exits, shared
from stockade.sandbox.cli.options import APPEND, FLAG, VALUE, Option, UsageError, parse, render_help
from stockade.sandbox.keeperlink import fork_keeper_if_ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stockade.sandbox.hooks.aggregate import Aggregate, HandlerResult
    from stockade.sandbox.hooks.dialects.base import Dialect
    from stockade.sandbox.hooks.runner import HookRunner

OPTIONS = (
    Option(("--config",), "config", APPEND, "FILE|DIR", "a hooks or settings file, or a project (default: this)", "Hooks"),
    Option(("--event",), "event", VALUE, "NAME", "the host's name of it, or a kind (default: as the event says)", "Hooks"),
    Option(("--dialect",), "dialect", VALUE, "NAME", "whose protocol it is (default: as the file says)", "Hooks"),
    Option(("--trusted",), "trusted", FLAG, "", "the handlers are yours: run them directly unless a mode is set", "Hooks"),
    Option(("--fail-closed",), "fail_closed", FLAG, "", "a trusted handler that fails counts as a deny too", "Hooks"),
    Option(("--sequential",), "sequential", FLAG, "", "one after another, each told what the one before it changed", "Hooks"),
    Option(("--stop-at-deny",), "stop_at_deny", FLAG, "", "leave out what comes after the first deny", "Hooks"),
    Option(("--explain",), "explain", FLAG, "", "print what each host would make of each handler's end"),
    *shared.POLICY_OPTIONS,
    shared.JSON,
    shared.HELP,
)  # fmt: skip
USAGE = "stockade hooks run [OPTIONS] < EVENT"
SUMMARY = (
    "Run the handlers of the event on stdin that a hooks file names: matched, ordered and merged as their host does "
    "it, each confined. Prints the answer that the host would be given."
)
EPILOG = (
    "Exit codes: the answer's own, as a hook's; with --json or --explain 0, or 2 where the event is denied. 125 stockade "
    "failed, and the event was not one that can be denied; where it can, the answer is a deny.\n\n"
    "  stockade hooks run --config .claude/settings.json < event.json\n"
    "  stockade hooks run --event PreToolUse --explain < event.json"
)
DENIED = 2


def main(argv: Sequence[str]) -> int:
    parsed = parse(OPTIONS, argv, rest="none")
    if parsed.values["help"]:
        sys.stdout.write(render_help(USAGE, SUMMARY, OPTIONS, EPILOG))
        return exits.OK
    values = parsed.values
    answering = Answering(values, shared.as_document(values))
    # It gets ready on another processor while this one reads, imports and plans.
    fork_keeper_if_ours(leased=bool(values["allow"] or values["record_egress"] or values["open_egress"]))
    try:
        return answering.answer()
    except UsageError:
        raise
    except StockadeError as error:
        return answering.refuse(error)


class Answering:
    """One event on its way: what is known so far of whom the answer is for."""

    def __init__(self, values: dict[str, Any], as_json: bool) -> None:
        self.values, self.as_json = values, as_json
        self.language: Dialect | None = None
        self.event = ""

    def answer(self) -> int:
        if self.values["dialect"]:
            from stockade.sandbox.hooks.dialects import dialect

            self.language = dialect(self.values["dialect"])
            self.event = self.values["event"] or ""
        data = event_bytes()
        with self.runner() as runner:
            self.language = runner.language
            self.event = self.values["event"] or named_in(data, runner.language)
            found = runner.run(self.event, data)
            late = runner.quiesce(longest(runner)) if found.detached else ()
        self.event = native(self.event, data, runner.language)
        return self.tell(found, late, runner)

    def runner(self) -> HookRunner:
        """The runner of the files that are named, or of the project."""
        from stockade.sandbox.hooks.found import configured
        from stockade.sandbox.hooks.runner import HookRunner

        values = self.values
        found = configured(values["config"] or (values["cwd"] or os.getcwd(),), values["dialect"])
        made = HookRunner(
            found.specs,
            dialect=found.dialect,
            project_dir=found.project_dir,
            policy=values["policy"],
            trusted=values["trusted"],
            on_failure="closed" if values["fail_closed"] else "host",
            sequential=values["sequential"] or None,
            stop_at_deny=values["stop_at_deny"] or None,
            cwd=values["cwd"],
            env=shared.variables(values["env"]),
            options=shared.policy_layer(values),
            plain_warnings=True,
        )
        made.problems, made.files = found.problems, found.files
        return made

    def tell(self, found: Aggregate, late: Sequence[HandlerResult], runner: HookRunner) -> int:
        if self.as_json or self.values["explain"]:
            from stockade.sandbox.cli import hooksreport

            if self.as_json:
                hooksreport.print_document(found, late, self.event, runner, explain=self.values["explain"])
            else:
                hooksreport.print_table(found, late, self.event, runner)
            hooksreport.say_what_is_odd(found, self.event, runner)
            return DENIED if found.decision == "deny" and found.blocking else exits.OK
        from stockade.sandbox.cli import hooksreport

        reply = runner.language.encode(self.event, found.merged)
        if reply.exit_code != DENIED:  # there its host takes stderr for the reason
            hooksreport.say_what_is_odd(found, self.event, runner)
        return put(reply.stdout, reply.stderr, reply.exit_code)

    def refuse(self, error: StockadeError) -> int:
        """stockade itself failed: a deny where one is due and it is known how to say it, else the error."""
        from stockade.sandbox.cli.main import report

        blocks = self.language is not None and self.language.rule(self.event).blocks
        if self.as_json or self.values["explain"] or self.language is None or not blocks:
            if self.as_json:
                from stockade.sandbox.cli import hooksreport

                hooksreport.print_error(error)
            report(error)
            return exits.FAILED
        from stockade.sandbox.hooks.merge import merge
        from stockade.sandbox.hooks.model import HookOutcome

        cause = f"{error.message}. {error.remedy}" if error.remedy else error.message
        outcome = HookOutcome("deny", reason=cause, source="failure_policy", status="failed")
        reply = self.language.encode(self.event, merge([outcome]))
        if reply.exit_code != DENIED:
            report(error)
        return put(reply.stdout, reply.stderr, reply.exit_code)


def event_bytes() -> bytes:
    from stockade.sandbox.cli.hook import read_event

    if os.isatty(0):
        raise RequestError("could not read the event: stdin is a terminal", remedy="Give it as JSON on stdin.")
    return read_event()


def named_in(data: bytes, language: Dialect) -> str:
    """The event's name where the payload has it."""
    from stockade.sandbox.hooks.runhook import understand

    return understand(data, language).event.name


def native(event: str, data: bytes, language: Dialect) -> str:
    """The host's own name of it."""
    from stockade.sandbox.hooks.told import mapping, named

    return named(event, mapping(data), language, (event,) if event in language.EVENTS else ())


def longest(runner: HookRunner) -> float:
    """Seconds after which every handler has ended by itself."""
    from stockade.sandbox.hooks.settings import seconds

    return max((seconds(entry, runner.settings) for entry in runner.registry.entries), default=0.0) + 5.0


def put(stdout: bytes, stderr: bytes, code: int) -> int:
    """Write the answer; one that can't be written counts as a deny."""
    from stockade.sandbox.cli.hook import say

    return say(stdout, stderr, code)
