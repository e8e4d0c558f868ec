"""Size classes, arenas and totals, from the extents and from jemalloc's counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from findleaks.allocators import base
from findleaks.allocators.base import Problem
from findleaks.allocators.jemalloc import arenas, stats
from findleaks.allocators.jemalloc.classes import Small
from findleaks.allocators.jemalloc.layout import ACTIVE, DIRTY, KEPT, MUZZY, RETAINED
from findleaks.allocators.jemalloc.view import JemallocView

Key = tuple[int, int, bool]  # arena, size class, whether the blocks are in slabs


class Row:
    """Counts of the extents of one size class of an arena. `memory` and `bytes` are in bytes."""

    def __init__(self) -> None:
        self.extents = self.blocks = self.total = self.memory = self.bytes = self.cached = self.internal = 0


def count_rows(allocator: JemallocView) -> dict[Key, Row]:
    """Count extents by arena and class, separately for slabs and for extents with a single
    block."""
    seen = allocator.parts.extents
    found: dict[Key, Row] = {}
    shift, mask = seen.layout.nfree, (1 << seen.nfree_bits) - 1
    for i in seen.blocks:
        key = seen.arena[i], seen.szind[i], bool(seen.slab[i])
        row = found.get(key)
        if row is None:
            row = found[key] = Row()
        row.extents += 1
        row.memory += seen.size[i]
        if seen.slab[i]:
            small = seen.classes.small[seen.szind[i]]
            used = max(small.regions - (seen.bits[i] >> shift & mask), 0)
            row.blocks += used
            row.total += small.regions
            row.bytes += used * small.size
        else:
            row.blocks += 1
            row.total += 1
            row.bytes += seen.usable(i)
    entries = ((entry, False) for cache in allocator.caches_found for entry in cache.entries())
    for address, internal in (*entries, *((block, True) for block in allocator.internal)):
        i = seen.at(address)
        row = found.get((seen.arena[i], seen.szind[i], bool(seen.slab[i]))) if i >= 0 else None
        if row is not None:
            row.internal += internal
            row.cached += not internal
    return found


def list_caches(allocator: JemallocView) -> list[base.Cache]:
    """Return a row for each arena and class. Small classes are those of malloc_stats_print's table
    of bins. Small blocks that the profiler sampled, each in its own extent, are in rows named "…
    sampled".

    jemalloc counts these blocks as in use (curregs): blocks in use, cached blocks, and blocks with
    the stacks of thread caches (own["internal"])."""
    parts = allocator.parts
    table, nbins = parts.classes, len(parts.classes.small)
    by_class = count_rows(allocator)
    known = {arena.index: arena for arena in parts.arenas}
    found = []
    for index in sorted({*known, *(key[0] for key in by_class)}):
        arena = known.get(index)
        small = stats.read_bins(allocator, arena) if arena else None
        large = stats.read_large(allocator, arena) if arena else None
        for szind, size in enumerate(table.sizes):
            slabs = by_class.get((index, szind, True)) if szind < nbins else None
            single = by_class.get((index, szind, False))
            if szind < nbins:
                counters = dict(small[szind]) if small else {}
                if slabs is not None or counters.get("nslabs"):
                    found.append(_make_small_cache(index, table.small[szind], szind, slabs or Row(), counters))
                if single is not None:
                    found.append(_make_large_cache(index, f"{size} sampled", szind, single, {}))
            else:
                counters = dict(large[szind - nbins]) if large else {}
                if single is not None or counters.get("nmalloc"):
                    found.append(_make_large_cache(index, str(size), szind, single or Row(), counters))
    return found


def _make_small_cache(arena: int, small: Small, szind: int, row: Row, counters: dict[str, int]) -> base.Cache:
    size, slab, count, shards = small
    own = {"ind": szind, "nregs": count, "slab_size": slab, "nshards": shards, "internal": row.internal, **counters}
    if counters:
        own["allocated"] = own["curregs"] * size
    return _make_cache(arena, str(size), size, size, row, own)


def _make_large_cache(arena: int, name: str, szind: int, row: Row, counters: dict[str, int]) -> base.Cache:
    own = {"ind": szind, "internal": row.internal, **counters}
    each = row.bytes // row.blocks if row.blocks else 0
    return _make_cache(arena, name, each if each * row.blocks == row.bytes else 0, each, row, own)


def _make_cache(arena: int, name: str, size: int, each: int, row: Row, own: dict[str, int]) -> base.Cache:
    """Make the size class of a row. `each` is the size in bytes of a cached, free or internal
    block."""
    taken, free = row.cached + row.internal, row.total - row.blocks
    counts = row.blocks - taken, row.cached, free
    in_bytes = row.bytes - taken * each, row.cached * each, free * each
    return base.Cache(arenas.format_name(arena), name, size, *counts, *in_bytes, row.memory, own.get("nmalloc"), None, own)


def sum_pages(allocator: JemallocView) -> Counter[tuple[int, int]]:
    """Sum the bytes of extents by arena and state."""
    seen = allocator.parts.extents
    found: Counter[tuple[int, int]] = Counter()
    for arena, state, size in zip(seen.arena, seen.state, seen.size):
        found[arena, state] += size
    return found


def sum_hugepages(allocator: JemallocView) -> Counter[int]:
    """Sum the bytes of active extents of the hugepage allocator by arena."""
    seen = allocator.parts.extents
    found: Counter[int] = Counter()
    for arena, state, size, bits in zip(seen.arena, seen.state, seen.size, seen.bits):
        if state == ACTIVE and seen.layout.hpa >= 0 and bits >> seen.layout.hpa & 1:
            found[arena] += size
    return found


def list_arenas(allocator: JemallocView) -> list[base.Arena]:
    """Return the arenas, in bytes. `free` are free regions of slabs, `spare` dirty and muzzy pages.
    `mapped` includes jemalloc's own memory, but no memory returned to the kernel (retained)."""
    parts = allocator.parts
    by_state, hugepages = sum_pages(allocator), sum_hugepages(allocator)
    sums: dict[str, list[int]] = {}
    for cache in list_caches(allocator):
        each = sums.setdefault(cache.arena, [0, 0, 0])
        each[0] += cache.in_use_bytes
        each[1] += cache.cached_bytes
        each[2] += cache.free_bytes
    known = {arena.index: arena for arena in parts.arenas}
    found = []
    for index in sorted({*known, *(key[0] for key in by_state)}):
        used, cached, free = sums.get(arenas.format_name(index), [0, 0, 0])
        active, dirty, muzzy = (by_state[index, state] for state in (ACTIVE, DIRTY, MUZZY))
        page = 1 << parts.classes.page
        own = {"pactive": active // page, "pdirty": dirty // page, "pmuzzy": muzzy // page}
        own["retained"] = by_state[index, RETAINED]
        arena = known.get(index)
        kept = by_state[index, KEPT]
        mapped = active + dirty + muzzy
        if arena is not None:
            own["nthreads"] = allocator.memory.int32(arena.address) or 0
            own["internal"] = stats.read_internal(allocator, arena)
            own["tcache_bytes"] = sum(
                len(stack.entries) * parts.classes.sizes[stack.szind]
                for each in allocator.caches_found
                if each.arena == index
                for stack in each.stacks
            )
            if arena.base is not None and arena.base.mapped >= 0:
                own["base"] = arena.base.allocated
                # Only the hugepage allocator itself counts its memory.
                own["mapped"] = mapped - hugepages[index] + arena.base.mapped
                own["resident"] = arena.base.resident + mapped
                mapped += arena.base.mapped
        mapped += kept
        found.append(base.Arena(arenas.format_name(index), used, cached, free, mapped, own, dirty + muzzy + kept))
    return found


def sum_totals(allocator: JemallocView) -> dict[str, int]:
    """Return stats.* in bytes (ctl.c, ctl_refresh; arena.c, arena_stats_merge). They are computed
    from the extents if possible, even if jemalloc uses counters."""
    of_arenas = [arena.own for arena in list_arenas(allocator)]
    if not allocator.parts.shape.counts or not of_arenas or any("base" not in own for own in of_arenas):
        return {}
    page = 1 << allocator.parts.classes.page
    nbins = len(allocator.parts.classes.small)
    allocated = 0
    for (_, szind, slab), row in count_rows(allocator).items():
        # A sampled small block counts in the smallest large class.
        allocated += row.blocks * allocator.parts.classes.sizes[nbins] if not slab and szind < nbins else row.bytes
    # Muzzy pages are resident in 5.2 only. In 5.3 the kernel may have reclaimed them (pa_extra.c).
    muzzy = 0 if allocator.parts.extents.layout.name == "5.2" else sum(own["pmuzzy"] for own in of_arenas) * page
    return {
        "allocated": allocated,
        "active": sum(own["pactive"] for own in of_arenas) * page,
        "metadata": sum(own["base"] + own["internal"] for own in of_arenas),
        "resident": sum(own["resident"] for own in of_arenas) - muzzy,
        "mapped": sum(own["mapped"] for own in of_arenas),
        "retained": sum(own["retained"] for own in of_arenas),
    }


def reconcile(allocator: JemallocView) -> Iterator[Problem]:
    """Report arenas whose counters and extents differ. Either a thread was inside malloc, or one of
    the two was overwritten."""
    parts = allocator.parts
    counts = arenas.count_extents(parts.extents)
    for arena in parts.arenas:
        off = []
        for szind, counters in enumerate(stats.read_bins(allocator, arena) or ()):
            key = arena.index, szind
            found = counts.slabs[key], counts.regions[key]
            if found != (counters["curslabs"], counters["curregs"]):
                size = parts.classes.small[szind].size
                counted = f"{counters['curregs']:,} regions in {counters['curslabs']:,} slabs"
                off.append(f"{counted} of {size} bytes; {found[1]:,} in {found[0]:,} were found")
        if off:
            more = f" (and {len(off) - 1} more classes)" if len(off) > 1 else ""
            yield Problem(arena.address, f"arena {arena.index} counts {off[0]}{more}", False)


def summarize(allocator: JemallocView) -> dict[str, object]:
    """Return the entry for `allocators[]` in the JSON."""
    parts = allocator.parts
    return {
        "arenas": [
            {"name": arena.name, "in_use": arena.in_use, "cached": arena.cached, "free": arena.free, "mapped": arena.mapped}
            for arena in list_arenas(allocator)
        ],
        "extents": len(parts.extents),
        "thread_caches": len(allocator.caches_found),
        "page": 1 << parts.classes.page,
        "sampled": any(not slab and szind < len(parts.classes.small) for _, szind, slab in count_rows(allocator)),
        "rtree": hex(parts.root.address),
        "reconciled": not allocator.problems,
    }
