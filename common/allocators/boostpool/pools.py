"""Find the pools of Boost.Pool, and their blocks.

Source: boost/pool/pool.hpp and simple_segregated_storage.hpp of Boost 1.74 to 1.83, 64-bit.

- A pool is {first, list.ptr, list.sz, requested_size, next_size, start_size, max_size}. `first` is
  the first free chunk. A free chunk begins with the address of the next one.
- The block at list.ptr has list.sz bytes: chunks, and at its end the address and the size of the
  next block in the list.

A pool with one block cannot be told from other data, so only pools with several blocks are found.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from findleaks.allocators.boostpool import LEAST_TRAILER, is_link
from findleaks.allocators.bulk import read_scattered
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Target
from findleaks.target.ranges import nonzero_pieces
from findleaks.value_classes import NamedTuple

_LEAST, _GREATEST, _MOST = 32, 1 << 40, 1 << 30
_WORDS, _LARGEST_CHUNK, _MOST_BLOCKS = 7, 1 << 24, 1 << 20


class PoolBlock(NamedTuple):
    """A block of a pool: [start, end) is divided into chunks."""

    start: int
    end: int


class Pool(NamedTuple):
    """A pool at `address` with chunks of `chunk` bytes. `first`: the first free chunk, or 0."""

    address: int
    chunk: int
    first: int
    blocks: Sequence[PoolBlock]


def find_pools(target: Target, engine: Engine, blocks: Blocks) -> list[Pool]:
    """Return the pools with several blocks, by address."""
    links = _read_links(target, engine, blocks)
    newest = sorted(set(links) - {to for to, _ in links.values()})
    memory, found = Memory(target), dict[int, Pool]()
    for place in _list_references(target, engine, newest):
        owner = blocks.find(place)
        words = memory.words(place - 8, _WORDS) if owner < 0 or blocks.state(owner) == State.IN_USE else None
        one = _read_pool(memory, blocks, place - 8, words) if words is not None else None
        # Another struct that refers to the same blocks is a stale copy. It has another list of free
        # chunks, so neither can be trusted.
        if one is not None:
            start = one.blocks[0].start
            found[start] = one if start not in found else one._replace(chunk=0)
    return sorted(one for one in found.values() if one.chunk)


def _read_links(target: Target, engine: Engine, blocks: Blocks) -> Mapping[int, tuple[int, int]]:
    """Return the blocks that may be in a pool and are not the last in its list, by address, each
    with the address and size of the next one."""
    indices = blocks.of_sizes(_LEAST, _GREATEST, _MOST)
    columns = blocks.columns_of(array("I", indices))
    ends = array("Q", (start + size - 24 for start, size in zip(columns.address, columns.size)))
    words = target.arch.words(read_scattered(target, engine, ends, 24)[0])
    found = dict[int, tuple[int, int]]()
    for start, first, second, third in zip(columns.address, words[::3], words[1::3], words[2::3]):
        if is_link(blocks, second, third):
            found[start] = second, third
        elif is_link(blocks, first, second):
            found[start] = first, second
    return found


def _list_references(target: Target, engine: Engine, values: Sequence[int]) -> Iterator[int]:
    """Yield the addresses of words with one of these values, in all memory that the process can
    write to."""
    for region in target.regions() if values else ():
        if region.readable and region.writable:
            for piece in nonzero_pieces(target, region.start, region.end):
                yield from engine.search_any(piece, values)


def _read_pool(memory: Memory, blocks: Blocks, address: int, words: Sequence[int]) -> Optional[Pool]:
    """Return the pool with these words, or None if they are not a pool."""
    first, start, size, requested, following, initial, most = words
    chunk = max(-(-requested // 8) * 8, 8)
    if not 0 < requested <= _LARGEST_CHUNK or not (initial and following) or (most and following > max(most, initial)):
        return None
    found, seen = list[PoolBlock](), set[int]()
    while start and len(found) < _MOST_BLOCKS:
        if start in seen or not is_link(blocks, start, size) or (size - LEAST_TRAILER) % chunk:
            return None
        seen.add(start)
        found.append(PoolBlock(start, start + size - LEAST_TRAILER))
        start, size = memory.words(start + size - LEAST_TRAILER, 2) or (0, 0)
    is_free = not first or any(one.start <= first < one.end and (first - one.start) % chunk == 0 for one in found)
    return Pool(address, chunk, first, found) if len(found) > 1 and is_free else None
