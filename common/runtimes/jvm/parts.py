"""Find memory of the JVM: Java heap, code cache, metaspace, class data archive, Java thread
stacks.

Sources: OpenJDK 17 and 21, src/hotspot/share: memory/heap.hpp, memory/virtualspace.hpp; JDK 8,
src/share/vm: code/codeCache.hpp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.formatting import size
from findleaks.runtimes.base import Part
from findleaks.runtimes.jvm.collector_memory import list_collector_tables
from findleaks.runtimes.jvm.concurrent import ConcurrentHeap, mapped_heap
from findleaks.runtimes.jvm.spaces import REGION, Space, heap_addresses
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.threads import java_stacks, list_thread_words
from findleaks.runtimes.jvm.virtual_spaces import metaspace_nodes
from findleaks.runtimes.memory_part import Explanation
from findleaks.target.base import Range
from findleaks.target.ranges import intersection, merge_ranges

MAX_HEAPS = 64


def parts(tables: Tables, spaces: Sequence[Space], concurrent: Optional[ConcurrentHeap]) -> list[Part]:
    """Return the existing parts, in reading order. `spaces` are those of the Java heap;
    `concurrent` is the heap of ZGC or Shenandoah."""
    heap = _concurrent_heap(tables, concurrent) if concurrent is not None else [_java_heap(tables, spaces)]
    made = (*heap, _collector_memory(tables), _code_cache(tables), _metaspace(tables), _archive(tables), _stacks(tables))
    return [part for part in made if part is not None]


def _list_committed(tables: Tables, whole: Sequence[Range]) -> list[Range]:
    """Return the accessible parts of reserved ranges. These are the writable parts, because in
    cores of gcore everything is readable."""
    return intersection(merge_ranges(Range(r.start, r.end) for r in tables.target.regions() if r.writable), whole)


def list_reserved(tables: Tables, concurrent: Optional[ConcurrentHeap]) -> list[Range]:
    """Return all addresses reserved for the Java heap, the code cache and metaspace, sorted and
    disjoint, including committed memory."""
    heap = heap_addresses(tables)
    heaps = [concurrent.addresses, *concurrent.again] if concurrent is not None else [heap] if heap is not None else []
    heaps += [one.addresses for one in tables.once(list_collector_tables)]
    return merge_ranges([*heaps, *metaspace_nodes(tables), *(Range(low, high) for low, high, _ in _code_heaps(tables, "_boundary"))])


def _java_heap(tables: Tables, spaces: Sequence[Space]) -> Optional[Part]:
    whole = heap_addresses(tables)
    if whole is None or whole.start == whole.end:  # ZGC's heap is elsewhere
        found = mapped_heap(tables.target)
        return _heap_part(tables, found, None, "figures not read: all of it is searched") if found else None
    used, detail = _sum_used(spaces)
    reserve = f"{(whole.end - whole.start) >> 20:,} MiB reserved"
    return _heap_part(tables, _list_committed(tables, [whole]), used, f"{detail}, {reserve}" if detail else reserve)


def _heap_part(tables: Tables, ranges: Sequence[Range], used: Optional[int], detail: str) -> Part:
    return Part("Java heap", ranges, used, False, detail, has_objects=True, own_words=lambda: list_thread_words(tables))


def _concurrent_heap(tables: Tables, heap: ConcurrentHeap) -> Iterator[Part]:
    """Yield the heap, and the other mappings of the same memory."""
    yield _heap_part(tables, _list_committed(tables, [heap.addresses]), heap.used, heap.detail)
    again = _list_committed(tables, sorted(heap.again))
    if again:
        detail = "the same memory at other addresses, which the kernel counts again"
        yield Part("Java heap, mapped again", again, None, False, detail, has_objects=True)


def _sum_used(spaces: Sequence[Space]) -> tuple[Optional[int], str]:
    """Return the bytes below the tops of the spaces (None if unknown), and a phrase about the
    spaces."""
    if any(space.chunk for space in spaces):
        return None, "CMS"  # its free chunks lie among the objects
    used = sum(space.top - space.bottom for space in spaces)
    if not spaces or spaces[0].name != REGION:
        return (used, f"{len(spaces)} spaces") if spaces else (None, "")
    count = sum(space.top > space.bottom for space in spaces)
    return used, f"{count:,} regions of {(spaces[0].end - spaces[0].bottom) >> 20} MiB in use"


def _collector_memory(tables: Tables) -> Optional[Part]:
    """Return the tables of the collector beside the heap, such as its card table."""
    by_name: dict[str, list[Range]] = {}
    for one in tables.once(list_collector_tables):
        by_name.setdefault(one.name, []).append(one.addresses)
    committed = {name: _list_committed(tables, some) for name, some in by_name.items()}
    ranges = merge_ranges(one for some in committed.values() for one in some)
    sizes = {name: sum(end - start for start, end in some) for name, some in committed.items()}
    detail = ", ".join(f"{name} {size(sizes[name])}" for name in sorted(sizes, key=lambda name: -sizes[name]) if sizes[name])
    return Part("GC structures", ranges, None, False, detail) if ranges else None


def _code_cache(tables: Tables) -> Optional[Part]:
    found = list(_code_heaps(tables))
    ranges = merge_ranges(Range(low, high) for low, high, _ in found)
    return Part("code cache", ranges, None, False, f"{found[0][2]} heaps") if found else None


def _code_heaps(tables: Tables, what: str = "") -> Iterator[tuple[int, int, int]]:
    """Yield (low, high, number of heaps) of each heap of the code cache: the committed range, or,
    with what="_boundary", the reserved range."""
    heaps = code_heaps(tables)
    for heap in heaps:
        space = tables.place("CodeHeap", "_memory", heap)
        low, high = tables.word("VirtualSpace", f"_low{what}", space), tables.word("VirtualSpace", f"_high{what}", space)
        if low and high and low < high:
            yield low, high, len(heaps)


def code_heaps(tables: Tables) -> Sequence[int]:
    """Return the addresses of the heaps of the code cache. JDK 8 has one heap, and no array.
    Later versions have an array, whose first member is the number of heaps."""
    if single := tables.word("CodeCache", "_heap"):
        return (single,)
    heaps = tables.word("CodeCache", "_heaps") or 0
    count, data = tables.memory.int32(heaps), tables.word("GrowableArray<int>", "_data", heaps)
    return (tables.memory.words(data, count) or ()) if count and data and count <= MAX_HEAPS else ()


def _metaspace(tables: Tables) -> Optional[Part]:
    nodes = metaspace_nodes(tables)
    ranges = _list_committed(tables, merge_ranges(nodes))
    reserve = sum(node.end - node.start for node in nodes) >> 20
    if not ranges:
        return None
    return Part("metaspace", ranges, None, False, f"{reserve:,} MiB reserved", explain=lambda: _explain_classes(tables))


def _explain_classes(tables: Tables) -> Optional[Explanation]:
    from findleaks.runtimes.jvm.class_groups import explain_classes  # seldom needed

    return explain_classes(tables)


def _archive(tables: Tables) -> Optional[Part]:
    base, top = tables.word("MetaspaceObj", "_shared_metaspace_base"), tables.word("MetaspaceObj", "_shared_metaspace_top")
    if not base or not top or base >= top:
        return None
    readable = merge_ranges(Range(r.start, r.end) for r in tables.target.regions() if r.readable)
    return Part("class data archive", intersection(readable, [Range(base, top)]), None)


def _stacks(tables: Tables) -> Optional[Part]:
    ranges = sorted(Range(base - size, base) for base, size in java_stacks(tables))
    detail = f"{len(ranges):,} threads"
    return Part("stacks of Java threads", merge_ranges(ranges), None, False, detail, are_stacks=True) if ranges else None
