"""umem_cache_t: the ring of caches, their slabs, and the buffers in their magazines."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, groupby

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.umem import engine as codes
from findleaks.allocators.umem import layout as constants
from findleaks.allocators.umem.engine import SLAB, USER, SlabRead, SlabWrong
from findleaks.allocators.umem.layout import STATISTICS, CacheLayout
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece, Range

MAX_CACHES = 1 << 16
MAX_CPUS = 4096
MAX_MAGAZINES = 1 << 22
MAX_ROUNDS = 4096


@dataclass
class UmemCache:
    """A umem_cache_t.

    `counters` are its statistics, named without "cache_". `allocs` and `frees` are the sums of
    cc_alloc and cc_free.
    """

    address: int
    name: str
    bufsize: int
    arena: int
    cflags: int
    flags: int
    next: int
    prev: int
    cpus: int
    chunksize: int
    slabsize: int
    bufctl: int
    buftag: int
    verify: int
    hash_shift: int
    hash_mask: int
    hash_table: int
    magazine: int  # rounds of a full magazine in the depot
    full: int
    full_total: int
    full_allocs: int
    empty: int
    empty_total: int
    first: int  # first slab
    nullslab: int
    counters: dict[str, int]
    allocs: int = 0
    frees: int = 0
    # (magazine, rounds in it), of each CPU
    loaded: list[tuple[int, int]] = field(default_factory=list)
    own: bool = False  # holds libumem's own structures, or memory for other caches' slabs

    @property
    def hashed(self) -> bool:
        return bool(self.flags & constants.HASH)


@dataclass(frozen=True)
class Slab:
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
    head = memory.word(null + layout.next) or 0
    address, seen = head, {null}
    found: list[UmemCache] = []
    while address != null and len(found) < MAX_CACHES:
        cache = read_cache(memory, layout, address) if address not in seen else None
        if cache is None:
            why = "is no cache" if address not in seen else "comes twice"
            problems.append(Problem(address, f"libumem: the ring of caches is corrupt: {address:#x} {why}; read on from its other end"))
            found += reversed(_backward(memory, layout, null, seen))
            break
        seen.add(address)
        found.append(cache)
        address = cache.next
    return found


def _backward(memory: Memory, layout: CacheLayout, null: int, seen: set[int]) -> list[UmemCache]:
    address = memory.word(null + layout.next + memory.size) or 0
    found: list[UmemCache] = []
    while address not in seen and len(found) < MAX_CACHES:
        cache = read_cache(memory, layout, address)
        if cache is None:
            break
        seen.add(address)
        found.append(cache)
        address = cache.prev
    return found


def read_cache(memory: Memory, layout: CacheLayout, address: int) -> UmemCache | None:
    """The cache at `address`, or None if there is none.

    Its nullslab must name it, and its sizes must be plausible.
    """
    word, order = layout.word, memory.arch.byteorder
    words = memory.words(address, layout.cpus // word) if address % word == 0 else None
    if words is None:
        return None
    raw = b"".join(value.to_bytes(word, order) for value in words)

    def int32(offset: int) -> int:
        return int.from_bytes(raw[offset : offset + 4], order)

    def at(offset: int) -> int:
        return words[offset // word]

    def wide(offset: int) -> int:
        return int.from_bytes(raw[offset : offset + 8], order)

    name = raw[layout.name : layout.name + constants.NAME].split(b"\0")[0]
    chunk, null, mag = layout.chunksize, layout.nullslab, layout.magtype
    chunksize, slabsize = at(chunk), at(chunk + word)
    if at(null) != address or not 0 < chunksize <= slabsize or not name.isascii():
        return None
    cache = UmemCache(
        address=address,
        name=name.decode(),
        bufsize=at(layout.bufsize),
        arena=at(layout.bufsize + 6 * word),
        cflags=int32(layout.cflags),
        flags=int32(layout.cflags + 4),
        next=at(layout.next),
        prev=at(layout.next + word),
        cpus=int32(layout.cpu_mask) + 1,
        chunksize=chunksize,
        slabsize=slabsize,
        bufctl=at(chunk + 2 * word),
        buftag=at(chunk + 3 * word),
        verify=at(chunk + 4 * word),
        hash_shift=at(chunk + 9 * word),
        hash_mask=at(chunk + 10 * word),
        hash_table=at(layout.bufctl_cache + word),
        magazine=(memory.int32(at(mag)) or 0) if at(mag) else 0,
        full=at(mag + word),
        full_total=at(mag + 2 * word),
        full_allocs=wide(mag + 5 * word),
        empty=at(layout.empty),
        empty_total=at(layout.empty + word),
        first=at(null + 2 * word),
        nullslab=address + null,
        counters={key: wide(8 * number) for number, key in enumerate(STATISTICS)},
    )
    _read_cpus(memory, layout, cache)
    return cache


def _read_cpus(memory: Memory, layout: CacheLayout, cache: UmemCache) -> None:
    """Read each CPU's counters and its two magazines."""
    word, order = layout.word, memory.arch.byteorder
    for number in range(min(cache.cpus, MAX_CPUS)):
        base = cache.address + layout.cpu(number) + layout.mutex
        words = memory.words(base, (24 + 2 * word) // word)
        if words is None:
            break
        raw = b"".join(value.to_bytes(word, order) for value in words)
        ints = [int.from_bytes(raw[at : at + 4], order) for at in range(0, len(raw), 4)]
        cache.allocs += ints[0]
        cache.frees += ints[1]
        rounds = ints[2 + word // 2 :]
        for magazine, count in zip(words[8 // word :][:2], rounds):
            if magazine and 0 < count <= MAX_ROUNDS:  # -1: there is no magazine
                cache.loaded.append((magazine, count))


class Slabs:
    """The slabs of all caches, as the engine reads them.

    `bases` and `ends` are those of the program's slabs, ascending; `count` is their number.
    """

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

    def user(self, at: int) -> Slab:
        """The program's slab at this index of `bases`."""
        return self.slab(self.read.users[at * USER + 2])

    def users(self) -> Iterator[Slab]:
        """The program's slabs, ascending."""
        return map(self.slab, self.read.users[2::USER])

    def number(self, cache: UmemCache) -> int:
        """The number of a cache among `caches`."""
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
        """The program's slab with the buffer that holds `address`."""
        at = bisect_right(self.bases, address) - 1
        return self.user(at) if at >= 0 and address < self.ends[at] else None


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
    slabs = Slabs(caches, codes.read_slabs(engine, pieces, table, roots))
    problems += [_wrong(slabs, wrong) for wrong in slabs.read.wrong]
    return slabs


def tag_of(cache: UmemCache, word: int) -> int:
    """Bytes before what malloc() returns in buffers of this cache.

    Only caches "umem_alloc_N" have such; 0 in others, which malloc() does not use.
    """
    if not cache.name.startswith("umem_alloc_") or cache.own or cache.bufsize < constants.TAG:
        return 0
    return 2 * constants.TAG if word == 8 and cache.bufsize > constants.SECOND_ALIGN else constants.TAG


def _wrong(slabs: Slabs, wrong: SlabWrong) -> Problem:
    """What the engine found wrong, as a problem for the user."""
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


@dataclass(frozen=True)
class Rounds:
    """Buffers in a magazine of `cache`; `depot`: the magazine is the depot's, not a CPU's."""

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
    # by number of rounds: one call reads all magazines with as many
    wanted: dict[int, list[tuple[UmemCache, int, bool]]] = {}
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
        values, absent = memoryview(records).cast("Q" if word == 8 else "I"), set(missing)
        for number, (cache, magazine, depot) in enumerate(magazines):
            if number in absent:
                what = f"libumem: magazine {magazine:#x} of {cache.name} cannot be read: its blocks count as in use"
                problems.append(Problem(magazine, what))
            else:
                found.append(Rounds(cache, magazine, depot, values[number * count : (number + 1) * count]))
    return found


def mark_cached(engine: Engine, rounds: Sequence[Rounds], slabs: Slabs, problems: list[Problem]) -> None:
    """Make the chunks in magazines CACHED.

    Adjacent `rounds` of the same cache take one call of the engine.
    """
    for _, group in groupby(rounds, key=lambda one: one.cache.address):
        mine = list(group)
        buffers = array("Q", chain.from_iterable(one.buffers for one in mine))
        ends = list(accumulate(len(one.buffers) for one in mine))
        for code, at in codes.mark_cached(engine, slabs.read, slabs.number(mine[0].cache), buffers):
            name, buffer = mine[0].cache.name, buffers[at]
            if code == codes.NOT_MINE:
                magazine = mine[bisect_right(ends, at)].magazine
                what = f"libumem: magazine {magazine:#x} of {name} has {buffer:#x}, which is no buffer of it"
                problems.append(Problem(magazine, what))
            else:
                twice = "is in another magazine, too" if code == codes.IN_MAGAZINE else "is on its slab's free list, too"
                problems.append(Problem(buffer, f"libumem: buffer {buffer:#x} of {name} is in a magazine and {twice}: freed twice"))
