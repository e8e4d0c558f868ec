"""Read PartitionAlloc's thread caches (ThreadCache).

Thread caches are in slots of a partition, and form a linked list. findleaks finds one of them by
its member root_: the address of its partition, which follows its buckets. Source: thread_cache.h;
see layout.py."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.base import Problem, add_first_problems
from findleaks.allocators.memory import Memory
from findleaks.allocators.partitionalloc import layout as at
from findleaks.allocators.partitionalloc.engine import Links
from findleaks.allocators.partitionalloc.layout import CACHE_BUCKET
from findleaks.allocators.partitionalloc.spans import Partition
from findleaks.engine.contract import Engine


class CacheBucket(NamedTuple):
    """The cached slots of one size."""

    slot_size: int
    slots: Sequence[int]


class SlotCache(NamedTuple):
    """The thread cache at `address`. Its partition has its root at `root`. `tid` is the thread that
    created the cache. In a forked child, this may be a thread of the parent. `counted` is the
    number of cached bytes according to the cache itself. `end` is the first address after the
    members that are read."""

    address: int
    root: int
    tid: int
    counted: int
    buckets: Sequence[CacheBucket]
    end: int


class _Links(NamedTuple):
    """A thread cache whose slots are not read yet: its address, its buckets, the address of root_,
    and the next and previous cache."""

    address: int
    buckets: int
    place: int
    root: int
    tid: int
    following: int
    previous: int


def read_thread_caches(memory: Memory, engine: Engine, partitions: Sequence[Partition], problems: list[Problem]) -> list[SlotCache]:
    """Read all thread caches of these partitions."""
    known = {one.root.address: one for one in partitions}
    for one in sorted(partitions, key=lambda one: len(one.spans)):
        for place, slot in _search(memory, engine, one, known):
            root, own = memory.words(place + 8 * at.CACHE_ROOT_WORDS, 2) or (0, 0)
            address = own if root == memory.word(place) and slot <= own < place else slot
            links = _read_links(memory, place, address, known)
            if links is not None:
                found: list[Problem] = []
                seen: set[int] = set()
                caches = [_read_slots(memory, each, known[each.root], seen, found) for each in _follow(memory, links, known, problems)]
                add_first_problems(problems, found, "damaged lists of PartitionAlloc's thread caches")
                return caches
    return []


def _search(memory: Memory, engine: Engine, partition: Partition, known: Mapping[int, Partition]) -> Iterator[tuple[int, int]]:
    """Yield the addresses in a partition at which the member root_ of a thread cache may be. Each
    address is yielded with the start of the slot that contains it."""
    for span in partition.spans:
        if at.CACHE_SLOT[0] <= span.slot_size <= at.CACHE_SLOT[1] and span.allocated:
            for piece in memory.target.pieces(span.start, span.start + span.slots * span.slot_size):
                for place in engine.search(piece, min(known), max(known) + 1):
                    yield place, span.start + (place - span.start) // span.slot_size * span.slot_size


def _read_links(memory: Memory, place: int, address: int, known: Mapping[int, Partition]) -> Optional[_Links]:
    """Read the thread cache at `address`. `place`: the address of its member root_. Return None if
    there is no thread cache."""
    root, tid, following, previous = memory.words(place, at.CACHE_ROOT_WORDS) or (0, 0, 0, 0)
    buckets = _find_buckets(memory, place) if root in known else None
    if buckets is None or buckets <= address:
        return None
    return _Links(address, buckets, place, root, tid & 0xFFFFFFFF, following, previous)


def _find_buckets(memory: Memory, place: int) -> Optional[int]:
    """Return the start of the array of buckets that ends at `place`; None if no array ends there.
    The first bucket has the smallest slot size, and the last bucket has the largest slot size that
    is cached."""
    start = place - CACHE_BUCKET
    if (memory.int32(start + 8) or 0) >> 16 != at.LARGEST_CACHED:
        return None
    for _ in range(at.MOST_CACHED_SIZES):
        number = memory.int32(start + 8)
        if number is None or number >> 16 == at.SMALLEST:
            return start if number is not None else None
        start -= CACHE_BUCKET
    return None


def _follow(memory: Memory, first: _Links, known: Mapping[int, Partition], problems: list[Problem]) -> Iterator[_Links]:
    """Yield `first` and the thread caches that are linked with it, in both directions."""
    distance = first.place - first.address
    yield first
    seen = {first.address}
    for forward in (True, False):
        at_end, one = False, first
        while len(seen) < at.MOST_CACHES and not at_end:
            address = one.following if forward else one.previous
            links = _read_links(memory, address + distance, address, known) if address else None
            back = (links.previous if forward else links.following) if links else 0
            at_end = not address
            if address and (links is None or address in seen or back != one.address):
                what = f"PartitionAlloc's list of thread caches is damaged at {one.address:#x}: slots in other caches count as in use"
                problems.append(Problem(one.address, what))
                break
            if links is not None:
                seen.add(address)
                yield links
                one = links


def _read_slots(memory: Memory, links: _Links, partition: Partition, seen: set[int], problems: list[Problem]) -> SlotCache:
    """Read the cached slots of a thread cache. Each slot is in only one list of one cache. `seen`
    has the slots of all caches that were read before; the slots of this cache are added."""
    data = memory.read(links.buckets, links.place - links.buckets)
    buckets = []
    for number, (head, count, _, size, _) in enumerate(struct.iter_unpack("<QBBHI", data)):
        slots = follow_slots(memory, head, count, partition.links, seen)
        if len(slots) != count:
            what = (
                f"PartitionAlloc's thread cache at {links.address:#x} has {count} free slots of {size} bytes, "
                f"but its list has {len(slots)}: the others count as in use"
            )
            problems.append(Problem(links.buckets + number * CACHE_BUCKET, what))
        if slots:
            buckets.append(CacheBucket(size, slots))
    counted = memory.int32(links.address) or 0
    return SlotCache(links.address, links.root, links.tid, counted, buckets, links.place + 8 * at.CACHE_ROOT_WORDS)


def follow_slots(memory: Memory, head: int, count: int, links: Links, seen: set[int]) -> list[int]:
    """Return the slots of a list, at most `count` + 1, up to the first damaged link, or the first
    slot in `seen`. Add them to `seen`."""
    slots: list[int] = []
    slot = head
    while slot and len(slots) <= count and slot not in seen:
        link = memory.words(slot, 2)
        if link is None or (links.has_shadow and link[0] and link[0] ^ link[1] != memory.arch.mask):
            break
        slots.append(slot)
        seen.add(slot)
        slot = links.pool + int.from_bytes(link[0].to_bytes(8, "little"), "big") if link[0] else 0
    return slots
