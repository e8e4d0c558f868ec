"""Walk the objects of a Java heap.

This module states the contract of engine_native.py (common/native/java_objects.c and
java_references.c) and engine_reference.py. An object begins with a header, which contains a *class
word* that identifies the class, and in arrays the length. Both determine the size of the object. A
walk stops at each class word that is not in the table of classes yet."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Protocol, cast

from findleaks.engine.contract import Engine, Graph
from findleaks.engine.loops import import_loops
from findleaks.engine.numbered_words import NO_NUMBER, NumberedWords
from findleaks.runtimes.jvm.references import References
from findleaks.target.base import Piece
from findleaks.value_classes import NamedTuple

NO_CLASS = NO_NUMBER
"""Stands for the number of a class that is not known yet."""

FIXED, ARRAY, OBJECTS, MIRROR = range(4)
"""Kinds of classes.

- FIXED: all instances have the same size, except for instances that contain a part of a stack.
- ARRAY, OBJECTS: arrays of numbers, and arrays of references.
- MIRROR: java.lang.Class. An instance, called the mirror of a class, contains the static variables
  of this class, and its own size in words."""

ROW = 4
POSITION, END, LIMIT, FOUND, CLASS_WORD, STEP, CHUNK, MOVED = range(8)
MOVED_BITS = 3
"""The lowest bits of the first word of an object that was moved."""
MOST_NARROW = (1 << 16) - 1  # maximum number of classes if their numbers have 2 bytes
_SOME = 1 << 16  # maximum number of objects of one call


class Step(IntEnum):
    """The reason why a walk stops."""

    DONE = 0  # it is at the end of the piece or of the range
    FULL = 1  # its buffers are full
    NEW_CLASS = 2  # the class word is not in the table
    CUT = 3  # the piece ends before the end of a header
    DAMAGED = 4  # a header is not valid
    MOVED_HEADER = 5  # an object was moved, and its compact header has only the new address


class HeaderLayout(NamedTuple):
    """The header of objects; offsets and sizes are in bytes.

    The class word is the number of `klass_bytes` (4 or 8) at offset `klass_at`, shifted right by
    `klass_shift` bits. The length of an array (32 bits) is at offset `length_at`. Objects are
    aligned to `alignment`."""

    klass_at: int
    klass_bytes: int
    klass_shift: int
    length_at: int
    alignment: int


class ClassTable(NumberedWords):
    """Classes by number, and a hash table of their class words.

    `rows` ("I") has four numbers for each class, sizes and offsets in bytes:

    - FIXED: the kind, the size of an instance, 0, 0. If a part of a stack follows each instance:
      the kind, the size without it, the offsets of the number of its words, and of the number of
      words that are unused at its beginning. A bitmap follows this part, with one bit for each
      place where a reference can be.
    - ARRAY, OBJECTS: the kind, the offset of the first element, log2 of an element's size, 0.
    - MIRROR: the kind, the offsets of the size, of the number of static references, and of these.

    `maps` ("I") has pairs of an offset and a number of references. The pairs of class n begin with
    pair map_first[n], and end before pair map_first[n + 1]. `totals` ("Q") has the number of
    objects of each class that walks found, and their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.map_first, self.maps = array("I"), array("I", [0]), array("I")
        self.totals = array("Q")

    def add(self, word: int, row: Sequence[int], maps: array[int]) -> int:
        """Add a class with this word, which is not 0. Returns its number."""
        self.rows.extend(row)
        self.maps.extend(maps)
        self.map_first.append(len(self.maps) // 2)
        self.totals.extend((0, 0))
        return self.add_word(word)


class ObjectWalk:
    """A walk over objects. `starts`, `sizes` and `numbers` have the start, the size and the number
    of the class of each object that the last call of `run` found. `numbers` has type code "H", and
    "I" after `widen` was called.

    `state` has:

    - POSITION: the address of the next object.
    - END: the end of the range in which objects start.
    - LIMIT: the address beyond which no object extends.
    - FOUND: the number of objects that the last call found.
    - CLASS_WORD: the class word at which the last call stopped with NEW_CLASS.
    - STEP, CHUNK: see `set_range`.
    - MOVED: the number of moved objects that the last call found.

    `moved` has previous and new address of each moved object that the last call found, after
    `record_moved` was called. These objects are not among the others, and are not counted."""

    def __init__(self, header: HeaderLayout, references: References, table: ClassTable) -> None:
        self.header, self.references, self.table = header, references, table
        self.state = array("Q", [0] * 8)
        self.starts, self.sizes = array("Q", bytes(8 * _SOME)), array("Q", bytes(8 * _SOME))
        self.numbers = array("H", bytes(2 * _SOME))
        self.moved = array("Q")

    def widen(self) -> None:
        """Change the items of `numbers` from 2 to 4 bytes. This is necessary if there are more than
        MOST_NARROW classes."""
        self.numbers = array("I", self.numbers)

    def record_moved(self) -> None:
        """Recognize objects that were moved. If the lowest bits of the first word of an object are
        MOVED_BITS, the other bits are the new address of the object."""
        self.moved = array("Q", bytes(16 * _SOME))

    def set_range(self, start: int, end: int, limit: int, step: int = 0, chunk: int = 0) -> None:
        """Set the range: objects start in [start, end) and end at `limit` or below. Each starts at
        a multiple of `step` bytes after the start of the range; `step` is a power of two, or 0 for
        the alignment of objects. If `chunk` is not 0, there are free chunks of CMS between objects,
        and each object takes at least this number of bytes."""
        self.state[POSITION], self.state[END], self.state[LIMIT] = start, end, limit
        self.state[STEP], self.state[CHUNK] = step, chunk

    @property
    def position(self) -> int:
        """The start of the next object."""
        return self.state[POSITION]

    def skip_to(self, position: int) -> None:
        """Continue at this position."""
        self.state[POSITION] = position

    def run(self, engine: Engine, piece: Piece) -> Step:
        """Continue the walk in a piece that contains the position."""
        return Step(loops(engine).walk_objects(engine, piece, self))

    @property
    def found(self) -> int:
        """The number of objects that the last `run` found."""
        return self.state[FOUND]


def select_objects(engine: Engine, numbers: array[int], marks: bytearray, most: int) -> array[int]:
    """Return the indices ("I", ascending) of the objects whose class is marked; there are at most
    `most`. `numbers` has the class of each object, `marks` a byte for each class."""
    return loops(engine).select_objects(engine, numbers, marks or bytearray(1), most)


class ReferenceSearch(NamedTuple):
    """A search for the references among objects.

    `numbers` ("H" or "I") has the number of each object's class. `mirrors` ("I") has for each class
    the index of its java.lang.Class object, to which each instance refers, or NO_BLOCK. `extra`
    ("Q", ascending) has source << 32 | target for each reference that is not in a map. The source
    and the target are indices of objects."""

    walk: ObjectWalk
    numbers: array[int]
    mirrors: array[int]
    extra: array[int]

    def run(self, engine: Engine, graph: Graph, piece: Piece) -> None:
        """Add the references of the objects in this piece to a graph whose blocks are the objects.
        Pieces ascend from call to call."""
        loops(engine).scan_references(engine, graph, piece, self)


def loops(engine: Engine) -> Loops:
    """Return the loops that belong to an engine."""
    return cast(Loops, import_loops(engine, "findleaks.runtimes.jvm"))


class Loops(Protocol):
    """The interface of engine_native.py and of its reference, engine_reference.py."""

    def walk_objects(self, engine: Any, piece: Piece, walk: ObjectWalk) -> int: ...

    def select_objects(self, engine: Any, numbers: array[int], marks: bytearray, most: int) -> array[int]: ...

    def scan_references(self, engine: Any, graph: Graph, piece: Piece, search: ReferenceSearch) -> None: ...
