"""``stockade hooks check``: what is wrong with handlers and the code that they run, with remedies. Runs nothing."""

from __future__ import annotations

import os
import sys

from stockade.sandbox.cli import exits, shared
from stockade.sandbox.cli.document import render
from stockade.sandbox.cli.hooks_list import DIALECT, USER, finding_document, looked_for, show_finding
from stockade.sandbox.cli.main import report
from stockade.sandbox.cli.options import VALUE, Option, UsageError, parse, render_help
from stockade.sandbox.cli.style import colour_on, escape, paint
from stockade.sandbox.hooks.check import CODES, check
from stockade.sandbox.hooks.finding import SEVERITIES, at_least
from stockade.sandbox.hooks.source import HooksFileError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from stockade.sandbox.hooks.config import Loaded
    from stockade.sandbox.hooks.finding import Finding

USAGE = "stockade hooks check [OPTIONS] [FILE|DIR]..."
SUMMARY = """\
Check hooks files and the scripts that their handlers name: what a host would stumble over, what does not guard \
though it looks like it, what leaks. Without a name: the current directory. Nothing is run."""
LEVEL = Option(("--fail-on",), "level", VALUE, "LEVEL", f"exit with 1 from this on: {', '.join(SEVERITIES)} (high)")
OPTIONS = (DIALECT, USER, LEVEL, shared.JSON, shared.HELP)
EPILOG = (
    "Exit codes: 0 nothing as bad as LEVEL; 1 something is; 125 a path could not be read.\n\nWhat is looked for:\n\n"
    + "\n".join(f"  {code:20} {text}" for code, text in CODES.items())
)


def main(argv: Sequence[str]) -> int:
    parsed = parse(OPTIONS, argv, rest="args")
    if parsed.values["help"]:
        sys.stdout.write(render_help(USAGE, SUMMARY, OPTIONS, EPILOG))
        return exits.OK
    level = parsed.values["level"] or "high"
    if level not in SEVERITIES:
        remedy = f"Use one of {', '.join(SEVERITIES)}."
        raise UsageError(f"could not use --fail-on {escape(str(level))!r}: it is no severity", remedy=remedy)
    as_json = shared.as_document(parsed.values)
    found: list[Loaded] = []
    lost: list[HooksFileError] = []
    for path in parsed.rest or (os.curdir,):
        try:
            found += looked_for(path, parsed.values)
        except HooksFileError as error:
            lost.append(error)
    findings = check(found)
    if as_json:
        sys.stdout.write(render(document(found, findings, lost)))
    else:
        show(found, findings)
    for each in lost:
        report(each)
    return code(findings, lost, str(level))


def code(findings: Sequence[Finding], lost: Sequence[HooksFileError], level: str) -> int:
    if lost:
        return exits.FAILED
    return exits.NOT_GOOD if any(at_least(each.severity, level) for each in findings) else exits.OK


def document(
    found: Sequence[Loaded], findings: Sequence[Finding], lost: Sequence[HooksFileError]
) -> dict[str, object]:
    counts = {severity: sum(each.severity == severity for each in findings) for severity in SEVERITIES}
    return {
        "schema": "stockade.hooks-check/1",
        "files": [{"file": each.path, "dialect": each.dialect, "handlers": len(each.specs)} for each in found],
        "findings": [finding_document(each) for each in findings],
        "counts": counts,
        "unread": [{"file": each.path, "message": each.message, "remedy": each.remedy} for each in lost],
    }


def show(found: Sequence[Loaded], findings: Sequence[Finding]) -> None:
    """The findings by file, those about a script under the script."""
    on = colour_on(sys.stdout)
    files = dict.fromkeys((*(each.path for each in found), *(each.file for each in findings)))
    for path in files:
        own = [each for each in findings if each.file == path]
        if own:
            sys.stdout.write(f"{paint(escape(path), 'bold', on)}\n")
        for each in own:
            show_finding(each, on, path)
    handlers = sum(len(each.specs) for each in found)
    told = [
        f"{count} {severity}"
        for severity in SEVERITIES
        if (count := sum(each.severity == severity for each in findings))
    ]
    blank = "\n" if findings else ""
    sys.stdout.write(
        f"{blank}{handlers} handler{'s' * (handlers != 1)} in {len(found)} file{'s' * (len(found) != 1)}: "
        f"{', '.join(told) or 'nothing found'}\n"
    )
