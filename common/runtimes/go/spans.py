"""Read the spans of Go's heap, and find the slots that have objects.

Sources: Go 1.18 to 1.26, src/runtime: mheap.go (mspan, spanClass, special), mbitmap.go
(mspan.isFree: slot k has an object if k < freeindex, or if its bit in allocBits is set), malloc.go
(mallocgcLarge: only large objects, of size class 0, set largeType), mgcsweep.go (sweep). The
offsets of fields come from the type descriptor of runtime.mspan."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, compress, islice
from operator import ne
from typing import Optional

from findleaks.allocators.bulk import read_scattered
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State, run_states
from findleaks.runtimes.go.engine import ARENA, NOSCAN, NOTHING, PAGE
from findleaks.runtimes.go.heap import OBJECTS, Heap
from findleaks.runtimes.go.span_table import ObjectSpans
from findleaks.runtimes.go.types import Types
from findleaks.target.base import Range

GRANULE = 8
_BITS = 128  # bytes of allocBits that are read: spans have at most 1,024 slots
_MAX_SLOTS = 8 * _BITS
_FIELDS = ("startAddr", "npages", "freeindex", "nelems", "allocBits", "spanclass", "elemsize", "sweepgen")
_OPTIONAL = ("largeType", "specials")
_TYPECODES = {1: "B", 2: "H", 4: "I", 8: "Q"}  # by size in bytes
FURTHER = 4  # words of a special record after its head
_MAX_SPECIALS = 1 << 16  # records of one span


def read_spans(memory: Memory, engine: Engine, heap: Heap, types: Types) -> Optional[ObjectSpans]:
    """Return the spans of objects; None if the layout is unknown, or if one of them contradicts
    itself."""
    structure = types.find("runtime.mspan")
    one = types.at(structure) if structure is not None else None
    if structure is None or one is None or one.size % 8:
        return None
    places: dict[str, tuple[int, int]] = {}
    for name in (*_FIELDS, *_OPTIONAL):
        field = types.field(structure, name)
        kind = types.at(field.type) if field is not None else None
        if field is not None and kind is not None and _fits(field.offset, kind.size, one.size):
            places[name] = field.offset, kind.size
        elif name in _FIELDS:
            return None
    if places["spanclass"][1] != 1:
        return None
    starts, ends, addresses = heap.spans.in_state(OBJECTS)
    data, missing = read_scattered(memory.target, engine, addresses, one.size)
    if missing:
        return None
    columns = [_column(data, one.size, len(starts), places.get(name)) for name in (*_FIELDS, *_OPTIONAL)]
    firsts, pages, free, slots, bits, kinds, sizes, sweeps, large, specials = columns
    largest = ARENA * len(heap.arenas)
    for start, end, first, count, used, most, size in zip(starts, ends, firsts, pages, free, slots, sizes):
        if first != start or count * PAGE != end - start or end - start > largest:
            return None
        if not (size and 0 < most <= _MAX_SLOTS and size * most <= end - start and used <= most and size % GRANULE == 0):
            return None
    # To sweep a span, Go sets freeindex to 0, and then replaces allocBits. In between, objects that
    # are newer than the last collection look free. All slots of such a span count as objects.
    # sweepgen is odd while a span is swept, and while a thread caches it. The latter has
    # freeindex > 0.
    free = array("H", [most if sweep & 1 and not used else used for sweep, used, most in zip(sweeps, free, slots)])
    # Go does not clear largeType when it reuses an mspan for small objects.
    large = array("Q", [0 if kind >> 1 else one for kind, one in zip(kinds, large)])
    return ObjectSpans(starts, ends, _narrow(sizes), slots, free, bytes(kinds), bits, _narrow(large), _narrow(specials))


def _fits(offset: int, width: int, size: int) -> bool:
    """Return whether a number of `width` bytes at this offset is in a record of `size` bytes."""
    return width in _TYPECODES and offset % width == 0 and offset + width <= size


def _column(data: bytearray, size: int, count: int, place: Optional[tuple[int, int]]) -> array[int]:
    """Return the values of a field of `count` records of `size` bytes. `place`: the field's offset
    and size in bytes. If it is None, each value is 0."""
    if place is None:
        return array("Q", bytes(8 * count))
    offset, width = place
    return array(_TYPECODES[width], data)[offset // width :: size // width]


def _narrow(column: array[int]) -> array[int]:
    """Return a copy of a column with the smallest elements that hold all values."""
    largest = max(column, default=0)
    return array(next(code for width, code in _TYPECODES.items() if largest < 1 << 8 * width), column)


def build_blocks(memory: Memory, engine: Engine, spans: ObjectSpans) -> Blocks:
    """Return a directory with a block for each slot: IN_USE with an object, else FREE."""
    places = array("Q", [bits & ~7 for bits in spans.bits])
    data, missing = read_scattered(memory.target, engine, places, _BITS)
    for number in missing:
        # For some spans, memory shortly after the bits is not mapped. Then only the bits are read.
        # If the bits are unreadable, each slot counts as an object, so that no reference is missed.
        size = -(-spans.slots[number] // 64) * 8 if places[number] else 0
        data[number * _BITS : number * _BITS + size] = memory.read(places[number], size) or b"\xff" * size
    # Most spans have no free slots. Their bits depend only on the number of slots.
    full = {slots: ((1 << slots) - 1).to_bytes(-(-slots // 64) * 8, "little") for slots in set(spans.slots)}
    parts = list(map(full.__getitem__, spans.slots))
    for number in compress(range(len(parts)), map(ne, spans.free, spans.slots)):
        free, slots, length = spans.free[number], spans.slots[number], len(parts[number])
        used = int.from_bytes(data[number * _BITS : number * _BITS + length], "little")
        parts[number] = ((used | (1 << free) - 1) & (1 << slots) - 1).to_bytes(length, "little")
    runs = array("Q", bytes(48 * len(spans)))  # see Blocks.append_runs
    places = array("Q", islice(accumulate((8 * len(part) for part in parts), initial=0), len(parts)))
    states = array("Q", [run_states(State.FREE, State.IN_USE)]) * len(spans)
    for number, column in enumerate((spans.starts, spans.sizes, spans.sizes, spans.slots, places, states)):
        runs[number::6] = array("Q", column)
    blocks = engine.blocks(memory.arch, GRANULE, sum(spans.ends) - sum(spans.starts))
    blocks.append_runs(runs, b"".join(parts))
    del data, parts, runs, places, states, column  # `seal` returns freed memory to the kernel
    blocks.seal()
    return blocks


def page_classes(heap: Heap, spans: ObjectSpans) -> bytearray:
    """Return the class of each page of each arena; see TypeTable."""
    pages = ARENA // PAGE
    classes = bytearray([NOTHING]) * (pages * len(heap.arenas))
    numbers = {base: number for number, base in enumerate(heap.arenas)}
    for start, end, kind in zip(spans.starts, spans.ends, spans.kinds):
        base = start & -ARENA
        if end - start == PAGE and base in numbers:  # most spans
            classes[numbers[base] * pages + (start - base) // PAGE] = kind
            continue
        while base < end:
            number = numbers.get(base)
            if number is not None:
                first, last = number * pages + max(start - base, 0) // PAGE, number * pages + min(end - base, ARENA) // PAGE
                classes[first:last] = bytes((kind,)) * (last - first)
            base += ARENA
    return classes


def smaller_sizes(spans: ObjectSpans) -> array[int]:
    """Return, by size class, the size in bytes of the largest smaller class that a span has ("Q").
    It is 0 if no span has a smaller one."""
    sizes = {kind >> 1: size for kind, size in set(zip(spans.kinds, spans.sizes)) if kind > NOSCAN}
    return array("Q", accumulate((sizes.get(number - 1, 0) for number in range(128)), max))


class SpecialRecords:
    """Special records of objects: finalizers, cleanups, weak pointers, samples of the heap profile.
    `words`: the values of FURTHER words after the head of each record."""

    def __init__(self) -> None:
        self._objects, self._places, self.words = array("Q"), array("Q"), array("Q")

    def __iter__(self) -> Iterator[tuple[int, int, Sequence[int]]]:
        """Yield the object of each record, and the address and the values of `words`."""
        for at, (start, place) in enumerate(zip(self._objects, self._places)):
            yield start, place, self.words[at * FURTHER : (at + 1) * FURTHER]

    def append(self, start: int, place: int, words: Sequence[int]) -> None:
        """Add a record."""
        self._objects.append(start)
        self._places.append(place)
        self.words.extend(words)


def read_specials(memory: Memory, engine: Engine, types: Types, spans: ObjectSpans) -> SpecialRecords:
    """Read the special records. Each span has a list of them, and all lists are read together."""
    found = SpecialRecords()
    structure = types.find("runtime.special")
    head = types.at(structure) if structure is not None else None
    offset = types.field(structure, "offset") if structure is not None else None
    kind = types.at(offset.type) if offset is not None else None
    if head is None or offset is None or kind is None:
        return found
    count, mask = head.size // 8, (1 << 8 * kind.size) - 1
    shift = 8 * (offset.offset % 8) if memory.arch.byteorder == "little" else 8 * (8 - kind.size - offset.offset % 8)
    lists = [(number, record) for number, record in enumerate(spans.specials) if record]
    for _ in range(_MAX_SPECIALS):
        if not lists:
            break
        data, missing = read_scattered(memory.target, engine, [record for _, record in lists], 8 * (count + FURTHER))
        rows, following = memory.arch.words(data), list[tuple[int, int]]()
        for at, (number, record) in enumerate(lists):
            words = rows[at * (count + FURTHER) : (at + 1) * (count + FURTHER)]
            if at in missing:
                continue
            slot = (words[offset.offset // 8] >> shift & mask) // spans.sizes[number]
            if slot < spans.slots[number]:
                found.append(spans.starts[number] + slot * spans.sizes[number], record + 8 * count, words[count:])
            if words[0]:
                following.append((number, words[0]))
        lists = following
    return found


def joined_ranges(spans: ObjectSpans) -> list[Range]:
    """Return few ranges that contain all spans: spans of one arena are joined."""
    made: list[Range] = []
    at = 0
    while at < len(spans):
        first = spans.starts[at]
        at = bisect_left(spans.starts, (first // ARENA + 1) * ARENA, at)
        made.append(Range(first, spans.ends[at - 1]))
    return made
