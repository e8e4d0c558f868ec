"""Report the capacity that JavaScript arrays, Maps and Sets keep and do not use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.formatting import number, shorten, size
from findleaks.runtimes.base import Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.v8.spare_capacity import SpareCapacity, measure_spare_capacity
from findleaks.value_classes import replace

if TYPE_CHECKING:
    from findleaks.runtimes.v8.object_graph import V8Graph

LEAST, SHARE = 4 << 20, 0.1
"""Unused capacity is reported if it has at least this number of bytes, and this fraction of the
bytes of V8's live objects."""
_ARRAYS = "(array)"  # V8's type of elements, and of the tables of Maps and Sets
_REMEDIES = {
    "arrays": "create arrays with their final elements ([a, b], Array.from, slice()): the first push() reserves room for 17 elements",
    "Maps and Sets": "create each Map or Set when it gets its first entry; after most entries were deleted, copy it (new Map(map))",
}


def add_spare_capacity(findings: Sequence[Finding], graph: V8Graph, types: Sequence[Type]) -> list[Finding]:
    """Return the findings about V8's heap. The first one also describes unused capacity, which is a
    part of the memory of live objects. `types`: see JavaScript.types. Raises Interrupted."""
    made, total = list(findings), sum(one.bytes for one in types)
    least = max(LEAST, SHARE * total)
    if not made or sum(one.bytes for one in types if one.name == _ARRAYS) < least:
        return made
    found = [one for one in measure_spare_capacity(graph) if one.spare >= least]
    for one in sorted(found, key=lambda spare: spare.spare, reverse=True):
        first = made[0]
        facts: dict[str, object] = {**first.facts, "unused_capacity": {**one._asdict(), "example": hex(one.example)}}
        cause = f"{first.cause} {_describe(one, graph, total)}".lstrip()
        made[0] = replace(first, cause=cause, remedies=(*first.remedies, _REMEDIES[one.noun]), facts=facts)
    return made


def _describe(one: SpareCapacity, graph: V8Graph, total: int) -> str:
    noun, about = one.noun[0].upper() + one.noun[1:], "about " if one.is_estimate else ""
    text = f"{noun} keep {about}{size(one.spare)} of unused capacity, {100 * one.spare // max(total, 1)} % of V8's live objects: "
    text += f"{about}{number(one.objects)} use {size(one.bytes - one.spare)} of {size(one.bytes)}."
    path = graph.describe_example(one.example)
    return f"{text} One of {about}{number(one.alike)} with {size(one.each)} unused is reached by {shorten(path, 400)}." if path else text
