"""A hooks or settings file as text with places, and edits of it that leave all other bytes alone.

Reads one file (edge); everything else is pure. What the values mean is the loaders' business.
"""

from __future__ import annotations

import os
import stat

from stockade.policies.errors import StockadeError
from stockade.policies.record import Record
from stockade.policies.text import quoted
from stockade.sandbox.hooks import jsonc
from stockade.sandbox.hooks.jsonc import (
    COMMENTS,
    RELAXED,
    STRICT,
    Member,
    Node,
    Oddity,
    Syntax,
    path_of,
    pointer_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "COMMENTS", "RELAXED", "STRICT", "Edit", "HooksFileError", "Member", "Node", "Oddity", "Source", "Syntax",
    "add_member", "apply", "content", "parse_source", "path_of", "pointer_of", "read_source", "replace_value",
    "replaced", "shown",
]  # fmt: skip
LARGEST = 2 * 1024 * 1024


class HooksFileError(StockadeError):
    """A hooks file that can't be used. ``line`` and ``column`` count from 1 and are 0 where there are none."""

    def __init__(
        self, message: str, *, remedy: str = "", path: str = "", pointer: str = "", line: int = 0, column: int = 0
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.path, self.pointer, self.line, self.column = path, pointer, line, column


class Source(Record):
    """A file's text and its tree."""

    path: str
    text: str
    """All of it, a byte order mark and line ends included: ``text.encode()`` is the file."""
    root: Node
    oddities: tuple[Oddity, ...] = ()

    def at(self, pointer: str) -> Node | None:
        """The node that a JSON pointer leads to, if there is one."""
        node: Node | None = self.root
        for step in path_of(pointer):
            if node is None:
                return None
            if node.kind == "array":
                node = node.items[int(step)] if step.isdecimal() and int(step) < len(node.items) else None
            else:
                node = node.get(step)
        return node

    def fault(self, node: Node, pointer: str, text: str, remedy: str) -> HooksFileError:
        """The error that something about ``node`` is wrong."""
        where = f"{shown(self.path)}:{node.line}:{node.column}"
        return HooksFileError(
            f"could not use {where}: {shown(pointer) or 'the document'} {text}",
            remedy=remedy, path=self.path, pointer=pointer, line=node.line, column=node.column,
        )  # fmt: skip


class Edit(Record):
    """``text[start:end]`` becomes ``text``."""

    start: int
    end: int
    text: str


def read_source(path: str, syntax: Syntax = STRICT) -> Source:
    """Read and parse a file. Raises HooksFileError."""
    return parse_source(content(path), path, syntax)


def parse_source(data: bytes, path: str, syntax: Syntax = STRICT) -> Source:
    """Parse what ``path``, a name for messages, holds. Raises HooksFileError."""
    text = decoded(data, path)
    try:
        root, oddities = jsonc.parse(text, syntax)
    except jsonc.SyntaxFault as fault:
        raise HooksFileError(
            f"could not read {shown(path)}:{fault.line}:{fault.column}: {fault.text}",
            remedy=fault.remedy, path=path, line=fault.line, column=fault.column,
        ) from None  # fmt: skip
    return Source(path, text, root, oddities)


def decoded(data: bytes, path: str) -> str:
    """The text of a file. Raises HooksFileError where it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        raise HooksFileError(
            f"could not read {shown(path)}:{line}:{column}: it is not UTF-8",
            remedy="save the file as UTF-8", path=path, line=line, column=column,
        ) from None  # fmt: skip


def content(path: str) -> bytes:
    """The bytes of a regular file of bounded size. Raises HooksFileError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise unreadable(path, cause, "check the path and its permissions") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise unreadable(path, "it is not a regular file", "name the file itself")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise unreadable(path, error.strerror or str(error), "check the file") from None
    finally:
        os.close(descriptor)
    if len(data) > LARGEST:
        raise unreadable(path, f"it has more than {LARGEST >> 20} MiB", "name a hooks or settings file")
    return data


def unreadable(path: str, cause: str, remedy: str) -> HooksFileError:
    return HooksFileError(f"could not read {shown(path)}: {cause}", remedy=remedy, path=path)


def shown(text: str) -> str:
    """A path or pointer as messages name it."""
    return text if text.isprintable() else quoted(text)


def replace_value(node: Node, text: str) -> Edit:
    """The edit that puts other JSON text where a value stands."""
    return Edit(node.start, node.end, text)


def replaced(text: str, node: Node, new: str) -> str:
    """``text`` with the text of one value replaced by ``new``, which is JSON; all else stays as it is."""
    return apply(text, [replace_value(node, new)])


def add_member(source: Source, after: Member, key: str, text: str) -> Edit:
    """The edit that adds a member right behind another, laid out as that one is. ``text`` is JSON."""
    import json

    line = source.text[source.text.rfind("\n", 0, after.start) + 1 : after.start]
    own_line = not line.strip(" \t") and "\n" in source.text[: after.start]
    ending = "\r\n" if source.text[: after.start - len(line)].endswith("\r\n") else "\n"
    between = source.text[after.end : after.node.start]
    colon = between if not between.strip(" \t:") else ": "
    gap = f",{ending}{line}" if own_line else ", "
    return Edit(after.node.end, after.node.end, f"{gap}{json.dumps(key)}{colon}{text}")


def apply(text: str, edits: Iterable[Edit]) -> str:
    """``text`` with all edits made; places are those of the text before. Raises ValueError where they overlap."""
    pieces: list[str] = []
    at = 0
    for edit in sorted(edits, key=lambda each: (each.start, each.end)):
        if edit.start < at or edit.end < edit.start or edit.end > len(text):
            raise ValueError("edits overlap or lie outside the text")
        pieces += text[at : edit.start], edit.text
        at = edit.end
    return "".join((*pieces, text[at:]))
