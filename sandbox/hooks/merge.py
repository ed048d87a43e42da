"""What the answers of several handlers to one event come to. Pure; order is that of configuration, never of ending.

Strictest first: deny, defer, ask, allow, none. A halt stands above them and stays.
"""

from __future__ import annotations

from stockade.policies.errors import RequestError
from stockade.sandbox.hooks.model import VERDICTS, MergedOutcome, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stockade.sandbox.hooks.model import HookOutcome

ON_CONFLICT = ("last", "deny")


def merge(
    outcomes: Sequence[HookOutcome], *, labels: Sequence[str] = (), on_conflict: str = "last"
) -> MergedOutcome:
    """One outcome out of all, which stand in order of configuration.

    ``labels`` name the handlers, and stand before their reasons when there is more than one handler.
    ``on_conflict`` is what two different rewrites of one thing come to: the ``last`` in order, or ``deny``. They are
    recorded either way. Rewrites are dropped when the verdict is deny. Raises RequestError for labels that do not
    match and for another ``on_conflict``.
    """
    check(outcomes, labels, on_conflict)
    verdict = min((each.verdict for each in outcomes), key=VERDICTS.index, default="none")
    changed, mode, conflicts = rewritten(outcomes)
    output, more = last_output(outcomes)
    conflicts = (*conflicts, *more)
    rest = everything_else(outcomes)
    if conflicts and on_conflict == "deny" and verdict != "deny":
        reason = "; ".join(each.text for each in conflicts)
        return rest.replace(verdict="deny", reason=reason, conflicts=(*conflicts, *rest.conflicts))
    kept = verdict != "deny"
    winners = tuple(at for at, each in enumerate(outcomes) if each.verdict == verdict)
    return rest.replace(
        verdict=verdict,
        reason=reasons(outcomes, winners, labels),
        winners=winners,
        updated_input=changed if kept else None,
        update_mode=mode if kept else "replace",
        updated_output=output if kept else None,
        conflicts=(*conflicts, *rest.conflicts),
    )


def check(outcomes: Sequence[HookOutcome], labels: Sequence[str], on_conflict: str) -> None:
    if labels and len(labels) != len(outcomes):
        raise RequestError(
            f"could not merge the outcomes: there are {len(outcomes)} of them and {len(labels)} labels",
            remedy="Give one label for each outcome, or none.",
        )
    if on_conflict not in ON_CONFLICT:
        raise RequestError(
            f"could not merge the outcomes: on_conflict is {on_conflict!r}", remedy="Use 'last' or 'deny'."
        )


def everything_else(outcomes: Sequence[HookOutcome]) -> MergedOutcome:
    """The halt, and what is simply kept of all of them."""
    halts = [each for each in outcomes if each.halt]
    extras, conflicts = last_extras(outcomes)
    return MergedOutcome(
        halt=bool(halts),
        stop_reason=next((each.stop_reason for each in halts if each.stop_reason.strip()), ""),
        context=tuple(text for each in outcomes for text in each.context),
        system_messages=tuple(text for each in outcomes for text in each.system_messages),
        extras=extras,
        conflicts=conflicts,
        outcomes=tuple(outcomes),
    )


def reasons(outcomes: Sequence[HookOutcome], winners: Sequence[int], labels: Sequence[str]) -> str:
    """The reasons of the strictest verdict, each once."""
    told = [
        f"{labels[at]}: {outcomes[at].reason}" if labels and len(outcomes) > 1 else outcomes[at].reason
        for at in winners
        if outcomes[at].reason.strip()
    ]
    return "\n\n".join(dict.fromkeys(told))


def rewritten(outcomes: Sequence[HookOutcome]) -> tuple[Any, str, tuple[Problem, ...]]:
    """The input as all of them together change it, in which mode, and what they do not agree on.

    A replacement drops what stood before it; what is merged after it is laid over it. All of it together replaces
    when one of them does.
    """
    value: Any = None
    mode = "replace"
    conflicts: list[Problem] = []
    for at, each in enumerate(outcomes):
        new = each.updated_input
        if new is None:
            continue
        if value is not None:
            conflicts += disagreement(at, value, new, each.update_mode)
        if each.update_mode == "merge" and isinstance(new, dict) and isinstance(value, dict):
            value = {**value, **new}
        else:
            value, mode = new, each.update_mode
    return value, mode, tuple(conflicts)


def disagreement(at: int, before: Any, new: Any, mode: str) -> list[Problem]:
    """Whether what handler ``at`` wants undoes something that stands already."""
    if mode == "merge" and isinstance(before, dict) and isinstance(new, dict):
        keys = [key for key in new if key in before and not same(before[key], new[key])]
        return [
            Problem("rewrite", f"handler {at + 1} changes the input's {key!r} that an earlier one set")
            for key in keys
        ]
    return (
        [] if same(before, new) else [Problem("rewrite", f"handler {at + 1} replaces the input of an earlier one")]
    )


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def last_output(outcomes: Sequence[HookOutcome]) -> tuple[Any, tuple[Problem, ...]]:
    """The tool's output as the last of them wants it, and whether another wanted something else."""
    value: Any = None
    conflicts: list[Problem] = []
    for at, each in enumerate(outcomes):
        if each.updated_output is None:
            continue
        if value is not None and not same(value, each.updated_output):
            conflicts.append(Problem("rewrite", f"handler {at + 1} replaces the output of an earlier one"))
        value = each.updated_output
    return value, tuple(conflicts)


def last_extras(outcomes: Sequence[HookOutcome]) -> tuple[tuple[tuple[str, Any], ...], tuple[Problem, ...]]:
    """The other fields, the last of each name; and whether an earlier one was different."""
    found: dict[str, Any] = {}
    conflicts: list[Problem] = []
    for at, each in enumerate(outcomes):
        for name, value in each.extras:
            if name in found and not same(found[name], value):
                conflicts.append(Problem("extra", f"handler {at + 1} sets {name!r}, as an earlier one did"))
            found[name] = value
    return tuple(found.items()), tuple(conflicts)
