"""Interior pointers of CPython: to the object after a garbage collector's header, and to the values of a dictionary."""

from __future__ import annotations

import random
import struct

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.engine.terms import Heuristic, Kind

ENGINES = [graphs.native, graphs.pure]
TYPE = graphs.TYPES[3]
BLOCK = 0x10000


def find_kind(engine: type, words: dict[int, int], root: int, heuristics: Heuristic) -> Kind:
    """Return the kind of a block of 96 bytes. `words`: its contents by offset. One word, `root`, refers to it."""
    data = bytearray(96)
    for offset, value in words.items():
        struct.pack_into("<Q", data, offset, value)
    heap = graphs.Heap(16, [graphs.Block(BLOCK, 96, 0)], [(BLOCK, bytes(data))], [], [root])
    heap.pieces = [graphs.piece(BLOCK, bytes(data))]
    return graphs.graph_of(engine(), heap, heuristics).kind(0)


@pytest.mark.parametrize("engine", ENGINES)
class TestObjects:
    @pytest.mark.parametrize("header", [0, 16, 32, 48])
    def test_a_reference_after_the_header_counts(self, engine: type, header: int) -> None:
        words = {header: 1, header + 8: TYPE}
        for offset in range(1, 96):
            held = offset % 16 < 4 and offset & ~3 <= header
            found = find_kind(engine, words, BLOCK + offset, Heuristic.OBJECTS)
            assert found == (Kind.REACHABLE if held else Kind.POSSIBLE), offset

    def test_memory_without_a_type_is_no_object(self, engine: type) -> None:
        assert find_kind(engine, {16: 1, 24: TYPE + 1}, BLOCK + 16, Heuristic.OBJECTS) == Kind.POSSIBLE

    def test_heuristic_is_off_by_default(self, engine: type) -> None:
        assert find_kind(engine, {16: 1, 24: TYPE}, BLOCK + 16, Heuristic(15)) == Kind.POSSIBLE
        assert find_kind(engine, {0: 8 << 56}, BLOCK + 8, Heuristic.OBJECTS) == Kind.POSSIBLE

    @pytest.mark.parametrize("prefix", [8, 16, 24, 32])
    def test_values_of_a_dictionary(self, engine: type, prefix: int) -> None:
        words = {prefix - 8: prefix << 56}
        for offset in range(1, 96):
            found = find_kind(engine, words, BLOCK + offset, Heuristic.DICT_VALUES)
            assert found == (Kind.REACHABLE if offset in (prefix, prefix - 1) else Kind.POSSIBLE), offset

    def test_searching_for_one_of_many_values(self, engine: type) -> None:
        piece = graphs.piece(0x1004, bytes(4) + struct.pack("<6Q", 7, 9, 1 << 63, 7, 8, 0) + bytes(3))
        assert list(engine().search_any(piece, [1 << 63, 7, 7])) == [0x1008, 0x1018, 0x1020]
        assert list(engine().search_any(piece, [])) == []


@given(seed=st.integers(0, 2**32 - 1), number=st.integers(0, 40))
@settings(max_examples=graphs.share(100))
def test_both_engines_find_the_same_values(seed: int, number: int) -> None:
    rng = random.Random(seed)
    words = [rng.choice((rng.randrange(100), rng.getrandbits(64))) for _ in range(60)]
    values = [rng.choice((rng.randrange(100), rng.getrandbits(64), rng.choice(words))) for _ in range(number)]
    piece = graphs.piece(0x1000 + rng.randrange(8), struct.pack("<60Q", *words))
    wanted = [at for engine in ENGINES for at in [list(engine().search_any(piece, values))]]
    assert wanted[0] == wanted[1]
    skip = -piece.address % 8
    data = bytes(piece.data)
    places = range(skip, len(data) - 7, 8)
    assert wanted[0] == [piece.address + at for at in places if int.from_bytes(data[at : at + 8], "little") in values]
