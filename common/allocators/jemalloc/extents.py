"""Extents: runs of pages, each with a descriptor (extent_t, edata_t); slabs, large blocks, and free pages in three states."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.jemalloc.base import Bases
from findleaks.allocators.jemalloc.classes import Classes
from findleaks.allocators.jemalloc.layout import ACTIVE, KEPT, STATES, Extent
from findleaks.allocators.jemalloc.tree import Elements
from findleaks.graph.base import Engine, State, run_states
from findleaks.target.base import Range

SHOWN = 16
"""Broken descriptors that are named one by one; of more, only the count."""

HUGE = 2 << 20  # a pageslab of the hugepage allocator (hpdata.h)


@dataclass
class Extents:
    """All extents, ascending and disjoint, a column each. `bits`, `address`, `size` are the descriptor's words; `record` counts the
    descriptors as they lie in `raw`, `length` bytes each."""

    layout: Extent
    classes: Classes
    raw: bytes
    length: int
    descriptors: list[int]
    bits: list[int]
    address: list[int]
    size: list[int]
    record: list[int]
    good: list[bool]  # whether what the descriptor says of blocks makes sense

    def __post_init__(self) -> None:
        layout, page = self.layout, self.classes.page
        state, szind, mask = layout.state, layout.szind, (1 << self.classes.szind_bits) - 1
        state_mask = (1 << layout.state_bits) - 1
        self.start = [a >> page << page for a in self.address]
        self.state = [b >> state & state_mask for b in self.bits]
        self.szind = [b >> szind & mask for b in self.bits]
        # Pages that the hugepage allocator keeps at hand (sec.c) are in the state active, and of no class.
        none = len(self.classes.sizes)
        self.state = [KEPT if state == ACTIVE and szind >= none else state for state, szind in zip(self.state, self.szind)]
        self.arena = [b & layout.arena_mask for b in self.bits]
        self.slab = [b >> layout.slab & 1 for b in self.bits]
        self.pad = self._padding()

    def _padding(self) -> int:
        """What large extents have beyond their blocks: a page, so that these can begin anywhere in the first (sz_large_pad), or nothing,
        if it was built so."""
        page, sizes = 1 << self.classes.page, self.classes.sizes
        for i, szind in enumerate(self.szind):
            if self.state[i] == ACTIVE and not self.slab[i] and self.good[i] and szind >= len(self.classes.small):
                if self.address[i] % page or self.size[i] > sizes[szind]:
                    return page
        return 0

    def __len__(self) -> int:
        return len(self.descriptors)

    def end(self, i: int) -> int:
        return self.start[i] + self.size[i]

    def at(self, address: int) -> int:
        """The number of the extent that holds `address`, or -1."""
        i = bisect_right(self.start, address) - 1
        return i if i >= 0 and address < self.end(i) else -1

    def shard(self, i: int) -> int:
        """Which of its class's bins a slab is in."""
        return self.bits[i] >> self.layout.nfree + self.nfree_bits & 63

    @cached_property
    def nfree_bits(self) -> int:
        """SC_LG_SLAB_MAXREGS + 1: a page of the smallest class, unless it was built otherwise."""
        return max(self.classes.page - 3, (self.classes.most_regions - 1).bit_length()) + 1

    def nfree(self, i: int) -> int:
        return self.bits[i] >> self.layout.nfree & (1 << self.nfree_bits) - 1

    def bitmap(self, i: int) -> int:
        """A slab's bitmap as a number: a bit set is a free region. Bits beyond the last region are left out."""
        count = self.classes.small[self.szind[i]].regions
        at = self.record[i] * self.length + self.layout.bitmap
        return int.from_bytes(self.raw[at : at + (count + 63) // 64 * 8], "little") & (1 << count) - 1

    def word(self, i: int, offset: int) -> int:
        """A word of the descriptor."""
        at = self.record[i] * self.length + offset
        return int.from_bytes(self.raw[at : at + 8], "little")

    def usable(self, i: int) -> int:
        """Bytes of an active extent's blocks, as malloc_usable_size says: the class's, or (5.3.1, which rounds large ones up to pages)
        all but the padding. A small block that the profiler sampled has an extent of its own, and its class's size."""
        szind = self.szind[i]
        size = self.classes.sizes[szind]
        return size if self.slab[i] or szind < len(self.classes.small) else min(size, self.size[i] - self.pad)

    def runs(self) -> array[int]:
        """RUN words for each extent, in order; those of extents without blocks are of 0 blocks."""
        runs = array("Q")
        small = self.classes.small
        slab_states, whole = run_states(State.IN_USE, State.FREE), run_states(State.IN_USE, State.IN_USE)
        first, step = 8 * self.layout.bitmap, 8 * self.length
        add = runs.extend
        for i, (address, state, szind, slab, record, good) in enumerate(
            zip(self.address, self.state, self.szind, self.slab, self.record, self.good)
        ):
            if state != ACTIVE or not good:
                continue
            if slab:
                size, _, count, _ = small[szind]
                add((address, size, size, count, record * step + first, slab_states))
            else:
                add((address, 0, self.usable(i), 1, 0, whole))
        return runs


def read(engine: Engine, bases: Bases, elements: Elements, classes: Classes, layout: Extent, problems: list[Problem]) -> Extents:
    """The extents that the radix tree names. Descriptors that do not fit the tree, or overlap others, are left out and named."""
    pages = dict(zip(elements.pages, elements.descriptors))
    wanted = sorted({*elements.descriptors} - {0})
    outside = [descriptor for descriptor in wanted if bases.block(descriptor) is None]
    length = layout.bitmap + max(classes.bitmap, 64)
    raw, missing = engine.gather(bases.pieces(), wanted, length)
    words = array("Q", bytes(raw))
    step = length // 8
    bits, address, size = words[0::step], words[1::step], words[2::step]
    page_size = 1 << classes.page
    bad: list[tuple[int, str]] = [(d, "lies outside jemalloc's own memory") for d in outside]
    broken = {*missing, *(i for i, d in enumerate(wanted) if d in set(outside))} if outside or missing else set()
    fit = []
    page, inside, get = classes.page, page_size - 1, pages.get
    for i, (a, s, descriptor) in enumerate(zip(address, size, wanted)):
        first, s = a >> page, s & ~inside
        if get(first) == descriptor and s and get(first + (s >> page) - 1) == descriptor and i not in broken:
            fit.append((a, s, i))
        elif i not in broken:
            why = f"says that its pages are {a:#x}, {s:,} bytes, of which the radix tree does not know the first and last"
            bad.append((descriptor, why))
    fit.sort()
    kept, good, floor = [], [], 0
    # Descriptors of a kind are right or wrong together: those that were right are known by what decides it.
    right: set[tuple[int, int, int]] = set()
    decides = 1 << layout.slab | (1 << layout.szind + classes.szind_bits) - (1 << layout.state)
    for extent in fit:
        a, s, i = extent
        if a & ~inside < floor:
            bad.append((wanted[i], f"says that its pages are {a:#x}, {s:,} bytes, which overlap those before"))
            continue
        floor = (a & ~inside) + s
        kept.append(extent)
        kind = bits[i] & decides, s, a & inside
        if kind in right:
            good.append(True)
            continue
        why = _wrong(classes, layout, bits[i], a, s)
        good.append(not why)
        if why:
            bad.append((wanted[i], f"of the pages at {a:#x} {why}"))
        else:
            right.add(kind)
    for descriptor, why in bad[:SHOWN]:
        problems.append(Problem(descriptor, f"the descriptor at {descriptor:#x} {why}: its blocks are not seen"))
    if len(bad) > SHOWN:
        problems.append(Problem(bad[SHOWN][0], f"{len(bad) - SHOWN:,} more descriptors like that, from {bad[SHOWN][0]:#x} on"))
    return Extents(
        layout,
        classes,
        bytes(raw),
        length,
        [wanted[i] for _, _, i in kept],
        [bits[i] for _, _, i in kept],
        [a for a, _, _ in kept],
        [s for _, s, _ in kept],
        [i for _, _, i in kept],
        good,
    )


def szind_of(classes: Classes, layout: Extent, bits: int) -> int:
    """The size class in a descriptor's bits."""
    return bits >> layout.szind & (1 << classes.szind_bits) - 1


def _wrong(classes: Classes, layout: Extent, bits: int, address: int, size: int) -> str:
    """What is wrong with an active extent's class or size, or ""."""
    if bits >> layout.state & (1 << layout.state_bits) - 1 != ACTIVE:
        return ""
    if szind_of(classes, layout, bits) == len(classes.sizes):
        return ""
    if address % 8:
        return "says that a block begins at an odd address"
    szind = szind_of(classes, layout, bits)
    if bits >> layout.slab & 1:
        if szind >= len(classes.small):
            return f"says that they are a slab of size class {szind}, of which there are {len(classes.small)}"
        if size != classes.small[szind].slab or address % (1 << classes.page):
            return f"says that they are a slab of {classes.small[szind].size}-byte regions, and {size:,} bytes"
    elif szind >= len(classes.sizes):
        return f"has size class {szind}, of which there are {len(classes.sizes)}"
    elif szind and address % (1 << classes.page) + classes.sizes[szind - 1] >= size:
        return f"has a block of {classes.sizes[szind]:,} bytes in {size:,}"
    return ""


def state_name(state: int) -> str:
    return STATES[state] if state < len(STATES) else "kept" if state == KEPT else "in transition"


def spans(extents: Extents, extra: Sequence[Range]) -> list[tuple[int, int, int]]:
    """(start, end, arena) of maximal stretches of one arena's extents, ascending; `extra` are pageslabs, whose free pages have no
    descriptor."""
    found: list[list[int]] = []
    slabs = list(extra)
    for i, start in enumerate(extents.start):
        end, arena = start + extents.size[i], extents.arena[i]
        inside: Optional[Range] = None
        if slabs and extents.layout.hpa >= 0 and extents.bits[i] >> extents.layout.hpa & 1:
            at = bisect_right(slabs, (start, 1 << 64)) - 1
            inside = slabs[at] if at >= 0 and end <= slabs[at].end else None
        if inside is not None:
            start, end = inside
        if found and found[-1][1] >= start and found[-1][2] == arena:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end, arena])
    return [(start, end, arena) for start, end, arena in found]
