"""What an extension reports to Ruby of the native memory behind its objects, seen in the code by which it takes the report back.

An extension tells Ruby with rb_gc_adjust_memory_usage(n), and has to tell it the same n when an object is freed: so it keeps n in the
object's own structure, and the function that frees it passes the word on, negated. Its offset is seen there:

    mov 0x28(%rbx),%rdi ; neg %rdi ; call rb_gc_adjust_memory_usage

(rbx: the structure, which the function got in rdi.) Sources: include/ruby/internal/core/rtypeddata.h (struct rb_data_type_struct),
doc/extension.rdoc; the extension pg, ext/pg_result.c, is one that does so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.ruby.layout import code
from findleaks.runtimes.v8.decode import CALL, JUMP, JUMP_SHORT, RIP, Instruction
from findleaks.target.base import Module, Target

FREE = 16
"""Offset of the function that frees in a data type: {name, {dmark, dfree, dsize, …}, …}."""

CALLS, PATHS, STEPS = 3, 64, 2000
"""Calls within the extension that are followed, stretches of one function, and instructions in all."""

_RAX, _RCX, _RDX, _RSP, _RBP, _RSI, _RDI = 0, 1, 2, 4, 5, 6, 7
_SCRATCH = (_RAX, _RCX, _RDX, _RSI, _RDI, 8, 9, 10, 11)
_MOVE, _STORE, _RETURN, _NEGATE, _SUBTRACT, _CLEAR = 0x8B, 0x89, 0xC3, 0xF7, 0x2B, (0x31, 0x33)

THIS = -1


class Field(NamedTuple):
    """A register holds the word at `offset` of the structure, or that negated."""

    offset: int
    negated: bool


def reported_at(target: Target, data_type: int, adjust: int) -> Optional[int]:
    """The offset in the structure that an object of this data type wraps, of the bytes it reported; None where its function that frees does
    not take a report back, or not in this way. `adjust` is rb_gc_adjust_memory_usage's address."""
    memory = Memory(target)
    free = memory.word(data_type + FREE)
    if not free or not adjust:
        return None
    module = next((one for one in target.modules() if one.start <= free < one.end), None)
    if module is None or module.start <= adjust < module.end:
        return None
    return _Search(target, memory, module, adjust).offset(free)


class _Search:
    def __init__(self, target: Target, memory: Memory, module: Module, adjust: int) -> None:
        self._target, self._memory, self._module, self._adjust = target, memory, module, adjust
        self._steps = STEPS

    def offset(self, function: int, depth: int = 0) -> Optional[int]:
        """Follow the code of a function that gets the structure in rdi."""
        waiting: list[tuple[int, dict[int, int | Field]]] = [(function, {_RDI: THIS})]
        seen: set[int] = set()
        while waiting and len(seen) < PATHS:
            at, known = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            for one in self._code(at):
                self._steps -= 1
                if self._steps < 0:
                    return None
                given = known.get(_RDI)
                if isinstance(given, Field) and given.negated and self._adjusts(one):
                    return given.offset
                if one.opcode == _RETURN:
                    break
                if _jumps(one):
                    waiting += [(one.target, dict(known))] if one.target is not None else []
                    if one.opcode in (JUMP, JUMP_SHORT):
                        break
                elif one.opcode == CALL or _is_indirect(one, 2):
                    inner = self._called(one, known, depth)
                    if inner is not None:
                        return inner
                    for register in _SCRATCH:
                        known.pop(register, None)
                else:
                    _step(one, known)
        return None

    def _called(self, call: Instruction, known: dict[int, int | Field], depth: int) -> Optional[int]:
        """`offset` in a function of the extension's that is handed the structure; None for other calls."""
        if call.target is None or depth >= CALLS or known.get(_RDI) != THIS or not self._inside(call.target):
            return None
        return self.offset(call.target, depth + 1)

    def _adjusts(self, one: Instruction) -> bool:
        """Does it call rb_gc_adjust_memory_usage, or jump there, by its address, a stub, or through a pointer?"""
        if one.opcode in (CALL, JUMP) and one.target is not None:
            return self._is_adjust(one.target)
        through = (_is_indirect(one, 2) or _is_indirect(one, 4)) and one.base == RIP
        return through and self._memory.word(one.displacement or 0) == self._adjust

    def _code(self, address: int) -> Iterator[Instruction]:
        return iter(code(self._target, address) if self._inside(address) else [])

    def _inside(self, address: int) -> bool:
        return self._module.start <= address < self._module.end

    def _is_adjust(self, address: int) -> bool:
        """Is this the function, or a stub that jumps to it?"""
        if address == self._adjust:
            return True
        for one in code(self._target, address, 16)[:3] if self._inside(address) else []:
            if _is_indirect(one, 4) and one.base == RIP:
                return self._memory.word(one.displacement or 0) == self._adjust
        return False


def _is_indirect(one: Instruction, operation: int) -> bool:
    """Whether it calls (2) or jumps (4) to where a register or a word in memory says."""
    return one.opcode == 0xFF and one.reg & 7 == operation


def _jumps(one: Instruction) -> bool:
    """Whether it is a jump that names its target, or a conditional one."""
    if one.opcode in (JUMP, JUMP_SHORT):
        return one.target is not None
    return 0x70 <= one.opcode <= 0x7F or 0x0F80 <= one.opcode <= 0x0F8F


def _step(one: Instruction, known: dict[int, int | Field]) -> None:
    """What a register holds after an instruction, where that is the structure or a word of it."""
    made: int | Field | None = None
    register = one.reg
    if one.opcode == _MOVE and one.displacement is None:
        made = known.get(one.rm)
    elif one.opcode == _STORE and one.displacement is None:
        register, made = one.rm, known.get(one.reg)
    elif one.opcode == _MOVE and one.scaled < 0 and known.get(one.base) == THIS and one.wide:
        made = Field(one.displacement or 0, False)
    elif one.opcode == _NEGATE and one.reg & 7 == 3 and one.displacement is None:
        register, before = one.rm, known.get(one.rm)
        made = Field(before.offset, not before.negated) if isinstance(before, Field) else None
    elif one.opcode in _CLEAR and one.displacement is None and one.reg == one.rm:
        made = 0  # and then the field is subtracted from it
    elif one.opcode == _SUBTRACT and known.get(one.reg) == 0 and known.get(one.base) == THIS and one.wide:
        made = Field(one.displacement or 0, True)
    elif not _writes(one):
        return
    elif one.opcode not in (_MOVE, 0x8D) and one.displacement is None and one.rm >= 0:
        register = one.rm if one.opcode in _INTO_RM else one.reg
    if made is None:
        known.pop(register, None)
    else:
        known[register] = made


_INTO_RM = (0x01, 0x09, 0x11, 0x19, 0x21, 0x29, 0x31, 0x80, 0x81, 0x83, 0xB8, 0xC1, 0xC7, 0xD1, 0xD3, 0xF7, 0xFF, *range(0x58, 0x60))


def _writes(one: Instruction) -> bool:
    """Can it change a register that is known? Stores, comparisons and tests do not."""
    if one.opcode in (0x38, 0x39, 0x3A, 0x3B, 0x84, 0x85, 0xF6, 0x88) or 0x50 <= one.opcode <= 0x57:
        return False
    if one.opcode in (0x80, 0x81, 0x83, 0xC6, 0xC7, _STORE, 0x01, 0x09, 0x21, 0x29) and one.displacement is not None:
        return False
    return not (one.opcode in (0x80, 0x81, 0x83) and one.reg & 7 == 7)
