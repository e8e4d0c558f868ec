"""What ::umem_verify checks, and the lists around it: redzones, tags, the pattern in freed buffers,
counts, links both ways, and hash tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.allocators.base import Problem
from findleaks.allocators.umem import layout as constants
from findleaks.allocators.umem.arenas import Vmem, seg_records
from findleaks.allocators.umem.caches import Slab, UmemCache
from findleaks.allocators.umem.view import UmemView
from findleaks.engine.terms import State
from findleaks.errors import Interrupted, UnreadableMemory

MAX_CHAIN = 1 << 26
REDZONE_HALF = constants.REDZONE_PATTERN & 0xFFFFFFFF


def verify(umem: UmemView) -> Iterator[Problem]:
    """All problems, by arena, then cache, then slab."""
    for arena in umem.vmem:
        if arena.heap:
            yield from _arena(umem, arena)
    for before, cache in zip([None, *umem.umem_caches], umem.umem_caches):
        expected = before.address if before else umem.null
        if cache.prev != expected:
            what = f"libumem: cache {cache.name} says {cache.prev:#x} comes before it, not {expected:#x}: a link is damaged"
            yield Problem(cache.address, what)
    for cache in umem.kept:
        _poll(umem)
        yield from _lists(umem, cache)
    yield from _magazines(umem)
    for slab in umem.slabs.users():
        if slab.cache.flags & constants.BUFTAG:
            _poll(umem)
            yield from _buffers(umem, slab)


def _poll(umem: UmemView) -> None:
    if umem.target.interrupted():
        raise Interrupted


def _arena(umem: UmemView, arena: Vmem) -> Iterator[Problem]:
    """Segments are linked both ways, tile their spans, and add up to vk_mem_inuse."""
    nodes, values, _ = seg_records(umem.engine, umem.pieces, arena)
    inuse, at, end = 0, 0, 0
    for number, node in enumerate(nodes):
        start, stop, _, _, _, before, kind = values[7 * number : 7 * number + 7]
        if before != nodes[number - 1]:
            what = f"libumem: segment {node:#x} of arena {arena.name} says {before:#x} comes before it, not {nodes[number - 1]:#x}"
            yield Problem(node, f"{what}: a link is damaged")
        kind &= 0xFF
        if kind == constants.SEG_SPAN:
            if at != end:
                yield Problem(node, f"libumem: arena {arena.name}: a span that should end at {end:#x} ends at {at:#x}")
            at, end = start, stop
        elif start < stop:
            if start != at:
                # A segment ends with its request; the next begins at a multiple of the quantum.
                if not 0 < start - at < max(arena.quantum, 1):
                    yield Problem(node, f"libumem: segment {node:#x} of arena {arena.name} begins at {start:#x}, not {at:#x}")
            at = stop
            if kind == constants.SEG_ALLOC:
                inuse += stop - start
                at += -stop % max(arena.quantum, 1)
    if inuse != arena.inuse:
        yield Problem(arena.address, f"libumem: arena {arena.name} counts {arena.inuse:,} bytes in use; its segments have {inuse:,}")


def _lists(umem: UmemView, cache: UmemCache) -> Iterator[Problem]:
    """Check each slab's links and count of buffers handed out, and that the hash table has them."""
    expected = cache.nullslab
    for slab in map(umem.slabs.slab, umem.slabs.of(cache)):
        if slab.prev != expected:
            what = f"libumem: slab {slab.address:#x} of {cache.name} says {slab.prev:#x} comes before it, not {expected:#x}"
            yield Problem(slab.address, f"{what}: a link is damaged")
        expected = slab.address
        free = slab.states.count(State.FREE)
        if slab.refcnt != slab.chunks - free:
            what = f"libumem: slab {slab.address:#x} of {cache.name} counts {slab.refcnt} of {slab.chunks} buffers as handed out"
            yield Problem(slab.address, f"{what}; its free list has {free}")
    if not cache.hashed:
        return
    word = umem.memory.size
    table = umem.memory.words(cache.hash_table, cache.hash_mask + 1) if cache.hash_mask < MAX_CHAIN else None
    if table is None:
        yield Problem(cache.address, f"libumem: the hash table of {cache.name} at {cache.hash_table:#x} cannot be read")
        return
    lists = umem.engine.follow_all(umem.pieces, table, 0, MAX_CHAIN)
    for number, why in lists.problems:
        bucket = cache.hash_table + number * word
        yield Problem(bucket, f"libumem: the hash table of {cache.name}, bucket {bucket:#x}: {why}")
    records, _ = umem.engine.gather(umem.pieces, lists.nodes, 3 * word)
    known = set(umem.memory.arch.words(records)[1::3].tolist())
    for slab in map(umem.slabs.slab, umem.slabs.of(cache)):
        for index, state in enumerate(slab.states):
            buffer = slab.base + index * cache.chunksize
            if (state != State.FREE) != (buffer in known):
                finding = "is handed out and is not" if state != State.FREE else "is free and is"
                yield Problem(buffer, f"libumem: buffer {buffer:#x} of {cache.name} {finding} in the cache's hash table")


def _magazines(umem: UmemView) -> Iterator[Problem]:
    """The depot has as many full magazines as it counts."""
    for cache in umem.kept:
        if cache.own:
            continue
        found = sum(1 for one in umem.rounds if one.cache is cache and one.depot)
        if found != cache.full_total:
            yield Problem(cache.address, f"libumem: the depot of {cache.name} counts {cache.full_total:,} full magazines; it has {found:,}")


def _buffers(umem: UmemView, slab: Slab) -> Iterator[Problem]:
    """Tags and patterns in a slab of a cache with debugging."""
    cache, word, order = slab.cache, umem.memory.size, umem.memory.arch.byteorder
    try:
        data = umem.target.read(slab.base, slab.chunks * cache.chunksize)
    except UnreadableMemory:
        return
    pattern = constants.FREE_PATTERN.to_bytes(8, order) * (cache.verify // 8)
    bufctls = []
    for index, state in enumerate(slab.states):
        buffer = slab.base + index * cache.chunksize
        chunk = data[index * cache.chunksize : (index + 1) * cache.chunksize]
        tag = chunk[cache.buftag :]
        if len(tag) < 8 + 2 * word:
            yield Problem(cache.address, f"libumem: cache {cache.name} says its buffers' tags are at {cache.buftag:#x}, outside them")
            return
        bufctl, stat = int.from_bytes(tag[8 : 8 + word], order), int.from_bytes(tag[8 + word : 8 + 2 * word], order)
        bufctls.append(bufctl)
        yield from _tag(umem, slab, buffer, State(state), bufctl, stat)
        if state == State.IN_USE:
            yield from _redzone(umem, cache, buffer, chunk)
            continue
        if cache.flags & constants.DEADBEEF and chunk[: len(pattern)] != pattern:
            at = next(at for at in range(0, len(pattern), 8) if chunk[at : at + 8] != pattern[:8])
            value = int.from_bytes(chunk[at : at + 8], order)
            what = f"libumem: buffer {buffer:#x} of {cache.name} was written to after it was freed: it has {value:#x} at +{at:#x}"
            yield Problem(buffer + at, f"{what}, not {constants.FREE_PATTERN:#x}")
        elif (cache.hashed or state == State.CACHED) and int.from_bytes(tag[:8], order) != constants.REDZONE_PATTERN:
            # A free list without bufctls goes through the redzones.
            yield Problem(buffer + cache.buftag, f"libumem: the redzone of the free buffer {buffer:#x} of {cache.name} is overwritten")
    if cache.hashed:
        yield from _bufctls(umem, slab, bufctls)
    else:
        for index, bufctl in enumerate(bufctls):
            buffer = slab.base + index * cache.chunksize
            if bufctl != buffer + cache.bufctl:
                yield _names(cache, buffer, bufctl)


def _tag(umem: UmemView, slab: Slab, buffer: int, state: State, bufctl: int, stat: int) -> Iterator[Problem]:
    wanted = constants.TAG_ALLOC if state == State.IN_USE else constants.TAG_FREE
    if bufctl ^ stat == wanted:
        return
    name, place = slab.cache.name, buffer + slab.cache.buftag + 8 + umem.memory.size
    if bufctl ^ stat in (constants.TAG_ALLOC, constants.TAG_FREE):
        says = "free" if state == State.IN_USE else "in use"
        yield Problem(place, f"libumem: buffer {buffer:#x} of {name} is {'in use' if says == 'free' else 'free'}, and its tag says {says}")
    else:
        what = f"libumem: the tag behind buffer {buffer:#x} of {name} is damaged (bufctl ^ status is {bufctl ^ stat:#x}, not {wanted:#x})"
        yield Problem(place, f"{what}: written past its end")


def _redzone(umem: UmemView, cache: UmemCache, buffer: int, chunk: bytes) -> Iterator[Problem]:
    """The redzone behind a buffer in use: a pattern; in the size classes also the requested size,
    and a byte behind the requested bytes."""
    order = umem.memory.arch.byteorder
    low = int.from_bytes(chunk[cache.buftag : cache.buftag + 4], order)
    encoded = int.from_bytes(chunk[cache.buftag + 4 : cache.buftag + 8], order)
    past = f"libumem: written past the end of buffer {buffer:#x} of {cache.name}"
    if not cache.name.startswith("umem_alloc_"):
        if (low, encoded) != (REDZONE_HALF, REDZONE_HALF):
            yield Problem(buffer + cache.buftag, f"{past}: its redzone is {encoded:08x}{low:08x}")
        return
    size, expected_half = encoded // 251, REDZONE_HALF
    if encoded % 251 != 1 or not 0 < size <= cache.bufsize:
        yield Problem(buffer + cache.buftag + 4, f"{past}: the size in its redzone is {encoded:#x}, which encodes none")
        return
    if size == cache.buftag:
        expected_half = int.from_bytes(bytes((constants.REDZONE_BYTE,)) + REDZONE_HALF.to_bytes(4, order)[1:], order)
    if low != expected_half:
        yield Problem(buffer + cache.buftag, f"{past}: its redzone is {low:#010x}, not {expected_half:#010x}")
    elif chunk[size] != constants.REDZONE_BYTE:
        yield Problem(
            buffer + size, f"{past}, which has {size} bytes: the byte behind it is {chunk[size]:#x}, not {constants.REDZONE_BYTE:#x}"
        )


def _bufctls(umem: UmemView, slab: Slab, bufctls: Sequence[int]) -> Iterator[Problem]:
    """Each buffer's bufctl names it and its slab."""
    word, cache = umem.memory.size, slab.cache
    mask = umem.memory.arch.mask
    records, missing = umem.engine.gather(umem.pieces, [bufctl + word & mask for bufctl in bufctls], 2 * word)
    values = umem.memory.arch.words(records)
    absent = set(missing)
    for index, bufctl in enumerate(bufctls):
        buffer = slab.base + index * cache.chunksize
        if index in absent or (values[2 * index], values[2 * index + 1]) != (buffer, slab.address):
            yield _names(cache, buffer, bufctl)


def _names(cache: UmemCache, buffer: int, bufctl: int) -> Problem:
    what = f"libumem: the tag of buffer {buffer:#x} of {cache.name} names {bufctl:#x}, which is not its bufctl"
    return Problem(buffer + cache.buftag + 8, f"{what}: one of them is damaged")
