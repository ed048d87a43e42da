"""Diagnoses over real files below tmp_path, seen through views that hide or move some of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.sandbox import program as module
from stockade.sandbox.program import diagnose

SH = os.path.realpath("/bin/sh")


def put(path, content=b"", mode=0o755):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def everything(inside):
    return inside


def without(*hidden):
    """Hides these paths and all below them; the directories above stay."""

    def view(inside):
        return None if any(inside == path or inside.startswith(f"{path}/") for path in map(str, hidden)) else inside

    return view


def look(argv0, *, path="/usr/bin:/bin", cwd="/", view=everything):
    return diagnose(str(argv0), path=path, cwd=str(cwd), view=view)


def test_nothing_wrong(tmp_path):
    script = put(tmp_path / "s", b"#!/bin/sh\necho\n")
    assert tuple(look(script)) == (script, 0, "", "", True)
    assert look("s", path=f"/nonexistent:{tmp_path}").found == script
    assert look("./s", cwd=tmp_path).found == os.path.join(tmp_path, "./s")
    assert look("s", path=":/usr/bin", cwd=tmp_path).found == script
    assert look("s", path="bin", cwd=put(tmp_path / "bin/s") and tmp_path).found == str(tmp_path / "bin/s")
    assert look("sh").code == 0
    assert look(sys.executable).code == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"echo no first line\n",
        b"\x7fELF",
        b"\x7fELF" + b"\xff" * 60,
        b"#!\n",
        b"#!   \n",
        b"#!/" + b"x" * 300,
        b"MZ",
    ],
    ids=["empty", "text", "cut ELF", "odd ELF", "bare", "blank", "line too long", "other"],
)
def test_what_execvp_hands_to_the_shell_or_the_kernel_is_left_alone(tmp_path, content):
    assert look(put(tmp_path / "p", content)).code == 0


@pytest.mark.parametrize("name", ["", "nosuchprogram", "/no/such/program", "./nosuch", "/etc/passwd/x", "a\0b"])
def test_not_there(name):
    verdict = look(name)
    assert (verdict.found, verdict.code, verdict.executes) == (None, 127, False)
    assert repr(name) in verdict.reason or "nosuch" in verdict.reason


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: put(path, b"#!/bin/sh\n", 0o644), "is not executable"),
        (lambda path: os.mkfifo(path, 0o755), "is not a regular file"),
        (lambda path: path.symlink_to("p"), "symbolic links"),
        (lambda path: put(path, b"#!/bin/sh\r\nx"), "its first line ends with a carriage return"),
        (lambda path: put(path, b"#!/usr/bin/env python3\r\nx"), "its first line ends with a carriage return"),
        (lambda path: put(path, b"#!/no/interp\n"), "its interpreter '/no/interp' does not exist inside"),
        (lambda path: put(path, b"#! /no/interp -x\n"), "its interpreter '/no/interp' does not exist inside"),
        (lambda path: put(path, b"#!\t/no/interp\t-x"), "its interpreter '/no/interp' does not exist inside"),
        (lambda path: put(path, b"#!/no/interp\0x\n"), "its interpreter '/no/interp' does not exist inside"),
        (lambda path: put(path, b"#!/etc/passwd\n"), "its interpreter '/etc/passwd' is not executable"),
        (lambda path: put(path, b"#!/usr\n"), "its interpreter '/usr' is a directory"),
    ],
)
def test_there_but_it_cannot_be_executed(tmp_path, make, said):
    make(tmp_path / "p")
    for verdict in (look(tmp_path / "p"), look("p", path=f"/nonexistent:{tmp_path}")):
        assert (verdict.code, verdict.executes) == (126, False)
        assert said in verdict.reason
        assert repr(str(tmp_path / "p")) in verdict.reason


def test_options_may_end_with_a_carriage_return(tmp_path):
    """Perl and env -S take it for a blank; whatever it does, the kernel starts the interpreter."""
    assert look(put(tmp_path / "p", b"#!/bin/sh -e\r\n")).code == 0
    assert "carriage" not in look(put(tmp_path / "q", b"#!/no/interp -e\r\n")).reason


def test_a_file_that_cannot_be_read_is_fine(tmp_path, monkeypatch):
    script = put(tmp_path / "p", b"#!/no/interp\n")
    assert look(script).code == 126
    monkeypatch.setattr(module, "_read", lambda *_: b"")
    assert look(script).code == 0


def test_noexec(tmp_path, monkeypatch):
    class Flags:
        f_flag = os.ST_NOEXEC

    script = put(tmp_path / "p", b"#!/bin/sh\n")
    monkeypatch.setattr(os, "statvfs", lambda _path: Flags)
    assert "noexec" in look(script).reason


def test_hidden_program(tmp_path):
    script = put(tmp_path / "tools/deep/p", b"#!/bin/sh\n")
    folder = os.path.dirname(script)
    for verdict in (
        look(script, view=without(tmp_path / "tools")),
        look("p", path=f"/usr/bin:{folder}", view=without(script)),
    ):
        assert (verdict.found, verdict.code) == (None, 127)
        assert verdict.reason == f"{script!r} exists on the host but is not visible inside"
        assert verdict.remedy == f"make it visible with --read {folder}"
    assert look(script).code == 0


def test_a_hidden_program_does_not_stop_the_search(tmp_path):
    hidden, shown = put(tmp_path / "a/p"), put(tmp_path / "b/p")
    path = f"{tmp_path}/a:{tmp_path}/b"
    assert look("p", path=path, view=without(hidden)).found == shown
    put(tmp_path / "a/p", b"", 0o644)
    assert look("p", path=path).found == shown
    put(tmp_path / "b/p", b"", 0o644)
    assert (look("p", path=path).code, look("p", path=path).found) == (126, hidden)


def test_hidden_interpreter(tmp_path):
    node = put(tmp_path / "nvm/bin/node")
    script = put(tmp_path / "hook", b"#!" + os.fsencode(node) + b"\n")
    verdict = look(script, view=without(tmp_path / "nvm"))
    assert verdict.code == 126
    assert f"interpreter {node!r} exists on the host but is not visible inside" in verdict.reason
    assert verdict.remedy == f"make it visible with --read {os.path.dirname(node)}"
    assert look(script).code == 0


def test_links_are_followed_inside_and_the_hidden_end_is_named(tmp_path):
    target = put(tmp_path / "real/bin/tool")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tool").symlink_to("../alias/tool")
    (tmp_path / "alias").symlink_to(tmp_path / "real/bin")
    verdict = look("tool", path=str(tmp_path / "bin"), view=without(tmp_path / "real"))
    assert verdict.code == 127
    assert f"leads to {target!r}, which exists on the host but is not visible inside" in verdict.reason
    assert look("tool", path=str(tmp_path / "bin")).code == 0


def test_a_view_that_moves_things(tmp_path):
    """The box has the host's directory ``store`` at /opt/app, and absolute links mean inside paths."""
    put(tmp_path / "store/bin/run", b"#!/opt/app/bin/interp\n")
    put(tmp_path / "store/bin/v2")
    (tmp_path / "store/bin/interp").symlink_to("/opt/app/bin/v2")

    def view(inside):
        return str(tmp_path / "store") + inside[len("/opt/app") :] if inside.startswith("/opt/app") else None

    assert look("run", path="/opt/app/bin", view=view).code == 0
    (tmp_path / "store/bin/v2").unlink()
    verdict = look("/opt/app/bin/run", view=view)
    assert (verdict.code, verdict.found) == (126, "/opt/app/bin/run")
    assert "'/opt/app/bin/interp' leads to '/opt/app/bin/v2', which does not exist inside" in verdict.reason
    assert str(tmp_path) not in verdict.reason


def test_a_directory_that_only_the_box_has_does_not_hide_what_is_mounted_below_it(tmp_path):
    tool = put(tmp_path / "home/.tools/t")

    def view(inside):
        return inside if inside.startswith(f"{tmp_path}/home/.tools") else None

    assert look(tool, view=view).code == 0
    other = put(tmp_path / "home/other")
    assert "not visible inside" in look(other, view=view).reason


def test_env_looks_its_name_up_inside(tmp_path):
    script = put(tmp_path / "s", b"#!/usr/bin/env node-of-mine\n")
    verdict = look(script)
    assert (verdict.found, verdict.code, verdict.executes) == (script, 127, True)
    assert "env: 'node-of-mine' not found inside" in verdict.reason
    node = put(tmp_path / "nvm/bin/node-of-mine")
    path = f"/usr/bin:/bin:{tmp_path}/nvm/bin"
    hidden = look(script, path=path, view=without(tmp_path / "nvm"))
    assert (hidden.code, hidden.remedy) == (127, f"make it visible with --read {tmp_path}/nvm/bin")
    assert repr(node) in hidden.reason
    assert look(script, path=path).code == 0
    put(tmp_path / "nvm/bin/node-of-mine", b"#!/no/interp\n")
    assert look(script, path=path).code == 126


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"-S nosuch x", 0),
        (b"A=b nosuch", 0),
        (b"", 0),
        (b" sh ", 0),
        (b"/bin/sh", 0),
        (b"nosuch", 127),
        (b"sh -x", 127),
        (b"/no/such", 127),
        (b"/etc/passwd", 126),
    ],
)
def test_env_lines(tmp_path, line, code):
    verdict = look(put(tmp_path / "s", b"#!/usr/bin/env " + line + b"\n"))
    assert (verdict.code, verdict.executes) == (code, True)
    assert ("env -S" in verdict.remedy) == (line == b"sh -x")


def test_env_failing_ends_the_search_on_path(tmp_path):
    put(tmp_path / "a/p", b"#!/usr/bin/env nosuch\n")
    put(tmp_path / "b/p")
    assert look("p", path=f"/usr/bin:{tmp_path}/a:{tmp_path}/b").code == 127


@pytest.mark.parametrize(("scripts", "code"), [(1, 0), (5, 0), (6, 126), (9, 126)])
def test_nested_interpreters_have_the_kernel_limit(tmp_path, scripts, code):
    put(tmp_path / "0", b"#!/bin/sh\nexit 7\n")
    for number in range(1, scripts):
        put(tmp_path / str(number), f"#!{tmp_path}/{number - 1}\n".encode())
    last = str(tmp_path / str(scripts - 1))
    assert look(last).code == code
    try:
        returned = subprocess.run([last], check=False, stderr=subprocess.DEVNULL).returncode
    except OSError:
        returned = 126
    assert (returned == 126) == (code == 126)


def test_an_interpreter_that_is_itself_ends(tmp_path):
    script = tmp_path / "s"
    put(script, f"#!{script}\n".encode())
    assert look(script).code == 126
    put(tmp_path / "self", b"#!/usr/bin/env self\n")
    assert look("self", path=f"{tmp_path}:/usr/bin").code == 126


def elf(wide, big, loader, at=None):
    """A header, a PT_PHDR, a PT_INTERP and its text, laid out by hand."""
    order = "big" if big else "little"
    head_size, entry_size = (64, 56) if wide else (52, 32)
    text_at = at or head_size + 2 * entry_size
    body = bytearray(text_at)
    body[:6] = b"\x7fELF" + bytes([2 if wide else 1, 2 if big else 1])

    def store(offset, value, size):
        body[offset : offset + size] = value.to_bytes(size, order)

    store(32 if wide else 28, head_size, 8 if wide else 4)
    store(54 if wide else 42, entry_size, 2)
    store(56 if wide else 44, 2, 2)
    store(head_size, 6, 4)
    second = head_size + entry_size
    store(second, 3, 4)
    store(second + (8 if wide else 4), text_at, 8 if wide else 4)
    store(second + (32 if wide else 16), len(loader) + 1, 8 if wide else 4)
    return bytes(body) + loader + b"\0"


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("big", [True, False])
@pytest.mark.parametrize("at", [None, 70_000])
def test_elf_loader(tmp_path, wide, big, at):
    loader = put(tmp_path / "lib/ld.so")
    binary = put(tmp_path / "b", elf(wide, big, os.fsencode(loader), at))
    assert look(binary).code == 0
    verdict = look(binary, view=without(tmp_path / "lib"))
    assert verdict.code == 126
    assert f"its loader {loader!r} exists on the host but is not visible inside" in verdict.reason
    os.unlink(loader)
    assert f"its loader {loader!r} does not exist inside" in look(binary).reason
    assert look(put(tmp_path / "static", elf(wide, big, b"", at))).code == 0


def test_the_loader_of_a_real_binary():
    loader = module._loader(module._read(SH, 0, 1024), SH)
    assert loader is None or os.path.isfile(loader)
    if loader:
        real = os.path.realpath(loader)
        assert look(SH, view=without(real)).code == 126


@given(st.binary(max_size=200), st.sampled_from([b"", b"#!", b"\x7fELF", b"\x7fELF\x02\x01", b"\x7fELF\x01\x02"]))
def test_any_bytes_get_an_answer(tmp_path_factory, rest, start):
    script = put(tmp_path_factory.getbasetemp() / "any", start + rest)
    assert look(script).code in (0, 126, 127)


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("/home/u/.nvm/bin/node", "--read /home/u/.nvm/bin"),
        ("/home/u/tool", "--read /home/u/tool"),
        ("/opt/my tools/x/y/z", "--read '/opt/my tools/x/y'"),
        ("/opt/it's/x/y", "--read '/opt/it'\\''s/x'"),
        ("/opt/\x1b[2J/x/y", "--read '/opt/\\x1b[2J/x'"),
    ],
)
def test_the_remedy_never_opens_a_home_and_is_one_shell_word(path, remedy):
    assert module._show(path) == f"make it visible with {remedy}"


def test_reasons_never_carry_raw_control_bytes(tmp_path):
    for content in (b"#!/no/\x1b[2J\n", b"#!/usr/bin/env \x1b]0;x\x07\n"):
        verdict = look(put(tmp_path / "\x1bp", content))
        assert verdict.code
        assert verdict.reason.isprintable()
    shutil.rmtree(tmp_path)
