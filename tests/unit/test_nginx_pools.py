"""Pools of nginx whose words are damaged."""

from __future__ import annotations

import struct
from array import array

import pytest
from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.engine.reference.engine import PureEngine
from findleaks.runtimes.nginx.pools import HEADER, NEXT_HEADER, Pool, PoolReader
from findleaks.target.base import Range

FIRST, SECOND, OTHER, SIZE = 0x10000, 0x10400, 0x10800, 1024
USED = 200


def read_pools(last: int, end: int) -> list[Pool]:
    """Return the pools of a heap with one pool of two blocks, and a block of another owner. `last` and `end`: those of the second block."""
    heap = bytearray(3 * 0x400)
    struct.pack_into("<8Q", heap, 0, FIRST + USED, FIRST + SIZE, SECOND, 0, SIZE - HEADER, FIRST, 0, 0)
    struct.pack_into("<4Q", heap, SECOND - FIRST, last, end, 0, 0)
    target = FakeTarget({FIRST: bytes(heap)})
    engine = PureEngine(target.arch)
    blocks = engine.blocks(target.arch, 16)
    blocks.append(array("Q", [FIRST, SECOND, OTHER]), array("Q", [SIZE, SIZE, SIZE]), bytes(3))
    blocks.seal()
    return PoolReader(Memory(target), engine, blocks, [Range(FIRST, FIRST + len(heap))], Range(0, 0)).read()


def test_a_sound_pool() -> None:
    (pool,) = read_pools(SECOND + USED, SECOND + SIZE)
    assert pool.blocks == [0, 1] and pool.used == 2 * USED
    assert pool.memory == [Range(FIRST, FIRST + USED), Range(SECOND + NEXT_HEADER, SECOND + USED)]
    assert pool.unused == [Range(FIRST + USED, FIRST + SIZE), Range(SECOND + USED, SECOND + SIZE)]


@pytest.mark.parametrize(
    ("last", "end"), [(OTHER + USED, OTHER + SIZE), (SECOND + USED, 1 << 63), (1 << 63, 1 << 63), (SECOND, SECOND + SIZE)]
)
def test_memory_outside_of_its_block_is_not_that_of_a_pool(last: int, end: int) -> None:
    (pool,) = read_pools(last, end)
    assert pool.blocks == [0] and pool.used == USED and pool.memory == [Range(FIRST, FIRST + USED)]
