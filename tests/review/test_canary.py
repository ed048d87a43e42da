"""Canaries: believable, each with a token of its own, new every time."""

from __future__ import annotations

import json
import sqlite3

import pytest

from stockade.sandbox.review import canary
from stockade.sandbox.review.search import Searcher

BAIT = canary.make_bait()
FILES = {f"~/{each.path}": each for each in BAIT.home} | {each.path: each for each in BAIT.project}
WANTED = (
    "ssh-key", "aws-credentials", "netrc", "npm-token", "pypi-token", "browser-cookies", "shell-history", "dotenv",
    "env-github-token",
)  # fmt: skip


def test_everything_that_thieves_look_for_is_there() -> None:
    assert set(WANTED) < {each.name for each in BAIT.canaries}


def test_no_token_is_there_twice_nor_in_the_next_set() -> None:
    tokens = [each.token for each in (*BAIT.canaries, *canary.make_bait().canaries)]
    assert len(set(tokens)) == len(tokens)
    assert all(len(each) == canary.LENGTH and each.isalnum() for each in tokens)


@pytest.mark.parametrize("each", BAIT.canaries, ids=lambda each: each.name)
def test_each_token_stands_in_its_place_and_in_no_other(each: canary.Canary) -> None:
    searcher = Searcher([(each.name, each.token)])
    found = {place for place, seed in FILES.items() if searcher.find(seed.data)}
    found |= {f"${name}" for name, value in BAIT.env if searcher.find(value.encode())}
    assert found == ({each.place} if each.place else set())


@pytest.mark.parametrize("place", ["~/.docker/config.json", "~/.codex/auth.json", "~/.claude/.credentials.json"])
def test_json_files_are_json(place: str) -> None:
    assert json.loads(FILES[place].data)


def test_cookies_are_a_database() -> None:
    base = sqlite3.connect(":memory:")
    try:
        base.deserialize(FILES["~/.config/google-chrome/Default/Cookies"].data)
        (row,) = base.execute("SELECT host_key, value FROM cookies").fetchall()
    finally:
        base.close()
    assert row == (".shop.example", BAIT.token("browser-cookies"))


def test_a_key_looks_like_one() -> None:
    lines = FILES["~/.ssh/id_ed25519"].data.decode().splitlines()
    assert lines[0].startswith("-----BEGIN OPENSSH")
    assert {len(line) for line in lines[1:-3]} == {70}


def test_secrets_are_for_their_owner_alone() -> None:
    assert {FILES[each.place].mode for each in BAIT.canaries if each.place.startswith("~")} == {0o600}
