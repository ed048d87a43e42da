"""``stockade hooks pin``: records what the handlers of hooks files are now, and shows what of them has changed."""

from __future__ import annotations

import sys

from stockade.sandbox.cli import exits, hooksfile, shared
from stockade.sandbox.cli.options import FLAG, Option, UsageError, parse, render_help
from stockade.sandbox.cli.style import colour_on, escape, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stockade.sandbox.cli.hooksfile import Opened
    from stockade.sandbox.hooks.pinned import Change, Pins

OPTIONS = (
    hooksfile.DIALECT,
    Option(("--write",), "write", FLAG, "", "record the pins of a file that has none"),
    Option(("--check",), "check", FLAG, "", "compare with the pins; exit code 1 where something changed"),
    Option(("--update",), "update", FLAG, "", "show what changed, and take what is there now for right"),
    Option(("--forget",), "forget", FLAG, "", "remove the pins"),
    shared.JSON,
    shared.HELP,
)
USAGE = "stockade hooks pin [OPTIONS] FILE|DIR"
SUMMARY = (
    "Record each handler's config entry and the script files that it runs. A pinned hook that has changed is refused "
    "by `stockade hook --pinned` (which `wrap` writes for pinned files) and by `stockade hooks run`."
)
EPILOG = "Pins lie in $XDG_STATE_HOME/stockade/pins, out of reach of what runs confined, not beside the file."
ACTIONS = ("write", "check", "update", "forget")


def main(argv: Sequence[str]) -> int:
    parsed = parse(OPTIONS, argv, rest="args")
    values: dict[str, Any] = parsed.values
    if values["help"]:
        sys.stdout.write(render_help(USAGE, SUMMARY, OPTIONS, EPILOG))
        return exits.OK
    chosen = [name for name in ACTIONS if values[name]]
    if len(chosen) > 1:
        raise UsageError(f"could not combine --{chosen[0]} and --{chosen[1]}", remedy="Use one of them.")
    as_json = shared.as_document(values)
    files = hooksfile.found(hooksfile.only(parsed.rest, USAGE), values["dialect"])
    answers = [answer(file, chosen[0] if chosen else "show") for file in files]
    if as_json:
        from stockade.sandbox.cli.document import render

        sys.stdout.write(render({"schema": "stockade.pin/1", "files": [each for each, _code in answers]}))
    else:
        for each, _code in answers:
            sys.stdout.write(text_of(each))
    return max(code for _each, code in answers)


def answer(file: Opened, action: str) -> tuple[dict[str, Any], int]:
    """What is done about one file, what is to be said of it, and the exit code."""
    from stockade.sandbox.hooks import pin
    from stockade.sandbox.hooks.pinned import compare

    if action == "forget":
        state = "forgotten" if pin.forget_pins(file.target.real) else "not pinned"
        return described(file, None, state, []), exits.OK
    now = pin.pins_now(file.target.real, file.dialect, file.load(file.target.data))
    known = pin.load_pins(file.target.real) if action != "update" else readable(file)
    changes = [] if known is None else compare(known, now.handlers)
    state, code = verdict(action, known is not None, bool(changes))
    if state in ("pinned", "updated"):
        pin.store_pins(now)
    return described(file, now, state, changes), code


def readable(file: Opened) -> Pins | None:
    """The pins that are there, if they can be read: ``--update`` is also what mends damaged ones."""
    from stockade.policies.errors import StockadeError
    from stockade.sandbox.hooks.pin import load_pins

    try:
        return load_pins(file.target.real)
    except StockadeError:
        return None


def verdict(action: str, known: bool, changed: bool) -> tuple[str, int]:
    """What is said and done. A file that is pinned and has changed is only ever pinned anew by ``update``."""
    if action == "update":
        return ("updated" if changed or not known else "unchanged"), exits.OK
    if known:
        return ("changed", exits.NOT_GOOD) if changed else ("unchanged", exits.OK)
    if action == "write":
        return "pinned", exits.OK
    return "not pinned", exits.NOT_GOOD if action == "check" else exits.OK


def described(file: Opened, now: Pins | None, state: str, changes: Sequence[Change]) -> dict[str, Any]:
    handlers = [
        {
            "id": each.id,
            "pointer": each.pointer,
            "event": each.event,
            "scripts": [{"path": script.path, "sha256": script.sha256 or None} for script in each.scripts],
        }
        for each in (now.handlers if now else ())
    ]
    return {
        "file": file.target.path,
        "dialect": file.dialect,
        "state": state,
        "handlers": handlers,
        "changes": [each.as_dict() for each in changes],
        "notes": hooksfile.open_scripts(file),
    }


MEANS = {
    "not pinned": "not pinned; --write records this",
    "changed": "CHANGED since it was pinned; --update accepts it",
    "unchanged": "as it was pinned",
    "updated": "pinned as it is now",
    "pinned": "pinned",
    "forgotten": "no longer pinned",
}


def text_of(told: dict[str, Any]) -> str:
    lines = [f"{escape(told['file'])} ({told['dialect']}): {MEANS[told['state']]}\n"]
    rows = [
        [f"  {each['event']}", each["pointer"], script["path"], (script["sha256"] or "not there")[:16]]
        for each in told["handlers"]
        for script in each["scripts"] or [{"path": "no script that could be told", "sha256": "-"}]
    ]
    if told["state"] != "unchanged" or not told["changes"]:
        lines.append(table(rows, colour_on(sys.stdout)))
    for change in told["changes"]:
        lines.append(f"  {escape(change['text'])}\n")
        lines.append(hooksfile.shown_diff(change["diff"]))
    lines += [f"  {escape(each)}\n" for each in told["notes"]]
    return "".join(lines)
