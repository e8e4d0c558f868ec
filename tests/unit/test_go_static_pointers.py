"""Variables of Go through which code reaches other variables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from findleaks.runtimes.go.static_pointers import StaticPointers
from findleaks.target.base import Range

DATA = Range(0x10000, 0x20000)
TREE, ROOT, TABLE = 0x11000, 0x12000, 0x14000


def make_pointers() -> StaticPointers:
    memory: Any = None  # not read
    program: Any = SimpleNamespace(types=None, modules=[SimpleNamespace(data=DATA, bss=Range(DATA.end, DATA.end))])
    return StaticPointers(memory, program)


def test_owners_of_a_field_are_followed() -> None:
    """A variable refers to one without a name, which refers to another one, whose second word is asked for."""
    words = [(TABLE, TREE), (TREE + 8, ROOT), (TREE, 0x900000)]
    assert make_pointers().find_owners([ROOT + 8], words) == {ROOT + 8: [TREE + 8, TABLE]}


def test_tables_that_refer_to_one_variable_are_not_searched_for_each_field() -> None:
    words = [(TABLE + 8 * number, TREE) for number in range(4096)]
    found = make_pointers().find_owners(range(TREE, TREE + 4096, 8), words)
    assert len(found) == 512 and max(map(len, found.values())) < 64
