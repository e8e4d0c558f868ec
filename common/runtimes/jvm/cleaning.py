"""Determine whether a collection also frees the native memory of Java objects that are garbage.

The collector frees only Java objects. Their native memory is freed by a Cleaner, or by a thread of
a library that takes references from a queue. Both need a java.lang.ref.Reference with a queue. Its
referent is the object, or another garbage object that refers to it. For example, the native memory
of an Inflater belongs to its Inflater$InflaterZStreamRef; the referent of the Cleaner is the
Inflater. If there is no such reference, the native memory is leaked: a collection frees only the
object that has its address. Objects with a finalizer are live until the finalizer has run
(reachability.py).

Sources: OpenJDK 8 to 25, java/lang/ref/Reference.java (`queue` follows `referent`) and
ReferenceQueue.java (the class Null is that of the queue of references without a queue)."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from typing import Optional

from findleaks.allocators.bulk import read_records
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.dominators import IGNORED, NO_ROOT
from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.jvm.engine import FIXED
from findleaks.runtimes.jvm.objects import JavaObjects
from findleaks.runtimes.jvm.reachability import Reachability
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.object_graph import GARBAGE
from findleaks.runtimes.slices import run_in_slices
from findleaks.target.interruptible import interruptible

_REFERENCE, _NO_QUEUE = "java.lang.ref.Reference", "java.lang.ref.ReferenceQueue$Null"
_SAMPLED = 1 << 12  # garbage objects of the class that are examined
_SOME = 1 << 14  # references that are read together


def is_cleaned(tables: Tables, engine: Engine, objects: Optional[JavaObjects], reach: Optional[Reachability], name: str) -> bool:
    """Return whether a reference with a queue announces that objects of the class `name` are
    garbage; True if it is unknown. Only some of the objects are examined. Raises Interrupted."""
    if objects is None or reach is None or reach.referent is None:
        return True
    if name not in reach.cleaned:
        reach.cleaned[name] = _is_cleaned(tables, engine, objects, reach.graph, reach.referent, name)
    return reach.cleaned[name]


def _is_cleaned(tables: Tables, engine: Engine, objects: JavaObjects, graph: Graph, referent: int, name: str) -> bool:
    """See `is_cleaned`. `referent`: the offset of the field in a reference."""
    kinds = graph.kinds()
    indices = objects.of_classes([number for number, one in enumerate(objects.classes) if one.name == name])
    garbage = [index for index in indices if kinds[index] in GARBAGE]
    if not garbage:
        return True
    announced = array("I", (index for index in _referents(tables, engine, objects, referent) if kinds[index] in GARBAGE))
    # The engine needs time for each call of Graph.referrers in proportion to all references, so
    # findleaks searches the objects for references instead.
    tree = graph.dominators(1)
    tree.merge_into_roots(_ignore_live(graph))
    tree.refer(0, announced)
    run_in_slices(tree.compute, tables.target)
    return any(tree.sum_retained(index).blocks for index in garbage[:: -(-len(garbage) // _SAMPLED)])


def _ignore_live(graph: Graph) -> array[int]:
    """Return NO_ROOT for each garbage object, and IGNORED for others. These constants differ only
    in the lowest byte."""
    lowest = bytes((NO_ROOT if kind in GARBAGE else IGNORED) & 0xFF for kind in range(256))
    kinds = bytes(graph.kinds())
    found = bytearray(b"\xff" * (4 * len(kinds)))
    found[0 if sys.byteorder == "little" else 3 :: 4] = kinds.translate(lowest)
    return array("I", bytes(found))


def _referents(tables: Tables, engine: Engine, objects: JavaObjects, referent: int) -> Iterator[int]:
    """Yield the indices of the objects to which references with a queue refer. `referent`: the
    offset of the field."""
    numbers = [number for number, one in enumerate(objects.classes) if one.kind == FIXED and _REFERENCE in objects.reader.supers(one.klass)]
    references, code = objects.layout.references, "I" if objects.layout.references.size == 4 else "Q"
    indices = objects.of_classes(numbers)
    has_queue: dict[int, bool] = {}
    for first in interruptible(tables.target, range(0, len(indices), _SOME)):
        starts = objects.blocks.columns_of(indices[first : first + _SOME]).address
        data, _ = read_records(tables.target, engine, [start + referent for start in starts], 2 * references.size)
        words = array(code, bytes(data))
        if tables.memory.arch.byteorder != sys.byteorder:
            words.byteswap()
        for target, queue in zip(words[::2], words[1::2]):
            if queue not in has_queue:
                found = objects.index_of(references.decode(queue))
                has_queue[queue] = found != NO_BLOCK and objects.name_of(found) != _NO_QUEUE
            index = objects.index_of(references.decode(target)) if target and has_queue[queue] else NO_BLOCK
            if index != NO_BLOCK:
                yield index
