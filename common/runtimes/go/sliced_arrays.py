"""Findings about large Go arrays of which slices and strings use only a small part, and about
objects to which only the unused elements of such arrays refer."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import compress

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.terms import Totals
from findleaks.formatting import format_count, number, shorten, size, some
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.go.engine import NONE
from findleaks.runtimes.go.object_graph import GoGraph
from findleaks.runtimes.go.object_totals import ObjectType
from findleaks.runtimes.go.objects import HeapObjects
from findleaks.runtimes.go.slice_uses import SliceUses
from findleaks.runtimes.object_graph import LIVE
from findleaks.target.base import Range

_LEAST_ARRAYS = (1 << 10, 16 << 10)  # bytes of the smallest array that is examined
_MOST_ARRAYS = 1 << 17  # if there are more arrays of the first size, the second one applies
_LEAST, _SPARSE = 4 << 20, 16  # least bytes of a finding; at most 1 / _SPARSE of its arrays is used
_PART = 4  # unused elements are reported if they retain 1 / this of the live objects
_MOST_TYPES = 3  # types that a sentence names


def find_sliced_arrays(memory: Memory, objects: HeapObjects, engine: Engine, graph: GoGraph, live: int) -> Iterator[Finding]:
    """Yield a finding if arrays of which little is used have at least half of the bytes of live
    objects (`live`)."""
    blocks = objects.blocks
    marks = graph.graph
    arrays = _find_arrays(objects, marks, 0) if marks is not None else ()
    if marks is None or 2 * sum(map(blocks.size, arrays)) < max(live, 2 * _LEAST):
        return
    search = SliceUses(memory, objects, engine, marks, arrays, graph.names.name)
    if not search.run():
        return
    used = {index: sum(end - start for start, end in parts) for index, parts in search.uses.items()}
    sparse = {index: part for index, part in used.items() if part * _SPARSE <= blocks.size(index)}
    total = sum(map(blocks.size, sparse))
    if 2 * total < max(live, 2 * _LEAST):
        return
    counts = Counter(search.holders[index] for index in sparse)
    largest = max(sparse, key=lambda index: (blocks.size(index), -index))
    root = graph.describe_holder(largest)
    limit = "" if search.inexact.isdisjoint(sparse) else "at most "
    title = (
        f"In use, not leaked: slices and strings use {limit}{size(sum(sparse.values()))} of "
        f"{format_count(len(sparse), 'array')} of {size(total)}."
    )
    holders = some([f"{number(count)} from {shorten(name)}" for name, count in counts.most_common(_MOST_TYPES)], _MOST_TYPES)
    cause = f"An array stays in memory while anything refers to a part of it. These arrays are referred to by: {holders}. "
    cause += f"One of {size(blocks.size(largest))} is retained by {shorten(root, 120)}."
    facts: dict[str, object] = {
        "arrays": len(sparse),
        "array_bytes": total,
        "used_bytes": sum(sparse.values()),
        "holders": [{"type": name, "arrays": count} for name, count in counts.most_common(_MOST_TYPES)],
        "address": hex(blocks.address(largest)),
        "root": root,
    }
    remedies = (
        "copy the part that is needed (slices.Clone, strings.Clone)",
        "do not keep buffers that were large once, for example in a pool",
    )
    yield Finding("go-arrays", total, title, cause, remedies, (f"path {blocks.address(largest):#x}", "runtime --only go"), facts)


def find_unused_elements(memory: Memory, objects: HeapObjects, engine: Engine, graph: GoGraph, live: int) -> Iterator[Finding]:
    """Yield a finding if a quarter of the bytes of live objects (`live`) is reachable only through
    elements of arrays that no slice includes. For example, `q = q[1:]` keeps the removed element in
    the array.

    The objects are marked a second time without references from these elements. Those that are no
    longer reached are counted."""
    tree, marks = graph.dominators if live >= _LEAST else None, graph.graph
    if tree is None or marks is None:
        return
    least = max(live // _PART, _LEAST)
    retained = {index: tree.sum_retained(index).bytes for index in _find_arrays(objects, marks, 1) if _is_slice_array(objects, index)}
    if sum(retained.values()) < least:
        return
    search = SliceUses(memory, objects, engine, marks, retained, graph.names.name)
    if not search.run():
        return
    unused = {index: parts for index in search.uses if (parts := search.list_unused(index))}
    unused = {index: parts for index, parts in unused.items() if any(_has_references(objects, part) for part in parts)}
    if sum(retained[index] for index in unused) < least:
        return
    after = objects.mark(sorted(part for parts in unused.values() for part in parts))
    lost = [_subtract_live(*pair) for pair in zip(objects.by_type(marks), objects.by_type(after))]
    total = Totals.sum_of(one.live for one in lost)
    if total.bytes < least:
        return
    largest = max(unused, key=lambda index: (retained[index], -index))
    stride = objects.names.columns()[0][objects.types[largest] >> 1]
    elements, included = (sum(end - start for start, end in parts) // stride for parts in ([search.extent(largest)], search.uses[largest]))
    types = sorted((one for one in lost if one.live.blocks), key=lambda one: -one.live.bytes)[:_MOST_TYPES]
    title = (
        f"In use, not leaked: {size(total.bytes)} in {number(total.blocks)} objects of Go are retained only by elements of "
        f"{format_count(len(unused), 'array')} that slices do not include."
    )
    root = graph.describe_holder(largest)
    kinds = some([f"{number(one.live.blocks)} {shorten(one.name)} ({size(one.live.bytes)})" for one in types], _MOST_TYPES)
    cause = (
        f"An array keeps all its elements while a slice refers to a part of it: q = q[1:] and q = q[:0] remove none. Slices include "
        f"{number(included)} of the {number(elements)} elements of a {shorten(objects.title_at(largest))} that is retained by "
        f"{shorten(root, 120)}. Most by type: {kinds}."
    )
    facts: dict[str, object] = {
        "arrays": len(unused),
        "retained_objects": total.blocks,
        "retained_bytes": total.bytes,
        "address": hex(search.extent(largest).start),
        "type": objects.title_at(largest),
        "elements": elements,
        "included_elements": included,
        "holder": search.holders[largest],
        "root": root,
        "types": [{"type": one.name, "objects": one.live.blocks, "bytes": one.live.bytes} for one in types],
    }
    remedies = (
        "set an element to nil before it is removed: q[0] = nil; q = q[1:], or clear(q) before q = q[:0]",
        "from time to time, copy the elements that are left (slices.Clone)",
    )
    commands = (f"path {search.extent(largest).start:#x}", "runtime --only go")
    yield Finding("go-unused-elements", total.bytes, title, cause, remedies, commands, facts)


def _subtract_live(before: ObjectType, after: ObjectType) -> ObjectType:
    """Return the objects of a type that are live before, but not after."""
    return ObjectType(before.name, *(one.minus(other) for one, other in zip(before[1:], after[1:])))


def _is_slice_array(objects: HeapObjects, index: int) -> bool:
    """Return whether an object is an array of a known type, but not a part of a map."""
    kind = objects.type_value(index)
    return kind != NONE and kind & 1 == 1 and not objects.names.title(kind).endswith((" groups", " buckets", " directory"))


def _has_references(objects: HeapObjects, where: Range) -> bool:
    """Return whether there are references in a part of an array."""
    return any(any(piece.data) for piece in objects.pointers.pieces([where]))


def _find_arrays(objects: HeapObjects, graph: Graph, scanned: int) -> Sequence[int]:
    """Return the indices of large live objects, with pointers (`scanned` is 1) or without."""
    spans, found = objects.spans, array("I")
    for least in _LEAST_ARRAYS:
        chosen = [one == scanned and width >= least for one, width in zip(spans.scanned, spans.sizes)]
        if sum(compress(spans.slots, chosen)) > _MOST_ARRAYS:
            continue
        for start, slots in compress(zip(spans.starts, spans.slots), chosen):
            first = objects.blocks.find(start)
            found.extend(index for index in range(first, first + slots) if graph.kind(index) in LIVE)
        return found
    return found
