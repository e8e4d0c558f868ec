"""Objects that are recognised by the type in their second word: the C engine and the reference engine agree, and other
memory is not an object."""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Callable
from typing import NamedTuple

import graphs
import pytest

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.dominators import IGNORED
from findleaks.engine.terms import State
from findleaks.runtimes.cpython.engine import LEAF, NO_OBJECT, READY, ObjectTally, TypeColumns, count_objects
from findleaks.target.arch import X86_64
from findleaks.target.base import Range

HEAP = 0x7F0000000000
ENGINES = [graphs.native, graphs.pure]
TYPES = [0x9D8000, 0x9D9000, 0x9DA000, HEAP + 0x40]
OFFSETS = bytes([0, 16, 32, 16])
LEAVES = bytes([0x60, 0, 1, 0xC0])
PROGRAM = Range(0x9D0000, 0x9DF000)
MARKS = bytes([17, 0, 0, 24])
LIVES = bytes([0, 2, 3, 4])


class Heap(NamedTuple):
    memory: bytearray
    blocks: list[tuple[int, int, State]]


def build(engine: Engine, heap: Heap) -> Blocks:
    blocks = engine.blocks(X86_64, 16)
    blocks.append([b[0] for b in heap.blocks], [b[1] for b in heap.blocks], [b[2] for b in heap.blocks])
    blocks.seal()
    return blocks


def count(engine: Engine, heap: Heap, cuts: list[int]) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """Count the objects with the memory divided at these offsets. Objects that a cut divides are read again as a whole."""
    blocks = build(engine, heap)
    tally = ObjectTally.of(blocks, TYPES, TypeColumns(OFFSETS, MARKS, LEAVES, LIVES), PROGRAM)
    reported: list[int] = []
    for start, end in zip([0, *cuts], [*cuts, len(heap.memory)]):
        cut = count_objects(engine, blocks, graphs.piece(HEAP + start, bytes(heap.memory[start:end])), tally)
        reported += cut
        for address in cut:
            size = min(blocks.size(blocks.find(address)), 160)
            at = address - HEAP
            assert not count_objects(engine, blocks, graphs.piece(address, bytes(heap.memory[at : at + size])), tally)
    return tally.found.tolist(), tally.merged.tolist(), tally.sums.tolist(), list(tally.patterns), reported


def make_heap(*contents: tuple[int, bytes]) -> Heap:
    """Return a heap with blocks in use of these sizes, one after the other."""
    memory, blocks = bytearray(), []
    for size, content in contents:
        blocks.append((HEAP + len(memory), size, State.IN_USE))
        memory += content.ljust(-(-size // 16) * 16, b"\0")
    return Heap(memory, blocks)


@pytest.mark.parametrize("engine", ENGINES)
def test_objects_are_at_the_offset_of_their_type(engine: Callable[[], Engine]) -> None:
    words = struct.Struct("<2Q").pack
    heap = make_heap(
        (32, words(1, TYPES[0]) + b"\0\2"),  # live, with the mark
        (32, words(0, TYPES[0])),  # no references: the count is 0
        (48, words(HEAP, 7) + words(3, TYPES[1])),  # in a list of the garbage collector
        (48, words(0, 0) + words(3, TYPES[1])),  # not in a list of the garbage collector
        (48, words(3, TYPES[1])),  # objects of this type do not begin here
        (64, words(5, 5) + words(0, 9) + words(2, TYPES[2])),
        (32, words(TYPES[1], TYPES[0])),  # a list of types
        (32, words(HEAP + 32, TYPES[0])),  # a list of an object and a type
        (32, words(0xFFFFFFFF, TYPES[0]) + b"\0\x64"),  # immortal, and without pointers
        (32, words(0x0004_0000_0000_0001, TYPES[0])),  # with flags, as since 3.14
        (32, words(0x7F12_3456_7890, TYPES[0])),  # an arbitrary address instead of a count
        (8, struct.pack("<Q", TYPES[0])),
    )
    found, stands, sums, patterns, cut = count(engine(), heap, [])
    assert found == [0, NO_OBJECT, 1, 1, NO_OBJECT, 2, NO_OBJECT, NO_OBJECT, 0, 0, NO_OBJECT, NO_OBJECT]
    assert sums == [3, 96, 0, 1, 1, 32, 2, 96, 1, 0, 0, 0, 1, 64, 0, 0, 0, 0, *[0] * 6]
    assert stands == [0, NO_OBJECT, 1, 1, NO_OBJECT, IGNORED, NO_OBJECT, NO_OBJECT, IGNORED, 0, NO_OBJECT, NO_OBJECT]
    assert patterns == [0, 0, 2, 2, 0, LEAF, 0, 0, LEAF, 0, 0, 0]
    assert cut == []


@pytest.mark.parametrize("engine", ENGINES)
def test_a_number_is_not_a_link_of_the_collector(engine: Callable[[], Engine]) -> None:
    """The unused room for children in a block of an ElementTree's element may contain the rest of an object."""
    words = struct.Struct("<2Q").pack
    heap = make_heap(*((64, words(HEAP, 0) + words(link, HEAP + 32) + words(30, TYPES[2])) for link in (0, 1, 4, 4095, 4096)))
    found = count(engine(), heap, [])[0]
    assert found == [2, 2, NO_OBJECT, NO_OBJECT, 2]


@pytest.mark.parametrize("engine", ENGINES)
def test_strings_with_a_copy_in_another_encoding_have_pointers(engine: Callable[[], Engine]) -> None:
    words = struct.Struct("<2Q").pack
    texts = [words(1, TYPES[0]) + words(3, 4) + words(state, wstr) for state, wstr in ((0xE0, 0), (0xE0, HEAP), (0x60, 0))]
    heap = make_heap(*((64, text) for text in texts), (32, words(1, TYPES[0])))
    blocks = build(engine(), heap)
    columns = TypeColumns(bytes(4), bytes([32] * 4), bytes([0x60 | READY] * 4), bytes([2] * 4))
    tally = ObjectTally.of(blocks, TYPES, columns, PROGRAM)
    count_objects(engine(), blocks, graphs.piece(HEAP, bytes(heap.memory)), tally)
    assert list(tally.patterns) == [LEAF, 2, 2, 2]


def random_heap(seed: int) -> Heap:
    pick = random.Random(seed)
    memory, blocks, at = bytearray(pick.randbytes(16 * 600)), [], 16 * pick.randrange(4)
    while at < len(memory) - 512:
        size = pick.choice([8, 16, 24, 40, 48, 72, 136, 200])
        blocks.append((HEAP + at, size, State(pick.choice([0, 0, 0, 0, 1, 2, 3]))))
        for place in range(at, at + size - 7, 8):
            value = pick.choice([0, 1, 3, 0xFFFFFFFF, 1 << 48, HEAP + 16 * pick.randrange(600), *TYPES, *TYPES, pick.randrange(1 << 64)])
            memory[place : place + 8] = struct.pack("<Q", value)
        number = pick.randrange(6)
        if number < len(TYPES) and size >= OFFSETS[number] + 16:
            place = at + OFFSETS[number]
            memory[place : place + 16] = struct.pack("<2Q", pick.choice([0, 1, 2, 700, HEAP + at]), TYPES[number])
        if number == 4 and size >= 24:  # values of a dictionary, the first of which is a type
            capacity = min(size // 8 - 1 - size // 72 - pick.randrange(2), 30)
            memory[at : at + 16] = struct.pack("<4BIQ", capacity, pick.choice([1, capacity]), 0, 0, 0, TYPES[0])
            memory[at + 16 : at + size] = struct.pack("<Q", pick.choice([0, HEAP, HEAP, 9])) * (size // 8 - 2)
            memory[at + 8 + 8 * capacity : at + size] = bytes(range(size - 8 - 8 * capacity))
        at += -(-size // 16) * 16 + 16 * pick.randrange(3)
    return Heap(memory, blocks)


@pytest.mark.parametrize("seed", range(graphs.share(40)))
def test_both_engines_agree_whatever_the_pieces(seed: int) -> None:
    heap = random_heap(seed)
    pick = random.Random(seed)
    whole = count(ENGINES[0](), heap, [])
    assert sum(whole[2][::6]) >= 5  # the heap does have objects
    for engine in ENGINES:
        cuts = sorted(pick.sample(range(1, len(heap.memory)), 5))
        parts = count(engine(), heap, cuts)
        assert parts[:4] == whole[:4]
        assert count(engine(), heap, cuts)[4] == parts[4]


def test_types_and_offsets_belong_together() -> None:
    blocks = build(ENGINES[0](), make_heap((16, b"")))
    with pytest.raises(ValueError, match=r"1 types, columns of \[2, 1, 0, 1\]"):
        ObjectTally.of(blocks, array("Q", [1]), TypeColumns(b"\0\0", b"\0", b"", b"\0"), PROGRAM)


@pytest.mark.parametrize("engine", ENGINES)
def test_values_of_a_dictionary_are_no_object(engine: Callable[[], Engine]) -> None:
    """The first words of a block of values may be remains of an object without pointers. The words after it are references all the same."""
    words = struct.Struct("<2Q").pack
    remains = words(2, TYPES[2]).rjust(48, b"\0")
    leaf = words(2, TYPES[0]) + b"\0\x64" + bytes(6)
    heap = make_heap((64, remains), (64, leaf), (64, leaf[:-1] + bytes([24])), (64, leaf.ljust(31, b"\0") + bytes([32])))
    assert count(engine(), heap, [])[3] == [LEAF, LEAF, 0, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_values_that_begin_with_a_type_are_no_object(engine: Callable[[], Engine]) -> None:
    """Since CPython 3.13, the number and the capacity of values are before them. They look like a count of references."""

    def make_values(capacity: int, *values: int, order: bytes = b"", head: int = 0) -> tuple[int, bytes]:
        used = [number for number, value in enumerate(values) if value]
        first = struct.pack("<4BI", capacity, len(used), head, 0, 0)
        words = struct.pack(f"<{capacity}Q", *values, *bytes(capacity - len(values)))
        content = first + words + (order or bytes(used)).ljust(-(-capacity // 8) * 8, b"\xff")
        return -(-len(content) // 16) * 16, content

    kind = TYPES[0]
    heap = make_heap(
        make_values(6, kind, HEAP, 0, HEAP + 32),
        make_values(30, kind, HEAP),
        make_values(6, kind, HEAP, order=bytes([1, 0])),
        # None of these are values
        make_values(6, kind, HEAP, order=bytes([0, 2])),
        make_values(6, kind, 5),  # not an address
        make_values(6, kind, HEAP, head=1),  # the values are in an object
        make_values(6, kind, 1 << 63),
        (64, struct.pack("<3Q", 0x0102, kind, HEAP)),  # the block is too large
        (32, struct.pack("<4Q", 0x0101, kind, 0, 0)),  # one value: perhaps a float
    )
    assert count(engine(), heap, [])[0] == [NO_OBJECT] * 3 + [0] * 6
