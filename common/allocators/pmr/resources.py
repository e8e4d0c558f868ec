"""Structures of libstdc++'s pool resources, found by the addresses of their virtual tables. A
virtual table begins with 0, the address of the exported type information, and that of the exported
destructor.

Source: libstdc++-v3/include/std/memory_resource and src/c++17/memory_resource.cc of GCC 12 to 15,
64-bit (__pool_resource, _Pool, chunk, bitset, _BigBlock, _TPools).

A resource has an array of pools, one for each block size. An unsynchronized resource has one array,
a synchronized one has an array for each thread, in a list. A pool has an array of chunks. A chunk
is the blocks, then a bitmap of the blocks in use. Larger blocks come from the upstream resource one
by one; an array has their addresses.

The upstream resource may be a monotonic_buffer_resource, or another pool resource: see
nested.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.base import size_at
from findleaks.allocators.memory import Memory
from findleaks.allocators.pmr.derived import find_derived_tables
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Module, Range, Target
from findleaks.target.ranges import nonzero_pieces
from findleaks.value_classes import NamedTuple

UNSYNCHRONIZED, SYNCHRONIZED = "unsynchronized_pool_resource", "synchronized_pool_resource"
_MANGLED = {UNSYNCHRONIZED: "NSt3pmr28unsynchronized_pool_resource", SYNCHRONIZED: "NSt3pmr26synchronized_pool_resource"}
_SIZES = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 192, 256, 320, 384, 448, 512, 768, 1024, 1536, 2048, 3072)
SIZES = (*_SIZES, *(1 << shift for shift in (12, 13, 14, 15, 16, 17, 20, 21, 22)))
"""Block sizes of the pools. The last pool of a resource has the largest block size of its
options."""
_LARGEST, _UPSTREAM, _UNPOOLED, _UNPOOLED_END, _COUNT, _POOLS, _THREADS = 2, 3, 4, 5, 7, 8, 9
"""Words of a resource. _POOLS in an unsynchronized one, _THREADS in a synchronized one."""
_POOL, RECORD, LARGER = 24, 24, 16
"""Bytes of a pool, of the record of a chunk, and of the record of a larger block."""
_BITS = 19  # of the number of blocks in a chunk
UNIT = 64  # bytes; of the size of a larger block
MOST_THREADS, MOST_CHUNKS = 1 << 16, 1 << 24


class Chunk(NamedTuple):
    """A chunk [start, end): `blocks` blocks of `size` bytes, and the bitmap at `bits`.

    A larger block is a chunk of one block without a bitmap. `length` is the second word of its
    record."""

    start: int
    end: int
    size: int
    blocks: int
    bits: int
    length: int = 0


class Resource(NamedTuple):
    """A pool resource. `arrays` are the blocks with its arrays of chunks, and of unpooled blocks.
    `damaged` are the addresses of impossible records of chunks.

    If the upstream resource is another one, `inner` are the chunks that are only a part of a block
    or of other memory, `tables` is the memory of the arrays, and `upstream` is the address of the
    upstream resource. `depth` is the number of pool resources around this one. `unused` is the
    unused memory of the upstream resource, `buffer` the buffer that the program has given to it,
    and `undivided` the bytes of chunks that are not divided."""

    kind: str
    address: int
    chunks: Sequence[Chunk]
    arrays: Sequence[int]
    damaged: Sequence[int]
    inner: Sequence[Chunk] = ()
    tables: Sequence[Range] = ()
    upstream: int = 0
    depth: int = 0
    unused: Sequence[Range] = ()
    buffer: Optional[Range] = None
    undivided: int = 0

    @property
    def members(self) -> Range:
        """The members that refer to the array of larger blocks."""
        return Range(self.address + 8 * _UNPOOLED, self.address + 8 * _COUNT)


def find_resources(target: Target, engine: Engine, module: Module, blocks: Blocks) -> list[Resource]:
    """Return the pool resources in writable memory, ascending. `module`: libstdc++. Chunks in other
    resources are not checked; see nested.py."""
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
    """Yield the addresses in virtual tables that objects of a kind, or of a class derived from it,
    begin with."""
    name = module.path.rsplit("/", 1)[-1]
    mangled = _MANGLED[kind]
    info, destructor = target.symbol(f"_ZTI{mangled}E", name), target.symbol(f"_Z{mangled}D1Ev", name)
    memory = Memory(target)
    if info is None or destructor is None:
        return
    for region in target.regions():
        if module.start <= region.start < module.end and region.readable and not region.executable:
            for piece in nonzero_pieces(target, region.start, region.end):
                for place in engine.search(piece, info.address, info.address + 1):
                    if memory.word(place + 8) == destructor.address:
                        yield place + 8
    yield from find_derived_tables(target, engine, info.address)


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
    tables_of_chunks: list[Range] = []
    found = _Chunks(memory, blocks)
    for table in tables:
        is_own = _is_own(blocks, table, _POOL * count)
        for number, size in enumerate(sizes):
            pool = memory.members(table + _POOL * number, "PIIII")
            if pool is None or pool[3] != size or pool[1] > pool[2]:
                return None
            if pool[0]:
                is_own = is_own and _is_own(blocks, pool[0], RECORD * pool[2])
                is_sound = found.read(range(pool[0], pool[0] + RECORD * pool[1], RECORD), size, is_own)
                if not is_own and not is_sound:  # the address may be that of a former resource
                    return None
                arrays.append(pool[0])
                tables_of_chunks.append(Range(pool[0], pool[0] + RECORD * pool[2]))
    if size_at(blocks, words[_UNPOOLED]) >= words[_UNPOOLED_END] - words[_UNPOOLED] > 0:
        arrays.append(words[_UNPOOLED])
    if found.inner:
        used = Range(words[_UNPOOLED], words[_UNPOOLED_END])
        larger = list(_list_larger(memory, used))
        arrays += {used.start} - {0, *arrays}
        return Resource(
            kind, address, [], arrays, found.damaged, [*found.inner, *found.chunks, *larger], [*tables_of_chunks, used], words[_UPSTREAM]
        )
    is_empty = not (arrays or found.chunks or found.damaged)
    return None if is_empty else Resource(kind, address, sorted(found.chunks), arrays, found.damaged)


def _list_larger(memory: Memory, array: Range) -> Iterator[Chunk]:
    """Yield the larger blocks in an array of records: an address, and a size in units of 64 bytes.
    The lowest bits of the size are the alignment."""
    words = memory.words(array.start, (array.end - array.start) // 8) if 0 < array.end - array.start <= 16 * MOST_CHUNKS else None
    for start, length in zip((words or ())[::2], (words or ())[1::2]):
        size = length & -UNIT
        if start and 0 < size < 1 << 40:
            yield Chunk(start, start + size, size, 1, start + size, length)


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


def _is_own(blocks: Blocks, start: int, length: int) -> bool:
    """Whether a part of a resource is a block of its own. If not, the upstream resource divides
    blocks itself, or has none. Allocators round sizes up: jemalloc by up to 25 %."""
    found = blocks.lookup(start)
    return found is not None and found[1] == start and found[3] == State.IN_USE and length <= found[2] <= length + max(64, length // 4)


class _Chunks:
    """The chunks of a resource. See Resource."""

    def __init__(self, memory: Memory, blocks: Blocks) -> None:
        self._memory, self._blocks = memory, blocks
        self.chunks: list[Chunk] = []
        self.damaged: list[int] = []
        self.inner: list[Chunk] = []

    def read(self, places: range, size: int, is_own: bool) -> bool:
        """Add the chunks of a pool, whose records are at `places`. Return whether all are possible.

        The bitmap of a chunk directly follows the chunk's blocks. Both are in one block of the
        upstream resource.
        `is_own`: whether the resource's arrays are such blocks, too; see _is_own."""
        damaged = len(self.damaged)
        for place in places:
            record = self._memory.members(place, "PIIP") if len(self.chunks) + len(self.inner) < MOST_CHUNKS else None
            if record is None:
                self.damaged.append(place)
                break
            bits, count, length, start = record[0], record[1] & (1 << _BITS) - 1, record[2], record[3]
            if not start:  # its blocks were moved to another thread's pool
                continue
            found = self._blocks.lookup(start)
            sound = count and bits == start + count * size and start + length == bits + 8 * (-(-count // 64))
            is_inside = found is not None and found[3] == State.IN_USE and start + length <= found[1] + found[2]
            if sound and is_own and _is_own(self._blocks, start, length):
                self.chunks.append(Chunk(start, start + length, size, count, bits))
            elif sound and (is_inside or (found is None and self._memory.word(start + length - 8) is not None)):
                self.inner.append(Chunk(start, start + length, size, count, bits))
            else:
                self.damaged.append(place)
        return len(self.damaged) == damaged
