"""Heaps page by page: C engine, reference engine and the plain definition."""

from __future__ import annotations

import random
from array import array

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.engine.contract import Blocks
from findleaks.engine.pages import COLUMNS, FOREIGN, LARGEST, PageLists, PageState
from findleaks.engine.terms import State
from findleaks.target.arch import X86_64
from findleaks.target.base import Piece, Range
from findleaks.target.runs import Runs

BASE = 0x7F0000000000
PAGE = 4096
Block = tuple[int, int, State]


def make_random_blocks(rng: random.Random) -> list[Block]:
    blocks, at = [], BASE + 16 * rng.randrange(600)
    for _ in range(rng.randrange(80)):
        at += 16 * rng.choice((0, 1, 1, 1, 2, 3, 300, 3000))
        size = rng.choice((0, 1, 24, 24, 24, 40, 40, 1000, 4000, 9000, 40_000))
        blocks.append((at, size, rng.choice(list(State))))
        at += max(size + 15 & -16, 16)
    return blocks


def make_random_ranges(rng: random.Random, low: int, high: int, step: int) -> array[int]:
    points = sorted({low + rng.randrange(max(high - low, 1)) // step * step for _ in range(2 * rng.randrange(6))})
    pairs = list(zip(points[::2], points[1::2]))
    return Runs.of(pairs).words


def make_blocks(engine: object, blocks: list[Block]) -> Blocks:
    index = engine.blocks(X86_64, 16)  # type: ignore[attr-defined]
    index.append([a for a, _, _ in blocks], [s for _, s, _ in blocks], [int(state) for _, _, state in blocks])
    index.seal()
    return index


def compute_plainly(blocks: list[Block], where: Range, lists: PageLists) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return states, shares, bytes in use, and sums, computed byte by byte."""
    held: dict[int, int] = {}
    for number, (start, size, state) in enumerate(blocks):
        end = start + size
        following = blocks[number + 1][0] if number + 1 < len(blocks) else 1 << 64
        end = following if following - end <= 16 else end
        held.update(dict.fromkeys(range(max(start, where.start), min(end, where.end)), int(state)))
    states, shares, in_use, sums = [], [], [], [0] * (len(PageState) * COLUMNS)
    known, there, metadata, foreign = (Runs(words) for words in lists)
    for page in range(where.start // PAGE, -(-where.end // PAGE) if where.start < where.end else 0):
        low, high = max(page * PAGE, where.start), min(page * PAGE + PAGE, where.end)
        used, cached, own = (sum(held.get(at) == s for at in range(low, high)) for s in (State.IN_USE, State.CACHED, State.METADATA))
        own = min(own + metadata.bytes(low, high), high - low - used - cached)
        other = min(foreign.bytes(low, high), high - low - used - cached - own)
        absent = low in known and low not in there
        if used:
            state = PageState.UNTOUCHED if absent else PageState.IN_USE
        elif other:
            state = PageState.UNKNOWN
        elif absent:
            state = PageState.RETURNED
        elif cached:
            state = PageState.CACHED
        elif own:
            state = PageState.METADATA
        else:
            state = PageState.KEPT if low in known else PageState.FREE
        states.append(int(state))
        in_use.append(used)
        shares.append(1 + used * 254 // (high - low) if used else 0)
        row = {State.IN_USE: used, State.CACHED: cached, State.METADATA: own, FOREIGN: other}
        row[State.FREE] = high - low - used - cached - own - other
        for column, amount in row.items():
            sums[state * COLUMNS + column] += amount
    return states, shares, in_use, sums


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=graphs.share(150), deadline=None)
def test_page_states(seed: int) -> None:
    rng = random.Random(seed)
    blocks = make_random_blocks(rng)
    low = BASE + 16 * rng.randrange(600)
    where = Range(low, low + rng.choice((0, 16, 4096, 50_000, 200_000)))
    known, there, metadata, foreign = (make_random_ranges(rng, BASE, BASE + (1 << 18), step) for step in (PAGE, PAGE, 16, 16))
    lists = PageLists(known, there, metadata, foreign)
    expected = compute_plainly(blocks, where, lists)
    reads = [make_blocks(engine(), blocks).by_page(array("Q", where), PAGE, lists) for engine in (graphs.native, graphs.pure)]
    assert reads[0] == reads[1]
    assert (list(reads[0].states), list(reads[0].shares), list(reads[0].used), reads[0].sums) == expected
    assert sum(reads[0].sums) == where.end - where.start
    for number, size in enumerate(reads[0].sizes):  # a size that has more than half of the bytes in use of a page is found
        page = (where.start // PAGE + number) * PAGE
        most = {}
        for at, (start, length, state) in enumerate(blocks):
            following = blocks[at + 1][0] if at + 1 < len(blocks) else 1 << 64
            end = following if following - start - length <= 16 else start + length
            amount = min(end, page + PAGE, where.end) - max(start, page, where.start)
            if amount > 0 and state == State.IN_USE:
                most[length] = most.get(length, 0) + amount
        for length, amount in most.items():
            if 2 * amount > sum(most.values()):
                assert size == min(length, LARGEST)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=graphs.share(100), deadline=None)
def test_pages_of_many_ranges(seed: int) -> None:
    """The result for several ranges has the results for each of the ranges, one after the other."""
    rng = random.Random(seed)
    blocks = make_random_blocks(rng)
    ranges = array("Q", sorted(BASE + rng.randrange(1 << 17) for _ in range(2 * rng.randrange(8))))
    ranges.extend([BASE + (1 << 18)] * (2 * rng.randrange(2)))  # an empty range
    lists = PageLists(*(make_random_ranges(rng, BASE, BASE + (1 << 18), step) for step in (PAGE, PAGE, 16, 16)))
    expected: list[list[int]] = [[], [], [], []]
    sums = [0] * (len(PageState) * COLUMNS)
    for at in range(0, len(ranges), 2):
        read = make_blocks(graphs.pure(), blocks).by_page(ranges[at : at + 2], PAGE, lists)
        for whole, some in zip(expected, read):
            whole.extend(some)
        sums = [one + other for one, other in zip(sums, read.sums)]
    for engine in (graphs.native, graphs.pure):
        read = make_blocks(engine(), blocks).by_page(ranges, PAGE, lists)
        assert [list(column) for column in read[:4]] == expected and read.sums == sums


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=graphs.share(150), deadline=None)
def test_runs_without_kept_pages(seed: int) -> None:
    rng = random.Random(seed)
    blocks = make_random_blocks(rng)
    low = BASE + rng.randrange(600)
    where = Range(low, low + rng.choice((0, 16, 4096, 50_000, 200_000)))
    least = rng.choice((0, 1, 17, 100, 5000))
    expected, at = [], where.start
    for start, size, state in [*blocks, (where.end, 0, State.IN_USE)]:
        if state != State.FREE and start + size > where.start:
            end = min(start, where.end)
            if at < end and (end - at >= least or at == where.start or end == where.end):
                expected += [at, end]
            at = max(at, start + size)
            if start >= where.end:
                break
    for engine in (graphs.native, graphs.pure):
        assert list(make_blocks(engine(), blocks).free_runs(where, least)) == expected


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=graphs.share(100), deadline=None)
def test_common_bytes(seed: int) -> None:
    rng = random.Random(seed)
    left, right = (make_random_ranges(rng, 1000, 1400, 1) for _ in range(2))
    inside = [{at for start, end in Runs(words) for at in range(start, end)} for words in (left, right)]
    for engine in (graphs.native(), graphs.pure()):
        assert engine.common_bytes(left, right) == len(inside[0] & inside[1])


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=graphs.share(100), deadline=None)
def test_first_words_of_blocks_in_a_page(seed: int) -> None:
    rng = random.Random(seed)
    blocks = make_random_blocks(rng)
    where = Range(BASE, BASE + rng.choice((0, 4096, 200_000)))
    types = [Range(0x1000, 0x2000), Range(0x5000, 0x5001)]
    memory = bytearray(where.end - where.start)
    for start, _, _ in blocks:
        at = start - where.start
        if at + 8 <= len(memory):
            memory[at : at + 8] = rng.choice((0x1000, 0x1008, 0x2000, 0x5000, 0)).to_bytes(8, "little")
    cut = rng.randrange(len(memory) + 1)
    pieces = [Piece(where.start, memoryview(memory)[:cut]), Piece(where.start + cut, memoryview(memory)[cut:])]
    answers = []
    for engine in (graphs.native, graphs.pure):
        index = make_blocks(engine(), blocks)
        count = len(memory) // PAGE + 1
        found, weights = array("Q", bytes(8 * count)), array("Q", bytes(8 * count))
        for piece in pieces:
            index.page_words(piece, types, where, PAGE, found, weights)
        answers.append((found, weights))
    assert answers[0] == answers[1]


def test_empty_ranges() -> None:
    empty = array("Q")
    for engine in (graphs.native, graphs.pure):
        index = make_blocks(engine(), [])
        read = index.by_page(array("Q", [BASE, BASE + 3 * PAGE]), PAGE, PageLists(empty, empty, empty, empty))
        assert list(read.states) == [PageState.FREE] * 3 and sum(read.sums) == 3 * PAGE
        assert list(index.free_runs(Range(BASE, BASE + 5), 100)) == [BASE, BASE + 5]
        with pytest.raises(RuntimeError):
            engine().blocks(X86_64, 16).by_page(array("Q", [0, 1]), PAGE, PageLists(empty, empty, empty, empty))
