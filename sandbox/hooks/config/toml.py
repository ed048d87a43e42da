"""Codex's ``[hooks]`` of config.toml as a tree like that of JSON. Lines are found by searching, as far as they can be.

TOML's own reader keeps no places: a line of 0 is one that was not found.
"""

from __future__ import annotations

import re
from bisect import bisect_left

from stockade.sandbox.hooks.source import HooksFileError, Member, Node, Source, decoded, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PLACE = re.compile(r"\(at line (\d+), column (\d+)\)$")


def read_toml(data: bytes, path: str) -> Source:
    """The document. Raises HooksFileError."""
    from stockade.policies.toml import loads

    text = decoded(data, path)
    try:
        tree = Grower(text).grown(loads(text.replace("\r\n", "\n")))
    except ValueError as error:
        raise unreadable(path, str(error)) from None
    except RecursionError:
        raise unreadable(path, "it is nested too deeply") from None
    return Source(path, text, tree)


def unreadable(path: str, cause: str) -> HooksFileError:
    found = PLACE.search(cause)
    line, column = (int(found[1]), int(found[2])) if found else (0, 0)
    where = f"{shown(path)}:{line}:{column}" if found else shown(path)
    cause = PLACE.sub("", cause).strip()
    return HooksFileError(
        f"could not read {where}: it is not TOML: {cause[:1].lower()}{cause[1:]}",
        remedy="Mend the file.", path=path, line=line, column=column,
    )  # fmt: skip


class Grower:
    """Makes nodes of plain values; each command is looked for behind the one before."""

    def __init__(self, text: str) -> None:
        from stockade.sandbox.hooks.tomltext import strings

        self.last = 0
        self.places: dict[str, list[int]] = {}
        for span, value in strings(text, "command"):
            self.places.setdefault(value, []).append(span.start)
        self.breaks = [at for at, letter in enumerate(text) if letter == "\n"] if self.places else []

    def grown(self, value: Any, line: int = 0) -> Node:
        if isinstance(value, dict):
            line = self.line_of(value.get("command")) or line
            members = tuple(Member(key, 0, 0, self.grown(each, line)) for key, each in value.items())
            return Node("object", value, 0, 0, line, 0, members=members)
        if isinstance(value, list):
            return Node("array", value, 0, 0, line, 0, items=tuple(self.grown(each, line) for each in value))
        kind = "boolean" if isinstance(value, bool) else "number" if isinstance(value, int | float) else "string"
        return Node(kind, value if kind != "string" else str(value), 0, 0, line, 0)

    def line_of(self, command: object) -> int:
        found = self.places.get(command, []) if isinstance(command, str) and command else []
        if not found:
            return 0
        at = found[bisect_left(found, self.last) % len(found)]  # past the last one: the first
        self.last = at + 1
        return bisect_left(self.breaks, at) + 1
