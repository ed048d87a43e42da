"""Classic BPF as seccomp uses it: decode, print, run and join programs (pure).

Lets a compiled filter be checked call by call without a kernel. It must not know any rule: those are data in
``seccomp_rules``, and ``seccomp`` compiles them.
"""

from __future__ import annotations

import functools
import struct

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

KILL_PROCESS = 0x80000000
KILL_THREAD = 0x00000000
TRAP = 0x00030000
ERRNO = 0x00050000
LOG = 0x7FFC0000
ALLOW = 0x7FFF0000

SIZE = 8
MAX_INSTRUCTIONS = 4096
_WORD = 0xFFFFFFFF
_DATA_SIZE = 64

_LD_ABS, _LD_LEN, _LD_IMM, _LD_MEM = 0x20, 0x80, 0x00, 0x60
_LDX_LEN, _LDX_IMM, _LDX_MEM = 0x81, 0x01, 0x61
_ST, _STX, _TAX, _TXA = 0x02, 0x03, 0x07, 0x87
_RET_K, _RET_A, _JA = 0x06, 0x16, 0x05
_CLASS, _SOURCE_X = 0x07, 0x08
_CLASS_ALU, _CLASS_JUMP = 0x04, 0x05

_JUMPS = {0x10: "jeq", 0x20: "jgt", 0x30: "jge", 0x40: "jset"}
_SUMS = {
    **{0x00: "add", 0x10: "sub", 0x20: "mul", 0x30: "div", 0x40: "or"},
    **{0x50: "and", 0x60: "lsh", 0x70: "rsh", 0x80: "neg", 0xA0: "xor"},
}
_MEANING: dict[str, Callable[[int, int], int]] = {
    "jeq": lambda a, b: a == b,
    "jgt": lambda a, b: a > b,
    "jge": lambda a, b: a >= b,
    "jset": lambda a, b: a & b != 0,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a // b if b else 0,
    "or": lambda a, b: a | b,
    "and": lambda a, b: a & b,
    "lsh": lambda a, b: a << (b & 31),
    "rsh": lambda a, b: a >> (b & 31),
    "neg": lambda a, _b: -a,
    "xor": lambda a, b: a ^ b,
}
_MOVES = {
    _LD_IMM: "ld #{k:#x}",
    _LD_ABS: "ld {field}",
    _LD_LEN: "ld #len",
    _LD_MEM: "ld M[{k}]",
    _LDX_IMM: "ldx #{k:#x}",
    _LDX_LEN: "ldx #len",
    _LDX_MEM: "ldx M[{k}]",
    _ST: "st M[{k}]",
    _STX: "stx M[{k}]",
    _TAX: "tax",
    _TXA: "txa",
    _RET_A: "ret A",
}


class Instruction(Record):
    """One instruction: operation, relative jumps when true and false, and a constant."""

    code: int
    jt: int
    jf: int
    k: int


class BadProgram(ValueError):
    """The bytes are no program that the kernel would take as a filter."""


@functools.lru_cache(maxsize=8)
def decode(program: bytes) -> tuple[Instruction, ...]:
    """The instructions of a little-endian program. ``BadProgram`` when the length is wrong."""
    if not program or len(program) % SIZE or len(program) > SIZE * MAX_INSTRUCTIONS:
        raise BadProgram(
            f"a filter is 1 to {MAX_INSTRUCTIONS} instructions of {SIZE} bytes, not {len(program)} bytes"
        )
    return tuple(Instruction(*fields) for fields in struct.iter_unpack("<HBBI", program))


def encode(instructions: Sequence[Instruction]) -> bytes:
    """The inverse of ``decode``."""
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)


def simulate(program: bytes, arch: int, nr: int, args: tuple[int, ...] = ()) -> int:
    """What the kernel would do about one call: the SECCOMP_RET value the program returns.

    ``arch`` is an AUDIT_ARCH, ``nr`` the call's number, ``args`` up to six 64-bit arguments (missing ones are 0).
    Raises ``BadProgram`` where the kernel would have refused to load the program.
    """
    padded = [*args, 0, 0, 0, 0, 0, 0][:6]
    fields = [arg & 0xFFFFFFFFFFFFFFFF for arg in padded]
    data = struct.pack("<IIQ6Q", nr & _WORD, arch & _WORD, 0, *fields)
    return _Machine(decode(program), data).run()


class _Machine:
    """The registers of one run."""

    def __init__(self, code: tuple[Instruction, ...], data: bytes) -> None:
        self.code, self.data = code, data
        self.a = self.x = self.at = 0
        self.memory = [0] * 16

    def run(self) -> int:
        # Jumps only go forward, so this ends.
        while self.at < len(self.code):
            op = self.code[self.at]
            self.at += 1
            if op.code in (_RET_K, _RET_A):
                return op.k if op.code == _RET_K else self.a
            self.step(op)
        raise BadProgram("the program runs past its end")

    def step(self, op: Instruction) -> None:
        kind, operand = op.code & _CLASS, self.x if op.code & _SOURCE_X else op.k
        if op.code == _JA:
            self.at += op.k
        elif kind == _CLASS_JUMP:
            taken = _MEANING[_mnemonic(_JUMPS, op)](self.a, operand)
            self.at += op.jt if taken else op.jf
        elif kind == _CLASS_ALU:
            self.a = _MEANING[_mnemonic(_SUMS, op)](self.a, operand) & _WORD
        else:
            self.move(op)

    def move(self, op: Instruction) -> None:
        if op.code in (_TAX, _LDX_IMM, _LDX_LEN, _LDX_MEM):
            self.x = self.a if op.code == _TAX else self.value(op)
        elif op.code in (_ST, _STX):
            self.memory[_slot(op)] = self.a if op.code == _ST else self.x
        else:
            self.a = self.x if op.code == _TXA else self.value(op)

    def value(self, op: Instruction) -> int:
        if op.code in (_LD_IMM, _LDX_IMM):
            return op.k
        if op.code in (_LD_LEN, _LDX_LEN):
            return _DATA_SIZE
        if op.code in (_LD_MEM, _LDX_MEM):
            return self.memory[_slot(op)]
        if op.code == _LD_ABS and op.k % 4 == 0 and op.k < _DATA_SIZE:
            return int.from_bytes(self.data[op.k : op.k + 4], "little")
        raise BadProgram(f"no filter may use {op}")


def _slot(op: Instruction) -> int:
    if op.k >= 16:
        raise BadProgram(f"no such memory cell: {op}")
    return op.k


def _mnemonic(table: dict[int, str], op: Instruction) -> str:
    found = table.get(op.code & 0xF0)
    if found is None or op.code & ~0xFF:
        raise BadProgram(f"no filter may use {op}")
    return found


def chain(first: bytes, second: bytes) -> bytes:
    """One program that asks ``first`` and, where that would allow the call, lets ``second`` decide.

    Every "return ALLOW" of ``first`` becomes a jump (their offsets have 32 bits) to the start of ``second``,
    which begins with its own loads and so needs nothing from the registers.
    """
    head = decode(first)
    onward = [
        Instruction(_JA, 0, 0, len(head) - at - 1) if (op.code, op.k) == (_RET_K, ALLOW) else op
        for at, op in enumerate(head)
    ]
    joined = encode(onward) + second
    decode(joined)
    return joined


def action_text(value: int) -> str:
    """A SECCOMP_RET value in words: ``allow``, ``errno 1``, ``kill process`` ..."""
    if value & 0xFFFF0000 == ERRNO:
        return f"errno {value & 0xFFFF}"
    names = {ALLOW: "allow", KILL_PROCESS: "kill process", KILL_THREAD: "kill thread", TRAP: "trap", LOG: "log"}
    return names.get(value & 0xFFFF0000, f"{value:#010x}")


def render(program: bytes) -> str:
    """The program as text, one numbered instruction a line, jumps with absolute targets."""
    return "\n".join(f"{at:4}  {_line(at, op)}" for at, op in enumerate(decode(program)))


def _line(at: int, op: Instruction) -> str:
    operand = "x" if op.code & _SOURCE_X else f"#{op.k:#x}"
    if op.code == _RET_K:
        return f"ret {action_text(op.k)}"
    if op.code == _JA:
        return f"ja {at + 1 + op.k}"
    if op.code & _CLASS == _CLASS_JUMP:
        return f"{_mnemonic(_JUMPS, op)} {operand} ? {at + 1 + op.jt} : {at + 1 + op.jf}"
    if op.code & _CLASS == _CLASS_ALU:
        return f"{_mnemonic(_SUMS, op)} {operand}"
    form = _MOVES.get(op.code)
    if form is None:
        raise BadProgram(f"no filter may use {op}")
    return form.format(k=op.k, field=_field(op.k))


def _field(offset: int) -> str:
    if offset >= 16:
        return f"arg{(offset - 16) // 8}.{'high' if offset % 8 else 'low'}"
    return {0: "nr", 4: "arch", 8: "ip.low", 12: "ip.high"}.get(offset, f"[{offset}]")
