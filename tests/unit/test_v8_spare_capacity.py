"""The unused capacity of arrays, in a heap that the test builds from words."""

from __future__ import annotations

import struct
from array import array
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import fake
import graphs

from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.terms import Kind
from findleaks.runtimes.v8.spare_capacity import measure_spare_capacity

if TYPE_CHECKING:
    from findleaks.runtimes.v8.object_graph import V8Graph

ARRAY, ELEMENTS, OTHER = 0x10000, 0x10020, 0x20000
ARRAY_MAP, ELEMENTS_MAP = 0x7001, 0x7101
CAPACITY = 17


def measure_arrays(elements: int, capacity: int) -> tuple[int, int]:
    """Return the number of arrays with unused capacity, and the unused bytes. A heap has an array of one element, whose elements are at an
    address, and an object with elements. `capacity`: the number in words outside of V8's heap that look like an object with elements."""
    heap = struct.pack("<4Q", ARRAY_MAP, 0, elements + 1, 1 << 32) + struct.pack("<2Q", ELEMENTS_MAP, CAPACITY << 32).ljust(
        8 * (2 + CAPACITY), b"\0"
    )
    other = struct.pack("<2Q", ELEMENTS_MAP, capacity << 32).ljust(64, b"\0")
    target = fake.FakeTarget({ARRAY: heap, OTHER: other})
    blocks = graphs.native().blocks(target.arch, 8)
    blocks.append(array("Q", [ARRAY, ELEMENTS]), array("Q", [32, len(heap) - 32]), bytes(2))
    blocks.seal()
    starts = {ARRAY: 0, ELEMENTS: 1}
    graph = SimpleNamespace(
        target=target,
        engine=PureEngine(target.arch),
        blocks=blocks,
        first_objects=[0, 1],
        graph=SimpleNamespace(kinds=lambda: memoryview(bytes([Kind.REACHABLE] * 2))),
        kinds_of=lambda index: (("js_array",), ("fixed_array",))[index],
        of_map=lambda number: array("I", [number]),
        indices_of=lambda addresses: [starts.get(one, 0xFFFFFFFF) for one in addresses],
    )
    arrays, _ = measure_spare_capacity(cast("V8Graph", graph))
    return arrays.objects, arrays.spare


def test_unused_elements() -> None:
    assert measure_arrays(ELEMENTS, 0) == (1, 8 * (CAPACITY - 1))


def test_words_outside_of_the_heap_are_no_elements() -> None:
    """The word of a damaged array may refer to any memory."""
    assert measure_arrays(OTHER, 0x7FFF_FFFF) == (0, 0)
