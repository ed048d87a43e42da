"""The verdict on a run, for a person: one line, and the evidence below it."""

from __future__ import annotations

import sys

from stockade.sandbox.cli.style import colour_on, escape, paint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stockade.sandbox.result import RunResult

COLOURS = {"exited": "green", "signalled": "yellow", "timed_out": "yellow", "stopped": "yellow"}
MOST_FILES = 20


def show(result: RunResult, *, verbose: bool) -> None:
    """Write to stderr. Without ``verbose`` only what a user would want to know anyway."""
    on = colour_on(sys.stderr)
    for line in lines(result, on=on, verbose=verbose):
        sys.stderr.write(line + "\n")


def lines(result: RunResult, *, on: bool, verbose: bool) -> Iterator[str]:
    good = result.outcome == "exited" and result.exit_code == 0
    colour = COLOURS.get(result.outcome, "red") if good or result.outcome != "exited" else "yellow"
    if verbose or result.outcome != "exited":
        yield f"stockade: {paint(result.outcome, colour, on)}: {escape(result.reason)}"
    for denial in result.denials:
        yield f"  {denial.certainty} denial, {denial.kind}: {escape(denial.detail)}"
        yield f"    {denial.hint}"
    for text in result.degraded:
        yield f"  {paint('degraded', 'yellow', on)}: {escape(text)}"
    for text in result.notes:
        yield f"  note: {escape(text)}"
    if result.policy.egress == "record" or (verbose and result.egress):
        from stockade.sandbox.cli import egresstable

        yield from egresstable.lines(result.egress, on)
    if verbose and result.requests:
        from stockade.sandbox.cli import egresstable

        yield from egresstable.request_lines(result.requests, on)
    if verbose:
        yield from details(result)


def details(result: RunResult) -> Iterator[str]:
    origin = f"policy {escape(result.policy.name)}, network {result.policy.egress}"
    yield f"  enforcement {result.enforcement} ({origin}), decided by rule {result.rule}"
    usage = result.usage
    yield f"  {result.duration:.3f} s, {usage.cpu_seconds:.3f} s of processor, {usage.peak_rss / 1048576:.1f} MiB"
    if result.files_written is None:
        yield "  files written: not recorded"
    else:
        yield f"  files written: {len(result.files_written) or 'none'}"
        for file in result.files_written[:MOST_FILES]:
            yield f"    {file.kind} {escape(file.path)}"
        if len(result.files_written) > MOST_FILES:
            yield f"    and {len(result.files_written) - MOST_FILES} more"
