"""The modules of the hot path load nothing heavy; the heavy ones are known by name."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import stockade

HOT = ("errors", "record", "resolved", "text", "units", "hosts", "decide", "capability")
PURE = ("fields", "narrow", "layers", "explain")
HEAVY = {
    "json",
    "re",
    "typing",
    "enum",
    "dataclasses",
    "pathlib",
    "subprocess",
    "tomllib",
    "msgspec",
    "ipaddress",
    "logging",
}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(stockade.__file__)))


def loaded(modules: list[str]) -> set[str]:
    body = (
        f"import sys; sys.path.insert(0, {ROOT!r})\nfor name in {modules!r}: __import__(name)\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", body], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", [*HOT, *PURE])
def test_loads_nothing_heavy(name: str) -> None:
    found = loaded(["stockade.policies.errors", f"stockade.policies.{name}"]) - loaded(["stockade"])
    assert f"stockade.policies.{name}" in found
    assert not found & HEAVY


def test_the_check_sees_a_heavy_module() -> None:
    assert loaded(["stockade.policies.errors", "ipaddress"]) & HEAVY
