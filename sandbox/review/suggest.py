"""The narrowest policy under which handlers still give the same answers: tried step by step, and proved by running.

Begins with what was observed, then takes away as long as nothing changes. What is written down is what was run.
"""

from __future__ import annotations

from stockade.policies.record import Record
from stockade.sandbox.cli.style import escape
from stockade.sandbox.review.foreign import counted
from stockade.sandbox.review.observed import differences, given, ladders, limits, rows, toml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from stockade.policies.model import Policy
    from stockade.sandbox.review.model import Exercise, Review
    from stockade.sandbox.review.observed import Ladder, Row, Settings

    Again = Callable[[Policy], Iterable[Exercise]]

SCHEMA = "stockade.suggestion/1"
SOURCE = "the suggested policy"
MOST_SAID = 6


class Suggestion(Record):
    """A policy, what it rests on, and whether it was seen to do."""

    settings: Settings
    """By dotted key."""
    toml: str
    """The policy file."""
    rows: tuple[Row, ...]
    proved: bool
    """Every handler gave the same answers under it."""
    differences: tuple[str, ...]
    """Where it did not, if it was not proved."""
    tries: int
    """How many policies were run."""
    recorded: bool
    """Proved with a recorder in the place of the hosts that it allows: nothing was sent to them."""

    def to_json(self) -> dict[str, Any]:
        from stockade.sandbox.result import plain

        return {"schema": SCHEMA, **plain(self.as_dict())}

    def table(self, on: bool = False) -> str:
        """Observed and granted side by side, and how it was proved."""
        from stockade.sandbox.cli.style import paint, table

        cells: list[list[str | tuple[str, str]]] = [["OBSERVED", "", "GRANTED", ""]]
        cells += [[each.what, each.observed, granted(each), each.why] for each in self.rows]
        lines = table(cells, on, header=True) if self.rows else ""
        verdict = paint("proved", "green", on) if self.proved else paint("not proved", "red", on)
        told = "".join(f"  {escape(each)}\n" for each in self.differences[:MOST_SAID])
        return f"{lines}suggested policy: {verdict}: {proof(self)}\n{told}"


def granted(row: Row) -> tuple[str, str]:
    return row.granted, "yellow" if row.granted == "yes" else "green"


class Trier:
    """Runs handlers under policies and compares their answers with those of the review."""

    def __init__(self, review: Review, again: Again) -> None:
        self.before = given(review)
        self.again = again
        self.tries = 0

    def differences(self, settings: Settings) -> tuple[str, ...]:
        from stockade.policies.model import parse_policy

        self.tries += 1
        policy = parse_policy(toml(in_recorder(settings), ()), SOURCE)
        return differences(self.before, self.again(policy))


def suggest(review: Review, again: Again) -> Suggestion | None:
    """The narrowest policy for everything that was reviewed; None where nothing ran, so that nothing is known.

    again: runs the same handlers for the same events under a policy, and returns what they did.
    """
    if not given(review):
        return None
    trier = Trier(review, again)
    steps, wrong = narrowed(ladders(review), base(review), trier)
    return written_down(review, settled(base(review), steps), wrong, trier.tries)


def base(review: Review) -> dict[str, Any]:
    return {"extends": "hook", **limits(review)}


def narrowed(every: tuple[Ladder, ...], first: Settings, trier: Trier) -> tuple[list[Settings], tuple[str, ...]]:
    """One step of each ladder, and what is still different with them.

    All of the lowest at once; then with one ladder raised, as one thing is what most handlers lack; where that does not
    do, from the widest down, one ladder after another.
    """
    lowest = [each.steps[0] for each in every]
    raised = (replaced(lowest, at, step) for at, ladder in enumerate(every) for step in ladder.steps[1:])
    for steps in (lowest, *raised):
        if not trier.differences(settled(first, steps)):
            return steps, ()
    chosen = [each.steps[-1] for each in every]
    wrong = trier.differences(settled(first, chosen))
    if wrong:
        return chosen, wrong
    for at, ladder in enumerate(every):
        for step in ladder.steps[:-1]:
            tried = replaced(chosen, at, step)
            if not trier.differences(settled(first, tried)):
                chosen = tried
                break
    return chosen, ()


def replaced(steps: list[Settings], at: int, step: Settings) -> list[Settings]:
    return [*steps[:at], step, *steps[at + 1 :]]


def settled(first: Settings, steps: Iterable[Settings]) -> dict[str, Any]:
    found = dict(first)
    for step in steps:
        found |= step
    return found


def in_recorder(settings: Settings) -> dict[str, Any]:
    """The same policy with a recorder in the place of the hosts: a review sends nothing."""
    if settings.get("network.egress") != "allow":
        return dict(settings)
    return {**{key: value for key, value in settings.items() if key != "network.allow"}, "network.egress": "record"}


def written_down(review: Review, settings: dict[str, Any], wrong: tuple[str, ...], tries: int) -> Suggestion:
    beside = rows(review, settings)
    recorded = settings.get("network.egress") == "allow"
    draft = Suggestion(settings, "", beside, not wrong, wrong, tries, recorded)
    text = toml(settings, head(draft, review))
    check(text)
    return draft.replace(toml=text)


def check(text: str) -> None:
    """What is written can be read: raises PolicyError otherwise."""
    from stockade.policies.model import parse_policy

    parse_policy(text, SOURCE)


def head(found: Suggestion, review: Review) -> list[str]:
    """What stands above the policy."""
    runs = len(given(review))
    about = f"{counted(runs, 'run')} of {counted(len({run.handler for run in given(review)}), 'handler')}"
    lines = [f"Suggested by stockade review, from {about}.", proof(found)]
    if found.rows:
        lines += ["", "observed                                           granted"]
    for row in found.rows:
        why = f" ({row.why})" if row.why else ""
        lines.append(f"{row.what} {escape(row.observed)}".ljust(50) + f" {row.granted}{why}")
    return lines


def proof(found: Suggestion) -> str:
    if not found.proved:
        return "The answers are others under it, and so they are under everything that was tried. Don't rely on it."
    more = " The hosts that it allows were not asked: a recorder stood in their place." if found.recorded else ""
    tried = "1 policy was" if found.tries == 1 else f"{found.tries} policies were"
    return f"Every handler gave the same answers under it ({tried} tried).{more}"
