"""The interpreter for filter programs: small programs with known answers, and joining two of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.sandbox import bpf
from stockade.sandbox.bpf import Instruction

ARCH = 0xC000003E
LD_NR, LD_ARCH, LD_ARG0_LOW, LD_ARG0_HIGH, LD_ARG5_HIGH = (Instruction(0x20, 0, 0, k) for k in (0, 4, 16, 20, 60))
RET_A = Instruction(0x16, 0, 0, 0)


def ret(value: int) -> Instruction:
    return Instruction(0x06, 0, 0, value)


def run(*code: Instruction, nr: int = 7, args: tuple[int, ...] = ()) -> int:
    return bpf.simulate(bpf.encode(code), ARCH, nr, args)


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ([ret(5)], 5),
        ([LD_NR, RET_A], 7),
        ([LD_ARCH, RET_A], ARCH),
        ([LD_ARG0_LOW, RET_A], 0x55667788),
        ([LD_ARG0_HIGH, RET_A], 0x11223344),
        ([LD_ARG5_HIGH, RET_A], 0),
        ([Instruction(0x80, 0, 0, 0), RET_A], 64),
        ([Instruction(0x05, 0, 0, 1), ret(1), ret(2)], 2),
        ([Instruction(0x00, 0, 0, 9), Instruction(0x02, 0, 0, 3), LD_NR, Instruction(0x60, 0, 0, 3), RET_A], 9),
        ([Instruction(0x01, 0, 0, 9), Instruction(0x87, 0, 0, 0), RET_A], 9),
        ([LD_NR, Instruction(0x07, 0, 0, 0), Instruction(0x0C, 0, 0, 0), RET_A], 14),
        ([LD_NR, Instruction(0x07, 0, 0, 0), Instruction(0x03, 0, 0, 0), Instruction(0x61, 0, 0, 0), RET_A], 7),
        ([Instruction(0x81, 0, 0, 0), Instruction(0x87, 0, 0, 0), RET_A], 64),
    ],
)
def test_moves(code: list[Instruction], answer: int) -> None:
    assert run(*code, args=(0x1122334455667788,)) == answer


@pytest.mark.parametrize(
    ("code", "k", "taken"),
    [
        (0x15, 7, True),
        (0x15, 8, False),
        (0x25, 6, True),
        (0x25, 7, False),
        (0x35, 7, True),
        (0x35, 8, False),
        (0x45, 4, True),
        (0x45, 8, False),
    ],
)
def test_jumps(code: int, k: int, *, taken: bool) -> None:
    assert run(LD_NR, Instruction(code, 0, 1, k), ret(1), ret(2)) == (1 if taken else 2)


@pytest.mark.parametrize(
    ("code", "k", "answer"),
    [
        (0x04, 0xFFFFFFFF, 6),
        (0x14, 8, 0xFFFFFFFF),
        (0x24, 3, 21),
        (0x34, 2, 3),
        (0x34, 0, 0),
        (0x44, 8, 15),
        (0x54, 3, 3),
        (0x64, 4, 0x70),
        (0x74, 1, 3),
        (0x84, 0, 0xFFFFFFF9),
        (0xA4, 1, 6),
    ],
)
def test_sums(code: int, k: int, answer: int) -> None:
    assert run(LD_NR, Instruction(code, 0, 0, k), RET_A) == answer


@pytest.mark.parametrize(
    "program",
    [
        b"",
        b"1234567",
        bytes(8 * 4097),
        bpf.encode([LD_NR]),
        bpf.encode([Instruction(0x20, 0, 0, 2), RET_A]),
        bpf.encode([Instruction(0x20, 0, 0, 64), RET_A]),
        bpf.encode([Instruction(0x30, 0, 0, 0), RET_A]),
        bpf.encode([Instruction(0x60, 0, 0, 16), RET_A]),
        bpf.encode([Instruction(0x55, 0, 0, 0), RET_A]),
        bpf.encode([Instruction(0x94, 0, 0, 0), RET_A]),
        bpf.encode([Instruction(0x105, 0, 0, 0), RET_A]),
        bpf.encode([Instruction(0x05, 0, 0, 9), RET_A]),
    ],
)
def test_what_the_kernel_would_refuse_is_refused(program: bytes) -> None:
    with pytest.raises(bpf.BadProgram):
        bpf.simulate(program, ARCH, 0)


words = st.integers(0, 0xFFFFFFFF)
instructions = st.builds(Instruction, st.integers(0, 0xFFFF), st.integers(0, 255), st.integers(0, 255), words)


@given(st.lists(instructions, min_size=1, max_size=20))
def test_decode_is_the_inverse_of_encode(code: list[Instruction]) -> None:
    assert list(bpf.decode(bpf.encode(code))) == code


@given(st.binary(max_size=64), words, st.integers(0, 600), st.lists(st.integers(0, 2**64 - 1), max_size=6))
def test_any_bytes_end_in_an_answer_or_a_refusal(program: bytes, arch: int, nr: int, args: list[int]) -> None:
    try:
        assert 0 <= bpf.simulate(program, arch, nr, tuple(args)) <= 0xFFFFFFFF
        bpf.render(program)
    except bpf.BadProgram:
        pass


def table(answers: dict[int, int], otherwise: int) -> bytes:
    """A program that answers by the number of the call."""
    code = [LD_NR]
    for nr, value in answers.items():
        code += [Instruction(0x15, 0, 1, nr), ret(value)]
    return bpf.encode([*code, ret(otherwise)])


verdicts = st.sampled_from([bpf.ALLOW, bpf.KILL_PROCESS, bpf.ERRNO | 1, bpf.ERRNO | 38])
tables = st.builds(table, st.dictionaries(st.integers(0, 5), verdicts), verdicts)


@given(tables, tables)
def test_a_chain_allows_what_both_allow_and_the_first_refusal_counts(first: bytes, second: bytes) -> None:
    joined = bpf.chain(first, second)
    for nr in range(7):
        verdict = bpf.simulate(first, ARCH, nr)
        assert bpf.simulate(joined, ARCH, nr) == (
            bpf.simulate(second, ARCH, nr) if verdict == bpf.ALLOW else verdict
        )


def test_a_chain_longer_than_the_kernel_takes_is_refused() -> None:
    half = bpf.encode([ret(bpf.ALLOW)] * 2100)
    with pytest.raises(bpf.BadProgram):
        bpf.chain(half, half)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (bpf.ALLOW, "allow"),
        (bpf.ERRNO | 97, "errno 97"),
        (bpf.KILL_PROCESS, "kill process"),
        (bpf.KILL_THREAD, "kill thread"),
        (0x12340000, "0x12340000"),
    ],
)
def test_actions_in_words(value: int, text: str) -> None:
    assert bpf.action_text(value) == text


def test_render() -> None:
    code = [LD_ARG0_HIGH, Instruction(0x54, 0, 0, 15), Instruction(0x15, 0, 1, 2), ret(bpf.ERRNO | 1)]
    text = bpf.render(bpf.encode([*code, Instruction(0x05, 0, 0, 0), ret(bpf.ALLOW)]))
    assert [line.split(None, 1)[1] for line in text.splitlines()] == [
        "ld arg0.high",
        "and #0xf",
        "jeq #0x2 ? 3 : 4",
        "ret errno 1",
        "ja 5",
        "ret allow",
    ]
