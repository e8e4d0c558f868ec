"""x86-64 instructions, as far as their operands in memory go: enough to see at which offsets a short function of a compiler's reads.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, appendix A (opcode maps) and 2.1 (encoding). What is
not known ends the listing; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Optional

RIP = 16
"""`base` of an operand that is relative to the next instruction."""

CALL, JUMP, JUMP_SHORT = 0xE8, 0xE9, 0xEB
OTHER = 0x90
"""nop, and any instruction of a listing that was not made of the bytes which nobody asks for."""


class Instruction(NamedTuple):
    """`opcode` is 0x0Fxx for the two-byte map, 0x0F38xx and 0x0F3Axx for the three-byte maps. `reg`, `base` and `scaled` (the index) are
    register numbers (-1: none); with `base` RIP, `displacement` is the address itself. `displacement` is None where the operand is a
    register; `rm` is that register. `wide`: 64-bit operands; `fs`: the operand is relative to the thread pointer. `target`: of a direct
    call or jump. `locked`: it has the prefix that makes it atomic."""

    address: int
    length: int
    opcode: int
    reg: int = -1
    rm: int = -1
    base: int = -1
    scaled: int = -1
    displacement: Optional[int] = None
    immediate: Optional[int] = None
    wide: bool = False
    fs: bool = False
    target: Optional[int] = None
    locked: bool = False

    @property
    def loads(self) -> bool:
        """mov register, [memory]"""
        return self.opcode == 0x8B and self.displacement is not None


def instructions(code: bytes, address: int) -> Iterator[Instruction]:
    """The instructions of `code`, which stands at `address`, up to the first that is not known or not whole."""
    at = 0
    while at < len(code):
        try:
            made = _one(code, at, address + at)
        except IndexError:
            return
        if made is None:
            return
        yield made
        at += made.length


_PREFIXES = frozenset((0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3))
_NO_MODRM = frozenset(
    (*range(0x50, 0x60), *range(0x90, 0x9A), *range(0x9B, 0xA0), *range(0xA4, 0xA8), *range(0xAA, 0xB0), 0xC3, 0xC9, 0xCC, 0xF4, 0xFC, 0xFD)
)
_WITH_MODRM = frozenset(
    (
        *(high | low for high in range(0, 0x40, 8) for low in range(4)),
        *(0x63, 0x69, 0x6B, 0x80, 0x81, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8B, 0x8D, 0x8F),
        *(0xC0, 0xC1, 0xC6, 0xC7, *range(0xD0, 0xD4), *range(0xD8, 0xE0), 0xF6, 0xF7, 0xFE, 0xFF),
    )
)
_IMMEDIATE = {0x69: 4, 0x6B: 1, 0x80: 1, 0x81: 4, 0x83: 1, 0xC0: 1, 0xC1: 1, 0xC6: 1, 0xC7: 4}
_TWO_MODRM = frozenset(
    (
        *(*range(0x10, 0x19), 0x1E, 0x1F, *range(0x28, 0x30), *range(0x40, 0x77), *range(0x78, 0x80), *range(0x90, 0xA0)),
        *(*range(0xA3, 0xA6), *range(0xAB, 0xB2), 0xB3, 0xB6, 0xB7, *range(0xBA, 0xC8), *range(0xD0, 0x100)),
    )
)
_TWO_PLAIN = frozenset((0x05, 0x0B, 0x31, 0x77, 0xA2, *range(0xC8, 0xD0)))
_TWO_IMMEDIATE = frozenset((0x70, 0x71, 0x72, 0x73, 0xA4, 0xAC, 0xBA, 0xC2, 0xC4, 0xC5, 0xC6))


def _one(code: bytes, at: int, address: int) -> Optional[Instruction]:
    start, rex = at, 0
    while code[at] in _PREFIXES:
        at += 1
    prefixes = code[start:at]
    fs, narrow, locked = 0x64 in prefixes, 0x66 in prefixes, 0xF0 in prefixes
    if code[at] & 0xF0 == 0x40:
        rex = code[at]
        at += 1
    opcode = code[at]
    at += 1
    wide = bool(rex & 8)
    if opcode == 0x0F:
        second = code[at]
        at += 1
        opcode = 0x0F00 | second
        if 0x80 <= second <= 0x8F:
            return _branch(code, start, at, address, opcode, 4)
        if second in _TWO_PLAIN:
            return Instruction(address, at - start, opcode)
        if second in (0x38, 0x3A):
            return _operands(code, start, at + 1, address, opcode << 8 | code[at], rex, fs, locked, 1 if second == 0x3A else 0)
        if second not in _TWO_MODRM:
            return None
        return _operands(code, start, at, address, opcode, rex, fs, locked, 1 if second in _TWO_IMMEDIATE else 0)
    if opcode in (CALL, JUMP):
        return _branch(code, start, at, address, opcode, 4)
    if opcode == JUMP_SHORT or 0x70 <= opcode <= 0x7F or 0xE0 <= opcode <= 0xE3:
        return _branch(code, start, at, address, opcode, 1)
    if 0xB8 <= opcode <= 0xBF:
        size = 8 if wide else 2 if narrow else 4
        value = int.from_bytes(code[at : at + size], "little")
        register = opcode - 0xB8 | (rex & 1) << 3
        return Instruction(address, at + size - start, 0xB8, rm=register, immediate=value, wide=wide) if at + size <= len(code) else None
    if opcode == 0xA8 or 0xB0 <= opcode <= 0xB7:
        return Instruction(address, at + 1 - start, opcode, immediate=code[at])
    if opcode in _NO_MODRM:
        popped = opcode & 7 | (rex & 1) << 3 if 0x58 <= opcode < 0x60 else -1
        return Instruction(address, at - start, opcode, rm=popped)
    if opcode in (0x6A, *(high | 4 for high in range(0, 0x40, 8))):
        return Instruction(address, at + 1 - start, opcode, immediate=code[at])
    if opcode in (0xA9, 0x68, *(high | 5 for high in range(0, 0x40, 8))):
        return Instruction(address, at + (2 if narrow else 4) - start, opcode)
    if opcode not in _WITH_MODRM or (opcode in (0xC6, 0xC7) and code[at] & 0x38):  # xabort, xbegin
        return None
    size = _IMMEDIATE.get(opcode, 0)
    if opcode in (0xF6, 0xF7) and code[at] >> 3 & 7 < 2:
        size = 1 if opcode == 0xF6 else 4
    return _operands(code, start, at, address, opcode, rex, fs, locked, 2 if narrow and size == 4 else size)


def _branch(code: bytes, start: int, at: int, address: int, opcode: int, size: int) -> Optional[Instruction]:
    end = at + size
    if end > len(code):
        return None
    distance = int.from_bytes(code[at:end], "little", signed=True)
    return Instruction(address, end - start, opcode, target=address + end - start + distance)


def _operands(
    code: bytes, start: int, at: int, address: int, opcode: int, rex: int, fs: bool, locked: bool, immediate: int
) -> Optional[Instruction]:
    modrm = code[at]
    at += 1
    mode, reg, rm = modrm >> 6, modrm >> 3 & 7 | (rex & 4) << 1, modrm & 7
    base = index = register = -1
    displacement: Optional[int] = None
    size = {0: 0, 1: 1, 2: 4, 3: 0}[mode]
    if mode == 3:
        register = rm | (rex & 1) << 3
    else:
        displacement = 0
        if rm == 4:
            sib = code[at]
            at += 1
            index = sib >> 3 & 7 | (rex & 2) << 2
            index = -1 if index == 4 else index
            base = sib & 7 | (rex & 1) << 3
            if sib & 7 == 5 and mode == 0:
                base, size = -1, 4
        elif rm == 5 and mode == 0:
            base, size = RIP, 4
        else:
            base = rm | (rex & 1) << 3
        if size:
            displacement = int.from_bytes(code[at : at + size], "little", signed=True)
            at += size
    value = int.from_bytes(code[at : at + immediate], "little", signed=True) if immediate else None
    at += immediate
    if at > len(code):
        return None
    if base == RIP and displacement is not None:
        displacement += address + at - start
    place = (base, index, displacement)
    return Instruction(address, at - start, opcode, reg, register, *place, value, bool(rex & 8), fs, locked=locked)
