"""Count CPython's objects. Each object is in a block of its own, and its second word is the address
of its type.

This module states the contract of engine_native.py (common/native/cpython_objects.c) and
engine_reference.py."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.dominators import NO_ROOT
from findleaks.engine.loops import import_loops
from findleaks.target.base import Piece, Range

# No object, in `found` and `merged`. `merged` is an array of roots for Dominators.merge_into_roots:
# IGNORED is an object without pointers; words after its end do not belong to it.
NO_OBJECT = NO_ROOT

LEAF = 1  # in `patterns`: an object without pointers

READY = 1 << 7
"""In `leaves`: objects without pointers have a 0 in the word after that of the mark."""

SUMS = 6
STEPS = 8  # an object begins at a multiple of two words into its block; the multiple is below STEPS


class TypeColumns(NamedTuple):
    """Input of `count_objects` for each type, a byte for each; see ObjectTally."""

    offsets: bytes
    marks: bytes
    leaves: bytes
    lives: bytes


class ObjectTally(NamedTuple):
    """The types that `count_objects` looks for, and the result to which it adds.

    These have one value for each type:
    - `types`: addresses.
    - `offsets`, a byte each: offset of objects in their blocks.
    - `marks`: offset in an object of a byte. At least one of the two low bits of this byte is set
      in marked objects. 0: objects of this type are never marked.
    - `leaves`: 1 if objects have no pointers; or a mask of bits of the same byte, which are all set
      in objects without pointers; or 0. See also READY.
    - `lives`: the pattern (Graph.exclude_words) of live objects.

    These have one value for each block: `found` is the number of the type of its live object, or
    NO_OBJECT. `merged` is the same, but IGNORED for objects without pointers. `patterns` has the
    pattern of every object, LEAF for objects without pointers, and 0 for other blocks.

    `sums` has SUMS words for each type: live objects; usable bytes of their blocks; objects that
    the garbage collector tracks (the word two words before the object is not 0); objects that
    nothing refers to (kept for reuse); marked objects; bytes of the marked objects' blocks.

    A block in use contains an object if its second word is a type whose offset matches, and if its
    first word can be a reference count. That is the case if bits 32 to 47 are 0, and if the word is
    below 1 MiB, or is outside all blocks and outside [low, high), the addresses of the program that
    has the types. With an offset, the word two words before the count is the collector's link: 0 or
    an address, apart from flags in its two low bits. The first match in a block counts. Example:
    with offset 16, the count is at 16 and the type at 24.

    `shift` is 0, or in a free-threaded interpreter the offset of an object's shared count, which
    precedes its type. In such an interpreter, `offsets` and `marks` are relative to that count,
    another part of the count precedes it, and a bit shows whether the collector tracks the
    object."""

    types: array[int]  # "Q"
    offsets: bytes
    marks: bytes
    leaves: bytes
    lives: bytes
    low: int
    high: int
    found: array[int]  # "I"
    merged: array[int]  # "I"
    patterns: bytearray
    sums: array[int]  # "Q"
    shift: int = 0

    @classmethod
    def of(cls, blocks: Blocks, types: Sequence[int], columns: TypeColumns, program: Range, shift: int = 0) -> ObjectTally:
        """Return a tally with nothing counted yet. Raises ValueError if the columns differ in
        length from `types`."""
        if any(len(column) != len(types) for column in columns):
            raise ValueError(f"{len(types)} types, columns of {[len(column) for column in columns]}")
        none = array("I", [NO_OBJECT]) * len(blocks)
        sums = array("Q", bytes(8 * SUMS * len(types)))
        return cls(array("Q", types), *columns, *program, none, none[:], bytearray(len(blocks)), sums, shift)


def count_objects(engine: Engine, blocks: Blocks, piece: Piece, tally: ObjectTally) -> array[int]:
    """Add the objects in the blocks in use that start in `piece` to the tally.

    Pass each byte in one piece, and pieces in any order. Returns the addresses of blocks whose
    first bytes are not completely in the piece. These are not counted: call again with a piece that
    contains only these bytes."""
    return _loops(engine).count_objects(engine, blocks, piece, tally)


def immortal_objects(engine: Engine, blocks: Blocks, piece: Piece, tally: ObjectTally) -> array[int]:
    """Return the starts of the blocks in `piece` that contain objects of the tally which a
    free-threaded interpreter made immortal."""
    return _loops(engine).immortal_objects(engine, blocks, piece, tally)


def _loops(engine: Engine) -> _Loops:
    return cast(_Loops, import_loops(engine, "findleaks.runtimes.cpython"))


class _Loops(Protocol):
    """The interface of engine_native.py and of its reference, engine_reference.py."""

    def count_objects(self, engine: Any, blocks: Blocks, piece: Piece, tally: ObjectTally) -> array[int]: ...
    def immortal_objects(self, engine: Any, blocks: Blocks, piece: Piece, tally: ObjectTally) -> array[int]: ...
