"""The processors of a Go program are distinguished from other slices to which the same code refers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.runtimes.go import processors
from findleaks.runtimes.go.processors import find_processors

VARIABLES, ARRAY, PROCESSORS, NUMBER = 0x10000, 0x20000, 0x30000, 0
TYPES: Any = SimpleNamespace(find=lambda name: 1, offset=lambda structure, name: NUMBER)


def find_all_processors(monkeypatch: pytest.MonkeyPatch, *slices: Sequence[int]) -> Any:
    """Return the processors that are found if the code refers to these slices. Processor `n` is at PROCESSORS + 8 * n."""
    variables, contents = b"", b""
    for one in slices:
        variables += struct.pack("<3Q", ARRAY + len(contents), len(one), len(one))
        contents += struct.pack(f"<{len(one)}Q", *one)
    numbers = struct.pack("<4Q", 0, 1, 2, 3)
    memory = Memory(FakeTarget({VARIABLES: variables, ARRAY: contents, PROCESSORS: numbers}))
    places = [VARIABLES + 24 * number for number in range(len(slices))]
    monkeypatch.setattr(processors, "variables_of_function", lambda target, table, name: places)
    return find_processors(memory, TYPES, [SimpleNamespace()])  # type: ignore[list-item]


def processor(number: int) -> int:
    return PROCESSORS + 8 * number


def test_all_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    one = find_all_processors(monkeypatch, [processor(0), processor(1), 0])
    assert (one.variable, one.array, one.addresses) == (VARIABLES, ARRAY, [processor(0), processor(1)])


@pytest.mark.parametrize("other", [[0], [0, 0], [0xFF], [processor(1)], [processor(0), processor(2)]])
def test_another_slice(other: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks of idle processors are numbers. They may be 0, or addresses that are not mapped."""
    assert find_all_processors(monkeypatch, other) is None
    one = find_all_processors(monkeypatch, other, [processor(0), processor(1)])
    assert one.variable == VARIABLES + 24 and len(one.addresses) == 2
