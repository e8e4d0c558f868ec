"""Find out where the value of a register comes from (x86-64).

The code before a place in a function is followed backwards: copies between registers, additions of
constants, loads, and the arguments of calls. The result is certain: only code that ran is followed
(see straight_code.py), and registers that may have changed later are unknown. A word may have
changed after it was loaded. Therefore it must still be equal to the value that was used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Optional

from findleaks.allocators.memory import Memory
from findleaks.audit.crash.straight_code import CodeReader, StraightCode, sum_added
from findleaks.disasm.functions import find_slot, resolve_stub
from findleaks.disasm.instruction import NONE, Instruction
from findleaks.disasm.registers import ARGUMENTS, CALLEE_SAVED, GENERAL, RAX, RBP, RDI, RIP, RSP
from findleaks.target.base import Target
from findleaks.unwind.frames import Frame, FrameRegisters, Unwinder
from findleaks.value_classes import NamedTuple

_MASK = (1 << 64) - 1
_DEEPEST = 12  # maximum number of instructions from which one value is computed
_MOST_VALUES = 5000  # maximum number of values that are computed for one thread
_NULLS = 1 << 12  # smaller values are null pointers, and offsets from them
_STRINGS = ("movsb", "movsw", "movsd", "movsq", "stosb", "stosw", "stosd", "stosq")
_LOADS = ("mov", "movsxd")
_EXTENDS = ("cdqe", "movsxd")
_LOW, _SIGN = (1 << 32) - 1, 1 << 31
_READING = ("cmp", "test", "push", "call", "jmp")  # instructions that only read their first operand


class Origin(NamedTuple):
    """Where a value comes from.

    - "memory": it was loaded from the `width` bytes at `address`
    - "result": the function at `address` returned it (0: unknown)
    - "constant": it is a number in the code, or was computed from rip or the stack pointer
    - "argument": it is argument `number` (from 1) of the function of frame `level`

    `offset`: the value minus the value that was loaded, returned or passed. `level`: the index of
    the frame whose code loaded the value, called the function, or has the argument. `is_older`:
    whether functions were called after the value was loaded. They may have freed the block that
    contains it."""

    sort: Literal["memory", "result", "constant", "argument"]
    level: int
    address: int = 0
    width: int = 8
    offset: int = 0
    number: int = 0
    is_older: bool = False


class Tracer:
    """Follows values through the frames of one thread. The place of a frame is the instruction that
    the frame executes: the interrupted one, or the call of the next inner frame."""

    def __init__(
        self,
        target: Target,
        unwinder: Unwinder,
        frames: Sequence[Frame],
        registers: Sequence[FrameRegisters],
        thread_pointer: int,
        exact: int = 0,
    ) -> None:
        """`frames`, `registers`: those of the thread, from the interrupted frame on. `exact`: index
        of the outermost frame all of whose registers are known: 1 after a call of an address that
        is not code, else 0."""
        self.target, self.unwinder, self.frames = target, unwinder, frames
        self.reader = CodeReader(target, unwinder)
        self._memory, self.thread_pointer, self._exact = Memory(target), thread_pointer, exact
        self._registers, self._names = registers, target.arch.dwarf_registers
        self._code: dict[int, Optional[StraightCode]] = {}
        self._left = _MOST_VALUES
        self._is_distinct = False  # whether an equal word elsewhere is hardly equal by chance
        self._reads_memory = True  # whether words that were loaded have the same values now

    def code(self, level: int) -> Optional[StraightCode]:
        """Return the code before the place at which a frame is; None if it is unknown."""
        if level not in self._code:
            frame = self.frames[level]
            called = self.reader.direct_call(self.frames[level + 1].pc) if level + 1 < len(self.frames) else 0
            self._code[level] = self.reader.before(frame.pc, frame.pc != frame.call, called)
        return self._code[level]

    def known_registers(self, level: int) -> Mapping[int, int]:
        """Return the registers whose values at the place are known, by number."""
        if level >= len(self._registers):
            return {}
        known = self._registers[level].registers
        values = {self._names[number]: value for number, value in known.items() if 0 <= number < len(self._names)}
        wanted = range(len(GENERAL)) if level <= self._exact else (*CALLEE_SAVED, RSP)
        return {number: values[GENERAL[number]] for number in wanted if GENERAL[number] in values}

    def frame_registers(self, level: int) -> Mapping[int, int]:
        """Return the registers of a frame, by DWARF number, of any architecture."""
        return self._registers[level].registers if level < len(self._registers) else {}

    def value(self, level: int, register: int) -> Optional[int]:
        """Return the value of a register at the place; None if it is unknown."""
        code = self.code(level)
        self._is_distinct = False
        if register in self.known_registers(level):
            return self.known_registers(level)[register]
        return self._value(level, code, len(code.steps) - 1, register, _DEEPEST) if code is not None else None

    def operand(self, level: int) -> Optional[int]:
        """Return the address of the memory operand at the place; None if it is unknown."""
        code = self.code(level)
        self._is_distinct = False
        return self._address(level, code, len(code.steps) - 1, _DEEPEST) if code is not None else None

    def origin(self, level: int, register: int, expected: Optional[int]) -> Optional[Origin]:
        """Return where the value of a register at the place of a frame comes from; None if it is
        unknown. `expected`: the value of the register; None if it is unknown."""
        code = self.code(level)
        self._is_distinct = expected is not None and expected >= _NULLS
        found = self._origin(level, code, len(code.steps) - 1, register, 0, _DEEPEST) if code is not None else None
        return found if found is None or self._agrees(found, expected) else None

    def summands(self, level: int, register: int, value: int) -> Optional[tuple[int, int, bool]]:
        """Return the two numbers whose sum is the value of a register at the place, and whether the
        second one was scaled; None if the last instruction that changed the register did not add
        them."""
        code = self.code(level)
        if code is None:
            return None
        last, self._is_distinct = len(code.steps) - 1, False
        at = next((index for index in range(last - 1, -1, -1) if code.steps[index].changed & 1 << register), None)
        step = code.steps[at].code if at is not None else None
        if at is None or step is None or step.destination != register or not step.wide:
            return None
        part: Optional[int] = None
        if step.name == "add" and step.displacement is not None:
            address = self._address(level, code, at, _DEEPEST)
            part = self._memory.word(address) if address is not None else None
        elif step.name == "add" and step.source >= 0:
            part = self._value(level, code, at, step.source, _DEEPEST)
        elif step.name == "lea" and step.scaled != NONE and step.base >= 0:
            part = self._value(level, code, at, step.base, _DEEPEST)
        return (part, value - part & _MASK, step.name == "lea" and step.scale > 1) if part is not None else None

    def trace_argument(self, register: int, value: int) -> Optional[Origin]:
        """Return the origin of an argument of the innermost function, if the caller passed `value`
        in `register`; otherwise None. For a fault in strlen(), this needs only the caller's code,
        and not the loops of strlen()."""
        if len(self.frames) < 2 or GENERAL[register] not in ARGUMENTS or self.value(1, register) != value:
            return None
        entry = self.reader.entry(self.frames[0].pc)
        # Null pointers may be equal by chance.
        if not entry or self.called_function(1) != entry:
            return None
        if value < _NULLS and (self.reader.leaves(entry) or not self.reader.keeps(entry, register)):
            return None
        return self.origin(1, register, value)

    def called_function(self, level: int) -> int:
        """Return the address of the function that a frame calls; 0 if it is unknown, as for calls
        through pointers."""
        code = self.code(level)
        target = code.steps[-1].code.target if code is not None and code.steps[-1].code.name == "call" else None
        return resolve_stub(self.target, target) if target is not None else 0

    def called_address(self, level: int) -> int:
        """Return the address that a frame calls through a register or a word, such as that of a
        virtual function; 0 if it is unknown."""
        code = self.code(level)
        call = code.steps[-1].code if code is not None else None
        if call is None or call.name != "call" or call.target is not None:
            return 0
        if call.displacement is None:
            return self.value(level, call.source) or 0
        address = self.operand(level)
        return (self._memory.word(address) or 0) if address is not None else 0

    def called_slot(self, level: int) -> int:
        """Return the address of the slot that contains the address of the imported function which a
        frame calls; 0 if it is unknown."""
        code = self.code(level)
        call = code.steps[-1].code if code is not None else None
        if call is None or call.name != "call":
            return 0
        if call.target is not None:
            return find_slot(self.target, call.target) or 0
        return call.displacement or 0 if call.base == RIP else 0

    def value_before(self, level: int, code: StraightCode, at: int, register: int) -> Optional[int]:
        """Return the value of a register before instruction `at` of the code before the place."""
        self._is_distinct = False
        return self._value(level, code, at, register, _DEEPEST)

    def origin_before(self, level: int, code: StraightCode, at: int, register: int) -> Optional[Origin]:
        """Return the origin of this value; None if it is unknown."""
        self._is_distinct = False
        return self._origin(level, code, at, register, 0, _DEEPEST)

    def read_operand(self, level: int, code: StraightCode, at: int) -> Optional[int]:
        """Return the word that instruction `at` reads, if it is certainly unchanged."""
        address = self._address(level, code, at, _DEEPEST)
        later = range(at + 1, len(code.steps) - 1)
        if address is None or any(self._may_write(level, code, index, address, _DEEPEST) for index in later):
            return None
        return self._memory.word(address)

    def find_store(self, level: int, code: StraightCode, at: int) -> Optional[int]:
        """Return the index of the instruction that stored a register in the word of the frame which
        instruction `at` loads; None if it is unknown."""
        address = self._address(level, code, at, _DEEPEST)
        if address is None:
            return None
        before = next((index for index in range(at - 1, -1, -1) if self._may_write(level, code, index, address, _DEEPEST)), None)
        one = code.steps[before].code if before is not None else None
        is_store = before is not None and one is not None and one.stores and one.wide
        return before if is_store and before is not None and self._address(level, code, before, _DEEPEST - 1) == address else None

    def _agrees(self, found: Origin, expected: Optional[int]) -> bool:
        if found.sort != "memory" or expected is None:
            return True
        data = self._memory.read(found.address, found.width)
        mask = (1 << 8 * found.width) - 1
        return len(data) == found.width and (int.from_bytes(data, "little") + found.offset - expected) & mask == 0

    def _origin(self, level: int, code: StraightCode, at: int, register: int, offset: int, depth: int) -> Optional[Origin]:
        """Like `origin`, for the value before instruction `at` of `code`."""
        if depth <= 0:
            return None
        if register == RSP:
            return Origin("constant", level)
        bit = 1 << register
        while at:
            at -= 1
            one = code.steps[at]
            if not one.changed & bit:
                continue
            step = one.code
            if one.effect.flow == "call":
                return Origin("result", level, self._callee(step), 8, offset) if register == RAX else None
            if step.destination != register:
                return None
            if step.name in _LOADS and step.displacement is not None and step.source == NONE and (step.width >= 4):
                return self._trace_load(level, code, at, offset, depth)
            if step.name in ("mov", "movabs") and step.immediate is not None:
                return Origin("constant", level)
            if step.name == "mov" and step.source >= 0 and step.wide:
                return self._origin(level, code, at, step.source, offset, depth - 1)
            if step.name == "lea" and step.base == RIP:
                return Origin("constant", level)
            if step.name == "lea" and step.scaled == NONE and step.base >= 0 and step.wide:
                return self._origin(level, code, at, step.base, offset + (step.displacement or 0), depth - 1)
            if step.name in ("add", "sub") and step.immediate is not None and step.wide:
                offset += step.immediate if step.name == "add" else -step.immediate
                continue
            if step.name == "xor" and step.source == register:
                return Origin("constant", level)
            return None
        return self._argument(level, code, register, offset) if GENERAL[register] in ARGUMENTS else None

    def _trace_load(self, level: int, code: StraightCode, at: int, offset: int, depth: int) -> Optional[Origin]:
        """Return the origin of a value that instruction `at` loads. If a register was stored to the
        word before, as in unoptimized code, return the origin of that register instead."""
        step, address = code.steps[at].code, self._address(level, code, at, depth - 1)
        if address is None:
            return None
        if step.base in (RBP, RSP) and step.scaled == NONE and not step.fs:
            before = self.find_store(level, code, at)
            if before is not None:
                found = self._origin(level, code, before, code.steps[before].code.source, offset, depth - 1)
                return found or Origin("memory", level, address, 8, offset)
        is_older = any(one.effect.flow == "call" for one in code.steps[at + 1 : -1])
        is_older = is_older or any(self.reader.may_call(self.code(one), self.frames[one].pc) for one in range(self._exact, level))
        return Origin("memory", level, address, 4 if step.name == "movsxd" else step.width, offset, is_older=is_older)

    def _may_write(self, level: int, code: StraightCode, at: int, address: int, depth: int) -> bool:
        """Whether instruction `at` may change the word at an address. A called function may change
        any word."""
        step = code.steps[at].code
        if code.steps[at].effect.flow == "call":
            return True
        if not step.writes_memory or step.name in _READING:
            return False
        if step.name in _STRINGS and step.base == RDI:
            return True  # with a prefix, it writes more than one element
        written = self._address(level, code, at, depth - 1)
        return written is None or address - max(step.width, 8) < written < address + 8

    def _argument(self, level: int, code: StraightCode, register: int, offset: int) -> Optional[Origin]:
        """Return the origin of an argument of the function: its origin in the caller if the caller
        is certain, otherwise the argument itself."""
        if not code.is_entry:
            return None
        entry = code.steps[0].code.address
        number = ARGUMENTS.index(GENERAL[register]) + 1
        here = Origin("argument", level, entry, 8, offset, number)
        caller = level + 1
        if caller >= len(self.frames) or self.called_function(caller) != entry:
            return here
        outer = self.code(caller)
        found = self._origin(caller, outer, len(outer.steps) - 1, register, offset, _DEEPEST) if outer is not None else None
        # A caller of this function compares such words with the value (_agrees).
        is_checked = found is not None and found.sort == "memory" and self._is_distinct
        return found if found is not None and (is_checked or not self.reader.leaves(entry)) else here

    def _value(self, level: int, code: StraightCode, at: int, register: int, depth: int) -> Optional[int]:
        """Return the value of a register before instruction `at`."""
        self._left -= 1
        if depth <= 0 or self._left < 0:
            return None
        if register == RSP:
            moves = [step.moved for step in code.steps[at:-1]]
            now = self.known_registers(level).get(RSP)
            return None if now is None or None in moves else now - sum(one or 0 for one in moves)
        bit = 1 << register
        value, added = self.known_registers(level).get(register), sum_added(code, at, register)
        if value is not None and added is not None:
            return value - added & _MASK
        before = next((index for index in range(at - 1, -1, -1) if code.steps[index].changed & bit), None)
        if before is not None:
            found = self._compute(level, code, before, register, depth)
            if found is not None:
                return found
        return self._trace_copy(level, code, before, at, register, depth)

    def _trace_copy(self, level: int, code: StraightCode, before: Optional[int], at: int, register: int, depth: int) -> Optional[int]:
        """Return the value of a register before instruction `at` from a copy of it, or from the
        caller. `before`: the last instruction that sets the register; None if it is an argument."""
        known = self.known_registers(level)
        for index in range(0 if before is None else before + 1, at):
            step = code.steps[index].code
            if step.name == "mov" and step.source == register and step.wide and step.destination >= 0:
                copy = step.destination
                if copy in known and not any(one.changed & 1 << copy for one in code.steps[index + 1 : -1]):
                    return known[copy]
        caller = level + 1
        if before is not None or not code.is_entry or GENERAL[register] not in ARGUMENTS or caller >= len(self.frames):
            return None
        entry = code.steps[0].code.address
        outer = (
            self.code(caller) if self.called_function(caller) == entry and (self._is_distinct or not self.reader.leaves(entry)) else None
        )
        if outer is None:
            return None
        before_call, self._reads_memory = self._reads_memory, self._reads_memory and not self._may_write_beyond_frame(code)
        found = self._value(caller, outer, len(outer.steps) - 1, register, depth - 1)
        self._reads_memory = before_call
        return found

    def _may_write_beyond_frame(self, code: StraightCode) -> bool:
        """Whether a function may have changed words after its caller loaded them. While the origin
        of a value is searched for, the answer is no: the value is compared with the word there."""
        steps = () if self._is_distinct else code.steps[:-1]
        written = (step.code for step in steps if step.code.writes_memory and step.code.name not in _READING)
        return any(step.effect.flow == "call" for step in steps) or any(one.base != RSP for one in written)

    def _compute(self, level: int, code: StraightCode, at: int, register: int, depth: int) -> Optional[int]:
        """Return the value to which instruction `at` sets a register."""
        step = code.steps[at].code
        if step.name in _EXTENDS:
            return self._trace_extension(level, code, at, register, depth)
        if step.destination != register or code.steps[at].effect.flow == "call" or step.width < 4:
            return None
        mask = _MASK if step.wide else (1 << 32) - 1
        if step.name in ("mov", "movabs") and step.immediate is not None:
            return step.immediate & mask
        if step.name == "xor" and step.source == register and step.displacement is None:
            return 0
        if step.name == "lea":
            address = self._address(level, code, at, depth - 1)
            return address & mask if address is not None else None
        if step.loads:
            address = self._address(level, code, at, depth - 1)
            later = range(at + 1, len(code.steps) - 1)
            if address is None or not self._reads_memory or any(self._may_write(level, code, index, address, depth) for index in later):
                return None
            data = self._memory.read(address, step.width)
            return int.from_bytes(data, "little") if len(data) == step.width else None
        is_sum = step.name == "add" and step.source >= 0
        is_moved = is_sum or (step.name in ("add", "sub") and step.immediate is not None)
        source = register if is_moved else step.source if step.name == "mov" else NONE
        value = self._value(level, code, at, source, depth - 1) if source >= 0 and step.displacement is None else None
        more = self._value(level, code, at, step.source, depth - 1) if is_sum and value is not None else step.immediate or 0
        if value is None or more is None:
            return None
        return (value + more * {"add": 1, "sub": -1}.get(step.name, 0)) & mask

    def _trace_extension(self, level: int, code: StraightCode, at: int, register: int, depth: int) -> Optional[int]:
        """Return the 32-bit number that instruction `at` extends to the 64 bits of a register."""
        step = code.steps[at].code
        source = RAX if step.name == "cdqe" else step.source
        if (RAX if step.name == "cdqe" else step.destination) != register or (step.name != "cdqe" and not step.wide):
            return None
        if step.name == "movsxd" and step.displacement is not None:
            address, later = self._address(level, code, at, depth - 1), range(at + 1, len(code.steps) - 1)
            if address is None or not self._reads_memory or any(self._may_write(level, code, index, address, depth) for index in later):
                return None
            data = self._memory.read(address, 4)
            return int.from_bytes(data, "little", signed=True) & _MASK if len(data) == 4 else None
        value = self._value(level, code, at, source, depth - 1) if source >= 0 else None
        return None if value is None else ((value & _LOW) ^ _SIGN) - _SIGN & _MASK

    def _address(self, level: int, code: StraightCode, at: int, depth: int) -> Optional[int]:
        """Return the address of the memory operand of instruction `at`."""
        step: Instruction = code.steps[at].code
        return step.operand_address(
            lambda register: self._value(level, code, at, register, depth - 1) if depth > 0 else None, self.thread_pointer
        )

    def _callee(self, step: Instruction) -> int:
        if step.target is not None:
            return resolve_stub(self.target, step.target)
        # A call through a slot of the global offset table, as -fno-plt and rustc generate it
        is_slot = step.base == RIP and step.scaled == NONE and step.displacement is not None
        return (self._memory.word(step.displacement or 0) or 0) if is_slot else 0
