"""Check the integrity of jemalloc's structures, and report each error with its address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from findleaks.allocators.base import Problem
from findleaks.allocators.jemalloc import stats
from findleaks.allocators.jemalloc.extents import Extents
from findleaks.allocators.jemalloc.layout import ACTIVE
from findleaks.allocators.jemalloc.view import JemallocView
from findleaks.target.base import Range


def verify(allocator: JemallocView) -> Iterator[Problem]:
    """Run all checks. Thread caches are checked first, because they show blocks that were freed
    twice."""
    seen = allocator.parts.extents
    allocator.checked = {
        "extents": len(seen),
        "bitmaps": sum(map(bool, seen.slab)),
        "cached blocks": sum(len(cache.entries()) for cache in allocator.caches_found),
    }
    yield from _check_cached(allocator)
    yield from _check_bitmaps(allocator.parts.extents)
    yield from _check_tree(allocator)
    yield from _check_lists(allocator)
    yield from _check_bins(allocator)


def _check_cached(allocator: JemallocView) -> Iterator[Problem]:
    """Check that cached blocks count as in use, have the class of their stack, and are cached only
    once."""
    seen = allocator.parts.extents
    times = Counter(entry for cache in allocator.caches_found for entry in cache.entries())
    for cache in allocator.caches_found:
        whose = f"thread {cache.tid}'s cache" if cache.tid else f"the thread cache at {cache.address:#x}"
        for stack in cache.stacks:
            for entry in stack.blocks:
                i = seen.at(entry)
                if i < 0 or seen.state[i] != ACTIVE:
                    yield Problem(
                        entry, f"{whose} holds {entry:#x}, which is not a block: the entry was overwritten, or the block no longer exists"
                    )
                    continue
                if seen.szind[i] != stack.szind:
                    size = seen.classes.sizes[stack.szind]
                    yield Problem(entry, f"{whose} holds {entry:#x} among blocks of {size} bytes, which has another size")
                if seen.slab[i] and seen.good[i]:
                    region, offset = divmod(entry - seen.start[i], seen.classes.small[seen.szind[i]].size)
                    if offset:
                        what = f"{whose} holds {entry:#x}, {offset} bytes inside a block: the address that was freed is not a block's"
                        yield Problem(entry, what)
                    elif seen.bitmap(i) >> region & 1:
                        what = f"{whose} holds {entry:#x}, which is free according to its slab: it was freed twice"
                        yield Problem(entry, what, damaged=Range(entry, entry))
    for entry, number in times.items():
        if number > 1:
            what = f"thread caches hold {entry:#x} {number} times: it was freed {number} times"
            yield Problem(entry, what, damaged=Range(entry, entry))


def _check_bitmaps(seen: Extents) -> Iterator[Problem]:
    """Check that the number of free regions of each slab equals the number of bits set in its
    bitmap."""
    for i in range(len(seen)):
        if seen.state[i] != ACTIVE or not seen.slab[i] or not seen.good[i]:
            continue
        free, counted = bin(seen.bitmap(i)).count("1"), seen.nfree(i)
        if free != counted:
            size = seen.classes.small[seen.szind[i]].size
            what = f"the slab of {size}-byte regions at {seen.start[i]:#x} counts {counted} free, its bitmap has {free}"
            yield Problem(seen.descriptors[i], what + ": freed twice, or its descriptor was overwritten")


def _check_tree(allocator: JemallocView) -> Iterator[Problem]:
    """Check the descriptors to which elements of the tree point. All pages of a slab must be in the
    tree; of other extents, the first and the last page."""
    parts = allocator.parts
    seen, page = parts.extents, parts.classes.page
    named = dict(zip(parts.elements.pages, parts.elements.descriptors))
    about = {descriptor: (seen.start[i] >> page, seen.end(i) >> page) for i, descriptor in enumerate(seen.descriptors)}
    for number, descriptor in named.items():
        first, last = about.get(descriptor, (0, 0))
        if last and not first <= number < last:
            what = f"the radix tree has {descriptor:#x} for the page {number << page:#x}, which does not belong to that descriptor"
            yield Problem(descriptor, what + f" ({first << page:#x} to {last << page:#x})")
    for i in range(len(seen)):
        first, last = seen.start[i] >> page, seen.end(i) - 1 >> page
        inner = range(first, last + 1) if seen.slab[i] and seen.state[i] == ACTIVE and seen.good[i] else (first, last)
        for number in inner:
            if named.get(number) != seen.descriptors[i]:
                other = named.get(number)
                is_ = f"{other:#x}" if other is not None else "none"
                at = f"the radix tree has {is_} for the page {number << page:#x} of the extent at {seen.start[i]:#x}"
                yield Problem(seen.descriptors[i], f"{at}, whose descriptor is {seen.descriptors[i]:#x}")
                break


def _check_lists(allocator: JemallocView) -> Iterator[Problem]:
    """Check that large extents form a ring that is linked in both directions. Automatic arenas have
    no such ring."""
    seen = allocator.parts.extents
    index = {descriptor: i for i, descriptor in enumerate(seen.descriptors)}
    for i in range(len(seen)):
        if seen.state[i] != ACTIVE or seen.slab[i]:
            continue
        after, before = seen.word(i, seen.layout.next), seen.word(i, seen.layout.prev)
        if not after or not before:
            continue
        own = seen.descriptors[i]
        behind, ahead = index.get(after), index.get(before)
        at = f"the descriptor at {own:#x} of the block at {seen.address[i]:#x}"
        if behind is not None and seen.state[behind] == ACTIVE and seen.word(behind, seen.layout.prev) != own:
            yield Problem(own, f"{at} links to {after:#x}, which does not link back")
        if ahead is not None and seen.state[ahead] == ACTIVE and seen.word(ahead, seen.layout.next) != own:
            yield Problem(own, f"{at} links back to {before:#x}, which does not link to it")


def _check_bins(allocator: JemallocView) -> Iterator[Problem]:
    """Check that the current slab of each bin has the class and arena of the bin, and that counters
    add up."""
    parts = allocator.parts
    seen, shape = parts.extents, parts.shape
    if shape.bins is None:
        return
    index = {descriptor: i for i, descriptor in enumerate(seen.descriptors)}
    for arena in parts.arenas:
        at = arena.address + shape.bins
        for szind, small in enumerate(parts.classes.small):
            for _ in range(small.shards):
                current = allocator.memory.word(at + shape.bin.slabcur)
                i = index.get(current or 0)
                if current and (i is None or not seen.slab[i] or seen.szind[i] != szind or seen.arena[i] != arena.index):
                    what = f"arena {arena.index}'s bin of {small.size} bytes has the current slab {current:#x} of another bin"
                    yield Problem(at + shape.bin.slabcur, what)
                at += shape.bin.size
        for szind, counters in enumerate(stats.read_bins(allocator, arena) or ()):
            if counters["nmalloc"] - counters["ndalloc"] != counters["curregs"]:
                made = f"{counters['nmalloc']:,} allocated, {counters['ndalloc']:,} freed, {counters['curregs']:,} in use"
                size = parts.classes.small[szind].size
                yield Problem(arena.address + shape.bins, f"arena {arena.index}'s counters of {size}-byte regions do not add up: {made}")
