"""Test how the fields of spans in Go's heap are read, and which slots of spans contain objects."""

from __future__ import annotations

import struct
from array import array
from typing import Any, NamedTuple, cast

import graphs
import pytest
from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.engine.terms import State
from findleaks.runtimes.go.heap import OBJECTS, Heap
from findleaks.runtimes.go.span_table import ObjectSpan, ObjectSpans, SpanTable
from findleaks.runtimes.go.spans import build_blocks, read_spans, smaller_sizes
from findleaks.runtimes.go.types import Field, Types

HEAP, BITS, SLOTS = 0xC000000000, 0x7F0000000FE0, 248


@pytest.mark.parametrize("engine", [graphs.native, graphs.pure])
@pytest.mark.parametrize(("bits", "used"), [(b"\x0f".ljust(32, b"\0"), 4), (b"\xff" * 31 + b"\0", SLOTS), (b"", SLOTS)])
def test_bits_before_memory_that_is_not_mapped(engine: Any, bits: bytes, used: int) -> None:
    """Go's bitmaps have different sizes. If a bitmap is unreadable, each slot counts as an object, because references would be missed."""
    span = ObjectSpan(HEAP, HEAP + 8192, 32, SLOTS, 0, 8, BITS, 0, 0)
    memory = {HEAP: bytes(8192), **({BITS: bits} if bits else {})}
    blocks = build_blocks(Memory(FakeTarget(memory)), engine(), ObjectSpans.of([span]))
    assert len(blocks) == SLOTS
    assert sum(blocks.state(index) == State.IN_USE for index in range(SLOTS)) == used


MSPAN = struct.Struct("<QQQQQQHHB3xI4x")
FIELDS = {
    **{name: (8 * at, 8) for at, name in enumerate(("startAddr", "npages", "largeType", "specials", "allocBits", "elemsize"))},
    **{"freeindex": (48, 2), "nelems": (50, 2), "spanclass": (52, 1), "sweepgen": (56, 4)},
}


class SizedType(NamedTuple):
    size: int


class TypesOfMSpan:
    """Fake types: the address of a type is also its size."""

    def find(self, name: str) -> int:
        return MSPAN.size

    def at(self, address: int) -> SizedType:
        return SizedType(address)

    def field(self, structure: int, name: str) -> Field:
        return Field(name, FIELDS[name][1], FIELDS[name][0])


def read(*mspans: bytes) -> ObjectSpans:
    """Read mspans of 1 page, and of 5 pages."""
    starts, ends = array("Q", [HEAP, HEAP + 8192]), array("Q", [HEAP + 8192, HEAP + 6 * 8192])
    spans = SpanTable(starts, ends, bytes([OBJECTS, OBJECTS]), array("Q", [0x500000, 0x500000 + MSPAN.size]))
    memory = Memory(FakeTarget({0x500000: b"".join(mspans)}))
    found = read_spans(memory, graphs.native(), Heap(0, [HEAP], spans, [0], 0), cast(Types, TypesOfMSpan()))
    assert found is not None
    return found


def test_only_spans_of_large_objects_have_a_type() -> None:
    """Go does not clear the type of a large object if the mspan describes small objects later."""
    small, large = (
        MSPAN.pack(HEAP, 1, 0x400000, 0, BITS, 704, 11, 11, 62, 8),
        MSPAN.pack(HEAP + 8192, 5, 0x400000, 0, BITS, 40960, 1, 1, 0, 8),
    )
    assert [(one.size, one.kind, one.large) for one in read(small, large)] == [(704, 62, 0), (40960, 0, 0x400000)]


@pytest.mark.parametrize(
    ("sweepgen", "freeindex", "used"),
    [(7, 0, 11), (8, 0, 1), (7, 4, 4), (11, 4, 4), (6, 4, 4)],
    ids=["allocBits are old", "swept", "sweeping begins", "cached", "not swept"],
)
def test_span_that_is_swept(sweepgen: int, freeindex: int, used: int) -> None:
    """While Go replaces allocBits, objects that are newer than the last collection look free. Therefore all slots of
    such a span count as objects. allocBits has one object."""
    small = MSPAN.pack(HEAP, 1, 0, 0, BITS, 704, freeindex, 11, 62, sweepgen)
    spans = read(small, MSPAN.pack(HEAP + 8192, 5, 0, 0, BITS, 40960, 1, 1, 0, 8))
    blocks = build_blocks(Memory(FakeTarget({HEAP: bytes(8192), BITS: b"\x01".ljust(128, b"\0")})), graphs.native(), spans)
    assert sum(blocks.state(index) == State.IN_USE for index in range(11)) == used


def test_sizes_below_a_class() -> None:
    """If no span has the next smaller class, objects are larger than the slots of the classes below that have a span."""
    kinds_and_sizes = [(4, 16), (5, 16), (12, 64), (22, 160), (1, 40960)]
    spans = ObjectSpans.of(
        [ObjectSpan(HEAP + at * 8192, HEAP + (at + 1) * 8192, size, 0, 0, kind, 0, 0, 0) for at, (kind, size) in enumerate(kinds_and_sizes)]
    )
    below = smaller_sizes(spans)
    assert [below[number] for number in (0, 2, 3, 6, 7, 11, 12, 127)] == [0, 0, 16, 16, 64, 64, 160, 160]
