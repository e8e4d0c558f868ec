"""Find the native memory that extensions report to Ruby, from the code that subtracts a report.

An extension reports n bytes with rb_gc_adjust_memory_usage(n), and must report -n when the object
is freed. Therefore it stores n in the object's own structure. Its free function gets that structure
in rdi, and passes the negated word to rb_gc_adjust_memory_usage. The code shows the offset of the
word (rbx is the structure):

mov 0x28(%rbx),%rdi ; neg %rdi ; call rb_gc_adjust_memory_usage

Sources: include/ruby/internal/core/rtypeddata.h (struct rb_data_type_struct), doc/extension.rdoc;
an example is the extension pg, ext/pg_result.c."""

from __future__ import annotations

from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.disasm.instruction import Instruction, is_call_or_jump
from findleaks.disasm.registers import CALLER_SAVED, RDI, RIP
from findleaks.runtimes.ruby.layout import code
from findleaks.target.base import Module, Target
from findleaks.target.ranges import region_at

FREE = 16  # offset of the free function in a data type: {name, {dmark, dfree, dsize, …}, …}
CALLS, PATHS, STEPS = 3, 64, 2000
"""Limits of a search: depth of calls within the extension, code paths of a function, instructions
in total."""

THIS = -1
FLAG, DATA = 24, 32
"""Offsets in a slot of typed T_DATA: the flag that shows whether the data is in the slot, and the
pointer to the data."""


class Field(NamedTuple):
    """The value of a register: the word at `offset` of the structure, or that word negated."""

    offset: int
    negated: bool


def reported_at(target: Target, data_type: int, adjust: int) -> Optional[int]:
    """Return the offset of the reported bytes in the structure that an object of this data type
    wraps.

    `adjust`: the address of rb_gc_adjust_memory_usage. Returns None if the free function does not
    pass a negated word of the structure to it."""
    memory = Memory(target)
    free = memory.word(data_type + FREE)
    if not free or not adjust:
        return None
    module = region_at(target.modules(), free)
    if module is None or module.start <= adjust < module.end:
        return None
    return _Search(target, memory, module, adjust).offset(free)


def read_reported(memory: Memory, slot: int, offset: int) -> int:
    """Return the number of reported bytes that the structure of the typed T_DATA in this slot
    contains at `offset`; 0 if the word is missing, or is too large for a number of bytes."""
    # With another flag, the data is in the slot itself, and is not read.
    where = memory.word(slot + DATA) if memory.word(slot + FLAG) == 1 else 0
    value = memory.word(where + offset) if where else 0
    return value if value is not None and value < memory.arch.mask >> 1 else 0


class _Search:
    def __init__(self, target: Target, memory: Memory, module: Module, adjust: int) -> None:
        self._target, self._memory, self._module, self._adjust = target, memory, module, adjust
        self._steps = STEPS

    def offset(self, function: int, depth: int = 0) -> Optional[int]:
        """Follow the code of a function that gets the structure in rdi. Returns the offset of the
        reported bytes; None if none is found."""
        waiting: list[tuple[int, dict[int, int | Field | None]]] = [(function, {RDI: THIS})]
        seen: set[int] = set()
        while waiting and len(seen) < PATHS:
            at, known = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            for one in code(self._target, at) if self._inside(at) else ():
                self._steps -= 1
                if self._steps < 0:
                    return None
                given = known.get(RDI)
                if isinstance(given, Field) and given.negated and self._goes_to_adjust(one):
                    return given.offset
                if one.name in ("jmp", "ret") and (one.name == "ret" or one.target is not None):
                    if one.target is not None:
                        waiting.append((one.target, dict(known)))
                    break
                if one.name == "call":
                    inner = self._search_callee(one, given, depth)
                    if inner is not None:
                        return inner
                    known.update(dict.fromkeys(CALLER_SAVED))
                elif one.target is not None:
                    waiting.append((one.target, dict(known)))
                else:
                    _step(one, known)
        return None

    def _search_callee(self, one: Instruction, given: int | Field | None, depth: int) -> Optional[int]:
        """Return the offset of the reported bytes if the called function gets the structure and
        reports a word of it."""
        if one.target is None or depth >= CALLS or given != THIS or not self._inside(one.target):
            return None
        return self.offset(one.target, depth + 1)

    def _inside(self, address: int) -> bool:
        return self._module.start <= address < self._module.end

    def _goes_to_adjust(self, one: Instruction) -> bool:
        """Return whether the instruction jumps to rb_gc_adjust_memory_usage: directly, through a
        stub, or through a slot."""
        if is_call_or_jump(one) and one.target is not None:
            stub = code(self._target, one.target, 16)[:3] if self._inside(one.target) else []
            return one.target == self._adjust or any(map(self._through_slot, stub))
        return self._through_slot(one)

    def _through_slot(self, one: Instruction) -> bool:
        indirect = one.name in ("call", "jmp") and one.base == RIP and one.displacement is not None
        return indirect and self._memory.word(one.displacement or 0) == self._adjust


def _step(one: Instruction, known: dict[int, int | Field | None]) -> None:
    """Update the registers that are known to contain the structure or a word of it."""
    if one.destination < 0 or one.name in ("cmp", "test"):
        return
    made: int | Field | None = None
    before = known.get(one.destination)
    field = Field(one.displacement or 0, False) if one.wide and one.scaled < 0 and known.get(one.base) == THIS else None
    if one.loads:
        made = field
    elif one.name == "mov":
        made = known.get(one.source)
    elif one.name == "neg" and isinstance(before, Field):
        made = Field(before.offset, not before.negated)
    elif one.name in ("xor", "sub") and one.source == one.destination:
        made = 0  # the next instruction subtracts the field from it
    elif one.name == "sub" and before == 0 and field is not None:
        made = field._replace(negated=True)
    known[one.destination] = made
