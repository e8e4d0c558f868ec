"""Lists of blocks of Boost.Pool in synthetic memory that is damaged."""

from __future__ import annotations

import struct

import graphs
import pytest
from fake import FakeTarget

from findleaks.allocators.boostpool.pools import find_pools
from findleaks.engine.contract import Engine
from findleaks.engine.terms import State

BLOCKS, POOLS, STEP, SIZE, COUNT = 0x100000, 0x800000, 560, 544, 40
POOL = struct.Struct("<7Q")


def find(following: list[int], heads: list[int], engine: Engine) -> dict[int, list[int]]:
    """Return the numbers of the blocks of each pool that is found, by the number of the pool. `following`: the number of the block after
    each block in a list, or -1. `heads`: the first block of each pool."""
    links = [struct.pack("<2Q", BLOCKS + STEP * to, SIZE) if to >= 0 else bytes(16) for to in following]
    memory = b"".join(link.rjust(SIZE, b"\1").ljust(STEP, b"\0") for link in links)
    pools = b"".join(POOL.pack(0, BLOCKS + STEP * head, SIZE, 24, 64, 32, 0) for head in heads)
    blocks = engine.blocks(graphs.X86_64, 16)
    blocks.append(range(BLOCKS, BLOCKS + STEP * COUNT, STEP), [SIZE] * COUNT, [State.IN_USE] * COUNT)
    blocks.seal()
    found = find_pools(FakeTarget({BLOCKS: memory, POOLS: pools}), engine, blocks)
    return {(one.address - POOLS) // POOL.size: [(part.start - BLOCKS) // STEP for part in one.blocks] for one in found}


@pytest.mark.parametrize("engine", [graphs.native(), graphs.pure()], ids=["native", "pure"])
def test_lists(engine: Engine) -> None:
    """A list ends with zeros. One that leads to itself, or to another list, is not a pool's: a block is in one list."""
    following = [-1] * COUNT
    following[:3] = 1, 2, -1  # the list of pool 0
    following[10:13] = 11, 12, 11  # a cycle
    following[20:30] = [29] * 9 + [-1]  # nine lists that share a block
    found = find(following, [0, 10, *range(20, 29)], engine)
    assert found.pop(0) == [0, 1, 2] and 1 not in found
    assert len(found) == 1 and [block for blocks in found.values() for block in blocks[1:]] == [29]
    assert not find(following, [0, 0], engine), "of two pools with one list, neither can be trusted"
