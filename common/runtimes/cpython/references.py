"""References of Python objects to one another, directly and through blocks that contain no object,
such as the items of a list.

This module states the contract of references_native.py (common/native/cpython_references.c) and
references_reference.py."""

from __future__ import annotations

from array import array
from typing import Any, Protocol, cast

from findleaks.engine.contract import Engine, Graph
from findleaks.engine.loops import import_loops
from findleaks.runtimes.cpython.engine import ObjectTally
from findleaks.target.base import Piece

TAGS = 3  # low bits of a reference in a frame (Include/internal/pycore_stackref.h of 3.14)
COLUMNS = 3


def find_references(engine: Engine, graph: Graph, piece: Piece, tally: ObjectTally, with_object: bool) -> array[int]:
    """Return three words ("Q") for each reference in this piece, in the order of addresses:
    source << 32 | number of the word in the source, target, offset in the target in bytes.

    Sources and targets are indices of blocks. The sources are the blocks with an object, or those
    without. Words that `graph` excludes are no references. A reference to an object leads to its
    start; words that refer to other parts of its block, such as the collector's links, are left
    out."""
    loops = cast(_Loops, import_loops(engine, "findleaks.runtimes.cpython", "references"))
    return loops.find_references(engine, graph, piece, tally, with_object)


class _Loops(Protocol):
    """The interface of references_native.py and of its reference, references_reference.py."""

    def find_references(self, engine: Any, graph: Any, piece: Piece, tally: ObjectTally, with_object: bool) -> array[int]: ...
