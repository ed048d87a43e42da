"""Which bubblewrap is used: one that nobody else could replace, and that can do what is asked of it."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.policies.errors import SandboxUnavailable
from stockade.sandbox import bwrap as module
from stockade.sandbox.bwrap import (
    OPTIONAL_OPTIONS,
    REQUIRED_OPTIONS,
    distrust,
    find_helper,
    inspect,
    locate,
    parse_help,
)

HELP = """\
usage: bwrap [OPTIONS...] [--] COMMAND [ARGS...]

    --help                       Print this help
    --args FD                    Parse NUL-separated args from FD
    --ro-bind-fd FD DEST         Bind open directory or path fd read-only on DEST
    --level-prefix               Prepend e.g. <3> to diagnostic messages
        (see also --not-at-the-start)
not an option: --never
"""


def test_options_of_a_help_text():
    assert parse_help(HELP) == ("--help", "--args", "--ro-bind-fd", "--level-prefix")
    assert parse_help("") == ()


@given(st.text())
def test_any_text_can_be_asked_for_options(text):
    assert all(option.startswith("--") for option in parse_help(text))


@pytest.fixture
def binary(tmp_path):
    """A program in a directory of ours, asked for its options it prints a file beside it."""
    folder = tmp_path / "bin"
    folder.mkdir(mode=0o755)
    path = folder / "bwrap"
    path.write_text('#!/bin/sh\n[ "$1" = --help ] && /bin/cat "${0%/*}/help"\n')
    path.chmod(0o755)
    (folder / "help").write_text("".join(f"    {option} X\n" for option in (*REQUIRED_OPTIONS, "--bind-fd")))
    return path


# --- trust ------------------------------------------------------------------------------------------------


def test_a_program_of_ours_in_a_directory_of_ours_is_trusted(binary):
    assert distrust(str(binary)) == ""
    assert locate(str(binary)) == str(binary)


def test_the_systems_own_is_trusted(bwrap):
    assert distrust(bwrap) == ""


@pytest.mark.parametrize("mode", [0o757, 0o777, 0o1777, 0o702])
def test_a_program_that_everybody_can_write_is_not(binary, mode):
    binary.chmod(mode)
    assert "writable by everybody" in distrust(str(binary))


@pytest.mark.parametrize(("mode", "trusted"), [(0o757, False), (0o777, False), (0o1777, True), (0o755, True)])
def test_nor_one_in_a_directory_that_everybody_can_write(binary, mode, trusted):
    """In a sticky directory only its owner can replace it."""
    binary.parent.chmod(mode)
    assert ("writable by everybody" in distrust(str(binary))) is not trusted
    binary.parent.chmod(0o755)


def test_nor_one_below_such_a_directory(binary, tmp_path):
    tmp_path.chmod(0o777)
    assert str(tmp_path) in distrust(str(binary))
    tmp_path.chmod(0o700)


def test_a_link_is_judged_by_what_it_leads_to(binary, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(binary)
    assert distrust(str(link)) == ""
    binary.chmod(0o777)
    assert str(binary) in distrust(str(link))


@pytest.mark.root
def test_nor_one_of_another_user_or_another_group(binary):
    os.chown(binary, 65534, 0)
    assert distrust(str(binary)) == f"{binary} belongs to uid 65534"
    os.chown(binary, 0, 65534)
    binary.chmod(0o775)
    assert distrust(str(binary)) == f"{binary} is writable by group 65534"
    os.chown(binary, 0, 0)
    assert distrust(str(binary)) == ""
    os.chown(binary.parent, 65534, 65534)
    assert "belongs to uid 65534" in distrust(str(binary))


def test_ones_own_group_may_write(binary):
    binary.chmod(0o775)
    os.chown(binary, -1, os.getegid())
    assert distrust(str(binary)) == ""


@pytest.mark.parametrize("path", ["/nonexistent/bwrap", "/etc/passwd/bwrap"])
def test_one_that_is_not_there_is_not_trusted(path):
    assert "no such file" in distrust(path) or "not a directory" in distrust(path)


# --- finding ----------------------------------------------------------------------------------------------


def test_helpers_are_never_looked_for_along_path(binary, monkeypatch):
    monkeypatch.setenv("PATH", str(binary.parent))
    found = find_helper("bwrap")
    assert found is None or found.rpartition("/")[0] in module.TRUSTED_DIRECTORIES
    assert find_helper("no-such-helper") is None


def test_the_system_comes_before_the_environment(binary, monkeypatch):
    monkeypatch.setattr(module, "beside_interpreter", lambda: "/elsewhere/bwrap")
    monkeypatch.setattr(module, "TRUSTED_DIRECTORIES", (str(binary.parent),))
    assert locate() == str(binary)


def test_the_environments_own_is_taken_where_the_system_has_none(binary, monkeypatch):
    monkeypatch.setattr(module, "TRUSTED_DIRECTORIES", ())
    monkeypatch.setattr(module, "beside_interpreter", lambda: str(binary))
    assert locate() == str(binary)


def refused(action):
    with pytest.raises(SandboxUnavailable) as caught:
        action()
    assert caught.value.missing == ("bwrap",)
    assert caught.value.message.startswith("could not ")
    assert caught.value.remedy
    return caught.value.message


def test_none_at_all_is_refused(monkeypatch):
    monkeypatch.setattr(module, "TRUSTED_DIRECTORIES", ())
    monkeypatch.setattr(module, "beside_interpreter", lambda: None)
    assert "it is not installed" in refused(locate)


def test_a_relative_path_is_refused(binary):
    assert "the path is not absolute" in refused(lambda: locate("bin/bwrap"))


def test_one_that_is_not_trusted_is_refused(binary):
    binary.chmod(0o777)
    assert "writable by everybody" in refused(lambda: locate(str(binary)))


# --- asking -----------------------------------------------------------------------------------------------


def test_it_is_asked_what_it_can_do(binary):
    found = inspect(str(binary))
    assert (found.path, found.options) == (str(binary), ("--bind-fd",))
    assert found.has("--bind-fd")
    assert not found.has("--disable-userns")


@pytest.mark.parametrize("option", REQUIRED_OPTIONS)
def test_one_that_lacks_what_is_needed_is_too_old(binary, option):
    kept = [each for each in REQUIRED_OPTIONS if each != option]
    (binary.parent / "help").write_text("".join(f"  {each}\n" for each in kept))
    message = refused(lambda: inspect(str(binary)))
    assert "too old" in message
    assert message.endswith(option)


def test_one_that_can_not_be_run_is_refused(binary):
    binary.write_bytes(b"\x00")
    refused(lambda: inspect(str(binary)))
    refused(lambda: inspect(str(binary.parent / "none")))


def test_it_gets_nothing_of_our_environment(binary, monkeypatch):
    monkeypatch.setenv("SECRET", "sk-1")
    binary.write_text('#!/bin/sh\n/usr/bin/env > "${0%/*}/seen"\n/bin/cat "${0%/*}/help"\n')
    inspect(str(binary))
    assert "SECRET" not in (binary.parent / "seen").read_text()


@pytest.mark.kernel
def test_the_installed_ones_have_what_is_needed(bwrap):
    found = inspect(bwrap)
    assert set(found.options) <= set(OPTIONAL_OPTIONS)
    shown = subprocess.run([bwrap, "--help"], capture_output=True, text=True, check=False)
    assert set(found.options) <= set((shown.stdout + shown.stderr).split())
