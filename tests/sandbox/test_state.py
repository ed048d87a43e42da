"""Stockade's own files: what others could have written is never used."""

from __future__ import annotations

import os
import socket
import stat
import threading

import pytest

from stockade.sandbox import state

DATA = b"what was found out\0" * 3


@pytest.fixture
def cache(tmp_path):
    """A directory of ours with one file in it."""
    state.store_private(str(tmp_path / "cache"), "entry", DATA)
    return tmp_path / "cache"


def read(cache, name="entry"):
    return state.read_private(str(cache), name)


def test_what_was_stored_is_read(cache):
    assert read(cache) == DATA
    assert stat.S_IMODE(cache.stat().st_mode) & 0o077 == 0
    assert stat.S_IMODE((cache / "entry").stat().st_mode) == 0o600
    assert os.listdir(cache) == ["entry"]


def test_a_second_store_replaces_the_first(cache):
    inode = (cache / "entry").stat().st_ino
    state.store_private(str(cache), "entry", b"new")
    assert read(cache) == b"new"
    assert (cache / "entry").stat().st_ino != inode
    assert os.listdir(cache) == ["entry"]


def test_what_is_not_there_is_none(cache, tmp_path):
    assert read(cache, "other") is None
    assert read(tmp_path / "nowhere") is None


def test_an_empty_file_is_empty_and_not_missing(cache):
    state.store_private(str(cache), "empty", b"")
    assert read(cache, "empty") == b""


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o660])
def test_a_file_that_others_could_write_is_not_used(cache, mode):
    (cache / "entry").chmod(mode)
    assert read(cache) is None
    (cache / "entry").chmod(0o644)
    assert read(cache) == DATA


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_directory_that_others_could_write_is_not_used(cache, mode):
    cache.chmod(mode)
    assert read(cache) is None
    state.store_private(str(cache), "entry", b"new")
    cache.chmod(0o755)
    assert read(cache) == DATA


def test_a_link_in_place_of_the_file_is_not_followed(cache, tmp_path):
    (tmp_path / "target").write_bytes(DATA)
    (cache / "link").symlink_to(tmp_path / "target")
    assert read(cache, "link") is None


def test_a_link_in_place_of_the_directory_is_not_followed(cache, tmp_path):
    (tmp_path / "link").symlink_to(cache)
    assert read(tmp_path / "link") is None
    state.store_private(str(tmp_path / "link"), "entry", b"new")
    assert read(cache) == DATA


def test_a_store_replaces_a_link_and_leaves_its_target_alone(cache, tmp_path):
    (tmp_path / "victim").write_bytes(b"mine")
    (cache / "entry").unlink()
    (cache / "entry").symlink_to(tmp_path / "victim")
    state.store_private(str(cache), "entry", b"new")
    assert read(cache) == b"new"
    assert (tmp_path / "victim").read_bytes() == b"mine"


def test_a_fifo_does_not_hang_us(cache):
    os.mkfifo(cache / "fifo", 0o600)
    assert read(cache, "fifo") is None


def test_nor_is_anything_else_read_that_is_no_file(cache):
    (cache / "directory").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(cache / "socket"))
        assert read(cache, "socket") is None
    assert read(cache, "directory") is None


@pytest.mark.parametrize("name", ["../entry", "sub/entry"])
def test_a_name_is_a_name(cache, name):
    assert read(cache / "none", name) is None


def test_a_file_too_large_is_not_read(cache):
    with open(cache / "large", "wb") as file:
        file.truncate(state.MOST + 1)
    assert read(cache, "large") is None
    with open(cache / "large", "r+b") as file:
        file.truncate(state.MOST)
    assert len(read(cache, "large")) == state.MOST


@pytest.mark.root
def test_somebody_elses_file_is_not_used(cache):
    os.chown(cache / "entry", 65534, 65534)
    assert read(cache) is None
    os.chown(cache / "entry", 0, 0)
    assert read(cache) == DATA
    os.chown(cache, 65534, 65534)
    assert read(cache) is None


@pytest.mark.user
def test_what_can_not_be_read_or_stored_is_no_error(cache):
    (cache / "entry").chmod(0)
    assert read(cache) is None
    cache.chmod(0o500)
    state.store_private(str(cache), "other", b"x")
    assert read(cache, "other") is None
    cache.chmod(0o700)


def test_a_place_that_can_not_be_made_is_no_error(cache):
    state.store_private(str(cache / "entry" / "below"), "x", b"x")
    state.store_private("a\0b", "x", b"x")
    assert state.read_private("a\0b", "x") is None
    assert read(cache) == DATA


def test_a_failed_store_leaves_no_temporary_file(cache):
    (cache / "taken").mkdir()
    (cache / "taken" / "x").write_bytes(b"")
    state.store_private(str(cache), "taken", b"new")
    assert sorted(os.listdir(cache)) == ["entry", "taken"]


def test_removing_is_never_an_error(cache):
    state.remove(str(cache), "entry")
    state.remove(str(cache), "entry")
    assert read(cache) is None


def test_readers_see_one_version_or_the_other(cache):
    """Many writers at once: no read is ever torn."""
    versions = [bytes([number]) * 5000 for number in range(4)]
    state.store_private(str(cache), "entry", versions[0])
    stop = threading.Event()

    def write(version):
        while not stop.is_set():
            state.store_private(str(cache), "entry", version)

    writers = [threading.Thread(target=write, args=(version,)) for version in versions]
    for writer in writers:
        writer.start()
    try:
        seen = {read(cache) for _ in range(300)}
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert seen <= set(versions)
    assert os.listdir(cache) == ["entry"]


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/stockade"),
        ({"XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/stockade"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/stockade"),
        ({"HOME": "/h"}, "/h/.cache/stockade"),
        ({"HOME": "relative"}, None),
        ({"HOME": ""}, None),
        ({}, None),
    ],
)
def test_where_the_cache_is(monkeypatch, variables, found):
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert state.cache_dir() == found
