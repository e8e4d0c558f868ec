"""Walk the objects of V8's pages, and read the references among them.

This module states the contract of engine_native.py (common/native/v8_objects.c and
v8_references.c) and engine_reference.py. The first word of an object is the tagged address of its
map. The map, and for many types a number in the object, determine the object's size. Objects follow
one another without a gap; free memory is an object, too. A walk stops at each map that is not in
the table yet."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Protocol, cast

from findleaks.engine.contract import Blocks, Engine, Graph
from findleaks.engine.loops import import_loops
from findleaks.engine.numbered_words import NO_NUMBER, NumberedWords
from findleaks.target.base import Piece
from findleaks.value_classes import NamedTuple

NO_MAP = NO_NUMBER
"""In place of the number of a map: the map is not known yet."""

FIXED, COUNTED, UP_TO_MAP, ASKED = range(4)
"""Kinds of sizes.

- FIXED: all objects of the map have the same size.
- COUNTED: the size is computed from one or two numbers in the object.
- UP_TO_MAP: no word of the object is the tagged address of a map, except its first. The object
  extends to the next such word, which is the map of the next object.
- ASKED: the caller computes the size, and passes it in state[GIVEN]."""

FIELDS = 3
SIZE_COLUMNS = 11
COLUMNS = SIZE_COLUMNS + 1 + FIELDS
REFERENCE_ROW = 4
POSITION, END, MAP_WORD, GIVEN, FOUND, SHARED_START, SHARED_END, LISTED = range(8)
_SOME = 1 << 16  # most references, and most objects, of one call
MOST = 0xFFFFFFFF


class Step(IntEnum):
    """The reason why a walk stops."""

    DONE = 0  # it is at the end of the range
    NEW_MAP = 1  # the map is not in the table
    ASK = 2  # the size of the object is needed
    DAMAGED = 3  # the size of the object is not valid, or a part of it is not in the piece
    FULL = 4  # the buffers of references, or those of objects, are full


class Size(NamedTuple):
    """How the size of objects is computed. Sizes and offsets are in bytes.

    A COUNTED size is `base` + number * `unit`, rounded up to a multiple of `align`. The number has
    `width` bytes (1, 2 or 4) at offset `at`, is shifted right by `shift` bits and masked with
    `mask`; then it is divided by `per`, and rounded up. With a second number, of 4 bytes at offset
    `second`, the product of this number and `second_unit` is added."""

    kind: int
    base: int = 0
    align: int = 8
    at: int = 0
    width: int = 4
    shift: int = 0
    mask: int = MOST
    per: int = 1
    unit: int = 0
    second: int = 0
    second_unit: int = 0


class MapTable(NumberedWords):
    """Maps by number, and a hash table of their tagged addresses.

    `rows` ("I") has for each map the fields of a Size, 1 for the maps of free memory and 0 for
    others, and FIELDS offsets (0: none) of references to arrays that belong to one object. `totals`
    ("Q") has the number of objects of each map that walks found, and their bytes; `firsts` ("Q")
    has the address of the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.totals, self.firsts = array("I"), array("Q"), array("Q")

    def add(self, word: int, size: Size, fields: Sequence[int] = (), is_free: bool = False) -> int:
        """Add a map with this tagged address, which is not 0, and the offsets of at most FIELDS
        references. `is_free`: it is that of free memory. Returns its number."""
        self.rows.extend((*size, is_free, *fields, *[0] * (FIELDS - len(fields))))
        self.totals.extend((0, 0))
        self.firsts.append(0)
        return self.add_word(word)

    def clear_totals(self) -> None:
        """Forget the objects that walks found."""
        self.totals, self.firsts = array("Q", bytes(16 * len(self.words))), array("Q", bytes(8 * len(self.words)))


class ObjectWalk:
    """A walk over objects, whose maps are in `table`.

    `state` has:

    - POSITION: the address of the next object.
    - END: the end of the range; the last object ends there.
    - MAP_WORD: the tagged address of the map at which the last call stopped.
    - GIVEN: the size of the next object, for maps of the kind ASKED; 0: not known yet.
    - FOUND: the number of references that the last call found.
    - SHARED_START, SHARED_END: references to memory between these addresses are left out.
    - LISTED: the number of objects that the last call found, without free memory.

    `targets` has the references as tagged addresses, `owners` the number of each object's map.
    `starts`, `sizes` and `maps` have the address and size of each object, and the number of its
    map."""

    def __init__(self, table: MapTable) -> None:
        self.table, self.state = table, array("Q", [0] * 8)
        self.targets, self.owners = array("Q", bytes(8 * _SOME)), array("I", bytes(4 * _SOME))
        self.starts, self.sizes = array("Q", bytes(8 * _SOME)), array("Q", bytes(8 * _SOME))
        self.maps = array("I", bytes(4 * _SOME))

    def set_range(self, start: int, end: int) -> None:
        """Set the range of the walk."""
        self.state[POSITION], self.state[END], self.state[GIVEN] = start, end, 0

    @property
    def position(self) -> int:
        """The start of the next object."""
        return self.state[POSITION]

    @property
    def found(self) -> int:
        """The number of references that the last `run` found."""
        return self.state[FOUND]

    @property
    def listed(self) -> int:
        """The number of objects that the last `run` found."""
        return self.state[LISTED]

    def run(self, engine: Engine, piece: Piece) -> Step:
        """Continue the walk. The piece contains the whole rest of the range."""
        return Step(loops(engine).walk_objects(engine, piece, self))


class ReferenceSearch(NamedTuple):
    """A search for the strong references among objects: words with the tag 1 that have the address
    of another object. Weak references have the tag 3.

    `maps` ("I") has the number of each object's map. `rows` ("I") has REFERENCE_ROW numbers for
    each map: the offsets of the first word that may be a reference and of the first byte after the
    last one, in bytes, and the lower and the upper half of a mask. Bit i of the mask is set if word
    i of an object is no strong reference. An object also refers to its map. `extra` ("Q",
    ascending) has source << 32 | target for each reference that no word has; both are indices of
    objects."""

    maps: array[int]
    rows: array[int]
    extra: array[int]

    def run(self, engine: Engine, graph: Graph, piece: Piece) -> None:
        """Add the references of the objects in this piece to a graph whose blocks are the objects.
        Pieces ascend from call to call."""
        loops(engine).scan_references(engine, graph, piece, self)


class EdgeList:
    """Lists the strong references among objects as edges of a heap snapshot.

    `shapes` ("I") has the number of each object's shape, `nodes` ("I") that of its node, NO_MAP if
    it has none. `rows` is that of ReferenceSearch, by shape. `names` ("I") has the type and name of
    the edge for each word of an object, type << 28 | name, or 0. The words of shape n are
    names[firsts[n]:firsts[n + 1]]; an object may have more. If tails[n] is 1, words without a name
    are elements from the third on: edges of type 1, named by the index of the word minus 2. Other
    words without a name have edges of type 4, named by the index of the word.

    An edge in `out` ("I") is its type, its name, and 7 times the number of the target's node.
    `counts` ("I") has the number of edges of each object. `state` has the number of the next
    object, the offset of its next word, and the number of edges that the last call found."""

    def __init__(self, blocks: Blocks, shapes: array[int], nodes: array[int], rows: array[int], room: int) -> None:
        self.blocks, self.shapes, self.nodes, self.rows = blocks, shapes, nodes, rows
        self.names, self.firsts, self.tails = array("I"), array("I", [0]), bytearray()
        self.counts, self.state, self.out = array("I", bytes(4 * (len(shapes) or 1))), array("Q", [0, 0, 0]), array("I", bytes(12 * room))

    def add_shape(self, names: Sequence[int], are_elements: bool) -> None:
        """Add the next shape."""
        self.names.extend(names)
        self.firsts.append(len(self.names))
        self.tails.append(are_elements)

    def run(self, engine: Engine, piece: Piece) -> bool:
        """Find edges of objects in a piece. Pieces ascend from call to call; repeat a call that
        returns True. The edges are in `out`."""
        return bool(loops(engine).list_edges(engine, piece, self))

    @property
    def found(self) -> array[int]:
        """The edges that the last call of `run` found."""
        return self.out[: 3 * self.state[2]]


def loops(engine: Engine) -> Loops:
    """Return the loops that belong to an engine."""
    return cast(Loops, import_loops(engine, "findleaks.runtimes.v8"))


class Loops(Protocol):
    """The interface of engine_native.py and of its reference, engine_reference.py."""

    def walk_objects(self, engine: Any, piece: Piece, walk: ObjectWalk) -> int: ...

    def list_edges(self, engine: Any, piece: Piece, edges: EdgeList) -> int: ...

    def scan_references(self, engine: Any, graph: Graph, piece: Piece, search: ReferenceSearch) -> None: ...


def constant_size(size: int) -> Size:
    """Return a Size of the kind FIXED, for objects of `size` bytes."""
    return Size(FIXED, size)


def size_by_count(row: Sequence[int], number: int, second: int = 0) -> int:
    """Return the size in bytes of an object whose map has a row of the kind COUNTED. `number` and
    `second` are the numbers in the object; see Size."""
    _, base, align, _, _, shift, mask, per, unit, _, second_unit = row[:SIZE_COLUMNS]
    number = -(-(number >> shift & mask) // max(per, 1))
    return -(-(base + number * unit + second * second_unit) // max(align, 1)) * max(align, 1)
