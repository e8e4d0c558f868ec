"""Follow values through the code of AArch64 that certainly ran directly before a place.

The instructions are followed backwards, as on x86-64 (straight_code.py, value_origin.py). Nothing
is certain in a function with an indirect jump that may be a switch. Only copies, additions of
constants, loads of 64 bits, and arguments of direct calls are followed.

Source of the semantics: Arm Architecture Reference Manual for A-profile (DDI 0487), C6.2."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from findleaks.allocators.memory import Memory
from findleaks.audit.crash.overwritten_base import Siblings
from findleaks.audit.crash.value_origin import Origin, Tracer
from findleaks.disasm import aarch64
from findleaks.disasm.aarch64_effects import effect
from findleaks.disasm.functions import resolve_stub
from findleaks.disasm.machine import Effect
from findleaks.errors import UnreadableMemory
from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple

INSTRUCTION = 4  # bytes of every instruction
MEMORY = 3  # capstone's ARM64_OP_MEM
SP = 31
MASK = (1 << 64) - 1
_LARGEST = 32 << 10  # bytes of a function that are decoded
_MOST_PARTS = 8  # maximum number of moved parts of a function that are decoded
_REGISTER = 1  # capstone's ARM64_OP_REG
_ARGUMENTS = 8  # x0 to x7
AFTER_CALL = (1 << 19) - 1 | 1 << 30  # registers that a called function may change
_DEEPEST = 12  # maximum number of instructions from which one value is computed
_LOADS = ("ldr", "ldur", "ldp")
# Starts of the names of instructions that write memory
_WRITES = re.compile(r"st|swp|cas|cpy|set|dc$|ld(add|clr|eor|set|[su]max|[su]min)")
_CALLEE_SAVED = (*range(19, 30), SP)
_FIRST = ("bti", "paciasp", "pacibsp")  # instructions at the start of functions
_NULLS = 1 << 12  # smaller values are null pointers, and offsets from them
_MOST_CALLERS = 3  # maximum number of frames through which an argument is followed
# Instructions before an indirect jump that are searched for the one that sets its register
_NEAR = 8
_ENDS = ("jump", "return", "stop", "unknown", "system")


class _Source(NamedTuple):
    """How an instruction sets a register: to `constant`, plus a register (`copied`, -1: none). If
    `loads` is set, this sum is the address from which it is loaded. `is_after`: the register
    `copied` is that after the instruction, which added a number to it: ldr x2, [x1], #8.
    `scaled`: a register (-1: none) that is shifted by `shift` bits and added to the address."""

    constant: int
    copied: int
    loads: bool
    is_after: bool = False
    scaled: int = -1
    shift: int = 0


class StraightAArch64:
    """The instructions of a function that ran one after the other, up to the one at `place`.
    `steps` has only this one if the others are unknown. `registers` has the values of the registers
    there that are known. `reads_memory`: whether values are read from memory. It is False if the
    memory may have changed since these instructions loaded from it."""

    def __init__(self, tracer: Tracer, level: int, place: int, is_outer: bool = False, callers: int = _MOST_CALLERS) -> None:
        """`is_outer`: whether code ran after the instruction at `place`, which is a call.
        `callers`: maximum number of frames through which an argument is followed."""
        self._callers, self.reads_memory = callers, True
        self._tracer, self._target, self._unwinder, self._level = tracer, tracer.target, tracer.unwinder, level
        self._memory = Memory(tracer.target)
        self._decoder, self._registers = aarch64.decoder()
        # No instruction ran after a call of an address that is not code.
        known = tracer.frame_registers(level) if is_outer else tracer.frame_registers(0)
        self.registers: Mapping[int, int] = {one: known[one] for one in _CALLEE_SAVED if one in known} if is_outer else known
        self.steps: list[tuple[Any, Effect]] = []
        self._is_entry = self._leaves = False
        extent = self._unwinder.extent(place)
        is_small = extent is not None and extent.end - extent.start <= _LARGEST
        joins = self._find_joins(extent) if extent is not None and is_small and self._is_start(extent.start) else None
        if extent is None or joins is None:
            self.steps.extend(self._decode(Range(place, place + INSTRUCTION)))
            return
        for insn, one in self._decode(Range(extent.start, place + INSTRUCTION)):
            if insn.address in joins or (self.steps and self.steps[-1][1].flow in _ENDS):
                self.steps.clear()
            self.steps.append((insn, one))
        self._is_entry = bool(self.steps) and self.steps[0][0].address == extent.start and extent.start not in joins

    def last(self) -> Optional[Any]:
        """Return the instruction at the place; None if its bytes are not an instruction."""
        return self.steps[-1][0] if self.steps and self.steps[-1][0].id else None

    def _is_start(self, address: int) -> bool:
        """Whether a function begins at `address`, where an entry of the call frame information
        begins. The entry may also be that of a part of a function that the compiler moved."""
        if not self._is_frameless(address):
            return False
        symbol, first = self._target.symbolize(address), next(self._decode(Range(address, address + INSTRUCTION)), None)
        is_named = symbol is not None and symbol.address == address and ".cold" not in symbol.name
        is_marked = first is not None and bool(first[0].id) and first[0].insn_name() in _FIRST
        return is_named or is_marked or address == self._find_called()

    def _find_called(self) -> int:
        """Return the function that the next outer frame called; 0 if it is unknown."""
        frames = self._tracer.frames
        if self._level + 1 >= len(frames):
            return 0
        place = frames[self._level + 1].pc - INSTRUCTION
        found = next(self._decode(Range(place, place + INSTRUCTION)), None)
        return resolve_stub(self._target, found[1].target) if found is not None and found[1].flow == "call" and found[1].target else 0

    def number(self, register: int) -> int:
        """Return the number of one of capstone's registers; -1 if it is not a general register."""
        number, _ = self._registers.get(register, (-1, 0))
        return number if 0 <= number <= SP else -1

    def find_siblings(self, register: int) -> Optional[Siblings]:
        """Return how the value of a register was loaded; see overwritten_base.py."""
        end = len(self.steps) - 1
        last = self._last_write(end, register)
        source = self._source(last, register) if last is not None and self.steps[last][1].flow == "next" else None
        if last is None or source is None or not source.loads or source.scaled >= 0 or self._may_write(last + 1):
            return None
        base = source.copied
        # ldp loads both words at once.
        changes = [at for at in range(last, end) if find_changes(self.steps[at][1]) & 1 << base]
        other = self._source(changes[0], base) if len(changes) == 1 else None
        value = self.registers.get(base)
        if base in (register, SP) or other is None or not other.loads or other.copied != base or value is None:
            return None
        if other.scaled >= 0 or other.is_after:
            return None
        return Siblings(source.constant, other.constant, value, self._level)

    def find_callee(self) -> int:
        """Return the function that the last instruction calls directly; 0 if it is unknown."""
        one = self.steps[-1][1] if self.steps else None
        return resolve_stub(self._target, one.target) if one is not None and one.flow == "call" and one.target else 0

    def value(self, register: int) -> Optional[int]:
        """Return the value of a register before the last instruction; None if it is unknown. An
        argument of the function is followed to its caller."""
        return self._value(len(self.steps) - 1, register, _DEEPEST) if self.steps else None

    def origin(self, register: int, expected: Optional[int]) -> Optional[Origin]:
        """Return where the value of a register at the place comes from. `expected`: this value;
        None: do not compare it with the memory from which it was loaded."""
        is_distinct = expected is not None and expected >= _NULLS
        found = self._origin(len(self.steps) - 1, register, 0, _DEEPEST, is_distinct)
        if found is None or found.sort != "memory" or expected is None:
            return found
        word = self._memory.word(found.address)
        return found if word is not None and (word + found.offset - expected) & MASK == 0 else None

    def _origin(self, at: int, register: int, offset: int, depth: int, is_distinct: bool) -> Optional[Origin]:
        last = self._last_write(at, register)
        if last is None:
            return self._argument(register, offset, is_distinct) if self._is_entry and register < _ARGUMENTS else None
        one = self.steps[last][1]
        if one.flow == "call":
            return Origin("result", self._level, resolve_stub(self._target, one.target), 8, offset) if not register and one.target else None
        source = self._source(last, register)
        if source is None or not depth:
            return None
        if not source.loads and source.copied < 0:
            return Origin("constant", self._level)
        if not source.loads:
            return self._origin(last, source.copied, offset + source.constant, depth - 1, is_distinct)
        address = self._address(last, source, depth)
        is_older = any(one.flow == "call" for _, one in self.steps[last + 1 : -1])
        return None if address is None else Origin("memory", self._level, address, 8, offset, is_older=is_older)

    def _argument(self, register: int, offset: int, is_distinct: bool) -> Origin:
        """Return the origin of an argument of the function: its origin in the caller if the caller
        is certain, otherwise the argument itself. `is_distinct`: whether an equal word elsewhere is
        hardly equal by chance."""
        here = Origin("argument", self._level, self.steps[0][0].address, 8, offset, register + 1)
        outer = self._find_caller()
        if outer is None:
            return here
        found = outer._origin(len(outer.steps) - 1, register, offset, _DEEPEST, is_distinct)
        if found is None or (self._leaves and not (found.sort == "memory" and is_distinct)):
            return here
        return found._replace(is_older=found.is_older or any(one.flow == "call" for _, one in self.steps[:-1]))

    def _address(self, at: int, source: _Source, depth: int) -> Optional[int]:
        """Return the address from which instruction `at` loads, or the sum to which it sets a
        register; None if it is unknown."""
        base = self._value(at + source.is_after, source.copied, depth - 1) if source.copied >= 0 else 0
        index = self._value(at, source.scaled, depth - 1) if source.scaled >= 0 else 0
        return None if base is None or index is None else base + (index << source.shift) + source.constant & MASK

    def _value(self, at: int, register: int, depth: int) -> Optional[int]:
        """Return the value of a register before instruction `at`."""
        added = self._sum_added(at, register)
        if added is not None and register in self.registers:
            return self.registers[register] - added & MASK
        last = self._last_write(at, register)
        copy = self._read_copy(0 if last is None else last + 1, at, register)
        if copy is not None:
            return copy
        if last is None:
            return self._value_in_caller(register, depth)
        source = self._source(last, register)
        if source is None or not depth:
            return None
        address = self._address(last, source, depth)
        if address is None or not source.loads:
            return address
        return self._memory.word(address) if self.reads_memory and not self._may_write(last + 1) else None

    def _value_in_caller(self, register: int, depth: int) -> Optional[int]:
        """Return the value of an argument of the function at its start, if the caller is certain;
        otherwise None."""
        outer = self._find_caller() if self._is_entry and register < _ARGUMENTS and not self._leaves and depth > 0 else None
        if outer is None:
            return None
        outer.reads_memory = self.reads_memory and not any(writes_beyond_frame(*step, self._registers) for step in self.steps[:-1])
        return outer._value(len(outer.steps) - 1, register, depth - 1)

    def _find_caller(self) -> Optional[StraightAArch64]:
        """Return the instructions of the caller up to its call of this function; None if it is not
        certain which ones ran."""
        caller = self._level + 1
        if not self._callers or self._find_called() != self.steps[0][0].address:
            return None
        place = self._tracer.frames[caller].pc - INSTRUCTION
        return StraightAArch64(self._tracer, caller, place, True, self._callers - 1)

    def _read_copy(self, start: int, end: int, register: int) -> Optional[int]:
        """Return the value of a register that an instruction in [start, end) copied to another
        register whose value is known. These instructions do not change the first register."""
        for index in range(start, end):
            one = self.steps[index][1]
            copy = one.kills.bit_length() - 1
            if one.copied != register or one.loads or not one.kills or one.kills != 1 << copy or copy not in self.registers:
                continue
            added = self._sum_added(index + 1, copy)
            if added is not None:
                return self.registers[copy] - added - (one.constant or 0) & MASK
        return None

    def _may_write(self, at: int) -> bool:
        """Whether instructions from `at` on, without the last one, may change memory."""
        return any(_writes(*step) for step in self.steps[at:-1])

    def _sum_added(self, at: int, register: int) -> Optional[int]:
        """Return what the instructions from `at` on, without the last one, add to a register; None
        if they change it in another way."""
        added = 0
        for insn, one in self.steps[at:-1]:
            if register == SP and self._moves_stack(insn):
                return None
            if not find_changes(one) & 1 << register:
                continue
            if one.kills != 1 << register or one.copied != register or one.loads or one.constant is None:
                return None
            added += one.constant
        return added

    def _moves_stack(self, insn: Any) -> bool:
        """Whether an instruction changes the stack pointer, which is not in Effect.changed."""
        if not insn.id or not insn.operands:
            return False
        if insn.writeback:
            return any(one.type == MEMORY and self.number(one.mem.base) == SP for one in insn.operands)
        first = insn.operands[0]
        return first.type == _REGISTER and self.number(first.reg) == SP and insn.insn_name() not in ("cmp", "cmn")

    def _last_write(self, at: int, register: int) -> Optional[int]:
        return next((index for index in range(at - 1, -1, -1) if find_changes(self.steps[index][1]) & 1 << register), None)

    def _source(self, at: int, register: int) -> Optional[_Source]:
        insn, one = self.steps[at]
        if insn.insn_name() in _LOADS:
            return self._read_load(insn, register)
        if one.kills != 1 << register or (one.constant is None and one.copied < 0):
            return None
        return _Source(one.constant or 0, one.copied, one.loads)

    def _read_load(self, insn: Any, register: int) -> Optional[_Source]:
        operands = [one for one in insn.operands if one.type == _REGISTER]
        place = next((one.mem for one in insn.operands if one.type == MEMORY), None)
        base = self.number(place.base) if place is not None else -1
        numbers = [at for at, one in enumerate(operands) if self._registers.get(one.reg) == (register, 8)]
        if place is None or base < 0 or not numbers:
            return None
        if place.index:
            index, width = self._registers.get(place.index, (-1, 0))
            shift = insn.operands[-1].shift
            return _Source(0, base, True, False, index, shift.value if shift.type else 0) if width == 8 and 0 <= index < SP else None
        if not insn.writeback:
            return _Source(place.disp + 8 * numbers[0], base, True)
        # The number is added before the access if it is in the brackets: [x1, #8]!
        added = 0 if "]!" in insn.op_str else int(insn.op_str.rpartition("#")[2], 0)
        return _Source(8 * numbers[0] - added, base, True, True) if base != register else None

    def _find_joins(self, function: Range) -> Optional[set[int]]:
        """Return the addresses in a function to which jumps and exceptions lead; None if some are
        unknown."""
        found, seen, parts = set[int](), {function.start}, [function]
        while parts:
            part = parts.pop()
            pads = self._unwinder.landing_pads(part.start)
            code = list(self._decode(part))
            if pads is None or not code or code[-1][0].address + INSTRUCTION < part.end or len(seen) > _MOST_PARTS:
                return None
            found |= pads
            for at, (insn, one) in enumerate(code):
                is_signed = bool(insn.id) and insn.insn_name().startswith("bra")  # braa, brab
                if is_signed or (one.flow == "jump" and one.via >= 0):
                    if is_signed or not self._is_tail_call(code[max(at - _NEAR, 0) : at], insn.address, one.via):
                        return None
                    self._leaves = True
                if one.flow not in ("jump", "branch") or not one.target:
                    continue
                found.add(one.target)
                self._leaves |= not function.start <= one.target < function.end
                other = self._unwinder.extent(one.target)
                if other is not None and other.start not in seen and other.end - other.start <= _LARGEST:
                    seen.add(other.start)
                    parts.append(other)
        return found

    def _is_tail_call(self, before: Sequence[tuple[Any, Effect]], address: int, register: int) -> bool:
        """Whether an indirect jump is not one of a switch: the instruction before it removes the
        frame, and the address was not computed, as it is for a switch. `before`: the instructions
        before the jump. `register`: the register with the address."""
        if not before or not self._is_frameless(address) or self._is_frameless(before[-1][0].address):
            return False
        last = next((one for one in reversed(before) if find_changes(one[1]) & 1 << register), None)
        return last is None or (bool(last[0].id) and last[0].insn_name() in (*_LOADS, "mov"))

    def _is_frameless(self, address: int) -> bool:
        row = self._unwinder.row(address)
        return row is None or bool(row.expression) or (row.register == SP and not row.offset)

    def _decode(self, extent: Range) -> Iterator[tuple[Any, Effect]]:
        try:
            code = self._target.read_code(extent.start, extent.end - extent.start)
        except UnreadableMemory:
            return
        for insn in self._decoder.disasm(code, extent.start):
            yield insn, effect(insn) if insn.id else Effect(insn.address, INSTRUCTION, 0, 0, "unknown")


def find_changes(one: Effect) -> int:
    """Return the mask of the registers that an instruction may change."""
    return AFTER_CALL if one.flow == "call" else MASK if one.flow in ("unknown", "system") else one.changed


def _writes(insn: Any, one: Effect) -> bool:
    """Whether an instruction may change memory."""
    return one.flow == "call" or not insn.id or _WRITES.match(insn.insn_name()) is not None


def writes_beyond_frame(insn: Any, one: Effect, registers: Mapping[int, tuple[int, int]]) -> bool:
    """Whether an instruction may change other memory than the frame of its function. `registers`:
    see aarch64.decoder."""
    if not _writes(insn, one):
        return False
    return (
        one.flow == "call"
        or not insn.id
        or all(each.type != MEMORY or registers.get(each.mem.base, (-1, 0))[0] != SP for each in insn.operands)
    )
