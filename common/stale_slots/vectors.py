"""Slots of std::vector variables behind their last element.

A vector's head is {begin, end, end of storage} (GCC 12 bits/stl_vector.h, _Vector_impl_data; LLVM
16 __vector). Three pointers of a C program may look the same and have elements behind the second,
such as a cursor's. So only debug information makes sure: it is read where variables look like a
vector with pointers to blocks behind its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Optional

from findleaks.stale_slots.heap_memory import MAX_BLOCK, HeapMemory, Words
from findleaks.target.base import Range

MAX_ASKED = 1_000  # variables of a piece of memory whose types are looked up

if TYPE_CHECKING:
    from findleaks.debuginfo.members import Type


def stale_slots(memory: HeapMemory, words: Words, type_of: Callable[[int], Optional[Type]]) -> Iterator[Range]:
    """Bytes behind the ends of vectors with heads among these words of variables. `type_of` gives
    the type of the variable that begins at an address."""
    for _, (head, stale) in zip(range(MAX_ASKED), _suspects(memory, words)):
        memory.poll()
        busy = memory.is_busy(Range(head, head + 3 * memory.size)) or memory.is_busy(Range(stale.start, stale.start))
        if not busy and _is_vector(memory, head, type_of):
            yield stale


def _suspects(memory: HeapMemory, words: Words) -> Iterator[tuple[int, Range]]:
    """(address of what looks like a vector's head, storage behind its end) with pointers."""
    _, addresses, values = words
    for at in range(len(addresses) - 2):
        begin, end, last = values[at], values[at + 1], values[at + 2]
        if begin <= end < last and addresses[at + 2] - addresses[at] == 2 * memory.size:
            block = memory.block_at(begin)
            if block is not None and last <= begin + block.size and last - end <= MAX_BLOCK and _has_pointers(memory, Range(end, last)):
                yield addresses[at], Range(end, last)


def _has_pointers(memory: HeapMemory, where: Range) -> bool:
    """Whether there are words that may point to blocks."""
    return any(memory.engine.search(piece, memory.low, memory.high) for piece in memory.target.pieces(*where))


def _is_vector(memory: HeapMemory, head: int, type_of: Callable[[int], Optional[Type]]) -> bool:
    """Whether debug information has a std::vector at this address."""
    symbol = memory.target.symbolize(head)
    if symbol is None or not symbol.address <= head < symbol.address + max(symbol.size, 1):
        return False
    declared = type_of(symbol.address)
    found = declared.at(head - symbol.address)[1] if declared is not None else None
    return found is not None and found.name.startswith("vector<") and _has_storage(memory, found)


def _has_storage(memory: HeapMemory, found: Type) -> bool:
    """Whether this is libstdc++'s or libc++'s vector, of three pointers."""
    names = found.member_names()
    return found.size == 3 * memory.size and bool({"_M_impl", "__begin_"} & names)
