"""Unused segments of the JVM's marking stack keep no object alive."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from jvmimage import HEAP, OBJECTS, STATICS, Image

from findleaks.engine.reference.engine import PureEngine
from findleaks.runtimes.jvm.marking_stacks import unused_segments
from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.base import Range

VARIABLE = STATICS + 0x7000
SEGMENTS = [OBJECTS + 0x8000 + 0x200 * number for number in range(3)]
ITEMS, UNLIMITED = 30, (1 << 64) - 16  # a multiple of ITEMS


def members(unused: int, items: int = ITEMS, most_unused: int = 4, current: int = ITEMS, previous: int = 0) -> list[int]:
    return [items, UNLIMITED, most_unused, current, previous, unused, 0, SEGMENTS[0]]


@pytest.mark.parametrize(
    ("stack", "item_words", "padding", "count"),
    [
        (members(3), 1, 0, 3),
        (members(2), 1, 24, 2),  # only so many are in the list
        (members(3), 2, 0, 3),
        (members(3), 1, 48, 0),  # blocks of another size
        (members(0), 1, 0, 0),
        (members(5), 1, 0, 0),  # more than the Stack may keep
        (members(3, current=ITEMS + 1), 1, 0, 0),
        (members(3, previous=ITEMS - 1), 1, 0, 0),
        (members(3, items=1 << 20), 1, 0, 0),
    ],
)
def test_unused_segments(stack: list[int], item_words: int, padding: int, count: int) -> None:
    """The first member is the number of items in a segment. The last word of a segment refers to the next one."""
    image, length = Image("Serial", [(0, 0, 0)] * 4), 8 * ITEMS * item_words
    for segment, following in zip(SEGMENTS, [*SEGMENTS[1:], 0]):
        image.words(segment, *[HEAP + 8] * (ITEMS * item_words), following)
    image.words(VARIABLE, *stack)
    target = image.target()
    found = {segment: (0, segment, length + 8 + padding, 0) for segment in SEGMENTS}
    directory: Any = SimpleNamespace(ranges=lambda: [Range(SEGMENTS[0], SEGMENTS[-1] + length)], blocks=SimpleNamespace(lookup=found.get))
    tables = Tables(target, target.modules()[0])
    read = list(unused_segments(tables, PureEngine(target.arch), [Range(VARIABLE, VARIABLE + 64)], directory))
    assert read == [Range(segment, segment + length) for segment in SEGMENTS[:count]]


def test_a_damaged_list_ends() -> None:
    """The segment refers to itself."""
    image = Image("Serial", [(0, 0, 0)] * 4)
    image.words(SEGMENTS[0], *[HEAP + 8] * ITEMS, SEGMENTS[0])
    image.words(VARIABLE, *members(4))
    target = image.target()
    found = {SEGMENTS[0]: (0, SEGMENTS[0], 8 * ITEMS + 8, 0)}
    directory: Any = SimpleNamespace(ranges=lambda: [Range(SEGMENTS[0], SEGMENTS[0] + 8)], blocks=SimpleNamespace(lookup=found.get))
    tables = Tables(target, target.modules()[0])
    read = list(unused_segments(tables, PureEngine(target.arch), [Range(VARIABLE, VARIABLE + 64)], directory))
    assert set(read) == {Range(SEGMENTS[0], SEGMENTS[0] + 8 * ITEMS)}
