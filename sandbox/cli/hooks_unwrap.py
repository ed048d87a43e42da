"""``stockade hooks unwrap``: what a hooks file was before ``wrap``."""

from __future__ import annotations

import os
import sys

from stockade.sandbox.cli import exits, hooksfile, shared
from stockade.sandbox.cli.options import FLAG, Option, parse, render_help

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stockade.sandbox.cli.hooksfile import Opened

OPTIONS = (
    hooksfile.DIALECT,
    Option(("--write",), "write", FLAG, "", "change the file; its copy is removed once it equals it"),
    shared.JSON,
    shared.HELP,
)
USAGE = "stockade hooks unwrap [OPTIONS] FILE"
SUMMARY = (
    "Take `stockade hook` away from in front of every command. A file that was not edited since is then byte for "
    "byte what it was; in one that was, each command is undone for itself and the rest stays."
)


def main(argv: Sequence[str]) -> int:
    parsed = parse(OPTIONS, argv, rest="args")
    values: dict[str, Any] = parsed.values
    if values["help"]:
        sys.stdout.write(render_help(USAGE, SUMMARY, OPTIONS, ""))
        return exits.OK
    as_json = shared.as_document(values)
    file = hooksfile.opened(hooksfile.only(parsed.rest, USAGE), values["dialect"])
    return carry_out(file, write=values["write"] is True, as_json=as_json)


def carry_out(file: Opened, *, write: bool, as_json: bool) -> int:
    from stockade.sandbox.hooks import ondisk
    from stockade.sandbox.hooks.wrap import unwrap

    kept = ondisk.backups(file.target.real)
    done = unwrap(file.target.data, file.target.path, file.dialect, file.load, reversed(kept.values()))
    same = [path for path, data in kept.items() if data == done.data]
    if write and done.data != file.target.data:
        ondisk.replace(file.target, done.data)
        hooksfile.note_wrappers(file, done.data)
        for path in same:
            os.unlink(path)
    notes = []
    if done.data != file.target.data:
        notes.append(
            "It is byte for byte what it was before it was wrapped."
            if same
            else "It was edited since it was wrapped: each command is undone for itself."
        )
    hooksfile.report("unwrap", file, done, write=write, backup="", notes=notes, as_json=as_json)
    return exits.OK
