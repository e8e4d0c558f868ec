"""Test which parts of the arenas of Java threads are unused, and how damaged arenas are read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from jvmimage import OBJECTS, THREADS, Image

from findleaks.runtimes.jvm.arenas import unused_parts
from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.base import Range

COUNT, SIZE, FIELD = 9, 0x400, 0x180  # threads, bytes of a JavaThread, offset of its handle area
ARENAS, CHUNKS = OBJECTS + 0xE000, [OBJECTS + 0xE400, OBJECTS + 0xE800]
LENGTH = 216


def parts(before: int, header: int, arena: Sequence[int], chunks: Sequence[tuple[int, int]] = ((CHUNKS[1], LENGTH), (0, LENGTH))) -> object:
    """Return the unused parts for threads that all refer to one arena. `before`: number of words before `_first`. `header`: number of
    words in the header of a chunk."""
    image = Image("Serial", [(0, 0, 0)] * COUNT, [(0, 0, 0)])
    image.sizes["JavaThread"] = SIZE
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
    assert parts(before, header, [first, last, start + 24, start + LENGTH]) == [Range(start + 24, start + LENGTH)]
    assert parts(before, header, [first, last, start + LENGTH, start + LENGTH]) == []


def test_damaged_arenas() -> None:
    first, last = CHUNKS
    start = last + 16
    end = start + LENGTH
    assert parts(1, 2, [first, last, start - 8, end]) == []  # the used part ends before the chunk
    assert parts(1, 2, [first, last, start, end + 8]) == []  # the end is not that of the chunk
    assert parts(1, 2, [first, first, first + 16, first + 16 + LENGTH]) == []  # there is a newer chunk
    assert parts(1, 2, [first, last, start, end], [(first, LENGTH), (0, LENGTH)]) == []  # a cycle
    assert parts(1, 2, [8, last, start, end]) == []
