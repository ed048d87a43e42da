"""What is remembered of a host holds for this boot, this binary and this caller alone."""

from __future__ import annotations

import marshal
import os

import pytest

from stockade.policies.capability import Capability
from stockade.sandbox import hostcache, state
from stockade.sandbox.bwrap import Bwrap
from stockade.sandbox.host import Host


@pytest.fixture
def binary(tmp_path, monkeypatch):
    """Something that could be bwrap, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "bwrap"
    path.write_bytes(b"#!/bin/sh\n")
    path.chmod(0o755)
    return path


def host(binary):
    return Host(
        (Capability("bwrap", "ok", "it is there"), Capability("proc", "ok", "fresh", "")),
        Bwrap(str(binary), ("--bind-fd",)),
    )


def entry(tmp_path):
    return tmp_path / "cache/stockade/host"


def test_what_was_found_is_recalled(binary):
    assert hostcache.recall(str(binary)) is None
    hostcache.remember(host(binary))
    assert hostcache.recall(str(binary)) == host(binary)


def test_what_was_forgotten_is_gone(binary):
    hostcache.forget()
    hostcache.remember(host(binary))
    hostcache.forget()
    assert hostcache.recall(str(binary)) is None


def test_a_host_without_a_binary_is_not_remembered(binary, tmp_path):
    hostcache.remember(host(binary).replace(bwrap=None))
    assert not entry(tmp_path).exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"#!/bin/sh\n# another\n"),
        lambda path: os.utime(path, (1, 1)),
        lambda path: path.chmod(0o700),
        lambda path: (path.rename(path.with_name("old")), path.write_bytes(b"#!/bin/sh\n")),
    ],
)
def test_another_binary_is_another_host(binary, change):
    hostcache.remember(host(binary))
    change(binary)
    assert hostcache.recall(str(binary)) is None


def test_another_path_is_another_host(binary):
    hostcache.remember(host(binary))
    other = binary.with_name("link")
    other.symlink_to(binary)
    assert hostcache.recall(str(other)) is None
    assert hostcache.recall(str(binary)) is not None


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/proc/sys/kernel/random/boot_id", b"another boot\n"),
        ("/proc/self/status", b"CapEff:\t0000000000000001\nSeccomp:\t2\n"),
    ],
)
def test_another_boot_or_other_rights_are_another_host(binary, monkeypatch, path, content):
    hostcache.remember(host(binary))
    real = hostcache.read
    monkeypatch.setattr(hostcache, "read", lambda asked: content if asked == path else real(asked))
    assert hostcache.recall(str(binary)) is None


def test_another_caller_is_another_host(binary, monkeypatch):
    hostcache.remember(host(binary))
    monkeypatch.setattr(os, "getegid", lambda: 4242)
    assert hostcache.recall(str(binary)) is None


def test_what_this_process_uses_up_is_not_part_of_it(binary):
    """Counters of /proc/self/status change all the time."""
    assert hostcache.situation(str(binary)) == hostcache.situation(str(binary))
    lines = hostcache.situation(str(binary))[-1]
    assert {line.split(b":")[0] for line in lines} >= {b"CapEff", b"CapBnd", b"NoNewPrivs", b"Seccomp"}
    assert not any(line.startswith((b"Vm", b"Threads", b"Pid")) for line in lines)


def test_a_binary_that_is_gone_is_said(binary):
    hostcache.remember(host(binary))
    binary.unlink()
    with pytest.raises(FileNotFoundError):
        hostcache.recall(str(binary))


@pytest.mark.parametrize(
    "change",
    [
        lambda key: (key, ("/x", ()), (("one",),)),
        lambda key: (key, ("/x", ()), 5),
        lambda key: (key, "/xyz", ()),
        lambda key: (key,),
        lambda key: 5,
        lambda key: None,
        lambda key: ((), ("/x", ()), ()),
    ],
)
def test_a_forged_entry_is_ignored(binary, tmp_path, change):
    key = hostcache.situation(str(binary))
    state.store_private(str(tmp_path / "cache/stockade"), hostcache.NAME, marshal.dumps(change(key)))
    assert hostcache.recall(str(binary)) is None


def test_a_forged_entry_can_not_name_another_binary(binary, tmp_path):
    key = hostcache.situation(str(binary))
    forged = marshal.dumps((key, ("/tmp/evil", ("--bind-fd",)), (("bwrap", "ok", "x", ""),), ""))
    state.store_private(str(tmp_path / "cache/stockade"), hostcache.NAME, forged)
    assert hostcache.recall(str(binary)).bwrap.path == str(binary)


def test_a_truncated_entry_is_ignored(binary, tmp_path):
    hostcache.remember(host(binary))
    whole = entry(tmp_path).read_bytes()
    for size in range(len(whole)):
        entry(tmp_path).write_bytes(whole[:size])
        assert hostcache.recall(str(binary)) is None
    entry(tmp_path).write_bytes(whole)
    assert hostcache.recall(str(binary)) == host(binary)


@pytest.mark.parametrize("mode", [0o666, 0o620])
def test_an_entry_that_others_could_write_is_ignored(binary, tmp_path, mode):
    hostcache.remember(host(binary))
    entry(tmp_path).chmod(mode)
    assert hostcache.recall(str(binary)) is None


def test_without_a_home_nothing_is_remembered(binary, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "")
    hostcache.remember(host(binary))
    hostcache.forget()
    assert hostcache.recall(str(binary)) is None


# --- a connector that can't attach -------------------------------------------------------------------------


def test_a_connector_is_set_aside_and_taken_up_again(binary):
    assert not hostcache.is_set_aside(str(binary))
    hostcache.set_aside(str(binary), aside=False)
    assert not hostcache.is_set_aside(str(binary))
    hostcache.set_aside(str(binary), aside=True)
    assert hostcache.is_set_aside(str(binary))
    hostcache.forget()
    assert hostcache.is_set_aside(str(binary)), "a run that failed says nothing of it"
    hostcache.set_aside(str(binary), aside=False)
    assert not hostcache.is_set_aside(str(binary))


def test_another_connector_is_not_set_aside(binary):
    hostcache.set_aside(str(binary), aside=True)
    binary.write_bytes(b"#!/bin/sh\n# mended\n")
    assert not hostcache.is_set_aside(str(binary))
    binary.unlink()
    assert not hostcache.is_set_aside(str(binary))


@pytest.mark.parametrize("content", [b"", b"x", marshal.dumps(None), marshal.dumps(()), marshal.dumps(True)])
def test_a_forged_note_sets_nothing_aside(binary, tmp_path, content):
    state.store_private(str(tmp_path / "cache/stockade"), hostcache.CONNECTOR, content)
    assert not hostcache.is_set_aside(str(binary))


def test_without_a_place_nothing_is_set_aside(binary, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    hostcache.set_aside(str(binary), aside=True)
    assert not hostcache.is_set_aside(str(binary))
