"""``stockade doctor``: every capability with its state, what was tried, and what to do."""

from __future__ import annotations

import sys

from stockade.policies.capability import REQUIRED
from stockade.sandbox.cli import exits, shared
from stockade.sandbox.cli.document import render
from stockade.sandbox.cli.options import FLAG, Option, parse, render_help
from stockade.sandbox.cli.style import colour_on, escape, paint, table
from stockade.sandbox.probe import able, probe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from stockade.sandbox.host import Host

OPTIONS = (
    Option(
        ("--attacks",), "attacks", FLAG, "", "attack the box of this host in every way known; 1 if one gets through"
    ),
    shared.JSON,
    shared.HELP,
)
SUMMARY = "Try what this host can enforce. Exits with 1 when commands can't be confined here at all."
COLOURS = {"ok": "green", "missing": "red", "disabled": "red", "too old": "yellow", "unknown": "yellow"}


def main(argv: Sequence[str]) -> int:
    parsed = parse(OPTIONS, argv, rest="none")
    if parsed.values["help"]:
        sys.stdout.write(render_help("stockade doctor [OPTIONS]", SUMMARY, OPTIONS, ""))
        return exits.OK
    as_json = shared.as_document(parsed.values)
    if parsed.values["attacks"]:
        from stockade.sandbox.attacks.main import main as attack

        return attack(["--json"] if as_json else [])
    host = probe()
    possible = all(host.has(name) for name in REQUIRED)
    if as_json:
        sys.stdout.write(render({**host.to_json(), "confinement": verdict_word(host, possible)}))
    else:
        show(host, possible)
    return exits.OK if possible else exits.NOT_GOOD


def verdict_word(host: Host, possible: bool) -> str:
    if not possible:
        return "none"
    return "full" if able(host) else "partial"


def show(host: Host, possible: bool) -> None:
    on = colour_on(sys.stdout)
    rows: list[list[str | tuple[str, str]]] = [
        [each.name, (each.state, COLOURS.get(each.state, "")), each.detail] for each in host.capabilities
    ]
    sys.stdout.write(table(rows, on))
    remedies: dict[str, str] = {}
    for each in host.capabilities:
        if each.remedy and each.state != "ok":
            remedies.setdefault(each.remedy, each.name)
    if remedies:
        sys.stdout.write("\n" + paint("What to do", "bold", on) + "\n")
        for remedy, name in remedies.items():
            sys.stdout.write(f"  {name}: {escape(remedy)}\n")
    word = verdict_word(host, possible)
    line = {
        "full": "Commands are confined here with full enforcement.",
        "partial": "Commands are confined here with partial enforcement; mode strict refuses.",
        "none": "Commands can't be confined here; foreign ones are refused.",
    }[word]
    sys.stdout.write("\n" + paint(line, {"full": "green", "partial": "yellow", "none": "red"}[word], on) + "\n")
