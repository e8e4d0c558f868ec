"""Caches of freed blocks: caches of CPUs (internal/percpu_tcmalloc.h), transfer caches, transfer
caches of groups of CPUs (transfer_cache.h), and in processes without CPU caches, caches of threads
(thread_cache.h)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.bulk import find_pointers
from findleaks.allocators.memory import Memory
from findleaks.allocators.tcmalloc_google.layout import (
    CPU_CACHE,
    FREELIST,
    HEADER,
    LIST,
    LIST_MOST,
    SHARD,
    SHARD_TRANSFER,
    SHIFTS,
    SLOT_INFO,
    SLOTS,
)
from findleaks.allocators.tcmalloc_google.locate import Place
from findleaks.allocators.tcmallocs.caches import Held, ThreadHeap, linked_caches, thread_lists
from findleaks.allocators.tcmallocs.page_map import WORD
from findleaks.engine.contract import Engine
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, nonzero_pieces, range_at, subtract

MAX_CPUS = 1 << 13
MAX_SHARDS = 256


class CpuCaches(NamedTuple):
    """CpuCache: its address, and its slabs of 1 << `shift` bytes each. `begins` has the offset in
    words at which the list of each class begins."""

    address: int
    slabs: int
    shift: int
    begins: Sequence[int]


@dataclass
class Found:
    """All caches. `held` does not include thread caches, whose lists must be followed first."""

    cpus: Optional[CpuCaches] = None
    held: list[Held] = field(default_factory=list)
    threads: list[ThreadHeap] = field(default_factory=list)
    variables: list[Range] = field(default_factory=list)


def find(memory: Memory, engine: Engine, place: Place, own: Sequence[Range], problems: list[Problem]) -> Found:
    """Find all caches. `own` is the memory of the allocator's descriptors."""
    found = Found()
    pointers = list(_pointers(memory, engine, place, own))
    found.held += _transfers(memory, place, problems)
    for at, value in pointers:
        cpus = _cpu_caches(memory, place, at, value, own) if value & 0xFFF in SHIFTS else None
        if cpus is not None:
            found.cpus = cpus
            found.variables.append(Range(at, at + CPU_CACHE))
            found.held += _slabs(memory, place, cpus, problems)
            break
    for at, value in pointers:
        shards = _shards(memory, place, at, value, own)
        if shards:
            found.held += [held for shard, caches in shards for held in _shard(memory, place, shard, caches, problems)]
            break
    heads = dict.fromkeys(value for _, value in pointers if value % WORD == 0)
    best = max((_chain(memory, place, head) for head in heads), key=len, default=[])
    owners = {thread.thread_pointer: thread.tid for thread in memory.target.threads() if thread.thread_pointer}
    found.threads = [_thread(memory, place, address, owners) for address in best]
    if found.cpus is None and not best:
        problems.append(Problem(place.central, "no cache of CPUs or threads was found: freed blocks in them count as in use", False))
    return found


def _pointers(memory: Memory, engine: Engine, place: Place, own: Sequence[Range]) -> Iterator[tuple[int, int]]:
    """Yield (address, value) of the variables that point into `own`."""
    for start, end in subtract(merge_ranges(place.image.data), place.variables()):
        for piece in nonzero_pieces(memory.target, start, end):
            for low, high in own:
                yield from zip(*find_pointers(engine, piece, low, high))


def _halves(memory: Memory, address: int, count: int) -> Optional[list[int]]:
    """Read 16-bit numbers, or return None."""
    data = memory.read(address, 2 * count)
    return list(memoryview(data).cast("H")) if data else None


def _cpu_caches(memory: Memory, place: Place, at: int, value: int, own: Sequence[Range]) -> Optional[CpuCaches]:
    """Read the CpuCache at `at`, or return None. It must have three words that fit TcmallocSlab,
    and begins_ must ascend (InitSlabs)."""
    stopped, begins = memory.word(at + WORD), memory.word(at + 2 * WORD)
    layout, shift = place.layout, value & 0xFFF
    if not stopped or not begins or not range_at(own, stopped) or not range_at(own, begins):
        return None
    numbers = _halves(memory, begins, layout.classes)
    if numbers is None or numbers[1] != layout.first_begin or any(a > b for a, b in zip(numbers[1:], numbers[2:])):
        return None
    return CpuCaches(at, value - shift, shift, numbers) if numbers[-1] * WORD <= 1 << shift else None


def _slabs(memory: Memory, place: Place, cpus: CpuCaches, problems: list[Problem]) -> Iterator[Held]:
    """Yield the blocks in each CPU's slab, from the start of a class up to `current` in its header.

    Slabs of unused CPUs are zeros. The memory after the last slab has no plausible headers."""
    layout, size = place.layout, 1 << cpus.shift
    bounds = [*cpus.begins[1:], size // WORD]
    for cpu in range(MAX_CPUS):
        slab = cpus.slabs + cpu * size
        headers = _halves(memory, slab, layout.classes * HEADER // 2)
        if headers is None:
            return
        rows = list(zip(headers[2::2], headers[3::2], cpus.begins[1:], bounds[1:]))
        wrong = [number for number, row in enumerate(rows, 1) if row[0] and not row[2] <= row[0] <= row[1] <= max(row[3], row[2])]
        # One or two bad headers are damage. With more, this is not a slab.
        if len(wrong) > 2 or (wrong and not any(row[0] for row in rows[: wrong[0] - 1])):
            return
        for number in wrong:
            at = slab + number * HEADER
            problems.append(Problem(at, f"CPU {cpu}'s cache of size {place.sizes[number]} has an invalid header"))
        for number, (current, _, begin, _) in enumerate(rows, 1):
            if begin < current and number not in wrong and place.sizes[number]:
                words = memory.words(slab + begin * WORD, current - begin)
                if words is not None:
                    yield Held("cpu", cpu, slab, number, array("Q", words))


def _slots(memory: Memory, place: Place, cache: int, number: int, what: str, problems: list[Problem]) -> Optional[array[int]]:
    """Return the blocks in a transfer cache."""
    info, slots = memory.word(cache + SLOT_INFO), memory.word(cache + SLOTS)
    if not info:
        return None
    used, capacity = info & 0xFFFFFFFF, info >> 32
    words = memory.words(slots, used) if slots and used <= capacity < 1 << 24 else None
    if used and words is None:
        text = f"the {what} of size {place.sizes[number]} counts {used} of {capacity} blocks at {slots or 0:#x}, which is impossible"
        problems.append(Problem(cache + SLOT_INFO, text))
    return array("Q", words) if words else None


def _transfers(memory: Memory, place: Place, problems: list[Problem]) -> Iterator[Held]:
    """Yield the contents of the transfer caches of all size classes."""
    for number, size in enumerate(place.sizes):
        if size and place.layout.transfer:
            cache = place.central + number * place.layout.stride
            blocks = _slots(memory, place, cache, number, "transfer cache", problems)
            if blocks:
                yield Held("transfer", 0, cache, number, blocks)


def _shards(memory: Memory, place: Place, at: int, value: int, own: Sequence[Range]) -> list[tuple[int, int]]:
    """Return (number, address of its caches) of the shards in use, if a ShardedTransferCacheManager
    is at `at`."""
    word = memory.word(at + WORD)
    if word is None or not 0 < word & 0xFFFFFFFF <= MAX_SHARDS or word >> 32 > word & 0xFFFFFFFF or not place.layout.transfer:
        return []
    found = []
    for shard in range(word & 0xFFFFFFFF):
        caches, state = memory.word(value + shard * SHARD), memory.word(value + shard * SHARD + WORD)
        if caches is None or state is None or state >> 32 & 0xFF > 1:
            return []
        if state >> 32 & 0xFF:
            names = range(1, place.layout.classes)
            if not range_at(own, caches) or any(memory.int32(caches + n * SHARD_TRANSFER + FREELIST) != n for n in names):
                return []
            found.append((shard, caches))
    return found if len(found) == word >> 32 else []


def _shard(memory: Memory, place: Place, shard: int, caches: int, problems: list[Problem]) -> Iterator[Held]:
    """Yield the contents of one shard's transfer caches."""
    for number, size in enumerate(place.sizes):
        cache = caches + number * SHARD_TRANSFER
        blocks = _slots(memory, place, cache, number, f"transfer cache of shard {shard}", problems) if size else None
        if blocks:
            yield Held("shard", shard, cache, number, blocks)


def is_thread_cache(memory: Memory, place: Place, address: int) -> bool:
    """Return whether a ThreadCache is at `address` (FreeList::Init). Each of its lists has a
    maximum length, and a list without head has length 0."""
    if not (memory.int32(address + LIST_MOST) or 0) or not (memory.int32(address + LIST + LIST_MOST) or 0):
        return False
    words = memory.words(address, place.layout.thread_cache // WORD)
    if words is None:
        return False
    for number in range(place.layout.classes):
        head, length, most = (words[number * LIST // WORD + word] for word in range(3))
        if bool(head) != bool(length & 0xFFFFFFFF) or not 0 < most & 0xFFFFFFFF < 1 << 24:
            return False
    return True


def _chain(memory: Memory, place: Place, head: int) -> list[int]:
    """Return the caches from `head` (ThreadCache::thread_heaps_) up to where links disagree; [] if
    `head` is not the head of a list."""
    if not is_thread_cache(memory, place, head):
        return []
    return linked_caches(memory, head, place.layout.cache_links, partial(is_thread_cache, memory, place))[0]


def _thread(memory: Memory, place: Place, address: int, owners: dict[int, int]) -> ThreadHeap:
    """Read the ThreadCache at `address`."""
    words = memory.words(address, place.layout.thread_cache // WORD) or ()
    size, _, pointer = words[place.layout.classes * LIST // WORD :][:3]
    return ThreadHeap(address, owners.get(pointer, 0), size, thread_lists(words, place.sizes, LIST // WORD, address))
