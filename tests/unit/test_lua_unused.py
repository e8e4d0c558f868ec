"""Test which words of Lua's objects do not count as references."""

from __future__ import annotations

import struct

import pytest

from findleaks.engine.terms import EVERY_WORD, Exclusion
from findleaks.runtimes.lua.layout import FUNCTION, LAYOUTS, TABLE, USERDATA, Layout
from findleaks.runtimes.lua.unused import Unused, array_length, list_unused, list_unused_nodes, list_unused_values
from findleaks.target.base import Range

NEW, _, _, OLD = LAYOUTS  # Lua 5.4, Lua 5.1
NIL, FALSE, INTEGER, OBJECT = 0, 1, 3, 0x45


def head(kind: int, *further: int) -> int:
    """Return the second word of an object: a byte with its type, a byte with the bits of the collector, and the bytes `further`."""
    return int.from_bytes(bytes((kind, 0, *further)).ljust(8, b"\0"), "little")


def values(*types: int) -> bytes:
    return b"".join(struct.pack("<QQ", 0x5000, 0x7000 | one) for one in types)


@pytest.mark.parametrize(
    ("layout", "size", "words", "unused"),
    [
        (NEW, 56, [0, head(TABLE)], []),
        (NEW, 72, [0, head(TABLE)], [(7, 9)]),
        (OLD, 72, [0, head(TABLE)], [(8, 9)]),
        (NEW, 56, [0, head(FUNCTION, 2)], [(6, 7)]),  # Its two variables end after 48 bytes.
        (OLD, 72, [0, head(FUNCTION, 0, 3)], [(8, 9)]),
        (NEW, 56, [0, head(USERDATA), 10], [(6, 7)]),  # 32 + 10 bytes
        (NEW, 72, [0, head(USERDATA, 1), 8], [(8, 9)]),  # 40 + 16 + 8 bytes
        (OLD, 72, [0, head(USERDATA), 0, 0, 17], [(8, 9)]),
        (NEW, 40, [0, head(9), 0, 0x5000, OBJECT], [(4, 5)]),  # an upvalue
        (NEW, 40, [0, head(9), 0, 0x5000, NIL], [(3, 4), (4, 5)]),
        (OLD, 40, [0, head(10), 0, 0x5000, NIL], [(3, 4)]),
        (OLD, 40, [0, head(10), 0, 0x5000, TABLE], []),
    ],
)
def test_objects(layout: Layout, size: int, words: list[int], unused: list[tuple[int, int]]) -> None:
    assert list_unused(layout, size, words + [0] * (9 - len(words)), False) == unused


def test_values() -> None:
    data = values(OBJECT, NIL, FALSE, OBJECT)
    assert list_unused_values(OLD, data, 72) == [(2, 6), (8, 9)]
    assert list_unused_values(NEW, data, 64) == [(2, 6), (1, 2), (7, 8)]
    assert list_unused_values(NEW, data, 64, most=1) == [(2, 6), (1, 2)]


def test_nodes() -> None:
    """The key of a node is a reference if the value is false, but not if the value is nil."""
    data = b"".join(struct.pack("<QQQ", 0x5000, one, 0x6000) for one in (OBJECT, NIL, NIL, FALSE))
    assert list_unused_nodes(data, 104, 3) == [(3, 9), (9, 10), (12, 13)]


@pytest.mark.parametrize(("flags", "length", "found"), [(0, 5, 5), (0x80, 5, 8), (0x80, 8, 8), (0x80, 0, 0)])
def test_length_of_an_array(flags: int, length: int, found: int) -> None:
    assert array_length(NEW, [0, head(TABLE, flags) | length << 32]) == found


def test_patterns() -> None:
    """Equal masks share a pattern. Words are listed as ranges if no mask can describe them, or if there are too many masks."""
    unused = Unused([Exclusion(0), Exclusion(EVERY_WORD), Exclusion(1)])
    assert unused.pattern(2, 0x1000, 56, []) == 2
    assert unused.pattern(2, 0x1000, 56, [(6, 7)]) == unused.pattern(2, 0x2000, 56, [(6, 8)]) == 3
    assert unused.exclusions[3].words == 1 | EVERY_WORD << 6 & EVERY_WORD
    assert unused.pattern(0, 0x3000, 56, [(1, 3)]) == 4 and unused.exclusions[4].words == 0b110
    assert unused.pattern(0, 0x4000, 8000, [(10, 1000)]) == 5 and unused.ranges == []
    assert unused.pattern(0, 0x5000, 8000, [(62, 70), (100, 101)]) == 0
    assert unused.ranges == [Range(0x5000 + 496, 0x5000 + 560), Range(0x5000 + 800, 0x5000 + 808)]
    for number in range(300):
        unused.pattern(0, 0x6000, 56 * 8, [(number % 40, number % 40 + 1), (41 + number // 40, 42 + number // 40)])
    assert len(unused.exclusions) == 256 and len(unused.ranges) > 4
    assert not unused.is_full
