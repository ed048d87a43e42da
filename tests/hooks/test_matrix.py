"""One and the same end of a hook before a tool, and what each host makes of it: the table, cell by cell.

D denied, A goes ahead, Q the user is asked, H the turn is halted. A mark behind it: ``*`` inferred by those who
wrote the table down, ``?`` not known and chosen here, ``-`` the host has no such answer and what is chosen here,
``!`` the host takes the hook for failed or its answer for invalid. ``D/Q`` is denied or asked; denied is chosen here.
The eighth column of the table that this follows is of a harness (dsh) that is no dialect of ours; it is left out.
"""

from __future__ import annotations

import json

import pytest

from stockade.sandbox.hooks.dialects import dialect
from stockade.sandbox.hooks.model import HookRun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COLUMNS = ("claude", "codex", "antigravity", "agy", "gemini", "cursor", "nous")
EVENT = {
    "antigravity": "pre_tool_execution",
    "gemini": "BeforeTool",
    "cursor": "preToolUse",
    "nous": "pre_tool_use",
}
MARKS = ("", "*", "?", "-", "!")


def nested(**fields: str) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **fields}}


def native(name: str, verdict: str, reason: str = "no") -> dict[str, Any]:
    """The verdict in the host's own words; what it lacks is written as its neighbours would."""
    because = bool(reason)
    if name in ("claude", "codex"):
        told = {"permissionDecisionReason": reason} if because else {}
        return nested(permissionDecision=verdict, **told)
    if name == "cursor":
        return {"permission": verdict} | ({"user_message": reason} if because else {})
    key = "result" if name == "nous" else "decision"
    return {key: verdict} | ({"reason": reason} if because else {})


def run(code: int | None, stdout: Any = b"", stderr: str = "", **more: Any) -> HookRun:
    out = stdout if isinstance(stdout, bytes) else json.dumps(stdout).encode()
    return HookRun(code, stdout=out, stderr=stderr.encode(), **more)


def end(row: int, name: str) -> HookRun:
    """How the hook of this row ended."""
    deny = native(name, "deny")
    written = json.dumps(deny).encode()
    loose = {"hookSpecificOutput": {"permissionDecision": "deny", "permissionDecisionReason": "no"}}
    return {
        1: lambda: run(0),
        2: lambda: run(0, {}),
        3: lambda: run(0, deny),
        4: lambda: run(0, native(name, "deny", "")),
        5: lambda: run(2, b"", "no"),
        6: lambda: run(2),
        7: lambda: run(2, native(name, "allow", ""), "no"),
        8: lambda: run(2, {"systemMessage": "hello"}, "no"),
        9: lambda: run(1, b"", "boom"),
        10: lambda: run(1, deny),
        11: lambda: run(3, b"", "boom"),
        12: lambda: run(127, b"", "sh: guard: not found"),
        13: lambda: run(None, signal=9),
        14: lambda: run(None, timed_out=True),
        15: lambda: run(0, b"Welcome!\n" + written),
        16: lambda: run(0, written + b"\n" + written),
        17: lambda: run(0, {**deny, "colour": "red"}),
        18: lambda: run(0, loose),
        19: lambda: run(0, native(name, "ask")),
        20: lambda: run(0, {"continue": False, "stopReason": "enough"}),
        21: lambda: run(0, {"decision": "deny", "reason": "no"}),
        22: lambda: run(0, b"", written.decode()),
        23: lambda: run(0, b"\xef\xbb\xbf" + written),
    }[row]()


TABLE = """
row  claude  codex  antigravity  agy   gemini  cursor  nous
  1  A       A      A            D/Q   A       A       A
  2  A       A      A            D/Q   A       A       A
  3  D       D      D            D     D       D       D
  4  D       A!     D            D*    D       D       D
  5  D       D      A            D*    D       D       D
  6  D       A!     A            D*    A       D       D
  7  D       D      A            D?    A       D       D
  8  D       D      A            D*    A       D       D
  9  A       A!     A            D*    A       A       A
 10  D       A!     A            D?    D       A*      A
 11  A       A!     A            D*    D       A       A
 12  A       A!     A            D*    D       A       A
 13  A       A      A            D*    A       A       A
 14  A       A      A            D?    A       A       A
 15  A       A      A            D*    A       A       A
 16  A       A!     A            D*    A       A*      A
 17  D*      A!     D*           D*    D       D*      D
 18  A!      A!     A            D*    A       A-      A
 19  Q       A!     A            Q     Q       A       A
 20  H       A!     A            D*    H       A-      A
 21  A*      A!     D            D*    D       A-      A
 22  A       A      A            D*    D       A       A
 23  A*      A*     A?           D*    A*      A?      A*
"""
CELLS = [
    (int(row), name, cell)
    for row, *cells in (line.split() for line in TABLE.strip().splitlines()[1:])
    for name, cell in zip(COLUMNS, cells, strict=True)
]


def test_the_table_is_whole() -> None:
    assert TABLE.split()[1 : len(COLUMNS) + 1] == list(COLUMNS)
    assert len(CELLS) == 23 * 7
    assert {cell[1:] for _row, _name, cell in CELLS} == {*MARKS, "/Q"}


@pytest.mark.parametrize(("row", "name", "cell"), CELLS)
def test_the_host_does(row: int, name: str, cell: str) -> None:
    found = dialect(name).decode(EVENT.get(name, "PreToolUse"), end(row, name))
    does = "H" if found.halt else {"deny": "D", "ask": "Q"}.get(found.verdict, "A")
    assert does == cell[0], found
    if cell.endswith("!"):
        assert found.status == "failed"


ODD = {
    4: "missing_reason", 6: "empty_stderr", 15: "banner", 16: "second_document", 22: "json_on_stderr", 23: "bom",
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("row", ODD)
def test_what_hosts_do_not_agree_on_is_pointed_out(row: int, name: str) -> None:
    found = dialect(name).decode(EVENT.get(name, "PreToolUse"), end(row, name))
    assert ODD[row] in [each.code for each in found.problems]


@pytest.mark.parametrize("name", COLUMNS)
def test_an_unknown_key_is_pointed_out(name: str) -> None:
    found = dialect(name).decode(EVENT.get(name, "PreToolUse"), end(17, name))
    assert "unknown_key" in [each.code for each in found.problems]
