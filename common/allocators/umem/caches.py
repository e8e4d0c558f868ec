"""umem_cache_t: the ring of caches, their slabs, and what their magazines hold."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.umem import layout as constants
from findleaks.allocators.umem.layout import STATISTICS, CacheLayout
from findleaks.graph.base import Engine, State
from findleaks.target.base import Piece

MOST_CACHES = 1 << 16
FREE, CACHED = int(State.FREE), int(State.CACHED)
"""As plain numbers, for the loops over buffers."""
MOST_SLABS = 1 << 26
MOST_CPUS = 4096
MOST_MAGAZINES = 1 << 22
MOST_ROUNDS = 4096


@dataclass
class UmemCache:
    """A umem_cache_t. `counters` are its statistics under their names less "cache_"; `allocs`, `frees` the sums of cc_alloc, cc_free."""

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
    loaded: list[tuple[int, int]] = field(default_factory=list)  # (magazine, rounds in it), of each CPU
    own: bool = False  # libumem's own structures, or memory for other caches' slabs
    slabs: list[Slab] = field(default_factory=list)

    @property
    def hashed(self) -> bool:
        return bool(self.flags & constants.HASH)


@dataclass
class Slab:
    """A umem_slab_t. `states` has a byte a chunk (State)."""

    address: int
    cache: UmemCache
    base: int
    refcnt: int
    chunks: int
    head: int
    next: int
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
    while address != null and len(found) < MOST_CACHES:
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
    while address not in seen and len(found) < MOST_CACHES:
        cache = read_cache(memory, layout, address)
        if cache is None:
            break
        seen.add(address)
        found.append(cache)
        address = cache.prev
    return found


def read_cache(memory: Memory, layout: CacheLayout, address: int) -> UmemCache | None:
    """The cache at `address`, or None where there is none: its nullslab must name it, and its sizes make sense."""
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
    """Each CPU's counters and its two magazines."""
    word, order = layout.word, memory.arch.byteorder
    for number in range(min(cache.cpus, MOST_CPUS)):
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
            if magazine and 0 < count <= MOST_ROUNDS:  # -1: there is no magazine
                cache.loaded.append((magazine, count))


def read_slabs(engine: Engine, pieces: Sequence[Piece], caches: Sequence[UmemCache], word: int, problems: list[Problem]) -> None:
    """Give each cache its slabs, with the chunks on their free lists FREE, all others IN_USE."""
    lists = engine.follow_all(pieces, [cache.first for cache in caches], 2 * word, MOST_SLABS)
    why = dict(lists.problems)
    records, _ = engine.gather(pieces, lists.nodes, 7 * word)
    values = memoryview(records).cast("Q" if word == 8 else "I").tolist()
    begin = 0
    for number, (cache, end) in enumerate(zip(caches, lists.ends)):
        if end == begin or lists.nodes[end - 1] != cache.nullslab:
            what = why.get(number, "the list does not come back")
            problems.append(
                Problem(cache.address, f"libumem: the slabs of cache {cache.name} are corrupt: {what}; slabs behind are not seen")
            )
        for at in range(begin, end):
            if lists.nodes[at] != cache.nullslab:
                _add_slab(cache, lists.nodes[at], values[7 * at : 7 * at + 7], problems)
        begin = end
    for cache in caches:
        _mark_free(engine, pieces, cache, word, problems)


def _add_slab(cache: UmemCache, address: int, words: Sequence[int], problems: list[Problem]) -> None:
    owner, base, following, before, head, refcnt, chunks = words
    if owner != cache.address or not 0 < chunks <= cache.slabsize // cache.chunksize or not base:
        problems.append(Problem(address, f"libumem: slab {address:#x} of cache {cache.name} is corrupt: its blocks are not seen"))
        return
    cache.slabs.append(Slab(address, cache, base, refcnt, chunks, head, following, before, bytearray(chunks)))


def _mark_free(engine: Engine, pieces: Sequence[Piece], cache: UmemCache, word: int, problems: list[Problem]) -> None:
    """Follow the slabs' free lists: bufctls, which in caches without hash table stand in the buffers themselves."""
    listed = [slab for slab in cache.slabs if slab.head]
    if not listed:
        return
    lists = engine.follow_all(pieces, [slab.head for slab in listed], 0, max(slab.chunks for slab in listed))
    if cache.hashed:
        records, _ = engine.gather(pieces, lists.nodes, 2 * word)
        buffers = memoryview(records).cast("Q" if word == 8 else "I")[1::2].tolist()
        offset = 0
    else:
        buffers, offset = lists.nodes.tolist(), cache.bufctl
    for number, why in lists.problems:
        problems.append(
            Problem(listed[number].address, f"libumem: the free list of slab {listed[number].address:#x} of {cache.name}: {why}")
        )
    begin, size = 0, cache.chunksize
    for slab, end in zip(listed, lists.ends):
        first, states, chunks = slab.base + offset, slab.states, slab.chunks
        for buffer in buffers[begin:end]:
            index, odd = divmod(buffer - first, size)
            if odd or not 0 <= index < chunks:
                what = f"libumem: a free list of {cache.name} has {buffer - offset:#x}, which is no buffer of slab {slab.address:#x}"
                problems.append(Problem(buffer, what))
            else:
                states[index] = FREE
        begin = end


@dataclass(frozen=True)
class Rounds:
    """Buffers in magazines: of cache `cache`; `depot` tells the depot's from a CPU's."""

    cache: UmemCache
    magazine: int
    depot: bool
    buffers: Sequence[int]


def read_magazines(
    engine: Engine, pieces: Sequence[Piece], caches: Sequence[UmemCache], word: int, problems: list[Problem]
) -> list[Rounds]:
    """What the CPUs' and the depots' magazines hold."""
    lists = engine.follow_all(pieces, [cache.full for cache in caches], 0, MOST_MAGAZINES)
    for number, why in lists.problems:
        problems.append(Problem(caches[number].address, f"libumem: the depot of cache {caches[number].name} is corrupt: {why}"))
    wanted: dict[int, list[tuple[UmemCache, int, bool]]] = {}  # by rounds: a call for all magazines that have as many
    begin = 0
    for cache, end in zip(caches, lists.ends):
        if 0 < cache.magazine <= MOST_ROUNDS:
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
                found.append(Rounds(cache, magazine, depot, values[number * count : (number + 1) * count].tolist()))
    return found


def mark_cached(rounds: Sequence[Rounds], slabs: Sequence[Slab], problems: list[Problem]) -> None:
    """Make the chunks in magazines CACHED; `slabs` ascend by base."""
    bases = [slab.base for slab in slabs]
    for one in rounds:
        chunk = one.cache.chunksize
        for buffer in one.buffers:
            at = bisect_right(bases, buffer) - 1
            slab = slabs[at] if at >= 0 else None
            index, odd = divmod(buffer - slab.base, chunk) if slab else (0, 1)
            if slab is None or odd or index >= slab.chunks or slab.cache is not one.cache:
                what = f"libumem: magazine {one.magazine:#x} of {one.cache.name} has {buffer:#x}, which is no buffer of it"
                problems.append(Problem(one.magazine, what))
            elif not slab.states[index]:
                slab.states[index] = CACHED
            else:
                twice = "is in another magazine, too" if slab.states[index] == CACHED else "is on its slab's free list, too"
                problems.append(
                    Problem(buffer, f"libumem: buffer {buffer:#x} of {one.cache.name} is in a magazine and {twice}: freed twice")
                )
