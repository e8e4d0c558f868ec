"""References of managed objects to one another, directly and through blocks that contain no object,
such as the items of a list.

This module states the contract of object_references_native.py (common/native/object_references.c)
and object_references_reference.py."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple, Protocol, cast

from findleaks.engine.contract import Engine, Graph
from findleaks.engine.loops import import_loops
from findleaks.runtimes.base import NO_OBJECT as NO_OBJECT
from findleaks.target.base import Piece

TAGS = 3
"""Low bits of a reference in a frame of CPython (Include/internal/pycore_stackref.h of 3.14)."""

COLUMNS = 3


class ObjectBlocks(NamedTuple):
    """The blocks with objects. `found` ("I") has, for each block, the number of its object's type,
    or NO_OBJECT. `offsets` has one byte for each type: the offset of objects in their blocks, plus
    `shift`."""

    found: array[int]
    offsets: bytes
    shift: int = 0


def find_references(engine: Engine, graph: Graph, piece: Piece, objects: ObjectBlocks, with_object: bool) -> array[int]:
    """Return three words ("Q") for each reference in this piece, in the order of addresses:

    - source << 32 | index of the referring word in the source
    - target
    - offset in the target in bytes

    Sources and targets are indices of blocks. If `with_object` is true, the sources are the blocks
    with an object; if it is false, the blocks without an object. Words that `graph`
    excludes are not references. A reference to an object points to the object's start. Words that
    refer to other parts of the object's block, such as the links of CPython's collector, are left
    out."""
    loops = cast(_Loops, import_loops(engine, "findleaks.runtimes", "object_references"))
    return loops.find_references(engine, graph, piece, objects, with_object)


class _Loops(Protocol):
    """The interface of object_references_native.py and of its reference,
    object_references_reference.py."""

    def find_references(self, engine: Any, graph: Any, piece: Piece, objects: ObjectBlocks, with_object: bool) -> array[int]: ...
