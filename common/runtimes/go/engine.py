"""Find the types of Go's objects without debug information, and the pointers in them.

This module states the contract of engine_native.py (common/native/go_types.c, go_pointers.c) and
engine_reference.py. The type is known for objects with a malloc header (objects of more than 512
bytes with pointers, since Go 1.22), and for the data of interface values, because a type or an itab
precedes the data pointer. From these objects, types spread along the pointers, slices, strings,
interfaces and maps in them."""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Optional, Protocol, cast

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.loops import import_loops
from findleaks.engine.terms import NO_NARROW_LABEL
from findleaks.target.base import Piece, Range
from findleaks.target.elf import occurrences
from findleaks.value_classes import NamedTuple

ARENA, PAGE = 64 << 20, 8 << 10
NONE = 0xFFFFFFFF
"""No type, in `types`, `pointees` and `elements`."""
NARROW_NONE = NO_NARROW_LABEL
"""No type, in `types` with elements of 2 bytes."""
MOST_NARROW = NARROW_NONE // 2  # maximum number of types whose values have 2 bytes


HEADER, NO_HEADER = 8, 512  # bytes of a malloc header; objects up to this size have none
MOST_SMALL = 32 << 10  # bytes; larger objects have a span of their own
NOSCAN = 1  # a bit of a page's class: its objects have no pointers
RAW, NOTHING = 0xFE, 0xFF  # classes of pages of stacks, and of pages of no span in use
ANY = 2  # in `pointers`
TINY = 5  # the class of 16 bytes without pointers: small objects share a slot

POINTER, SLICE, TEXT, INTERFACE, DIRECTORY, SECOND, INSIDE, TAGGED, UNTAGGED = range(9)
"""Kinds of slots: a pointer; the three words of a slice; the two words of a string; the two words
of an interface; the directory of a Swiss map and its length, with the type of the tables in the
next slot (SECOND).

Slots of the kinds INSIDE, TAGGED and UNTAGGED precede the other slots of a type. INSIDE: an object
that has a value of this type at the slot's offset is an object of the slot's type. TAGGED: the
same, if the first byte of the object is not 0. UNTAGGED: the same, if this byte is 0."""

SEEDED = 64
_BUDGET = 1 << 20
_SLICE = 1 << 17  # elements that are copied at a time


class TypeTable(NamedTuple):
    """Types by number, and where objects are.

    A *type value* is a number * 2, + 1 for an array of objects of this type.

    - `addresses`: ascending addresses of types and itabs. By address: `pointees` has the type value
      of what an interface's data refers to, `elements` the number of the type itself (NONE: none).
    - By number: `sizes` in bytes; `pointers` 0 without pointers, 1 with, ANY; `first` the first
      slot (one more element than numbers).
    - By slot: `offsets`, `kinds`, and `targets`, the type value of what it refers to.
    - `arenas`: ascending addresses; `classes`: by page of each arena, the mspan's spanclass.
      `below`: by class // 2, the size of the largest smaller class (0: unknown).
    - `has_headers`: since Go 1.22."""

    addresses: array[int]  # "Q"
    pointees: array[int]  # "I"
    elements: array[int]  # "I"
    sizes: array[int]  # "Q"
    pointers: bytearray
    first: array[int]  # "I"
    offsets: array[int]  # "I"
    kinds: bytearray
    targets: array[int]  # "I"
    arenas: array[int]  # "Q"
    classes: bytearray
    below: array[int]  # "Q"
    has_headers: bool


HEADERS, BITMAP, PAIRS = range(3)
"""How Go stores the places of pointers in objects. Since 1.22: headers with a type, and a bitmap at
the end of each span of small objects. In 1.20 and 1.21: a bit for each word of an arena, at the
start of its heapArena. Up to 1.19: two bits for each word."""


class PointerTable(NamedTuple):
    """Where the pointers in objects are, according to the data of Go's collector.

    - For each span with pointers, ascending: `starts`, `ends`, `sizes` of the slots in bytes,
      `classes` (spanclass), and `large`: if the span has only one object, the number of the
      object's type (NONE: unknown).
    - For each type, ascending: `addresses`, `strides` (size of a value in bytes), `words` (number
      of words that the mask describes), and `masks` (index of the mask's first byte in `bits`).
    - For each arena, ascending: `arenas` (its address) and `entries` (address of its heapArena).
    - `form`: HEADERS, BITMAP or PAIRS.

    Sources: Go 1.18 to 1.26, src/runtime: mbitmap.go, mbitmap_allocheaders.go (1.22),
    mgcmark_greenteagc.go (spanInlineMarkBits, 1.25 and 1.26)."""

    starts: array[int]  # "Q"
    ends: array[int]  # "Q"
    sizes: array[int]  # "Q"
    large: array[int]  # "I"
    classes: bytearray
    addresses: array[int]  # "Q"
    strides: array[int]  # "Q"
    words: array[int]  # "Q"
    masks: array[int]  # "Q"
    bits: bytearray
    arenas: array[int]  # "Q"
    entries: array[int]  # "Q"
    form: int


def copy_pointers(engine: Engine, pieces: Sequence[Piece], table: PointerTable, where: Range) -> tuple[Piece, int]:
    """Return the memory of a range with zeros in place of words that are not pointers, and the
    number of parts in which each word counts as a pointer, because the pointers are unknown.

    `where`: a range of whole words in spans with pointers. `pieces`, ascending: this memory, the
    spans that contain it (except spans of large objects), and the heapArenas' bitmaps."""
    data = bytearray(where.end - where.start)
    unknown = cast(_Loops, import_loops(engine, "findleaks.runtimes.go")).copy_pointers(engine, pieces, table, where.start, data)
    return Piece(where.start, memoryview(data)), unknown


class TypeSearch:
    """A search for types. `types` has the type value of each block's object. Types that are set
    before `run` are followed.

    With at most MOST_NARROW types, the elements of `types` have 2 bytes ("H"), and NARROW_NONE
    stands for no type. Otherwise they have 4 bytes ("I"; NONE)."""

    def __init__(self, blocks: Blocks, table: TypeTable, types: Optional[array[int]] = None) -> None:
        """With `types`, this search continues one that has found these types."""
        self.blocks, self.table = blocks, table
        self.types = widen(array("H") if types is None else types, len(table.sizes))
        if types is None:
            self.types = array(self.types.typecode, [NARROW_NONE if self.types.typecode == "H" else NONE]) * len(blocks)
        # The pages of the queue become resident when they are first used. `run` returns a page to
        # the kernel when all objects in this page of the queue have been visited.
        self._memory = mmap.mmap(-1, 8 * max(len(blocks), 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.queue = memoryview(self._memory).cast("Q")
        self.state = array("Q", [0, 0, 0])
        self._returned = 0

    def type_of(self, index: int) -> int:
        """Return the type value of a block's object, or NONE."""
        return read_type(self.types, index)

    def add(self, index: int, value: int) -> None:
        """Set the type of a block's object."""
        if self.type_of(index) == NONE:
            self.types[index] = value
            self.queue[self.state[2]] = self.blocks.address(index)
            self.state[2] += 1

    def replace(self, index: int, value: int) -> None:
        """Set the type of an object whose type was followed to no other object."""
        self.types[index] = value
        self.queue[self.state[2]] = self.blocks.address(index)
        self.state[2] += 1

    def run(self, engine: Engine, pieces: Sequence[Piece], budget: int = _BUDGET) -> bool:
        """Follow about `budget` objects. Reading SEEDED bytes for known types counts as one object.
        Returns True when all objects have been followed. `pieces`: ascending, the same in each
        call."""
        cast(_Loops, import_loops(engine, "findleaks.runtimes.go")).find_types(engine, pieces, self, budget)
        visited = 8 * self.state[1] // mmap.PAGESIZE * mmap.PAGESIZE
        if visited > self._returned:
            self._memory.madvise(mmap.MADV_DONTNEED, self._returned, visited - self._returned)
            self._returned = visited
        return self.state[0] >= len(pieces) and self.state[1] >= self.state[2]


def read_type(types: array[int], index: int) -> int:
    """Return the type value of a block's object, or NONE. `types`: see TypeSearch."""
    value = types[index]
    return NONE if value == NARROW_NONE and types.typecode == "H" else value


def widen(types: array[int], count: int) -> array[int]:
    """Return these type values with elements that are wide enough for `count` types."""
    if count <= MOST_NARROW or types.typecode == "I":
        return types
    return array("I", (read_type(types, index) for index in range(len(types))))


def count_typed(types: array[int], count: int) -> int:
    """Return the number of type values that are types, of which there are `count`. The function
    counts bytes, because this is 30 times faster than comparing numbers."""
    nothing = NARROW_NONE if types.typecode == "H" else NONE
    missing = array(types.typecode, [nothing]).tobytes()
    if 2 * count >> 8 * (len(missing) - 1) >= 0xFF:  # a value may have the same highest byte
        return len(types) - types.count(nothing)
    parts = (types[first : first + _SLICE].tobytes() for first in range(0, len(types), _SLICE))
    return len(types) - sum(part.count(missing) for part in parts)


def find_places(types: array[int], value: int) -> Iterator[int]:
    """Yield the indices at which `types` has this value. The function searches bytes, because
    this is ten times faster than comparing numbers."""
    wanted, width = array(types.typecode, [value]).tobytes(), types.itemsize
    for first in range(0, len(types), _SLICE):
        found = occurrences(types[first : first + _SLICE].tobytes(), wanted)
        yield from (first + at // width for at in found if at % width == 0)


class _Loops(Protocol):
    """The interface of engine_native.py and of its reference, engine_reference.py."""

    def find_types(self, engine: Any, pieces: Sequence[Piece], search: TypeSearch, budget: int) -> None: ...

    def copy_pointers(self, engine: Any, pieces: Sequence[Piece], table: PointerTable, start: int, data: bytearray) -> int: ...
