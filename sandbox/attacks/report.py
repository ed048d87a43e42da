"""How results are shown (pure): a table for people, a document for programs, a page for the documentation."""

from __future__ import annotations

from stockade.sandbox.attacks.judge import ALLOWED, NOT_TRIED, STATES, STOPPED, THROUGH, failed
from stockade.sandbox.cli.style import escape, paint, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from stockade.sandbox.attacks.judge import Result

SCHEMA = "stockade.attacks/1"
COLOURS = {THROUGH: "red", NOT_TRIED: "yellow", ALLOWED: "blue", STOPPED: "green"}
WIDEST = 70


def worst_first(results: Sequence[Result]) -> list[Result]:
    return sorted(results, key=lambda each: STATES.index(each.state))


def counted(results: Sequence[Result]) -> dict[str, int]:
    return {state: sum(each.state == state for each in results) for state in STATES}


def shown(results: Sequence[Result], on: bool) -> str:
    """The table, the worst first, and a line that sums it up."""
    rows: list[list[str | tuple[str, str]]] = [["RESULT", "ATTEMPT", "STOPPED BY", "EVIDENCE"]]
    for each in worst_first(results):
        evidence = each.evidence if len(each.evidence) <= WIDEST else each.evidence[: WIDEST - 3] + "..."
        rows.append([(each.state, COLOURS[each.state]), each.name, each.layer, evidence])
    return table(rows, on, header=True) + "\n" + summary(results, on) + "\n"


def summary(results: Sequence[Result], on: bool = False) -> str:
    counts = counted(results)
    words = ", ".join(f"{counts[state]} {state}" for state in reversed(STATES))
    verdict = "Something got through." if failed(results) else "Nothing got through."
    return paint(f"{verdict} {len(results)} attempts: {words}.", "red" if failed(results) else "green", on)


def document(results: Sequence[Result], host: Mapping[str, str]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "host": dict(host),
        "counts": counted(results),
        "attempts": [each.as_dict() for each in worst_first(results)],
    }


HEAD = """\
# Attacks on the box

This page is made by `python -m stockade.attacks --markdown`; do not edit it. It is what came of every attempt on one host, as
{caller}: Linux {kernel}, bubblewrap {bwrap}, Python {python}. `python -m stockade.attacks` (or `stockade doctor --attacks`)
tries all of them on yours, in less than a minute, and ends with 1 if anything got through. Nothing leaves the machine, and
nothing of yours is touched: what is attacked are files, sockets, keys, processes and networks that the suite lays out for
itself.

- **stopped**: outside the box the same attempt works on this host (its control), in the box it does not, and the host is
  unchanged.
- **allowed**: it gets through, as the documentation says; the last column says why.
- **not tried**: its control fails here, so that nothing was shown. The last column says why.
- **GOT THROUGH**: a fault of stockade. Please [report it](../SECURITY.md).

What an attempt reached is told by the host, where the host can tell: files, listeners, packets, processes and kernel settings
are compared before and after. What the syscall filter stops is tried a second time in a box without it; the evidence says
what came of that. The programs are in `sandbox/attacks/programs/` and `sandbox/attacks/scenes/`.

{summary}
"""


def markdown(results: Sequence[Result], host: Mapping[str, str]) -> str:
    parts = [HEAD.format(**host, summary=summary(results))]
    for group in dict.fromkeys(each.group for each in results):
        parts += [
            f"## {heading(group)}\n",
            "| id | attempt | result | stopped by | evidence |",
            "|---|---|---|---|---|",
        ]
        for each in results:
            if each.group == group:
                words = (f"`{each.name}`", each.title, each.state, each.layer, each.evidence)
                parts.append("| " + " | ".join(cell(word) for word in words) + " |")
        parts.append("")
    return "\n".join(parts)


def heading(group: str) -> str:
    """Without the letter that it is filed under."""
    letter, _space, rest = group.partition(" ")
    text = rest if rest and len(letter) == 1 else group
    return text[0].upper() + text[1:]


def cell(text: str) -> str:
    return escape(text).replace("|", "\\|")
