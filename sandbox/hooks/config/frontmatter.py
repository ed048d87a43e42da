"""The ``hooks`` of a skill's or subagent's frontmatter, where they are written plainly. Pure.

Only blocks of keys and lists with values on one line are understood: no anchors, tags, flow collections or folded
texts. What is more than that is an error that says so; nothing is guessed.
"""

from __future__ import annotations

import json
import re
from collections import deque

from stockade.policies.record import Record
from stockade.policies.text import quoted
from stockade.sandbox.hooks.jsontext import whole_number
from stockade.sandbox.hooks.source import HooksFileError, Member, Node, Source, decoded, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

MOST_DEEP = 40
KEY = re.compile(r"""(?P<key>"[^"\\]*"|'[^']*'|[\w.@$/-][^:#\n"']{0,80}?)[ ]{0,20}:(?:[ ]+(?P<rest>.*))?$""")
CONSTANTS = {"true": True, "false": False, "null": None, "~": None}
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?$")


class Line(Record):
    """A line that says something."""

    number: int
    indent: int
    text: str


def read_frontmatter(data: bytes, path: str) -> Source:
    """A document that holds the file's ``hooks`` alone; empty where it has none. Raises HooksFileError."""
    text = decoded(data, path)
    lines = block(text.removeprefix("\ufeff").splitlines())
    starts = [at for at, line in enumerate(lines) if line.indent == 0 and re.match(r"hooks[ ]*:", line.text)]
    if not starts:
        return Source(path, text, Node("object", {}, 0, 0, 1, 1))
    rest = lines[starts[0] :]
    end = next(
        (at for at, line in enumerate(rest[1:], 1) if line.indent == 0 and not line.text.startswith("-")), None
    )
    root, left = Plain(path).value(deque(rest[:end]), 0, 0)
    if left:
        refuse(path, left[0], "a line that does not fit in its block")
    return Source(path, text, root)


def block(lines: list[str]) -> list[Line]:
    """The lines between the two marks, without blank ones and comments."""
    if not lines or lines[0].rstrip() != "---":
        return []
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() in ("---", "...")), 0)
    said = ((number, line) for number, line in enumerate(lines[1:end], 2) if line.strip())
    return [
        Line(number, len(line) - len(line.lstrip(" ")), line.strip())
        for number, line in said
        if not line.lstrip().startswith("#")
    ]


def refuse(path: str, line: Line, what: str) -> NoReturn:
    column = line.indent + 1
    raise HooksFileError(
        f"could not read {shown(path)}:{line.number}:{column}: {what}, which is not read in a frontmatter here",
        remedy="Write plain keys, lists and one-line values, or move the hooks into a settings file.",
        path=path, line=line.number, column=column,
    )  # fmt: skip


class Plain:
    """Blocks as nodes."""

    def __init__(self, path: str) -> None:
        self.path = path

    def value(self, lines: deque[Line], indent: int, deep: int) -> tuple[Node, deque[Line]]:
        """The block that begins at ``lines[0]``, and what follows it."""
        if deep > MOST_DEEP:
            refuse(self.path, lines[0], "a deep nesting")
        is_list = lines[0].text == "-" or lines[0].text.startswith("- ")
        return (self.listed if is_list else self.mapped)(lines, indent, deep)

    def mapped(self, lines: deque[Line], indent: int, deep: int) -> tuple[Node, deque[Line]]:
        first = lines[0]
        members: list[Member] = []
        while lines and lines[0].indent == indent and not lines[0].text.startswith("- "):
            line = lines.popleft()
            found = KEY.match(line.text)
            if not found:
                refuse(self.path, line, f"{quoted(line.text)} where a key is due")
            key = found["key"].strip().strip("\"'")
            node, lines = self.member(line, found["rest"] or "", lines, indent, deep)
            members.append(Member(key, 0, 0, node))
        value = {each.key: each.node.value for each in members}
        return Node("object", value, 0, 0, first.number, first.indent + 1, members=tuple(members)), lines

    def member(self, line: Line, rest: str, lines: deque[Line], indent: int, deep: int) -> tuple[Node, deque[Line]]:
        if rest.strip() and not rest.lstrip().startswith("#"):
            return self.scalar(line, rest.strip()), lines
        inner = lines[0].indent if lines else -1
        if inner > indent or (inner == indent and lines[0].text.startswith("-")):
            return self.value(lines, inner, deep + 1)
        return Node("null", None, 0, 0, line.number, line.indent + 1), lines

    def listed(self, lines: deque[Line], indent: int, deep: int) -> tuple[Node, deque[Line]]:
        first = lines[0]
        items: list[Node] = []
        while lines and lines[0].indent == indent and (lines[0].text == "-" or lines[0].text.startswith("- ")):
            line = lines.popleft()
            rest = line.text[1:].lstrip()
            inner = Line(line.number, indent + len(line.text) - len(rest), rest)
            if not rest and lines and lines[0].indent > indent:
                node, lines = self.value(lines, lines[0].indent, deep + 1)
            elif KEY.match(rest) or rest.startswith("- "):
                lines.appendleft(inner)
                node, lines = self.value(lines, inner.indent, deep + 1)
            else:
                node = self.scalar(inner, rest)
            items.append(node)
        value = [each.value for each in items]
        return Node("array", value, 0, 0, first.number, first.indent + 1, items=tuple(items)), lines

    def scalar(self, line: Line, text: str) -> Node:
        value = self.plain(line, text)
        kind = "null" if value is None else "boolean" if isinstance(value, bool) else "number"
        return Node("string" if isinstance(value, str) else kind, value, 0, 0, line.number, line.indent + 1)

    def plain(self, line: Line, text: str) -> str | float | bool | None:
        if not text:
            return None
        if text[0] == '"':
            try:
                value, end = json.JSONDecoder().raw_decode(text)
            except ValueError:
                refuse(self.path, line, f"the string {quoted(text)}")
            return (
                str(value)
                if not text[end:].strip().lstrip("#") or text[end:].lstrip().startswith("#")
                else self.no(line)
            )
        if text[0] == "'":
            found = re.match(r"'((?:[^']|'')*)'[ ]*(?:#.*)?$", text)
            return found[1].replace("''", "'") if found else self.no(line)
        if text[0] in "[{&*!|>%@`,":
            self.no(line)
        text = re.split(r"[ \t]#", text, maxsplit=1)[0].rstrip()
        if text in CONSTANTS:
            return CONSTANTS[text]
        if NUMBER.match(text):
            return float(text) if "." in text else whole_number(text)
        return self.no(line) if ": " in text else text

    def no(self, line: Line) -> NoReturn:
        refuse(self.path, line, f"the value {quoted(line.text)}")
