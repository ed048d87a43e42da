"""Directories of runs: what a handler made of them is told, and put right for the next."""

from __future__ import annotations

import os

import pytest

from stockade.sandbox.review import project
from stockade.sandbox.review.canary import Seed
from stockade.sandbox.review.places import Place, difference
from stockade.sandbox.review.stage import moved

SEEDS = (Seed("a.txt", b"one\ntwo\n"), Seed("sub/b.txt", b"three\n", 0o600), Seed("run.sh", b"#!/bin/sh\n", 0o755))


@pytest.fixture
def place(tmp_path):
    made = Place(str(tmp_path / "place"), None)
    made.fill(SEEDS)
    return made


def changes(place: Place) -> dict[str, str]:
    return {each.path: each.kind for each in place.changes()}


def test_a_fresh_place_has_no_changes(place) -> None:
    assert place.changes() == []
    assert os.stat(f"{place.path}/run.sh").st_mode & 0o777 == 0o755


def test_every_kind_of_change_is_seen_and_put_right(place, tmp_path) -> None:
    top = tmp_path / "place"
    (top / "a.txt").write_text("one\n2\n")
    (top / "sub/b.txt").unlink()
    (top / "new").write_text("x")
    (top / "link").symlink_to("/etc/passwd")
    (top / "deep/er").mkdir(parents=True)
    (top / "deep/er/c").write_text("y")
    (top / "run.sh").chmod(0o644)
    os.mkfifo(top / "pipe")
    expected = {
        "a.txt": "changed", "sub/b.txt": "deleted", "new": "created", "link": "created", "deep/er/c": "created",
        "run.sh": "changed", "pipe": "created",
    }  # fmt: skip
    assert changes(place) == expected
    assert {each.path: each.after for each in place.changes()}["link"] == b"/etc/passwd"
    place.fill(SEEDS)
    assert place.changes() == []
    assert sorted(os.listdir(top)) == ["a.txt", "run.sh", "sub"]
    assert (top / "a.txt").read_text() == "one\ntwo\n"
    assert os.stat(top / "run.sh").st_mode & 0o777 == 0o755


def test_a_file_written_in_place_and_back_again_is_no_change(place, tmp_path) -> None:
    (tmp_path / "place/a.txt").write_text("other")
    (tmp_path / "place/a.txt").write_text("one\ntwo\n")
    assert place.changes() == []


def test_closed_directories_and_files_are_opened_up(place, tmp_path) -> None:
    (tmp_path / "place/shut").mkdir()
    (tmp_path / "place/shut/in").write_text("x")
    (tmp_path / "place/shut/in").chmod(0)
    (tmp_path / "place/shut").chmod(0)
    assert changes(place) == {"shut/in": "created"}
    assert place.changes()[0].after == b"x"
    place.fill(SEEDS)
    assert sorted(os.listdir(place.path)) == ["a.txt", "run.sh", "sub"]


def test_other_seeds_make_it_anew(place) -> None:
    place.fill((Seed("only", b"1"),))
    assert os.listdir(place.path) == ["only"]
    assert place.changes() == []


def test_a_read_is_seen_where_access_times_move(place, tmp_path) -> None:
    from stockade.sandbox.review.bench import access_times_move

    assert place.read_since() == set()
    (tmp_path / "place/a.txt").read_text()
    assert place.read_since() == ({"a.txt"} if access_times_move(str(tmp_path)) else set())
    place.fill(SEEDS)
    assert place.read_since() == set()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (b"", b"x\n", "--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x"),
        (b"x\n", b"", "--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-x"),
        (b"x", b"x", "its mode was changed"),
        (b"", b"\0\xff", "binary: 0 bytes before, 2 after"),
    ],
)
def test_differences_are_said(before: bytes, after: bytes, said: str) -> None:
    assert difference("f", before, after) == said


def test_a_long_difference_is_cut() -> None:
    assert difference("f", b"", b"line\n" * 9000, most=100).endswith("[cut]")


def test_the_sample_project_has_a_history_and_no_secret() -> None:
    files = {each.path: each for each in project.sample()}
    assert project.has_history()
    assert b"orders" in files["README.md"].data
    assert ".env" not in files
    assert b".env" in files[".gitignore"].data
    assert not any("hooks" in path and not path.endswith(".sample") for path in files if path.startswith(".git/"))


def test_a_moved_handler_speaks_of_its_copy() -> None:
    from stockade.sandbox.hooks.model import HookSpec

    spec = HookSpec(
        "claude",
        "Stop",
        "stop",
        "shell",
        "cd /a/b && /a/b/x",
        root="/a/b",
        source="/a/b/h.json",
        env=(("R", "/a/b"),),
    )
    there = moved(spec, "/a/b", "/c")
    assert (there.command, there.root, there.source, there.env) == (
        "cd /c && /c/x",
        "/c",
        "/c/h.json",
        (("R", "/c"),),
    )
    assert moved(spec, "/", "/c") == spec
