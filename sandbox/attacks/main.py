"""``python -m stockade.attacks``: attack this host's box in every way we know, and say what came of each.

0: nothing got through; 1: something did; 125: it could not be tried.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from stockade.policies.errors import StockadeError
from stockade.sandbox.attacks import batch, report
from stockade.sandbox.attacks.bait import Bait
from stockade.sandbox.attacks.judge import NOT_TRIED, Result, failed, row
from stockade.sandbox.cli import exits, shared
from stockade.sandbox.cli.document import render
from stockade.sandbox.cli.options import FLAG, VALUE, Option, UsageError, parse, render_help
from stockade.sandbox.cli.style import colour_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stockade.sandbox.attacks.toolbox import Attempt

SUMMARY = (
    "Attack the box of this host in every way that stockade knows, each with a control that shows that it works elsewhere,"
    " and look at the host afterwards. Only what the suite lays out for itself is attacked; nothing leaves the machine."
)
OPTIONS = (
    Option(("--only",), "only", VALUE, "WORD", "only attempts whose id has this in it"),
    Option(("--user",), "user", VALUE, "WHO", "auto, caller or unprivileged: as whom a root caller's boxes run"),
    Option(("--markdown",), "markdown", FLAG, "", "print the page of the documentation"),
    Option(("--list",), "list", FLAG, "", "list the attempts; try nothing"),
    shared.JSON,
    shared.HELP,
)
USERS = ("auto", "caller", "unprivileged")
WORLD_SECONDS = 100


def main(argv: Sequence[str]) -> int:
    """One command line; returns its exit code. Raises StockadeError for what can't be tried."""
    values = parse(OPTIONS, argv, rest="none").values
    if values["help"]:
        sys.stdout.write(render_help("python -m stockade.attacks [OPTIONS]", SUMMARY, OPTIONS, ""))
        return exits.OK
    as_json, user, only = shared.as_document(values), str(values["user"] or "auto"), str(values["only"] or "")
    if user not in USERS:
        raise UsageError(f"could not attack as {user!r}", remedy=f"Write one of {', '.join(USERS)}.")
    if values["list"]:
        sys.stdout.write("".join(f"{name}  {group}  {title}\n" for name, group, title in listed(only)))
        return exits.OK
    results = attack(user, only)
    if as_json:
        sys.stdout.write(render(report.document(results, host(user))))
    elif values["markdown"]:
        sys.stdout.write(report.markdown(results, host(user)))
    else:
        sys.stdout.write(report.shown(results, colour_on(sys.stdout)))
    return exits.NOT_GOOD if failed(results) else exits.OK


def listed(only: str = "") -> list[tuple[str, str, str]]:
    """Id, group and title of every attempt."""
    from stockade.sandbox.attacks import scenery

    every: list[Any] = [*batch.load((*batch.PROGRAMS, "names", "packets")), *scenery.load()]
    return [(each.name, each.group, each.title) for each in every if only in each.name]


def attack(user: str, only: str = "") -> list[Result]:
    """Everything whose id has ``only`` in it, in the order of the table."""
    from stockade.sandbox.attacks import networld, scenery

    attempts = [each for each in batch.load((*batch.PROGRAMS, "names", "packets")) if only in each.name]
    own = [each for each in attempts if each.box not in networld.BOXES]
    leased = [each for each in attempts if each.box in networld.BOXES]
    scenes = [each for each in scenery.load() if only in each.name]
    if not attempts and not scenes:
        raise UsageError(f"could not attack: no attempt has {only!r} in its id", remedy="--list lists them.")
    results: list[Result] = []
    before = dict(os.environ)
    try:
        with Bait() as outside, Bait() as bait:
            outside.lay_rest()
            bait.lay_rest()
            results += batch.try_all(own, user, outside, bait, batch.policy_of) if own else []
            results += scenery.play_all(scenes, bait, user)
    finally:
        os.environ.clear()
        os.environ.update(before)
    results += in_world(leased, user, only) if leased else []
    places = {name: place for place, (name, _group, _title) in enumerate(listed())}
    return sorted(results, key=lambda each: (each.group, places.get(each.name, len(places))))


def in_world(attempts: Sequence[Attempt], user: str, only: str) -> list[Result]:
    """Those in leased networks, by a process in a world of its own."""
    command = [sys.executable, "-m", "stockade.sandbox.attacks.networld", user, only]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WORLD_SECONDS, check=False)
        if done.returncode == 0:
            return [Result(**each) for each in json.loads(done.stdout)]
        cause = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
    except (subprocess.TimeoutExpired, ValueError) as error:
        cause = type(error).__name__
    return [row(each, NOT_TRIED, "", f"no world for it could be made here: {cause}") for each in attempts]


def host(user: str) -> dict[str, str]:
    """What the results depend on."""
    import platform

    from stockade.sandbox import bwrap

    version = subprocess.run(
        [bwrap.locate(), "--version"], capture_output=True, text=True, check=False, env={}
    ).stdout
    caller = "an ordinary user"
    if os.geteuid() == 0:
        caller = "root, kept" if user == "caller" else "root, whose boxes run unprivileged"
    return {
        "kernel": platform.release(),
        "bwrap": version.strip().rpartition(" ")[2] or "unknown",
        "python": platform.python_version(),
        "caller": caller,
    }


def console() -> None:
    from stockade.sandbox import keeperlink
    from stockade.sandbox.cli.main import report as say

    try:
        code = main(sys.argv[1:])
    except StockadeError as error:
        say(error)
        code = exits.FAILED
    except KeyboardInterrupt:
        code = 130
    keeperlink.end_keeper()
    sys.exit(code)
