"""Emulate a short AArch64 function that only computes from memory: the AArch64 part of formula.py.
Sources: Arm Architecture Reference Manual for A-profile (DDI 0487), C6.2 (instructions); Procedure
Call Standard for the Arm 64-bit Architecture 2023Q3, 6 (registers, stack)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from findleaks.disasm.aarch64 import decoder
from findleaks.disasm.emulated_memory import LONGEST, STACK, EmulatedMemory, Unknown
from findleaks.target.base import Target

_SP, _ZERO, _LINK = 31, 32, 30
_REGISTER, _IMMEDIATE, _MEMORY = 1, 2, 3  # capstone's ARM64_OP_...
_NOTHING = frozenset(("nop", "hint", "bti", "paciasp", "autiasp"))
_LOADS = {"ldr": 0, "ldur": 0, "ldar": 0, "ldapr": 0, "ldp": 0, "ldrb": 1, "ldrh": 2}
"""Zero-extending loads and stores: bytes of memory; 0: the size of the register."""
_MASK = (1 << 64) - 1


class Run:
    """One call of a function. It reads the target's memory, and writes nothing there."""

    def __init__(self, target: Target, arguments: Sequence[int]) -> None:
        self._target = target
        self._decoder, self._known = decoder()
        self._registers = [*arguments, *[0] * (33 - len(arguments))]
        self._registers[_SP] = STACK
        self._memory = EmulatedMemory(target)

    def result(self, at: int) -> int:
        """Return the function's result. Raises Unknown or UnreadableMemory."""
        for _ in range(LONGEST):
            code = self._target.read_code(at, 4)
            insn = next(self._decoder.disasm(code, at), None)
            if insn is None or not insn.id:
                raise Unknown
            following = self._execute(insn)
            if not following:
                return self._registers[0]
            at = following
        raise Unknown

    def _execute(self, insn: Any) -> int:
        """Execute an instruction; return the address of the next one, 0 at the end."""
        name, operands, after = insn.insn_name(), insn.operands, int(insn.address) + 4
        if name == "ret" and not operands:
            return self._registers[_LINK]
        if name in ("b", "bl", "br", "blr"):
            if name == "b" and insn.cc:
                raise Unknown
            target = operands[0].imm if operands[0].type == _IMMEDIATE else self._value(operands[0])
            if name in ("bl", "blr"):
                self._registers[_LINK] = after
            return int(target) & _MASK
        if name in _LOADS or name in ("str", "stp"):
            self._move(insn, name, operands)
        elif name not in _NOTHING:
            self._compute(name, operands)
        return after

    def _compute(self, name: str, operands: Sequence[Any]) -> None:
        if name in ("mov", "movz"):
            self._put(operands[0], self._value(operands[1]))
        elif name == "movk":
            shift = operands[1].shift.value
            self._put(operands[0], self._value(operands[0]) & ~(0xFFFF << shift) | operands[1].imm << shift)
        elif name == "adrp" or name == "adr":
            self._put(operands[0], operands[1].imm)
        elif name == "madd":
            one, two, three = map(self._value, operands[1:])
            self._put(operands[0], one * two + three)
        elif name in _BINARY and len(operands) == 3:
            self._put(operands[0], _BINARY[name](self._value(operands[1]), self._value(operands[2])))
        else:
            raise Unknown

    def _number(self, register: int) -> tuple[int, int]:
        """Return (number, bytes) of a register."""
        if register not in self._known:
            raise Unknown
        return self._known[register]

    def _value(self, operand: Any) -> int:
        """Return the value of a register or a constant, shifted left."""
        if operand.type == _IMMEDIATE:
            value = operand.imm
        elif operand.type == _REGISTER and not operand.ext:
            number, width = self._number(operand.reg)
            value = self._registers[number] & (1 << 8 * width) - 1
        else:
            raise Unknown
        if operand.shift.type not in (0, 1):
            raise Unknown
        return int(value << operand.shift.value) & _MASK

    def _put(self, operand: Any, value: int) -> None:
        number, width = self._number(operand.reg)
        if number != _ZERO:
            self._registers[number] = value & (1 << 8 * width) - 1

    def _move(self, insn: Any, name: str, operands: Sequence[Any]) -> None:
        """Execute loads from any memory, and stores to the stack."""
        *moved, place = operands if operands[-1].type == _MEMORY else operands[:-1]
        if place.type != _MEMORY or place.mem.index:
            raise Unknown
        base, _ = self._number(place.mem.base)
        where = self._registers[base] + place.mem.disp & _MASK
        for order, one in enumerate(moved):
            width = _LOADS.get(name, 0) or self._number(one.reg)[1]
            if name in _LOADS:
                self._put(one, self._memory.load(where + order * width, width))
            else:
                self._memory.store(where + order * width, width, self._value(one))
        if insn.writeback:
            self._registers[base] = where + operands[-1].imm & _MASK if insn.post_index else where


_BINARY: Mapping[str, Callable[[int, int], int]] = {
    "add": int.__add__,
    "sub": int.__sub__,
    "and": int.__and__,
    "orr": int.__or__,
    "eor": int.__xor__,
    "mul": int.__mul__,
    "lsl": lambda one, two: one << (two & 63),
    "lsr": lambda one, two: one >> (two & 63),
}
