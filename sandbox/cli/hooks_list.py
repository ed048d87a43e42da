"""``stockade hooks list``: every handler that is found, where it stands and what is wrong with its entry."""

from __future__ import annotations

import os
import sys

from stockade.sandbox.cli import exits, shared
from stockade.sandbox.cli.document import render
from stockade.sandbox.cli.options import FLAG, VALUE, Option, UsageError, parse, render_help
from stockade.sandbox.cli.style import colour_on, escape, paint, table
from stockade.sandbox.hooks.discover import discover

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stockade.sandbox.hooks.config import Loaded
    from stockade.sandbox.hooks.finding import Finding
    from stockade.sandbox.hooks.model import HookSpec

USAGE = "stockade hooks list [OPTIONS] [FILE|DIR]"
SUMMARY = """\
List the handlers of a hooks file, or of all that a directory has: those that hosts would read in it, and those of \
plugins anywhere below. Without a name: the current directory. Nothing is run."""
EPILOG = "Exit codes: 0; 1 where an entry or a file could not be read; 125 where there is nothing to read."
DIALECT = Option(("--dialect",), "dialect", VALUE, "NAME", "whose files they are, where they don't tell")
USER = Option(("--user",), "user", FLAG, "", "also the user's own and the managed files")
OPTIONS = (DIALECT, USER, shared.JSON, shared.HELP)
COLOURS = {"error": "red", "high": "red", "medium": "yellow", "low": "dim"}
LONGEST = 60


def main(argv: Sequence[str]) -> int:
    parsed = parse(OPTIONS, argv, rest="args")
    if parsed.values["help"]:
        sys.stdout.write(render_help(USAGE, SUMMARY, OPTIONS, EPILOG))
        return exits.OK
    if len(parsed.rest) > 1:
        raise UsageError("could not list more than one path", remedy=f"Usage: {USAGE}")
    as_json = shared.as_document(parsed.values)
    path = parsed.rest[0] if parsed.rest else os.curdir
    found = looked_for(path, parsed.values)
    if as_json:
        document = {"schema": "stockade.hooks/1", "path": path, "files": [file_document(each) for each in found]}
        sys.stdout.write(render(document))
    else:
        show(found, path)
    return exits.NOT_GOOD if any(each.broken for each in found) else exits.OK


def looked_for(path: str, values: dict[str, Any]) -> list[Loaded]:
    """What is there. Raises UsageError for a wrong dialect, HooksFileError for a path that can't be opened."""
    from stockade.sandbox.hooks.config.hosts import HOSTS
    from stockade.sandbox.hooks.source import content

    name = values["dialect"]
    if name is not None and name not in HOSTS:
        remedy = f"Use one of {', '.join(HOSTS)}."
        raise UsageError(f"could not use the dialect {escape(str(name))!r}: it has no hooks files", remedy=remedy)
    if not os.path.isdir(path):
        content(path)
    return discover(path, home=os.path.expanduser("~") if values["user"] else None, dialect=name)


def file_document(loaded: Loaded) -> dict[str, Any]:
    return {
        "file": loaded.path,
        "dialect": loaded.dialect,
        "provenance": loaded.provenance,
        "root": loaded.root,
        "handlers": [handler_document(each) for each in loaded.specs],
        "problems": [finding_document(each) for each in loaded.problems],
    }


def handler_document(spec: HookSpec) -> dict[str, Any]:
    """A handler; header values, which may be secrets, are left out."""
    from stockade.sandbox.hooks.scripts import resolve_scripts

    named = spec.as_dict()
    for key in ("raw", "headers", "header_variables", "source", "dialect", "env"):
        named.pop(key)
    return {
        **named,
        "env": [name for name, _value in spec.env],
        "headers": [name for name, _value in spec.headers],
        "header_variables": list(spec.header_variables),
        "scripts": resolve_scripts(spec),
    }


def finding_document(finding: Finding) -> dict[str, Any]:
    return finding.as_dict()


def show(found: Sequence[Loaded], path: str) -> None:
    on = colour_on(sys.stdout)
    if not found:
        sys.stdout.write(f"No hooks files in {escape(path)}.\n")
    for number, loaded in enumerate(found):
        about = ", ".join(filter(None, (loaded.dialect, loaded.provenance)))
        lead = "\n" if number else ""
        sys.stdout.write(f"{lead}{paint(escape(loaded.path), 'bold', on)}" + (f"  ({about})\n" if about else "\n"))
        sys.stdout.write(indented(table([row(each) for each in loaded.specs], on)))
        for each in loaded.problems:
            show_finding(each, on, loaded.path)
    count = sum(len(each.specs) for each in found)
    if found:
        sys.stdout.write(f"\n{count} handler{'s' * (count != 1)} in {len(found)} file{'s' * (len(found) != 1)}\n")


def indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())


def row(spec: HookSpec) -> list[str | tuple[str, str]]:
    """Event, matcher, timeout, form, command, and what else is to be known."""
    what = spec.url or (" ".join(spec.command) if isinstance(spec.command, tuple) else spec.command)
    shown = what if len(what) <= LONGEST else f"{what[: LONGEST - 3]}..."
    timeout = f"{spec.timeout:g}s" + ("" if spec.timeout_given else "*")
    return [f"{spec.line}", spec.event, spec.matcher or "*", timeout, spec.form, shown, (flags(spec), "dim")]


def flags(spec: HookSpec) -> str:
    words = {
        "off": not spec.enabled,
        "async": spec.asynchronous,
        "once": spec.once,
        "in order": spec.sequential,
        "fails closed": spec.fail_closed,
        f"if {spec.condition}": bool(spec.condition),
        f"[{spec.name}]": bool(spec.name),
    }
    return ", ".join(word for word, true in words.items() if true)


def show_finding(finding: Finding, on: bool, own: str) -> None:
    """One problem: severity, code, place, what is wrong, what to do."""
    numbers = ":".join(str(each) for each in (finding.line, finding.column) if each)
    place = f"{numbers} " if finding.file == own and numbers else "" if finding.file == own else f"{finding.place} "
    word = paint(f"{finding.severity:6}", COLOURS[finding.severity], on)
    about = f" ({finding.pointer})" if finding.pointer else ""
    sys.stdout.write(f"  {word} {finding.code}: {escape(place)}{escape(finding.text)}{escape(about)}\n")
    if finding.remedy:
        sys.stdout.write(f"         {escape(finding.remedy)}\n")
