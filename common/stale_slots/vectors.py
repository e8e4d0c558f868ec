"""Slots of std::vector after the last element.

A vector's head is {begin, end, end of storage} (GCC 12 bits/stl_vector.h, _Vector_impl_data; LLVM
16 __vector). Three pointers of a C program may look the same, and used elements may follow the
second pointer, for example if it is a cursor. Three of the four words of a std::deque's iterator
also look the same. Therefore a vector is recognised only by debug information. Debug information is
read only if three words look like a vector with pointers to blocks after its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from findleaks.stale_slots.declared_types import standard_name
from findleaks.stale_slots.heap_memory import MAX_BLOCK, HeapMemory, HeapPointers, SequenceStorage
from findleaks.target.base import Range

if TYPE_CHECKING:
    from findleaks.debuginfo.members import Type

POINTERS = 3  # words of a head, all of which point into the heaps
Around = Callable[[int], Iterable[tuple[int, "Type"]]]


def find_vectors(memory: HeapMemory, words: HeapPointers, around: Around) -> Iterator[SequenceStorage]:
    """Yield vectors with heads among these words and pointers after their ends.
    `around` yields the declarations that contain a word (DeclaredTypes.around)."""
    for found in _find_suspects(memory, words):
        memory.poll()
        if any(start == found.head.start and _is_vector(memory, part) for start, part in around(found.head.start)):
            yield found


def _find_suspects(memory: HeapMemory, words: HeapPointers) -> Iterator[SequenceStorage]:
    """Yield words that look like a vector with pointers after its last element."""
    _, addresses, values = words
    span = 2 * memory.size
    found = [
        (addresses[at], begin, end, last)
        for at, (begin, end, last) in enumerate(zip(values, values[1:], values[2:]))
        if begin <= end < last <= end + MAX_BLOCK and addresses[at + 2] - addresses[at] == span
    ]
    starts = memory.find_starts({begin for _, begin, _, _ in found}) if found else ()
    for head, begin, end, last in found:
        if begin in starts and last <= begin + memory.starts[begin].size and memory.has_pointers(Range(end, last)):
            yield SequenceStorage(Range(head, head + span + memory.size), [Range(begin, last)], [Range(end, last)])


def _is_vector(memory: HeapMemory, part: Type) -> bool:
    """Return whether this type is the vector of libstdc++ or libc++ with three pointers (not
    vector<bool>)."""
    return part.size == 3 * memory.size and standard_name(part) == "vector"
