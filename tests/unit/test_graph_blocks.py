"""The index of blocks: both engines compared with plain searches, and with glibc's chunks."""

from __future__ import annotations

import random
import struct
from array import array
from typing import Any

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.allocators.glibc.engine import walk_chunks
from findleaks.engine.contract import Engine
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.terms import State, Totals
from findleaks.target.arch import X86_64
from findleaks.target.base import Piece

ENGINES = [graphs.native, graphs.pure]
SEEDS = st.integers(0, 2**32 - 1)


def directory(engine: Engine, granule: int, mine: list[graphs.Block]) -> Any:
    blocks = engine.blocks(X86_64, granule)
    blocks.append([b.start for b in mine], [b.size for b in mine], [b.state for b in mine])
    blocks.seal()
    return blocks


@given(seed=SEEDS, granule=st.sampled_from((4, 8, 16, 32)), count=st.sampled_from((3, 40, 400)))
@settings(max_examples=graphs.share(120))
def test_look_ups(seed: int, granule: int, count: int) -> None:
    rng = random.Random(seed)
    mine, _ = graphs.random_blocks(rng, count, granule, 6)
    near = [b.start + d for b in mine for d in (-granule, -1, 0, 1, b.size - 1, b.size, b.size + granule)]
    addresses = [a for a in [*near, rng.getrandbits(64), 0, (1 << 64) - 1] if 0 <= a < 1 << 64]
    addresses = rng.sample(addresses, min(150, len(addresses)))
    holding = [next((i for i, b in enumerate(mine) if b.start == a or b.start <= a < b.end), -1) for a in addresses]
    following = [next((i for i, b in enumerate(mine) if b.start >= a), len(mine)) for a in addresses]
    for engine in (graphs.native(), graphs.pure()):
        blocks = directory(engine, granule, mine)
        assert len(blocks) == len(mine)
        for index in rng.sample(range(len(mine)), min(len(mine), 60)):
            block = mine[index]
            assert (blocks.address(index), blocks.size(index), blocks.state(index)) == (block.start, block.size, block.state)
        assert [blocks.find(address) for address in addresses] == holding
        assert [blocks.at_or_after(address) for address in addresses] == following
        for state in State:
            low, high = sorted(rng.sample(addresses, 2)) if len(addresses) > 1 else (0, 0)
            sizes = [b.size for b in mine if b.state == state and low <= b.start < high]
            assert blocks.totals(state, low, high) == Totals(len(sizes), sum(sizes))
            assert blocks.totals(state) == Totals(sum(b.state == state for b in mine), sum(b.size for b in mine if b.state == state))


@given(seed=SEEDS, granule=st.sampled_from((4, 16)))
@settings(max_examples=graphs.share(60))
def test_states_and_sizes_change(seed: int, granule: int) -> None:
    rng = random.Random(seed)
    mine, _ = graphs.random_blocks(rng, 60, granule, 4)
    both = [directory(graphs.native(), granule, mine), directory(graphs.pure(), granule, mine)]
    starts = {b.start for b in mine}
    chosen = [b.start + rng.choice((0, 0, granule, 1)) for b in rng.sample(mine, len(mine) // 2)]
    for blocks in both:
        assert blocks.set_state(chosen, State.CACHED) == [a for a in chosen if a not in starts]
    for index, block in enumerate(mine):
        limit = mine[index + 1].start if index + 1 < len(mine) else (1 << 64) - 1
        size = rng.choice((block.size, 0, rng.randrange(block.size + 1), limit - block.start, limit - block.start + 1))
        for blocks in both:
            if block.start + size > limit:
                with pytest.raises(ValueError, match="cannot have"):
                    blocks.resize(index, size)
            else:
                blocks.resize(index, size)
                assert blocks.size(index) == size
                assert blocks.state(index) == (State.CACHED if block.start in chosen else block.state)
                for offset in (1, size // 2, size - 1, size):
                    assert blocks.find(block.start + offset) == (index if 0 <= offset < max(size, 1) else blocks.find(block.start + offset))
                    assert both[0].find(block.start + offset) == both[1].find(block.start + offset) or blocks is both[0]


def whole_granules(rng: random.Random, granule: int, distinct: int) -> list[graphs.Block]:
    """Return blocks whose sizes are multiples of the granule: sizes 0, sizes of small blocks, sizes up to 64 slots, and larger sizes.
    `distinct`: the number of different sizes, except those that do not fit 4 bytes."""
    blocks, at = [], 0x1000
    slots = 64 * 64
    granules = [0, 1, 2, slots - 1, slots, slots + 1, slots + 63, slots + 64, slots + 65, 0xFFFE, 0xFFFF, 0x10000, (1 << 32) // granule]
    some = [*granules, *(rng.randrange(40) for _ in range(80))]
    more = distinct - len({number for number in some if number * granule < 0xFFFFFFFF})
    for number in [*some, *range(100, 100 + more), *granules]:
        at += granule * rng.choice((0, 0, 1, rng.randrange(70)))
        blocks.append(graphs.Block(at, granule * number, rng.choice(list(State))))
        at += granule * max(number, 1)
    return blocks


@pytest.mark.parametrize("granule", [4, 8, 16, 4096])
@pytest.mark.parametrize("odd", ["none", "one", "one of 2^32 - 1 bytes"])
@pytest.mark.parametrize("distinct", [0, 255, 256])
def test_sizes_in_one_or_two_bytes(granule: int, odd: str, distinct: int) -> None:
    """The C engine stores each size in 1 byte if there are at most 255 different ones. Otherwise it stores each size in 2 bytes
    if all sizes are multiples of the granule. One size that is stored elsewhere does not count. When one block gets another
    size, all sizes take 4 bytes again."""
    rng = random.Random(granule)
    mine = whole_granules(rng, granule, distinct)
    if odd != "none":
        size = 4097 if odd == "one" else 0xFFFFFFFF
        mine.append(graphs.Block(mine[-1].start + (1 << 33), size, State.IN_USE))
    both = [directory(engine(), granule, mine) for engine in ENGINES]

    def list_all(blocks: Any) -> list[Any]:
        numbers = range(len(mine))
        near = [
            b.start + d for b in mine for d in (-1, 0, 1, blocks.size(mine.index(b)) - 1, blocks.size(mine.index(b))) if b.start + d >= 0
        ]
        ranges = array("Q", [mine[5].start + 1, mine[40].start, mine[70].start, mine[-1].start + 1])
        marks, some = bytearray(at % 3 for at in numbers), array("I", rng_numbers)
        return [
            [(blocks.address(at), blocks.size(at), blocks.state(at)) for at in numbers],
            [blocks.find(address) for address in near],
            [list(one) for one in blocks.find_all(array("Q", near))],
            [blocks.totals(state) for state in State],
            [blocks.totals(state, mine[3].start, mine[-2].start) for state in State],
            blocks.totals_in(ranges),
            blocks.columns(),
            blocks.columns_of(some),
            list(blocks.indices_with(1 << State.IN_USE, marks, 1)),
        ]

    rng_numbers = [rng.randrange(len(mine)) for _ in range(50)]
    assert list_all(both[0]) == list_all(both[1])
    assert [both[0].size(at) for at in range(len(mine))] == [b.size for b in mine]
    for number in (20, 4, 5, len(mine) - 2, 11, 60):
        room = mine[number + 1].start - mine[number].start
        for size in (0, room - 1, room, 0xFFFFFFFF, min(room, granule * 0xFFFF), mine[number].size):
            for blocks in both:
                if size > room:
                    with pytest.raises(ValueError, match="cannot have"):
                        blocks.resize(number, size)
                else:
                    blocks.resize(number, size)
                    assert blocks.size(number) == size
        assert list_all(both[0]) == list_all(both[1])
    for blocks in both:
        assert not blocks.set_state([b.start for b in mine[::2]], State.CACHED)
    assert list_all(both[0]) == list_all(both[1])


@pytest.mark.parametrize("engine", ENGINES)
class TestRules:
    @pytest.mark.parametrize(
        ("starts", "sizes", "states"),
        [
            ([0x1000, 0x1010], [0x11, 0x10], [0, 0]),  # overlap
            ([0x1010, 0x1000], [0x8, 0x8], [0, 0]),  # order
            ([0x1000, 0x1000], [0, 0], [0, 0]),  # the same block twice
            ([0x1008], [8], [0]),  # not a multiple of the granule
            ([0x1000], [-1], [0]),
            ([0x1000], [8], [4]),
            ([(1 << 64) - 16], [16], [0]),  # ends after the last address
            ([1 << 64], [0], [0]),
            ([0x1000], [8, 8], [0]),
        ],
    )
    def test_append_adds_all_or_nothing(self, engine: type, starts: list[int], sizes: list[int], states: list[int]) -> None:
        blocks = engine().blocks(X86_64, 16)
        blocks.append([0x10], [0x8], [0])
        with pytest.raises(ValueError):  # noqa: PT011 - each says something else
            blocks.append([0x100, *starts], [8, *sizes], [0, *states])
        with pytest.raises(ValueError, match="above the previous block"):
            blocks.append([0x10], [1], [0])
        assert len(blocks) == 1

    def test_phases(self, engine: type) -> None:
        blocks = engine().blocks(X86_64, 16)
        with pytest.raises(RuntimeError, match="not sealed"):
            blocks.find(0)
        blocks.seal()
        blocks.seal()
        with pytest.raises(RuntimeError, match="is sealed"):
            blocks.append([16], [8], [0])
        assert (len(blocks), blocks.find(16), blocks.at_or_after(0)) == (0, -1, 0)

    @pytest.mark.parametrize("granule", [0, 3, 24, 8192])
    def test_granules_are_powers_of_two(self, engine: type, granule: int) -> None:
        with pytest.raises(ValueError, match="granule"):
            engine().blocks(X86_64, granule)

    def test_sizes_beyond_32_bits(self, engine: type) -> None:
        blocks = engine().blocks(X86_64, 16)
        starts = [0x1000, 0x10_0000_0000, 0x7000_0000_0000]
        sizes = [0xFFFFFFFF, 0x50_0000_0008, 0x1000_0000_0000]
        blocks.append(starts, sizes, [0, 2, 0])
        blocks.seal()
        assert [blocks.size(i) for i in range(3)] == sizes
        assert [blocks.find(s + n - 1) for s, n in zip(starts, sizes)] == [0, 1, 2]
        assert [blocks.find(s + n) for s, n in zip(starts, sizes)] == [-1, -1, -1]
        assert blocks.totals(State.FREE) == Totals(1, sizes[1])
        blocks.resize(1, 0x20)
        assert (blocks.find(starts[1] + 0x1F), blocks.find(starts[1] + 0x20), blocks.size(1)) == (1, -1, 0x20)


def make_chunks(rng: random.Random, number: int) -> tuple[bytes, list[graphs.Block], int]:
    """Return a heap of glibc chunks from address 0x10000 on, as malloc would leave it: bytes, blocks, and the offset of the top chunk."""
    data, blocks = bytearray(), []
    before, last = True, 0
    for _ in range(number):
        size = 16 * rng.choice((2, 2, 3, 4, 5, 8, rng.randrange(2, 300)))
        in_use = rng.random() < 0.7
        flags = int(before) | (4 if rng.random() < 0.3 else 0)
        if rng.random() < 0.05:
            blocks.append(graphs.Block(0x10000 + len(data) + 16, size - 16, State.IN_USE))
            flags |= 2
            in_use = rng.random() < 0.5
        else:
            blocks.append(graphs.Block(0x10000 + len(data) + 16, size - (8 if in_use else 16), 0 if in_use else 2))
        data += struct.pack("<2Q", 0 if before else last, size | flags) + rng.randbytes(size - 16)
        before, last = in_use, size
    top = len(data)
    data += struct.pack("<2Q", 0 if before else last, 0x1000 | int(before))
    return bytes(data), blocks, top


def walk(engine: Engine, pieces: list[Any], end: int, granule: int = 16) -> tuple[list[Any], list[graphs.Block]]:
    """Return the results of all steps of a walk, and the blocks."""
    blocks = engine.blocks(X86_64, granule)
    chunk, steps = 0x10000, []
    for piece in pieces:
        step = walk_chunks(blocks, piece, chunk, end)
        steps.append(step)
        while step.unsure:
            step = walk_chunks(blocks, piece, step.chunk, end)
            steps.append(step)
        chunk = step.chunk
        if step.done or step.problem:
            break
    blocks.seal()
    return steps, [graphs.Block(blocks.address(i), blocks.size(i), blocks.state(i)) for i in range(len(blocks))]


@given(seed=SEEDS, number=st.integers(0, 80))
@settings(max_examples=graphs.share(100))
def test_chunks(seed: int, number: int) -> None:
    rng = random.Random(seed)
    data, expected, top = make_chunks(rng, number)
    pieces = graphs.cut(0x10000, data, rng, 8, 6)
    for engine in (graphs.native(), graphs.pure()):
        steps, found = walk(engine, pieces, 0x10000 + top)
        assert found == expected
        assert (steps[-1].chunk, steps[-1].done, steps[-1].problem) == (0x10000 + top, True, "")
        assert not any(step.done or step.problem for step in steps[:-1])


@given(seed=SEEDS, number=st.integers(1, 40))
@settings(max_examples=graphs.share(60))
def test_a_free_chunk_without_a_copy_of_its_size(seed: int, number: int) -> None:
    """The in-use bit was cleared, or the copy of the size was overwritten. The block stays in use, the walk reports the
    address, and continues."""
    rng = random.Random(seed)
    data, expected, top = make_chunks(rng, number)
    bad, wrong = bytearray(data), []
    for index, block in enumerate(expected):
        behind = expected[index + 1].start - 0x10010 if index + 1 < len(expected) else top
        size = behind - (block.start - 0x10010)
        if block.size == size - 16 and block.state == State.IN_USE:
            continue  # these chunks are separate mappings
        if block.state == State.FREE and rng.random() < 0.5:
            bad[behind] ^= 1 << rng.randrange(8)
            wrong.append(behind)
            expected[index] = graphs.Block(block.start, size - 8, State.IN_USE)
        elif block.state == State.IN_USE and rng.random() < 0.2:
            bad[behind] ^= size == int.from_bytes(bad[behind : behind + 8], "little")
            bad[behind + 8] &= 0xFE
            wrong.append(behind)
    pieces = graphs.cut(0x10000, bytes(bad), rng, 16, 6)
    for engine in (graphs.native(), graphs.pure()):
        steps, found = walk(engine, pieces, 0x10000 + top)
        assert found == expected
        assert [step.chunk - 0x10000 for step in steps if step.unsure] == wrong
        assert steps[-1].chunk == 0x10000 + top and not [step for step in steps if step.problem and not step.unsure]


@given(seed=SEEDS, damage=st.integers(0, 3), granule=st.sampled_from((8, 16, 32)))
@settings(max_examples=graphs.share(150))
def test_corrupt_chunks(seed: int, damage: int, granule: int) -> None:
    rng = random.Random(seed)
    data, _, top = make_chunks(rng, rng.randrange(30))
    bad = bytearray(data)
    for _ in range(damage):
        at = rng.randrange(len(bad) // 8) * 8
        bad[at : at + 8] = rng.choice((0, 16, 0x21, 0x18, rng.getrandbits(64), rng.getrandbits(12), (1 << 64) - 1)).to_bytes(8, "little")
    pieces = graphs.cut(0x10000, bytes(bad), rng, rng.choice((1, 8)), 6)
    if rng.random() < 0.3 and len(pieces) > 1:
        del pieces[rng.randrange(len(pieces))]
    end = 0x10000 + top + rng.choice((0, 0, 0, 8, 16, -16, 0x1000, 1 << 63))
    steps, found = walk(graphs.native(), pieces, end, granule)
    assert (steps, found) == walk(graphs.pure(), pieces, end, granule)
    assert all(a.end <= b.start for a, b in zip(found, found[1:]))
    assert all(f"{step.chunk:#x}" in step.problem for step in steps if step.problem)


@pytest.mark.parametrize("engine", ENGINES)
def test_reports_of_corrupt_chunks(engine: type) -> None:
    def problem(size: int, chunk: int = 0x10000, end: int = 0x10100) -> str:
        data = struct.pack("<4Q", 0, 0x21, 0, 0) + struct.pack("<4Q", 0, size, 0, 0)
        return str(walk_chunks(engine().blocks(X86_64, 16), graphs.piece(0x10000, data), chunk, end).problem)

    assert problem(0x11) == "chunk 0x10020: size 0x10 is less than that of the smallest chunk"
    assert problem(0x29) == "chunk 0x10020: size 0x28 is not aligned"
    assert problem(0x101) == "chunk 0x10020: size 0x100 reaches past the heap's end at 0x10100"
    assert problem(0x21, 0x10008) == "chunk 0x10008: is not at an address where a chunk can be"
    assert problem(0x21, 0x20000) == "chunk 0x20000: is not at an address where a chunk can be"
    assert problem(0x21, 0xFF00) == "chunk 0xff00: its header is missing"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_second_heap_below_the_first_is_refused(engine: type) -> None:
    blocks = engine().blocks(X86_64, 16)
    blocks.append([0x20000], [24], [0])
    data = struct.pack("<2Q", 0, 0x21) * 2
    step = walk_chunks(blocks, graphs.piece(0x10000, data), 0x10000, 0x10020)
    assert (step.done, step.problem) == (False, "chunk 0x10000: lies below blocks found before it")
    assert len(blocks) == 1


def test_threads_do_not_read_beyond_a_piece() -> None:
    """The chunk in which a piece ends leads from the first address of the second thread to a header outside of the piece."""
    total, cut, large = 4 << 20, 3 << 20, 2 << 20
    first, small = (cut // 2) // 32 + 31, struct.pack("<4Q", 0, 0x21, 0, 0)
    data = bytearray(small * first + struct.pack("<2Q", 0, large | 1) + bytes(large - 16))
    following = len(data)
    data += small * ((total - following) // 32)
    end = 0x10000 + len(data) - 32
    # In the memory of the test, a different header follows the piece.
    beyond = bytearray(data)
    struct.pack_into("<2Q", beyond, following, 0x30, 0x40)
    pieces = [Piece(0x10000, memoryview(beyond)[:cut]), Piece(0x10000 + cut, memoryview(data)[cut:])]
    native = graphs.native()
    found = walk(NativeEngine(native.library, X86_64, 2), pieces, end)
    assert found == walk(graphs.pure(), pieces, end)
    assert found[0][-1].done and len(found[1]) == (len(data) - large) // 32
