"""bwrap's status records (pure): a stream of flat JSON objects with integer values, one a line.

Parsed here because ``json`` costs more to import than the whole parse; anything that is not such a record is
kept as ``strange`` and never guessed at.
"""

from __future__ import annotations

MOST_CODE = 255
MOST_DIGITS = 20
LONGEST = 4096
"""Bytes of one record."""
BLANKS = b" \t\r\n"


class StatusReader:
    """Feed it bytes as they come; it knows the child's pid and, once the program was executed, its exit code."""

    __slots__ = ("_rest", "child_pid", "exit_code", "namespaces", "strange")

    def __init__(self) -> None:
        self._rest = b""
        self.child_pid: int | None = None
        self.exit_code: int | None = None
        self.namespaces: dict[str, int] = {}
        self.strange = False

    def feed(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                self._take(parse_record(line) if len(line) <= LONGEST else None)
        # What is too long is no record, whatever still comes of it.
        self._rest = rest if len(rest) <= LONGEST else b"?" * LONGEST

    def _take(self, record: dict[str, int] | None) -> None:
        if record is None:
            self.strange = True
            return
        for key, value in record.items():
            if key == "child-pid" and self.child_pid is None:
                self.child_pid = value
            elif key == "exit-code" and value > MOST_CODE:
                self.strange = True
            elif key == "exit-code" and self.exit_code is None:
                self.exit_code = value
            elif key.endswith("-namespace"):
                self.namespaces[key.removesuffix("-namespace")] = value


def parse_record(line: bytes) -> dict[str, int] | None:
    """``{ "child-pid": 12, ... }`` as a dictionary; None for anything else."""
    text = line.strip(BLANKS)
    if not (text.startswith(b"{") and text.endswith(b"}")):
        return None
    record: dict[str, int] = {}
    for pair in text[1:-1].split(b","):
        key, colon, value = pair.partition(b":")
        key, value = key.strip(BLANKS), value.strip(BLANKS)
        if not (colon and len(key) > 2 and key[:1] == key[-1:] == b'"' and is_number(value)):
            return None
        name = key[1:-1].decode("ascii", "replace")
        if not name.replace("-", "").isalpha() or name in record:
            return None
        record[name] = int(value)
    return record


def is_number(text: bytes) -> bool:
    """A JSON integer that is not negative, in as many digits as a process or an inode needs."""
    return text.isdigit() and len(text) <= MOST_DIGITS and (len(text) == 1 or text[:1] != b"0")


def read_all(data: bytes) -> StatusReader:
    """The records of a finished run."""
    reader = StatusReader()
    reader.feed(data if data.endswith(b"\n") else data + b"\n")
    return reader
