"""Unified diffs: what git makes of them, names and bytes of every kind, and bounds that hold."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.sandbox import diff
from stockade.sandbox.diff import Difference, Side, quoted, render

LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "x\x0by\n", "ü\r\n", "+\n", "-- a\n"]), max_size=30)
ENDS = st.sampled_from(["", "no end", "\\"])


def side(text, mode=0o100644):
    data = text.encode() if isinstance(text, str) else text
    return Side(mode, data, len(data))


def text(old, new, path=b"f", limit=1 << 20, **more):
    return render([Difference(path, old, new, **more)], 1, limit=limit)


def apply(tmp_path, patch: str) -> None:
    done = subprocess.run(["git", "apply", "-p1", "-"], input=patch.encode(), cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, (done.stderr, patch)


@pytest.fixture(scope="module")
def git() -> str:
    found = shutil.which("git")
    assert found, "git is needed to read what is written for it"
    return found


@given(LINES, LINES, ENDS, ENDS)
def test_git_makes_the_new_text_of_the_old_one(git, tmp_path_factory, before, after, end, new_end):
    tmp_path = tmp_path_factory.mktemp("tree")
    old, new = "".join(before) + end, "".join(after) + new_end
    (tmp_path / "f").write_bytes(old.encode())
    patch = text(side(old), side(new))
    if patch:
        apply(tmp_path, patch)
    assert (tmp_path / "f").read_bytes() == new.encode()
    assert bool(patch) == (old != new)


@pytest.mark.parametrize(
    "name",
    [b"f", b"na me", b'q"u\\o', b"\xff\xfe", b"new\nline", b"tab\t", "grün".encode(), b"\x1b[31m", b"-x", b"..."],
)
def test_every_name_is_read_back(git, tmp_path, name):
    import os

    path = os.path.join(os.fsencode(tmp_path), name)
    apply(tmp_path, text(None, side("1\n"), name))
    with open(path, "rb") as file:
        assert file.read() == b"1\n"
    apply(tmp_path, text(side("1\n"), side("2\n", 0o100755), name))
    assert os.stat(path).st_mode & 0o111
    apply(tmp_path, text(side("2\n", 0o100755), None, name))
    assert not os.path.lexists(path)


def test_links_and_changes_of_type(git, tmp_path):
    apply(tmp_path, text(None, side("to/where", 0o120000)))
    assert (tmp_path / "f").is_symlink()
    apply(tmp_path, text(side("to/where", 0o120000), side("file\n")))
    assert not (tmp_path / "f").is_symlink()
    assert (tmp_path / "f").read_text() == "file\n"


def test_git_skips_what_it_has_no_words_for(git, tmp_path):
    patch = render(
        [
            Difference(b"d", remark="created directory"),
            Difference(b"f", None, side("1\n")),
            Difference(b"p", remark="created pipe"),
            Difference(b"g", None, side("2")),
            Difference(b"z", remark="deleted directory"),
        ],
        5,
        limit=1 << 20,
    )
    apply(tmp_path, patch)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "g"]
    assert patch.startswith("# created directory: d\n")


@pytest.mark.parametrize("data", [b"\0", b"a\0b\n", b"\xff\xfe", b"caf\xe9\n"])
def test_binary_files_are_only_named(data):
    patch = text(side(b"text\n"), side(data))
    assert "Binary files a/f and b/f differ\n" in patch
    assert f"# binary: 5 to {len(data)} bytes\n" in patch
    assert "@@" not in patch


def test_what_is_too_large_is_said():
    assert "# too large to show: 1 to 9999999 bytes" in text(side("x"), Side(0o100644, None, 9_999_999))


def test_equal_sides_are_nothing():
    assert text(side("x\n"), side("x\n")) == ""
    assert text(None, None) == ""


def test_the_whole_is_bounded_and_says_so():
    many = [Difference(b"f%d" % number, None, side("line\n" * 20)) for number in range(100)]
    whole, cut = render(many, 100, limit=1 << 20), render(many, 100, limit=2000)
    assert len(whole) > 10_000
    assert len(cut) < 2200
    assert cut.endswith(" more entries are not shown: the diff is cut\n")
    assert whole.startswith(cut[: cut.index("# ")])
    asked = iter(many)
    render(asked, 100, limit=2000)
    assert len(list(asked)) > 80


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["x\n"] * 30_000, ["x\n", "y\n"] * 30_000),
        (
            [f"{number % 300}\n" for number in range(20_000)],
            [f"{number % 300}\n" for number in range(20_000, 0, -1)],
        ),
    ],
)
def test_text_that_is_made_to_be_hard_to_compare_is_shown_as_replaced(before, after):
    effort = diff.Effort(diff.MOST_STEPS)
    codes = diff.opcodes(before, after, effort)
    assert effort.steps >= 0
    assert [line for tag, low, high, *_ in codes for line in before[low:high]] == before
    assert [line for tag, _, _, low, high in codes for line in after[low:high]] == after


@given(st.binary(min_size=1, max_size=40))
def test_a_quoted_name_is_one_line_of_plain_ascii(name):
    shown = quoted(name)
    assert shown.isascii()
    assert shown.isprintable()
