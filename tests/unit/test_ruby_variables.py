"""Ruby's tables, lengths and names in synthetic memory, intact and damaged."""

from __future__ import annotations

import random
import struct

import pytest
from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.runtimes.ruby import census as c
from findleaks.runtimes.ruby import tables
from findleaks.runtimes.ruby.tables import (
    DELETED,
    EMBEDDED,
    MOST_ITEMS,
    ST_TABLE,
    Elements,
    Tables,
    elements,
    hash_length,
    id_table,
    st_entries,
)

BASE = 0x10000


def memory(*parts: tuple[int, tuple[int, ...]]) -> Memory:
    """Return 64 KiB of zeros at BASE, with words at these offsets."""
    data = bytearray(0x10000)
    for offset, words in parts:
        struct.pack_into(f"<{len(words)}Q", data, offset, *words)
    return Memory(FakeTarget({BASE: bytes(data)}))


def make_table(capacity: int, number: int, used: int) -> tuple[int, int, int]:
    """Return the head of an id table whose items are at offset 0x100."""
    return capacity | number << 32, used, BASE + 0x100


def test_an_id_table() -> None:
    items = (7 | 1 << 32, 0xAAA, 0, 0, 9, 0xBBB, 0, 0)
    found = id_table(memory((0, make_table(4, 2, 2)), (0x100, items)), BASE)
    assert found == [(7, 0xAAA, BASE + 0x108), (9, 0xBBB, BASE + 0x128)]


@pytest.mark.parametrize(
    "head",
    [
        make_table(4, 3, 3),
        make_table(4, 2, 1),
        make_table(3, 2, 2),
        make_table(1 << 24, 2, 2),
        make_table(MOST_ITEMS, 2, 2),
        (4 | 2 << 32, 2, 0),
        (4 | 2 << 32, 2, 0x3),
    ],
    ids=["count", "used", "capacity", "giant", "unreadable", "null", "odd"],
)
def test_memory_that_is_no_id_table(head: tuple[int, int, int]) -> None:
    assert not id_table(memory((0, head), (0x100, (7, 1, 0, 0, 9, 2, 0, 0))), BASE)


def test_deleted_entries_of_an_st_table_are_left_out() -> None:
    head = (0, 0, 2, 0, 1, 4, BASE + 0x200)
    rows = (1, 2, 3, 5, 10, 11, DELETED, 20, 21, 5, 30, 31)
    found = st_entries(memory((0, head), (0x200, rows)), BASE, 100)
    assert [(key, value) for key, value, _ in found] == [(10, 11), (30, 31)]
    assert found[1].address == BASE + 0x200 + 3 * 24 + 16
    assert not st_entries(memory((0, head), (0x200, rows)), BASE, 2), "more elements than the caller reads"


@pytest.mark.parametrize("long", [False, True])
def test_lengths_of_arrays(long: bool) -> None:
    for length in range(100 if long else 4):
        embedded = memory((0, (c.T_ARRAY | EMBEDDED | length << 15, 0)))
        assert elements(embedded, BASE, long) == Elements(BASE + 16, length)
    outside = (c.T_ARRAY, 0, 500, 512, BASE + 0x400)
    assert elements(memory((0, outside)), BASE, long) == Elements(BASE + 0x400, 500)
    for words in ((c.T_ARRAY, 0, 1 << 60, 0, BASE), (c.T_ARRAY, 0, 0x10000, 0, BASE + 0x400), (c.T_STRING, 0, 5, 5, BASE)):
        assert elements(memory((0, words)), BASE, long) is None


@pytest.mark.parametrize("long", [False, True])
def test_lengths_of_hashes(long: bool) -> None:
    assert hash_length(memory((0, (c.T_HASH | 5 << 16, 0, 0))), BASE, long) == 5
    head = (0, 0, 90, 0, 10, 110, BASE + 0x400)
    where = 24 if long else 0x80
    slot = (c.T_HASH | ST_TABLE, 0, 0 if long else BASE + 0x80)
    assert hash_length(memory((0, slot), (where, head)), BASE, long) == 90
    for wrong in ((0, 0, 101, 0, 10, 110, BASE + 0x400), (0, 0, 90, 0, 10, 1 << 50, BASE), (0, 0, 90, 0, 10, 110, BASE + 0xFFF0)):
        assert hash_length(memory((0, slot), (where, wrong)), BASE, long) is None


def test_tables_of_a_process_are_read_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is not a table does not count towards the limit."""
    monkeypatch.setattr(tables, "ALL_ITEMS", 10)
    items = (7 | 1 << 32, 0xAAA, 0, 0, 9, 0xBBB, 0, 0)
    head = (0, 0, 2, 0, 1, 3, BASE + 0x200)
    found = Tables(
        memory((0, make_table(4, 2, 2)), (0x80, head), (0x100, items), (0x200, (1, 2, 3, 5, 10, 11, 5, 30, 31)), (0x300, (1 << 31, 0, 0)))
    )
    for _ in range(20):
        assert not found.ids(BASE + 0x300)
    assert len(found.ids(BASE)) == 2
    assert len(found.entries(BASE + 0x80, 100)) == 2
    assert len(found.ids(BASE)) == 2
    assert not found.ids(BASE)
    assert not found.entries(BASE + 0x80, 100)


def test_random_words_raise_no_error() -> None:
    chance = random.Random(7)
    small = [*range(64), BASE, BASE + 8, BASE + 0x100, 1 << 63, DELETED]
    for _ in range(2000):
        words = tuple(chance.choice(small) | chance.choice((0, 0, 1 << 32, EMBEDDED, ST_TABLE)) & DELETED for _ in range(40))
        noise = memory((0, words))
        for place in (BASE, BASE + 8, BASE + 3, 0, 1 << 63):
            id_table(noise, place)
            st_entries(noise, place, 64)
            elements(noise, place, True)
            hash_length(noise, place, False)
