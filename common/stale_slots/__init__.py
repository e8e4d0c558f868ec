"""Slots of containers beyond their length: words that hold what was removed, and are no references.

A container leaves the words of an element that it hands out as they are. They refer to the element
until the slot is used again, and would hide its leak. Only containers that are proven are read: all
that their structure implies is compared. What is not sure stays a reference: one that is left out
by mistake would report a block in use as leaked.

`find_stale_slots` finds them. It costs little in a process without such containers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.bulk import pointing
from findleaks.engine.contract import Blocks, Engine
from findleaks.stale_slots import rust_btrees, rust_channels, vectors
from findleaks.stale_slots.heap_memory import HeapMemory, Words
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merged, nonzero_pieces

if TYPE_CHECKING:
    from findleaks.debuginfo.members import Members, Type

MAX_RANGE = 1 << 22  # bytes of a range of root memory that are searched for heads of containers
MAX_BYTES = 1 << 25  # of all
MAX_POINTERS = 100_000  # pointers in it that are examined


def find_stale_slots(target: Target, engine: Engine, blocks: Blocks, roots: Sequence[Range], poll: Callable[[], None]) -> list[Range]:
    """The stale slots, sorted and disjoint. Heads of vectors and of Rust's BTreeMaps are looked for
    in root memory, `roots`; channels everywhere. `poll` raises Interrupted if the user asked to
    stop. Debug information is read only where a variable looks like a vector with stale slots."""
    if not len(blocks):
        return []
    memory, types = HeapMemory(target, engine, blocks, poll), VariableTypes(target)
    found = list(rust_channels.stale_slots(memory))
    for words in _root_words(memory, roots):
        found += vectors.stale_slots(memory, words, types)
        found += rust_btrees.stale_slots(memory, words)
    size = memory.size
    return merged(Range(start + -start % size, end) for start, end in found)


class VariableTypes:
    """The type of the variable that begins at an address, from debug information on first use."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._members: Optional[Members] = None

    def __call__(self, address: int) -> Optional[Type]:
        if self._members is None:
            from findleaks.debuginfo.members import Members

            self._members = Members(self._target)
        return self._members.variable(address)


def _root_words(memory: HeapMemory, roots: Sequence[Range]) -> Iterator[Words]:
    """The words of root memory that point into the heaps, a piece at a time."""
    left, pointers = MAX_BYTES, MAX_POINTERS
    for start, end in roots:
        for piece in nonzero_pieces(memory.target, start, min(end, start + MAX_RANGE, start + left)):
            memory.poll()
            left -= len(piece.data)
            words = Words(piece, *pointing(memory.engine, piece, memory.low, memory.high))
            pointers -= len(words.addresses)
            if pointers < 0:
                return
            yield words
