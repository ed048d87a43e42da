"""Durations, sizes, counts: tables, exact round trips, and no exception but PolicyError."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.policies.errors import PolicyError
from stockade.policies.units import (
    LARGEST,
    LONGEST,
    SHORTEST,
    parse_count,
    parse_duration,
    parse_size,
    render_count,
    render_duration,
    render_size,
)

ANYTHING = st.one_of(
    st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.from_regex(r"[0-9.]{1,30}(ms|s|m|h|K|MiB)?")
)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("10s", 10.0),
        ("500ms", 0.5),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1.5h", 5400.0),
        ("10", 10.0),
        (10, 10.0),
        (0.25, 0.25),
        ("1ms", 0.001),
        ("none", None),
    ],
)
def test_duration(written: object, seconds: float | None) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    [0, "0", "0s", -1, "-1s", math.nan, math.inf, -math.inf, "nan", "inf", "", "s", "10 s", "10S", "1d", "1.s",
     ".5s", "1..5s", "1e3", "\u0663s", "10s\n", "0.1ms", "367h0", "9999h", 10**400, True, False, None, [],
     b"10s", "9" * 25],
)  # fmt: skip
def test_no_duration(written: object) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_duration(written, "limits.timeout of here")
    assert caught.value.message.startswith("could not use limits.timeout of here: ")
    assert '"none"' in caught.value.remedy


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("2G", 2 * 2**30),
        ("512M", 512 * 2**20),
        ("64K", 65536),
        ("64k", 65536),
        ("1T", 2**40),
        ("1KiB", 1024),
        ("1.5K", 1536),
        ("12", 12),
        ("12B", 12),
        (12, 12),
        (LARGEST, LARGEST),
        ("none", None),
    ],
)
def test_size(written: object, size: int | None) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize(
    "written",
    [0, "0", -1, "-1K", "1.5", "1.0001K", 1.5, "2 G", "2GB", "2X", "", "G", "none ", LARGEST + 1, "9999999999T",
     True, None, "1e9", "\u0663K", {}],
)  # fmt: skip
def test_no_size(written: object) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_size(written, "limits.memory of here")
    assert "limits.memory of here" in caught.value.message
    assert "binary units" in caught.value.remedy


@pytest.mark.parametrize("written", [0, -1, 1.0, "256", "", True, None, 2**31])
def test_no_count(written: object) -> None:
    with pytest.raises(PolicyError):
        parse_count(written)


@given(st.integers(1, 2**31 - 1) | st.none())
def test_count_round_trip(count: int | None) -> None:
    assert parse_count(render_count(count)) == count


@given(st.floats(SHORTEST, LONGEST) | st.integers(1, LONGEST).map(float) | st.none())
def test_duration_round_trip(seconds: float | None) -> None:
    assert parse_duration(render_duration(seconds)) == seconds


@given(st.integers(1, LARGEST) | st.integers(1, 2**20).map(lambda count: count * 2**30) | st.none())
def test_size_round_trip(size: int | None) -> None:
    assert parse_size(render_size(size)) == size


@pytest.mark.parametrize(
    ("seconds", "text"), [(10.0, "10s"), (0.5, "500ms"), (7200.0, "2h"), (90.0, "90s"), (0.0015, "0.0015s")]
)
def test_duration_reads_well(seconds: float, text: str) -> None:
    assert render_duration(seconds) == text


@pytest.mark.parametrize("parse", [parse_duration, parse_size, parse_count])
@given(value=ANYTHING)
def test_only_policy_errors(parse: object, value: object) -> None:
    assert callable(parse)
    try:
        parsed = parse(value)
    except PolicyError as error:
        parsed = error
    if isinstance(parsed, PolicyError):
        assert parsed.message.isprintable()
    else:
        assert parsed is None or (math.isfinite(parsed) and parsed > 0)
