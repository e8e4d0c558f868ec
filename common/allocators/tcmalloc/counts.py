"""tcmalloc's own counters, compared with the walk: size classes, caches, properties."""

from __future__ import annotations

from findleaks.allocators.base import Problem
from findleaks.allocators.tcmalloc.heap import TcmallocHeap
from findleaks.allocators.tcmalloc.layout import COUNTER, MOVES, NORMAL, NUM_SPANS, PAGE_HEAP_STATS, RETURNED, pages_table
from findleaks.allocators.tcmallocs.page_map import WORD


def central(one: TcmallocHeap, number: int) -> dict[str, int]:
    """Return the counts of a central list: its spans, the free blocks in these spans, the blocks in
    the chains of its transfer cache, and the bytes at the ends of spans that are too few for a
    block (tcmalloc.cc, ExtractStats; central_freelist.cc, OverheadBytes)."""
    memory, place = one.memory, one.place
    at = place.of_class(number)
    spans, counter = memory.word(at + NUM_SPANS) or 0, memory.word(at + COUNTER) or 0
    used = (memory.int32(at + place.layout.used_slots) or 0) if place.layout.slots else 0
    pages = memory.word(pages_table(place.table) + WORD * number) or 0
    rest = pages * place.layout.page % place.sizes[number]
    moved = memory.int32(place.table + MOVES + 4 * number) or 0
    return {"central": counter, "transfer": used * moved, "spans": spans, "overhead": spans * rest}


def page_heap(one: TcmallocHeap) -> dict[str, int]:
    """Read the counters of PageHeap::Stats."""
    at = one.place.root + one.place.layout.stats
    return {name: one.memory.word(at + WORD * number) or 0 for number, name in enumerate(PAGE_HEAP_STATS)}


def properties(one: TcmallocHeap) -> dict[str, int]:
    """Return what MallocExtension::GetNumericProperty returns, by property (tcmalloc.cc)."""
    pages = page_heap(one)
    numbers = range(1, len(one.place.sizes))
    lists = {number: central(one, number) for number in numbers}
    of_central = sum(one.place.sizes[n] * lists[n]["central"] + lists[n]["overhead"] for n in numbers)
    of_transfer = sum(one.place.sizes[n] * lists[n]["transfer"] for n in numbers)
    of_threads = sum(heap.size for heap in one.threads)
    kept = pages["free_bytes"] + pages["unmapped_bytes"]
    found = {
        "generic.current_allocated_bytes": pages["system_bytes"] - of_threads - of_central - of_transfer - kept,
        "generic.heap_size": pages["system_bytes"],
        "tcmalloc.slack_bytes": kept,
        "tcmalloc.central_cache_free_bytes": of_central,
        "tcmalloc.transfer_cache_free_bytes": of_transfer,
        "tcmalloc.thread_cache_free_bytes": of_threads,
        "tcmalloc.current_total_thread_cache_bytes": of_threads,
    }
    found.update({f"tcmalloc.pageheap_{name}": value for name, value in pages.items() if name != "system_bytes"})
    return found


def reconcile(one: TcmallocHeap) -> None:
    """Report where tcmalloc's counters differ from the walk. Either a thread was stopped in malloc,
    or memory is damaged."""
    pages = page_heap(one)
    found = {"system_bytes": sum(one.page_bytes), "free_bytes": one.page_bytes[NORMAL], "unmapped_bytes": one.page_bytes[RETURNED]}
    at = one.place.root + one.place.layout.stats
    differ = [f"{name} {pages[name]:,}, found {value:,}" for name, value in found.items() if value != pages[name]]
    if differ:
        one.problems.append(Problem(at, f"the page heap counts {'; '.join(differ)}", False))
    for number in range(1, len(one.place.sizes)):
        counted = central(one, number)["central"]
        if counted != one.listed[number]:
            size = one.place.sizes[number]
            what = f"the central list of size {size} counts {counted:,} free blocks, but its spans' lists have {one.listed[number]:,}"
            one.problems.append(Problem(one.place.of_class(number) + COUNTER, what, False))
    one.reconcile_thread_caches()
