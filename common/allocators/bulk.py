"""Reads of many records at once. One call of the engine takes microseconds for any amount of
data."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain, compress

from findleaks.engine.contract import Engine
from findleaks.engine.terms import Lists
from findleaks.errors import UnreadableMemory
from findleaks.target.arch import Words
from findleaks.target.base import Piece, Range, Target
from findleaks.target.ranges import range_at

NEAR = 1 << 20  # bytes; records at most this far apart are read together
MOST_RANGES = 4  # ranges that are searched for separately
# Bytes for each word that is looked up in the ranges. More words are searched for again.
_SPARSE = 4096
FEW = 50_000  # up to this many blocks of a live process are read one by one


def find_pointers(engine: Engine, piece: Piece, low: int, high: int) -> tuple[array[int], Words]:
    """Return the addresses ("Q", ascending) and the values of the aligned words in the piece whose
    value is in [low, high)."""
    return find_pointers_into(engine, piece, [Range(low, high)])


def find_pointers_into(engine: Engine, piece: Piece, ranges: Sequence[Range]) -> tuple[array[int], Words]:
    """Return the addresses ("Q", ascending) and the values of the aligned words in the piece whose
    value is in one of a few ranges."""
    addresses = search_ranges(engine, piece, ranges)
    values, _ = engine.gather((piece,), addresses, engine.arch.word)
    return addresses, engine.arch.words(values)


def search_ranges(engine: Engine, piece: Piece, ranges: Sequence[Range]) -> array[int]:
    """Return the addresses ("Q", ascending) of the aligned words in the piece whose value is in one
    of a few ranges. If there are many ranges, join them with `merge_to_most` first, because each
    range may need a separate search. If all ranges are on one side of the piece, there is only one
    search, from the lowest to the highest address. It also finds words between the ranges. These
    words are few in most managed heaps, where nearly all words that look like addresses refer to
    the heap."""
    if len(ranges) > 1 and _are_beside(ranges, piece):
        addresses = engine.search(piece, ranges[0].start, ranges[-1].end)
        if len(addresses) <= len(piece.data) // _SPARSE:
            values = engine.arch.words(engine.gather((piece,), addresses, engine.arch.word)[0])
            return array("Q", compress(addresses, (range_at(ranges, value) is not None for value in values)))
    found = [engine.search(piece, *one) for one in ranges]
    return found[0] if len(found) == 1 else array("Q", sorted(chain.from_iterable(found)))


def _are_beside(ranges: Sequence[Range], piece: Piece) -> bool:
    """Return whether these ranges are sorted and disjoint, and the piece is not between them."""
    bounds = list(chain.from_iterable(ranges))
    return bounds == sorted(bounds) and not (bounds[0] < piece.address + len(piece.data) and piece.address < bounds[-1])


def join_records(addresses: Sequence[int], size: int) -> list[Range]:
    """Return the ranges of memory that cover records of `size` bytes at ascending addresses.
    Records less than NEAR bytes apart share a range."""
    if not addresses:
        return []
    starts = [0, *(number for number, (a, b) in enumerate(zip(addresses, addresses[1:]), 1) if b - a > NEAR)]
    return [Range(addresses[first], addresses[last - 1] + size) for first, last in zip(starts, [*starts[1:], len(addresses)])]


def read_records(target: Target, engine: Engine, addresses: Sequence[int], size: int) -> tuple[bytearray, set[int]]:
    """Read the records of `size` bytes at ascending addresses. Returns their bytes in one buffer,
    and the indices of unreadable records, whose bytes are zero."""
    return _read_records(target, engine, addresses, addresses, size)


def read_scattered(target: Target, engine: Engine, addresses: Sequence[int], size: int) -> tuple[bytearray, set[int]]:
    """Read records as `read_records` does. The addresses may be in any order, and may repeat."""
    return _read_records(target, engine, addresses, sorted(set(addresses)), size)


def read_words(target: Target, engine: Engine, addresses: Sequence[int], count: int = 1) -> Words:
    """Return `count` words at each of these addresses; zeros if one of them is unreadable. The
    addresses may be in any order, and may repeat."""
    return target.arch.words(read_scattered(target, engine, addresses, count * target.arch.word)[0])


def _read_records(
    target: Target, engine: Engine, addresses: Sequence[int], ascending: Sequence[int], size: int
) -> tuple[bytearray, set[int]]:
    pieces: list[Piece] = []
    top = target.arch.top
    if ascending and ascending[-1] > top:
        ascending, addresses = ([min(address, top) for address in part] for part in (ascending, addresses))
    for start, end in join_records(ascending, size):
        pieces += target.pieces(start, end)
    data, missing = engine.gather(pieces, addresses, size)
    return data, set(missing)


def follow_lists(target: Target, engine: Engine, heaps: Sequence[Range], heads: Sequence[int], longest: int, expected: int) -> Lists:
    """Follow lists of blocks in `heaps`, each block linked by its first word.

    `longest` is the largest length of one list, `expected` the number of blocks in all lists. If a
    live process has few listed blocks, they are read one by one, which is faster than a copy of all
    heaps."""
    if target.live and expected <= FEW:
        return _follow_one_by_one(target, heads, longest)
    pieces = [piece for start, end in heaps for piece in target.pieces(start, end)] if heads else []
    return engine.follow_all(pieces, heads, 0, longest)


def _follow_one_by_one(target: Target, heads: Sequence[int], longest: int) -> Lists:
    nodes, ends, problems = array("Q"), array("Q"), []
    for number, node in enumerate(heads):
        seen: dict[int, None] = {}
        while node:
            if node in seen or len(seen) >= longest:
                why = f"it has a cycle at {node:#x}" if node in seen else f"it has more than {longest} entries"
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
