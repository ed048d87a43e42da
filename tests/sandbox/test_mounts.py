"""Order, covering and views of mounts, by table and over random trees of paths."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.sandbox import mounts as module
from stockade.sandbox.mounts import (
    BIND,
    BIND_RO,
    DATA,
    DEV,
    MASK,
    PROC,
    SYMLINK,
    TMPFS,
    Mount,
    below,
    covering,
    depth,
    frozen_last,
    host_path,
    ordered,
    writable_paths,
)

NAMES = st.sampled_from(["a", "b", "ab", "a.b", "..x", "é", "a b", "\udcff"])
PATHS = st.lists(NAMES, max_size=5).map(lambda parts: "/" + "/".join(parts))
MOUNTS = st.builds(
    Mount,
    st.sampled_from([BIND, BIND_RO, TMPFS, MASK, DATA, SYMLINK, PROC, DEV]),
    PATHS,
    source=PATHS,
    frozen=st.booleans(),
)
untimed = settings(deadline=None)


@pytest.mark.parametrize(
    ("path", "top", "answer"),
    [
        ("/a", "/a", True),
        ("/a/b", "/a", True),
        ("/ab", "/a", False),
        ("/a", "/a/b", False),
        ("/a", "/", True),
        ("/", "/", True),
        ("/", "/a", False),
        ("/a.b/c", "/a", False),
    ],
)
def test_below_goes_by_whole_components(path, top, answer):
    assert below(path, top) is answer


@pytest.mark.parametrize(("path", "number"), [("/", 0), ("/a", 1), ("/a/b", 2)])
def test_depth(path, number):
    assert depth(path) == number


@untimed
@given(PATHS, PATHS)
def test_below_agrees_with_the_library(path, top):
    assert below(path, top) == (os.path.commonpath([path, top]) == top)


@untimed
@given(st.lists(MOUNTS, max_size=25), st.randoms(use_true_random=False))
def test_parents_come_before_children_whatever_the_order(mounts, chance):
    mixed = random.Random(chance.random()).sample(mounts, len(mounts))
    found = [mount.dest for mount in ordered(mixed)]
    assert sorted(set(found)) == sorted({mount.dest for mount in mounts})
    assert len(set(found)) == len(found)
    for at, dest in enumerate(found):
        assert not any(below(dest, later) for later in found[at + 1 :])


@untimed
@given(st.lists(MOUNTS, max_size=25, unique_by=lambda mount: mount.dest), st.randoms(use_true_random=False))
def test_the_order_asked_does_not_matter(mounts, chance):
    mixed = list(mounts)
    chance.shuffle(mixed)
    assert ordered(mixed) == ordered(mounts) == ordered(ordered(mounts))


def test_of_several_mounts_at_one_place_the_last_asked_wins():
    first, second = Mount(BIND, "/a", "/x"), Mount(BIND_RO, "/a", "/y")
    assert ordered([first, Mount(TMPFS, "/"), second]) == (Mount(TMPFS, "/"), second)
    assert ordered([second, first]) == (first,)


def test_two_orders_that_bwrap_takes_differently_come_out_the_same():
    inner, outer = Mount(BIND, "/w/a", "/w/a"), Mount(BIND_RO, "/w", "/w")
    assert ordered([inner, outer]) == ordered([outer, inner]) == (outer, inner)


@untimed
@given(st.lists(MOUNTS, max_size=25))
def test_what_is_frozen_is_frozen_deepest_first(mounts):
    final = ordered(mounts)
    last = frozen_last(final)
    assert set(last) == {mount.dest for mount in final if mount.frozen}
    assert list(last) == sorted(last, key=lambda dest: (depth(dest), dest), reverse=True)


@untimed
@given(st.lists(MOUNTS, max_size=25), PATHS)
def test_the_deepest_mount_at_or_above_covers(mounts, path):
    final = ordered(mounts)
    above = [mount for mount in final if below(path, mount.dest)]
    assert covering(final, path) == (max(above, key=lambda mount: depth(mount.dest)) if above else None)
    mixed = list(final)[::-1]
    assert covering(mixed, path) == covering(final, path)


VIEW = ordered(
    [
        Mount(TMPFS, "/"),
        Mount(BIND_RO, "/usr", "/usr"),
        Mount(SYMLINK, "/bin", "usr/bin"),
        Mount(TMPFS, "/home/ann"),
        Mount(BIND, "/home/ann/src", "/data/src"),
        Mount(MASK, "/home/ann/src/.env"),
        Mount(TMPFS, "/home/ann/src/hidden"),
        Mount(DATA, "/etc/passwd", data=b"x"),
        Mount(PROC, "/proc"),
        Mount(DEV, "/dev"),
    ]
)


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("/", None),
        ("/usr", "/usr"),
        ("/usr/bin/env", "/usr/bin/env"),
        ("/usrx", None),
        ("/bin/env", None),
        ("/home/ann", None),
        ("/home/ann/src", "/data/src"),
        ("/home/ann/src/a/b", "/data/src/a/b"),
        ("/home/ann/srcs", None),
        ("/home/ann/src/.env", "/dev/null"),
        ("/home/ann/src/hidden/key", None),
        ("/etc/passwd", "/etc/passwd"),
        ("/proc/1/environ", None),
        ("/dev/sda", None),
        ("/srv", None),
    ],
)
def test_host_path(path, seen):
    assert host_path(VIEW, path) == seen


@pytest.mark.parametrize(
    ("mount", "path", "seen"),
    [
        (Mount(BIND_RO, "/", "/"), "/etc/x", "/etc/x"),
        (Mount(BIND_RO, "/", "/srv/root"), "/etc/x", "/srv/root/etc/x"),
        (Mount(BIND_RO, "/host", "/"), "/host", "/"),
        (Mount(BIND_RO, "/host", "/"), "/host/etc/x", "/etc/x"),
    ],
)
def test_host_path_where_the_root_is_bound(mount, path, seen):
    assert host_path([mount], path) == seen


def test_nothing_is_seen_without_mounts():
    assert covering([], "/a") is None
    assert host_path([], "/a") is None


def test_writable_paths_are_those_of_writable_binds():
    assert writable_paths(VIEW) == ("/data/src",)


def test_every_operation_has_its_own_word():
    assert len({module.BIND, module.BIND_RO, TMPFS, MASK, DATA, SYMLINK, PROC, DEV}) == 8
