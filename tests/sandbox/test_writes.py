"""Manifests of real trees, and the pure comparison by tables."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.sandbox.writes import Manifest, WrittenFile, changed, take

FILE, DIR, LINK = 0o100644, 0o040755, 0o120777


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "sub" / "b.txt").write_text("b")
    (tmp_path / "sub" / "deep" / "c.txt").write_text("c")
    return tmp_path


def differences(root, act, **limits):
    before = take([str(root)], **limits)
    act(root)
    found = changed(before, take([str(root)], **limits))
    return [(os.path.relpath(entry.path, root), entry.kind) for entry in found]


def rewrite_and_set_the_time_back(root):
    was = (root / "a.txt").stat()
    (root / "a.txt").write_text("z")
    os.utime(root / "a.txt", ns=(was.st_atime_ns, was.st_mtime_ns))


def replace_file_by_directory(root):
    (root / "a.txt").unlink()
    (root / "a.txt").mkdir()


def replace_file_by_link(root):
    (root / "a.txt").unlink()
    (root / "a.txt").symlink_to("/etc/passwd")


def bind_socket(root):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "s"))


ACTIONS = [
    ("nothing", lambda root: None, []),
    ("a read", lambda root: (root / "a.txt").read_text(), []),
    ("a new file", lambda root: (root / "n").write_text(""), [("n", "created")]),
    ("a new link", lambda root: (root / "n").symlink_to("/etc"), [("n", "created")]),
    ("a new fifo", lambda root: os.mkfifo(root / "n"), [("n", "created")]),
    ("a new socket", bind_socket, [("s", "created")]),
    ("a longer file", lambda root: (root / "a.txt").write_text("aaaa"), [("a.txt", "changed")]),
    ("same length, old time", rewrite_and_set_the_time_back, [("a.txt", "changed")]),
    ("a file mode", lambda root: (root / "a.txt").chmod(0o755), [("a.txt", "changed")]),
    ("a directory mode", lambda root: (root / "sub").chmod(0o700), [("sub", "changed")]),
    ("the root's mode", lambda root: root.chmod(0o711), [(".", "changed")]),
    ("a deletion", lambda root: (root / "sub/deep/c.txt").unlink(), [("sub/deep/c.txt", "deleted")]),
    ("a new directory", lambda root: (root / "d/e").mkdir(parents=True), [("d", "created"), ("d/e", "created")]),
    ("file to directory", replace_file_by_directory, [("a.txt", "changed")]),
    ("file to link", replace_file_by_link, [("a.txt", "changed")]),
    (
        "a renamed directory",
        lambda root: (root / "sub/deep").rename(root / "new"),
        [("new", "created"), ("new/c.txt", "created"), ("sub/deep", "deleted"), ("sub/deep/c.txt", "deleted")],
    ),
    (
        "an edit deep down is not one of the directories above",
        lambda root: (root / "sub/deep/c.txt").write_text("longer"),
        [("sub/deep/c.txt", "changed")],
    ),
]


@pytest.mark.parametrize(("act", "expected"), [row[1:] for row in ACTIONS], ids=[row[0] for row in ACTIONS])
def test_what_a_run_did_is_reported_and_nothing_else(tree, act, expected):
    assert differences(tree, act) == expected


def test_names_that_are_not_utf8_and_names_with_control_bytes_come_back_exact(tree):
    names = [b"\xff\xfe", b"new\nline", b"\x1b[2J", "é".encode()]

    def write(root):
        for name in names:
            with open(os.fsencode(root) + b"/" + name, "w"):
                pass

    before = take([os.fsencode(tree)])
    write(tree)
    found = changed(before, take([os.fsencode(tree)]))
    assert sorted(os.fsencode(entry.path).rsplit(b"/", 1)[1] for entry in found) == sorted(names)


def test_links_are_entries_and_never_followed(tree, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text("s")
    (tree / "link").symlink_to(outside)
    (tree / "loop").symlink_to(".")
    entries = take([str(tree)]).entries
    assert os.fsencode(tree / "link") in entries
    assert not [path for path in entries if b"secret" in path or b"loop/" in path]


def test_a_root_that_is_a_link_is_followed_under_its_own_name(tree, tmp_path_factory):
    link = tmp_path_factory.mktemp("other") / "workspace"
    link.symlink_to(tree)
    assert differences(link, lambda root: (root / "n").write_text("")) == [("n", "created")]


def test_roots_may_be_files_missing_nested_repeated_relative_or_end_in_a_slash(tree, monkeypatch):
    monkeypatch.chdir(tree)
    whole = take([str(tree)])
    assert take([str(tree / "sub"), f"{tree}/", str(tree), os.fsencode(tree / "sub/deep")]) == whole
    assert set(take(["a.txt"]).entries) == {os.fsencode(tree / "a.txt")}
    assert take([str(tree / "missing"), str(tree / "a.txt/below")]) == Manifest({})
    assert take([]) == Manifest({})


def test_a_missing_root_that_appears_is_created(tmp_path):
    before = take([str(tmp_path / "later")])
    (tmp_path / "later").write_text("x")
    assert changed(before, take([str(tmp_path / "later")])) == [WrittenFile(str(tmp_path / "later"), "created")]


def test_mounts_are_not_crossed():
    entries = take(["/dev"]).entries
    assert b"/dev/null" in entries
    assert b"/dev/pts" in entries
    assert not [path for path in entries if path.startswith(b"/dev/pts/")]


def test_over_the_limit_is_said_and_never_reported_as_creation_or_deletion(tree):
    full = take([str(tree)])
    assert full.complete
    assert take([str(tree)], limit=len(full.entries)) == full
    cut = take([str(tree)], limit=3)
    assert not cut.complete
    assert len(cut.entries) <= 4
    assert changed(cut, full) == []
    assert changed(full, cut) == []


def test_a_directory_swapped_for_another_while_reading_is_not_listed(tree, monkeypatch, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text("s")
    genuine = os.open

    def swap(path, flags, *rest, **named):
        if path == os.fsencode(tree / "sub"):
            (tree / "sub").rename(tree / "away")
            outside.rename(tree / "sub")
        return genuine(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", swap)
    manifest = take([str(tree)])
    assert manifest.unreadable == (os.fsencode(tree / "sub"),)
    assert not [path for path in manifest.entries if b"secret" in path]


def test_an_unlistable_directory_is_noted_and_what_is_below_it_is_unknown(tree, monkeypatch):
    """Stands in for EACCES, which a root caller never gets."""
    genuine = os.open

    def refuse(path, flags, *rest, **named):
        if path == os.fsencode(tree / "sub"):
            raise PermissionError(13, "refused")
        return genuine(path, flags, *rest, **named)

    full = take([str(tree)])
    monkeypatch.setattr(os, "open", refuse)
    partial = take([str(tree)])
    assert partial.unreadable == (os.fsencode(tree / "sub"),)
    assert partial.complete
    assert os.fsencode(tree / "sub/b.txt") in full.entries
    assert changed(partial, full) == []
    assert changed(full, partial) == []


def row(mode=FILE, size=0, mtime=0, inode=1, ctime=0):
    return (mode, size, mtime, inode, ctime)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {}, []),
        ({b"/a": row()}, {b"/a": row()}, []),
        ({b"/a": row()}, {b"/a": row(size=1)}, [("/a", "changed")]),
        ({b"/a": row()}, {b"/a": row(mtime=1)}, [("/a", "changed")]),
        ({b"/a": row()}, {b"/a": row(inode=2)}, [("/a", "changed")]),
        ({b"/a": row()}, {b"/a": row(ctime=1)}, [("/a", "changed")]),
        ({b"/a": row()}, {b"/a": row(mode=LINK)}, [("/a", "changed")]),
        ({b"/d": row(DIR)}, {b"/d": row(DIR, inode=9)}, [("/d", "changed")]),
        ({}, {b"/b": row(), b"/a": row()}, [("/a", "created"), ("/b", "created")]),
        ({b"/b": row(), b"/a": row()}, {}, [("/a", "deleted"), ("/b", "deleted")]),
    ],
)
def test_comparison(old, new, expected):
    assert [tuple(entry) for entry in changed(Manifest(old), Manifest(new))] == expected


paths = st.dictionaries(st.binary(min_size=1, max_size=3).map(b"/".__add__), st.builds(row, size=st.integers(0, 2)))


@given(paths, paths)
def test_comparison_is_total_ordered_and_mirrors(old, new):
    forth = changed(Manifest(old), Manifest(new))
    mirror = {"created": "deleted", "deleted": "created", "changed": "changed"}
    back = changed(Manifest(new), Manifest(old))
    assert [(entry.path, mirror[entry.kind]) for entry in back] == [tuple(entry) for entry in forth]
    keys = [os.fsencode(entry.path) for entry in forth]
    assert keys == sorted(set(keys))
    assert set(keys) == {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
