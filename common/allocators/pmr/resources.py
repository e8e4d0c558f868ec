"""Structures of libstdc++'s pool resources, found by the addresses of their virtual tables. A
virtual table begins with 0, the address of the exported type information, and that of the exported
destructor.

Source: libstdc++-v3/include/std/memory_resource and src/c++17/memory_resource.cc of GCC 12 to 15,
64-bit (__pool_resource, _Pool, chunk, bitset, _BigBlock, _TPools).

A resource has an array of pools, one for each block size. An unsynchronized resource has one array,
a synchronized one has an array for each thread, in a list. A pool has an array of chunks. A chunk
is the blocks, then a bitmap of the blocks in use. Larger blocks come from the upstream resource one
by one; an array has their addresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.base import size_at
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Module, Target
from findleaks.target.ranges import nonzero_pieces
from findleaks.value_classes import NamedTuple

UNSYNCHRONIZED, SYNCHRONIZED = "unsynchronized_pool_resource", "synchronized_pool_resource"
_MANGLED = {UNSYNCHRONIZED: "NSt3pmr28unsynchronized_pool_resource", SYNCHRONIZED: "NSt3pmr26synchronized_pool_resource"}
_SIZES = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 192, 256, 320, 384, 448, 512, 768, 1024, 1536, 2048, 3072)
SIZES = (*_SIZES, *(1 << shift for shift in (12, 13, 14, 15, 16, 17, 20, 21, 22)))
"""Block sizes of the pools. The last pool of a resource has the largest block size of its
options."""
_LARGEST, _UNPOOLED, _UNPOOLED_END, _COUNT, _POOLS, _THREADS = 2, 4, 5, 7, 8, 9
"""Words of a resource. _POOLS in an unsynchronized one, _THREADS in a synchronized one."""
_POOL, _CHUNK = 24, 24  # bytes
_BITS = 19  # of the number of blocks in a chunk
MOST_THREADS, MOST_CHUNKS = 1 << 16, 1 << 24


class Chunk(NamedTuple):
    """A chunk [start, end): `blocks` blocks of `size` bytes, and the bitmap at `bits`."""

    start: int
    end: int
    size: int
    blocks: int
    bits: int


class Resource(NamedTuple):
    """A pool resource. `arrays` are the blocks with its arrays of chunks, and of unpooled blocks.
    `damaged` are the addresses of impossible records of chunks."""

    kind: str
    address: int
    chunks: Sequence[Chunk]
    arrays: Sequence[int]
    damaged: Sequence[int]


def find_resources(target: Target, engine: Engine, module: Module, blocks: Blocks) -> list[Resource]:
    """Return the pool resources in writable memory, ascending. `module`: libstdc++."""
    kinds = {table: kind for kind in _MANGLED for table in _find_tables(target, engine, module, kind)}
    memory, found = Memory(target), []
    for region in target.regions():
        for piece in nonzero_pieces(target, region.start, region.end) if region.writable and region.readable else ():
            for address in engine.search_any(piece, sorted(kinds)) if kinds else ():
                block = blocks.lookup(address)
                live = block is None or block[3] == State.IN_USE
                resource = _resource_at(memory, blocks, address, kinds[memory.word(address) or 0]) if live else None
                if resource is not None:
                    found.append(resource)
    return found


def _find_tables(target: Target, engine: Engine, module: Module, kind: str) -> Iterator[int]:
    """Yield the addresses in a virtual table that objects of a kind begin with."""
    name = module.path.rsplit("/", 1)[-1]
    info, destructor = target.symbol(f"_ZTI{_MANGLED[kind]}E", name), target.symbol(f"_Z{_MANGLED[kind]}D1Ev", name)
    memory = Memory(target)
    if info is None or destructor is None:
        return
    for region in target.regions():
        if module.start <= region.start < module.end and region.readable and not region.executable:
            for piece in nonzero_pieces(target, region.start, region.end):
                for place in engine.search(piece, info.address, info.address + 1):
                    if memory.word(place + 8) == destructor.address:
                        yield place + 8


def _resource_at(memory: Memory, blocks: Blocks, address: int, kind: str) -> Optional[Resource]:
    """Return the resource at an address; None if its members are impossible, or if it has no
    chunks."""
    words = memory.words(address, 10)
    if words is None:
        return None
    largest, count = words[_LARGEST], words[_COUNT] & 0xFFFFFFFF
    if not 0 < count <= len(SIZES) or not SIZES[count - 2] * (count > 1) < largest <= SIZES[count - 1]:
        return None
    sizes = (*SIZES[: count - 1], largest)
    synchronized = kind == SYNCHRONIZED
    tables = list(_list_threads(memory, words[_THREADS], address)) if synchronized else [words[_POOLS]]
    arrays: list[int] = []
    chunks: list[Chunk] = []
    damaged: list[int] = []
    for table in tables:
        for number, size in enumerate(sizes):
            pool = memory.members(table + _POOL * number, "PIIII")
            if pool is None or pool[3] != size or pool[1] > pool[2]:
                return None
            if pool[0] and size_at(blocks, pool[0]) < _CHUNK * pool[2]:
                return None
            if pool[0]:
                arrays.append(pool[0])
                _read_chunks(memory, blocks, range(pool[0], pool[0] + _CHUNK * pool[1], _CHUNK), size, chunks, damaged)
    if size_at(blocks, words[_UNPOOLED]) >= words[_UNPOOLED_END] - words[_UNPOOLED] > 0:
        arrays.append(words[_UNPOOLED])
    return Resource(kind, address, sorted(chunks), arrays, damaged) if chunks or arrays or damaged else None


def _list_threads(memory: Memory, at: int, resource: int) -> Iterator[int]:
    """Yield the arrays of pools of the threads, which are in a list."""
    seen: set[int] = set()
    while at and at not in seen and len(seen) < MOST_THREADS:
        seen.add(at)
        words = memory.words(at, 4)
        if words is None or words[0] != resource:
            return
        yield words[1]
        at = words[3]


def _read_chunks(memory: Memory, blocks: Blocks, places: range, size: int, chunks: list[Chunk], damaged: list[int]) -> None:
    """Add the chunks of a pool. The end of the blocks is the bitmap, and both are in one block of
    the upstream resource."""
    for place in places:
        record = memory.members(place, "PIIP") if len(chunks) < MOST_CHUNKS else None
        if record is None:
            damaged.append(place)
            return
        bits, count, length, start = record[0], record[1] & (1 << _BITS) - 1, record[2], record[3]
        if not start:  # its blocks were moved to another thread's pool
            continue
        found = blocks.lookup(start)
        sound = count and bits == start + count * size and start + length == bits + 8 * (-(-count // 64))
        if sound and found is not None and found[3] == State.IN_USE and start + length <= found[1] + found[2]:
            chunks.append(Chunk(start, start + length, size, count, bits))
        else:
            damaged.append(place)
