"""Read the instructions that certainly ran directly before a place in a function (x86-64).

The instruction before a place ran before it, unless it never falls through, or unless a jump or an
exception leads to the place. So the function is decoded as a whole, together with the parts of it
that the compiler moved elsewhere and that jump back. Nothing is certain in a function with an
indirect jump whose destinations are unknown (see jump_tables.py)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Optional

from findleaks.audit.crash.jump_tables import find_destinations
from findleaks.disasm.effects import ALL_GENERAL, effect
from findleaks.disasm.functions import resolve_stub
from findleaks.disasm.instruction import NONE, Instruction
from findleaks.disasm.machine import Effect
from findleaks.disasm.mnemonics import SET_VECTOR, SET_VEX
from findleaks.disasm.registers import CALLER_SAVED, RAX, RBP, RCX, RDX, RSP
from findleaks.disasm.x86 import decoder
from findleaks.errors import UnreadableMemory
from findleaks.target.base import Range, Target
from findleaks.unwind.frames import Unwinder
from findleaks.value_classes import NamedTuple

_LARGEST = 32 << 10  # bytes of a function that are decoded
# Bytes of all functions that are decoded for one thread, to limit the time (about 0.1 s for 8 KiB)
_MOST_BYTES = 128 << 10
_LARGEST_END = 256  # bytes of a function that is examined for a return
_LONGEST = 15  # bytes of the longest instruction
_MOST_PARTS = 8  # maximum number of moved parts of a function that are decoded
_ARITHMETIC = ("add", "sub", "inc", "dec", "and", "or")
_SUBTRACT = ("sub", "sbb", "neg", "not")
_ALIGNED = 64  # maximum number of bytes of padding between two functions
_DWARF_RSP = 7
_DIRECT_CALL = 5  # bytes of a direct call
_VECTOR = re.compile(r"[xyz]mm|\bk[0-7]")
_ENDS = ("jump", "return", "stop", "unknown", "system")
_LAST = ("call", "jump", "stop", "system")  # the last instruction of functions that do not return
# Instructions that change no general register except rsp
_KEEPING = ("cmp", "test", "push", "nop", "comiss", "comisd", "ucomiss", "ucomisd")
_EXTENSIONS = {"cdq": 1 << RDX, "cqo": 1 << RDX, "cdqe": 1 << RAX, "cwde": 1 << RAX}
# Instructions that change several registers: the implicit registers. They may also change the
# registers that are their operands.
_EXCHANGES = {"cmpxchg": 1 << RAX, "xadd": 0, "xchg": 0}
_AFTER_CALL = sum(1 << number for number in CALLER_SAVED)


class Step(NamedTuple):
    """An instruction. `changed`: the mask of the general registers, except rsp, that it may change.
    `moved`: the number that it adds to rsp; None if unknown."""

    code: Instruction
    effect: Effect
    changed: int
    moved: Optional[int]


class StraightCode(NamedTuple):
    """Instructions that ran one after the other, without a jump. The last one is the instruction at
    the place. `is_entry`: whether the first one is the first instruction of the function, and no
    jump leads to it."""

    steps: tuple[Step, ...]
    is_entry: bool


class CodeReader:
    """Decodes functions of a process. A function is the range of its call frame information."""

    def __init__(self, target: Target, unwinder: Unwinder) -> None:
        self._target, self._unwinder = target, unwinder
        self._decoded: dict[int, list[tuple[Any, Effect]]] = {}
        self._joined: dict[int, Optional[set[int]]] = {}
        self._leaving: dict[int, bool] = {}
        self._parts: dict[int, list[Range]] = {}  # moved parts, by the start of the function
        self._entries: dict[int, set[int]] = {}  # addresses in these parts to which jumps lead
        self._left = _MOST_BYTES

    def at(self, address: int) -> Optional[Instruction]:
        """Return the instruction at an address; None if its bytes are not an instruction."""
        found = next(self._decode(Range(address, address + _LONGEST), whole=False), None)
        return decoder().instruction(found) if found is not None else None

    def before(self, address: int, is_return: bool, called: int) -> Optional[StraightCode]:
        """Return the code that ran before `address` and the instruction there. `is_return`: the
        last instruction is instead the one that ends at `address`. `called`: the address that the
        caller called; 0 if unknown. Returns None if the code is unknown."""
        extent = self._unwinder.extent(address - is_return)
        if extent is None or extent.end - extent.start > _LARGEST:
            return None
        found = [(decoder().instruction(insn), one) for insn, one in self._instructions(extent)]
        last = next((at for at, (one, _) in enumerate(found) if (one.end if is_return else one.address) == address), None)
        if last is None:
            return None
        if extent.start not in self._joined:
            self._joined[extent.start] = self._joins(extent)
        is_start = self._is_start(extent.start, called)
        joins = self._joined[extent.start] if is_start else self._joins_of_moved_part(extent)
        steps = [_step(*found[last])]
        at = last
        while at and joins is not None and found[at][0].address not in joins and found[at - 1][1].flow not in _ENDS:
            at -= 1
            steps.append(_step(*found[at]))
        is_entry = is_start and at == 0 and joins is not None and extent.start not in joins
        return StraightCode(tuple(reversed(steps)), is_entry)

    def direct_call(self, address: int) -> int:
        """Return the function that a direct call before a return address reaches; 0 if another
        instruction is there."""
        found = next(self._decode(Range(address - _DIRECT_CALL, address), whole=False), None)
        call = decoder().instruction(found) if found is not None else None
        return resolve_stub(self._target, call.target) if call is not None and call.name == "call" and call.target is not None else 0

    def _is_start(self, address: int, called: int) -> bool:
        """Whether a function begins at `address`, where an entry of the call frame information
        begins. The entry may also be that of a part of a function that the compiler moved, into
        which the rest of the function jumps. `called`: the address that the caller called."""
        if not self._is_frameless(address):
            return False
        symbol, first = self._target.symbolize(address), self.at(address)
        is_named = symbol is not None and symbol.address == address and ".cold" not in symbol.name
        return address == called or is_named or (first is not None and first.name == "endbr64")

    def entry(self, address: int) -> int:
        """Return the address of the first instruction of a function; 0 if it is unknown."""
        extent = self._unwinder.extent(address)
        return extent.start if extent is not None else 0

    def keeps(self, function: int, register: int) -> bool:
        """Whether a function computes new values of the argument in `register` only from its old
        value, as strlen() does (add $16, %rdi)."""
        extent = self._unwinder.extent(function)
        if extent is None or extent.end - extent.start > _LARGEST or self._targets(extent, extent) is None:
            return False
        for insn, one in self._instructions(extent):
            step = _step(decoder().instruction(insn), one)
            if not step.changed & 1 << register or (step.code.destination != register and _VECTOR.search(insn.op_str)):
                continue
            moves = step.code.name == "lea" and step.code.base == register
            if step.code.destination != register or not (moves or step.code.name in _ARITHMETIC):
                return False
        return True

    def leaves(self, function: int) -> bool:
        """Whether a function may end with a jump to another one, which may jump back to it with
        other arguments."""
        if function not in self._leaving:
            extent = self._unwinder.extent(function)
            self._leaving[function] = extent is None or extent.end - extent.start > _LARGEST or self._has_tail_call(extent)
        return self._leaving[function]

    def may_call(self, code: Optional[StraightCode], pc: int) -> bool:
        """Whether the function at `pc` may have called others since it began. True if it is
        unknown. `code`: the code before the place in this function."""
        if code is not None and code.is_entry:
            return any(one.effect.flow == "call" for one in code.steps[:-1])
        extent = self._unwinder.extent(pc)
        whole = self._instructions(extent) if extent is not None and extent.end - extent.start <= _LARGEST else []
        return not whole or any(one.flow == "call" for _, one in whole)

    def subtracts(self, pc: int, register: int) -> bool:
        """Whether the function at `pc` may compute the value of a register by a subtraction, as the
        distance between two pointers, in any order of its instructions. True if it is unknown."""
        extent = self._unwinder.extent(pc)
        code = self._instructions(extent) if extent is not None and extent.end - extent.start <= _LARGEST else []
        steps = [decoder().instruction(insn) for insn, _ in code]
        wanted, count = 1 << register, 0
        while count != wanted:
            count = wanted
            for one in steps:
                if one.source >= 0 and one.destination >= 0 and wanted & 1 << one.destination:
                    wanted |= 1 << one.source
                elif one.name == "lea" and wanted & 1 << one.destination:
                    wanted |= sum(1 << part for part in {one.base, one.scaled} if part >= 0)
        changes = [one for one in steps if one.destination >= 0 and wanted & 1 << one.destination]
        # The register may also be loaded from the stack, where unoptimized code keeps distances.
        if any(one.loads and one.base in (RBP, RSP) for one in changes):
            changes = steps
        # The stack protector subtracts a word of the thread (fs).
        return not steps or any(one.name in _SUBTRACT and one.wide and one.immediate is None and not one.fs for one in changes)

    def never_returns(self, function: int) -> bool:
        """Whether the small function at an address contains neither a return nor a jump to another
        function, such as malloc_printerr() of glibc."""
        extent = self._unwinder.extent(function)
        if extent is None or extent.start != function or extent.end - extent.start > _LARGEST_END:
            return False
        flows = [one for _, one in self._instructions(extent)]
        if not flows or flows[-1].address + flows[-1].size < extent.end or flows[-1].flow not in _LAST:
            # It may continue with the next function, or with instructions that are not decoded.
            return False
        leaves = any(one.flow in ("jump", "branch") and not extent.start <= one.target < extent.end for one in flows)
        return not leaves and not any(one.flow in ("return", "unknown") for one in flows)

    def _has_tail_call(self, extent: Range) -> bool:
        for insn, one in self._instructions(extent):
            is_outside = one.flow in ("jump", "branch") and not extent.start <= one.target < extent.end
            if (is_outside or (one.flow == "unknown" and insn.insn_name() == "jmp")) and self._is_frameless(insn.address):
                return True
        return not self._instructions(extent)

    def _is_frameless(self, address: int) -> bool:
        """Whether the return address is on top of the stack, or may be."""
        row = self._unwinder.row(address)
        return row is None or bool(row.expression) or (row.register == _DWARF_RSP and row.offset == self._target.arch.word)

    def step(self, address: int) -> Optional[Step]:
        """Return the instruction at an address with its effect; None if its bytes are not an
        instruction."""
        found = next(self._decode(Range(address, address + _LONGEST), whole=False), None)
        return _step(decoder().instruction(found), effect(found)) if found is not None else None

    def whole_function(self, function: int) -> list[Step]:
        """Return all instructions of the function that starts at an address, with its parts that
        the compiler moved elsewhere; [] if the destinations of some jumps are unknown."""
        extent = self._unwinder.extent(function)
        if extent is None or extent.start != function or extent.end - extent.start > _LARGEST or self._joins(extent) is None:
            return []
        parts = [extent, *(part for part in self._parts[function] if not self._is_frameless(part.start))]
        return [_step(decoder().instruction(insn), one) for part in parts for insn, one in self._instructions(part)]

    def _joins(self, extent: Range) -> Optional[set[int]]:
        """Return the addresses in a function to which its jumps and exceptions lead; None if some
        destinations are unknown."""
        found: set[int] = set()
        parts, seen = [extent], {extent.start}
        moved, entries = self._parts[extent.start], self._entries[extent.start] = list[Range](), set[int]()
        while parts:
            targets = self._targets(parts.pop(), extent)
            if targets is None:
                return None
            for target in targets:
                if extent.start <= target < extent.end:
                    found.add(target)
                    continue
                entries.add(target)
                part = self._unwinder.extent(target)
                if part is not None and part.start not in seen:
                    if len(seen) > _MOST_PARTS or part.end - part.start > _LARGEST:
                        return None
                    seen.add(part.start)
                    parts.append(part)
                    moved.append(part)
        return found

    def _joins_of_moved_part(self, part: Range) -> Optional[set[int]]:
        """Return the addresses in a part of a function, such as its exception handlers, to which
        jumps and exceptions lead; None if the function or some destinations are unknown."""
        function = self._unwinder.previous_extent(part.start)
        # If the entries are neighbours in memory, too, both are functions. Decoding the other one
        # would only take time.
        if function is None or 0 <= part.start - function.end < _ALIGNED or function.end - function.start > _LARGEST:
            return None
        if self._joins(function) is None:
            return None
        return self._entries[function.start] if part in self._parts[function.start] else None

    def _targets(self, part: Range, function: Range) -> Optional[set[int]]:
        """Return the addresses to which the jumps and exceptions in a part of a function lead;
        None if some are unknown."""
        instructions, pads = self._instructions(part), self._unwinder.landing_pads(part.start)
        if pads is None or not instructions or instructions[-1][1].address + instructions[-1][1].size < part.end:
            return None
        found, code = set(pads), None
        for at, (insn, one) in enumerate(instructions):
            if one.flow == "unknown" and insn.insn_name() == "jmp":
                code = code or [decoder().instruction(insn) for insn, _ in instructions]
                # Clang may remove the frame before a switch.
                destinations = find_destinations(self._target, code, at, function)
                if destinations is None and not self._is_tail_call(instructions, at):
                    return None
                found |= destinations or set()
            if one.flow in ("jump", "branch") and one.target:
                found.add(one.target)
        return found

    def _is_tail_call(self, instructions: Sequence[tuple[Any, Effect]], at: int) -> bool:
        """Whether an indirect jump leaves the function, whose frame must already be removed.
        Interpreters also jump to an address in a member, but have not removed their frame.

        The address is either loaded from a member or variable without an index (the load from a
        jump table has an index), or it is in a register, and the instruction before the jump
        removes the frame: pop %rbx; jmp *%rax. The jump is not one of a switch
        (see jump_tables.py)."""
        insn = instructions[at][0]
        if not self._is_frameless(insn.address):
            return False
        one = insn.operands[0]
        if one.type != 1:  # X86_OP_REG
            return not one.mem.index
        before = instructions[at - 1][1] if at else None
        return before is not None and before.flow == "next" and not self._is_frameless(before.address)

    def _instructions(self, extent: Range) -> list[tuple[Any, Effect]]:
        if extent.start not in self._decoded:
            self._left -= extent.end - extent.start
            code = self._decode(extent) if self._left >= 0 else ()
            self._decoded[extent.start] = [(insn, effect(insn)) for insn in code]
        return self._decoded[extent.start]

    def _decode(self, extent: Range, whole: bool = True) -> Any:
        size = extent.end - extent.start
        try:
            code = self._target.read_code(extent.start, size)
        except UnreadableMemory:
            if whole:
                return iter(())
            # The last instruction of a mapping
            try:
                code = self._target.read_code(extent.start, min(size, -extent.start % self._target.arch.page or size))
            except UnreadableMemory:
                return iter(())
        return decoder().decode(code, extent.start)


def _step(code: Instruction, one: Effect) -> Step:
    name = code.name
    if one.flow == "call":
        return Step(code, one, _AFTER_CALL, 0)
    if name.startswith("loop"):
        changed = 1 << RCX
    elif one.flow == "branch" or name in _KEEPING:
        changed = 0
    else:
        changed = _find_changed(code, one)
    return Step(code, one, changed & ALL_GENERAL & ~(1 << RSP), one.moved)


def _find_changed(code: Instruction, one: Effect) -> int:
    """Return the mask of the general registers that an instruction may change."""
    numbers = {code.destination, code.source} - {NONE}
    operands = sum(1 << number for number in numbers)
    # Otherwise an operand is a part of a register, such as al.
    is_whole = len(numbers) == (2 if code.displacement is None else 1)
    if code.name in _EXCHANGES and is_whole:
        return _EXCHANGES[code.name] | operands
    if code.name.startswith("cmov") and code.destination != NONE:
        return 1 << code.destination
    if not operands and (code.name in SET_VECTOR or code.name in SET_VEX):
        return 0
    return _EXTENSIONS.get(code.name, one.changed)


def sum_added(code: StraightCode, at: int, register: int) -> Optional[int]:
    """Return what instructions from `at` on, without the last one, add to a register; None if they
    change it otherwise. Example: a loop loads an element, and adds 8 before it calls free()."""
    added, bit = 0, 1 << register
    for step in code.steps[at:-1]:
        one = step.code
        if not step.changed & bit:
            continue
        if one.destination != register or not one.wide or step.effect.flow == "call":
            return None
        if one.name in ("add", "sub") and one.immediate is not None and one.displacement is None:
            added += one.immediate if one.name == "add" else -one.immediate
        elif one.name == "lea" and one.base == register and one.scaled == NONE:
            added += one.displacement or 0
        else:
            return None
    return added
