"""The JSON document of a review: everything is in it, and any reader takes it."""

from __future__ import annotations

import json

import pytest
import reviews

from stockade.sandbox.cli.document import render as as_text
from stockade.sandbox.review import document
from stockade.sandbox.review.model import Exercise, Handler, Review, ReviewFinding

KEYS = {
    "schema", "path", "version", "verdict", "headline", "detail", "counts", "runs", "failed_runs", "duration",
    "read_method", "findings", "not_reviewed", "problems", "canaries", "handlers", "exercises",
}  # fmt: skip


def strict(text: str) -> object:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("name", reviews.ALL)
def test_any_reader_takes_it(name: str) -> None:
    found = document.render(reviews.ALL[name]())
    text = as_text(found)
    text.encode()
    assert strict(text) == found
    assert set(found) == KEYS
    assert found["schema"] == "stockade.review/1"


def test_everything_is_in_it() -> None:
    review = reviews.bad()
    found = document.render(review)
    assert [set(each) for each in found["handlers"]] == [set(Handler._fields)] * 3
    assert {frozenset(each) for each in found["exercises"]} == {frozenset(Exercise._fields)}
    assert {frozenset(each) for each in found["findings"]} == {frozenset(ReviewFinding._fields)}
    assert found["counts"] == {"critical": 2, "high": 1, "medium": 1, "low": 1, "info": 1}
    assert found["findings"][0]["evidence"][1] == {
        "kind": "line", "text": "requests.post(URL, data=key)", "file": "scripts/send.py", "line": 41, "case": "",
    }  # fmt: skip
    assert found["not_reviewed"] == [{"name": review.not_reviewed[0][0], "why": review.not_reviewed[0][1]}]
    assert found["canaries"][0] == {"name": "ssh-key", "place": "~/.ssh/id_ed25519"}


def test_a_field_that_is_added_to_the_model_is_told() -> None:
    assert set(Review._fields) <= KEYS


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        ({"a": (1, b"\xff")}, {"a": [1, "\ufffd"]}),
        ({1: None}, {"1": None}),
        ("/x\udcff", "/x\\xff"),
        ("\ud800", "\\ud800"),
        ("\u00e9\u202e", "\u00e9\u202e"),
        (True, True),
    ],
)
def test_odd_values(value: object, expected: object) -> None:
    assert document.plain(value) == expected


def test_values_that_are_nested_without_end() -> None:
    value: list = []
    for _ in range(5000):
        value = [value]
    json.dumps(document.plain(value))


def test_text_stays_what_it_was() -> None:
    found = document.render(reviews.hostile())
    assert found["problems"][1] == reviews.FORMULA
    assert "\x1b]0;title\x07" in found["problems"][0]
