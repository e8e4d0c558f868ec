"""Live objects and garbage of runtimes whose object graph findleaks follows: Go and the JVM.

Garbage consists of the objects that no root reaches and that the collector has not freed yet."""

from __future__ import annotations

from collections.abc import Iterable

from findleaks.engine.contract import Graph
from findleaks.engine.terms import Totals
from findleaks.runtimes.base import Type
from findleaks.runtimes.slices import run_in_slices
from findleaks.target.base import Target

GARBAGE_OBJECTS, GARBAGE_BYTES = "garbage_objects", "garbage_bytes"
"""Keys of Type.own: the number of objects of the type that are garbage, and their bytes."""

GARBAGE_NATIVE_BLOCKS, GARBAGE_NATIVE_BYTES = "garbage_native_blocks", "garbage_native_bytes"
"""Keys of Type.own: native blocks that only garbage of the type retains, and their bytes."""

FREED_NATIVE_BYTES = "freed_native_bytes"
"""Key of Type.own: bytes of native blocks that only garbage with finalizers retains. They do not
count as GARBAGE_NATIVE_BYTES."""


def mark_objects(graph: Graph, target: Target) -> Graph:
    """Mark the objects that the graph's roots reach, and classify the others. Returns the graph.
    Raises Interrupted."""
    for step in (graph.mark, graph.classify):
        run_in_slices(step, target)
    return graph


def type_with_garbage(name: str, live: Totals, garbage: Totals) -> Type:
    """Return a type with the totals of its live objects; `own` has the totals of its garbage."""
    return Type(name, *live, {GARBAGE_OBJECTS: garbage.blocks, GARBAGE_BYTES: garbage.bytes})


def add_types(types: Iterable[Type]) -> list[Type]:
    """Return the types with at least one object. Different class loaders may have loaded types with
    the same name; these become one type."""
    found: dict[str, Type] = {}
    for one in types:
        known = found.get(one.name)
        if known is not None:
            own = {name: value + known.own[name] for name, value in one.own.items()}
            one = Type(one.name, one.objects + known.objects, one.bytes + known.bytes, own)
        found[one.name] = one
    return [one for one in found.values() if one.objects or any(one.own.values())]
