"""tcmalloc's own counts beside those of the walk, by size class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from findleaks.allocators.base import Arena, Cache, Problem, ThreadCache
from findleaks.allocators.tcmalloc_google.layout import COUNTER, REQUESTED, RETURNED
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State

if TYPE_CHECKING:
    from findleaks.allocators.tcmalloc_google.view import GoogleView

KINDS = {
    "cpu": "tcmalloc.cpu_free",
    "transfer": "tcmalloc.transfer_cache_free",
    "shard": "tcmalloc.sharded_transfer_cache_free",
    "thread": "tcmalloc.current_total_thread_cache_bytes",
}


def central(one: GoogleView, number: int) -> dict[str, int]:
    """A central list's own counts: free blocks in its spans, and its spans."""
    at, word = one.place.of_class(number), one.memory.word
    return {"central": word(at + COUNTER) or 0, "spans": (word(at + REQUESTED) or 0) - (word(at + RETURNED) or 0)}


def properties(one: GoogleView) -> dict[str, int]:
    """Bytes by name of property (global_stats.cc, ExtractStats and GetNumericProperty).

    What spans have behind their last block counts as on the central list.
    """
    sizes, found = one.place.sizes, dict.fromkeys(KINDS.values(), 0)
    for (kind, number), count in one.kept().items():
        found[KINDS[kind]] += count * sizes[number]
    free = 0
    for number, size in enumerate(sizes):
        if size:
            own = central(one, number)
            free += own["central"] * size + own["spans"] * ((one.place.pages[number] << one.place.layout.shift) % size)
    pages = sum(span.end - span.start for span in one.spans.found)
    found["tcmalloc.central_cache_free"] = free
    return {"generic.current_allocated_bytes": pages - sum(found.values()), **found}


def reconcile(one: GoogleView) -> None:
    """Report where tcmalloc's counts and the walk differ: a thread stopped in malloc, or damage."""
    known = len(one.place.sizes)
    free, spans = [0] * known, [0] * known
    for _, _, _, _, number, _, count, allocated, _ in one.spans.found:
        if number and count > 1:
            free[number] += count - allocated
            spans[number] += 1
    for number, size in enumerate(one.place.sizes):
        if size and one.place.objects(number) > 1:
            own = central(one, number)
            if (own["central"], own["spans"]) != (free[number], spans[number]):
                what = f"counts {own['central']:,} free blocks in {own['spans']:,} spans, found {free[number]:,} in {spans[number]:,}"
                one.problems.append(Problem(one.place.of_class(number) + COUNTER, f"the central list of size {size} {what}", False))
    for heap in one.found.threads:
        held = sum(one.place.sizes[cache.number] * len(cache.blocks) for cache in one.lists.held if cache.address == heap.address)
        if held != heap.size:
            whose = f"thread {heap.tid}'s cache" if heap.tid else "a thread cache"
            one.problems.append(Problem(heap.address, f"{whose} counts {heap.size:,} bytes, its lists hold {held:,}", False))


def rows(one: GoogleView, blocks: Blocks) -> list[Cache]:
    """A row for each size, and "large" for blocks that have a span of their own.

    Classes of the same size (for cold memory, for NUMA nodes) share a row: a block does not show
    its class.
    """
    tally: dict[int, list[int]] = {}
    apart: dict[int, list[int]] = {}
    for heap in one.heaps():
        for start, end in heap.parts():
            for size, state, count in blocks.by_size(start, end):
                if state != State.METADATA:
                    _add(tally, size, size, state, count)
    memory: Counter[int] = Counter()
    classes: dict[int, list[int]] = {}
    for number, size in enumerate(one.place.sizes):
        if size:
            classes.setdefault(size, []).append(number)
    for span in one.spans.found:
        memory[span.size if span.number else 0] += span.end - span.start
        if not span.number:
            index = blocks.find(span.start)
            if index >= 0 and blocks.address(index) == span.start and blocks.state(index) != State.METADATA:
                _add(tally, span.size, span.size, blocks.state(index), -1)
                _add(apart, 0, span.size, blocks.state(index), 1)
    kept = one.kept()
    found = []
    for size, (used, cached, free, *sums) in [*sorted(tally.items()), *apart.items()]:
        if used or cached or free:
            own: Mapping[str, int] = _own(one, classes.get(size, []), kept) if size else {"spans": used + cached + free}
            name = str(size) if size else "large"
            found.append(Cache("", name, size, used, cached, free, sums[0], sums[1], sums[2], memory[size], own=own))
    return found


def _add(tally: dict[int, list[int]], row: int, size: int, state: State, count: int) -> None:
    counts = tally.setdefault(row, [0] * 6)
    counts[state] += count
    counts[3 + state] += size * count


def _own(one: GoogleView, numbers: list[int], kept: Mapping[tuple[str, int], int]) -> dict[str, int]:
    found: Counter[str] = Counter(dict.fromkeys(("central", "spans", *KINDS), 0))
    for number in numbers:
        found.update(central(one, number))
        for kind in KINDS:
            found[kind] += kept.get((kind, number), 0)
    return {"class": numbers[0] if numbers else 0, **found}


def arenas(one: GoogleView, blocks: Blocks) -> list[Arena]:
    """The one page heap."""
    found = rows(one, blocks)
    regions = sum(end - start for start, end in one.regions)
    spare = regions - sum(span.end - span.start for span in one.spans.found)
    mapped = regions + sum(end - start for start, end in one.own)
    used, cached, free = (
        (sum(values) for values in zip(*((c.in_use_bytes, c.cached_bytes, c.free_bytes) for c in found))) if found else (0, 0, 0)
    )
    return [Arena("page heap", used, cached, free, mapped, properties(one), spare)]


def thread_caches(one: GoogleView) -> list[ThreadCache]:
    """What each thread and each CPU keeps."""
    found = []
    for held in one.held():
        size, count = one.place.sizes[held.number], len(held.blocks)
        if held.kind == "thread" and count:
            found.append(ThreadCache(held.owner, held.address, str(size), size, count, count * size))
        elif held.kind == "cpu" and count:
            found.append(ThreadCache(0, held.address, f"{size} of CPU {held.owner}", size, count, count * size, f"CPU {held.owner}"))
    return found
