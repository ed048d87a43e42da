"""JSON, with comments and trailing commas where a host takes them, as a tree that knows where everything stands. Pure.

Strict about all else: what is no JSON is named as what it is (a single quote, a key without quotes, ``NaN`` ...)
with its place and what to write instead. Nothing is repaired.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from json import JSONDecodeError
from json.decoder import scanstring  # type: ignore[attr-defined]

from stockade.policies.record import Record
from stockade.policies.text import quoted
from stockade.sandbox.hooks.jsontext import whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

MOST_DEEP = 100
BOM = "\ufeff"
BLANK = re.compile(r"[ \t\n\r]*")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
WORD = re.compile(r"[\w$.+\-]+")
BREAK = re.compile(r"\r\n|\n|\r")
CONSTANTS = {"true": True, "false": False, "null": None}
MEANT = {"True": "true", "False": "false", "None": "null", "undefined": "null", "nil": "null"}
QUOTES = "\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb"


class Syntax(Record):
    """What a host takes beyond JSON."""

    comments: bool = False
    trailing_commas: bool = False


STRICT = Syntax()
COMMENTS = Syntax(comments=True)
RELAXED = Syntax(comments=True, trailing_commas=True)


class Member(Record):
    """One member of an object: its key, where the key stands (quotes included), and its value."""

    key: str
    start: int
    end: int
    node: Node


class Node(Record):
    """One value and where it stands: ``text[start:end]`` is it, byte for byte."""

    kind: str
    """``object``, ``array``, ``string``, ``number``, ``boolean`` or ``null``."""
    value: Any
    """The value as Python has it; of members with the same key the last."""
    start: int
    end: int
    line: int
    """From 1."""
    column: int
    """From 1, in characters; a byte order mark is none."""
    members: tuple[Member, ...] = ()
    """Of an object, in order, with repeated ones."""
    items: tuple[Node, ...] = ()
    """Of an array."""

    def member(self, key: str) -> Member | None:
        """The member that counts: the last of that key."""
        return next((each for each in reversed(self.members) if each.key == key), None)

    def get(self, key: str) -> Node | None:
        found = self.member(key)
        return found.node if found else None


class Oddity(Record):
    """Something unusual that was taken all the same."""

    code: str
    """``duplicate_key``, ``comment``, ``trailing_comma`` or ``bom``."""
    text: str
    pointer: str
    line: int
    column: int


class SyntaxFault(ValueError):
    """Why a text is no such document: what is wrong at ``line`` and ``column``, and what to write."""

    def __init__(self, text: str, remedy: str, line: int, column: int) -> None:
        super().__init__(text)
        self.text, self.remedy, self.line, self.column = text, remedy, line, column


def parse(text: str, syntax: Syntax = STRICT) -> tuple[Node, tuple[Oddity, ...]]:
    """The tree of the document in ``text``. Raises SyntaxFault."""
    reader = Reader(text, syntax)
    at = reader.skip(1 if text.startswith(BOM) else 0)
    if at >= len(text):
        reader.fault(len(text), "the file is empty", "write {} at the least")
    node = reader.value(at, (), 0)
    rest = reader.skip(node.end)
    if rest < len(text):
        reader.fault(rest, f"{reader.seen(rest)} follows the document", "leave one JSON document in the file")
    if text.startswith(BOM):
        reader.odd("bom", "it begins with a byte order mark, which hosts may refuse", (), 1)
    return node, tuple(reader.oddities)


def pointer_of(path: tuple[str | int, ...]) -> str:
    """The JSON pointer (RFC 6901) of keys and indexes."""
    return "".join("/" + str(each).replace("~", "~0").replace("/", "~1") for each in path)


def path_of(pointer: str) -> tuple[str, ...]:
    """The steps of a JSON pointer; an index stays a text."""
    return tuple(each.replace("~1", "/").replace("~0", "~") for each in pointer.split("/")[1:])


class Reader:
    """The state of one reading: the text, what is allowed, and what was odd."""

    def __init__(self, text: str, syntax: Syntax) -> None:
        self.text, self.syntax = text, syntax
        self.oddities: list[Oddity] = []
        self.commented = False
        self.lines = [0, *(found.end() for found in BREAK.finditer(text))]

    def place(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self.lines, offset)
        column = offset - self.lines[line - 1] + 1
        return line, column - 1 if line == 1 and self.text.startswith(BOM) and column > 1 else column

    def odd(self, code: str, text: str, path: tuple[str | int, ...], offset: int) -> None:
        self.oddities.append(Oddity(code, text, pointer_of(path), *self.place(offset)))

    def fault(self, offset: int, text: str, remedy: str) -> NoReturn:
        raise SyntaxFault(text, remedy, *self.place(offset))

    def seen(self, at: int) -> str:
        """What stands there, for a message."""
        if at >= len(self.text):
            return "the end of the file"
        word = WORD.match(self.text, at)
        return quoted(word.group()[:40] if word else self.text[at])

    def skip(self, at: int) -> int:
        """Past blanks, and past comments where they are taken."""
        while True:
            found = BLANK.match(self.text, at)
            at = found.end() if found else at
            if not self.text.startswith(("//", "/*", "#"), at):
                return at
            at = self.comment(at)

    def comment(self, at: int) -> int:
        if self.text[at] == "#":
            self.fault(at, "a # comment, which JSON does not have", "remove the comment")
        if not self.syntax.comments:
            self.fault(at, "a comment, and this host reads JSON without comments", "remove the comment")
        if not self.commented:
            self.odd("comment", "it has comments", (), at)
            self.commented = True
        if self.text.startswith("//", at):
            found = BREAK.search(self.text, at)
            return found.end() if found else len(self.text)
        end = self.text.find("*/", at + 2)
        if end < 0:
            self.fault(at, "a comment that never ends", "write */ where it ends")
        return end + 2

    def value(self, at: int, path: tuple[str | int, ...], deep: int) -> Node:
        if deep > MOST_DEEP:
            self.fault(at, f"more than {MOST_DEEP} levels of nesting", "make it flatter")
        letter = self.text[at : at + 1]
        if letter == "{":
            return self.object(at, path, deep)
        if letter == "[":
            return self.array(at, path, deep)
        if letter == '"':
            value, end = self.string(at)
            return self.node("string", value, at, end)
        if found := NUMBER.match(self.text, at):
            return self.number(at, found)
        return self.constant(at)

    def node(self, kind: str, value: Any, start: int, end: int, **more: Any) -> Node:
        return Node(kind, value, start, end, *self.place(start), **more)

    def constant(self, at: int) -> Node:
        found = WORD.match(self.text, at)
        word = found.group() if found else ""
        if word not in CONSTANTS:
            self.no_value(at, word)
        value = CONSTANTS[word]
        return self.node("null" if value is None else "boolean", value, at, at + len(word))

    def no_value(self, at: int, word: str) -> NoReturn:
        letter = self.text[at : at + 1]
        if letter in ("'", "`") or (letter and letter in QUOTES):
            self.fault(at, f"a string in {letter} quotes", 'write strings in double quotes: "..."')
        if word in MEANT:
            self.fault(at, f"{word} is not JSON", f"write {MEANT[word]}")
        if word.lstrip("+-") in ("NaN", "Infinity") or (word and word[0] in "+.0123456789-"):
            self.fault(at, f"{quoted(word[:40])} is no JSON number", "write a decimal number such as 10 or 0.5")
        if word:
            self.fault(at, f"{quoted(word[:40])} without quotes", 'write strings in double quotes: "..."')
        what = "nothing" if at >= len(self.text) else self.seen(at)
        self.fault(at, f"{what} where a value is due", "write a value, or close what is open")

    def number(self, at: int, found: re.Match[str]) -> Node:
        word = WORD.match(self.text, at)
        if word and word.end() != found.end():
            self.no_value(at, word.group())
        whole = not (found.group(1) or found.group(2))
        value = whole_number(found.group()) if whole else float(found.group())
        return self.node("number", value, at, found.end())

    def string(self, at: int) -> tuple[str, int]:
        try:
            value, end = scanstring(self.text, at + 1, True)
        except JSONDecodeError as error:
            self.no_string(at, error)
        return value, end

    def no_string(self, at: int, error: JSONDecodeError) -> NoReturn:
        if "control" in error.msg:
            letter = self.text[error.pos]
            what = "a line break" if letter in "\r\n" else f"the control character {quoted(letter)}"
            self.fault(error.pos, f"{what} inside a string", f"write it as {escaped(letter)}, or close the string")
        if "scape" in error.msg:
            self.fault(error.pos, "an escape that JSON does not have", "write a backslash itself as \\\\")
        self.fault(at, "a string that never ends", 'write " where it ends')

    def object(self, start: int, path: tuple[str | int, ...], deep: int) -> Node:
        members: list[Member] = []
        seen: set[str] = set()
        for at in self.entries(start, "}", path):
            member = self.read_member(at, path, deep)
            if member.key in seen:
                text = f"the key {quoted(member.key)} stands twice; the last one counts"
                self.odd("duplicate_key", text, (*path, member.key), at)
            seen.add(member.key)
            members.append(member)
            self.at = member.node.end
        value = {each.key: each.node.value for each in members}
        return self.node("object", value, start, self.at, members=tuple(members))

    def array(self, start: int, path: tuple[str | int, ...], deep: int) -> Node:
        items: list[Node] = []
        for at in self.entries(start, "]", path):
            items.append(self.value(at, (*path, len(items)), deep + 1))
            self.at = items[-1].end
        return self.node("array", [each.value for each in items], start, self.at, items=tuple(items))

    def entries(self, start: int, close: str, path: tuple[str | int, ...]) -> Iterator[int]:
        """Where each entry of a container begins; whoever reads one leaves its end in ``self.at``."""
        at = self.skip(start + 1)
        while not self.text.startswith(close, at):
            yield at
            at = self.skip(self.at)
            if self.text.startswith(close, at):
                break
            comma = at
            if not self.text.startswith(",", at):
                self.no_comma(at, start, close)
            at = self.skip(at + 1)
            if self.text.startswith(close, at):
                self.trailing(comma, path)
        self.at = at + 1

    def trailing(self, comma: int, path: tuple[str | int, ...]) -> None:
        if not self.syntax.trailing_commas:
            self.fault(comma, "a comma after the last entry", "remove the comma")
        self.odd("trailing_comma", "there is a comma after the last entry", path, comma)

    def no_comma(self, at: int, start: int, close: str) -> NoReturn:
        if at >= len(self.text):
            line, column = self.place(start)
            text = f"the file ends inside what begins at line {line}, column {column}"
            self.fault(at, text, f"close it with {close}")
        self.fault(at, f"{self.seen(at)} where a comma or {close} is due", "write a comma between entries")

    def read_member(self, at: int, path: tuple[str | int, ...], deep: int) -> Member:
        if not self.text.startswith('"', at):
            self.no_key(at)
        key, end = self.string(at)
        colon = self.skip(end)
        if not self.text.startswith(":", colon):
            self.fault(colon, f"{self.seen(colon)} where a colon is due", f"write {quoted(key)} : and its value")
        return Member(key, at, end, self.value(self.skip(colon + 1), (*path, key), deep + 1))

    def no_key(self, at: int) -> NoReturn:
        letter = self.text[at : at + 1]
        if letter in ("'", "`") or (letter and letter in QUOTES):
            self.fault(at, f"a key in {letter} quotes", 'write keys in double quotes: "..."')
        word = WORD.match(self.text, at)
        if word:
            text = f"the key {quoted(word.group()[:40])} without quotes"
            self.fault(at, text, 'write keys in double quotes: "..."')
        self.fault(at, f"{self.seen(at)} where a key is due", "write a key in double quotes, or close with }")


def escaped(letter: str) -> str:
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(letter, f"\\u{ord(letter):04x}")
