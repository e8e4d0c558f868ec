"""Text of `roots` for managed heaps: what each root retains in the heap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.audit.heap_roots import MOST_COUNTED
from findleaks.engine.dominators import SHARED_NAME
from findleaks.formatting import counted, number, shortened, size, table
from findleaks.results.roots import HeapObjects, HeapRoot, ManagedHeap

_TYPES = 3  # types that a row names


def text(heaps: Sequence[ManagedHeap], limit: int, width: int, whole: bool) -> Iterator[str]:
    """Yield the lines. `limit`: roots of each heap (0: all). `whole`: whether the heaps have all of
    their roots."""
    for at, heap in enumerate(heaps):
        if at:
            yield ""
        yield f"{heap.runtime}: {counted(heap.objects, 'live object')}, {size(heap.bytes)}"
        shown = heap.roots[: limit or None]
        rows = [(one.bytes, one.objects, _phrase(one)) for one in shown]
        if any(one.sort == "object" for one in shown):
            yield from (f"retained by {shortened(one.holder, 200)}" for one in shown if one.holder)
        elif whole and heap.shared_objects:
            rows.append((heap.shared_bytes, heap.shared_objects, _with_types(SHARED_NAME, heap.shared_types, heap.shared_objects)))
        rows.sort(key=lambda row: -row[0])
        rest = heap.roots[len(shown) :]
        if rest:
            more = f"{counted(len(rest), 'more root')} (--limit 0: all)"
            rows.append((sum(one.bytes for one in rest), sum(one.objects for one in rest), more))
        yield ""
        cells = [(size(held), number(objects), phrase) for held, objects, phrase in rows]
        yield from table(("RETAINS", "OBJECTS", "ROOT"), cells, (0, 1), width, cut=2)


def _phrase(root: HeapRoot) -> str:
    name = root.name
    if root.threads is not None:
        first, _, rest = name.partition(" ")
        name = f"{counted(root.threads, first.removesuffix('s'))} {rest}"
    return _with_types(shortened(name, 160), root.types, root.objects)


def _with_types(name: str, types: Sequence[HeapObjects], total: int) -> str:
    """Return the name, followed by the largest types, without numbers if they were not counted
    completely. `total`: the number of objects."""
    counted_all = total <= MOST_COUNTED
    listed = ", ".join(
        f"{number(one.objects)} {shortened(one.type, 60)}" if counted_all else shortened(one.type, 60) for one in types[:_TYPES]
    )
    return f"{name}{f': {listed}' if listed else ''}"
