"""The decision table, whole; and what is not in it."""

from __future__ import annotations

import itertools

import pytest

from stockade.policies.decide import decide, warn_if_off

LEVELS = ("full", "partial", "none")
TABLE = {
    (None, True): ("direct", "direct", "direct"),
    (None, False): ("confine", "confine", "refuse"),
    ("auto", True): ("confine", "confine", "refuse"),
    ("auto", False): ("confine", "confine", "refuse"),
    ("strict", True): ("confine", "refuse", "refuse"),
    ("strict", False): ("confine", "refuse", "refuse"),
    ("off", True): ("direct", "direct", "direct"),
    ("off", False): ("direct", "direct", "direct"),
}


@pytest.mark.parametrize(("mode", "trusted"), TABLE)
def test_table(mode: str | None, trusted: bool) -> None:
    assert tuple(decide(mode, trusted, level) for level in LEVELS) == TABLE[mode, trusted]


def test_table_is_whole() -> None:
    assert set(TABLE) == set(itertools.product((None, "auto", "strict", "off"), (True, False)))


@pytest.mark.parametrize("mode", [None, "auto", "strict", "off", "", "OFF", "bogus"])
@pytest.mark.parametrize("trusted", [True, False])
def test_unknown_level_is_refused(mode: str | None, trusted: bool) -> None:
    assert decide(mode, trusted, "bogus") == "refuse"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", ["", "OFF", "Off", "on", "direct"])
def test_unknown_mode_is_refused(mode: str, level: str) -> None:
    assert decide(mode, True, level) == "refuse"


def test_only_true_is_trust() -> None:
    assert decide(None, "trusted", "full") == "confine"  # type: ignore[arg-type]


@pytest.mark.parametrize(("mode", "trusted"), TABLE)
def test_warning(mode: str | None, trusted: bool) -> None:
    warning = warn_if_off(mode, trusted, "environment STOCKADE_MODE")
    if (mode, trusted) == ("off", False):
        assert warning is not None
        assert "environment STOCKADE_MODE" in warning
    else:
        assert warning is None
