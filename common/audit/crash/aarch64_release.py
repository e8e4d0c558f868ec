"""Find the pointer that a frame passed to free() or realloc() on AArch64.

The frame may also call a function that jumps to free(), such as operator delete. Its instructions
are followed to this jump, with the registers that are known at the call. Calls of other functions
keep x19 to x28 (AAPCS64, 6.1.1). Nothing is known after a conditional jump whose direction is
unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from findleaks.allocators.memory import Memory
from findleaks.audit.crash.aarch64_code import AFTER_CALL, INSTRUCTION, MASK, SP, StraightAArch64, find_changes, writes_beyond_frame
from findleaks.audit.crash.value_origin import Origin, Tracer
from findleaks.disasm import aarch64
from findleaks.disasm.aarch64_effects import effect
from findleaks.disasm.functions import resolve_stub
from findleaks.disasm.machine import Effect
from findleaks.errors import UnreadableMemory
from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple

_ARGUMENTS = 8  # x0 to x7
_MOST_STEPS = 256  # maximum number of instructions that are followed


class PassedPointer(NamedTuple):
    """The first argument of free() or realloc(). `through`: the functions between the caller and
    free(). They have no frames, because each ended with a jump."""

    value: int
    origin: Optional[Origin]
    through: tuple[int, ...]


class _Known(NamedTuple):
    """The value of a register: the word at the address `word`, or, if `word` is 0, the argument in
    `register`. `offset` was added to it. `is_fixed`: whether the value was found without reading
    memory, so that later writes to memory cannot make it wrong."""

    value: int
    register: int
    offset: int = 0
    word: int = 0
    is_fixed: bool = False


def find_passed_pointer(tracer: Tracer, caller: int, function: int, is_proven: bool) -> Optional[PassedPointer]:
    """Return the argument of the function at the address `function`, if a frame calls this
    function, or calls one that jumps to it; otherwise None. `is_proven`: whether the next inner
    frame is this function. Otherwise the called function must not have a frame. Raises
    CapstoneMissing."""
    code = StraightAArch64(tracer, caller, tracer.frames[caller].pc - INSTRUCTION, True)
    called = code.find_callee()
    extent = tracer.unwinder.extent(tracer.frames[caller - 1].call)
    if not called or (not is_proven and called != function and extent is not None and extent.start == called):
        return None
    values = {number: value for number in range(_ARGUMENTS) if (value := code.value(number)) is not None}
    code.reads_memory, through = False, list[int]()
    passed = {number: _Known(value, number, is_fixed=code.value(number) == value) for number, value in values.items()}
    code.reads_memory = True
    known = _follow(tracer.target, called, passed, function, through)
    if known is None:
        return None
    if known.word:
        origin: Optional[Origin] = Origin("memory", caller, known.word, 8, known.offset)
    else:
        found = code.origin(known.register, values[known.register])
        origin = found._replace(offset=found.offset + known.offset) if found is not None else None
    return PassedPointer(known.value, origin, tuple(through))


def _follow(target: Target, start: int, known: Mapping[int, _Known], goal: int, through: list[int]) -> Optional[_Known]:
    """Return the first argument when the code that begins at `start` reaches the function at
    `goal`; None if it is unknown. `known`: registers at the start. The functions before `goal` are
    added to `through`."""
    memory, (decoder, numbers) = Memory(target), aarch64.decoder()
    registers, address = dict(known), start
    if start != goal:
        through.append(start)
    for _ in range(_MOST_STEPS):
        if address == goal:
            return registers.get(0)
        try:
            insn = next(decoder.disasm(target.read_code(address, INSTRUCTION), address), None)
        except UnreadableMemory:
            return None
        if insn is None or not insn.id:
            return None
        one, address = effect(insn), address + INSTRUCTION
        if writes_beyond_frame(insn, one, numbers):
            registers = {number: value for number, value in registers.items() if value.is_fixed}
        if one.flow == "jump" and one.target:
            address = resolve_stub(target, one.target)
            if address != goal:
                through.append(address)
        elif one.flow == "branch":
            taken = _is_taken(insn, registers, numbers)
            if taken is None:
                return None
            address = one.target if taken else address
        elif one.flow == "call":
            registers = {number: value for number, value in registers.items() if not AFTER_CALL & 1 << number}
        elif one.flow == "next":
            registers = _execute(one, registers, memory)
        else:
            return None
    return None


def _is_taken(insn: Any, registers: Mapping[int, _Known], numbers: Mapping[int, tuple[int, int]]) -> Optional[bool]:
    """Whether a conditional jump is taken; None if it is unknown. It is known for cbz and cbnz,
    which compare with null, if the value of the register is known."""
    number, width = numbers.get(insn.operands[0].reg, (-1, 0)) if insn.insn_name() in ("cbz", "cbnz") else (-1, 0)
    if number not in registers or width != 8:
        return None
    return bool((registers[number].value == 0) == (insn.insn_name() == "cbz"))


def _execute(one: Effect, registers: Mapping[int, _Known], memory: Memory) -> dict[int, _Known]:
    """Return the known registers after an instruction."""
    after = {number: value for number, value in registers.items() if not find_changes(one) & 1 << number}
    source, number = registers.get(one.copied), one.kills.bit_length() - 1
    if source is None or one.kills != 1 << number or number >= SP:
        return after
    value = source.value + (one.constant or 0) & MASK
    if not one.loads:
        after[number] = source._replace(value=value, offset=source.offset + (one.constant or 0))
        return after
    word = memory.word(value)
    if word is not None:
        after[number] = _Known(word, number, 0, value)
    return after
