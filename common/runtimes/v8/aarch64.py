"""AArch64 instructions in the words of decode.py: what is read and written at which distance from where, so that the same questions can
be asked of a function on both architectures.

A far offset takes several instructions here (`add x0, x0, #8, lsl #12` and `ldr x3, [x0, #25544]`), and a product may be sums of shifted
values. So the listing keeps, for each register, what it is a sum of: values that were passed or loaded, each so many times, and a
constant. An operand in memory is given by the register its value first came to, and the whole distance. The state at a label is that of
the code before it; behind a return or a jump, that of the first branch to it.

Source: Arm Architecture Reference Manual for A-profile (DDI 0487), C4.1 (encodings). An instruction that is not known makes unknown what
stands in the register it would write.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Optional

from findleaks.runtimes.v8.decode import CALL, JUMP, RIP, Instruction

NUMBERS = {0: 7, 1: 6, 2: 2, 3: 1, 4: 8, 5: 9, 29: 5, 31: 4}
"""Registers that have a counterpart by their use (arguments, frame pointer, stack pointer) bear its number; others 32 and their own."""

POINTER = -1
"""The value of the thread pointer."""

LOAD, STORE, STORE_CONSTANT, BYTE, ADD, MULTIPLY, SHIFT, OTHER, BRANCH, JUMP_TO = (
    0x8B,
    0x89,
    0xC7,
    0x0FB6,
    0x83,
    0x69,
    0xC1,
    0x90,
    0x0F84,
    0xFF,
)

_MASK = (1 << 64) - 1


class Sum(NamedTuple):
    """`terms` are (value, how many times)."""

    terms: tuple[tuple[int, int], ...] = ()
    constant: int = 0

    def plus(self, other: Sum, times: int = 1) -> Sum:
        """With the other, so many times."""
        terms = dict(self.terms)
        for value, count in other.terms:
            terms[value] = terms.get(value, 0) + times * count
        return Sum(tuple(sorted((value, count) for value, count in terms.items() if count)), self.constant + times * other.constant)


def instructions(code: bytes, address: int) -> Iterator[Instruction]:
    """The instructions of `code`, which stands at `address`; of a pair's load two."""
    machine = _Machine()
    for place, (word,) in enumerate(struct.iter_unpack("<I", code[: len(code) & ~3])):
        yield from machine.step(word, address + 4 * place)


def _bits(word: int, high: int, low: int) -> int:
    return word >> low & (1 << high - low + 1) - 1


def _signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> width - 1 else value


def number(register: int) -> int:
    """What decode.py calls it."""
    return NUMBERS.get(register, 32 + register)


class _Machine:
    def __init__(self) -> None:
        self._next = 64  # below: what registers held at first
        self._origin: dict[int, int] = {}  # value -> the register it came to
        self._place: dict[int, tuple[int, int]] = {}  # value -> what it was loaded from
        self._holds: dict[int, Sum] = {}
        self._labels: dict[int, dict[int, Sum]] = {}
        self._ended = False
        for register in range(32):
            self._origin[register] = register
            self._holds[register] = Sum(((register, 1),))

    def step(self, word: int, at: int) -> Iterator[Instruction]:
        """What one instruction does."""
        if self._ended:
            self._holds = self._labels.get(at, self._holds)
            self._ended = False
        for mask, value, what in _ENCODINGS:
            if word & mask == value:
                yield from what(self, word, at)
                return
        self._unknown(word & 31)
        yield Instruction(at, 4, OTHER)

    def nothing(self, word: int, at: int) -> Iterator[Instruction]:
        yield Instruction(at, 4, OTHER)

    def page(self, word: int, at: int) -> Iterator[Instruction]:
        """adr, adrp"""
        distance = _signed(_bits(word, 23, 5) << 2 | _bits(word, 30, 29), 21)
        value = (at & ~0xFFF) + (distance << 12) if word >> 31 else at + distance
        self._set(word & 31, Sum((), value & _MASK))
        yield Instruction(at, 4, 0x8D, number(word & 31), base=RIP, displacement=value & _MASK, wide=True)

    def add_immediate(self, word: int, at: int) -> Iterator[Instruction]:
        value = _bits(word, 21, 10) << (12 if word >> 22 & 1 else 0)
        made = self._holds[_bits(word, 9, 5)].plus(Sum((), value), -1 if word >> 30 & 1 else 1)
        if not (word >> 29 & 1 and word & 31 == 31):
            self._holds[word & 31] = made
        yield Instruction(at, 4, OTHER)

    def add_register(self, word: int, at: int) -> Iterator[Instruction]:
        """add and sub of a register that may be shifted, or extended"""
        shift = _bits(word, 12, 10) if word >> 21 & 1 else _bits(word, 15, 10) if not _bits(word, 23, 22) else 64
        if shift == 64:
            self._unknown(word & 31)
            yield Instruction(at, 4, OTHER)
            return
        sign = -1 if word >> 30 & 1 else 1
        made = self._read(_bits(word, 9, 5)).plus(self._read(_bits(word, 20, 16)), sign << shift)
        self._set(word & 31, made)
        yield self._product(at, made, shift)

    def multiply_add(self, word: int, at: int) -> Iterator[Instruction]:
        """madd, msub and those of halves"""
        one, two = self._read(_bits(word, 9, 5)), self._read(_bits(word, 20, 16))
        sign = -1 if word >> 15 & 1 else 1
        if one.terms and two.terms:
            self._unknown(word & 31)
            yield Instruction(at, 4, OTHER)
            return
        if two.terms:
            one, two = two, one
        made = self._read(_bits(word, 14, 10)).plus(one, sign * two.constant)
        self._set(word & 31, made)
        yield self._product(at, made, 0)

    def move_wide(self, word: int, at: int) -> Iterator[Instruction]:
        shift, value, register = 16 * _bits(word, 22, 21), _bits(word, 20, 5), word & 31
        how = _bits(word, 30, 29)
        if how == 3:  # movk
            before = self._read(register)
            if before.terms:
                self._unknown(register)
            else:
                self._set(register, Sum((), before.constant & ~(0xFFFF << shift) | value << shift))
        else:
            self._set(register, Sum((), value << shift if how == 2 else ~(value << shift)))
        yield Instruction(at, 4, OTHER)

    def logical_immediate(self, word: int, at: int) -> Iterator[Instruction]:
        mask = _bitmask(_bits(word, 22, 22), _bits(word, 15, 10), _bits(word, 21, 16))
        self._unknown(word & 31)
        known = _bits(word, 30, 29) in (0, 3) and mask is not None
        yield Instruction(at, 4, ADD, 4, rm=number(word & 31), immediate=mask) if known else Instruction(at, 4, OTHER)

    def logical_register(self, word: int, at: int) -> Iterator[Instruction]:
        register, source = word & 31, _bits(word, 20, 16)
        if word & 0x7FE0FFE0 == 0x2A0003E0:  # mov
            self._set(register, self._read(source))
            yield Instruction(at, 4, STORE, number(source), rm=number(register), wide=bool(word >> 31))
            return
        self._unknown(register)
        yield Instruction(at, 4, OTHER)

    def bit_field(self, word: int, at: int) -> Iterator[Instruction]:
        """lsl, and what takes the low half; others are not followed"""
        width = 64 if word >> 31 else 32
        turn, last, register = _bits(word, 21, 16), _bits(word, 15, 10), word & 31
        source = self._read(_bits(word, 9, 5))
        if _bits(word, 30, 29) == 2 and last + 1 == turn:
            self._set(register, Sum().plus(source, 1 << width - turn))
            yield Instruction(at, 4, SHIFT, 4, rm=number(register), immediate=width - turn)
            return
        if _bits(word, 30, 29) != 1 and not turn and last == 31:  # sxtw, uxtw
            self._set(register, source)
        else:
            self._unknown(register)
        yield Instruction(at, 4, OTHER)

    def thread_pointer(self, word: int, at: int) -> Iterator[Instruction]:
        self._set(word & 31, Sum(((POINTER, 1),)))
        yield Instruction(at, 4, OTHER)

    def memory(self, word: int, at: int) -> Iterator[Instruction]:
        """ldr and str, of all sizes, by all ways of addressing but the pair's"""
        size, kind, register, base = word >> 30, _bits(word, 23, 22), word & 31, _bits(word, 9, 5)
        where = self._holds[base]
        if word >> 24 & 1:
            where = where.plus(Sum((), _bits(word, 21, 10) << size))
        elif word >> 21 & 1:
            where = where.plus(self._read(_bits(word, 20, 16)), 1 << (size if word >> 12 & 1 else 0))
        else:
            moved = where.plus(Sum((), _signed(_bits(word, 20, 12), 9)))
            mode = _bits(word, 11, 10)
            where = where if mode == 1 else moved
            if mode in (1, 3):
                self._holds[base] = moved
        yield self._moved(at, register, where, size, bool(kind), bool(word >> 26 & 1))

    def acquire(self, word: int, at: int) -> Iterator[Instruction]:
        """ldar, stlr and the exclusive ones"""
        yield self._moved(at, word & 31, self._holds[_bits(word, 9, 5)], word >> 30, bool(word >> 22 & 1), False)

    def literal(self, word: int, at: int) -> Iterator[Instruction]:
        where = Sum((), at + 4 * _signed(_bits(word, 23, 5), 19))
        yield self._moved(at, word & 31, where, 3 if word >> 30 & 1 else 2, True, bool(word >> 26 & 1))

    def pair(self, word: int, at: int) -> Iterator[Instruction]:
        """ldp, stp"""
        vector, base, mode = bool(word >> 26 & 1), _bits(word, 9, 5), _bits(word, 24, 23)
        size = 2 + (word >> 30) if vector else 3 if word >> 31 else 2
        where = self._holds[base]
        moved = where.plus(Sum((), _signed(_bits(word, 21, 15), 7) << size))
        if mode in (1, 3):
            self._holds[base] = moved
        where = where if mode == 1 else moved
        for number_of, register in enumerate((word & 31, _bits(word, 14, 10))):
            yield self._moved(at, register, where.plus(Sum((), number_of << size)), size, bool(word >> 22 & 1), vector)

    def branch(self, word: int, at: int) -> Iterator[Instruction]:
        """b, bl"""
        target = at + 4 * _signed(_bits(word, 25, 0), 26)
        if word >> 31:
            self._called()
        else:
            self._labels.setdefault(target, dict(self._holds))
            self._ended = True
        yield Instruction(at, 4, CALL if word >> 31 else JUMP, target=target)

    def branch_if(self, word: int, at: int) -> Iterator[Instruction]:
        """b.cond, cbz, cbnz, tbz, tbnz"""
        distance = _signed(_bits(word, 18, 5), 14) if word >> 25 & 0x3F == 0x1B else _signed(_bits(word, 23, 5), 19)
        self._labels.setdefault(at + 4 * distance, dict(self._holds))
        yield Instruction(at, 4, BRANCH, target=at + 4 * distance)

    def branch_register(self, word: int, at: int) -> Iterator[Instruction]:
        """br, blr, ret"""
        if _bits(word, 24, 21) == 1:
            self._called()
        else:
            self._ended = True
        yield Instruction(at, 4, JUMP_TO)

    def _read(self, register: int) -> Sum:
        return self._holds[register] if register != 31 else Sum()

    def _set(self, register: int, value: Sum) -> None:
        if register != 31:
            self._holds[register] = value

    def _unknown(self, register: int) -> int:
        self._next += 1
        if register != 31:
            self._origin[self._next] = register
            self._holds[register] = Sum(((self._next, 1),))
        return self._next

    def _called(self) -> None:
        for register in (*range(19), 30):
            self._unknown(register)

    def _product(self, at: int, made: Sum, shift: int) -> Instruction:
        most = max((abs(count) for _, count in made.terms), default=0)
        if most >= 16 and most & most - 1:
            return Instruction(at, 4, MULTIPLY, immediate=most)
        return Instruction(at, 4, SHIFT, 4, immediate=shift) if shift > 3 else Instruction(at, 4, OTHER)

    def _moved(self, at: int, register: int, where: Sum, size: int, loads: bool, vector: bool) -> Instruction:
        """A load or a store; registers of vectors are not kept."""
        if vector:
            return Instruction(at, 4, OTHER)
        made, wide = self._operand(where, at), size == 3
        if loads:
            value = self._unknown(register)
            if made is None or made.displacement is None:
                return Instruction(at, 4, OTHER)
            self._place[value] = made.base, made.displacement
            return made._replace(opcode=LOAD if size >= 2 else BYTE, reg=number(register), wide=wide)
        if made is None:
            return Instruction(at, 4, OTHER)
        stored = self._read(register)
        if not stored.terms:
            return made._replace(opcode=STORE_CONSTANT, immediate=stored.constant, wide=wide)
        (value, count), *more = stored.terms
        if not more and count == 1 and stored.constant == 1 and self._place.get(value) == (made.base, made.displacement):
            return made._replace(opcode=ADD, reg=0, immediate=1, wide=wide)
        return made._replace(opcode=STORE, reg=number(register), wide=wide)

    def _operand(self, where: Sum, at: int) -> Optional[Instruction]:
        """An instruction with an operand in memory; None where its parts cannot be told."""
        terms: Mapping[int, int] = dict(where.terms)
        local = terms.get(POINTER) == 1
        values = [value for value in terms if value != POINTER]
        if not values:
            constant = where.constant if local else where.constant & _MASK
            return Instruction(at, 4, OTHER, base=-1 if local else RIP, displacement=constant, fs=local)
        bases = [value for value in values if terms[value] == 1]
        scaled = [value for value in values if terms[value] != 1]
        if len(bases) + len(scaled) > 2 or not bases:
            return None
        index = scaled[0] if scaled else bases[1] if len(bases) > 1 else None
        base, by = number(self._origin[bases[0]]), -1 if index is None else number(self._origin[index])
        return Instruction(at, 4, OTHER, base=base, scaled=by, displacement=where.constant, fs=local)


def _bitmask(wide: int, last: int, turn: int) -> Optional[int]:
    """The mask of a logical instruction (DecodeBitMasks), of those that are one run of bits from the lowest on."""
    length = (wide << 6 | ~last & 0x3F).bit_length() - 1
    ones = (last & (1 << length) - 1) + 1
    return (1 << ones) - 1 if length >= 5 and not turn else None


_ENCODINGS = (
    (0xFFFFF01F, 0xD503201F, _Machine.nothing),
    (0x1F000000, 0x10000000, _Machine.page),
    (0x1F800000, 0x11000000, _Machine.add_immediate),
    (0x1F000000, 0x0B000000, _Machine.add_register),
    (0x7FE00000, 0x1B000000, _Machine.multiply_add),
    (0xFF600000, 0x9B200000, _Machine.multiply_add),
    (0x1F800000, 0x12800000, _Machine.move_wide),
    (0x1F800000, 0x12000000, _Machine.logical_immediate),
    (0x1F000000, 0x0A000000, _Machine.logical_register),
    (0x1F800000, 0x13000000, _Machine.bit_field),
    (0xFFFFFFE0, 0xD53BD040, _Machine.thread_pointer),
    (0x3B000000, 0x39000000, _Machine.memory),
    (0x3B200000, 0x38000000, _Machine.memory),
    (0x3B200C00, 0x38200800, _Machine.memory),
    (0x3B000000, 0x18000000, _Machine.literal),
    (0x3F000000, 0x08000000, _Machine.acquire),
    (0x3A000000, 0x28000000, _Machine.pair),
    (0x7C000000, 0x14000000, _Machine.branch),
    (0xFF000010, 0x54000000, _Machine.branch_if),
    (0x7C000000, 0x34000000, _Machine.branch_if),
    (0xFE000000, 0xD6000000, _Machine.branch_register),
)
"""(mask, value, what it is): the first that fits."""


__all__ = ["instructions"]
