"""tcmalloc's own counts, and those of the walk: size classes, caches, properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from findleaks.allocators.base import Arena, Cache, Problem, ThreadCache
from findleaks.allocators.tcmalloc.layout import COUNTER, IN_USE, MOVES, NUM_SPANS, PAGE_HEAP_STATS, RETURNED, WORD, pages_table
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State

if TYPE_CHECKING:
    from findleaks.allocators.tcmalloc.view import TcmallocView


def central(one: TcmallocView, number: int) -> dict[str, int]:
    """What a central list counts (tcmalloc.cc, ExtractStats; central_freelist.cc, OverheadBytes).

    Spans; blocks free on them; blocks in chains of its transfer cache; and bytes at the ends of its
    spans that are too few for a block.
    """
    memory, place = one.memory, one.place
    at = place.of_class(number)
    spans, counter = memory.word(at + NUM_SPANS) or 0, memory.word(at + COUNTER) or 0
    used = (memory.int32(at + place.layout.used_slots) or 0) if place.layout.slots else 0
    pages = memory.word(pages_table(place.table) + WORD * number) or 0
    rest = pages * place.layout.page % place.sizes[number]
    moved = memory.int32(place.table + MOVES + 4 * number) or 0
    return {"central": counter, "transfer": used * moved, "spans": spans, "overhead": spans * rest}


def page_heap(one: TcmallocView) -> dict[str, int]:
    """The counters of PageHeap::Stats."""
    at = one.place.root + one.place.layout.stats
    return {name: one.memory.word(at + WORD * number) or 0 for number, name in enumerate(PAGE_HEAP_STATS)}


def properties(one: TcmallocView) -> dict[str, int]:
    """What MallocExtension::GetNumericProperty returns, by property (tcmalloc.cc)."""
    pages = page_heap(one)
    numbers = range(1, len(one.place.sizes))
    lists = {number: central(one, number) for number in numbers}
    of_central = sum(one.place.sizes[n] * lists[n]["central"] + lists[n]["overhead"] for n in numbers)
    of_transfer = sum(one.place.sizes[n] * lists[n]["transfer"] for n in numbers)
    of_threads = sum(heap.size for heap in one.found.heaps)
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


def summary(one: TcmallocView) -> dict[str, object]:
    """The page heap's counts for the JSON."""
    pages = page_heap(one)
    return {name: pages[name] for name in ("system_bytes", "free_bytes", "unmapped_bytes")}


def reconcile(one: TcmallocView) -> None:
    """Report where tcmalloc's counts and the walk differ: a thread stopped in malloc, or damage."""
    pages = page_heap(one)
    spans = {"system_bytes": 0, "free_bytes": 0, "unmapped_bytes": 0}
    names = ("", "free_bytes", "unmapped_bytes")
    for span in one.spans:
        size = span.end - span.start
        spans["system_bytes"] += size
        if span.location != IN_USE:
            spans[names[span.location]] += size
    at = one.place.root + one.place.layout.stats
    differ = [f"{name} {pages[name]:,}, found {value:,}" for name, value in spans.items() if value != pages[name]]
    if differ:
        one.problems.append(Problem(at, f"the page heap counts {'; '.join(differ)}", False))
    for number in range(1, len(one.place.sizes)):
        counted = central(one, number)["central"]
        if counted != one.lists.central[number]:
            size, listed = one.place.sizes[number], one.lists.central[number]
            what = f"the central list of size {size} counts {counted:,} free blocks, on its spans' lists are {listed:,}"
            one.problems.append(Problem(one.place.of_class(number) + COUNTER, what, False))
    for heap in one.found.heaps:
        held: Mapping[int, int] = one.lists.held.get(heap.address, {})
        size = sum(one.place.sizes[number] * count for number, count in held.items())
        if size != heap.size:
            whose = f"thread {heap.tid}'s cache" if heap.tid else "a thread cache"
            one.problems.append(Problem(heap.address, f"{whose} counts {heap.size:,} bytes, its lists hold {size:,}", False))


def rows(one: TcmallocView, blocks: Blocks) -> list[Cache]:
    """A row for each size class, and "large" for blocks that have a span of their own."""
    sizes = one.place.sizes
    numbers = {size: number for number, size in enumerate(sizes) if number}
    # size class, 0 for large -> blocks by state, then bytes by state
    tally: dict[int, list[int]] = {}
    for heap in one.heaps():
        for start, end in heap.parts():
            for size, state, count in blocks.by_size(start, end):
                if state != State.METADATA:
                    _add(tally, numbers.get(size, 0), size, state, count)
    memory: dict[int, int] = {}
    for span in one.spans:
        if span.location == IN_USE:
            memory[span.number] = memory.get(span.number, 0) + span.end - span.start
            # of a size that is also a class's
            if not span.number and (span.sampled or span.end - span.start in numbers):
                index = blocks.find(span.start)
                if index >= 0 and blocks.address(index) == span.start and blocks.state(index) != State.METADATA:
                    size, state = blocks.size(index), blocks.state(index)
                    if size in numbers:
                        _add(tally, numbers[size], size, state, -1)
                        _add(tally, 0, size, state, 1)
    found = []
    for number in sorted(tally, key=lambda number: number or len(sizes)):
        used, cached, free, *sums = tally[number]
        if used or cached or free:
            own = _own(one, number)
            name, size = (str(sizes[number]), sizes[number]) if number else ("large", 0)
            found.append(Cache("", name, size, used, cached, free, sums[0], sums[1], sums[2], memory.get(number, 0), own=own))
    return found


def _add(tally: dict[int, list[int]], number: int, size: int, state: State, count: int) -> None:
    row = tally.setdefault(number, [0] * 6)
    row[state] += count
    row[3 + state] += size * count


def _own(one: TcmallocView, number: int) -> Mapping[str, int]:
    if not number:
        return {"spans": sum(not span.number and span.location == IN_USE for span in one.spans)}
    length = sum(this.length for heap in one.found.heaps for this in heap.lists if this.number == number)
    return {"class": number, **central(one, number), "thread": length}


def arenas(one: TcmallocView, blocks: Blocks) -> list[Arena]:
    """The one page heap."""
    found = rows(one, blocks)
    spare = sum(span.end - span.start for span in one.spans if span.location != IN_USE)
    mapped = sum(span.end - span.start for span in one.spans) + sum(end - start for start, end in one.metadata())
    returned = sum(span.end - span.start for span in one.spans if span.location == RETURNED)
    used, cached, free = sum(c.in_use_bytes for c in found), sum(c.cached_bytes for c in found), sum(c.free_bytes for c in found)
    return [Arena("page heap", used, cached, free, mapped, {**properties(one), "returned": returned}, spare)]


def thread_caches(one: TcmallocView) -> list[ThreadCache]:
    """What each thread keeps, by the lists that were followed."""
    found = []
    for heap in one.found.heaps:
        for number, count in sorted(one.lists.held.get(heap.address, {}).items()):
            if count:
                size = one.place.sizes[number]
                found.append(ThreadCache(heap.tid, heap.address, str(size), size, count, count * size))
    return found
