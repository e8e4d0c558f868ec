"""Slabs and their buffers in pure Python: the tests' reference for umem_slabs.c, umem_buffers.c."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple, Optional

from findleaks.allocators.umem import engine as s
from findleaks.allocators.umem.engine import CACHE, HASHED, OWN, SLAB, USER, BufferRead, SlabRead, SlabWrong
from findleaks.allocators.umem.layout import FREED_STAT, MALLOC_MAGIC, SECOND_ALIGN, SECOND_MAGIC, TAG, WRAP
from findleaks.engine.contract import Blocks
from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.terms import State
from findleaks.target.arch import Arch, Words
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import range_at

IN_USE, CACHED, FREE = int(State.IN_USE), int(State.CACHED), int(State.FREE)
_IDLE = bytes((0,)) + bytes((1,)) * 255  # 0 for the state of a block in use, else 1


class _Cache(NamedTuple):
    """A row of engine.CACHE's table."""

    address: int
    nullslab: int
    first: int
    chunksize: int
    slabsize: int
    bufctl: int
    flags: int
    bufsize: int
    tag: int
    least: int
    buftag: int


def _caches(table: array[int]) -> list[_Cache]:
    return [_Cache(*table[at : at + CACHE]) for at in range(0, len(table), CACHE)]


def read_slabs(engine: PureEngine, pieces: Sequence[Piece], caches: array[int], regions: Sequence[Range]) -> SlabRead:
    word = engine.arch.word
    kinds = _caches(caches)
    read = SlabRead(caches, array("Q"), array("Q"), bytearray(), array("Q"), [], array("Q", bytes(8 * s.SUMS * len(kinds))))
    heads: list[int] = []
    chunks_left = sum(region.end - region.start for region in regions)  # at least a byte each
    for number, cache in enumerate(kinds):
        nodes, why = engine.follow(pieces, cache.first, 2 * word, False, s.MAX_SLABS)
        if not nodes or nodes[-1] != cache.nullslab:
            read.wrong.append(SlabWrong(s.LIST, number, 0, 0, why))
        raw, _ = engine.gather(pieces, nodes, 7 * word)
        values = engine.arch.words(raw).tolist()
        for at, address in enumerate(nodes):
            if address == cache.nullslab:
                continue
            owner, base, _, before, head, refcnt, chunks = values[7 * at : 7 * at + 7]
            if owner != cache.address or not base or not 0 < chunks <= min(cache.slabsize // cache.chunksize, chunks_left):
                read.wrong.append(SlabWrong(s.CORRUPT, number, 0, address, ""))
                continue
            read.records.extend((address, base, number, chunks, refcnt, before, len(read.states)))
            heads.append(head)
            read.states.extend(bytes(chunks))
            chunks_left -= chunks
        read.ends.append(len(read.records) // SLAB)
    for number, head in enumerate(heads):
        if head:
            _free(engine, pieces, read, kinds, number, head)
    _place(read, kinds, regions)
    return read


def _free(engine: PureEngine, pieces: Sequence[Piece], read: SlabRead, kinds: Sequence[_Cache], number: int, head: int) -> None:
    """Mark the chunks on a slab's free list."""
    _, base, kind, chunks, _, _, first = read.records[number * SLAB : (number + 1) * SLAB]
    cache, word = kinds[kind], engine.arch.word
    nodes, why = engine.follow(pieces, head, 0, False, chunks)
    buffers, offset = nodes.tolist(), cache.bufctl
    if why:
        read.wrong.append(SlabWrong(s.FREE_LIST, kind, number, 0, why))
    if cache.flags & HASHED:
        raw, _ = engine.gather(pieces, [node + word for node in nodes], word)
        buffers, offset = engine.arch.words(raw).tolist(), 0
    for buffer in buffers:
        index, rest = divmod(buffer - base - offset, cache.chunksize)
        if rest or not 0 <= index < chunks:
            read.wrong.append(SlabWrong(s.NO_BUFFER, kind, number, buffer, ""))
        else:
            read.states[first + index] = FREE


def _place(read: SlabRead, kinds: Sequence[_Cache], regions: Sequence[Range]) -> None:
    """Fill `users`: the program's slabs by base, except those outside the regions and overlaps."""
    records, users = read.records, read.users
    numbers = [at for at in range(len(records) // SLAB) if not kinds[records[at * SLAB + 2]].flags & OWN]
    for number in sorted(numbers, key=lambda number: records[number * SLAB + 1]):
        _, base, kind, chunks, _, _, _ = records[number * SLAB : (number + 1) * SLAB]
        region, end = range_at(regions, base), base + chunks * kinds[kind].chunksize
        if region is None or end > region.end or base % 8:
            read.wrong.append(SlabWrong(s.OUTSIDE, kind, number, 0, ""))
        elif users and base < users[-2]:
            read.wrong.append(SlabWrong(s.OVERLAPS, kind, number, users[-1], ""))
        else:
            users.extend((base, end, number))


def mark_cached(engine: PureEngine, slabs: SlabRead, cache: int, buffers: Sequence[int]) -> list[tuple[int, int]]:
    size = slabs.caches[cache * CACHE + 3]
    bases, found = slabs.users[::USER], []
    for at, buffer in enumerate(buffers):
        user = bisect_right(bases, buffer) - 1
        base, end, number = slabs.users[user * USER : (user + 1) * USER] if user >= 0 else (0, 0, 0)
        if not base <= buffer < end or slabs.records[number * SLAB + 2] != cache or (buffer - base) % size:
            found.append((s.NOT_MINE, at))
            continue
        place = slabs.records[number * SLAB + 6] + (buffer - base) // size
        if slabs.states[place]:
            found.append((s.IN_MAGAZINE if slabs.states[place] == CACHED else s.ON_LIST, at))
        else:
            slabs.states[place] = CACHED
    return found


def read_buffers(
    engine: PureEngine, blocks: Blocks, pieces: Sequence[Piece], slabs: SlabRead, first: int, last: int, enough: int
) -> BufferRead:
    reader = _Buffers(engine.arch, pieces, slabs)
    at, last = first, min(last, len(slabs.users) // USER)
    while at < last and len(reader.states) < enough:
        reader.slab(slabs.users[at * USER + 2])
        at += 1
    blocks.append(reader.starts, reader.sizes, reader.states)
    return BufferRead(reader.troubles, at)


class _Buffers:
    def __init__(self, arch: Arch, pieces: Sequence[Piece], slabs: SlabRead) -> None:
        self._arch, self._pieces = arch, pieces
        self._places = [piece.address for piece in pieces]
        self._slabs = slabs
        self._caches = _caches(slabs.caches)
        self._tables: dict[int, dict[tuple[int, int], int]] = {}
        self.starts, self.sizes, self.states, self.troubles = array("Q"), array("Q"), bytearray(), array("Q")

    def slab(self, number: int) -> None:
        _, base, kind, chunks, _, _, first = self._slabs.records[number * SLAB : (number + 1) * SLAB]
        cache, states = self._caches[kind], self._slabs.states[first : first + chunks]
        starts: Sequence[int] = range(base + cache.tag, base + cache.tag + chunks * cache.chunksize, cache.chunksize)
        sizes: Sequence[int] = [cache.bufsize - cache.tag] * chunks
        if cache.tag:
            data = self._data(base, chunks * cache.chunksize)
            if data is None:
                self.troubles.extend((s.UNREADABLE, number, 0, 0, 0))
            else:
                starts, sizes = self._tagged(cache, number, base, states, data)
        self.starts.extend(starts)
        self.sizes.extend(sizes)
        self.states += states
        for state, size in zip(states, sizes):
            self._slabs.sums[kind * s.SUMS + 2 * state] += 1
            self._slabs.sums[kind * s.SUMS + 2 * state + 1] += size

    def _data(self, start: int, size: int) -> Optional[Words]:
        """Memory as numbers of four bytes; None unless all of it can be read."""
        at, found = bisect_right(self._places, start) - 1, b""
        while 0 <= at < len(self._pieces) and len(found) < size:
            offset = start + len(found) - self._places[at]
            if not 0 <= offset < len(self._pieces[at].data):
                return None
            found += self._pieces[at].data[offset : offset + size - len(found)]
            at += 1
        return self._arch.words32(found) if len(found) == size else None

    def _table(self, cache: _Cache) -> dict[tuple[int, int], int]:
        """The tags that malloc may write in this class, and the usable size that each states."""
        table = self._tables.get(cache.address)
        if table is None:
            stated = range(max(cache.least + 1, cache.tag), min(cache.bufsize, s.MAX_TAGGED) + 1)
            table = self._tables[cache.address] = {(size, (_magic(cache) - size) % WRAP): size - cache.tag for size in stated}
        return table

    def _tagged(self, cache: _Cache, number: int, base: int, states: bytearray, data: Words) -> tuple[Sequence[int], Sequence[int]]:
        """Starts and sizes of the buffers of a slab whose cache has tags."""
        step, at, default = cache.chunksize // 4, (cache.tag - TAG) // 4, cache.bufsize - cache.tag
        known = self._table(cache).get
        tags = list(zip(data[at::step].tolist(), data[at + 1 :: step].tolist()))
        sizes = list(map(known, tags, repeat(-1)))
        if bytes(map((-1).__eq__, sizes)) != states.translate(_IDLE):
            return self._partly_tagged(cache, number, base, states, sizes, data)
        starts = range(base + cache.tag, base + cache.tag + len(states) * cache.chunksize, cache.chunksize)
        return starts, [default if state else size for state, size in zip(states, sizes)]

    def _partly_tagged(
        self, cache: _Cache, number: int, base: int, states: bytearray, sizes: list[int], data: Words
    ) -> tuple[Sequence[int], Sequence[int]]:
        """The same where not exactly the buffers in use have a tag (-1 in `sizes`: it has none)."""
        tag, step = cache.tag, cache.chunksize // 4
        untagged = [i for i, size in enumerate(sizes) if size < 0 and not states[i]]
        at = (cache.tag - TAG) // 4
        if untagged and len(untagged) == states.count(IN_USE):
            damaged = (_damaged(cache, *data[i * step + at : i * step + at + 2]) for i in untagged)
            tag = tag if any(damaged) else 0  # 0: none has, the program calls umem_alloc() itself
        starts = [base + i * cache.chunksize + tag for i in range(len(states))]
        sizes = [cache.bufsize - tag if state or size < 0 else size for size, state in zip(sizes, states)]
        for i in untagged:
            start, size = self._untagged(cache, number, i, base + i * cache.chunksize, data[i * step : (i + 1) * step])
            if not i or start >= starts[i - 1] + max(sizes[i - 1], 1):
                starts[i], sizes[i] = start, size
        return starts, sizes

    def _untagged(self, cache: _Cache, number: int, index: int, buffer: int, chunk: Words) -> tuple[int, int]:
        """(start, size) of a buffer in use without malloc's tag: from umem_alloc(), or damaged."""
        if cache.tag > TAG and (chunk[0] + chunk[1]) % WRAP == MALLOC_MAGIC and TAG <= chunk[0] <= SECOND_ALIGN:
            return buffer + TAG, chunk[0] - TAG
        at = (cache.tag - TAG) // 4
        size = _damaged(cache, chunk[at], chunk[at + 1])
        if size:
            self.troubles.extend((s.DAMAGED, number, index, chunk[at], chunk[at + 1]))
            return buffer + cache.tag, size - cache.tag
        if cache.buftag and cache.buftag % 4 == 0 and cache.buftag + 8 <= cache.chunksize:
            size, rest = divmod(chunk[cache.buftag // 4 + 1], s.ENCODED)
            if rest == 1 and 0 < size <= cache.bufsize:
                return buffer, size
        return buffer, cache.bufsize


def _magic(cache: _Cache) -> int:
    return SECOND_MAGIC if cache.tag > TAG else MALLOC_MAGIC


def _damaged(cache: _Cache, stated: int, stat: int) -> int:
    """The size that one half of a damaged tag still states; 0 if none (no size is 0)."""
    for size in (stated, (_magic(cache) - stat) % WRAP):
        if max(cache.least, cache.tag - 1) < size <= cache.bufsize and stat != FREED_STAT:
            return size
    return 0
