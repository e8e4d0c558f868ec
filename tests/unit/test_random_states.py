"""States of glibc's random numbers, which cores lack: they are recognised only by libc's array of pointers to them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from fake import FakeTarget

from findleaks.libc.random_states import random_states
from findleaks.target.base import Module, Range

PAGE, DATA, TABLE, STATES = 4096, 0x7F0000000000, 0x7F1000000000, 0x7F2000000000
SIZE, A_PAGE = 192, PAGE // 192


def make_states(pages: int = 1) -> list[int]:
    return [STATES + page * PAGE + at * SIZE for page in range(pages) for at in range(A_PAGE)]


def find_states(table: Sequence[int], unused: int, total: int, capacity: int = 512, path: str = "/lib/libc.so.6") -> list[Range]:
    words = [7, 0, TABLE, unused, total, capacity, 1]
    memory = {DATA: struct.pack("<7Q", *words).ljust(PAGE, b"\0"), TABLE: struct.pack(f"<{len(table)}Q", *table).ljust(PAGE, b"\0")}
    target = FakeTarget(memory)
    target.modules = lambda: [Module(path, 0, DATA, DATA + PAGE)]
    return random_states(target)


@pytest.mark.parametrize("path", ["/lib/libc.so.6", "/lib/libc-2.41.so", "/srv/static"])
def test_pages_full_of_states(path: str) -> None:
    assert find_states(make_states(), A_PAGE - 1, A_PAGE, path=path) == [(STATES, STATES + PAGE)]
    assert find_states(make_states(3), 0, 3 * A_PAGE) == [(STATES, STATES + 3 * PAGE)]


def test_states_that_threads_gave_back_in_another_order() -> None:
    order = make_states(2)
    order[30:] = order[:12]  # states that threads released are after the unused ones
    order[:30] = order[29::-1]
    assert find_states(order, 30, 2 * A_PAGE) == [(STATES, STATES + 2 * PAGE)]


def test_other_arrays_of_pointers() -> None:
    cells = make_states()
    assert find_states(cells, A_PAGE + 1, A_PAGE) == [], "more unused states than there are"
    assert find_states(cells, 3, A_PAGE, A_PAGE - 1) == [], "more states than the array can have"
    assert find_states(cells, 3, A_PAGE, A_PAGE) == [], "not a whole number of pages"
    assert find_states(cells[:-1], 3, A_PAGE - 1) == [], "no full page"
    assert find_states([cells[0]] * A_PAGE, 3, A_PAGE) == [], "one pointer"
    assert find_states([one + 8 * (one != STATES) for one in cells], 3, A_PAGE) == [], "a list with a head"
    assert find_states([STATES + 16 * at for at in range(PAGE // 16)], 3, PAGE // 16) == [], "too small for states"
    assert find_states(make_states(), 3, A_PAGE, 1 << 20) == [], "too large"


def test_an_array_that_cannot_be_read() -> None:
    assert find_states([], 3, 512 + A_PAGE, 1024) == []
