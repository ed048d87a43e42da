"""Stored filters: used when they are ours alone, never otherwise; and what is said when none can be built."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from stockade.policies.errors import RequestError, StockadeError
from stockade.sandbox import bpf, seccomp
from stockade.sandbox import seccomp_rules as rules

OPEN_DOOR = bpf.encode([bpf.Instruction(0x06, 0, 0, bpf.ALLOW)])
"""A program that allows everything: what an attacker would like to have in the cache."""


@pytest.fixture(autouse=True)
def fresh_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp, "_memory", {})


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    return path


def load(cache: Path | None, kind: str = "default") -> bytes:
    """As a new process would."""
    seccomp._memory.clear()
    return seccomp.load_filter(kind, None if cache is None else str(cache))


def plant(cache: Path, kind: str = "default", program: bytes = OPEN_DOOR) -> Path:
    """A well-formed file with the given program in it."""
    name = seccomp.cache_name(kind)
    path = cache / name
    path.write_bytes(program + seccomp._trailer(name, program))
    path.chmod(0o600)
    return path


def test_a_program_is_stored_for_us_alone_and_used_again(cache: Path) -> None:
    program = load(cache)
    (stored,) = cache.iterdir()
    assert stored.name == seccomp.cache_name("default")
    assert stored.stat().st_mode & 0o777 == 0o600
    assert stored.read_bytes()[:-8] == program
    before = stored.stat().st_ino
    assert load(cache) == program == seccomp.filter_program("default")
    assert stored.stat().st_ino == before


def test_a_good_file_is_believed(cache: Path) -> None:
    """The positive control of all refusals below: the planted file differs only in what they spoil."""
    plant(cache)
    assert load(cache) == OPEN_DOOR


def spoil_mode(path: Path) -> None:
    path.chmod(0o620)


def spoil_world(path: Path) -> None:
    path.chmod(0o602)


def spoil_directory(path: Path) -> None:
    path.parent.chmod(0o770)


def spoil_by_link(path: Path) -> None:
    aside = path.with_name("aside")
    path.rename(aside)
    path.symlink_to(aside)


def spoil_directory_link(path: Path) -> None:
    real = path.parent.with_name("real")
    path.parent.rename(real)
    path.parent.symlink_to(real)


def spoil_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4] ^= 1
    path.write_bytes(content)


def spoil_length(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def spoil_by_cutting(path: Path) -> None:
    path.write_bytes(path.read_bytes()[8:])


def spoil_by_emptying(path: Path) -> None:
    path.write_bytes(b"")


def spoil_by_size(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(1 << 20))


def spoil_program(path: Path) -> None:
    path.write_bytes(seccomp._trailer(path.name, b""))


def spoil_kind(path: Path) -> None:
    path.write_bytes(OPEN_DOOR + seccomp._trailer(seccomp.cache_name("strict"), OPEN_DOOR))


def spoil_type(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def spoil_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o700)


SPOILERS = [value for name, value in sorted(globals().items()) if name.startswith("spoil_")]


@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__)
def test_a_file_that_others_may_have_written_is_not_used(cache: Path, spoil: types.FunctionType) -> None:
    spoil(plant(cache))
    assert load(cache) == seccomp.filter_program("default")
    assert [path.name for path in cache.iterdir() if path.name.startswith(".")] == []


@pytest.mark.root
@pytest.mark.parametrize("whose", ["file", "directory"])
def test_a_file_of_somebody_else_is_not_used(cache: Path, whose: str) -> None:
    path = plant(cache)
    os.chown(path if whose == "file" else cache, 65534, 65534)
    assert load(cache) == seccomp.filter_program("default")


def test_a_spoilt_file_is_replaced(cache: Path) -> None:
    spoil_bit(plant(cache))
    program = load(cache)
    assert (cache / seccomp.cache_name("default")).read_bytes()[:-8] == program


def test_a_directory_that_others_can_write_gets_nothing(cache: Path) -> None:
    cache.chmod(0o777)
    assert load(cache)
    assert list(cache.iterdir()) == []


def test_a_missing_directory_is_made_for_us_alone(tmp_path: Path) -> None:
    assert load(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert len(list((tmp_path / "a" / "b").iterdir())) == 1


@pytest.mark.parametrize("where", ["/dev/null", "/dev/null/below", "/proc/self/none", "nul\0byte"])
def test_no_place_to_store_is_no_error(where: str) -> None:
    seccomp._memory.clear()
    assert seccomp.load_filter("default", where) == seccomp.filter_program("default")


def test_a_failed_write_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    monkeypatch.setattr(os, "link", full)
    assert load(cache)
    assert list(cache.iterdir()) == []


def test_memory_serves_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    first = seccomp.load_filter("strict", None)
    monkeypatch.setattr(seccomp, "filter_program", None)
    assert seccomp.load_filter("strict", None) == first


def test_off_is_empty_and_touches_nothing(cache: Path) -> None:
    assert seccomp.load_filter("off", str(cache)) == b""
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("kind", ["", "none", "Default", "../default", "default\0"])
def test_an_unknown_kind_is_an_error(kind: str, cache: Path) -> None:
    with pytest.raises(RequestError, match="no such filter"):
        seccomp.load_filter(kind, str(cache))
    with pytest.raises(RequestError, match="no such filter"):
        seccomp.filter_program(kind)


@pytest.mark.parametrize(
    ("table", "value"),
    [
        ("DENY", rules.DENY[1:]),
        ("DENY_WHEN", rules.DENY_WHEN[1:]),
        ("STRICT_ALLOW", rules.STRICT_ALLOW[1:]),
        ("STRICT_DENY", rules.STRICT_DENY[1:]),
        ("COMMON", rules.COMMON + " more"),
        ("ARCH_ONLY", {}),
        ("STRAY_X32", range(1)),
    ],
)
def test_other_rules_have_another_file(table: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    before = seccomp.cache_name("default")
    assert before == seccomp.cache_name("default") != seccomp.cache_name("strict")
    monkeypatch.setattr(rules, table, value)
    assert seccomp.cache_name("default") != before


def test_a_stored_filter_is_loaded_without_heavy_imports(cache: Path) -> None:
    load(cache)
    program = (
        "import sys; from stockade.sandbox import seccomp; before = set(sys.modules);"
        f"print(len(seccomp.load_filter('default', {str(cache)!r})));"
        "heavy = {'ctypes', 'pyseccomp', 'struct', 'functools', 'json', 'stockade.sandbox.bpf'};"
        "print(sorted(heavy & set(sys.modules)));"
        "print(sorted(set(sys.modules) - before))"
    )
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {root!r}); {program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[:3] == [str(len(load(cache))), "[]", "[]"]


# --- no filter to be had -----------------------------------------------------------------------------------


def refusal(kind: str = "default") -> StockadeError:
    with pytest.raises(seccomp.SeccompUnavailable, match="could not build the syscall filter") as caught:
        seccomp.load_filter(kind, None)
    assert caught.value.remedy
    return caught.value


def test_without_the_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    assert "pyseccomp" in refusal().message


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes.util

    found = ctypes.util.find_library
    monkeypatch.delitem(sys.modules, "pyseccomp", raising=False)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None if name == "seccomp" else found(name))
    error = refusal()
    assert "libseccomp.so.2" in error.message
    assert "libseccomp2" in error.remedy


@pytest.mark.parametrize("machine", ["s390x", "i686", "armv7l", "ppc64le", "mips"])
def test_on_a_machine_without_rules(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(machine=machine))
    error = refusal()
    assert machine in error.message
    assert 'filter = "off"' in error.remedy


def test_in_a_program_of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    other = next(name for name in rules.ARCHES if name != os.uname().machine)
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(machine=other))
    assert f"not a {other} program" in refusal().message


@pytest.mark.parametrize("table", ["DENY", "STRICT_DENY"])
def test_a_rule_that_the_library_can_not_name_is_not_dropped(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = (1, "x", "no_such_call") if table == "DENY" else ("x", "no_such_call")
    monkeypatch.setattr(rules, table, (*getattr(rules, table), row))
    assert "'no_such_call'" in refusal("strict").message


def test_a_newer_call_is_refused_although_the_library_can_not_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyseccomp

    usual = seccomp.filter_program("default")
    resolve = pyseccomp.resolve_syscall
    newer = set(rules.COMMON.split())
    monkeypatch.setattr(
        pyseccomp, "resolve_syscall", lambda arch, name: -1 if name in newer else resolve(arch, name)
    )
    assert seccomp.filter_program("default") == usual
    arch = rules.ARCHES[os.uname().machine]
    number = rules.FIRST_COMMON + rules.COMMON.split().index("move_mount")
    assert bpf.simulate(usual, arch, number) == bpf.ERRNO | 1


@pytest.mark.parametrize("kind", ["default", "strict"])
def test_a_library_that_forgets_a_rule_is_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_rows = seccomp._compile
    monkeypatch.setattr(seccomp, "_compile", lambda binding, other, rows: compile_rows(binding, other, rows[1:]))
    assert "where the rules say" in refusal(kind).message


def test_a_library_that_refuses_a_rule_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyseccomp

    def no(*_args: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(pyseccomp.SyscallFilter, "add_rule_exactly", no)
    assert "libseccomp refused it: Invalid argument" in refusal().message
