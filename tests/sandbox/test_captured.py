"""What a layer says about a workspace, from two dictionaries; and how a layer on disk is read."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.sandbox.captured import Change, Entry, compare, scan

DIRECTORY, FILE, LINK = 0o040755, 0o100644, 0o120777
GONE = Entry("whiteout")
NEW = Entry("file", 0o644, 4)
FOLDER = Entry("dir", 0o755)
ANEW = Entry("dir", 0o755, opaque=True)

BEFORE = {
    b"": (DIRECTORY, 0, 0, 1, 0),
    b"a": (FILE, 3, 10, 2, 10),
    b"d": (DIRECTORY, 0, 0, 3, 0),
    b"d/e": (DIRECTORY, 0, 0, 4, 0),
    b"d/e/y": (FILE, 1, 10, 5, 10),
    b"d/x": (FILE, 1, 10, 6, 10),
    b"d-x": (FILE, 1, 10, 7, 10),
    b"l": (LINK, 1, 10, 8, 10),
}


def kinds(layer, **options):
    changes = compare(BEFORE, {b"": FOLDER, **layer}, root_mode=0o755, **options)
    return [(change.kind, change.path.decode()) for change in changes]


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        ({}, []),
        ({b"a": NEW}, [("changed", "a")]),
        ({b"b": NEW}, [("created", "b")]),
        ({b"a": GONE}, [("deleted", "a")]),
        ({b"d": FOLDER}, []),
        ({b"d": FOLDER, b"d/x": NEW}, [("changed", "d/x")]),
        ({b"d": FOLDER, b"d/x": GONE}, [("deleted", "d/x")]),
        ({b"d": Entry("dir", 0o700)}, [("changed", "d")]),
        ({b"d": GONE}, [("deleted", "d"), ("deleted", "d/e"), ("deleted", "d/e/y"), ("deleted", "d/x")]),
        (
            {b"d": ANEW, b"d/n": NEW},
            [("changed", "d"), ("deleted", "d/e"), ("deleted", "d/e/y"), ("created", "d/n"), ("deleted", "d/x")],
        ),
        # the layer marks only the topmost directory that was made anew
        (
            {b"d": ANEW, b"d/e": FOLDER, b"d/x": NEW},
            [("changed", "d"), ("changed", "d/e"), ("deleted", "d/e/y"), ("changed", "d/x")],
        ),
        ({b"d": NEW}, [("changed", "d"), ("deleted", "d/e"), ("deleted", "d/e/y"), ("deleted", "d/x")]),
        ({b"a": FOLDER, b"a/n": NEW}, [("changed", "a"), ("created", "a/n")]),
        ({b"l": NEW}, [("changed", "l")]),
        ({b"n": FOLDER, b"n/m": FOLDER}, [("created", "n"), ("created", "n/m")]),
        ({b"ff": Entry("fifo", 0o644)}, [("created", "ff")]),
        # a whiteout over something that came after the look at the workspace
        ({b"later": GONE}, [("deleted", "later")]),
    ],
)
def test_what_a_layer_says(layer, expected):
    assert kinds(layer) == expected


def test_stand_ins_of_ours_are_no_changes():
    layer = {b".git": FOLDER, b".git/hooks": FOLDER, b"n": NEW}
    assert kinds(layer, ignored=(b".git", b".git/hooks")) == [("created", "n")]
    assert kinds(layer) == [("created", ".git"), ("created", ".git/hooks"), ("created", "n")]


def test_the_mode_of_the_workspace_itself():
    changes = compare(BEFORE, {b"": Entry("dir", 0o700)}, root_mode=0o755)
    assert changes == [Change(b"", "changed", BEFORE[b""], Entry("dir", 0o700))]


def test_what_it_was_and_what_it_is_go_with_each_change():
    changed, gone = compare(BEFORE, {b"": FOLDER, b"a": NEW, b"d-x": GONE}, root_mode=0o755)
    assert (changed.before, changed.after) == (BEFORE[b"a"], NEW)
    assert (gone.before, gone.after) == (BEFORE[b"d-x"], None)


NAMES = st.sampled_from([b"a", b"b", b"d", b"d/e", b"d/e/y", b"d/x", b"d-x", b"l", b"d/e/z"])
ENTRIES = st.sampled_from([GONE, NEW, FOLDER, ANEW, Entry("link", 0o777, 1, 0, b"a"), Entry("fifo", 0o600)])


@given(st.dictionaries(NAMES, ENTRIES))
def test_every_path_once_and_parents_first(layer):
    changes = compare(BEFORE, {b"": FOLDER, **layer}, root_mode=0o755)
    paths = [change.path for change in changes]
    assert len(paths) == len(set(paths))
    assert paths == sorted(paths, key=lambda path: path.split(b"/"))
    for change in changes:
        assert change.before == BEFORE.get(change.path)
        assert (change.kind == "deleted") == (change.after is None)
        assert (change.kind == "created") == (change.before is None and change.after is not None)


def test_a_layer_on_disk(tmp_path):
    (tmp_path / "file").write_bytes(b"1234")
    (tmp_path / "file").chmod(0o4711)
    (tmp_path / "dir/inner").mkdir(parents=True)
    os.symlink(b"to\xff", os.fsencode(tmp_path) + b"/li\nnk")
    os.mkfifo(tmp_path / "pipe")
    entries = scan(str(tmp_path)).entries
    assert {path: entry.kind for path, entry in entries.items()} == {
        b"": "dir", b"file": "file", b"dir": "dir", b"dir/inner": "dir", b"li\nnk": "link", b"pipe": "fifo",
    }  # fmt: skip
    assert (entries[b"file"].mode, entries[b"file"].size) == (0o4711, 4)
    assert entries[b"li\nnk"].target == b"to\xff"


def test_directories_that_the_program_closed_are_read_all_the_same(tmp_path):
    (tmp_path / "shut/inner").mkdir(parents=True)
    (tmp_path / "shut/inner/file").write_text("x")
    (tmp_path / "shut/inner").chmod(0)
    (tmp_path / "shut").chmod(0)
    found = scan(str(tmp_path))
    assert set(found.entries) == {b"", b"shut", b"shut/inner", b"shut/inner/file"}
    assert found.entries[b"shut"].mode == found.entries[b"shut/inner"].mode == 0
    assert not found.unreadable


def test_what_is_too_much_is_said(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}/x").touch()
    assert not scan(str(tmp_path), limit=100).unreadable
    assert scan(str(tmp_path), limit=6).unreadable


def test_what_is_too_deep_is_said(tmp_path):
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        for _ in range(30):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
        os.chdir(here)
        found = scan(str(tmp_path))
        assert found.unreadable
    finally:
        os.chdir(here)
        from stockade.sandbox import private

        private.remove(str(tmp_path))
    assert not tmp_path.exists()
    tmp_path.mkdir()
