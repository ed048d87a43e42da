"""The walk against real trees, and the matcher against a slow one written another way."""

from __future__ import annotations

import fnmatch
import os
import shutil
import socket
import tempfile
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.policies.errors import PolicyError
from stockade.sandbox.globs import expand


def plant(root, *names):
    for name in names:
        path = os.path.join(os.fsdecode(root), name)
        os.makedirs(path if name.endswith("/") else os.path.dirname(path), exist_ok=True)
        if not name.endswith("/"):
            with open(path, "w"):
                pass


def found(root, *patterns, **limits):
    limits.setdefault("deadline", time.monotonic() + 600)
    return expand(os.fsencode(root), patterns, **limits)


def matches(root, *patterns):
    result = found(root, *patterns)
    assert result.complete
    return [os.path.relpath(os.fsdecode(path), os.fsdecode(root)) for path in result.matches]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**/.env*", [".env", "a/.env.local", "a/b/.env", "secrets/.envrc"]),
        ("**/.env", [".env", "a/b/.env"]),
        (".env", [".env"]),
        (".env*", [".env"]),
        ("*.key", ["x.key"]),
        ("**/*.key", ["a/b/y.key", "x.key"]),
        ("*", [".env", "a", "build", "secrets", "x.key"]),
        ("**", [".env", "a", "build", "secrets", "x.key"]),
        ("secrets/*.pem", ["secrets/one.pem", "secrets/two.pem"]),
        ("./secrets//one.pem", ["secrets/one.pem"]),
        ("secrets", ["secrets"]),
        ("secrets/", ["secrets"]),
        ("build/", []),
        ("build", ["build"]),
        ("**/b/", ["a/b"]),
        ("a/**", ["a/.env.local", "a/b"]),
        ("a/**/y.key", ["a/b/y.key"]),
        ("a/**/b", ["a/b"]),
        ("**/b/*", ["a/b/.env", "a/b/y.key"]),
        ("*/b/y.key", ["a/b/y.key"]),
        ("**/**/y.key", ["a/b/y.key"]),
        ("secrets/[!o]*.pem", ["secrets/two.pem"]),
        ("secrets/[n-p]??.pem", ["secrets/one.pem"]),
        ("secrets/*e.*", ["secrets/one.pem"]),
        ("secrets/t*.pem", ["secrets/two.pem"]),
        ("secrets/*wo*", ["secrets/two.pem"]),
        ("\\x.key", ["x.key"]),
        ("\\*.key", []),
        ("nothing", []),
        ("X.KEY", []),
    ],
)
def test_patterns(tmp_path, pattern, expected):
    plant(tmp_path, ".env", "a/.env.local", "a/b/.env", "a/b/y.key", "x.key", "build")
    plant(tmp_path, "secrets/one.pem", "secrets/two.pem", "secrets/.envrc")
    assert matches(tmp_path, pattern) == expected


def test_several_patterns_share_one_walk_and_a_matched_directory_is_not_entered(tmp_path):
    plant(tmp_path, "keep/.env", "hidden/.env", "hidden/deep/x", "z.key")
    result = found(tmp_path, "hidden", "**/.env", "*.key", "z.key")
    assert [os.path.relpath(os.fsdecode(path), tmp_path) for path in result.matches] == [
        "hidden",
        "keep/.env",
        "z.key",
    ]
    assert result.seen == 4


@pytest.mark.parametrize(
    "pattern",
    ["", "/", "/etc/shadow", "a/../b", "..", "!keep", "a\0b", "[abc", "a/[", "**/x[!"],
)
def test_patterns_that_mean_nothing_below_a_root_are_refused(tmp_path, pattern):
    with pytest.raises(PolicyError) as caught:
        found(tmp_path, "fine", pattern)
    assert repr(pattern) in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("pattern", "name", "hit"),
    [
        ("[]]", "]", True),
        ("[!]]", "]", False),
        ("[a-]", "-", True),
        ("[^a]", "b", True),
        ("a\\", "a\\", True),
        ("?", "é", True),
        ("*é?", "xéy", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("\\[x", "[x", True),
        ("*a*a*a*a*a*a*a*a*a*a*a*b", "a" * 200, False),
    ],
)
def test_inside_a_component(tmp_path, pattern, name, hit):
    plant(tmp_path, name)
    assert matches(tmp_path, pattern) == ([name] if hit else [])


def test_names_that_are_not_utf8(tmp_path):
    for name in (b"\xff.key", b"\xfe"):
        with open(os.fsencode(tmp_path) + b"/" + name, "w"):
            pass
    for pattern in ("*.key", "?.key", os.fsdecode(b"\xff*")):
        assert found(tmp_path, pattern).matches == (os.fsencode(tmp_path) + b"/\xff.key",)


def test_sockets_and_fifos_are_found_and_nothing_else(tmp_path):
    plant(tmp_path, "file", "d/")
    os.mkfifo(tmp_path / "d/fifo")
    (tmp_path / "link").symlink_to("d/fifo")
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
        one.bind(str(tmp_path / "one.sock"))
        two.bind(str(tmp_path / "d/two.sock"))
    result = found(tmp_path)
    assert [os.path.relpath(os.fsdecode(path), tmp_path) for path in result.sockets] == [
        "d/fifo",
        "d/two.sock",
        "one.sock",
    ]
    assert result.matches == ()
    hidden = found(tmp_path, "d", "one.*")
    assert (len(hidden.matches), hidden.sockets) == (2, ())


def test_double_star_enters_no_link_and_a_link_can_match(tmp_path):
    plant(tmp_path, "real/.env")
    (tmp_path / "alias").symlink_to("real")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / ".env").symlink_to("real/.env")
    assert matches(tmp_path, "**/.env") == [".env", "real/.env"]
    assert matches(tmp_path, "alias") == ["alias"]


def test_a_link_whose_name_a_pattern_spells_is_entered(tmp_path):
    plant(tmp_path, "real/a.pem", "real/deep/b.pem", "file")
    (tmp_path / "secrets").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "toafile").symlink_to("file")
    (tmp_path / "itself").symlink_to("itself")
    assert matches(tmp_path, "secrets/*.pem", "dangling/*", "toafile/*", "itself/*") == ["secrets/a.pem"]
    assert found(tmp_path, "itself/*").unreadable == ()
    assert matches(tmp_path, "secrets/**/b.pem") == ["secrets/deep/b.pem"]
    (tmp_path / "real/secrets").symlink_to("..")
    assert matches(tmp_path, "**/secrets/a.pem") == ["secrets/a.pem"]


def test_a_missing_root_and_an_empty_one(tmp_path):
    assert tuple(found(tmp_path / "missing", "*")) == ((), (), True, 0, ())
    assert tuple(found(tmp_path, "*")) == ((), (), True, 0, ())
    assert found(os.fsencode(tmp_path) + b"/", "*").seen == 0


@pytest.mark.parametrize("limit", [0, 1, 4])
def test_the_limit_cuts_the_walk_and_says_so(tmp_path, limit):
    plant(tmp_path, "a", "b", "c/d", "c/e")
    cut = found(tmp_path, "**/e", limit=limit)
    assert not cut.complete
    assert cut.seen <= limit
    assert found(tmp_path, "**/e", limit=5).complete


def test_a_deadline_that_has_passed_cuts_the_walk(tmp_path):
    plant(tmp_path, "a")
    assert not found(tmp_path, "*", deadline=time.monotonic() - 1).complete


def test_the_deadline_is_also_kept_inside_a_huge_directory(tmp_path, monkeypatch):
    plant(tmp_path, *(f"f{number}" for number in range(5000)))
    moments = iter([0.0, 2.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    cut = expand(os.fsencode(tmp_path), [], deadline=1.0)
    assert (cut.complete, cut.seen) == (False, 4096)


def test_an_unlistable_directory_is_named(tmp_path, monkeypatch):
    """Stands in for EACCES, which a root caller never gets."""
    plant(tmp_path, "closed/.env", "open/.env")
    genuine = os.scandir

    def refuse(path):
        if path.endswith(b"closed"):
            raise PermissionError(13, "refused")
        return genuine(path)

    monkeypatch.setattr(os, "scandir", refuse)
    result = found(tmp_path, "**/.env")
    assert result.unreadable == (os.fsencode(tmp_path / "closed"),)
    assert result.matches == (os.fsencode(tmp_path / "open/.env"),)


def slow_match(pattern, path):
    if not pattern or not path:
        return pattern == path
    if pattern[0] == "**":
        if len(pattern) == 1:
            return True
        return slow_match(pattern[1:], path) or slow_match(pattern, path[1:])
    return fnmatch.fnmatchcase(path[0], pattern[0]) and slow_match(pattern[1:], path[1:])


def slow_expand(root, patterns):
    hits = []
    for parent, directories, files in os.walk(root):
        for name in [*directories, *files]:
            path = os.path.relpath(os.path.join(parent, name), root).split("/")
            for pattern in patterns:
                wanted = [part for part in pattern.split("/") if part]
                if slow_match(wanted, path) and (name in directories or not pattern.endswith("/")):
                    hits.append("/".join(path))
                    break
        directories[:] = [
            name for name in directories if os.path.relpath(os.path.join(parent, name), root) not in hits
        ]
    return sorted(hits)


names = st.text("ab.", min_size=1, max_size=3).filter(lambda name: name not in (".", ".."))
trees = st.lists(st.lists(names, min_size=1, max_size=4).map("/".join), max_size=12)
parts = st.one_of(
    st.just("**"),
    names,
    st.text("ab.*?", min_size=1, max_size=4).filter(lambda part: part not in (".", "..")),
    st.sampled_from(["[ab]*", "[!a]", "a[b.]"]),
)
globs = st.builds(
    lambda path, end: "/".join(path) + end, st.lists(parts, min_size=1, max_size=4), st.sampled_from(["", "/"])
)


@settings(max_examples=200, deadline=None)
@given(trees, st.lists(globs, max_size=4))
def test_agrees_with_a_slow_reference(tree, patterns):
    root = tempfile.mkdtemp()
    try:
        for path in tree:
            try:
                plant(root, path)
            except OSError:  # a drawn file where another needs a directory, or the reverse
                continue
        assert sorted(matches(root, *patterns)) == slow_expand(root, patterns)
    finally:
        shutil.rmtree(root)
