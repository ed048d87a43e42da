"""The syscall filter as the bytes that bwrap's ``--seccomp`` takes: read from a cache, or compiled by libseccomp.

``load_filter`` is on the hot path: libseccomp's binding is imported only when nothing usable is stored. What is
refused, and why, is data in ``seccomp_rules``. Never hands out a program that it could not check.
"""

from __future__ import annotations

import binascii
import os

from stockade.policies.errors import RequestError, StockadeError
from stockade.sandbox import seccomp_rules as rules
from stockade.sandbox import state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

    Condition = tuple[int, str, int, int]
    Row = tuple[int, int, tuple[Condition, ...]]
    """errno, number of the call, conditions"""

KINDS = ("default", "strict", "off")
_MAGIC = b"stk1"
_TRAILER = 8
_MAX_FILE = 8 * 4096 + _TRAILER
_UNKNOWN = -1
_memory: dict[str, bytes] = {}


class SeccompUnavailable(StockadeError):
    """The syscall filter can't be built on this host. Nothing was run."""


def load_filter(kind: str, cache_dir: str | None) -> bytes:
    """The program for ``kind``: empty for ``off`` (give bwrap no ``--seccomp``), else a multiple of 8 bytes.

    ``cache_dir`` is a directory of ours for compiled programs (made if missing), or None to use memory only. A
    stored program is taken only from a file and directory that we own and nobody else can write; one that can't
    be stored is no error. Raises ``SeccompUnavailable``, or ``RequestError`` for an unknown kind.
    """
    if kind == "off":
        return b""
    program = _memory.get(kind)
    if program is None:
        program = _memory[kind] = _load(kind, cache_dir)
    return program


def _load(kind: str, cache_dir: str | None) -> bytes:
    name = cache_name(kind)
    if cache_dir is None:
        return filter_program(kind)
    program = _read(cache_dir, name)
    if program is None:
        program = filter_program(kind)
        _store(cache_dir, name, program)
    return program


def cache_name(kind: str) -> str:
    """The file name of a stored program: a change of kind, machine or rules is a change of name."""
    _known(kind)
    return f"seccomp-{kind}-{_machine()}-{_rules_digest():08x}.bpf"


def _rules_digest() -> int:
    tables = (rules.ARCHES, rules.DENY, rules.DENY_WHEN, rules.STRICT_ALLOW, rules.STRICT_DENY)
    return binascii.crc32(repr((_MAGIC, *tables, rules.COMMON, rules.ARCH_ONLY, rules.STRAY_X32)).encode())


def _known(kind: str) -> None:
    if kind not in KINDS or kind == "off":
        raise RequestError(
            f"could not build the syscall filter {kind!r}: there is no such filter",
            remedy="use default or strict (off needs none)",
        )


def _machine() -> str:
    machine = os.uname().machine
    if machine not in rules.ARCHES:
        _unavailable(f"the rules are not written for {machine}")
    return machine


def _unavailable(cause: str, remedy: str = "", from_error: BaseException | None = None) -> NoReturn:
    raise SeccompUnavailable(
        f"could not build the syscall filter: {cause}",
        remedy=remedy or 'set filter = "off" under [syscalls] to run without a syscall filter',
    ) from from_error


# Cache. A stored program decides what foreign code may do, so whoever could write it could disarm the filter.


def _trailer(name: str, program: bytes) -> bytes:
    return _MAGIC + binascii.crc32(program, binascii.crc32(name.encode())).to_bytes(4, "little")


def _read(cache_dir: str, name: str) -> bytes | None:
    content = state.read_private(cache_dir, name)
    if content is None or len(content) > _MAX_FILE or len(content) % 8:
        return None
    program = content[:-_TRAILER]
    return program if program and content[-_TRAILER:] == _trailer(name, program) else None


def _store(cache_dir: str, name: str, program: bytes) -> None:
    state.store_private(cache_dir, name, program + _trailer(name, program))


# Compiling: the cold path.


def filter_program(kind: str) -> bytes:
    """Compile ``default`` or ``strict`` for this machine with libseccomp, and check it row by row.

    Raises ``SeccompUnavailable`` when libseccomp or its binding is missing, the machine has no rules, or the
    program does not do what the rules say; ``RequestError`` for an unknown kind.
    """
    from stockade.sandbox import bpf

    _known(kind)
    machine = _machine()
    binding = _binding(machine)
    rows = list(deny_rows(machine))
    program = _compile(binding, bpf.ALLOW, [(bpf.ERRNO | errno, number, when) for errno, number, when in rows])
    if kind == "strict":
        program = bpf.chain(_allow_list(binding, machine, rows), program)
    _check(kind, machine, program)
    return program


def _binding(machine: str) -> Any:
    try:
        import pyseccomp
    except ImportError as error:
        _unavailable("the Python package pyseccomp is not installed", "install pyseccomp with pip", error)
    except (OSError, RuntimeError, AttributeError) as error:
        remedy = "install libseccomp2 (Debian, Ubuntu) or libseccomp (Fedora, Arch, Alpine)"
        _unavailable("the library libseccomp.so.2 is missing or too old", remedy, error)
    if pyseccomp.system_arch() != rules.ARCHES[machine]:
        _unavailable(f"this Python is not a {machine} program", f"use a Python built for {machine}")
    return pyseccomp


def call_number(name: str, machine: str) -> int | None:
    """The number of a call on ``machine`` (a key of ``ARCHES``), or None where that machine has no such call.

    A name that neither libseccomp nor the tables know is ``SeccompUnavailable``: a rule is never dropped because
    the library is old.
    """
    import pyseccomp

    number: int = pyseccomp.resolve_syscall(rules.ARCHES[machine], name)
    if number != _UNKNOWN:
        return number if number >= 0 else None
    common = rules.COMMON.split()
    if name in common:
        return rules.FIRST_COMMON + common.index(name)
    if any(name in table for table in rules.ARCH_ONLY.values()):
        return rules.ARCH_ONLY.get(machine, {}).get(name)
    _unavailable(f"this libseccomp does not know the call {name!r}", "update libseccomp to 2.5 or later")


def deny_rows(machine: str) -> Iterator[Row]:
    """The ``default`` rules with numbers for ``machine``, leaving out the calls it does not have."""
    for errno, _reason, names in rules.DENY:
        for name in names.split():
            number = call_number(name, machine)
            if number is not None:
                yield errno, number, ()
    for name, errno, _reason, when in rules.DENY_WHEN:
        number = call_number(name, machine)
        if number is not None:
            yield errno, number, when
    if machine == "x86_64":
        for number in rules.STRAY_X32:
            yield rules.ENOSYS, number, ()


def strict_numbers(machine: str) -> tuple[set[int], set[int]]:
    """Numbers that ``strict`` passes on to the ``default`` rules, and those it answers with EPERM."""
    allowed = {call_number(name, machine) for group in rules.STRICT_ALLOW for name in group.split()}
    denied = {call_number(name, machine) for _reason, names in rules.STRICT_DENY for name in names.split()}
    return {n for n in allowed if n is not None}, {n for n in denied if n is not None}


def _allow_list(binding: Any, machine: str, rows: list[Row]) -> bytes:
    """The first half of ``strict``. Calls with a ``default`` rule pass: that rule has the better errno."""
    from stockade.sandbox import bpf

    allowed, denied = strict_numbers(machine)
    passed = allowed | {number for _errno, number, _when in rows}
    listed = [(bpf.ALLOW, number, ()) for number in sorted(passed)]
    listed += [(bpf.ERRNO | rules.EPERM, number, ()) for number in sorted(denied)]
    return _compile(binding, bpf.ERRNO | rules.ENOSYS, listed)


def _compile(binding: Any, otherwise: int, rows: list[tuple[int, int, Any]]) -> bytes:
    try:
        built = binding.SyscallFilter(otherwise)
        built.set_attr(binding.Attr.ACT_BADARCH, binding.KILL_PROCESS)
        try:
            built.set_attr(binding.Attr.CTL_OPTIMIZE, 2)
        except OSError:
            pass  # before 2.5 there is no binary tree: the same filter, a little slower
        for action, number, when in rows:
            built.add_rule_exactly(action, number, *[_argument(binding, part) for part in when])
        return _exported(built)
    except OSError as error:
        _unavailable(f"libseccomp refused it: {error.strerror}", "update libseccomp to 2.5 or later", error)


def _argument(binding: Any, condition: Condition) -> Any:
    index, operator, value, mask = condition
    if operator == "&":
        return binding.Arg(index, binding.MASKED_EQ, mask, value)
    return binding.Arg(index, {">": binding.GT, "!=": binding.NE}[operator], value)


def _exported(built: Any) -> bytes:
    with os.fdopen(os.memfd_create("stockade-seccomp", os.MFD_CLOEXEC), "rb") as file:
        built.export_bpf(file)
        file.seek(0)
        return file.read()


def _check(kind: str, machine: str, program: bytes) -> None:
    """Ask the program about every row: a library with a defect must not mean a filter with a hole."""
    from stockade.sandbox import bpf

    for arch, number, args, wanted in _samples(kind, machine):
        got = bpf.simulate(program, arch, number, args)
        if got != wanted:
            _unavailable(
                f"libseccomp's program answers {bpf.action_text(got)} to call {number}"
                f" where the rules say {bpf.action_text(wanted)}",
                "update libseccomp to 2.5 or later",
            )


def _samples(kind: str, machine: str) -> Iterator[tuple[int, int, tuple[int, ...], int]]:
    """Architecture, number and arguments of calls, one per rule, and what must become of each."""
    from stockade.sandbox import bpf

    arch = rules.ARCHES[machine]
    rows = list(deny_rows(machine))
    for errno, number, when in rows:
        yield arch, number, _matching(when), bpf.ERRNO | errno
    yield arch ^ 0x80000000, 1, (), bpf.KILL_PROCESS
    if machine == "x86_64":
        yield arch, 0x40000001, (), bpf.KILL_PROCESS
    if kind == "strict":
        allowed, denied = strict_numbers(machine)
        ruled = {number for _errno, number, _when in rows}
        yield from ((arch, number, (), bpf.ALLOW) for number in allowed - ruled)
        yield from ((arch, number, (), bpf.ERRNO | rules.EPERM) for number in denied)
    yield arch, 100000, (), bpf.ERRNO | rules.ENOSYS if kind == "strict" else bpf.ALLOW


def _matching(when: tuple[Condition, ...]) -> tuple[int, ...]:
    """Arguments that meet every condition."""
    args = [0] * 6
    for index, operator, value, _mask in when:
        args[index] = value if operator == "&" else value + 1
    return tuple(args)
