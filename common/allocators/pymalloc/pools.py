"""The pools of all arenas, read in bulk: checks their headers, and follows lists of freed
blocks."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from findleaks.allocators.base import Problem
from findleaks.allocators.pymalloc.layout import POOLS, Layout
from findleaks.allocators.pymalloc.locate import ArenaObject
from findleaks.engine.contract import Engine
from findleaks.engine.terms import RUN, State, run_states
from findleaks.target.base import Piece, Range, Target

BATCH = 128  # arenas whose memory is read at a time

USED = run_states(State.IN_USE, State.IN_USE)
UNUSED = run_states(State.FREE, State.FREE)


@dataclass
class Pools:
    """The pools in use, ascending by address. `free` are the freed blocks of all pools. `bad` are
    pools with implausible headers, whose blocks are unknown."""

    address: array[int] = field(default_factory=lambda: array("Q"))
    arena: array[int] = field(default_factory=lambda: array("I"))  # the arena's number
    index: array[int] = field(default_factory=lambda: array("B"))  # size class
    count: array[int] = field(default_factory=lambda: array("I"))  # blocks in use
    # blocks that were ever handed out
    carved: array[int] = field(default_factory=lambda: array("I"))
    after: array[int] = field(default_factory=lambda: array("Q"))  # nextpool
    before: array[int] = field(default_factory=lambda: array("Q"))  # prevpool
    free: array[int] = field(default_factory=lambda: array("Q"))
    # {number of the arena: pools that are free again}
    empty: dict[int, int] = field(default_factory=dict)
    bad: list[Range] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.address)

    def runs(self, layout: Layout, size: int, first: int, last: int) -> array[int]:
        """Return runs of the blocks of pools [first, last): RUN words each ("Q"). Freed blocks are
        marked as in use here, and as free later."""
        made: array[int] = array("Q")
        sizes = [layout.size(index) for index in range(layout.classes)]
        most_blocks = [layout.block_count(size, index) for index in range(layout.classes)]
        header = layout.header
        for pool, index, carved in zip(self.address[first:last], self.index[first:last], self.carved[first:last]):
            block, total = sizes[index], most_blocks[index]
            made.extend((pool + header, block, block, carved, 0, USED))
            if carved < total:
                made.extend((pool + header + carved * block, block, block, total - carved, 0, UNUSED))
        assert len(made) % RUN == 0
        return made


def read(target: Target, engine: Engine, layout: Layout, size: int, arenas: Sequence[ArenaObject]) -> Pools:
    """Read all pools of these arenas, which ascend by address."""
    pools = Pools()
    for at in range(0, len(arenas), BATCH):
        batch = arenas[at : at + BATCH]
        pieces = tuple(piece for part in _together(batch, size) for piece in target.pieces(*part))
        heads = _headers(target, engine, layout, size, batch, pieces, pools)
        _follow(engine, layout, pieces, heads, pools)
    return pools


def carve_pools(arena: ArenaObject, size: int) -> range:
    """Return the addresses of the pools into which this arena has been divided so far. All of these
    pools end inside the arena."""
    first = arena.address + -arena.address % size
    last = arena.address + POOLS * size - size
    return range(first, min(arena.pool_address, first + arena.ntotalpools * size, last + 1), size)


def _together(arenas: Iterable[ArenaObject], size: int) -> Iterator[Range]:
    """Yield the range of each arena's pools."""
    for arena in arenas:
        pools = carve_pools(arena, size)
        if pools:
            yield Range(pools[0], pools[-1] + size)


def _headers(
    target: Target, engine: Engine, layout: Layout, size: int, arenas: Sequence[ArenaObject], pieces: tuple[Piece, ...], pools: Pools
) -> list[tuple[int, int, int]]:
    """Append the pools in use. For each pool with freed blocks, return the pool's index, the head
    of its list of freed blocks, and their number according to the header."""
    addresses: array[int] = array("Q")
    numbers: array[int] = array("I")
    for arena in arenas:
        some = carve_pools(arena, size)
        addresses.extend(some)
        numbers.extend([arena.number] * len(some))
    records, missing = engine.gather(pieces, addresses, layout.header)
    heads: list[tuple[int, int, int]] = []
    absent = set(missing)
    order, word = target.arch.word_format[0], target.arch.word_format[1]
    # The fields of Layout.header.
    headers = struct.iter_unpack(f"{order}I{layout.word - 4}x3{word}4I", records)
    sizes = [layout.size(index) for index in range(layout.classes)]
    classes, header = layout.classes, layout.header
    for place, (pool, number, values) in enumerate(zip(addresses, numbers, headers)):
        count, head, after, before, owner, index, offset, most = values
        if not count and place not in absent:
            pools.empty[number] = pools.empty.get(number, 0) + 1
            continue
        block = sizes[index] if index < classes else 0
        cut, over = divmod(offset - header, block) if block else (0, 1)
        if over or owner != number or most + block != size or not count <= cut <= (size - header) // block:
            why = "cannot be read" if place in absent else f"is invalid (arena {owner}, class {index}, {count} blocks, offset {offset})"
            pools.problems.append(Problem(pool, f"pymalloc pool {pool:#x} of arena {number}: its header {why}; its blocks are unknown"))
            pools.bad.append(Range(pool, pool + size))
            continue
        pools.address.append(pool)
        pools.arena.append(number)
        pools.index.append(index)
        pools.count.append(count)
        pools.carved.append(cut)
        pools.after.append(after)
        pools.before.append(before)
        if head or count != cut:
            heads.append((len(pools) - 1, head, cut - count))
    return heads


def _follow(engine: Engine, layout: Layout, pieces: tuple[Piece, ...], heads: Sequence[tuple[int, int, int]], pools: Pools) -> None:
    """Append the freed blocks of a batch of pools, and report problems of their lists."""
    limit = max((wanted for _, _, wanted in heads), default=0)
    header, sizes = layout.header, [layout.size(index) for index in range(layout.classes)]
    within: array[int] = array("Q")
    for at, _, _ in heads:
        first = pools.address[at] + header
        within.extend((first, first + pools.carved[at] * sizes[pools.index[at]]))
    followed = engine.follow_all(pieces, [head for _, head, _ in heads], 0, limit, within)
    wrong = dict(followed.problems)
    begin = 0
    for place, ((at, _, wanted), end) in enumerate(zip(heads, followed.ends)):
        count, begin = end - begin, end
        if count != wanted or place in wrong:
            pool, why = pools.address[at], wrong.get(place, f"it has {count} blocks")
            found = f"of its {wanted} freed blocks {count} are found, the others count as in use"
            what = f"pymalloc pool {pool:#x}: {found}: in their list {why}"
            pools.problems.append(Problem(pool, what))
    pools.free.extend(followed.nodes)
