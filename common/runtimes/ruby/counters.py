"""Read the collector's counters, which are named as in GC.stat and ObjectSpace.count_objects.

Sources: gc.c (gc_stat_internal, count_objects) of 2.7.4, 3.1.2 and 3.3.8, gc/default/default.c
(rb_gc_impl_stat) of 3.4. Most fields near `heap_pages`, `profile.count` and `oldmalloc_increase`
have the same distance from these in all versions. For the other fields, invariants show the
distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.runtimes.base import Count
from findleaks.runtimes.ruby.census import TYPES
from findleaks.runtimes.ruby.layout import FLAGS, NEW_PAGE, NEWEST_FLAGS, NEWEST_PAGE, OLD_PAGE, Layout
from findleaks.runtimes.ruby.pages import Page

MODES = ("", "marking", "sweeping", "compacting")
DURING = 1 << 5

ALLOCATED, ONE_POOL, POOLS, HEAPS = 24, 160, 224, 144
"""Offset of total_allocated_objects up to 3.1; bytes of a size pool in 3.1, which has one pool, and
in 3.3, where each pool has its own counters; bytes of a heap, as 3.4 calls a pool."""

# Bytes from the end of the last size pool to heap_pages.sorted: flag, mark stack, marked_slots. In
# 3.4, the number of empty pages and their list come before these.
BEFORE_SORTED, NEWEST_BEFORE_SORTED = 56, 72
# Bytes from heap_pages.sorted to profile.count since 3.0 (read_barrier_faults); 176 before.
FAULTS = 184


class Counters:
    """The values of GC.stat. Counters that cannot be read are left out."""

    def __init__(self, memory: Memory, layout: Layout, problems: list[Problem]) -> None:
        self._memory, self._layout, self._problems = memory, layout, problems

    def stopped_in(self) -> str:
        """Return the collector's phase ("marking"), or "" if no collection is running (a pending
        lazy sweep does not count)."""
        offset = NEWEST_FLAGS if self._layout.fields is NEWEST_PAGE else FLAGS
        flags = self._memory.int32(self._layout.objspace + offset) if self._layout.objspace else None
        return "" if not flags or not flags & DURING else MODES[flags & 3] or "collecting"

    def read(self, pages: Sequence[Page], by_type: Mapping[int, int]) -> dict[str, Count]:
        """Return all counters. `by_type`: the number of slots by T_ type."""
        found = self._statistics(pages)
        total = sum(page.number for page in pages)
        if pages:
            found["TOTAL"] = total
            found["FREE"] = by_type.get(0, 0)
            found.update((f"T_{TYPES.get(tag, hex(tag))}", by_type[tag]) for tag in sorted(by_type) if tag)
        return {name: Count(value, "bytes" if "bytes" in name else "") for name, value in found.items() if value is not None}

    def _statistics(self, pages: Sequence[Page]) -> dict[str, Optional[int]]:
        layout, memory = self._layout, self._memory
        at, count = layout.sorted, layout.count
        found: dict[str, Optional[int]] = {"count": memory.word(count)}
        # struct {limit, increase} at the beginning of the object space
        malloc = {
            "malloc_increase_bytes": memory.word(layout.increase),
            "malloc_increase_bytes_limit": memory.word(layout.increase - 8),
        }
        if not at:
            return {**found, **malloc}
        pools = self._pools(pages)
        distance = pools.step if pools else 0
        if distance in (POOLS, HEAPS):
            times = [memory.word(count + 8), memory.word(count + 32)]
            found["time"] = _milliseconds(sum(time or 0 for time in times))
            found["marking_time"], found["sweeping_time"] = map(_milliseconds, times)
        elif distance == ONE_POOL:
            found["time"] = _milliseconds(memory.word(count + 32))
        is_newest = layout.fields is NEWEST_PAGE
        # In 3.4, each heap has its own number of final slots.
        shift = 8 if is_newest else 0
        final = self._sum(pools, 48) if is_newest and pools else memory.word(at + 56)
        available = sum(page.number for page in pages)
        allocated, freed, mapped, returned = self._totals(pools)
        live = None if allocated is None or freed is None or final is None else allocated - freed - final
        if is_newest:
            found["heap_allocated_pages"] = layout.pages
            found["heap_empty_pages"] = memory.word(at - NEWEST_BEFORE_SORTED)
            found["heap_allocatable_slots"] = memory.word(at + 48)
        else:
            found["heap_allocated_pages"] = memory.word(at + 8)
            found["heap_sorted_length"] = memory.word(at + 24)
            found["heap_allocatable_pages"] = self._sum(pools, 8) if pools else memory.word(at + 16)
        found["heap_available_slots"] = available
        found["heap_live_slots"] = live
        found["heap_free_slots"] = available - live - final if live is not None and final is not None else None
        found["heap_final_slots"] = final
        found["heap_marked_slots"] = memory.word(at - 8)
        found["heap_eden_pages"] = sum(not page.tomb for page in pages)
        if not is_newest:
            found["heap_tomb_pages"] = sum(page.tomb for page in pages)
        found["total_allocated_pages"], found["total_freed_pages"] = mapped, returned
        found["total_allocated_objects"], found["total_freed_objects"] = allocated, freed
        found.update(malloc)
        found["minor_gc_count"], found["major_gc_count"] = memory.word(at + 128 - shift), memory.word(at + 136 - shift)
        found["compact_count"] = memory.word(at + 144 - shift)
        if count - at >= FAULTS or is_newest:
            found["read_barrier_faults"] = memory.word(at + 152 - shift)
        found.update(self._old(distance))
        return found

    def _old(self, distance: int) -> dict[str, Optional[int]]:
        """Return the counters of struct rgengc.

        Its last members are oldmalloc_increase and its limit. The compactor's tables of 31 counts
        each follow."""
        at, word = self._layout.old_increase, self._memory.word
        if not at:
            return {}
        found: dict[str, Optional[int]] = {}
        tables = {ONE_POOL: 2, POOLS: 4, HEAPS: 4}.get(distance, 0)
        if tables:
            found["total_moved_objects"] = word(at + 16 + tables * 31 * 8)
        found["remembered_wb_unprotected_objects"], found["remembered_wb_unprotected_objects_limit"] = word(at - 32), word(at - 24)
        found["old_objects"], found["old_objects_limit"] = word(at - 16), word(at - 8)
        found["oldmalloc_increase_bytes"], found["oldmalloc_increase_bytes_limit"] = word(at), word(at + 8)
        return found

    def _pools(self, pages: Sequence[Page]) -> Optional[range]:
        """Return the addresses of the size pools; None before 3.1."""
        if self._layout.fields not in (NEW_PAGE, NEWEST_PAGE) or not pages:
            return None
        is_newest = self._layout.fields is NEWEST_PAGE
        end = self._layout.sorted - (NEWEST_BEFORE_SORTED if is_newest else BEFORE_SORTED)
        headers = {page.size: page.header for page in pages}.values()
        pointers = {self._memory.word(header + 16) or 0 for header in headers}
        places = sorted(pool for pool in pointers if self._layout.objspace < pool < end)
        if not places:
            return None
        distance = min((high - low for low, high in zip(places, places[1:])), default=end - places[0])
        if distance not in ((HEAPS,) if is_newest else (ONE_POOL, POOLS)) or (end - places[0]) % distance:
            what = f"Ruby's size pools of {distance} bytes are unknown: their counters are omitted"
            self._problems.append(Problem(places[0], what, False))
            return None
        return range(places[0], end, distance)

    def _totals(self, pools: Optional[range]) -> tuple[Optional[int], Optional[int], Optional[int], Optional[int]]:
        """Return total_allocated_objects, total_freed_objects, total_allocated_pages and
        total_freed_pages."""
        if pools is not None and pools.step == POOLS:
            return self._sum(pools, 48), self._sum(pools, 56), self._sum(pools, 16), self._sum(pools, 24)
        word, at, count = self._memory.word, self._layout.sorted, self._layout.count
        if pools is not None and pools.step == HEAPS:
            return self._sum(pools, 32), self._sum(pools, 40), word(at + 8), word(at + 16)
        if self._layout.fields is not OLD_PAGE and pools is None:
            return None, None, None, None
        return word(self._layout.objspace + ALLOCATED), word(count + 8), word(count + 16), word(count + 24)

    def _sum(self, pools: range, offset: int) -> Optional[int]:
        values = [self._memory.word(pool + offset) for pool in pools]
        return None if None in values else sum(value or 0 for value in values)


def _milliseconds(nanoseconds: Optional[int]) -> Optional[int]:
    return nanoseconds // 1_000_000 if nanoseconds is not None else None
