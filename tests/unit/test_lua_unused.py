"""Test which words of Lua's objects do not count as references."""

from __future__ import annotations

import struct

import pytest
from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.engine.terms import EVERY_WORD, Exclusion
from findleaks.errors import Interrupted
from findleaks.runtimes.lua import unused as lua_unused
from findleaks.runtimes.lua.layout import FUNCTION, LAYOUTS, TABLE, USERDATA, Layout
from findleaks.runtimes.lua.unused import (
    EXCLUSIONS,
    PROTOTYPE_PATTERNS,
    THREAD_PATTERNS,
    VALUE,
    Elements,
    Unused,
    array_length,
    list_unused,
    list_unused_nodes,
    list_unused_values,
)
from findleaks.runtimes.lua.weak import find_weak_words
from findleaks.target.base import Range

NEW, _, _, OLD = LAYOUTS  # Lua 5.4, Lua 5.1
NIL, FALSE, INTEGER, OBJECT = 0, 1, 3, 0x45
START = 0x10000


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
        (NEW, 72, [0, head(USERDATA, 1), 8], [(4, 5), (8, 9)]),  # gclist; 40 + 16 + 8 bytes
        (OLD, 72, [0, head(USERDATA), 0, 0, 17], [(8, 9)]),
        (NEW, 40, [0, head(9), 0, 0x5000, OBJECT], [(4, 5)]),  # an upvalue
        (NEW, 40, [0, head(9), 0, 0x5000, NIL], [(3, 4), (4, 5)]),
        (OLD, 40, [0, head(10), 0, 0x5000, NIL], [(3, 4)]),
        (OLD, 40, [0, head(10), 0, 0x5000, TABLE], []),
    ],
)
def test_objects(layout: Layout, size: int, words: list[int], unused: list[tuple[int, int]]) -> None:
    assert list_unused(layout, size, words + [0] * (9 - len(words)), False) == unused


def test_words_of_the_collector() -> None:
    """Stale bytes follow the type of an object. A prototype has a link of a list of the collector."""
    for pattern in range(2, len(EXCLUSIONS)):
        assert EXCLUSIONS[pattern].words & (6 if pattern == THREAD_PATTERNS["5.4"] else 3) in (3, 6), pattern
    last = {version: EXCLUSIONS[pattern].words.bit_length() - 1 for version, pattern in PROTOTYPE_PATTERNS.items()}
    assert last == {"5.1": 13, "5.2": 14, "5.3": 14, "5.4": 15}  # gclist


def elements(data: bytes, step: int = 2) -> Elements:
    return Elements(Memory(FakeTarget({START: data})), START, len(data), step)


def find_unused(data: bytes) -> Unused:
    return Unused([Exclusion(0), Exclusion(EVERY_WORD)], Memory(FakeTarget({START: data})))


def test_values() -> None:
    data = elements(values(OBJECT, NIL, FALSE, OBJECT))
    assert list_unused_values(OLD, data, 9) == [(2, 6)] and data.words_after(72) == [(8, 9)]
    assert list_unused_values(NEW, data, 9) == [(2, 6), (1, 2), (7, 8)] and data.words_after(64) == []
    assert list_unused_values(NEW, data, 9, most_slots=1) == [(2, 6), (1, 2)]


def test_nodes() -> None:
    """The key of a node is a reference if the value is false, but not if the value is nil."""
    data = elements(b"".join(struct.pack("<QQQ", 0x5000, one, 0x6000) for one in (OBJECT, NIL, NIL, FALSE)), 3)
    assert list_unused_nodes(data, 9) == [(3, 9), (9, 10)] and data.words_after(104) == [(12, 13)]


@pytest.mark.parametrize("step", [2, 3, 5])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_slices(step: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs do not depend on whether a part of memory is read in slices."""
    kinds = [NIL, NIL, OBJECT, NIL, OBJECT, OBJECT, NIL, NIL, NIL, NIL, NIL, NIL, OBJECT, NIL]
    data = b"".join(struct.pack("<QQ", 0x5000, one).ljust(8 * step, b"\0") for one in kinds)
    monkeypatch.setattr(lua_unused, "_SLICE", 8 * step * size + 8)
    found = list_unused_nodes(elements(data, step), 99)
    assert found == [(step * first, step * end) for first, end in ((0, 2), (3, 4), (6, 12), (13, 14))]


def test_slices_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run ends at memory that is unreadable. If the beginning is unreadable, no words are excluded."""
    monkeypatch.setattr(lua_unused, "_SLICE", 4096)
    memory = Memory(FakeTarget({START: bytes(4096), START + 8192: bytes(4096)}))
    assert list_unused_values(OLD, Elements(memory, START, 12288, 2), 9) == [(0, 512), (1024, 1536)]
    unused = Unused([Exclusion(0)], memory)
    assert unused.part_pattern(OLD, START + 4096, 8192, 8192, 2) == 0 and not unused.ranges


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lua_unused, "_SLICE", 4096)
    target = FakeTarget({START: bytes(8192)}, stop_after=1)
    with pytest.raises(Interrupted):
        Unused([Exclusion(0)], Memory(target)).part_pattern(OLD, START, 8192, 8192, 2)


def test_large_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of runs has a limit. In further tables, only the words that patterns describe are excluded."""
    monkeypatch.setattr(lua_unused, "_MOST_RANGES", 40)
    data = values(OBJECT, NIL) * 1000
    target = FakeTarget({START: data})
    unused = Unused([Exclusion(0)], Memory(target))
    listed: list[int] = []
    real = list_unused_values
    monkeypatch.setattr(lua_unused, "list_unused_values", lambda *words: [listed.append(len(found := real(*words))), found][1])
    number = unused.part_pattern(OLD, START, len(data), len(data), 2)
    mask = sum(0b1100 << 4 * one for one in range(15)) | 0b11 << 62 & EVERY_WORD
    assert unused.is_full and listed == [63 + 40]
    # The run at word 62 has no pattern, because bit 63 stands for all words after it.
    assert unused.exclusions[number].words == mask & (1 << 62) - 1
    assert unused.ranges == [Range(START + 8 * at, START + 8 * at + 16) for at in range(62, 62 + 40 * 4, 4)]
    sizes: list[int] = []
    read = target.read
    monkeypatch.setattr(target, "read", lambda address, size: [sizes.append(size), read(address, size)][1])
    again = unused.part_pattern(OLD, START, len(data), len(data), 2)
    assert unused.exclusions[again].words == mask & (1 << 63) - 1 and max(sizes) <= 512 and len(unused.ranges) == 40


def nodes(*pairs: tuple[int, int], step: int) -> bytes:
    """Return nodes with these types of value and key. A node of Lua 5.4 has 3 words."""
    heads = (struct.pack("<QQQQ", 0x5000, one | (key << 8 if step == 3 else 0), 0x6000, key) for one, key in pairs)
    return b"".join(head[:24] if step == 3 else head.ljust(8 * step, b"\0") for head in heads)


LIGHT, NUMBER, STRING = 2, 3, 4


@pytest.mark.parametrize("step", [3, 4, 5])
@pytest.mark.parametrize(
    ("pairs", "mode", "columns", "places"),
    [
        ([(TABLE, STRING), (NIL, NIL)], "v", [0], []),
        ([(TABLE, TABLE), (FUNCTION, USERDATA)], "kv", [0, 2], []),
        ([(TABLE, TABLE), (STRING, TABLE)], "kv", [2], [(0, 0)]),
        ([(TABLE, LIGHT), (TABLE, TABLE)], "kv", [0], [(1, 2)]),  # a light userdata may be the address of a block of malloc
        ([(STRING, NUMBER), (NIL, STRING)], "kv", [], []),
    ],
)
def test_weak_words(step: int, pairs: list[tuple[int, int]], mode: str, columns: list[int], places: list[tuple[int, int]]) -> None:
    memory = Memory(FakeTarget({START: nodes(*pairs, step=step)}))
    found = find_weak_words(memory, START, step, len(pairs), mode)
    assert found.columns == columns and list(found.places) == [START + 8 * (step * number + word) for number, word in places]


@pytest.mark.parametrize("count", [10, 5000])
@pytest.mark.parametrize(("mode", "key"), [("v", STRING), ("kv", TABLE)])
def test_patterns_of_weak_tables(mode: str, key: int, count: int) -> None:
    """In large tables, one mask excludes the weak words of all nodes. Each unused key that is not weak is excluded by a range."""
    data = nodes((TABLE, key), (NIL, key), step=3) * (count // 2)
    unused, memory = find_unused(data), Memory(FakeTarget({START: data}))
    plain = unused.weak_pattern(find_weak_words(memory, START, 3, count, mode), START, 3, count)
    pattern = unused.exclusions[unused.part_pattern(NEW, START, len(data) + 8, len(data), 3, plain)]
    excluded = {at for at in range(3 * count) if pattern.words & pattern.bit(at)}
    excluded |= {(at - START) // 8 for one in unused.ranges for at in range(one.start, one.end, 8)}
    for at in range(count):
        assert 3 * at in excluded and (3 * at + 2 in excluded) == (mode == "kv" or at % 2 == 1)
    assert len(unused.ranges) == (0 if count == 10 else 1 + (mode == "v") * count // 2)  # one for the end of the block


def test_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks do not use up the ranges of tables. The words above the top of a stack are always excluded."""
    monkeypatch.setattr(lua_unused, "_MOST_STACK_RANGES", 3)
    data = values(*[OBJECT, NIL] * 50)
    unused, size, top = find_unused(data), len(data), START + len(data) - 160
    rest = Range(top, START + size)
    first = unused.stack_pattern(OLD, START, size, top)
    assert unused.is_full and unused.ranges == [rest, *(Range(START + 8 * at, START + 8 * at + 16) for at in (62, 66, 70))]
    second = unused.stack_pattern(OLD, START, size, top)
    assert unused.ranges[4:] == [rest] and unused.exclusions[second].words & (1 << 62) - 1 == unused.exclusions[first].words
    unused.part_pattern(OLD, START, size, size, 2)
    assert len(unused.ranges) == 5 + 35
    empty = find_unused(data)
    assert empty.stack_pattern(OLD, START, size, START) == 0 and empty.ranges == [Range(START, START + size)]


@pytest.mark.parametrize("top", [8, 16, 48])
def test_stack_inside_a_block(top: int) -> None:
    """Only the words of the stack itself, and those above its top, are excluded. No words precede a top below the stack."""
    data = values(OBJECT, OBJECT, NIL, OBJECT, NIL, NIL, OBJECT)
    unused = find_unused(data)
    unused.add_stack(START + VALUE, START + top, START + len(data) - 1)
    wanted = [Range(START + 32, START + 48)] if top == 48 else []
    assert unused.ranges == [Range(START + top, START + len(data) - 8), *wanted]


@pytest.mark.parametrize(("flags", "length", "found"), [(0, 5, 5), (0x80, 5, 8), (0x80, 8, 8), (0x80, 0, 0)])
def test_length_of_an_array(flags: int, length: int, found: int) -> None:
    assert array_length(NEW, [0, head(TABLE, flags) | length << 32]) == found


def test_patterns() -> None:
    """Equal masks share a pattern. Words are listed as ranges if no mask can describe them, or if there are too many masks."""
    unused = Unused([Exclusion(0), Exclusion(EVERY_WORD), Exclusion(1)], Memory(FakeTarget({})))
    assert unused.pattern(2, 0x1000, 56, []) == 2
    assert unused.pattern(2, 0x1000, 56, [(6, 7)]) == unused.pattern(2, 0x2000, 56, [(6, 8)]) == 3
    assert unused.exclusions[3].words == 1 | EVERY_WORD << 6 & EVERY_WORD
    assert unused.pattern(0, 0x3000, 56, [(1, 3)]) == 4 and unused.exclusions[4].words == 0b110
    assert unused.pattern(0, 0x4000, 8000, [(10, 1000)]) == 5 and unused.ranges == []
    assert unused.pattern(0, 0x5000, 8000, [(62, 70), (100, 101)]) == 0
    assert unused.ranges == [Range(0x5000 + 496, 0x5000 + 560), Range(0x5000 + 800, 0x5000 + 808)]
    for number in range(300):
        unused.pattern(0, 0x6000, 56 * 8, [(number % 40, number % 40 + 1), (41 + number // 40, 42 + number // 40)])
    assert len(unused.exclusions) == 255 and len(unused.ranges) > 4
    assert not unused.is_full
