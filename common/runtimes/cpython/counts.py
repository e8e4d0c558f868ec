"""Compare ob_refcnt of leaked objects with the existing references to them.

If an object counts more references than exist, it leaked because a Py_DECREF is missing. If the
objects of a cycle count only references within the cycle, the cycle is garbage that the collector
has not freed yet.

engine_native.py (native/object_counts.c) and engine_reference.py implement the contract that this
module states; this module also evaluates their columns. Sources: Include/refcount.h and object.h of
CPython 3.9 to 3.14 (the lower 32 bits of ob_refcnt are the count; the highest of them is set in
immortal objects)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Optional, Protocol, cast

from findleaks.engine.contract import Engine, Graph
from findleaks.engine.loops import import_loops
from findleaks.engine.terms import Totals
from findleaks.runtimes.base import MiscountedType, ReferenceCounts
from findleaks.runtimes.count_verdict import CountVerdict
from findleaks.runtimes.cpython.engine import ObjectTally
from findleaks.target.base import Piece

BlockReader = Callable[[int], Optional[Piece]]
"""A function that returns the memory of the block at an address, or None if it cannot be read."""

# Words for each type: objects with an excess, their excess references, uncollected objects.
SUMS = 3


class CountColumns(NamedTuple):
    """Columns that the engines fill.

    These have one value for each block: `excess` is the number of counted references that do not
    exist (until it is computed, the number of existing references). `flags` are only used inside
    the engine. `verdicts` has the CountVerdict of the leak head of a leaked block. `sums` has SUMS
    words for each type. `totals` has the blocks and bytes of each verdict."""

    excess: array[int]  # "I"
    flags: bytearray
    verdicts: bytearray
    sums: array[int]  # "Q"
    totals: array[int]  # "Q"

    @classmethod
    def of(cls, blocks: int, types: int) -> CountColumns:
        """Return columns of zeros."""
        empty = array("I", bytes(4 * blocks))
        return cls(
            empty, bytearray(blocks), bytearray(blocks), array("Q", bytes(8 * SUMS * types)), array("Q", bytes(16 * len(CountVerdict)))
        )


def compare_counts(
    engine: Engine, graph: Graph, pieces: Iterable[Piece], read: BlockReader, tally: ObjectTally, names: Sequence[str]
) -> ReferenceCounts:
    """Compare the reference counts of all leaked objects of a classified graph.

    `pieces`: the memory of all blocks. `read` returns a block that continues after the end of a
    piece. `names`: the names of types, by number."""
    loops = cast(_Loops, import_loops(engine, "findleaks.runtimes.cpython"))
    columns = CountColumns.of(len(tally.found), len(tally.types))
    loops.compare_counts(engine, graph, pieces, read, tally, columns)
    return _result(columns, names)


def _result(columns: CountColumns, names: Sequence[str]) -> ReferenceCounts:
    types: dict[str, MiscountedType] = {}
    for number, name in enumerate(names):
        objects, references, uncollected = columns.sums[SUMS * number : SUMS * number + SUMS]
        if objects or uncollected:
            before = types.get(name, MiscountedType(name, 0, 0, 0))
            types[name] = MiscountedType(name, before.objects + objects, before.excess + references, before.uncollected + uncollected)
    totals = [Totals(*columns.totals[2 * verdict : 2 * verdict + 2]) for verdict in CountVerdict]
    return ReferenceCounts(columns.verdicts, columns.excess, totals, sorted(types.values(), key=lambda one: (-one.objects, one.name)))


class _Loops(Protocol):
    """The interface of engine_native.py and of its reference, engine_reference.py."""

    def compare_counts(
        self, engine: Any, graph: Any, pieces: Iterable[Piece], read: BlockReader, tally: ObjectTally, columns: CountColumns
    ) -> None: ...
