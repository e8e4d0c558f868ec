"""Text of `roots` for managed heaps: what each root retains in the heap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.audit.heap_roots import MOST_COUNTED
from findleaks.engine.dominators import SHARED_NAME
from findleaks.formatting import format_count, hanging, number, shorten, size, table
from findleaks.results.roots import HeapObjects, HeapRoot, ManagedHeap

_TYPES = 3  # types that a row names


def text(heaps: Sequence[ManagedHeap], limit: int, width: int, whole: bool) -> Iterator[str]:
    """Yield the lines. `limit`: roots of each heap (0: all). `whole`: whether the heaps have all of
    their roots."""
    for at, heap in enumerate(heaps):
        if at:
            yield ""
        yield f"{heap.runtime}: {format_count(heap.objects, 'live object')}, {size(heap.bytes)}"
        shown = heap.roots[: limit or None]
        rows = [(one.bytes, one.objects, _phrase(one)) for one in shown]
        if any(one.sort == "object" for one in shown):
            yield from (f"retained by {shorten(one.holder, 200)}" for one in shown if one.holder)
        elif whole and heap.shared_objects and heap.shared_bytes:
            rows.append((heap.shared_bytes, heap.shared_objects, _with_types(SHARED_NAME, heap.shared_types, heap.shared_objects)))
        left = len(heap.roots) - len(shown) + heap.more_roots
        more = f"{format_count(left, 'more root')} (--limit 0: all)"
        has_rest = whole and heap.shared_objects is not None
        if left and has_rest:
            rows.append((heap.bytes - sum(row[0] for row in rows), heap.objects - sum(row[1] for row in rows), more))
        rows.sort(key=lambda row: -row[0])
        yield ""
        cells = [(size(held), number(objects)) for held, objects, _ in rows]
        for lead, phrase in zip(table(("RETAINS", "OBJECTS"), cells, (0, 1), width), ("ROOT", *(phrase for _, _, phrase in rows))):
            yield from hanging(f"{lead}  ", phrase, width)
        if left and not has_rest:
            yield f"  … {more}"


def _phrase(root: HeapRoot) -> str:
    """Describe a root: "static variable App.names: java.util.HashMap, retains 9,000 String".
    Examples without a type: "12 class loaders of type App$Loader", "3 goroutines in main.wait"."""
    name = shorten(root.name, 160)
    if root.threads is not None:
        first, _, rest = name.partition(" ")
        name = f"{format_count(root.threads, first.removesuffix('s'))} {rest}"
    if root.sort == "class-loader":
        name = name.replace("class loaders", format_count(root.count or 1, "class loader"), 1)
    elif root.type is not None:
        values = f"{number(root.count)} objects, such as " if root.count is not None and root.count > 1 else ""
        name = f"{name}: {values}{shorten(root.type)}{', retains' if root.types else ''}"
        return _with_types(name, root.types, root.objects, " ")
    return _with_types(name, root.types, root.objects)


def _with_types(name: str, types: Sequence[HeapObjects], total: int, link: str = ": ") -> str:
    """Return the name, followed by the largest types, without numbers if they were not counted
    completely. `total`: the number of objects."""
    counted_all = total <= MOST_COUNTED
    listed = ", ".join(f"{number(one.objects)} {shorten(one.type, 60)}" if counted_all else shorten(one.type, 60) for one in types[:_TYPES])
    return f"{name}{link if listed else ''}{listed}"
