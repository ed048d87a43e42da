"""What becomes of the changes that an overlay workspace captured: shown, then kept or dropped."""

from __future__ import annotations

import os
import sys

from stockade.policies.errors import NotApplied
from stockade.sandbox.cli import exits
from stockade.sandbox.cli.options import UsageError
from stockade.sandbox.cli.style import colour_on, escape, paint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.changes import Changes
    from stockade.sandbox.result import RunResult

CHOICES = ("ask", "yes", "no")
COLOURS = {"+": "green", "-": "red", "@": "cyan", "#": "dim"}


def choose(given: str | None, workspace: str, *, quiet: bool = False) -> str:
    """The choice that holds; where none was given, to ask on a terminal and to drop elsewhere, or if ``quiet``.

    Raises UsageError.
    """
    if given is None:
        return "ask" if can_ask() and not quiet else "no"
    if given not in CHOICES:
        raise UsageError(f"could not use --keep {given!r}: it is no choice", remedy="Write ask, yes or no.")
    if workspace != "overlay":
        raise UsageError(
            f"could not use --keep: the workspace is {workspace}, nothing is captured",
            remedy="Add --workspace overlay, or leave --keep out.",
        )
    if given == "ask" and not can_ask():
        raise UsageError(
            "could not ask whether to keep the changes: standard input and error are no terminal",
            remedy="Write --keep yes or --keep no.",
        )
    return given


def can_ask() -> bool:
    return os.isatty(0) and os.isatty(2)


def settle(result: RunResult, choice: str, *, show: bool) -> int:
    """Show the changes on stderr, keep or drop them. Returns the exit code: the run's, unless they could not be kept."""
    changes = result.changes
    if changes is None:
        return result.returncode
    with changes:
        if changes.files == ():
            return result.returncode
        if show:
            show_diff(changes)
        if choice == "yes" and result.outcome != "exited":
            say(f"the changes are not kept: {result.outcome}", "yellow")
            return result.returncode
        if choice == "yes" or (choice == "ask" and ask(changes)):
            return keep(result, changes)
        say("the changes are dropped, the workspace is as it was")
        return result.returncode


def show_diff(changes: Changes) -> None:
    on = colour_on(sys.stderr)
    # Not splitlines: what else it takes for the end of a line is the program's own text.
    for line in changes.diff().split("\n")[:-1]:
        text = "\t".join(map(escape, line.split("\t")))
        colour = "bold" if line.startswith(("+++", "---", "diff ")) else COLOURS.get(line[:1], "")
        sys.stderr.write((paint(text, colour, on) if colour else text) + "\n")
    for each in changes.left_out():
        say(f"not to be kept: {escape(each.path)}: {escape(each.reason)}", "yellow")


def ask(changes: Changes) -> bool:
    """A plain yes is needed; whatever else is answered, the end of the input too, is a no."""
    count = "some" if changes.files is None else len(changes.files)
    forget_typed_ahead()
    sys.stderr.write(f"stockade: keep these changes ({count}) in {escape(changes.workspace)}? [y/N] ")
    sys.stderr.flush()
    # As bytes: what is no text in the caller's encoding is a no too.
    return sys.stdin.buffer.readline().lower() in (b"y\n", b"yes\n")


def forget_typed_ahead() -> None:
    """What was typed before the question was meant for the program."""
    import termios

    try:
        termios.tcflush(0, termios.TCIFLUSH)
    except termios.error:
        pass  # no terminal after all


def keep(result: RunResult, changes: Changes) -> int:
    try:
        applied = changes.apply()
    except NotApplied as error:
        say(error.message, "red")
        for conflict in error.conflicts:
            sys.stderr.write(f"  {escape(conflict.path)}: {escape(conflict.reason)}\n")
        sys.stderr.write(f"{escape(error.remedy)}\n" if error.remedy else "")
        return exits.FAILED
    say(f"kept {len(applied.files)} changes", "green")
    return result.returncode


def say(text: str, colour: str = "") -> None:
    on = colour_on(sys.stderr)
    lead = paint("stockade:", colour, on) if colour else "stockade:"
    sys.stderr.write(f"{lead} {escape(text)}\n")
