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
from collections.abc import Mapping, Sequence
from itertools import repeat
from math import gcd
from operator import add
from typing import Optional

from findleaks.allocators.boostpool.links import END, LARGE, PAGE, TRAILER, is_link, is_request, read_link
from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.allocators.search import find_records
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Range, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import range_at
from findleaks.value_classes import NamedTuple

_LEAST, _GREATEST, _MOST = 256, 1 << 40, 1 << 30
"""Blocks of these sizes are examined, and at most so many. The smallest block of a pool with the
default `start_size`, 32, has 272 bytes."""
_WORDS, _LARGEST_CHUNK = 7, 1 << 24
_MOST_LISTS = 1 << 12
"""Most lists of blocks that are followed. If there are more, lists of at least three blocks are
preferred, and then those with the largest first block. More lists would make the search slow."""
_TAIL = 24  # bytes at the end of a block that are read
_CHECKED = 1 << 16  # blocks between two checks for Ctrl-C


class Pool(NamedTuple):
    """A pool at `address` with chunks of `chunk` bytes. `first`: the first free chunk, or 0.
    `newest`: the address of the first block in its list. `blocks`: the part of each block that is
    divided into chunks, ascending."""

    address: int
    chunk: int
    first: int
    newest: int
    blocks: Sequence[Range]


class BlockList(NamedTuple):
    """The list of the blocks of a pool. `newest`: the address of the first one in the list; it has
    `size` bytes. `blocks`: the part of each block that is divided into chunks, ascending.
    `divisor`: the greatest common divisor of the bytes of these parts."""

    newest: int
    size: int
    blocks: Sequence[Range]
    divisor: int

    def is_chunk(self, address: int, chunk: int) -> bool:
        """Whether a chunk begins at an address, if chunks have `chunk` bytes."""
        part = range_at(self.blocks, address)
        return part is not None and (address - part.start) % chunk == 0


def find_pools(target: Target, engine: Engine, blocks: Blocks) -> list[Pool]:
    """Return the pools with several blocks, by address. Raises Interrupted."""
    found = dict[int, Pool]()
    lists = {one.newest: one for one in _find_lists(target, engine, blocks)}
    for address, words in find_records(target, engine, list(lists), 1, _WORDS):
        one = _read_pool(lists[words[1]], address, words)
        owner = blocks.find(address) if one is not None else -1
        # Another struct that refers to the same blocks is a stale copy. It has another list of free
        # chunks, so neither can be trusted.
        if one is not None and (owner < 0 or blocks.state(owner) == State.IN_USE):
            found[words[1]] = one if words[1] not in found else one._replace(chunk=0)
    return sorted(one for one in found.values() if one.chunk)


def _find_lists(target: Target, engine: Engine, blocks: Blocks) -> list[BlockList]:
    """Return the lists of several blocks that may belong to pools."""
    links = _read_links(target, engine, blocks)
    following = {address for _, address in links.values()}
    newest = links.keys() - following
    long = [start for start in newest if links[start][1] in links]
    heads = sorted(long, key=links.__getitem__, reverse=True)[:_MOST_LISTS]
    left = _MOST_LISTS - len(heads)
    heads += sorted(newest.difference(long), key=links.__getitem__, reverse=True)[:left] if left else ()
    memory, seen = Memory(target), set[int]()
    found = [_follow(memory, blocks, start, links[start][0], seen) for start in interruptible(target, heads)]
    return [one for one in found if one is not None and len(one.blocks) > 1]


def _read_links(target: Target, engine: Engine, blocks: Blocks) -> Mapping[int, tuple[int, int]]:
    """Return the blocks that may be in a pool and are not the last in its list, by address, each
    with its requested size and the address of the next one."""
    columns = blocks.columns_of(array("I", blocks.of_sizes(_LEAST, _GREATEST, _MOST)))
    starts, sizes, found = columns.address, columns.size, dict[int, tuple[int, int]]()
    records = read_records(target, engine, array("Q", map(add, map(add, starts, sizes), repeat(-_TAIL))), _TAIL)[0]
    words = target.arch.words(records)
    for first in interruptible(target, range(0, len(starts), _CHECKED), 1):
        part = words[3 * first : 3 * (first + _CHECKED)]
        for unused, addresses, requested in ((8, part[::3], part[1::3]), (0, part[1::3], part[2::3])):
            linked = blocks.columns_of(blocks.find_all(array("Q", addresses))[0])
            rows = zip(range(first, len(starts)), addresses, linked.address, linked.size, linked.state, requested)
            for number, address, start, size, state, least in rows:
                if address == start != 0 and TRAILER < least <= size and state == State.IN_USE and is_request(start, size, least):
                    found[starts[number]] = sizes[number] - unused, address
    memory = Memory(target)
    for index in interruptible(target, blocks.of_sizes(LARGE, _GREATEST, _MOST), _CHECKED):
        start = blocks.address(index)
        link = _read_large(memory, blocks, start, blocks.size(index)) if start not in found else None
        if link is not None:
            found[start] = link
    return found


def _read_large(memory: Memory, blocks: Blocks, start: int, size: int) -> Optional[tuple[int, int]]:
    """Return the requested size of a block that malloc has mapped, and the address of the next
    block in its list; None if it has no such address. Zeros follow the requested bytes."""
    data = memory.read(start + size - PAGE, PAGE).rstrip(b"\0")
    data += bytes(-len(data) % 8)
    words = memory.arch.unpack(data[-16:])
    return (size - PAGE + len(data), words[0]) if len(words) == 2 and is_link(blocks, *words) else None


def _follow(memory: Memory, blocks: Blocks, start: int, size: int, seen: set[int]) -> Optional[BlockList]:
    """Return the list of blocks that begins with the one at `start`. Return None if it does not end
    with a last block, or contains one of `seen`: a block is in one list, so that the time is
    limited."""
    found, newest, divisor = list[Range](), start, 0
    while start:
        if start in seen or not is_link(blocks, start, size):
            return None
        seen.add(start)
        end = start + size - TRAILER
        found.append(Range(start, end))
        divisor = gcd(divisor, end - start)
        link = read_link(memory, start, size)
        if link is None or (not link[0] and link != END):
            return None
        start, size = link
    return BlockList(newest, found[0].end + TRAILER - newest, sorted(found), divisor)


def _read_pool(its: BlockList, address: int, words: Sequence[int]) -> Optional[Pool]:
    """Return the pool with these words, or None if they are not a pool."""
    first, _, size, requested, following, initial, most = words
    chunk = max(-(-requested // 8) * 8, 8)
    if not 0 < requested <= _LARGEST_CHUNK or not (initial and following) or (most and following > max(most, initial)):
        return None
    is_pool = size == its.size and its.divisor % chunk == 0 and (not first or its.is_chunk(first, chunk))
    return Pool(address, chunk, first, its.newest, its.blocks) if is_pool else None
