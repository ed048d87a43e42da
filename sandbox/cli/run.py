"""``stockade run``: a command confined, its streams passed through, its exit code kept."""

from __future__ import annotations

import os
import sys

from stockade.sandbox.cli import exits, shared
from stockade.sandbox.cli.options import FLAG, VALUE, Option, UsageError, parse, render_help
from stockade.sandbox.keeperlink import fork_keeper_if_ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping, Sequence
    from typing import Any

    from stockade.sandbox.order import Order
    from stockade.sandbox.result import RunResult
else:
    import _signal as signal  # ``signal`` itself costs as much as enum

OPTIONS = (
    *shared.POLICY_OPTIONS,
    Option(
        ("--trusted",), "trusted", FLAG, "", "the command is yours: run it directly unless a mode is set", "Policy"
    ),
    Option(
        ("--keep",),
        "keep",
        VALUE,
        "CHOICE",
        "what --workspace overlay captured: ask, yes (apply it) or no",
        "Policy",
    ),
    Option(("-v", "--verbose"), "verbose", FLAG, "", "end with the verdict and its evidence, on stderr"),
    shared.JSON,
    Option(("--dry-run",), "dry_run", FLAG, "", "print the plan and a bwrap line to paste; run nothing"),
    shared.HELP,
)
USAGE = "stockade run [OPTIONS] [--] COMMAND [ARGUMENT...]"
SUMMARY = (
    "Run a command that nobody here wrote, confined. The default policy is read-only, no network, an empty HOME."
)
EPILOG = (
    "Exit codes: the program's own; 124 timed out; 125 stockade failed or refused; 126 not executable; "
    "127 not found; 128+N after signal N."
)
STOPS = ("SIGINT", "SIGTERM", "SIGHUP")


def main(argv: Sequence[str]) -> int:
    parsed = parse(OPTIONS, argv, rest="command")
    values = parsed.values
    if values["help"]:
        sys.stdout.write(render_help(USAGE, SUMMARY, OPTIONS, EPILOG))
        return exits.OK
    if not parsed.rest:
        raise UsageError("could not run anything: no command was given", remedy=f"Usage: {USAGE}")
    if values["dry_run"]:
        from stockade.sandbox.cli import dryrun

        return dryrun.show(order_of(values, parsed.rest), as_json=shared.as_document(values))
    # First of all: it gets ready on another processor while this one still imports and plans.
    fork_keeper_if_ours(leased=bool(values["allow"] or values["record_egress"] or values["open_egress"]))
    return perform(values, parsed.rest)


def order_of(values: dict[str, Any], command: Sequence[str]) -> Order:
    from stockade.sandbox.order import make_order

    return make_order(
        command,
        policy=values["policy"],
        trusted=values["trusted"],
        cwd=values["cwd"],
        env=shared.variables(values["env"]),
        stdin=0,
        options=shared.policy_layer(values),
    )


def perform(values: dict[str, Any], command: Sequence[str]) -> int:
    target = values["json"]
    if target is True:
        return print_document(values, command)
    order = order_of(values, command)
    choice = choice_of(values, order)
    if target is None:
        result = supervised(order, capture=False)
    else:
        from stockade.sandbox.cli import document

        result = document.run_and_write(order, target, lambda: supervised(order, capture=False))
    closing(result, verbose=values["verbose"])
    return settle(result, choice, show=True)


def print_document(values: dict[str, Any], command: Sequence[str]) -> int:
    from stockade.sandbox.cli import document

    done: list[tuple[RunResult, str]] = []

    def run() -> RunResult:
        order = order_of(values, command)
        choice = choice_of(values, order)
        result = supervised(order, capture=True)
        done.append((result, choice))
        return result

    document.run_and_print(command, run)
    return settle(*done[0], show=False)


def choice_of(values: dict[str, Any], order: Order) -> str:
    """What to do with what an overlay workspace captures; empty without one."""
    if values["keep"] is None and order.policy.workspace != "overlay":
        return ""
    from stockade.sandbox.cli import keep

    return keep.choose(values["keep"], order.policy.workspace, quiet=values.get("json") is True)


def settle(result: RunResult, choice: str, *, show: bool) -> int:
    if not choice:
        return result.returncode
    from stockade.sandbox.cli import keep

    return keep.settle(result, choice, show=show)


def supervised(order: Order, *, capture: bool, passed_as: Mapping[int, int] | None = None) -> RunResult:
    """Run with the signals of this process passed on: the first asks the program, the second kills it.

    ``passed_as``: signals that reach the program as others.
    """
    from stockade.sandbox.conduct import carry_out
    from stockade.sandbox.stopper import Stopper

    terminal = not capture and any(map(is_terminal, (0, 1, 2)))
    stopper, told = Stopper(), passed_as or {}
    before = {}
    for name in STOPS:
        number = getattr(signal, name)
        # An ignored SIGHUP (nohup) stays ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, lambda caught, _frame: stopper.request(told.get(caught, caught)))
    try:
        return carry_out(order, capture=capture, stopper=stopper, plain_warnings=True, terminal=terminal)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stopper.close()


def is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def closing(result: RunResult, *, verbose: bool) -> None:
    """What is worth saying after the program's own output: nothing, when it simply ended."""
    if (
        verbose
        or result.policy.egress == "record"
        or result.outcome not in ("exited", "stopped")
        or result.denials
        or result.notes
        or result.degraded
    ):
        from stockade.sandbox.cli import verdict

        verdict.show(result, verbose=verbose)
