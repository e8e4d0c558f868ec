"""Read the instructions that certainly ran directly before a place in a function (x86-64).

The instruction in front of a place ran before it, unless this instruction always jumps or returns,
or a jump leads to the place. To find all jumps, the whole function is decoded, with the parts that
the compiler moved elsewhere (for example to .text.unlikely). Nothing is certain in a function with
a jump table, because the destinations of its jumps are unknown."""

from __future__ import annotations

from typing import Any, Optional

from findleaks.disasm.effects import ALL_GENERAL, effect
from findleaks.disasm.functions import resolve_stub
from findleaks.disasm.instruction import Instruction
from findleaks.disasm.machine import Effect
from findleaks.disasm.registers import CALLER_SAVED, RAX, RDX, RSP
from findleaks.disasm.x86 import decoder
from findleaks.errors import UnreadableMemory
from findleaks.target.base import Range, Target
from findleaks.unwind.frames import Unwinder
from findleaks.value_classes import NamedTuple

_LARGEST = 32 << 10  # bytes of a function that are decoded
_STUB = 64  # bytes of a function that only jumps to another one
_MOST_PARTS = 8  # maximum number of moved parts of a function that are decoded
_ENDS = ("jump", "return", "stop", "unknown", "system")
# Instructions that change no general register except rsp
_KEEPING = ("cmp", "test", "push", "nop", "comiss", "comisd", "ucomiss", "ucomisd")
_EXTENSIONS = {"cdq": 1 << RDX, "cqo": 1 << RDX, "cdqe": 1 << RAX, "cwde": 1 << RAX}
_AFTER_CALL = sum(1 << number for number in CALLER_SAVED)


class Step(NamedTuple):
    """An instruction. `changed`: the mask of the general registers that it may change, without rsp.
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

    def at(self, address: int) -> Optional[Instruction]:
        """Return the instruction at an address; None if its bytes are not an instruction."""
        found = next(self._decode(Range(address, address + 15), whole=False), None)
        return decoder().instruction(found) if found is not None else None

    def before(self, address: int, is_return: bool) -> Optional[StraightCode]:
        """Return the code that ran before an instruction, and this instruction; None if it is
        unknown. `address`: the address of the instruction; if `is_return`, a return address, which
        is the end of the instruction."""
        extent = self._unwinder.extent(address - is_return)
        if extent is None or extent.end - extent.start > _LARGEST:
            return None
        found = [(decoder().instruction(insn), one) for insn, one in self._instructions(extent)]
        last = next((at for at, (one, _) in enumerate(found) if (one.end if is_return else one.address) == address), None)
        if last is None:
            return None
        if extent.start not in self._joined:
            self._joined[extent.start] = self._joins(extent)
        joins = self._joined[extent.start]
        steps = [_step(*found[last])]
        at = last
        while at and joins is not None and found[at][0].address not in joins and found[at - 1][1].flow not in _ENDS:
            at -= 1
            steps.append(_step(*found[at]))
        is_entry = at == 0 and joins is not None and extent.start not in joins
        return StraightCode(tuple(reversed(steps)), is_entry)

    def jump_from(self, function: int, register: int) -> int:
        """Return the address to which a function jumps; 0 if it does not, or if it may change the
        register before the jump."""
        for insn in self._decode(Range(function, function + _STUB), whole=False):
            step = _step(decoder().instruction(insn), effect(insn))
            if step.code.name == "jmp":
                return resolve_stub(self._target, step.code.target if step.code.target is not None else step.code.address)
            if step.effect.flow != "next" or step.changed & 1 << register:
                return 0
        return 0

    def _joins(self, extent: Range) -> Optional[set[int]]:
        """Return the addresses in a function to which its jumps lead; None if a jump may lead to
        any address."""
        found: set[int] = set()
        parts, seen = [extent], {extent.start}
        while parts:
            for insn, one in self._instructions(parts.pop()):
                if one.flow == "unknown" and insn.insn_name() == "jmp" and not _is_tail_call(insn):
                    return None
                if one.flow not in ("jump", "branch") or not one.target:
                    continue
                if extent.start <= one.target < extent.end:
                    found.add(one.target)
                    continue
                part = self._unwinder.extent(one.target)
                if part is not None and part.start not in seen and part.end - part.start <= _LARGEST:
                    if len(seen) > _MOST_PARTS:
                        return None
                    seen.add(part.start)
                    parts.append(part)
        return found

    def _instructions(self, extent: Range) -> list[tuple[Any, Effect]]:
        if extent.start not in self._decoded:
            self._decoded[extent.start] = [(insn, effect(insn)) for insn in self._decode(extent)]
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


def _is_tail_call(insn: Any) -> bool:
    """Whether an indirect jump leaves the function. Such a jump loads its destination from a member
    or a variable. Jumps through a jump table use an index."""
    one = insn.operands[0]
    return bool(one.type == 3 and not one.mem.index)  # X86_OP_MEM


def _step(code: Instruction, one: Effect) -> Step:
    name = code.name
    if one.flow == "call":
        return Step(code, one, _AFTER_CALL, 0)
    if one.flow == "branch" or name in _KEEPING:
        changed = 0
    else:
        changed = _EXTENSIONS.get(name, one.changed)
    return Step(code, one, changed & ALL_GENERAL & ~(1 << RSP), one.moved)
