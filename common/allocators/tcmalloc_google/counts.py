"""tcmalloc's own counters, compared with the walk, by size class."""

from __future__ import annotations

from collections import Counter

from findleaks.allocators.base import Problem
from findleaks.allocators.tcmalloc_google.heap import GoogleHeap
from findleaks.allocators.tcmalloc_google.layout import COUNTER, REQUESTED, RETURNED

KINDS = {
    "cpu": "tcmalloc.cpu_free",
    "transfer": "tcmalloc.transfer_cache_free",
    "shard": "tcmalloc.sharded_transfer_cache_free",
    "thread": "tcmalloc.current_total_thread_cache_bytes",
}


def central(one: GoogleHeap, number: int) -> dict[str, int]:
    """Return the counters of a central list: free blocks in its spans, and spans."""
    at, word = one.place.of_class(number), one.memory.word
    return {"central": word(at + COUNTER) or 0, "spans": (word(at + REQUESTED) or 0) - (word(at + RETURNED) or 0)}


def properties(one: GoogleHeap) -> dict[str, int]:
    """Return bytes by property (global_stats.cc, ExtractStats and GetNumericProperty). The bytes
    after the last block of each span are counted as bytes of the central list."""
    sizes, found = one.place.sizes, dict.fromkeys(KINDS.values(), 0)
    for (kind, number), count in one.kept.items():
        found[KINDS[kind]] += count * sizes[number]
    free = 0
    for number, size in enumerate(sizes):
        if size:
            own = central(one, number)
            free += own["central"] * size + own["spans"] * ((one.place.pages[number] << one.place.layout.shift) % size)
    pages = sum(span.end - span.start for span in one.spans)
    found["tcmalloc.central_cache_free"] = free
    return {"generic.current_allocated_bytes": pages - sum(found.values()), **found}


def reconcile(one: GoogleHeap) -> None:
    """Report where tcmalloc's counters differ from the walk. Either a thread was stopped in malloc,
    or memory is damaged."""
    known = len(one.place.sizes)
    free, spans = [0] * known, [0] * known
    for _, _, _, _, number, _, count, allocated, _ in one.spans:
        if number and count > 1:
            free[number] += count - allocated
            spans[number] += 1
    for number, size in enumerate(one.place.sizes):
        if size and one.place.objects(number) > 1:
            own = central(one, number)
            if (own["central"], own["spans"]) != (free[number], spans[number]):
                what = f"counts {own['central']:,} free blocks in {own['spans']:,} spans, found {free[number]:,} in {spans[number]:,}"
                one.problems.append(Problem(one.place.of_class(number) + COUNTER, f"the central list of size {size} {what}", False))
    one.reconcile_thread_caches()


def of_size(one: GoogleHeap, size: int) -> dict[str, int]:
    """Return the counters of all classes of this size, including those for cold memory and NUMA
    nodes."""
    numbers = [number for number, other in enumerate(one.place.sizes) if other == size]
    found: Counter[str] = Counter(dict.fromkeys(("central", "spans", *KINDS), 0))
    for number in numbers:
        found.update(central(one, number))
        for kind in KINDS:
            found[kind] += one.kept[kind, number]
    return {"class": numbers[0] if numbers else 0, **found}
