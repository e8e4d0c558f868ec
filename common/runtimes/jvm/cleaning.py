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

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.bulk import read_records
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.jvm.engine import FIXED
from findleaks.runtimes.jvm.objects import JavaObjects
from findleaks.runtimes.jvm.reachability import Reachability
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.object_graph import GARBAGE
from findleaks.target.interruptible import interruptible

_REFERENCE, _NO_QUEUE = "java.lang.ref.Reference", "java.lang.ref.ReferenceQueue$Null"
_SAMPLED = 64  # garbage objects of the class that are examined
_MOST_OWNERS = 256  # garbage objects from which one of these is reachable, at most
_SOME = 1 << 14  # references that are read together


def is_cleaned(tables: Tables, engine: Engine, objects: Optional[JavaObjects], reach: Optional[Reachability], name: str) -> bool:
    """Return whether a reference with a queue announces that objects of the class `name` are
    garbage; True if it is unknown. Only some of the objects are examined."""
    if objects is None or reach is None or reach.referent is None:
        return True
    kinds = reach.graph.kinds()
    indices = objects.of_classes([number for number, one in enumerate(objects.classes) if one.name == name])
    garbage = [index for index in indices if kinds[index] in GARBAGE]
    if not garbage:
        return True
    announced = set(_referents(tables, engine, objects, reach.referent))
    some = interruptible(tables.target, garbage[:: -(-len(garbage) // _SAMPLED)])
    return any(not announced.isdisjoint(_owners(reach.graph, kinds, index)) for index in some)


def _owners(graph: Graph, kinds: memoryview, index: int) -> Sequence[int]:
    """Return a garbage object and the nearest garbage objects from which it is reachable."""
    found, known = [index], {index}
    for one in found:
        for other in graph.referrers(one):
            if other not in known and kinds[other] in GARBAGE and len(found) < _MOST_OWNERS:
                known.add(other)
                found.append(other)
    return found


def _referents(tables: Tables, engine: Engine, objects: JavaObjects, referent: int) -> Iterator[int]:
    """Yield the indices of the objects to which references with a queue refer. `referent`: the
    offset of the field."""
    numbers = [number for number, one in enumerate(objects.classes) if one.kind == FIXED and _REFERENCE in objects.reader.supers(one.klass)]
    references, order = objects.layout.references, tables.memory.arch.byteorder
    size = referent + 2 * references.size
    indices = objects.of_classes(numbers)
    for first in interruptible(tables.target, range(0, len(indices), _SOME)):
        starts = objects.blocks.columns_of(indices[first : first + _SOME]).address.tolist()
        data, _ = read_records(tables.target, engine, starts, size)
        for at in range(0, len(data), size):
            target, queue = (
                objects.index_of(references.decode_at(data, at + offset, order)) for offset in (referent, referent + references.size)
            )
            if NO_BLOCK not in (target, queue) and objects.name_of(queue) != _NO_QUEUE:
                yield target
