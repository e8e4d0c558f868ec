"""The list of goroutines is the longest slice whose elements all are goroutines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import pytest

from findleaks.runtimes.go.goroutines import _G, Goroutines

ARRAY, FIRST, SIZE, STACK = 0x10000, 0x100000, 0x200, 0x1000
LAYOUT = _G(SIZE, {"goid": 0x98, "atomicstatus": 0x90})
WAITING = 4


class Words:
    """Memory that consists of single words."""

    def __init__(self, goroutines: int) -> None:
        self.found: dict[int, int] = {}
        for index in range(goroutines):
            at = FIRST + SIZE * index
            self.found[ARRAY + 8 * index] = at
            self.found |= {at: STACK * (index + 1), at + 8: STACK * (index + 2), at + 0x90: WAITING, at + 0x98: index + 1}

    def word(self, address: int) -> Optional[int]:
        return self.found.get(address)

    def words(self, address: int, count: int) -> Optional[Sequence[int]]:
        found = [self.found.get(address + 8 * index) for index in range(count)]
        return None if None in found else tuple(one for one in found if one is not None)


def check(memory: Words, count: int) -> int:
    reader = object.__new__(Goroutines)
    reader._memory = memory  # type: ignore[assignment]
    return len(reader._check_elements(LAYOUT, ARRAY, count))


@pytest.mark.parametrize("count", [1, 5, 64, 65, 1000])
def test_all_elements_are_goroutines(count: int) -> None:
    assert check(Words(count), count) == count


@pytest.mark.parametrize("count", [900, 1009, 4096, 33_000_000])
def test_a_former_array_with_another_number(count: int) -> None:
    """Only the first 800 elements are goroutines. The words that follow are zeros, and those of another object."""
    memory = Words(800)
    for index in range(800, 5000):
        memory.found[ARRAY + 8 * index] = ARRAY if index % 2 else 0
    assert check(memory, count) == 0


def test_goroutines_that_cannot_be_read() -> None:
    memory = Words(1000)
    for index in range(600, 800):
        at = FIRST + SIZE * index
        for offset in (0, 8, 0x90, 0x98):
            del memory.found[at + offset]
    assert check(memory, 1000) == 1000
