"""Colours, columns and escaping."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.sandbox.cli.style import colour_on, escape, paint, table


class Tty(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_colour_on(monkeypatch, environment, expected):
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert colour_on(Tty()) is expected
    assert colour_on(io.StringIO()) is False
    assert colour_on(None) is False


def test_colour_on_a_closed_stream(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    closed = io.StringIO()
    closed.close()
    assert colour_on(closed) is False


def test_paint():
    assert paint("x", "red", True) == "\x1b[31mx\x1b[0m"
    assert paint("x", "red", False) == "x"
    assert paint("", "red", True) == ""
    with pytest.raises(KeyError):
        paint("x", "mauve", False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("plain text, C:\\dir", "plain text, C:\\dir"),
        ("é 漢 🙂", "é 漢 🙂"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b]52;c;ZXZpbA==\a\x1b[2J", "\\x1b]52;c;ZXZpbA==\\x07\\x1b[2J"),
        ("\0\x7f\x80\x9b", "\\x00\\x7f\\x80\\x9b"),
        ("user\u202etxt.exe\u2066", "user\\u202etxt.exe\\u2066"),
        ("pay\u200bpal\ufeff\u00ad", "pay\\u200bpal\\ufeff\\xad"),
        ("a\u3164b\ufe0f\u2800", "a\\u3164b\\ufe0f\\u2800"),
        ("\u2028\u2029\u00a0", "\\u2028\\u2029\\xa0"),
        ("\U000e0041\U000e0100", "\\U000e0041\\U000e0100"),
        ("\udcff\ud800", "\\xff\\ud800"),
        (b"ok\xff\xc3\xa9\x1b", "ok\\xffé\\x1b"),
    ],
)
def test_escape(text, expected):
    assert escape(text) == expected


@given(st.one_of(st.text(), st.binary(), st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp", "Cn"]))))
def test_escaped_text_is_always_harmless(text):
    safe = escape(text)
    assert safe.isprintable()
    safe.encode("utf-8")
    assert escape(safe) == safe


def test_table():
    rows = [("NAME", "STATE"), ("bwrap", ("ok", "green")), ("漢", ("missing", "red"), "x"), ("e\x1b", "")]
    assert table(rows, False) == "NAME   STATE\nbwrap  ok\n漢     missing  x\ne\\x1b\n"
    painted = table(rows, True, header=True)
    assert painted.splitlines()[0] == "\x1b[1mNAME\x1b[0m   \x1b[1mSTATE\x1b[0m"
    assert painted.splitlines()[1] == "bwrap  \x1b[32mok\x1b[0m"
    assert table([], True) == ""
