"""Thread caches. A cache has a stack of freed blocks for each size class, and a thread-local part.

Arenas list the caches. Thread pointers only show which thread has which cache. Old entries remain
outside the used part of a stack. The stacks are in blocks of jemalloc itself, whose words must not
count as references."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from findleaks.allocators.jemalloc.arenas import JemallocArena
from findleaks.allocators.jemalloc.classes import Classes
from findleaks.allocators.jemalloc.layout import BINS_52, EDATA, ExtentLayout
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.libc.thread_local import static_storage
from findleaks.target.base import Range, Thread
from findleaks.target.ranges import region_at

STACKS = 4 << 20  # the largest size of all stacks of a cache in bytes
SLOW = 512  # bytes of tcache_slow_s that are examined
BIN_53, BIN_52 = "PQHHHH", "IIQP"  # members of cache_bin_t
# bytes of tsd_t with a thread's random numbers: they are the first 8 (in 5.3.1 the last)
RANDOM = 16
TLS = 1 << 20  # maximum distance in bytes between a thread pointer and the thread's cache
STATIC = 64 << 10  # the same, in the search for caches that no arena lists
NEAR = 4096  # bytes on either side of a thread cache that may contain rtree_ctx


class Stack(NamedTuple):
    """Cached blocks of a size class. `stashed` blocks are freed and out of use (use-after-free
    detection)."""

    szind: int
    address: int
    entries: Sequence[int]
    stashed: Sequence[int] = ()

    @property
    def blocks(self) -> tuple[int, ...]:
        return (*self.entries, *self.stashed)


@dataclass
class JemallocCache:
    """A thread cache. `tid` is 0 if it is unknown, or if the program created the cache explicitly.

    `stacks_at` is an address in the block with the stacks. `own` are the parts of thread-local
    storage that belong to the cache."""

    tid: int
    address: int
    arena: int
    stacks_at: int = 0
    stacks: list[Stack] = field(default_factory=list)
    own: list[Range] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def entries(self) -> list[int]:
        """Return all cached blocks."""
        return [entry for stack in self.stacks for entry in stack.blocks]

    @property
    def label(self) -> str:
        return f"thread cache of thread {self.tid}" if self.tid else "thread cache"


def read_cache(memory: Memory, classes: Classes, layout: ExtentLayout, arena: JemallocArena, cache: int, descriptor: int) -> JemallocCache:
    """Read the thread cache at `cache`, which this arena lists."""
    found = JemallocCache(0, cache, arena.index)
    if layout.name == EDATA.name:
        _read_53(memory, classes, cache, descriptor, found)
    else:
        _read_52(memory, classes, cache, descriptor, found)
    if layout.random:
        found.own.append(Range(cache - layout.random, cache - layout.random + RANDOM))
    return found


def _read_53(memory: Memory, classes: Classes, slow: int, descriptor: int, found: JemallocCache) -> None:
    """Read a cache of 5.3 (cache_bin.h). A bin is {top of the stack, which grows down; requests;
    the low bits of low water, full and empty; (5.3.1) length}.

    Example: the low 16 bits of the top are 0x1f80 and `empty` is 0x2000, so the stack has 0x80
    bytes."""
    word, step = memory.size, memory.arch.structure(BIN_53).size
    words = memory.words(slow, SLOW // word) or ()
    last = _find_last_word(memory, slow, words)
    bins = words[last] + memory.arch.structure("PQ").size - 8 if last else 0
    # The third word is 0 in a build without statistics.
    if not last or memory.word(descriptor + 2 * word) not in (bins, 0):
        found.problems.append("has no address of its stacks")
        return
    start = found.stacks_at = words[last - 1]
    before, count = start + word, 0
    for szind in range(len(classes.sizes)):
        entry = memory.members(bins + step * szind, BIN_53)
        if entry is None or not entry[0]:
            break
        top, _, _, full, empty, length = entry
        if not start < top <= start + STACKS:
            # The class is not cached: its stack is elsewhere, and has length 0 in 5.3.1. Or the
            # last bin has been passed.
            continue
        size = (empty - top) & 0xFFFF
        end = top + size
        if size % word or (length and size > word * length) or top < before or (before and end - before > STACKS):
            what = f"has a stack for {classes.sizes[szind]:,} bytes at {top:#x} that ends at {end:#x}: its blocks count as in use"
            found.problems.append(what)
            before = 0  # the start of the next stack is now unknown
            continue
        low = end - word * length if length else before or top
        kept = (full - low) & 0xFFFF
        stashed = memory.words(low, kept // word) if 0 < kept <= top - low and kept % word == 0 else ()
        found.stacks.append(Stack(szind, top, memory.words(top, size // word) or (), stashed or ()))
        before, count = end, szind + 1
    found.own = [Range(slow, slow + word * (last + 1)), Range(words[last], bins + step * count)]


def _find_last_word(memory: Memory, slow: int, words: Sequence[int]) -> int:
    """Return the index of the last word of tcache_slow_s, or 0 if it is not found. The structure
    ends in {dyn_alloc, tcache}, and tcache_s begins with a pointer back to it."""
    return next((i for i in range(7, len(words)) if words[i] and words[i] % memory.size == 0 and memory.word(words[i]) == slow), 0)


def find_unlisted(
    memory: Memory, engine: Engine, classes: Classes, layout: ExtentLayout, threads: Sequence[Thread], arenas: Sequence[JemallocArena]
) -> list[tuple[JemallocArena, int, int]]:
    """Find the thread caches of arenas whose list of thread caches is empty. They are searched for
    in the threads' static storage, by their pointer to an arena. Return (arena, cache, descriptor)
    by the index of the arena."""
    by_address = {arena.address: arena for arena in arenas}
    found: dict[int, JemallocArena] = {}
    regions = memory.target.regions()
    for pointer in sorted({thread.thread_pointer for thread in threads if thread.thread_pointer}):
        home = region_at(regions, pointer)
        start, end = static_storage(memory.arch, pointer, STATIC)
        low = home.start if home is not None else pointer
        for piece in memory.target.pieces(max(start, low), end + NEAR):
            for place in engine.search_any(piece, list(by_address)):
                address = _find_around(memory, classes, layout, place)
                arena = by_address[memory.word(place) or 0] if address else None
                if arena is not None:
                    found[address] = arena
    distance = 2 * memory.size if layout.name == EDATA.name else _measure_small_52(memory, classes) + 5 * memory.size
    return [(arena, cache, cache + distance) for cache, arena in sorted(found.items(), key=lambda one: one[1].index)]


def _find_around(memory: Memory, classes: Classes, layout: ExtentLayout, place: int) -> int:
    """Return the tcache_slow_s (5.2: tcache_s) whose pointer to its arena is at `place`, or 0."""
    word = memory.size
    if layout.name == EDATA.name:
        slow = place - 5 * word
        return slow if _find_last_word(memory, slow, memory.words(slow, SLOW // word) or ()) else 0
    cache, step = place - 9 * word - _measure_small_52(memory, classes), memory.arch.structure(BIN_52).size
    ends = [memory.word(at + step * i + 16) or 0 for at, i in _list_heads_52(memory, classes, cache)]
    return cache if ends[0] and all(0 <= after - end < STACKS for end, after in zip(ends, ends[1:])) else 0


def _measure_small_52(memory: Memory, classes: Classes) -> int:
    """Return the bytes of a tcache_s up to the end of its small bins (5.2.1)."""
    return BINS_52 + memory.arch.structure(BIN_52).size * len(classes.small)


def _list_heads_52(memory: Memory, classes: Classes, cache: int) -> list[tuple[int, int]]:
    """Return (address of an array of bins, index) of each small bin and of the first large one.

    Between them are two links, a flag, the descriptor (4 words), the arena, a number, and a byte
    for each small class (tcache_s, 5.2.1)."""
    nbins, unit = len(classes.small), memory.arch.long_alignment
    large = cache + _measure_small_52(memory, classes) + 10 * memory.size + -(-(4 + nbins) // unit) * unit
    return [*((cache + BINS_52, i) for i in range(nbins)), (large, 0)]


def _read_52(memory: Memory, classes: Classes, cache: int, descriptor: int, found: JemallocCache) -> None:
    """Read a cache of 5.2 (cache_bin.h). A bin is {low water, number of entries, requests, end of
    the stack}. The entries are the last words before the end."""
    word, step = memory.size, memory.arch.structure(BIN_52).size
    heads = memory.words(descriptor + 2 * word, 2)
    if heads is None:
        return
    if not heads[0]:  # built without statistics
        heads = cache + BINS_52, _list_heads_52(memory, classes, cache)[-1][0]
    nbins, before, count = len(classes.small), 0, 0
    for szind in range(len(classes.sizes)):
        at = heads[0] + step * szind if szind < nbins else heads[1] + step * (szind - nbins)
        entry = memory.members(at, BIN_52)
        if entry is None or not entry[3]:
            break
        _, number, _, end = entry
        if not found.stacks_at:
            found.stacks_at = before = end - word
        if not before <= end <= before + STACKS:
            break
        if szind and number > (end - before) // word:
            found.problems.append(
                f"counts {number:,} blocks of {classes.sizes[szind]:,} bytes, more than its array of cached blocks can contain"
            )
        else:
            found.stacks.append(Stack(szind, end - word * number, memory.words(end - word * number, number) or ()))
        before, count = end, szind + 1
    found.own = [Range(cache, heads[1] + step * max(count - nbins, 0))]


def attribute_threads(memory: Memory, caches: Sequence[JemallocCache], threads: Sequence[Thread], leaves: dict[int, int]) -> None:
    """Set the thread of each cache, and add the cache's copy of parts of the tree to `own`.

    A cache is in static storage, which is always on the same side of the thread pointer. So the
    thread of a cache is the one with the nearest thread pointer. The copy
    (rtree_ctx) consists of pairs: the first address of a leaf, and the leaf."""
    known = sorted((thread.thread_pointer, thread.tid) for thread in threads if thread.thread_pointer)
    pointers, above = [pointer for pointer, _ in known], memory.arch.variables_above
    for cache in caches:
        at = bisect_right(pointers, cache.address) - 1 if above else bisect_left(pointers, cache.address)
        if 0 <= at < len(known) and abs(pointers[at] - cache.address) < TLS:
            cache.tid = known[at][1]
        start, end = find_storage(memory, cache)
        for base, words in memory.scan(start, end):
            if leaves.keys() & words:
                cache.own += [
                    Range(base + memory.size * (i - 1), base + memory.size * (i + 1))
                    for i, word in enumerate(words)
                    if i and leaves.get(word) == words[i - 1]
                ]


def find_storage(memory: Memory, cache: JemallocCache) -> Range:
    """Return the range around a thread cache that contains jemalloc's thread-local variables
    (tsd_t)."""
    home = region_at(memory.target.regions(), cache.address)
    low = home.start if home is not None else 0
    return Range(max(cache.address - NEAR, low), cache.address + 2 * NEAR)
