"""What is wrong with a hooks file or a handler of it, as data. Pure."""

from __future__ import annotations

from stockade.policies.record import Record
from stockade.sandbox.hooks.source import HooksFileError, shown

SEVERITIES = ("error", "high", "medium", "low")
"""Worst first. ``error``: the entry can't be used at all. ``high``: a guard does not guard, or much is exposed."""


class Finding(Record):
    """One thing that is wrong."""

    code: str
    severity: str
    text: str
    file: str = ""
    pointer: str = ""
    """The JSON pointer of what it is about; empty for the whole file."""
    line: int = 0
    column: int = 0
    remedy: str = ""
    event: str = ""

    @property
    def place(self) -> str:
        """``file:line:column``, as far as it is known; harmless on a terminal."""
        numbers = [str(each) for each in (self.line, self.column) if each]
        return ":".join((shown(self.file), *numbers))


def raised(finding: Finding) -> HooksFileError:
    """The error that a finding is for who can't go on with it."""
    about = shown(finding.pointer) or "the document"
    return HooksFileError(
        f"could not use {finding.place}: {about}: {finding.text}",
        remedy=finding.remedy, path=finding.file, pointer=finding.pointer, line=finding.line, column=finding.column,
    )  # fmt: skip


def at_least(severity: str, level: str) -> bool:
    """Whether ``severity`` is as bad as ``level`` or worse."""
    return SEVERITIES.index(severity) <= SEVERITIES.index(level)
