"""Find the structure from which a pointer was loaded if the code then overwrote the address of the
structure with another pointer from it.

Compilers translate a loop over a list to such code. The address of the structure is in no register
any more, but two words of the structure are known:

    mov 8(%rdi), %rdx      the pointer that is used
    mov 16(%rdi), %rdi     the next element
    movsbl (%rdx), %edx

The structure is known if it is the only one with both words, and if nothing has changed it since.
The memory that the process wrote and its modules are searched: the structure may be constant data.
Other mapped files, which may be large, contain no addresses."""

from __future__ import annotations

from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.audit.crash.value_origin import Origin, Tracer
from findleaks.disasm.instruction import NONE
from findleaks.disasm.registers import RIP, RSP
from findleaks.graph.roots import writable_ranges
from findleaks.session import Session
from findleaks.target.arch import X86_64
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges
from findleaks.value_classes import NamedTuple

_LOWEST = 1 << 16  # smaller values are not pointers, and frequent
_READING = ("cmp", "test")  # instructions that do not change their memory operand
_MOST = 4096  # words with the value of the other pointer that are examined


class Siblings(NamedTuple):
    """Two words that were loaded from one structure: the pointer that was used, at `offset`, and
    another one, `value`, at `other`, which are distances from the same address. `level`: the index
    of the frame that loaded them."""

    offset: int
    other: int
    value: int
    level: int = 0


def find_siblings(tracer: Tracer, level: int, register: int) -> Optional[Siblings]:
    """Return how the value of a register at the place of a frame was loaded (x86-64); None unless
    the address was then overwritten as described above."""
    code = tracer.code(level) if tracer.target.arch.name == X86_64.name else None
    if code is None or register < 0:
        return None
    steps = code.steps[:-1]
    last = next((index for index in range(len(steps) - 1, -1, -1) if steps[index].changed & 1 << register), None)
    one = steps[last].code if last is not None else None
    if last is None or one is None or not one.loads or not one.wide or one.destination != register:
        return None
    base = one.base
    if one.scaled != NONE or one.fs or one.gs or base in (NONE, RIP, RSP, register):
        return None
    later = steps[last + 1 :]
    if any(step.effect.flow == "call" or (step.code.writes_memory and step.code.name not in _READING) for step in later):
        return None
    changes = [step.code for step in later if step.changed & 1 << base]
    value = tracer.known_registers(level).get(base)
    if len(changes) != 1 or value is None:
        return None
    other = changes[0]
    is_load = other.loads and other.wide and other.scaled == NONE and not (other.fs or other.gs)
    if not is_load or other.destination != base or other.base != base:
        return None
    return Siblings(one.displacement or 0, other.displacement or 0, value, level)


def find_sibling_word(session: Session, siblings: Siblings, expected: int) -> Optional[Origin]:
    """Return the word with the value `expected` from which a pointer was loaded; None unless
    exactly one structure has both words."""
    if siblings.value < _LOWEST:
        return None
    target = session.target
    memory, found, examined = Memory(target), set[int](), 0
    searched = merge_ranges([*writable_ranges(target), *(Range(one.start, one.end) for one in target.modules())])
    for piece in session.pieces(searched, "searching for a structure", dead=True):
        for place in session.engine.search(piece, siblings.value, siblings.value + 1):
            examined += 1
            if memory.word(place - siblings.other + siblings.offset) == expected:
                found.add(place - siblings.other + siblings.offset)
            if examined > _MOST or len(found) > 1:
                return None
    return Origin("memory", siblings.level, found.pop()) if found else None
