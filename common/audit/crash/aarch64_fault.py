"""Find the pointer or index that made an instruction of AArch64 fault, and where it came from.

The instructions that certainly ran directly before it are followed backwards, as on x86-64
(straight_code.py, value_origin.py), in one function only. Nothing is certain in a function with an
indirect jump that may be a switch. Only copies, additions of constants and loads of 64 bits are
followed.

Source of the semantics: Arm Architecture Reference Manual for A-profile (DDI 0487), C6.2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from findleaks.target.ranges import region_at
from findleaks.value_classes import NamedTuple

_LARGEST = 32 << 10  # bytes of a function that are decoded
_MOST_PARTS = 8  # maximum number of moved parts of a function that are decoded
_REGISTER, _IMMEDIATE, _MEMORY = 1, 2, 3  # capstone's ARM64_OP_…
_SP = 31
_ARGUMENTS = 8  # x0 to x7
_AFTER_CALL = (1 << 19) - 1 | 1 << 30  # registers that a called function may change
_DEEPEST = 12  # maximum number of instructions from which one value is computed
_REACH = 64  # bytes: an access that faults is less than this beyond the operand's address
_MASK = (1 << 64) - 1
_LOADS = ("ldr", "ldur", "ldp")
_SIZE = 4  # bytes of an instruction
_ENDS = ("jump", "return", "stop", "unknown", "system")


class Access(NamedTuple):
    """What an instruction used. `kind`: "pointer", "index" or "call"; see Fault. `array`: the
    address to which the index was added; None if it is unknown."""

    kind: str
    name: str
    register: int
    value: int
    origin: Optional[Origin]
    array: Optional[int] = None
    siblings: Optional[Siblings] = None


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


def find_access(tracer: Tracer, address: int) -> Optional[Access]:
    """Return the pointer or index with which the innermost frame of a thread accessed, or called,
    `address`; None if it is unknown. Raises CapstoneMissing."""
    pc = tracer.frames[0].pc
    if pc == address:
        return _find_call(tracer, address)
    code = _Code(tracer, 0, pc)
    return _find_operand(tracer, code, address) if code.steps else None


def _find_call(tracer: Tracer, address: int) -> Optional[Access]:
    """Return the pointer that a frame called. The called address is not code."""
    code = _Code(tracer, 1, tracer.frames[1].pc - _SIZE) if len(tracer.frames) > 1 else None
    last = code.steps[-1][1] if code is not None and code.steps else None
    if code is None or last is None or last.flow != "call" or last.via < 0 or code.registers.get(last.via) != address:
        return None
    return code.access("call", last.via, address)


def _find_operand(tracer: Tracer, code: _Code, address: int) -> Optional[Access]:
    insn = code.steps[-1][0]
    place = next((one for one in insn.operands if one.type == _MEMORY), None)
    base = code.number(place.mem.base) if place is not None else -1
    if place is None or base in (-1, _SP) or base not in code.registers:
        return None
    value, name = code.registers[base], insn.insn_name()
    is_mapped = region_at(tracer.target.regions(), value) is not None
    index = code.number(place.mem.index) if place.mem.index else -1
    if index < 0:
        starts = (value + place.mem.disp, value)  # the displacement may be added after the access
        if is_mapped or not any(0 <= address - (start & _MASK) < _REACH for start in starts):
            return None
        return code.access("pointer", base, value)
    raw, shift = code.registers.get(index, 0), place.shift.value if place.shift.type else 0
    signed = (raw & 0xFFFFFFFF) - ((raw & 1 << 31) << 1)
    used = next((one for one in (raw, raw & 0xFFFFFFFF, signed) if 0 <= address - (value + (one << shift) & _MASK) < _REACH), None)
    origin = code.origin(index, None) if used is not None else None
    # If the origin of the index is unknown, it may be the distance between two pointers.
    if used is None or not is_mapped or origin is None:
        return None
    return Access("index", name, index, used - (used >> 63 << 64), origin, value)


class _Code:
    """The instructions of a function that ran one after the other, up to the one at `place`.
    `steps` has only this one if the others are unknown. `registers` has the values of the registers
    there."""

    def __init__(self, tracer: Tracer, level: int, place: int) -> None:
        self._target, self._unwinder, self._level = tracer.target, tracer.unwinder, level
        self._memory = Memory(tracer.target)
        self._decoder, self._registers = aarch64.decoder()
        # No instruction ran after a call of an address that is not code.
        self.registers: Mapping[int, int] = tracer.innermost_registers()
        self.steps: list[tuple[Any, Effect]] = []
        self._is_entry = False
        extent = self._unwinder.extent(place)
        joins = self._find_joins(extent) if extent is not None and extent.end - extent.start <= _LARGEST else None
        if extent is None or joins is None:
            self.steps.extend(self._decode(Range(place, place + _SIZE)))
            return
        for insn, one in self._decode(Range(extent.start, place + _SIZE)):
            if insn.address in joins or (self.steps and self.steps[-1][1].flow in _ENDS):
                self.steps.clear()
            self.steps.append((insn, one))
        self._is_entry = bool(self.steps) and self.steps[0][0].address == extent.start and extent.start not in joins

    def number(self, register: int) -> int:
        """Return the number of one of capstone's registers; -1 if it is no general register."""
        number, _ = self._registers.get(register, (-1, 0))
        return number if 0 <= number <= _SP else -1

    def access(self, kind: str, register: int, value: int) -> Access:
        """Return the use of the pointer `value` in a register."""
        origin = self.origin(register, value)
        return Access(
            kind, self.steps[-1][0].insn_name(), register, value, origin, siblings=None if origin else self._find_siblings(register)
        )

    def _find_siblings(self, register: int) -> Optional[Siblings]:
        """Return how the value of a register was loaded; see overwritten_base.py."""
        end = len(self.steps) - 1
        last = self._last_write(end, register)
        source = self._source(last, register) if last is not None and self.steps[last][1].flow == "next" else None
        if last is None or source is None or not source.loads or source.scaled >= 0:
            return None
        base = source.copied
        # ldp loads both words at once.
        changes = [at for at in range(last, end) if _find_changes(self.steps[at][1]) & 1 << base]
        other = self._source(changes[0], base) if len(changes) == 1 else None
        value = self.registers.get(base)
        if base in (register, _SP) or other is None or not other.loads or other.copied != base or value is None:
            return None
        return Siblings(source.constant, other.constant, value)

    def origin(self, register: int, expected: Optional[int]) -> Optional[Origin]:
        """Return where the value of a register at the place comes from. `expected`: this value;
        None: do not compare it with the memory from which it was loaded."""
        found = self._origin(len(self.steps) - 1, register, 0, _DEEPEST)
        if found is None or found.sort != "memory" or expected is None:
            return found
        word = self._memory.word(found.address)
        return found if word is not None and (word + found.offset - expected) & _MASK == 0 else None

    def _origin(self, at: int, register: int, offset: int, depth: int) -> Optional[Origin]:
        last = self._last_write(at, register)
        if last is None:
            entry = self.steps[0][0].address
            is_argument = self._is_entry and register < _ARGUMENTS
            return Origin("argument", self._level, entry, 8, offset, register + 1) if is_argument else None
        one = self.steps[last][1]
        if one.flow == "call":
            return Origin("result", self._level, resolve_stub(self._target, one.target), 8, offset) if not register and one.target else None
        source = self._source(last, register)
        if source is None or not depth:
            return None
        if not source.loads:
            return (
                Origin("constant", self._level)
                if source.copied < 0
                else self._origin(last, source.copied, offset + source.constant, depth - 1)
            )
        address = self._address(last, source, depth)
        return None if address is None else Origin("memory", self._level, address, 8, offset)

    def _address(self, at: int, source: _Source, depth: int) -> Optional[int]:
        """Return the address from which instruction `at` loads, or the sum to which it sets a
        register; None if it is unknown."""
        base = self._value(at + source.is_after, source.copied, depth - 1) if source.copied >= 0 else 0
        index = self._value(at, source.scaled, depth - 1) if source.scaled >= 0 else 0
        return None if base is None or index is None else base + (index << source.shift) + source.constant & _MASK

    def _value(self, at: int, register: int, depth: int) -> Optional[int]:
        """Return the value of a register before instruction `at`."""
        added = self._sum_added(at, register)
        if added is not None and register in self.registers:
            return self.registers[register] - added & _MASK
        last = self._last_write(at, register)
        source = self._source(last, register) if last is not None else None
        if last is None or source is None or not depth:
            return None
        address = self._address(last, source, depth)
        if address is None or not source.loads:
            return address
        if any(one.flow == "call" or insn.insn_name().startswith("st") for insn, one in self.steps[last + 1 : -1]):
            return None  # the word may have changed
        return self._memory.word(address)

    def _sum_added(self, at: int, register: int) -> Optional[int]:
        """Return what the instructions from `at` on, without the last one, add to a register; None
        if they change it otherwise."""
        added = 0
        for _, one in self.steps[at:-1]:
            if not _find_changes(one) & 1 << register:
                continue
            if one.kills != 1 << register or one.copied != register or one.loads or one.constant is None:
                return None
            added += one.constant
        return added

    def _last_write(self, at: int, register: int) -> Optional[int]:
        return next((index for index in range(at - 1, -1, -1) if _find_changes(self.steps[index][1]) & 1 << register), None)

    def _source(self, at: int, register: int) -> Optional[_Source]:
        insn, one = self.steps[at]
        if insn.insn_name() in _LOADS:
            return self._read_load(insn, register)
        if one.kills != 1 << register or (one.constant is None and one.copied < 0):
            return None
        return _Source(one.constant or 0, one.copied, one.loads)

    def _read_load(self, insn: Any, register: int) -> Optional[_Source]:
        operands = [one for one in insn.operands if one.type == _REGISTER]
        place = next((one.mem for one in insn.operands if one.type == _MEMORY), None)
        base = self.number(place.base) if place is not None else -1
        numbers = [at for at, one in enumerate(operands) if self._registers.get(one.reg) == (register, 8)]
        if place is None or base < 0 or not numbers:
            return None
        if place.index:
            index, width = self._registers.get(place.index, (-1, 0))
            shift = insn.operands[-1].shift
            return _Source(0, base, True, False, index, shift.value if shift.type else 0) if width == 8 and 0 <= index < _SP else None
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
            if pads is None or not code or code[-1][0].address + _SIZE < part.end or len(seen) > _MOST_PARTS:
                return None
            found |= pads
            for at, (insn, one) in enumerate(code):
                if one.flow == "jump" and one.via >= 0 and not self._is_tail_call(insn.address, code[at - 1][0].address if at else 0):
                    return None
                if one.flow not in ("jump", "branch") or not one.target:
                    continue
                found.add(one.target)
                other = self._unwinder.extent(one.target)
                if other is not None and other.start not in seen and other.end - other.start <= _LARGEST:
                    seen.add(other.start)
                    parts.append(other)
        return found

    def _is_tail_call(self, address: int, before: int) -> bool:
        """Whether the instruction before an indirect jump removes the frame."""
        return self._is_frameless(address) and bool(before) and not self._is_frameless(before)

    def _is_frameless(self, address: int) -> bool:
        row = self._unwinder.row(address)
        return row is None or bool(row.expression) or (row.register == _SP and not row.offset)

    def _decode(self, extent: Range) -> Iterator[tuple[Any, Effect]]:
        try:
            code = self._target.read_code(extent.start, extent.end - extent.start)
        except UnreadableMemory:
            return
        for insn in self._decoder.disasm(code, extent.start):
            yield insn, effect(insn) if insn.id else Effect(insn.address, _SIZE, 0, 0, "unknown")


def _find_changes(one: Effect) -> int:
    """Return the mask of the registers that an instruction may change."""
    return _AFTER_CALL if one.flow == "call" else _MASK if one.flow in ("unknown", "system") else one.changed
