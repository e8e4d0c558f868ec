"""Read PartitionAlloc's scheduler-loop quarantine (SchedulerLoopQuarantineBranch).

A partition and each of its thread caches have branches, which delay the release of freed slots. A
branch has a vector of entries {slot, number of the slot's bucket}; in earlier versions, {slot,
usable bytes of the slot}. The total of these slots' bytes, in earlier versions of their usable
bytes, follows the vector. findleaks recognises the vector by this size, because the offset of the
vector differs between versions. Sources, in src/partition_alloc: lightweight_quarantine.h, in later
versions scheduler_loop_quarantine.h and .cc (slots_, branch_size_in_bytes_, QuarantineSlot)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.partitionalloc.roots import Root

ROOT_WORDS = 128  # words after inverted_self_ that contain the branches of a partition
CACHE_WORDS = 40  # words after the links of a thread cache that contain its branch
COUNTS = 8  # words after inverted_self_ with SchedulerLoopQuarantineRoot {root, bytes, slots}
ENTRY = 16  # bytes of an entry
SINGLE = 1 << 16  # a larger slot is the only one of its span; its usable size is any number
MOST_ENTRIES = 1 << 20  # maximum number of entries read for a partition, in all vectors


class Quarantine(NamedTuple):
    """The slots that were found in the quarantine of a partition. `counted` is the number of slots
    according to the counter of the partition."""

    slots: Sequence[int]
    counted: int


def read_quarantine(memory: Memory, root: Root, after_root: int, after_caches: Iterable[int], problems: list[Problem]) -> Quarantine:
    """Read the quarantine of a partition. `after_root` is the address after the member
    inverted_self_ of the root. `after_caches` are the addresses after the member prev_ of the
    partition's thread caches."""
    words = memory.words(after_root, COUNTS) or ()
    at = next((at for at in range(len(words) - 2) if words[at] == root.address), None)
    counted = words[at + 2] if at is not None else 0
    if not counted:
        return Quarantine([], 0)
    found, left = set[int](), MOST_ENTRIES
    for place, count in ((after_root, ROOT_WORDS), *((place, CACHE_WORDS) for place in after_caches)):
        for start, number, size in _find_vectors(memory, place, count):
            if number <= min(counted, left):
                left -= number
                found.update(_read_vector(memory, root, start, number, size))
    if len(found) != counted:
        what = (
            f"PartitionAlloc's quarantine of the partition at {root.address:#x} has {counted:,} slots, but only {len(found):,} are found: "
            "the others count as in use"
        )
        problems.append(Problem(after_root, what, False))
    return Quarantine(sorted(found), counted)


def _find_vectors(memory: Memory, place: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Search `count` words for vectors of entries. Yield the start of each, its number of entries,
    and the word that follows the vector."""
    words = memory.words(place, count) or ()
    for start, end, limit, size in zip(words, words[1:], words[2:], words[3:]):
        if start < end <= limit and (end - start) % ENTRY == 0:
            yield start, (end - start) // ENTRY, size


def _read_vector(memory: Memory, root: Root, start: int, number: int, size: int) -> Sequence[int]:
    """Return the slots in a vector of entries; () unless their sizes add up to `size` bytes.

    This total distinguishes both kinds of entries: a slot of bucket n has more than n bytes."""
    entries = memory.words(start, 2 * number) or ()
    second = entries[1::2]
    if sum(second) == size:
        sizes = {slot_size - root.extras for slot_size, _ in root.sizes if slot_size > root.extras}
        sound = all(usable in sizes or usable > SINGLE - root.extras for usable in second)
    else:
        sound = bool(second) and max(second) < len(root.sizes) and sum(root.sizes[bucket][0] for bucket in second) == size
    return entries[::2] if sound else ()
