"""umem_cache_t: the ring of caches, their slabs, and the buffers in their magazines."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, groupby
from typing import NamedTuple

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.umem import engine as codes
from findleaks.allocators.umem import layout as constants
from findleaks.allocators.umem.engine import SLAB, USER, SlabRead, SlabWrong
from findleaks.allocators.umem.layout import STATISTICS, CacheLayout, Structure, read_structure
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece, Range

MAX_CACHES = 1 << 16
MAX_CPUS = 4096
MAX_MAGAZINES = 1 << 22
MAX_ROUNDS = 4096


class UmemCache:
    """A umem_cache_t. `magazine`: rounds of a full magazine in the depot; `counters`: statistics,
    named without "cache_"; `allocs`, `frees`: sums of cc_alloc and cc_free; `loaded`: (magazine,
    its rounds) of each CPU; `own`: for libumem's structures, or memory for other caches' slabs."""

    def __init__(self, layout: CacheLayout, address: int, fields: Structure) -> None:
        word, chunk, null, depot = layout.word, layout.chunksize, layout.nullslab, layout.magtype
        self.address = address
        self.name = fields.text(layout.name, constants.NAME).decode("ascii", "replace")
        self.bufsize = fields.word(layout.bufsize)
        self.arena = fields.word(layout.bufsize + 6 * word)
        self.cflags = fields.int32(layout.cflags)
        self.flags = fields.int32(layout.cflags + 4)
        self.next = fields.word(layout.next)
        self.prev = fields.word(layout.next + word)
        self.cpus = fields.int32(layout.cpu_mask) + 1
        self.chunksize = fields.word(chunk)
        self.slabsize = fields.word(chunk + word)
        self.bufctl = fields.word(chunk + 2 * word)
        self.buftag = fields.word(chunk + 3 * word)
        self.verify = fields.word(chunk + 4 * word)
        self.hash_shift = fields.word(chunk + 9 * word)
        self.hash_mask = fields.word(chunk + 10 * word)
        self.hash_table = fields.word(layout.bufctl_cache + word)
        self.full = fields.word(depot + word)
        self.full_total = fields.word(depot + 2 * word)
        self.full_allocs = fields.int64(depot + 5 * word)
        self.first = fields.word(null + 2 * word)  # first slab
        self.nullslab = address + null
        self.counters = {key: fields.int64(8 * number) for number, key in enumerate(STATISTICS)}
        self.magazine = self.allocs = self.frees = 0
        self.loaded: list[tuple[int, int]] = []
        self.own = False

    @property
    def hashed(self) -> bool:
        return bool(self.flags & constants.HASH)

    @property
    def audited(self) -> bool:
        """Whether it records who allocated and freed its buffers."""
        return self.hashed and bool(self.flags & constants.AUDIT)


class Slab(NamedTuple):
    """A umem_slab_t. `states` has the State of each chunk, a byte each."""

    address: int
    cache: UmemCache
    base: int
    refcnt: int
    chunks: int
    prev: int
    states: bytearray

    @property
    def end(self) -> int:
        return self.base + self.chunks * self.cache.chunksize


def read_caches(memory: Memory, layout: CacheLayout, null: int, problems: list[Problem]) -> list[UmemCache]:
    """The ring of caches from umem_null_cache on, in the order of making."""
    seen = {null}
    found, end = _linked_caches(memory, layout, memory.word(null + layout.next) or 0, seen, True)
    if end != null and len(found) < MAX_CACHES:
        why = "is no cache" if end not in seen else "comes twice"
        problems.append(Problem(end, f"libumem: the ring of caches is corrupt: {end:#x} {why}; read on from its other end"))
        last = memory.word(null + layout.next + memory.size) or 0
        found += reversed(_linked_caches(memory, layout, last, seen, False)[0])
    return found


def _linked_caches(memory: Memory, layout: CacheLayout, address: int, seen: set[int], forward: bool) -> tuple[list[UmemCache], int]:
    """The caches linked from `address` on, added to `seen`, and the first address that is in `seen`
    or no cache; the links are those to the next cache or the previous."""
    found: list[UmemCache] = []
    while address not in seen and len(found) < MAX_CACHES:
        cache = read_cache(memory, layout, address)
        if cache is None:
            break
        seen.add(address)
        found.append(cache)
        address = cache.next if forward else cache.prev
    return found, address


def read_cache(memory: Memory, layout: CacheLayout, address: int) -> UmemCache | None:
    """The cache at `address`; None unless its nullslab names it and its sizes are plausible."""
    fields = read_structure(memory, address, layout.cpus) if address % layout.word == 0 else None
    if fields is None or fields.word(layout.nullslab) != address or not fields.text(layout.name, constants.NAME).isascii():
        return None
    cache = UmemCache(layout, address, fields)
    if not 0 < cache.chunksize <= cache.slabsize:
        return None
    magtype = fields.word(layout.magtype)
    cache.magazine = (memory.int32(magtype) or 0) if magtype else 0
    _read_cpus(memory, layout, cache)
    return cache


def _read_cpus(memory: Memory, layout: CacheLayout, cache: UmemCache) -> None:
    """Read each CPU's counters and its two magazines."""
    word = layout.word
    for number in range(min(cache.cpus, MAX_CPUS)):
        fields = read_structure(memory, cache.address + layout.cpu(number) + layout.mutex, 24 + 2 * word)
        if fields is None:
            break
        cache.allocs += fields.int32(0)
        cache.frees += fields.int32(4)
        for which in range(2):
            magazine, count = fields.word(8 + which * word), fields.int32(8 + 2 * word + 4 * which)
            if magazine and 0 < count <= MAX_ROUNDS:  # -1: there is no magazine
                cache.loaded.append((magazine, count))


class Slabs:
    """The slabs as the engine reads them; `bases` and `ends`: of the program's, ascending."""

    def __init__(self, caches: Sequence[UmemCache], read: SlabRead) -> None:
        self.caches = caches
        self.read = read
        self.bases = read.users[::USER]
        self.ends = read.users[1::USER]
        self.count = len(self.bases)
        self._numbers = {cache.address: number for number, cache in enumerate(caches)}

    def slab(self, number: int) -> Slab:
        """The slab of this number in the engine's records."""
        address, base, kind, chunks, refcnt, before, first = self.read.records[number * SLAB : (number + 1) * SLAB]
        return Slab(address, self.caches[kind], base, refcnt, chunks, before, self.read.states[first : first + chunks])

    def users(self) -> Iterator[Slab]:
        """The program's slabs, ascending."""
        return map(self.slab, self.read.users[2::USER])

    def number(self, cache: UmemCache) -> int:
        return self._numbers[cache.address]

    def of(self, cache: UmemCache) -> range:
        """The numbers of a cache's slabs, in the order of its list."""
        number = self.number(cache)
        return range(self.read.ends[number - 1] if number else 0, self.read.ends[number])

    def size(self, cache: UmemCache) -> tuple[int, int]:
        """How many slabs and chunks a cache has."""
        mine = self.of(cache)
        return len(mine), sum(self.read.records[mine.start * SLAB + 3 : mine.stop * SLAB : SLAB])

    def sums(self, cache: UmemCache) -> array[int]:
        """Blocks and bytes in use, cached and free; complete when all blocks have been read."""
        number = self.number(cache)
        return self.read.sums[number * codes.SUMS : (number + 1) * codes.SUMS]

    def holding(self, address: int) -> Slab | None:
        at = bisect_right(self.bases, address) - 1
        return self.slab(self.read.users[at * USER + 2]) if at >= 0 and address < self.ends[at] else None


def read_slabs(
    engine: Engine, pieces: Sequence[Piece], caches: Sequence[UmemCache], word: int, roots: Sequence[Range], problems: list[Problem]
) -> Slabs:
    """The caches' slabs. Chunks on their free lists are FREE, all others IN_USE."""
    classes = sorted(cache.bufsize for cache in caches if not cache.own and cache.name.startswith("umem_alloc_"))
    table = array("Q")
    for cache in caches:
        flags = (codes.HASHED if cache.hashed else 0) | (codes.OWN if cache.own else 0)
        tag, below = tag_of(cache, word), bisect_right(classes, cache.bufsize - 1) - 1
        least = classes[below] if below >= 0 else 0
        buftag = cache.buftag if cache.flags & constants.BUFTAG else 0
        lists = (cache.address, cache.nullslab, cache.first, cache.chunksize, cache.slabsize, cache.bufctl, flags)
        table.extend((*lists, cache.bufsize, tag, least, buftag))
    slabs = Slabs(caches, codes.loops(engine).read_slabs(engine, pieces, table, roots))
    problems += [_wrong(slabs, wrong) for wrong in slabs.read.wrong]
    return slabs


def tag_of(cache: UmemCache, word: int) -> int:
    """Bytes before what malloc() returns in this cache; 0 unless its name is "umem_alloc_N"."""
    if not cache.name.startswith("umem_alloc_") or cache.own or cache.bufsize < constants.TAG:
        return 0
    return 2 * constants.TAG if word == 8 and cache.bufsize > constants.SECOND_ALIGN else constants.TAG


def _wrong(slabs: Slabs, wrong: SlabWrong) -> Problem:
    code, kind, number, value, why = wrong
    cache, name = slabs.caches[kind], slabs.caches[kind].name
    if code == codes.LIST:
        what = f"libumem: the slabs of cache {name} are corrupt: {why or 'the list does not come back'}; slabs behind are not seen"
        return Problem(cache.address, what)
    if code == codes.CORRUPT:
        return Problem(value, f"libumem: slab {value:#x} of cache {name} is corrupt: its blocks are not seen")
    address, base = slabs.read.records[number * SLAB : number * SLAB + 2]
    if code == codes.FREE_LIST:
        return Problem(address, f"libumem: the free list of slab {address:#x} of {name}: {why}")
    if code == codes.NO_BUFFER:
        buffer = value - (0 if cache.hashed else cache.bufctl)
        return Problem(value, f"libumem: a free list of {name} has {buffer:#x}, which is no buffer of slab {address:#x}")
    if code == codes.OUTSIDE:
        return Problem(address, f"libumem: slab {address:#x} of {name} says its buffers are at {base:#x}, outside the heap: left out")
    other = slabs.slab(value)
    return Problem(address, f"libumem: slab {address:#x} of {name} overlaps {other.address:#x} of {other.cache.name}: left out")


class Rounds(NamedTuple):
    """Buffers in a magazine of `cache`: the depot's, or a CPU's."""

    cache: UmemCache
    magazine: int
    depot: bool
    buffers: Sequence[int]


def read_magazines(
    engine: Engine, pieces: Sequence[Piece], caches: Sequence[UmemCache], word: int, problems: list[Problem]
) -> list[Rounds]:
    """The buffers in the CPUs' and the depots' magazines."""
    lists = engine.follow_all(pieces, [cache.full for cache in caches], 0, MAX_MAGAZINES)
    for number, why in lists.problems:
        problems.append(Problem(caches[number].address, f"libumem: the depot of cache {caches[number].name} is corrupt: {why}"))
    wanted: dict[int, list[tuple[UmemCache, int, bool]]] = {}  # by rounds: one call reads them all
    begin = 0
    for cache, end in zip(caches, lists.ends):
        if 0 < cache.magazine <= MAX_ROUNDS:
            wanted.setdefault(cache.magazine, []).extend((cache, magazine, True) for magazine in lists.nodes[begin:end])
        for magazine, count in cache.loaded:
            wanted.setdefault(count, []).append((cache, magazine, False))
        begin = end
    found, mask = [], (1 << 8 * word) - 1
    for count, magazines in wanted.items():
        records, missing = engine.gather(pieces, [magazine + word & mask for _, magazine, _ in magazines], count * word)
        values, absent = engine.arch.words(records), set(missing)
        for number, (cache, magazine, depot) in enumerate(magazines):
            if number in absent:
                what = f"libumem: magazine {magazine:#x} of {cache.name} cannot be read: its blocks count as in use"
                problems.append(Problem(magazine, what))
            else:
                found.append(Rounds(cache, magazine, depot, values[number * count : (number + 1) * count]))
    return found


def mark_cached(engine: Engine, rounds: Sequence[Rounds], slabs: Slabs, problems: list[Problem]) -> None:
    """Make the chunks in magazines CACHED, by one call for adjacent `rounds` of the same cache."""
    for _, group in groupby(rounds, key=lambda one: one.cache.address):
        mine = list(group)
        buffers = array("Q", chain.from_iterable(one.buffers for one in mine))
        ends = list(accumulate(len(one.buffers) for one in mine))
        for code, at in codes.loops(engine).mark_cached(engine, slabs.read, slabs.number(mine[0].cache), buffers):
            name, buffer = mine[0].cache.name, buffers[at]
            if code == codes.NOT_MINE:
                magazine = mine[bisect_right(ends, at)].magazine
                what = f"libumem: magazine {magazine:#x} of {name} has {buffer:#x}, which is no buffer of it"
                problems.append(Problem(magazine, what))
            else:
                twice = "is in another magazine, too" if code == codes.IN_MAGAZINE else "is on its slab's free list, too"
                problems.append(Problem(buffer, f"libumem: buffer {buffer:#x} of {name} is in a magazine and {twice}: freed twice"))
