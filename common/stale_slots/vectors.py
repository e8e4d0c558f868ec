"""Slots of std::vector behind the last element.

A vector's head is {begin, end, end of storage} (GCC 12 bits/stl_vector.h, _Vector_impl_data; LLVM
16 __vector). Three pointers of a C program may look the same and have elements behind the second,
such as a cursor's; so do three of the four words of a std::deque's iterator. So only debug
information makes sure: it is read where three words look like a vector with pointers to blocks
behind its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from findleaks.stale_slots.declared_types import standard_name
from findleaks.stale_slots.heap_memory import MAX_BLOCK, HeapMemory, Storage, Words
from findleaks.target.base import Range

if TYPE_CHECKING:
    from findleaks.debuginfo.members import Type

Around = Callable[[int], Iterable[tuple[int, "Type"]]]


def find_vectors(memory: HeapMemory, words: Words, around: Around) -> Iterator[Storage]:
    """Vectors with heads among these words and pointers behind their ends. `around` gives what is
    declared to contain a word (DeclaredTypes.around)."""
    for found in _suspects(memory, words):
        memory.poll()
        if any(start == found.head.start and _is_vector(memory, part) for start, part in around(found.head.start)):
            yield found


def _suspects(memory: HeapMemory, words: Words) -> Iterator[Storage]:
    """Words that look like a vector with pointers behind its last element."""
    _, addresses, values = words
    for at in range(len(addresses) - 2):
        begin, end, last = values[at], values[at + 1], values[at + 2]
        if begin <= end < last and addresses[at + 2] - addresses[at] == 2 * memory.size:
            block, head = memory.block_at(begin), addresses[at]
            if block is not None and last <= begin + block.size and last - end <= MAX_BLOCK and memory.has_pointers(Range(end, last)):
                yield Storage(Range(head, head + 3 * memory.size), [Range(begin, last)], [Range(end, last)])


def _is_vector(memory: HeapMemory, part: Type) -> bool:
    """Whether this is libstdc++'s or libc++'s vector, of three pointers (not that of bits)."""
    return part.size == 3 * memory.size and standard_name(part) == "vector"
