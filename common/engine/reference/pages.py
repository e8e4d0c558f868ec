"""Heaps page by page, in pure Python."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from findleaks.engine.pages import COLUMNS, FOREIGN, LARGEST, PageLists, PageRead, PageState, count_pages
from findleaks.engine.reference.words import words_of
from findleaks.engine.terms import State
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import range_at

if TYPE_CHECKING:
    from findleaks.engine.reference.blocks import PureBlocks

_RANKS = (3, 2, 1, 0)


def _overlap(words: Sequence[int], low: int, high: int) -> int:
    """Return how many bytes of [low, high) are in these ranges."""
    at = bisect_right(words, low)
    at -= at & 1
    found = 0
    while at < len(words) and words[at] < high:
        found += max(0, min(words[at + 1], high) - max(words[at], low))
        at += 2
    return found


def _blocks(blocks: PureBlocks, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (start, size, state, next start or 2^64) of all blocks that extend into [start, end),
    including empty blocks."""
    starts, sizes, states = blocks.starts, blocks.sizes, blocks.states
    at = bisect_left(starts, start)
    if at and starts[at - 1] + sizes[at - 1] > start:
        at -= 1
    while at < len(starts) and starts[at] < end:
        following = starts[at + 1] if at + 1 < len(starts) else 1 << 64
        yield starts[at], sizes[at], states[at], following
        at += 1


def by_page(blocks: PureBlocks, ranges: array[int], page: int, lists: PageLists) -> PageRead:
    """See contract.Blocks.by_page."""
    count = count_pages(ranges, page)
    read = PageRead(
        bytearray(count), bytearray(count), array("I", bytes(4 * count)), array("I", bytes(4 * count)), [0] * (len(PageState) * COLUMNS)
    )
    first = 0
    for start, end in zip(ranges[::2], ranges[1::2]):
        if start < end:
            first += _read_range(blocks, start, end, page, lists, read, first)
    return read


def _read_range(blocks: PureBlocks, start: int, end: int, page: int, lists: PageLists, read: PageRead, first: int) -> int:
    """Write the pages of [start, end) to `read`, from place `first` on. Return their number."""
    origin = start // page
    count = -(-end // page) - origin
    held = [[0, 0, 0, 0] for _ in range(count)]
    most = [[0, 0, 0] for _ in range(count)]  # size, weight, rank
    for block, size, state, following in _blocks(blocks, start, end):
        stop = block + size
        if following - stop <= blocks.granule:
            stop = following
        low, stop = max(block, start), min(stop, end)
        while low < stop:
            place = low // page - origin
            high = min((low // page + 1) * page, stop)
            held[place][state] += high - low
            _vote(most[place], high - low, _RANKS[state], size)
            low = high
    for place in range(count):
        low, high = max(start, (origin + place) * page), min(end, (origin + place + 1) * page)
        _finish(read, first + place, low, high, held[place], lists)
        read.sizes[first + place] = min(most[place][0], LARGEST)
    return count


def _vote(most: list[int], amount: int, rank: int, size: int) -> None:
    if rank > most[2]:
        most[:] = [size, amount, rank]
    elif rank == most[2] and rank:
        if size == most[0]:
            most[1] += amount
        elif most[1] >= amount:
            most[1] -= amount
        else:
            most[:2] = [size, amount - most[1]]


def _finish(read: PageRead, place: int, low: int, high: int, held: Sequence[int], lists: PageLists) -> None:
    size = high - low
    used, cached, _, own = held
    rest = size - used - cached
    own = min(own + _overlap(lists.metadata, low, high), rest)
    foreign = min(_overlap(lists.foreign, low, high), rest - own)
    known, there = bisect_right(lists.known, low) & 1, bisect_right(lists.held, low) & 1
    if used:
        state = PageState.UNTOUCHED if known and not there else PageState.IN_USE
    elif foreign:
        state = PageState.UNKNOWN
    elif known and not there:
        state = PageState.RETURNED
    elif cached:
        state = PageState.CACHED
    elif own:
        state = PageState.METADATA
    else:
        state = PageState.KEPT if known else PageState.FREE
    read.states[place] = state
    read.used[place] = used
    read.shares[place] = 1 + used * 254 // size if used else 0
    for column, amount in zip((State.IN_USE, State.CACHED, State.METADATA, FOREIGN), (used, cached, own, foreign)):
        read.sums[state * COLUMNS + column] += amount
    read.sums[state * COLUMNS + State.FREE] += rest - own - foreign


def free_runs(blocks: PureBlocks, where: Range, least: int) -> array[int]:
    """See contract.Blocks.free_runs."""
    found: array[int] = array("Q")
    low = where.start

    def add(high: int) -> None:
        if low < high and (high - low >= least or low == where.start or high == where.end):
            found.extend((low, high))

    for block, size, state, _ in _blocks(blocks, where.start, where.end) if where.start < where.end else ():
        if state != State.FREE:
            add(block)
            low = max(low, block + size)
    add(where.end)
    return found


def common_bytes(left: array[int], right: array[int]) -> int:
    """See contract.Engine.common_bytes."""
    found = 0
    a = c = 0
    while a < len(left) and c < len(right):
        found += max(0, min(left[a + 1], right[c + 1]) - max(left[a], right[c]))
        if left[a + 1] < right[c + 1]:
            a += 2
        else:
            c += 2
    return found


def page_words(
    blocks: PureBlocks, piece: Piece, types: Sequence[Range], where: Range, page: int, found: array[int], weights: array[int]
) -> None:
    """See contract.Blocks.page_words."""
    first, words = words_of(piece, blocks.arch)
    word = blocks.arch.word
    low, high = max(first, where.start), min(first + len(words) * word, where.end)
    for at in range(bisect_left(blocks.starts, low), bisect_left(blocks.starts, high)) if low < high else ():
        block, size = blocks.starts[at], blocks.sizes[at]
        if blocks.states[at] != State.IN_USE or size < word or block % word:
            continue
        value = words[(block - first) // word]
        value = value if range_at(types, value) is not None else 0
        stop = min(block + size, where.end)
        while block < stop:
            upto = min((block // page + 1) * page, stop)
            place, amount = block // page - where.start // page, upto - block
            if found[place] == value:
                weights[place] += amount
            elif weights[place] >= amount:
                weights[place] -= amount
            else:
                weights[place] = amount - weights[place]
                found[place] = value
            block = upto
