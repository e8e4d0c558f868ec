"""Objects that name their type in their second word, each in a block of its own: CPython's. The contract, and the pure-Python twin of
common/kernel/cpython_objects.c.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.dominators import NO_ROOT
from findleaks.target.base import Piece, Range

NO_OBJECT = NO_ROOT
"""In `found` and `merged`, which dominators take for what blocks stand for; IGNORED there is an object that has no pointers: what stands
behind its end is not its own."""

SUMS = 6
STEPS = 8
"""Objects begin at multiples of two words, below so many of them, into their blocks."""


class ObjectTally(NamedTuple):
    """What `count_objects` adds to. `types` are the addresses of the types, by number; `offsets` how far into their blocks their
    objects begin, a byte each; `marks` where in them a byte stands of whose two low bits one is set in marked objects (0: nowhere, no
    object is marked); `leaves` 1 for a type whose objects have no pointers, or bits of that same byte all of which are set in
    objects without, or 0. `found` has the number of the type of the live object in each block, or NO_OBJECT; `merged` the same, but
    IGNORED for objects without pointers. `sums` are SUMS words
    a type: live objects, the usable bytes of their blocks, those of them that a garbage collector knows of (the word two in front of
    the object is not 0), objects that nothing refers to (kept to be used again), marked objects, and the bytes of these' blocks.

    An object is in a block in use if the word behind its first is a type whose offset is where it stands, and its first word can be a
    count of references: of bits 32 to 47 none is set, and it is below 1 MiB, or neither in any block nor in [low, high), where the program
    is that has the types. The first such counts."""

    types: array[int]  # "Q"
    offsets: bytes
    marks: bytes
    leaves: bytes
    low: int
    high: int
    found: array[int]  # "I"
    merged: array[int]  # "I"
    sums: array[int]  # "Q"

    @classmethod
    def of(cls, blocks: Blocks, types: Sequence[int], offsets: bytes, marks: bytes, leaves: bytes, program: Range) -> ObjectTally:
        """One with nothing counted yet."""
        if not len(types) == len(offsets) == len(marks) == len(leaves):
            raise ValueError(f"{len(types)} types, {len(offsets)} offsets, {len(marks)} marks, {len(leaves)} leaves")
        none = array("I", [NO_OBJECT]) * len(blocks)
        sums = array("Q", bytes(8 * SUMS * len(types)))
        return cls(array("Q", types), offsets, marks, leaves, *program, none, none[:], sums)


def count_objects(engine: Engine, blocks: Blocks, piece: Piece, tally: ObjectTally) -> array[int]:
    """Add the objects in the blocks in use that start in `piece` to the tally; pieces in any order, each byte
    once. The addresses of the blocks whose first bytes the piece cuts off, which are not counted: ask again with a piece of just
    these bytes."""
    name = "engine_kernel" if engine.name == "kernel" else "engine_python"
    loops = cast(_Loops, import_module(f"findleaks.runtimes.cpython.{name}"))
    return loops.count_objects(engine, blocks, piece, tally)


class _Loops(Protocol):
    """What engine_kernel.py and its twin, engine_python.py, both have."""

    def count_objects(self, engine: Any, blocks: Blocks, piece: Piece, tally: ObjectTally) -> array[int]: ...
