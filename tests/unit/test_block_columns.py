"""Columns of blocks: both engines return the values that look-ups of single blocks return, in buffers that need not be copied."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from random import Random

import graphs
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.engine.columns import NO_GROUP, BlockColumns
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.native import blocks as kernel_blocks
from findleaks.engine.terms import State
from findleaks.target.arch import X86_64

GAPS = st.lists(st.tuples(st.sampled_from([0, 16, 1024, 1 << 20, 1 << 33]), st.sampled_from([1, 8, 24, 4000, 1 << 33]), st.integers(0, 3)))


def engines() -> Iterator[Engine]:
    yield graphs.native()
    yield graphs.pure()


def directory(engine: Engine, gaps: list[tuple[int, int, int]]) -> Blocks:
    made, floor = engine.blocks(X86_64, 16), 0x10000
    for gap, size, state in gaps:
        start = -(-(floor + gap) // 16) * 16
        made.append([start], [size], [state])
        floor = start + size
    made.seal()
    return made


def convert_to_lists(columns: BlockColumns) -> list[list[int]]:
    return [column.tolist() for column in columns]


@settings(max_examples=graphs.share(60), deadline=None)
@given(GAPS, st.integers(0, 12), st.integers(0, 12))
def test_columns_equal_look_ups(gaps: list[tuple[int, int, int]], first: int, last: int) -> None:
    for engine in engines():
        blocks = directory(engine, gaps)
        for low, high in ((0, None), (first, last), (first, None)):
            wanted = range(len(blocks))[low:high]
            found = blocks.columns(low, high)
            assert convert_to_lists(found) == [[look(at) for at in wanted] for look in (blocks.address, blocks.size, blocks.state)]
            assert [column.format for column in found] == ["Q", "Q", "B"]
            assert all(column.readonly and column.contiguous for column in found)
            some = array("I", [*range(first, last), *wanted, 1 << 31])
            picked = [(blocks.address(at), blocks.size(at), blocks.state(at)) if at < len(blocks) else (0, 0, 0) for at in some]
            assert list(zip(*convert_to_lists(blocks.columns_of(some)))) == picked


def test_many_calls_make_one_column(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = directory(graphs.native(), [(16, 24, 0)] * 100)
    whole = convert_to_lists(blocks.columns())
    monkeypatch.setattr(kernel_blocks, "STEPS", 7)
    assert convert_to_lists(blocks.columns()) == whole and len(whole[0]) == 100


def test_columns_outlive_the_directory() -> None:
    for engine in engines():
        found = directory(engine, [(0, 24, 0), (0, 40, 2)]).columns()
        assert convert_to_lists(found) == [[0x10000, 0x10020], [24, 40], [State.IN_USE, State.FREE]]


def test_arrow_wraps_columns_without_a_copy() -> None:
    """Two arrays that wrap one column have the address of the column."""
    for engine in engines():
        address = directory(engine, [(0, 24, 0)] * 9).columns().address
        buffer, again = pyarrow.py_buffer(address), pyarrow.py_buffer(address)
        assert buffer.address == again.address and buffer.size == 72
        assert pyarrow.Array.from_buffers(pyarrow.uint64(), 9, [None, buffer]).to_pylist() == address.tolist()


@settings(max_examples=graphs.share(40), deadline=None)
@given(GAPS, st.integers(0, 15), st.integers(0, 31), st.randoms(use_true_random=False))
def test_indices_with_states_and_marks(gaps: list[tuple[int, int, int]], states: int, wanted: int, random: Random) -> None:
    marks = bytearray(random.randrange(5) for _ in gaps)
    expected = [at for at, (_, _, state) in enumerate(gaps) if states >> state & 1 and wanted >> marks[at] & 1]
    for engine in engines():
        found = directory(engine, gaps).indices_with(states, marks, wanted)
        assert found.typecode == "I" and found.tolist() == expected


@settings(max_examples=graphs.share(40), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_heads_of_all_blocks(seed: int) -> None:
    heap = graphs.random_heap(seed, 40, 16, 3)
    for engine in engines():
        graph = graphs.graph_of(engine, heap)
        heads = graph.leak_heads()
        assert heads.format == "I" and heads.readonly
        assert heads.tolist() == [NO_GROUP if graph.leak_head(at) < 0 else graph.leak_head(at) for at in range(len(heap.blocks))]


@settings(max_examples=graphs.share(40), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_references_among_leaked_blocks(seed: int) -> None:
    heap = graphs.random_heap(seed, 40, 16, 3)
    for engine in engines():
        graph = graphs.graph_of(engine, heap)
        leaked = [at for at in range(len(heap.blocks)) if graph.leak_head(at) >= 0]
        expected = Counter(target for at in leaked for target, _ in graph.references(at) if target in leaked)
        assert graph.leaked_references().tolist() == [expected[at] for at in range(len(heap.blocks))]


def test_before_sealing() -> None:
    for engine in engines():
        with pytest.raises(RuntimeError, match="not sealed"):
            engine.blocks(X86_64, 16).columns()
