"""What strace wrote is read: whole lines, lines that others came between, and nonsense."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.sandbox.review.traced import is_system, parse, plain

TRACE = b"""execve("/bin/sh", ["sh", "-c", "cat \\"a b\\"\\n"], 0x7ffe /* 8 vars */) = 0
execve("/usr/local/bin/cat", ["cat", "x"], 0x55 /* 8 vars */) = -1 ENOENT (No such file or directory)
openat(AT_FDCWD</w>, "/etc/ld.so.cache", O_RDONLY|O_CLOEXEC) = 3</etc/ld.so.cache>
openat(AT_FDCWD</w>, ".env", O_RDONLY) = 3</w/.env>
openat(AT_FDCWD</w>, "gone/x", O_RDONLY) = -1 ENOENT (No such file or directory)
[pid     9] openat(4</home/dev>, ".ssh/id_ed25519", O_RDONLY <unfinished ...>
[pid    10] execve("/usr/bin/git", ["git", "commit", "-m", "a\\303\\244"], 0x55 /* 8 vars */) = 0
[pid     9] <... openat resumed>)            = 5</home/dev/.ssh/id_ed25519>
openat(AT_FDCWD</w>, "/w/out", O_WRONLY|O_CREAT|O_TRUNC, 0666) = 3</w/out>
openat(AT_FDCWD</w>, "/w", O_RDONLY|O_DIRECTORY) = 3</w>
open("/w/gone", O_RDWR) = 3</w/gone>(deleted)
[pid     9] +++ exited with 0 +++
"""


def test_files_and_programs_are_read() -> None:
    trace = parse(TRACE)
    assert trace.read() == {"/etc/ld.so.cache", "/w/.env", "/home/dev/.ssh/id_ed25519", "/w/gone"}
    assert trace.looked_at() == ("/w/.env", "/w/gone/x", "/home/dev/.ssh/id_ed25519", "/w/out", "/w", "/w/gone")
    assert trace.commands == (("sh", "-c", 'cat "a b"\n'), ("git", "commit", "-m", "a\u00e4"))
    assert trace.command_lines() == ("sh -c 'cat \"a b\"\n'", "git commit -m 'a\u00e4'")
    assert {each.path for each in trace.opened if each.writes} == {"/w/out", "/w/gone"}


def test_a_call_that_lost_its_number_is_put_together() -> None:
    trace = parse(b'[pid 7] openat(AT_FDCWD</w>, "a", O_RDONLY <unfinished ...>\n<... openat resumed>) = 3</w/a>\n')
    assert trace.read() == {"/w/a"}


@pytest.mark.parametrize(
    ("path", "system"),
    [
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", True),
        ("/opt/lib/libz.so.1", True),
        ("/home/dev/.pyenv/versions/3.11/lib/python3.11/json/__init__.py", True),
        ("/etc/passwd", False),
        ("/home/dev/.ssh/id_ed25519", False),
        ("/proc/1/cgroup", False),
        ("/.dockerenv", False),
    ],
)
def test_what_every_program_opens_is_left_out(path: str, system: bool) -> None:
    assert is_system(path) is system


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "a"),
        (r"a\tb", "a\tb"),
        (r"\\x", "\\x"),
        (r"\303\251", "\u00e9"),
        (r"\x1b[0m", "\x1b[0m"),
        (r"\"", '"'),
    ],
)
def test_strings_are_unquoted(text: str, said: str) -> None:
    assert plain(text) == said


@given(st.binary(max_size=400))
@settings(deadline=None)
def test_anything_can_be_parsed(data: bytes) -> None:
    parse(data)
    parse(TRACE[: len(data)] + data + TRACE)
