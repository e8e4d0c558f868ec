"""The pools of Boost.Pool: boost::pool, object_pool, singleton_pool, and the pools of
pool_allocator and fast_pool_allocator.

A pool takes blocks from malloc or operator new, each about twice as large as the one before, and
divides them into chunks of equal size. pools.py describes the structures.

The pools are templates, so no library or symbol shows that a process has them. Therefore samples
of blocks of several sizes are examined: in a pool with several blocks, the last words of a block
are the address and the size of another block, which also ends with such words, or with zeros."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from findleaks.allocators.boostpool.links import END, TRAILER, is_link, read_link
from findleaks.allocators.memory import Memory

if TYPE_CHECKING:
    from findleaks.allocators.base import Allocator
    from findleaks.engine.contract import Blocks, Engine
    from findleaks.target.base import Target

NAME = "boost::pool"
_SIZES = 1 << 9, 1 << 12, 1 << 15, 1 << 18, 1 << 30
"""Sizes of blocks between which a sample is taken. Each pool with many chunks has blocks of most of
these sizes."""
_SAMPLES, _FEW, _MOST = 32, 1 << 12, 1 << 16


def find_nested(target: Target, engine: Engine, blocks: Blocks, is_leaked: Callable[[int], bool]) -> Sequence[Allocator]:
    """Find the pools of a process. See directory.find_nested."""
    if target.arch.word != 8 or not any(_has_links(target, blocks, indices) for indices in _list_by_size(blocks)):
        return []
    from findleaks.allocators.boostpool.instance import BoostPools
    from findleaks.allocators.boostpool.pools import find_pools

    pools = [one for one in find_pools(target, engine, blocks) if not is_leaked(one.newest)]
    return [BoostPools(target, engine, pools)] if pools else []


def _list_by_size(blocks: Blocks) -> Iterator[Sequence[int]]:
    """Yield the indices of the blocks between each two of _SIZES. Each search visits all blocks, so
    a single search finds the large ones if they are few."""
    large = blocks.of_sizes(_SIZES[1], _SIZES[-1] - 1, _FEW)
    if len(large) == _FEW:
        yield from (blocks.of_sizes(least, greatest - 1, _MOST) for least, greatest in zip(_SIZES, _SIZES[1:]))
        return
    yield blocks.of_sizes(_SIZES[0], _SIZES[1] - 1, _MOST)
    sizes = blocks.columns_of(array("I", large)).size
    for least, greatest in zip(_SIZES[1:], _SIZES[2:]):
        yield [index for index, size in zip(large, sizes) if least <= size < greatest]


def _has_links(target: Target, blocks: Blocks, indices: Sequence[int]) -> bool:
    """Whether one of a sample of these blocks refers to another block as the blocks of a pool do.
    The second word after a struct's last address is often a size, so the chunks of both blocks are
    also compared: a pool doubles their number, up to a maximum."""
    memory = Memory(target)
    for index in indices[:: -(-len(indices) // _SAMPLES) or 1]:
        size = blocks.size(index)
        words = memory.words(blocks.address(index) + size - 24, 3) or (0, 0, 0)
        for link, used in ((words[1:], size), (words[:2], size - 8)):
            if is_link(blocks, *link) and _is_doubled(used - TRAILER, link[1] - TRAILER):
                following = read_link(memory, *link)
                if following is not None and (following == END or is_link(blocks, *following)):
                    return True
    return False


def _is_doubled(one: int, other: int) -> bool:
    """Whether one of two numbers is the other one, multiplied by a power of two."""
    times, rest = divmod(max(one, other), min(one, other))
    return not rest and not times & times - 1
