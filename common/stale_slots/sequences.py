"""Checks of recognised vectors and deques: whether their unused slots are stale.

If another word points into the storage, its owner may own elements beyond the length. The owner may
be an iterator that removes elements (Rust's Drain). Or the recognised head belongs to a destroyed
sequence, and the owner is the sequence that uses the memory now."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from findleaks.allocators.bulk import find_pointers
from findleaks.engine.terms import State
from findleaks.stale_slots.heap_memory import HeapMemory, HeapPointers, SequenceStorage
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, range_at

# Maximum number of words that are recorded for one block: a head has at most three
MOST_REFERRERS = 4


class SeenPointers:
    """Words that point into the heaps, with their addresses."""

    def __init__(self) -> None:
        self._added: list[HeapPointers] = []
        self._seen: list[tuple[int, int]] = []  # (value, address), ascending

    def add(self, words: HeapPointers) -> None:
        self._added.append(words)

    def add_variables(self, memory: HeapMemory, everywhere: Sequence[Range], heads: Sequence[Range]) -> None:
        """Add words of variables that point to heads outside the heaps."""
        outside = [head for head in heads if not memory.low <= head.start < memory.high or memory.blocks.lookup(head.start) is None]
        low, high = (min(head.start for head in outside), max(head.end for head in outside)) if outside else (0, 0)
        for part in merge_ranges(everywhere) if outside else ():
            for piece in memory.target.pieces(*part):
                memory.poll()
                self.add(HeapPointers(piece, *find_pointers(memory.engine, piece, low, high)))

    def into(self, where: Range) -> Iterator[tuple[int, int]]:
        """Yield (value, address) of words that point into `where`."""
        if self._added:
            for words in self._added:
                self._seen += zip(words.values, words.addresses)
            self._seen.sort()
            self._added.clear()
        for at in range(bisect_left(self._seen, (where.start, 0)), len(self._seen)):
            value, address = self._seen[at]
            if value >= where.end:
                return
            yield value, address


def is_busy(memory: HeapMemory, found: SequenceStorage) -> bool:
    """Whether a register of a thread contains an address in the sequence."""
    return any(memory.is_busy(part) for part in (found.head, *found.blocks))


def has_other_user(pointers: SeenPointers, referrers: Mapping[int, int], found: SequenceStorage) -> bool:
    """Return whether a word outside the head points into the storage or to the head.
    If the head is at the start of a block, the known word that refers to this block (`referrers`)
    is allowed."""
    for _, address in pointers.into(found.blocks[0]):
        if not found.head.start <= address < found.head.end:
            return True
    owner = referrers.get(found.head.start)
    return any(address != owner for _, address in pointers.into(found.head))


def select_single_owners(
    memory: HeapMemory, heaps: Sequence[Range], everywhere: Sequence[Range], found: Sequence[SequenceStorage]
) -> list[SequenceStorage]:
    """Return the sequences whose first block only their own head refers to.
    The other sequences may have been destroyed, and another container may use their memory. The
    words of `everywhere` are searched, except in blocks that are not in use. `heaps` are the ranges
    that contain blocks, sorted and disjoint."""
    starts = array("Q", sorted({one.blocks[0].start for one in found}))
    referrers: dict[int, list[int]] = {start: [] for start in starts}
    for part in merge_ranges(everywhere) if starts else ():
        for piece in memory.target.pieces(*part):
            memory.poll()
            for address in memory.engine.search_any(piece, starts):
                seen = referrers.get(memory.word(address) or 0)
                if seen is not None and len(seen) < MOST_REFERRERS and _is_in_use(memory, heaps, address):
                    seen.append(address)
    return [one for one in found if all(one.head.start <= address < one.head.end for address in referrers[one.blocks[0].start])]


def _is_in_use(memory: HeapMemory, heaps: Sequence[Range], address: int) -> bool:
    """Whether a word is in root memory, or in a block in use."""
    if range_at(heaps, address) is None:
        return True
    found = memory.blocks.lookup(address)
    return found is not None and found[3] == State.IN_USE
