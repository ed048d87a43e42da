"""The description of the tool for a model (pure): what it does, what the sandbox allows, what a denial means."""

from __future__ import annotations

from stockade.sandbox.bash.modes import FULL_ACCESS, MODES, READ_ONLY, mode_of
from stockade.sandbox.bash.spill import KEPT
from stockade.sandbox.cli.style import escape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stockade.policies.resolved import Resolved

MOST_NAMES = 12


def describe(
    policy: Resolved,
    *,
    shell: str,
    workspace: str,
    enforcement: str,
    timeout: float,
    longest: float,
    state: str,
    escalates: bool,
) -> str:
    """``state``: ``fresh``, ``session`` or ``keep``; ``escalates``: whether a wider mode can be asked for."""
    mode = mode_of(policy)
    if policy.timeout is not None:
        timeout, longest = min(timeout, policy.timeout), min(longest, policy.timeout)
    kept = KEPT if policy.output is None else min(KEPT, policy.output)
    half = f"{kept // 2000} kB" if kept >= 2000 else f"{kept // 2} bytes"
    more = f" unless it names up to {longest:g}" if longest > timeout else ""
    lines = [
        f"Runs a command with {escape(shell)} in {escape(workspace)} and returns what it wrote and its exit code.",
        STATES[state],
        f"A call has {timeout:g} seconds{more}. Of long output the first and the last "
        f"{half} are shown, and the whole is in a file that the result names.",
        *sandbox_lines(policy, mode, enforcement, "shell" if state == "keep" else "call"),
        *denial_lines(mode, escalates),
    ]
    return "\n".join(lines)


STATES = {
    "fresh": "Every call starts a fresh shell: directory, variables and functions do not carry over.",
    "session": "The directory, exported variables, functions and options of the shell carry over to the next call; "
    "background processes do not.",
    "keep": "One shell serves all calls: whatever it holds carries over, until a timeout or its end starts a new one.",
}


def sandbox_lines(policy: Resolved, mode: str, enforcement: str, span: str) -> Iterator[str]:
    if mode == FULL_ACCESS:
        yield "There is no sandbox (full-access): a command can do what the user can."
        return
    yield f"Commands run in a sandbox ({mode}, enforcement {enforcement}):"
    if mode == READ_ONLY:
        yield f"- Nothing of the host can be written; HOME and /tmp are empty, and gone with the {span}."
    else:
        empty = "HOME and /tmp are" if policy.home == "empty" else "its /tmp is"
        yield f"- {written(policy)} Everything else is read-only; {empty} empty, and gone with the {span}."
    if policy.protect and mode != READ_ONLY:
        yield f"- Never writable: {names(policy.protect)}."
    yield f"- {NETWORK[policy.egress]}{names((*policy.allow, *completed(policy)))}."
    if policy.hide:
        yield f"- Hidden: {names(policy.hide)}."


def completed(policy: Resolved) -> tuple[str, ...]:
    """Hosts to which requests are completed by the edge."""
    if not policy.edge or policy.egress != "allow":
        return ()
    from stockade.policies.edge import read_edge

    return tuple(
        dict.fromkeys(f"{read_edge(line).host.text} (credentials are added outside)" for line in policy.edge)
    )


PLACES = {
    "read-write": "the workspace",
    "overlay": "the workspace (captured for review: the next call does not see it)",
}


def written(policy: Resolved) -> str:
    """What can be written."""
    found = [PLACES[policy.workspace]] if policy.workspace in PLACES else []
    found += [names(policy.write)] if policy.write else []
    if policy.home != "empty":
        found.append("HOME")
    return f"Writable: {', '.join(found)}."


NETWORK = {
    "none": "There is no network",
    "record": "There is no network: every attempt is answered with nothing and recorded",
    "allow": "The network reaches these hosts alone: ",
    "open": "The network reaches public addresses alone",
}


def names(values: tuple[str, ...]) -> str:
    shown = ", ".join(map(escape, values[:MOST_NAMES]))
    return f"{shown} and {len(values) - MOST_NAMES} more" if len(values) > MOST_NAMES else shown


def denial_lines(mode: str, escalates: bool) -> Iterator[str]:
    if mode == FULL_ACCESS:
        return
    yield (
        "A line `[stockade] the sandbox denied ...` after the output says what was refused, and which setting would "
        "allow it. It is a decision of the user, not a fault to work around: do not retry the command, and do not "
        "look for another way to the same end."
    )
    if escalates:
        wider = " or ".join(MODES[MODES.index(mode) + 1 :])
        yield f"If the task needs it, ask once with mode {wider} and a justification: the user decides."
    else:
        yield "Say what is needed and why, and let the user decide."
