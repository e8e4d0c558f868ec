"""Test which parts of the arenas of Java threads are unused, and how damaged arenas are read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from jvmimage import OBJECTS, THREADS, Image

from findleaks.allocators.memory import Memory
from findleaks.errors import Interrupted
from findleaks.runtimes.jvm import arenas
from findleaks.runtimes.jvm.arenas import unused_parts
from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.base import Range

COUNT, SIZE, FIELD = 9, 0x400, 0x180  # threads, bytes of a JavaThread, offset of its handle area
ARENAS, CHUNKS = OBJECTS + 0xE000, [OBJECTS + 0xE400, OBJECTS + 0xE800]
LENGTH = 216


def make_threads(count: int) -> Image:
    """Return a process with `count` Java threads."""
    image = Image("Serial", [(0, 0, 0)] * 4, [(0, 0, 0)] * count)
    image.sizes["JavaThread"] = SIZE
    return image


def find_parts(
    before: int, header: int, arena: Sequence[int], chunks: Sequence[tuple[int, int]] = ((CHUNKS[1], LENGTH), (0, LENGTH))
) -> object:
    """Return the unused parts for threads that all refer to one arena. `before`: number of words before `_first`. `header`: number of
    words in the header of a chunk."""
    image = make_threads(COUNT)
    for chunk, (following, length) in zip(CHUNKS, chunks):
        image.words(chunk, following, length, *[0] * (header - 2), *[OBJECTS] * (LENGTH // 8))
    image.words(ARENAS, *[5] * before, *arena)
    for number in range(COUNT):
        image.words(THREADS + 0x1000 * (number + 1) + FIELD, ARENAS)
    target = image.target()
    return unused_parts(Tables(target, target.modules()[0]))


@pytest.mark.parametrize(("before", "header"), [(1, 2), (2, 2), (2, 3)])  # JDK 8 to 17, 21, 25
def test_unused_part_of_the_newest_chunk(before: int, header: int) -> None:
    first, last = CHUNKS
    start = last + 8 * header
    assert find_parts(before, header, [first, last, start + 24, start + LENGTH]) == [Range(start + 24, start + LENGTH)]
    assert find_parts(before, header, [first, last, start + LENGTH, start + LENGTH]) == []


def test_damaged_arenas() -> None:
    first, last = CHUNKS
    start = last + 16
    end = start + LENGTH
    assert find_parts(1, 2, [first, last, start - 8, end]) == []  # the used part ends before the chunk
    assert find_parts(1, 2, [first, last, start, end + 8]) == []  # the end is not that of the chunk
    assert find_parts(1, 2, [first, first, first + 16, first + 16 + LENGTH]) == []  # there is a newer chunk
    assert find_parts(1, 2, [first, last, start, end], [(first, LENGTH), (0, LENGTH)]) == []  # a cyclic list
    assert find_parts(1, 2, [8, last, start, end]) == []


@pytest.mark.parametrize(("count", "refer", "found"), [(1, 1, True), (2, 1, False), (2, 2, True), (9, 1, False)])
def test_field_of_one_of_several_threads(count: int, refer: int, found: bool) -> None:
    """All threads have the same fields, so a word of only one of them refers to an arena by chance."""
    image = make_threads(count)
    start, end = CHUNKS[0] + 16, CHUNKS[0] + 16 + LENGTH
    image.words(CHUNKS[0], 0, LENGTH)
    image.words(ARENAS, 5, CHUNKS[0], CHUNKS[0], start, end, 5)
    for number in range(refer):
        image.words(THREADS + 0x1000 * (number + 1) + FIELD, ARENAS)
    target = image.target()
    assert unused_parts(Tables(target, target.modules()[0])) == ([Range(start, end)] if found else [])


def test_parts_that_overlap() -> None:
    """Two damaged arenas have the same chunk. Their unused parts are joined, because searches need disjoint ranges."""
    image = make_threads(2)
    start, end = CHUNKS[0] + 16, CHUNKS[0] + 16 + LENGTH
    image.words(CHUNKS[0], 0, LENGTH)
    for number in range(2):
        image.words(ARENAS + 0x40 * number, 5, CHUNKS[0], CHUNKS[0], start + 8 * number, end, 5)
        image.words(THREADS + 0x1000 * (number + 1) + FIELD, ARENAS, ARENAS + 0x40)
    target = image.target()
    assert unused_parts(Tables(target, target.modules()[0])) == [Range(start, end)]


def test_many_words_that_refer_to_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """All words of the threads refer to an arena whose list of chunks is circular and lacks the newest chunk. The number of reads is
    limited, and Ctrl-C ends them."""
    reads = []
    words = Memory.words
    monkeypatch.setattr(Memory, "words", lambda memory, address, count: reads.append(address) or words(memory, address, count))
    monkeypatch.setattr(arenas, "_MOST_READS", 10_000)
    image, length = make_threads(8), 100
    ring = [OBJECTS + 0xE800 + 16 * number for number in range(length)]
    for place, following in zip(ring, [*ring[1:], ring[0]]):
        image.words(place, following, LENGTH)
    image.words(CHUNKS[0], 0, LENGTH)
    image.words(ARENAS, 5, ring[0], CHUNKS[0], CHUNKS[0] + 16, CHUNKS[0] + 16 + LENGTH, 5)
    for number in range(8):
        image.words(THREADS + 0x1000 * (number + 1) + FIELD, *[ARENAS] * ((SIZE - FIELD) // 8))
    target = image.target()
    tables = Tables(target, target.modules()[0])
    assert unused_parts(tables) == []
    assert reads.count(ring[0]) > 2 and 10_000 <= len(reads) < 10_100
    target.stop_after(3)
    reads.clear()
    with pytest.raises(Interrupted):
        unused_parts(tables)
    assert len(reads) < 5000
