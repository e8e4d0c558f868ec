"""Decode x86-64 machine code with capstone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from findleaks.disasm.capstone_loader import require_capstone
from findleaks.disasm.instruction import NONE, Instruction
from findleaks.disasm.registers import NUMBERS, RIP

MAX_INSTRUCTION_BYTES = 15
_CHUNK_BYTES = 4096  # bytes decoded by one call of capstone, which takes about 2 KB per instruction
_LOCK = 0xF0
_REGISTER, _IMMEDIATE, _MEMORY = 1, 2, 3  # capstone's X86_OP_...
# Instructions that only read their operand, which is therefore `Instruction.source`
_READING = ("push", "call", "jmp")
_MASK = (1 << 64) - 1


class Decoder:
    """Capstone's decoder, with a cache of its names of registers and instructions."""

    def __init__(self) -> None:
        capstone = require_capstone()
        from capstone import x86_const

        self._capstone: Any = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        self._capstone.detail = True
        self._fs, self._gs = x86_const.X86_REG_FS, x86_const.X86_REG_GS
        self._numbers: dict[int, int] = {}
        for register in range(1, x86_const.X86_REG_ENDING):
            name = self._capstone.reg_name(register)
            if name in NUMBERS:
                self._numbers[register] = NUMBERS[name]
        self._names: dict[int, str] = {}

    def decode(self, code: bytes, address: int) -> Iterator[Any]:
        """Yield capstone's instructions, up to the first unknown or incomplete one."""
        at = 0
        while at < len(code):
            start = at
            for insn in self._capstone.disasm(code[start : start + _CHUNK_BYTES + MAX_INSTRUCTION_BYTES], address + start):
                yield insn
                at = insn.address + insn.size - address
                if at - start >= _CHUNK_BYTES:
                    break
            if at == start:
                return

    def instruction(self, insn: Any) -> Instruction:
        """Convert one of capstone's instructions to an Instruction."""
        name = self._names.get(insn.id)
        if name is None:
            name = self._names[insn.id] = insn.insn_name()
        # The structure that capstone's C library filled. It is used because `insn.operands` and
        # similar attributes first copy all of the structure, which doubles the time.
        detail = insn._raw.detail.contents.arch.x86
        count = detail.op_count
        destination = source = base = scaled = NONE
        scale, displacement, immediate, width, fs, gs, target = 1, None, None, 0, False, False, None
        for number in range(count):
            operand = detail.operands[number]
            kind, value = operand.type, operand.value
            width = width or operand.size
            if kind == _REGISTER:
                register = self._numbers.get(value.reg, NONE)
                if number == 1 or (count == 1 and name in _READING):
                    source = register
                elif number == 0:
                    destination = register
            elif kind == _IMMEDIATE:
                immediate = value.imm
            elif displacement is None:
                place = value.mem
                base, scaled = self._numbers.get(place.base, NONE), self._numbers.get(place.index, NONE)
                scale, displacement = place.scale, place.disp
                fs, gs = place.segment == self._fs, place.segment == self._gs
                if base == RIP:
                    displacement += insn.address + insn.size
        if immediate is not None and (name in ("call", "jmp") or name.startswith(("j", "loop"))):
            target, immediate = immediate & _MASK, None
        return Instruction(
            *(insn.address, insn.size, name, destination, source, base, scaled, scale, displacement, immediate, width, fs, target),
            detail.prefix[0] == _LOCK,
            gs,
        )


@lru_cache(maxsize=1)
def decoder() -> Decoder:
    """Return the decoder. Raises CapstoneMissing."""
    return Decoder()


def instructions(code: bytes, address: int) -> Iterator[Instruction]:
    """Decode `code`, up to an unknown or incomplete instruction. Raises CapstoneMissing."""
    its = decoder()
    return map(its.instruction, its.decode(code, address))
