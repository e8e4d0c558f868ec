"""Thread caches: stacks of freed blocks, one for each size class, and their thread-local part.

Arenas list them; thread pointers only show whose they are. Old entries remain beyond a stack's top,
at lower addresses. jemalloc's own block holds the stacks, so they are no references."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from findleaks.allocators.jemalloc.arenas import Arena
from findleaks.allocators.jemalloc.classes import Classes
from findleaks.allocators.jemalloc.layout import EDATA, Extent
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Thread
from findleaks.target.ranges import holding

STACKS = 4 << 20  # bytes that the stacks of a cache take together at most
SLOW = 512  # bytes of tcache_slow_s that are examined
BIN = 24
TLS = 1 << 20  # bytes at most between a thread pointer and the thread's cache
STATIC = 64 << 10  # the same, for the search for unlisted caches
NEAR = 4096  # bytes on either side of a thread cache that may contain rtree_ctx


class Stack(NamedTuple):
    """Cached blocks of a size class; `stashed`: freed, out of use (use-after-free detection)."""

    szind: int
    address: int
    entries: Sequence[int]
    stashed: Sequence[int] = ()

    @property
    def blocks(self) -> tuple[int, ...]:
        return (*self.entries, *self.stashed)


@dataclass
class Cache:
    """`tid` is 0 if unknown or made by hand. `stacks_at` is inside the block that holds the stacks;
    `own` are parts of thread-local storage."""

    tid: int
    address: int
    arena: int
    stacks_at: int = 0
    stacks: list[Stack] = field(default_factory=list)
    own: list[Range] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def entries(self) -> list[int]:
        return [entry for stack in self.stacks for entry in stack.blocks]

    @property
    def label(self) -> str:
        return f"thread cache of thread {self.tid}" if self.tid else "thread cache"


def read(memory: Memory, classes: Classes, layout: Extent, arena: Arena, cache: int, descriptor: int) -> Cache:
    """The thread cache at `cache`, which this arena lists."""
    found = Cache(0, cache, arena.index)
    if layout is EDATA:
        _read_53(memory, classes, cache, descriptor, found)
    else:
        _read_52(memory, classes, cache, descriptor, found)
    return found


def _read_53(memory: Memory, classes: Classes, slow: int, descriptor: int, found: Cache) -> None:
    """cache_bin.h, 5.3: {top of the stack, which grows down, requests, low bits of: low water,
    full, empty; (5.3.1) its length}."""
    words = memory.words(slow, SLOW // 8) or ()
    last = _last(memory, slow, words)
    bins = words[last] + 8 if last else 0
    if not last or memory.word(descriptor + 16) not in (bins, 0):  # 0: built without statistics
        found.problems.append("does not say where its stacks are")
        return
    start = found.stacks_at = words[last - 1]
    before, count, order = start + 8, 0, memory.arch.word_format[0]
    for szind in range(len(classes.sizes)):
        entry = memory.words(bins + BIN * szind, 3)
        if entry is None or not entry[0]:
            break
        top, _, packed = entry
        if not start < top <= start + STACKS:
            # not cached: its stack, elsewhere, has length 0 (5.3.1); or beyond the last bin
            continue
        _, full, empty, length = struct.unpack(f"{order}4H", struct.pack(f"{order}Q", packed))
        size = (empty - top) & 0xFFFF
        end = top + size
        if size % 8 or (length and size > 8 * length) or top < before or (before and end - before > STACKS):
            what = f"has a stack for {classes.sizes[szind]:,} bytes at {top:#x} that ends at {end:#x}: its blocks count as in use"
            found.problems.append(what)
            before = 0  # then the start of the next stack is unknown
            continue
        low = end - 8 * length if length else before or top
        kept = (full - low) & 0xFFFF
        stashed = memory.words(low, kept // 8) if 0 < kept <= top - low and kept % 8 == 0 else ()
        found.stacks.append(Stack(szind, top, memory.words(top, size // 8) or (), stashed or ()))
        before, count = end, szind + 1
    found.own = [Range(slow, slow + 8 * (last + 1)), Range(bins - 8, bins + BIN * count)]


def _last(memory: Memory, slow: int, words: Sequence[int]) -> int:
    """The index of tcache_slow_s' last word, 0 if there is none: it ends in {dyn_alloc, tcache},
    and tcache_s begins with a pointer back."""
    return next((i for i in range(7, len(words)) if words[i] and words[i] % 8 == 0 and memory.word(words[i]) == slow), 0)


def unlisted(
    memory: Memory, engine: Engine, classes: Classes, layout: Extent, threads: Sequence[Thread], arenas: Sequence[Arena]
) -> list[tuple[Arena, int, int]]:
    """For arenas that list no caches: (arena, cache, descriptor) of caches in threads' static
    storage that point to one of them, by the arena's index."""
    by_address = {arena.address: arena for arena in arenas}
    found: dict[int, Arena] = {}
    regions = memory.target.regions()
    for pointer in sorted({thread.thread_pointer for thread in threads if thread.thread_pointer}):
        home = holding(regions, pointer)
        low = home.start if home is not None else pointer
        for piece in memory.target.pieces(max(pointer - STATIC, low), pointer + NEAR):
            for place in engine.search_any(piece, list(by_address)):
                address = _around(memory, classes, layout, place)
                arena = by_address[memory.word(place) or 0] if address else None
                if arena is not None:
                    found[address] = arena
    distance = 16 if layout is EDATA else 56 + BIN * len(classes.small)
    return [(arena, cache, cache + distance) for cache, arena in sorted(found.items(), key=lambda one: one[1].index)]


def _around(memory: Memory, classes: Classes, layout: Extent, place: int) -> int:
    """The tcache_slow_s (5.2: tcache_s) whose pointer to its arena is at `place`, or 0."""
    if layout is EDATA:
        slow = place - 40
        return slow if _last(memory, slow, memory.words(slow, SLOW // 8) or ()) else 0
    cache = place - 88 - BIN * len(classes.small)
    ends = [memory.word(at + BIN * i + 16) or 0 for at, i in _heads_52(classes, cache)]
    return cache if ends[0] and all(0 <= after - end < STACKS for end, after in zip(ends, ends[1:])) else 0


def _heads_52(classes: Classes, cache: int) -> list[tuple[int, int]]:
    """(address of an array of bins, index): small ones, first large one. Between them are two
    links, a flag, the descriptor (32 bytes), the arena, a number and a byte per small class
    (tcache_s, 5.2.1)."""
    nbins = len(classes.small)
    large = cache + 96 + BIN * nbins + -(-(4 + nbins) // 8) * 8
    return [*((cache + 16, i) for i in range(nbins)), (large, 0)]


def _read_52(memory: Memory, classes: Classes, cache: int, descriptor: int, found: Cache) -> None:
    """cache_bin.h, 5.2: {low water, number of entries, requests, end of the stack}; the entries are
    the last before the end."""
    heads = memory.words(descriptor + 16, 2)
    if heads is None:
        return
    if not heads[0]:  # built without statistics
        heads = cache + 16, _heads_52(classes, cache)[-1][0]
    nbins, before, count = len(classes.small), 0, 0
    for szind in range(len(classes.sizes)):
        at = heads[0] + BIN * szind if szind < nbins else heads[1] + BIN * (szind - nbins)
        entry = memory.words(at, 3)
        if entry is None or not entry[2]:
            break
        number, end = memory.halves(entry[0])[1], entry[2]
        if not found.stacks_at:
            found.stacks_at = before = end - 8
        if not before <= end <= before + STACKS:
            break
        if szind and number > (end - before) // 8:
            found.problems.append(f"counts {number:,} blocks of {classes.sizes[szind]:,} bytes, more than its stack can have")
        else:
            found.stacks.append(Stack(szind, end - 8 * number, memory.words(end - 8 * number, number) or ()))
        before, count = end, szind + 1
    found.own = [Range(cache, heads[1] + BIN * max(count - nbins, 0))]


def attribute(memory: Memory, caches: Sequence[Cache], threads: Sequence[Thread], leaves: dict[int, int]) -> None:
    """Set the caches' threads: the one with the next pointer above (static storage is below the
    pointer), or else below. Adds a cache's copy of parts of the tree (rtree_ctx: pairs of a leaf's
    first address and the leaf) to its own memory."""
    known = sorted((thread.thread_pointer, thread.tid) for thread in threads if thread.thread_pointer)
    for cache in caches:
        near = [(pointer - cache.address, tid) for pointer, tid in known if 0 <= pointer - cache.address < TLS]
        if near:
            cache.tid = min(near)[1]
        start, end = storage(memory, cache)
        for base, words in memory.scan(start, end):
            if leaves.keys() & words:
                cache.own += [
                    Range(base + 8 * i - 8, base + 8 * i + 8) for i, word in enumerate(words) if i and leaves.get(word) == words[i - 1]
                ]


def storage(memory: Memory, cache: Cache) -> Range:
    """The thread-local storage around a thread cache that contains jemalloc's variables (tsd_t)."""
    home = holding(memory.target.regions(), cache.address)
    low = home.start if home is not None else 0
    return Range(max(cache.address - NEAR, low), cache.address + 2 * NEAR)
