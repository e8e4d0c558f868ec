"""Unused words of generators, frames, sets and tuples: both engines agree in all four variants."""

from __future__ import annotations

import random
from array import array
from typing import Any

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from word_heaps import HEAP, PROGRAM, Memory

from findleaks.engine.contract import Engine
from findleaks.engine.terms import EVERY_WORD
from findleaks.runtimes.cpython.engine import ObjectTally, TypeColumns, count_objects
from findleaks.runtimes.cpython.remains import (
    ATTRIBUTES,
    BUFFER,
    FRAME,
    FRAME_NUMBER,
    FRAME_OBJECT,
    FRAME_POINTER,
    ITEMS,
    NUMBER,
    POINTER,
    SET,
    SIZES,
    FrameLayout,
    Layouts,
    object_remains,
)
from findleaks.target.arch import X86_64, Arch

GENERATORS, SETS, TUPLES, PLAIN = TYPES = [0x9D8000, 0x9D9000, 0x9DA000, 0x9DB000]
LAYOUTS = [
    FrameLayout(3, 5, 6, NUMBER),
    FrameLayout(3, 5, 7, POINTER),
    FrameLayout(0, 5, 4, FRAME_NUMBER),
    FrameLayout(6, 5, 4, FRAME_POINTER),
]
LIVES = bytes([1, 2, 0, 0])
MASKS = {1: 0b100, 2: 0b1000}  # words that the patterns of LIVES exclude


def find_unused(
    engine: Engine,
    memory: Memory,
    layout: FrameLayout,
    shift: int = 0,
    cuts: list[int] | None = None,
    kind: int = FRAME,
    first: tuple[int, int] = (0, 0),
    lowest: int = 0,
    most: int = 250,
) -> dict[str, Any]:
    """Return the result of the pass if the memory is divided at these offsets. `kind`, `first`: the kind of the first type, and the
    words of its objects up to the first item or the place for a frame, and of an item. `lowest`: the lowest bit of a
    number of items. `most`: number of patterns that can be added."""
    arch = memory.arch
    blocks = memory.built(engine)
    offset = 2 * arch.word + shift
    columns = TypeColumns(bytes([offset] * 4), bytes(4), bytes(4), LIVES)
    tally = ObjectTally.of(blocks, TYPES, columns, PROGRAM, shift)
    bounds = [0, *(cuts or ()), len(memory.data)]
    pieces = [graphs.piece(HEAP + start, bytes(memory.data[start:end])) for start, end in zip(bounds, bounds[1:])]
    for piece in pieces:
        count_objects(engine, blocks, piece, tally)
    masks = dict(MASKS)

    def add(number: int, words: int) -> int:
        if len(masks) - len(MASKS) >= most:
            return 0
        masks[len(masks) + 1] = masks.get(number, 0) | words
        return len(masks)

    sizes = array("I", [*(words * arch.word for words in first), lowest, *[0] * SIZES])
    sizes += array("I", [offset + 3 * arch.word, arch.word, lowest, offset + 4 * arch.word, 0, 0])
    rest = object_remains(engine, blocks, pieces, tally, Layouts(bytes([kind, SET, ITEMS, ATTRIBUTES]), layout, sizes), add)
    return {"masks": [masks.get(number, 0) for number in tally.patterns], "rest": rest, "found": tally.found.tolist()}


def random_memory(rng: random.Random, arch: Arch, shift: int) -> Memory:
    memory, at, word = Memory(arch, 1200), 0, arch.word
    while at < 1000:
        words = rng.choice([8, 12, 16, 30, 40, 90])
        start = memory.block(at, words)
        ends = [start + word * rng.randrange(words + 4) for _ in range(3)]
        memory.put(at, *(rng.choice([0, 1, 3, 7, 15, 0xFF, rng.randrange(1 << 8 * word), *ends]) for _ in range(words)))
        head = 2 + shift // word
        if shift:
            memory.put(at + head - shift // word, 8192)
            memory.data[(at + head) * word - 8 : (at + head) * word] = bytes([0, 0, 0, 1]) + (1).to_bytes(4, arch.byteorder)
        memory.put(at + head, rng.choice([4, 8]), rng.choice(TYPES))
        if words > head + 8:
            memory.put(at + head + 5, rng.choice([0, (1 << 8 * word) - 1, *ends, start + (head + 8) * word]))
            place = (at + head) * word
            memory.data[place + 3 * word + 3] = rng.choice([0, 1, 4, 0xFD, 0xFE, 0xFF])  # the state of a generator
            if rng.random() < 0.2:
                memory.put(at + head + 3, start + word * rng.randrange(words))  # the frame of a frame object
            if rng.random() < 0.5:
                memory.data[place + 5 * word : place + 5 * word + 4] = rng.choice([0, 2, 5, 17, 80]).to_bytes(4, arch.byteorder)
        at += words
    return memory


@given(
    seed=st.integers(0, 2**32 - 1),
    arch=st.sampled_from(graphs.ARCHES),
    layout=st.sampled_from(LAYOUTS),
    shift=st.sampled_from((0, 16)),
    kind=st.sampled_from((FRAME, FRAME_OBJECT, BUFFER, ITEMS)),
    lowest=st.sampled_from((0, 1, 3)),
    first=st.sampled_from(((0, 0), (8, 1), (5, 2))),
)
@settings(max_examples=graphs.share(120))
def test_both_engines_agree(seed: int, arch: Arch, layout: FrameLayout, shift: int, kind: int, lowest: int, first: tuple[int, int]) -> None:
    rng = random.Random(seed)
    memory = random_memory(rng, arch, shift)
    cuts = sorted(place * arch.word for place in rng.sample(range(1, 1200), rng.randrange(4)))
    native, pure = (find_unused(engine(arch), memory, layout, shift, cuts, kind, first, lowest) for engine in (graphs.native, graphs.pure))
    assert native == pure


def test_random_memory_has_what_is_compared() -> None:
    for arch in graphs.ARCHES:
        for layout in LAYOUTS:
            found = [find_unused(graphs.native(arch), random_memory(random.Random(seed), arch, 0), layout) for seed in range(80)]
            masks = {mask for one in found for mask in one["masks"]}
            assert sum(mask >> 63 for mask in masks) > 3  # tails of different lengths
            assert any(mask and not mask >> 63 and mask not in MASKS.values() for mask in masks)  # tables of sets
            assert any(one["rest"] for one in found)


ENGINES = [graphs.native, graphs.pure]


@pytest.mark.parametrize("engine", ENGINES)
def test_states_of_a_generator(engine: Any) -> None:
    """A running generator uses its whole stack. A generator that has ended uses none of its variables."""
    arch = X86_64
    for state, variables, expected in ((0xFF, 3, 2 + 6 + 3), (0xFE, 0, 2 + 6), (0, 3, 0), (4, 3, 2 + 6), (0xFF, -1, 0), (0xFF, 500, 0)):
        memory = Memory(arch, 64)
        memory.block(0, 40)
        memory.put(2, 1, GENERATORS, 0, state << 24, 0, variables & 0xFFFFFFFF)
        wanted = MASKS[1] | (EVERY_WORD & -(1 << expected) if expected else 0)
        assert find_unused(engine(arch), memory, LAYOUTS[0])["masks"] == [wanted]


@pytest.mark.parametrize("engine", ENGINES)
def test_frame_objects(engine: Any) -> None:
    """A frame object contains the frame of a function that has ended. The frame of a function that runs is elsewhere, and its place in
    the object is unused."""
    layout = FrameLayout(9, 18, 19, NUMBER, 10)
    begin = 2 + 6  # of the frame, from the start of the block on
    for frame, values, expected in (
        (begin, 3, begin + 9 + 3),
        (begin, 0, begin + 9),
        (begin, -1, 0),
        (60, 3, 0),
        (1, 3, 0),
        (begin, 500, 0),
    ):
        memory = Memory(X86_64, 64)
        memory.block(0, 40)
        memory.put(2, 1, GENERATORS, 0, HEAP + 8 * frame)
        memory.put(begin + 8, values & 0xFFFFFFFF)
        wanted = MASKS[1] | (EVERY_WORD & -(1 << expected) if expected else 0)
        assert find_unused(engine(X86_64), memory, layout, kind=FRAME_OBJECT)["masks"] == [wanted], (frame, values)
        if frame == 60:
            wanted = MASKS[1] | EVERY_WORD & -(1 << begin)
        assert find_unused(engine(X86_64), memory, layout, kind=FRAME_OBJECT, first=(begin, 0))["masks"] == [wanted], (frame, values)


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_buffers(engine: Any, arch: Arch) -> None:
    """A buffer has the number of its values in 32 bits, which may follow 32 other bits, or in one byte."""
    half = arch.byteorder == "big" and arch.word == 8
    for values, expected in ((3, 9), (0, 6), (99, 0)):
        memory = Memory(arch, 64)
        memory.block(0, 20)
        memory.put(2, 1, GENERATORS, 0, values << 32 * half)
        wanted = MASKS[1] | (EVERY_WORD & -(1 << expected) if expected else 0)
        assert find_unused(engine(arch), memory, LAYOUTS[0], kind=BUFFER, first=(6, 1))["masks"] == [wanted], values
        place = (2 + 3) * arch.word
        memory.data[place : place + 4] = bytes([values, 1, 2, 3])
        assert find_unused(engine(arch), memory, LAYOUTS[0], kind=BUFFER, first=(6, 1), lowest=1)["masks"] == [wanted], values


@pytest.mark.parametrize("engine", ENGINES)
def test_too_many_patterns(engine: Any) -> None:
    """If there are too many patterns, the bounds of the unused part are returned, unless it has only zeros."""
    memory = Memory(X86_64, 64)
    memory.block(0, 20)
    memory.put(2, 1, GENERATORS, 0, 3)
    assert find_unused(engine(X86_64), memory, LAYOUTS[0], kind=BUFFER, first=(6, 1), most=0)["rest"] == []
    memory.put(19, HEAP)
    found = find_unused(engine(X86_64), memory, LAYOUTS[0], kind=BUFFER, first=(6, 1), most=0)
    assert (found["masks"], found["rest"]) == ([MASKS[1]], [(HEAP + 9 * 8, HEAP + 20 * 8)])


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_table_of_a_set(engine: Any, arch: Arch) -> None:
    """The table inside a set is unused if the set has a larger one."""
    inside, other = HEAP + 10 * arch.word, HEAP + 40 * arch.word
    for mask, table, grown in ((7, inside, False), (31, other, True), (31, inside, False), (30, other, False), (31, 8, False)):
        memory = Memory(arch, 128)
        memory.block(0, 28)
        memory.block(40, 64)
        memory.put(2, 1, SETS, 0, 0, mask, table)
        assert find_unused(engine(arch), memory, LAYOUTS[0])["masks"][0] == MASKS[2] | (0xFFFF << 10 if grown else 0)


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_words_behind_items(engine: Any, arch: Arch) -> None:
    """Words after the last item are unused if the block is larger. Long tuples have no pattern. The size of a negative int is negative.
    A damaged object may have any size."""
    for items, words, expected in ((0, 8, 5), (2, 8, 7), (3, 8, 0), (4, 8, 0), (57, 80, 62), (58, 80, 0), (-1, 80, 6), (1 << 30, 80, 0)):
        memory = Memory(arch, 128)
        memory.block(0, words)
        memory.put(2, 1, TUPLES, items & arch.mask)
        expectation = ([EVERY_WORD & -(1 << expected) if expected else 0], [])
        found = find_unused(engine(arch), memory, LAYOUTS[0])
        assert (found["masks"], found["rest"]) == expectation
        if 0 < items < 100:  # the number of an int's digits is behind three bits
            memory.put(4, (items << 3 | 2) & arch.mask)
            found = find_unused(engine(arch), memory, LAYOUTS[0], lowest=3)
            assert (found["masks"], found["rest"]) == expectation


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_attributes_behind_an_object(engine: Any, arch: Arch) -> None:
    """A word and the values of attributes follow an object. The first byte of this word is the number of values. If its fourth byte is 0, a
    dictionary has the attributes, and the values after the object are unused. Words after the values are always unused."""
    for head, last, expected in (
        (b"\4\2\1\1", 0, 0),
        (b"\4\2\0\0", 0, 6),
        (b"\3\2\1\1", HEAP, 10),
        (b"\4\2\1\1", HEAP, 11),
        (b"\5\2\1\1", HEAP, 0),
        (b"\4\2\1\1", PLAIN, 0),
    ):
        memory = Memory(arch, 128)
        memory.block(0, 12)
        memory.put(2, 1, PLAIN)
        memory.data[6 * arch.word : 6 * arch.word + 4] = head
        memory.put(11, last)
        assert find_unused(engine(arch), memory, LAYOUTS[0])["masks"] == [EVERY_WORD & -(1 << expected) if expected else 0], (head, last)
