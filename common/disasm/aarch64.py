"""Decode AArch64 machine code with capstone, and translate it to instructions with x86-64's
names.

Code that searches for a pattern in a function then works for both architectures. On AArch64 a large
offset takes several instructions (`add x0, x0, #8, lsl #12` and `ldr x3, [x0, #25544]`), and a
product may be a sum of shifted values. Therefore each register is tracked as a sum: values that
were passed or loaded, each with a factor, and a constant.
A memory operand is reported as the register that first received its base value, and the total
offset. The state at a label is the state after the instruction before it. If that is a return or a
jump, it is the state at the first branch to the label. An instruction that is not tracked makes its
first register unknown. If the first argument of a call is a value plus a constant, an `lea` is
reported before the call. Atomic additions to memory, including those by a function of libgcc, are
reported as `xadd`.
Source of the semantics: Arm Architecture Reference Manual for A-profile (DDI 0487), C6.2."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Optional

from findleaks.disasm.capstone_loader import require_capstone
from findleaks.disasm.instruction import NONE, Instruction
from findleaks.disasm.registers import RIP
from findleaks.value_classes import NamedTuple

NUMBERS = {0: 7, 1: 6, 2: 2, 3: 1, 4: 8, 5: 9, 29: 5, 31: 4}
"""By AArch64 register: the number of the x86-64 register with the same use (argument, frame
pointer, stack pointer). Other registers keep their number plus 32."""

POINTER = -1  # number of the value that is the thread pointer
_SP, _ZERO, _OTHER = 31, 32, 33
_REGISTER, _IMMEDIATE, _MEMORY, _SYSTEM = 1, 2, 3, 68  # capstone's ARM64_OP_...
_THREAD_POINTER = 0xDE82  # ARM64_SYSREG_TPIDR_EL0
_LSL = 1  # ARM64_SFT_LSL
_MASK = (1 << 64) - 1
_ACCESS = re.compile(r"(ld|st)(?:u|t|a|l|ap|ax|lx|x|xr|nx|n)?(r|p)(sw|s?b|s?h|)")
"""Loads and stores: (ld or st, r: one register or p: a pair, suffix)."""
_SIZES = {"sw": 4, "b": 1, "sb": 1, "h": 2, "sh": 2}


class Sum(NamedTuple):
    """The contents of a register as a sum. `terms` are pairs (value, factor)."""

    terms: tuple[tuple[int, int], ...] = ()
    constant: int = 0

    def plus(self, other: Sum, times: int = 1) -> Sum:
        """Return this sum plus `times` times the other sum."""
        terms = dict(self.terms)
        for value, count in other.terms:
            terms[value] = terms.get(value, 0) + times * count
        return Sum(tuple(sorted((value, count) for value, count in terms.items() if count)), self.constant + times * other.constant)


@lru_cache(maxsize=1)
def decoder() -> tuple[Any, Mapping[int, tuple[int, int]]]:
    """Create capstone's decoder. Return it, and a map from each of its general registers to
    (number, width in bytes)."""
    capstone = require_capstone()
    decoder: Any = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    decoder.detail = decoder.skipdata = True  # unknown instructions are skipped, four bytes each
    names = {"fp": (29, 8), "lr": (30, 8), "sp": (_SP, 8), "wsp": (_SP, 4), "xzr": (_ZERO, 8), "wzr": (_ZERO, 4)}
    names.update({f"{letter}{number}": (number, width) for letter, width in (("x", 8), ("w", 4)) for number in range(31)})
    from capstone import arm64_const

    every = ((register, decoder.reg_name(register)) for register in range(1, arm64_const.ARM64_REG_ENDING))
    return decoder, {register: names[name] for register, name in every if name in names}


def instructions(code: bytes, address: int, adds: Callable[[int], bool] = lambda function: False) -> Iterator[Instruction]:
    """Decode `code`. A load of a register pair yields two instructions.
    `adds` returns whether a called function satisfies is_atomic_addition. Raises
    CapstoneMissing."""
    decode, registers = decoder()
    machine = _Machine(registers, adds)
    for insn in decode.disasm(code[: len(code) & ~3], address):
        yield from machine.step(insn)


ADDITION_BYTES = 48
"""Bytes of the beginning of a function that are searched for an atomic addition."""
_RET, _BL, _LDADD = 0xD65F03C0, 0x94000000, 0xF8200000


def is_atomic_addition(code: bytes) -> bool:
    """Whether a function adds its first argument to the word that its second argument points to, by
    an ldadd instruction (large system extensions) before its first return.
    libgcc has such functions for processors with and without these extensions
    (libgcc/config/aarch64/lse.S, GCC 12: __aarch64_ldadd8_*)."""
    for (word,) in struct.iter_unpack("<I", code[: len(code) & ~3]):
        if word == _RET or word & 0xFC000000 == _BL:
            return False
        if word & 0xFF20FC00 == _LDADD and word >> 5 & 31 == 1 and word >> 16 & 31 == 0:
            return True
    return False


def number(register: int) -> int:
    """Return the number of an AArch64 register in Instruction."""
    return NUMBERS.get(register, 32 + register)


class _Machine:
    """The contents of registers while a function is read from its beginning."""

    def __init__(self, registers: Mapping[int, tuple[int, int]], adds: Callable[[int], bool]) -> None:
        self._registers, self._adds = registers, adds
        self._next = 64  # number of the last value; below 32: initial values of registers
        # Value -> the register that first received it.
        self._origin: dict[int, int] = {register: register for register in range(32)}
        self._place: dict[int, tuple[int, int]] = {}  # value: (base, displacement) of its memory
        self._holds: dict[int, Sum] = {register: Sum(((register, 1),)) for register in range(32)}
        self._labels: dict[int, dict[int, Sum]] = {}
        self._ended = False

    def step(self, insn: Any) -> Iterator[Instruction]:
        """Apply one of capstone's instructions; yield its translation."""
        at = insn.address
        if self._ended:
            self._holds = self._labels.get(at, self._holds)
            self._ended = False
        if not insn.id:
            yield Instruction(at, 4, "")
            return
        name, operands = insn.insn_name(), insn.operands
        access = _ACCESS.fullmatch(name)
        if access is not None:
            yield from self._access(insn, access, operands)
        elif name in _BRANCHES:
            yield from self._branch(insn, name, operands)
        else:
            compute = _COMPUTED.get(name, _Machine._not_tracked)
            yield compute(self, at, name, operands) or Instruction(at, 4, "")

    def _register(self, operand: Any) -> int:
        return self._number_width(operand.reg)[0] if operand.type == _REGISTER else _OTHER

    def _number_width(self, register: int) -> tuple[int, int]:
        return self._registers.get(register, (_OTHER, 0))

    def _value(self, operand: Any) -> Optional[Sum]:
        """Return the value of a register or a constant, shifted left; None for other shifts."""
        if operand.shift.type > _LSL:
            return None
        if operand.type == _IMMEDIATE:
            return Sum((), operand.imm << operand.shift.value)
        return Sum().plus(self._read(self._register(operand)), 1 << operand.shift.value)

    def _read(self, register: int) -> Sum:
        return self._holds.get(register, Sum())

    def _set(self, register: int, value: Optional[Sum]) -> None:
        if value is None:
            self._set_unknown(register)
        elif register <= _SP:
            self._holds[register] = value

    def _set_unknown(self, register: int) -> int:
        """Give the register a new unknown value; return its number."""
        self._next += 1
        if register <= _SP:
            self._origin[self._next] = register
            self._holds[register] = Sum(((self._next, 1),))
        return self._next

    def _not_tracked(self, at: int, name: str, operands: Sequence[Any]) -> None:
        for operand in operands[:1] if all(one.type != _MEMORY for one in operands) else operands:
            if operand.type == _REGISTER:
                self._set_unknown(self._register(operand))

    def _compare(self, at: int, name: str, operands: Sequence[Any]) -> Instruction:
        """Translate an instruction that sets no register. A test of a mask becomes `and`."""
        if name == "cmp" and operands[1].type == _IMMEDIATE:
            return Instruction(at, 4, "cmp", number(self._register(operands[0])), immediate=operands[1].imm)
        tested = _low_mask(operands[1]) if name == "tst" else None
        return Instruction(at, 4, "" if tested is None else "and", immediate=tested)

    def _address(self, at: int, name: str, operands: Sequence[Any]) -> Instruction:
        register, place = self._register(operands[0]), operands[1].imm & _MASK
        self._set(register, Sum((), place))
        return Instruction(at, 4, "lea", number(register), base=RIP, displacement=place, width=8)

    def _add(self, at: int, name: str, operands: Sequence[Any]) -> Instruction:
        register, right = self._register(operands[0]), self._value(operands[2])
        made = self._read(self._register(operands[1])).plus(right, -1 if name.startswith("sub") else 1) if right is not None else None
        self._set(register, made)
        constant = operands[2].type == _IMMEDIATE
        return Instruction(at, 4, "") if made is None or constant else self._product(at, made, operands[2].shift.value)

    def _negate(self, at: int, name: str, operands: Sequence[Any]) -> None:
        right = self._value(operands[1])
        self._set(self._register(operands[0]), Sum().plus(right, -1) if right is not None else None)

    def _multiply(self, at: int, name: str, operands: Sequence[Any]) -> Instruction:
        """Translate mul, madd, msub and their widening forms. The product is tracked if one factor
        is a constant."""
        register, (one, two, *more) = self._register(operands[0]), (self._read(self._register(operand)) for operand in operands[1:])
        if one.terms and two.terms:
            self._set_unknown(register)
            return Instruction(at, 4, "")
        if two.terms:
            one, two = two, one
        made = (more[0] if more else Sum()).plus(one, two.constant * (-1 if "ms" in name or "mn" in name else 1))
        self._set(register, made)
        return self._product(at, made, 0)

    def _move(self, at: int, name: str, operands: Sequence[Any]) -> Optional[Instruction]:
        register, source = self._register(operands[0]), operands[1]
        if name == "movk":
            before, shift = self._read(register), source.shift.value
            known = Sum((), before.constant & ~(0xFFFF << shift) | source.imm << shift)
            self._set(register, known if not before.terms else None)
            return None
        value = self._value(source) if source.type == _IMMEDIATE or self._register(source) < _OTHER else None
        self._set(register, value)
        if source.type == _IMMEDIATE or self._register(source) > _SP:
            return None
        return Instruction(at, 4, "mov", number(register), number(self._register(source)), width=self._number_width(source.reg)[1])

    def _mask(self, at: int, name: str, operands: Sequence[Any]) -> Instruction:
        register = self._register(operands[0])
        self._set_unknown(register)
        mask = _low_mask(operands[2])
        return Instruction(at, 4, "") if mask is None else Instruction(at, 4, "and", number(register), immediate=mask)

    def _shift(self, at: int, name: str, operands: Sequence[Any]) -> Optional[Instruction]:
        register = self._register(operands[0])
        if operands[2].type != _IMMEDIATE:
            self._set_unknown(register)
            return None
        self._set(register, Sum().plus(self._read(self._register(operands[1])), 1 << operands[2].imm))
        return Instruction(at, 4, "shl", number(register), immediate=operands[2].imm)

    def _half(self, at: int, name: str, operands: Sequence[Any]) -> None:
        """Extend the low half of a register. The sum in the register is assumed to fit in the low
        half."""
        whole = name != "ubfx" or (operands[2].imm, operands[3].imm) == (0, 32)
        self._set(self._register(operands[0]), self._read(self._register(operands[1])) if whole else None)

    def _system(self, at: int, name: str, operands: Sequence[Any]) -> None:
        pointer = operands[1].type == _SYSTEM and operands[1].imm == _THREAD_POINTER
        self._set(self._register(operands[0]), Sum(((POINTER, 1),)) if pointer else None)

    def _branch(self, insn: Any, name: str, operands: Sequence[Any]) -> Iterator[Instruction]:
        at = insn.address
        target = operands[-1].imm & _MASK if operands and operands[-1].type == _IMMEDIATE else None
        if name.startswith("bl"):
            yield from self._call(at, target, operands)
            return
        jumps = name == "b" and insn.cc in _ALWAYS
        if target is not None:
            self._labels.setdefault(target, dict(self._holds))
        if jumps or target is None:
            self._ended = True
        if jumps:
            yield from self._argument(at)
        kind = "ret" if name.startswith("ret") else "jmp" if jumps or target is None else "je"
        base, displacement = self._loaded_from(operands) if target is None and kind == "jmp" else (NONE, None)
        yield Instruction(at, 4, kind, target=target, base=base, displacement=displacement)

    def _argument(self, at: int) -> Iterator[Instruction]:
        """Yield the first argument of a call or tail jump, if it is a value plus a constant."""
        first = self._operand(self._read(0), at)
        if first is not None and first.displacement and first.base not in (NONE, RIP) and first.scaled < 0:
            yield first._replace(name="lea", destination=number(0), width=8)

    def _loaded_from(self, operands: Sequence[Any]) -> tuple[int, Optional[int]]:
        """Return (base, displacement) of the memory from which the called address was loaded."""
        pointer = self._read(self._register(operands[0]))
        value = pointer.terms[0][0] if len(pointer.terms) == 1 else _OTHER
        return self._place.get(value, (NONE, None))

    def _call(self, at: int, target: Optional[int], operands: Sequence[Any]) -> Iterator[Instruction]:
        added = self._operand(self._read(1), at) if target is not None and self._adds(target) else None
        if added is None:
            yield from self._argument(at)
        base, displacement = self._loaded_from(operands) if target is None else (NONE, None)
        for register in (*range(19), 30):
            self._set_unknown(register)
        if added is not None:
            yield added._replace(name="xadd", source=number(0), width=8, locked=True)
        else:
            yield Instruction(at, 4, "call", target=target, base=base, displacement=displacement)

    def _access(self, insn: Any, access: re.Match[str], operands: Sequence[Any]) -> Iterator[Instruction]:
        """Translate loads and stores, of all sizes, with all addressing modes."""
        at, loads = insn.address, access[1] == "ld"
        literal = operands[-1].type == _IMMEDIATE and not insn.writeback
        place = next((one for one in operands if one.type == _MEMORY), operands[-1])
        where = Sum((), operands[-1].imm) if literal else self._where(insn, place, operands[-1])
        moved = [one for one in operands if one.type == _REGISTER][-2 if access[2] == "p" else -1 :]
        for order, one in enumerate(moved):
            register, width = self._number_width(one.reg)
            size = _SIZES.get(access[3], width)
            there = where.plus(Sum((), order * size))
            # Vector registers are not tracked.
            made = self._translate_move(at, register, there, size, loads) if register < _OTHER else Instruction(at, 4, "")
            if insn.insn_name() in ("stxr", "stlxr") and self._adds_to(register, made):
                made = made._replace(name="xadd", locked=True)
            yield made

    def _adds_to(self, register: int, made: Instruction) -> bool:
        """Return whether the stored value is a sum with the previous content of the memory."""
        terms = self._read(register).terms
        return len(terms) > 1 and any(count == 1 and self._place.get(value) == (made.base, made.displacement) for value, count in terms)

    def _addition(self, at: int, name: str, operands: Sequence[Any]) -> Optional[Instruction]:
        """Translate ldadd and similar instructions. `operands` are the addend, the register for the
        previous content, and the address."""
        place = operands[-1]
        made = self._operand(self._read(self._number_width(place.mem.base)[0]), at) if place.type == _MEMORY else None
        source, width = self._number_width(operands[0].reg)
        if len(operands) > 2:
            self._set_unknown(self._register(operands[1]))
        return made._replace(name="xadd", source=number(source), width=width, locked=True) if made is not None else None

    def _where(self, insn: Any, place: Any, last: Any) -> Sum:
        """Return the address of a load or store. Update the base register if the instruction writes
        it back."""
        base = self._number_width(place.mem.base)[0]
        where = self._read(base).plus(Sum((), place.mem.disp))
        if place.mem.index:
            where = where.plus(self._read(self._number_width(place.mem.index)[0]), 1 << place.shift.value)
        if insn.writeback:
            self._set(base, where.plus(Sum((), last.imm)) if insn.post_index else where)
        return where

    def _product(self, at: int, made: Sum, shift: int) -> Instruction:
        most = max((abs(count) for _, count in made.terms), default=0)
        if most >= 16 and most & most - 1:
            return Instruction(at, 4, "imul", immediate=most)
        return Instruction(at, 4, "shl", immediate=shift) if shift > 3 else Instruction(at, 4, "")

    def _translate_move(self, at: int, register: int, where: Sum, size: int, loads: bool) -> Instruction:
        """Translate a load or a store of one general register."""
        made = self._operand(where, at)
        if loads:
            value = self._set_unknown(register)
            if made is None or made.displacement is None:
                return Instruction(at, 4, "")
            self._place[value] = made.base, made.displacement
            return made._replace(name="mov" if size >= 4 else "movzx", destination=number(register), width=max(size, 4))
        if made is None:
            return Instruction(at, 4, "")
        stored = self._read(register)
        if not stored.terms:
            return made._replace(name="mov", immediate=stored.constant, width=size)
        (value, count), *more = stored.terms
        if not more and count == 1 and stored.constant == 1 and self._place.get(value) == (made.base, made.displacement):
            return made._replace(name="add", immediate=1, width=size)
        return made._replace(name="mov", source=number(register), width=size)

    def _operand(self, where: Sum, at: int) -> Optional[Instruction]:
        """Build an Instruction with the memory operand `where`; None if it cannot be expressed."""
        terms: Mapping[int, int] = dict(where.terms)
        local = terms.get(POINTER) == 1
        values = [value for value in terms if value != POINTER]
        if not values:
            constant = where.constant if local else where.constant & _MASK
            return Instruction(at, 4, "", base=NONE if local else RIP, displacement=constant, fs=local)
        bases = [value for value in values if terms[value] == 1]
        scaled = [value for value in values if terms[value] != 1]
        if len(bases) + len(scaled) > 2 or len(scaled) > 1:
            return None
        index = scaled[0] if scaled else bases[1] if len(bases) > 1 else None
        base, by = (NONE if one is None else number(self._origin[one]) for one in (bases[0] if bases else None, index))
        return Instruction(at, 4, "", base=base, scaled=by, displacement=where.constant, fs=local)


def _low_mask(operand: Any) -> Optional[int]:
    """Return the constant, if it is a mask of the lowest bits."""
    mask = operand.imm & _MASK if operand.type == _IMMEDIATE else 0
    return mask if mask and not mask & (mask + 1) else None


_ALWAYS = (0, 15, 16)  # no condition, and capstone's ARM64_CC_AL and ARM64_CC_NV
_BRANCHES = frozenset(("b", "bl", "br", "blr", "ret", "braa", "brab", "blraa", "blrab", "retaa", "retab", "cbz", "cbnz", "tbz", "tbnz"))
_COMPUTED: Mapping[str, Callable[[_Machine, int, str, Sequence[Any]], Optional[Instruction]]] = {
    **dict.fromkeys(("cmp", "cmn", "ccmp", "ccmn", "tst", "fcmp", "prfm", "prfum"), _Machine._compare),
    **dict.fromkeys(("adr", "adrp"), _Machine._address),
    **dict.fromkeys(("add", "adds", "sub", "subs"), _Machine._add),
    **dict.fromkeys(("neg", "negs"), _Machine._negate),
    **dict.fromkeys(("mul", "mneg", "madd", "msub", "smull", "umull", "smaddl", "umaddl", "smsubl", "umsubl"), _Machine._multiply),
    **dict.fromkeys(("mov", "movz", "movn", "movk"), _Machine._move),
    **dict.fromkeys(("and", "ands"), _Machine._mask),
    **dict.fromkeys(("sxtw", "uxtw", "ubfx"), _Machine._half),
    **dict.fromkeys((f"{kind}add{order}" for kind in ("ld", "st") for order in ("", "a", "l", "al")), _Machine._addition),
    "lsl": _Machine._shift,
    "mrs": _Machine._system,
}
