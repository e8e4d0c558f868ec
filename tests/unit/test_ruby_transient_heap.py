"""Ruby's transient heap in synthetic memory: an arena of 1,024 blocks, most of them unused."""

from __future__ import annotations

import struct
from typing import Optional

import pytest
from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.runtimes.ruby.transient_heap import TransientHeap, find_transient_heap
from findleaks.target.base import Range

DATA, ARENA, BLOCK, SIZE = 0x10000, 0x7F0000000000, 32 << 10, 32 << 20
VARIABLE = [ARENA + BLOCK, 0, ARENA + 2 * BLOCK, 3, 2, 0, 0, ARENA]
"""Words of Ruby's variable: the first blocks of the lists of used, marked and free blocks; four numbers; the address of the arena."""


def find(variable: list[int], indices: dict[int, int], room: int = SIZE) -> Optional[TransientHeap]:
    """Return the transient heap of a process with this variable. `indices`: the member `index` of some blocks, by the
    number of the block."""
    arena = bytearray(room)
    for number, index in indices.items():
        struct.pack_into("<HhhH", arena, number * BLOCK, index, -1, 0, 0)
    data = bytearray(0x1000)
    struct.pack_into(f"<{len(variable)}Q", data, 0x100, *variable)
    target = FakeTarget({DATA: bytes(data), ARENA: bytes(arena)})
    return find_transient_heap(target, Memory(target), [Range(DATA, DATA + len(data))])


def test_all_memory_except_allocations_is_unused() -> None:
    found = find(VARIABLE, {0: 0, 1: 64, 3: 160})
    assert found is not None and found.arena == (ARENA, ARENA + SIZE)
    used = [(ARENA + BLOCK + 16, ARENA + BLOCK + 80), (ARENA + 3 * BLOCK + 16, ARENA + 3 * BLOCK + 176)]
    assert found.dead == [(ARENA, used[0][0]), (used[0][1], used[1][0]), (used[1][1], ARENA + SIZE)]


def test_an_index_beyond_its_block_is_limited() -> None:
    found = find(VARIABLE, {1: 0xFFFF})
    assert found is not None and found.dead == [(ARENA, ARENA + BLOCK + 16), (ARENA + 2 * BLOCK, ARENA + SIZE)]


@pytest.mark.parametrize(
    ("variable", "room"),
    [
        ([*VARIABLE[:7], ARENA + 8], SIZE),  # not aligned
        ([DATA, *VARIABLE[1:]], SIZE),  # a list outside of the arena
        ([0, 0, 0, *VARIABLE[3:]], SIZE),  # no list
        (VARIABLE, SIZE - 0x1000),  # a part of the arena is not mapped
    ],
)
def test_other_words_are_no_transient_heap(variable: list[int], room: int) -> None:
    assert find(variable, {1: 64}, room) is None
