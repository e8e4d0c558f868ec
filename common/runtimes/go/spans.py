"""Read the spans of Go's heap, and find the slots that have objects.

Sources: Go 1.18 to 1.26, src/runtime: mheap.go (mspan, spanClass, special), mbitmap.go
(mspan.isFree: slot k has an object if k < freeindex, or if its bit in allocBits is set), malloc.go
(mallocgcLarge: only large objects, of size class 0, set largeType). The offsets of fields come from
the type descriptor of runtime.mspan."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State, run_states
from findleaks.runtimes.go.engine import ARENA, NOSCAN, NOTHING, PAGE
from findleaks.runtimes.go.heap import OBJECTS, Heap
from findleaks.runtimes.go.types import Types
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges
from findleaks.value_classes import NamedTuple

GRANULE = 8
_BITS = 128  # bytes of allocBits that are read: spans have at most 1,024 slots
_MAX_SLOTS = 8 * _BITS
_FIELDS = ("startAddr", "npages", "freeindex", "nelems", "allocBits", "spanclass", "elemsize")
_OPTIONAL = ("largeType", "specials")
_FORMATS = {1: "B", 2: "H", 4: "I", 8: "Q"}  # by size in bytes
_MAX_SPECIALS = 1 << 16  # records of one span


class ObjectSpan(NamedTuple):
    """A span of objects. `kind` is its spanclass; `bits` the address of allocBits; `large` the type
    of its one object (since 1.22; 0: none); `specials` the first of its special records, or 0."""

    start: int
    end: int
    size: int
    slots: int
    free: int  # freeindex
    kind: int
    bits: int
    large: int
    specials: int

    @property
    def has_pointers(self) -> bool:
        return not self.kind & NOSCAN


def read_spans(memory: Memory, engine: Engine, heap: Heap, types: Types) -> Optional[list[ObjectSpan]]:
    """Return the spans of objects, ascending; None if the layout is unknown, or if one of them
    contradicts itself."""
    structure = types.find("runtime.mspan")
    one = types.at(structure) if structure is not None else None
    if structure is None or one is None:
        return None
    places: list[tuple[int, int, str]] = []
    for name in (*_FIELDS, *_OPTIONAL):
        field = types.field(structure, name)
        kind = types.at(field.type) if field is not None else None
        if field is not None and kind is not None and kind.size in _FORMATS:
            places.append((field.offset, kind.size, name))
        elif name in _FIELDS:
            return None
    spans = sorted((span for span in heap.spans if span.state == OBJECTS), key=lambda span: span.address)
    largest = ARENA * len(heap.arenas)
    data, missing = read_records(memory.target, engine, array("Q", [span.address for span in spans]), one.size)
    if missing:
        return None
    layout = _struct(places, one.size, memory.arch.byteorder)
    order = [name for _, _, name in sorted(places)]
    columns = [order.index(name) if name in order else -1 for name in (*_FIELDS, *_OPTIONAL)]
    found = []
    for span, record in zip(spans, layout.iter_unpack(data)):
        start, pages, free, slots, bits, category, size, large, specials = (record[at] if at >= 0 else 0 for at in columns)
        end = start + pages * PAGE
        if (start, end) != span[:2] or end - start > largest:
            return None
        if not (size and 0 < slots <= _MAX_SLOTS and size * slots <= end - start and free <= slots and size % GRANULE == 0):
            return None
        # Go does not clear largeType when it reuses an mspan for small objects.
        found.append(ObjectSpan(start, end, size, slots, free, category, bits, 0 if category >> 1 else large, specials))
    found.sort()
    return found


def _struct(places: Sequence[tuple[int, int, str]], size: int, byteorder: str) -> struct.Struct:
    """Return a structure of `size` bytes whose values are unsigned numbers at these offsets, of
    these sizes, by ascending offset."""
    form, at = ">" if byteorder == "big" else "<", 0
    for offset, width, _ in sorted(places):
        form += f"{offset - at}x{_FORMATS[width]}"
        at = offset + width
    return struct.Struct(f"{form}{size - at}x")


def build_blocks(memory: Memory, engine: Engine, spans: Sequence[ObjectSpan]) -> Blocks:
    """Return a directory with a block for each slot: IN_USE with an object, else FREE."""
    order = sorted({span.bits & ~7 for span in spans if span.bits})
    data, missing = read_records(memory.target, engine, array("Q", order), _BITS)
    sizes = {span.bits: -(-span.slots // 64) * 8 for span in spans}
    for number in missing:
        # For some spans, memory shortly after the bits is not mapped. Then only the bits are read.
        # If the bits are unreadable, each slot counts as an object, so that no reference is missed.
        size = sizes.get(order[number], _BITS)
        data[number * _BITS : number * _BITS + size] = memory.read(order[number], size) or b"\xff" * size
    places = {address: number * _BITS for number, address in enumerate(order)}
    runs, bits = array("Q"), bytearray()
    for span in spans:
        size = -(-span.slots // 64) * 8
        at = places.get(span.bits, -1)
        used = int.from_bytes(data[at : at + size], "little") if at >= 0 else 0
        used = (used | (1 << span.free) - 1) & (1 << span.slots) - 1
        runs.extend((span.start, span.size, span.size, span.slots, 8 * len(bits), run_states(State.FREE, State.IN_USE)))
        bits += used.to_bytes(size, "little")
    blocks = engine.blocks(memory.arch, GRANULE, sum(span.end - span.start for span in spans))
    blocks.append_runs(runs, bytes(bits))
    blocks.seal()
    return blocks


def page_classes(heap: Heap, spans: Sequence[ObjectSpan]) -> bytearray:
    """Return the class of each page of each arena; see TypeTable."""
    pages = ARENA // PAGE
    classes = bytearray([NOTHING]) * (pages * len(heap.arenas))
    numbers = {base: number for number, base in enumerate(heap.arenas)}
    for span in spans:
        for base in range(span.start // ARENA * ARENA, span.end, ARENA):
            number = numbers.get(base)
            if number is not None:
                first, last = max(span.start, base) - base, min(span.end, base + ARENA) - base
                classes[number * pages + first // PAGE : number * pages + last // PAGE] = bytes([span.kind]) * (
                    last // PAGE - first // PAGE
                )
    return classes


def smaller_sizes(spans: Sequence[ObjectSpan]) -> array[int]:
    """Return, by size class, the size of the next smaller class; 0 if no span has it."""
    sizes = {span.kind >> 1: span.size for span in spans if span.kind > NOSCAN}
    return array("Q", [sizes.get(number - 1, 0) if number else 0 for number in range(128)])


def special_records(memory: Memory, types: Types, spans: Sequence[ObjectSpan]) -> Iterator[tuple[int, int, Sequence[int]]]:
    """Yield the object of each special record (a finalizer, a sample of the heap profile), and the
    address and the values of the words after the record's head."""
    structure = types.find("runtime.special")
    head = types.at(structure) if structure is not None else None
    offset = types.field(structure, "offset") if structure is not None else None
    kind = types.at(offset.type) if offset is not None else None
    if head is None or offset is None or kind is None:
        return
    for span in spans:
        record, seen = span.specials, 0
        while record and seen < _MAX_SPECIALS:
            words = memory.words(record, head.size // 8 + 4)
            place = memory.read(record + offset.offset, kind.size)
            if words is None or not place:
                break
            slot = int.from_bytes(place, memory.arch.byteorder) // span.size
            if slot < span.slots:
                yield span.start + slot * span.size, record + head.size // 8 * 8, words[head.size // 8 :]
            record, seen = words[0], seen + 1


def ranges_with_pointers(spans: Sequence[ObjectSpan]) -> list[Range]:
    """Return the memory of spans whose objects have pointers, sorted; adjacent spans are joined."""
    return merge_ranges(Range(span.start, span.end) for span in spans if span.has_pointers)


def joined_ranges(spans: Sequence[ObjectSpan]) -> list[Range]:
    """Return few ranges that contain all spans: spans of one arena are joined."""
    made: list[Range] = []
    for span in spans:
        if made and made[-1].start // ARENA == span.start // ARENA:
            made[-1] = Range(made[-1].start, span.end)
        else:
            made.append(Range(span.start, span.end))
    return made
