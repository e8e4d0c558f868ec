"""Unused slots of vectors and deques: which of those that were recognised may be relied on.

What has a pointer into a sequence's storage may own elements beyond its length: an iterator that
takes elements out (Rust's Drain), or the sequence that has the memory now, if the head that was
recognised is that of a destroyed one."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from findleaks.allocators.bulk import find_pointers
from findleaks.engine.terms import State
from findleaks.stale_slots.heap_memory import HeapMemory, Storage, Words
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, range_at

MOST_REFERRERS = 4  # words that refer to one block that are noted: a head has at most three


class Pointers:
    """Words that were seen to point into the heaps, and where they are."""

    def __init__(self) -> None:
        self._added: list[Words] = []
        self._seen: list[tuple[int, int]] = []  # value, address; ascending

    def add(self, words: Words) -> None:
        self._added.append(words)

    def add_variables(self, memory: HeapMemory, everywhere: Sequence[Range], heads: Sequence[Range]) -> None:
        """Add words that point to heads outside of the heaps, in variables."""
        outside = [head for head in heads if not memory.low <= head.start < memory.high or memory.blocks.lookup(head.start) is None]
        low, high = (min(head.start for head in outside), max(head.end for head in outside)) if outside else (0, 0)
        for part in merge_ranges(everywhere) if outside else ():
            for piece in memory.target.pieces(*part):
                memory.poll()
                self.add(Words(piece, *find_pointers(memory.engine, piece, low, high)))

    def into(self, where: Range) -> Iterator[tuple[int, int]]:
        """(value, address) of words that point into `where`."""
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


def is_busy(memory: HeapMemory, found: Storage) -> bool:
    """Whether a thread has an address of it in a register."""
    return any(memory.is_busy(part) for part in (found.head, *found.blocks))


def has_other_user(pointers: Pointers, referrers: Mapping[int, int], found: Storage) -> bool:
    """Whether a word outside of the head points into the storage; or one to the head,
    but for the word that refers to the block that begins with it (`referrers`)."""
    for _, address in pointers.into(found.blocks[0]):
        if not found.head.start <= address < found.head.end:
            return True
    owner = referrers.get(found.head.start)
    return any(address != owner for _, address in pointers.into(found.head))


def with_single_owners(memory: HeapMemory, heaps: Sequence[Range], everywhere: Sequence[Range], found: Sequence[Storage]) -> list[Storage]:
    """The sequences whose first block only their own head refers to. Another sequence may be
    destroyed, and its memory may belong to another container now. The words of `everywhere` are
    searched, except blocks that are not in use. `heaps`: where blocks are, sorted and disjoint."""
    starts = array("Q", sorted({one.blocks[0].start for one in found}))
    referrers: dict[int, list[int]] = {start: [] for start in starts}
    for part in merge_ranges(everywhere) if starts else ():
        for piece in memory.target.pieces(*part):
            memory.poll()
            for address in memory.engine.search_any(piece, starts):
                seen = referrers.get(memory.word(address) or 0)
                if seen is not None and len(seen) < MOST_REFERRERS and _is_used(memory, heaps, address):
                    seen.append(address)
    return [one for one in found if all(one.head.start <= address < one.head.end for address in referrers[one.blocks[0].start])]


def _is_used(memory: HeapMemory, heaps: Sequence[Range], address: int) -> bool:
    """Whether a word is in root memory, or in a block in use."""
    if range_at(heaps, address) is None:
        return True
    found = memory.blocks.lookup(address)
    return found is not None and found[3] == State.IN_USE
