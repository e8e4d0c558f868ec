"""Bulk reads of allocators' structures: an engine call takes microseconds, whatever its size."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from findleaks.engine.contract import Engine
from findleaks.engine.terms import Lists
from findleaks.errors import UnreadableMemory
from findleaks.target.arch import Words
from findleaks.target.base import Piece, Range, Target

NEAR = 1 << 20  # bytes; records no farther apart are read together
FEW = 50_000  # listed blocks of a live process that are read singly; for more, all heaps are read


def pointing(engine: Engine, piece: Piece, low: int, high: int) -> tuple[array[int], Words]:
    """Addresses, ascending, and values of the piece's aligned words with a value in [low, high)."""
    addresses = engine.search(piece, low, high)
    values, _ = engine.gather((piece,), addresses, engine.arch.word)
    return addresses, engine.arch.words(values)


def clusters(addresses: Sequence[int], size: int) -> list[Range]:
    """The ranges that records of `size` bytes at ascending addresses take, near ones joined."""
    if not addresses:
        return []
    starts = [0, *(number for number, (a, b) in enumerate(zip(addresses, addresses[1:]), 1) if b - a > NEAR)]
    return [Range(addresses[first], addresses[last - 1] + size) for first, last in zip(starts, [*starts[1:], len(addresses)])]


def records(target: Target, engine: Engine, addresses: Sequence[int], size: int) -> tuple[bytearray, set[int]]:
    """The records at ascending addresses; and the indices of unreadable ones, which are zeros."""
    pieces: list[Piece] = []
    top = target.arch.top
    known = addresses if not addresses or addresses[-1] <= top else [min(address, top) for address in addresses]
    for start, end in clusters(known, size):
        pieces += target.pieces(start, end)
    data, missing = engine.gather(pieces, known, size)
    return data, set(missing)


def follow(target: Target, engine: Engine, heaps: Sequence[Range], heads: Sequence[int], longest: int, expected: int) -> Lists:
    """Follow lists of blocks in `heaps` that their first words link: `longest` blocks of a list at
    most, `expected` in all. Few blocks of a live process are read singly instead of its heaps."""
    if target.live and expected <= FEW:
        return _one_by_one(target, heads, longest)
    pieces = [piece for start, end in heaps for piece in target.pieces(start, end)] if heads else []
    return engine.follow_all(pieces, heads, 0, longest)


def _one_by_one(target: Target, heads: Sequence[int], longest: int) -> Lists:
    nodes, ends, problems = array("Q"), array("Q"), []
    for number, node in enumerate(heads):
        seen: dict[int, None] = {}
        while node:
            if node in seen or len(seen) >= longest:
                why = f"it runs into itself at {node:#x}" if node in seen else f"it has more than {longest} entries"
                problems.append((number, why))
                break
            try:
                following = target.word(node)
            except UnreadableMemory:
                problems.append((number, f"{node:#x} cannot be read"))
                break
            seen[node] = None
            node = following
        nodes.extend(seen)
        ends.append(len(nodes))
    return Lists(nodes, ends, problems)
