"""JSON as hosts read it, and what they stumble over."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.sandbox.hooks import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("data", "form", "value", "codes"),
    [
        (b"", "empty", None, ""),
        (b" \r\n\t", "empty", None, ""),
        (b' {"a": 1}\n', "object", {"a": 1}, ""),
        (b"[1]", "array", [1], ""),
        (b"3", "scalar", 3, ""),
        (b'"x"', "scalar", "x", ""),
        (b"hello", "text", None, ""),
        (b'\x1b[0m{"a": 1}', "text", None, "banner"),
        (b"hi\n{}", "text", None, "banner"),
        (b"[info] hi\n{}", "broken", None, "syntax banner"),
        (b"hi [1]", "text", None, ""),
        (b"\xef\xbb\xbf{}", "text", None, "bom"),
        (b"\xff", "text", None, "invalid_utf8"),
        (b'{"a": "\xff"}', "broken", None, "invalid_utf8"),
        (b"{", "broken", None, "syntax"),
        (b"{'a': 1}", "broken", None, "syntax"),
        (b'{"a": 1,}', "broken", None, "syntax"),
        (b'{"a": "\n"}', "broken", None, "syntax"),
        (b"{} {}", "broken", None, "second_document"),
        (b"{}\n[]", "broken", None, "second_document"),
        (b"{} x", "broken", None, "trailing"),
        (b'{"a": NaN}', "broken", None, "not_a_number"),
        (b'{"a": -Infinity}', "broken", None, "not_a_number"),
        (b"[" * 100_000, "broken", None, "too_deep"),
        (b"[" * 300 + b"]" * 300, "broken", None, "too_deep"),
        (b'{"a": 1, "a": 2}', "object", {"a": 2}, "duplicate_key"),
        (b'{"a": {"b": 1, "b": 2}}', "object", {"a": {"b": 2}}, "duplicate_key"),
        (b"[" + b"9" * 5000 + b"]", "array", [float("inf")], ""),
    ],
)
def test_what_a_stream_holds(data: bytes, form: str, value: Any, codes: str) -> None:
    found = jsontext.read(data)
    assert (found.form, found.value) == (form, value)
    assert [each.code for each in found.problems] == codes.split()


def test_where_it_is_wrong() -> None:
    with pytest.raises(jsontext.NotJson) as found:
        jsontext.parse('{"a": 1} x')
    assert (found.value.code, found.value.offset) == ("trailing", 8)


@given(VALUES)
def test_what_is_written_is_read(value: Any) -> None:
    for ascii_only in (True, False):
        data = jsontext.dumps(value, ascii=ascii_only)
        assert jsontext.parse(data.decode()) == (value, ())
        assert json.loads(data) == value


@given(st.text(alphabet='{}[]":,0123456789.eE+-truefalsn \n\\u', max_size=12))
def test_it_takes_what_others_take_and_nothing_else(text: str) -> None:
    try:
        expected = json.loads(text.strip(jsontext.BLANK), parse_constant=lambda word: [][0])
    except (ValueError, IndexError):
        assert jsontext.read(text.encode()).form in ("empty", "text", "broken")
    else:
        assert jsontext.read(text.encode()).value == expected


@given(st.binary(max_size=30))
def test_any_bytes_can_be_read(data: bytes) -> None:
    found = jsontext.read(data)
    assert found.form in ("empty", "object", "array", "scalar", "text", "broken")
    assert (found.value is None) or found.form in ("object", "array", "scalar")


@pytest.mark.parametrize("value", [float("nan"), object(), {1, 2}, b"x", {(1,): 2}])
def test_what_has_no_json_form_is_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        jsontext.dumps([value])


def test_what_holds_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises((ValueError, RecursionError)):
        jsontext.dumps(value)
