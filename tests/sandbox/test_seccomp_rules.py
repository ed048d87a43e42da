"""The compiled filters against the tables, for every call that libseccomp knows, without a kernel."""

from __future__ import annotations

import os

import pyseccomp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.sandbox import bpf, seccomp
from stockade.sandbox import seccomp_rules as rules

MACHINE = os.uname().machine
ARCH = rules.ARCHES.get(MACHINE, 0)
DEFAULT = seccomp.filter_program("default")
STRICT = seccomp.filter_program("strict")
LAST_COMMON = rules.FIRST_COMMON + len(rules.COMMON.split()) - 1

DENIED = {name: errno for errno, _reason, names in rules.DENY for name in names.split()}
GUARDED = {name for name, *_rest in rules.DENY_WHEN}
STRICT_ALLOWED = [name for group in rules.STRICT_ALLOW for name in group.split()]
STRICT_DENIED = [name for _reason, names in rules.STRICT_DENY for name in names.split()]

NEW_NAMESPACE = 0x7E020000
EPERM, ENOSYS, EAFNOSUPPORT = bpf.ERRNO | 1, bpf.ERRNO | 38, bpf.ERRNO | 97


def known_calls(machine: str) -> dict[int, str]:
    """Everything this libseccomp can name, by number."""
    found = {}
    for number in range(1024):
        try:
            found[number] = pyseccomp.resolve_syscall(rules.ARCHES[machine], number).decode()
        except ValueError:
            continue
    return found


def number_of(name: str) -> int:
    number = seccomp.call_number(name, MACHINE)
    assert number is not None
    return number


def ask(program: bytes, name: str, *args: int) -> int:
    return bpf.simulate(program, ARCH, number_of(name), args)


# --- the tables --------------------------------------------------------------------------------------------


def test_no_call_is_in_two_tables() -> None:
    listed = [*(name for _e, _r, names in rules.DENY for name in names.split()), *STRICT_ALLOWED, *STRICT_DENIED]
    assert sorted(listed) == sorted(set(listed))
    assert set(STRICT_ALLOWED) >= GUARDED


@pytest.mark.parametrize("machine", rules.ARCHES)
def test_strict_has_an_opinion_on_every_known_call(machine: str) -> None:
    known = {name for number, name in known_calls(machine).items() if number <= LAST_COMMON}
    assert len(known) > 300
    assert sorted(known - set(DENIED) - set(STRICT_ALLOWED) - set(STRICT_DENIED)) == []


@pytest.mark.parametrize("machine", rules.ARCHES)
def test_the_common_numbers_are_those_of_libseccomp(machine: str) -> None:
    compared = 0
    for offset, name in enumerate(rules.COMMON.split()):
        number = pyseccomp.resolve_syscall(rules.ARCHES[machine], name)
        compared += number >= 0
        assert number in (-1, rules.FIRST_COMMON + offset), name
        assert seccomp.call_number(name, machine) == rules.FIRST_COMMON + offset
    assert compared >= 20


ONLY_32_BIT = {"clock_settime64", "clock_adjtime64", "stime", "umount", "vm86", "vm86old", "bdflush"}
ONLY_X86 = {"iopl", "ioperm", "modify_ldt", "epoll_ctl_old", "epoll_wait_old", "tuxcall", "security", "vserver"}
BEFORE_2011 = {
    "_sysctl",
    "afs_syscall",
    "create_module",
    "get_kernel_syms",
    "getpmsg",
    "putpmsg",
    "query_module",
    "chmod",
    "creat",
    "mknod",
    "open",
}
ABSENT = {
    "x86_64": {*ONLY_32_BIT, "pciconfig_read", "pciconfig_write"},
    "aarch64": {
        *ONLY_32_BIT,
        *ONLY_X86,
        *BEFORE_2011,
        "pciconfig_read",
        "pciconfig_write",
        "sysfs",
        "uselib",
        "ustat",
    },
    "riscv64": {
        *ONLY_32_BIT,
        *ONLY_X86,
        *BEFORE_2011,
        "pciconfig_read",
        "pciconfig_write",
        "sysfs",
        "uselib",
        "ustat",
    },
}


@pytest.mark.parametrize("machine", rules.ARCHES)
def test_rules_are_left_out_only_where_the_call_does_not_exist(machine: str) -> None:
    names = {*DENIED, *GUARDED}
    assert {name for name in names if seccomp.call_number(name, machine) is None} == ABSENT[machine]


# --- every call --------------------------------------------------------------------------------------------


def wanted_default(number: int, name: str | None) -> int:
    """What a call with all arguments 0 deserves."""
    if name in DENIED:
        return bpf.ERRNO | DENIED[name]
    if name in ("socket", "socketpair"):
        return EAFNOSUPPORT
    return ENOSYS if MACHINE == "x86_64" and 512 <= number < 548 else bpf.ALLOW


def wanted_strict(number: int, name: str | None) -> int:
    first = wanted_default(number, name)
    if first != bpf.ALLOW or name in STRICT_ALLOWED:
        return first
    return EPERM if name in STRICT_DENIED else ENOSYS


def all_numbers() -> dict[int, str | None]:
    """0 to 1023 with a name where libseccomp or the tables have one."""
    common = {rules.FIRST_COMMON + at: name for at, name in enumerate(rules.COMMON.split())}
    only = {number: name for name, number in rules.ARCH_ONLY.get(MACHINE, {}).items()}
    named = {**known_calls(MACHINE), **common, **only}
    return {number: named.get(number) for number in range(1024)}


@pytest.mark.parametrize(("program", "wanted"), [(DEFAULT, wanted_default), (STRICT, wanted_strict)])
def test_every_call_gets_what_the_tables_say(program: bytes, wanted: object) -> None:
    assert callable(wanted)
    got = {number: bpf.simulate(program, ARCH, number) for number in all_numbers()}
    assert got == {number: wanted(number, name) for number, name in all_numbers().items()}
    assert set(got.values()) == {bpf.ALLOW, EPERM, ENOSYS, EAFNOSUPPORT}


@pytest.mark.parametrize("program", [DEFAULT, STRICT])
@pytest.mark.parametrize(
    "arch", [0x40000003, 0x40000028, 0xC000003E, 0xC00000B7, 0xC00000F3, 0xC0000015, 0x80000016, 0]
)
def test_calls_of_another_architecture_kill(program: bytes, arch: int) -> None:
    verdicts = {bpf.simulate(program, arch, number) for number in range(600)}
    assert (verdicts == {bpf.KILL_PROCESS}) == (arch != ARCH)


@pytest.mark.parametrize("program", [DEFAULT, STRICT])
def test_x32_calls_kill(program: bytes) -> None:
    if MACHINE != "x86_64":
        assert bpf.simulate(program, ARCH, 0x40000000) == bpf.simulate(program, ARCH, 1023)
        return
    verdicts = {bpf.simulate(program, ARCH, 0x40000000 | number) for number in range(1024)}
    assert verdicts == {bpf.KILL_PROCESS}
    assert bpf.simulate(program, ARCH, 0x7FFFFFFF) == bpf.KILL_PROCESS
    assert bpf.simulate(program, ARCH, 0x80000001) == bpf.KILL_PROCESS


# --- arguments ---------------------------------------------------------------------------------------------

both = pytest.mark.parametrize("program", [DEFAULT, STRICT], ids=["default", "strict"])
HIGH = 1 << 32
longs = st.integers(0, 2**64 - 1)
near_bits = st.builds(lambda bit, rest: (1 << bit) | rest, st.integers(0, 63), st.integers(0, 255))


@both
@given(family=st.one_of(st.integers(0, 50), longs), kind=st.one_of(st.integers(0, 11), longs), protocol=longs)
def test_socket(program: bytes, family: int, kind: int, protocol: int) -> None:
    """What the kernel would see as a family that isn't namespaced never passes; the usual ones always do."""
    got = ask(program, "socket", family, kind, protocol)
    low = family & 0xFFFFFFFF
    packet = low == 2 and kind & 0xF == 10
    if low not in (1, 2, 10, 16) or packet or (low == 16 and protocol & 0xFFFFFFFF):
        assert got == EAFNOSUPPORT
    elif family == low and (low != 16 or protocol == 0):
        assert got == bpf.ALLOW


@both
@pytest.mark.parametrize(
    ("args", "verdict"),
    [
        ((1, 1, 0), bpf.ALLOW),
        ((2, 1, 6), bpf.ALLOW),
        ((2, 0x80802, 17), bpf.ALLOW),
        ((10, 3, 58), bpf.ALLOW),
        ((16, 3, 0), bpf.ALLOW),
        ((16, 3, 9), EAFNOSUPPORT),
        ((16 | HIGH, 3, 9), EAFNOSUPPORT),
        ((16, 3, 0 | HIGH), EAFNOSUPPORT),
        ((17, 3, 0), EAFNOSUPPORT),
        ((17 | HIGH, 3, 0), EAFNOSUPPORT),
        ((38, 5, 0), EAFNOSUPPORT),
        ((40, 1, 0), EAFNOSUPPORT),
        ((2, 10, 0), EAFNOSUPPORT),
        ((2 | HIGH, 10, 0), EAFNOSUPPORT),
        ((2, 0x8000A | HIGH, 0), EAFNOSUPPORT),
        ((0xFFFFFFFF, 1, 0), EAFNOSUPPORT),
    ],
)
def test_socket_by_example(program: bytes, args: tuple[int, ...], verdict: int) -> None:
    assert ask(program, "socket", *args) == verdict


@both
@given(family=st.one_of(st.integers(0, 50), longs))
def test_socketpair(program: bytes, family: int) -> None:
    assert ask(program, "socketpair", family, 1, 0) == (bpf.ALLOW if family == 1 else EAFNOSUPPORT)


@both
@given(
    fd=longs,
    request=st.one_of(st.sampled_from([0x5401, 0x5411, 0x5412, 0x5413, 0x541B, 0x541C]), longs),
    high=longs,
)
def test_ioctl(program: bytes, fd: int, request: int, high: int) -> None:
    for tried in (request, (high & ~0xFFFFFFFF) | (request & 0xFFFFFFFF)):
        refused = tried & 0xFFFFFFFF in (0x5412, 0x541C)
        assert ask(program, "ioctl", fd, tried) == (EPERM if refused else bpf.ALLOW)


@both
@given(flags=st.one_of(longs, near_bits))
def test_clone(program: bytes, flags: int) -> None:
    assert ask(program, "clone", flags) == (EPERM if flags & NEW_NAMESPACE else bpf.ALLOW)


@both
@given(flags=st.one_of(longs, near_bits))
def test_unshare(program: bytes, flags: int) -> None:
    assert ask(program, "unshare", flags) == (EPERM if flags & (NEW_NAMESPACE | 0x80) else bpf.ALLOW)


@both
def test_a_thread_and_a_fork_are_no_namespace(program: bytes) -> None:
    assert ask(program, "clone", 0x003D0F00) == bpf.ALLOW
    assert ask(program, "clone", 0x01200011) == bpf.ALLOW
    assert ask(program, "unshare", 0x00000400) == bpf.ALLOW


@given(number=st.integers(0, 0x3FFFFFFF), args=st.lists(longs, max_size=6))
def test_strict_never_allows_more_than_default(number: int, args: list[int]) -> None:
    strict = bpf.simulate(STRICT, ARCH, number, tuple(args))
    assert strict == bpf.simulate(DEFAULT, ARCH, number, tuple(args)) or strict != bpf.ALLOW


@both
def test_the_program_fits_the_kernel(program: bytes) -> None:
    assert len(bpf.decode(program)) < 1500
    assert bpf.render(program).count("\n") + 1 == len(program) // 8
