"""Extents: runs of pages with a descriptor (extent_t, edata_t). They are slabs, large blocks, or
free pages."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import add, gt, lt
from typing import NamedTuple

from findleaks.allocators.base import Problem
from findleaks.allocators.jemalloc.base import Bases
from findleaks.allocators.jemalloc.classes import Classes
from findleaks.allocators.jemalloc.layout import ACTIVE, KEPT, STATES, ExtentLayout
from findleaks.allocators.jemalloc.tree import Elements
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.engine.terms import RUN, State, run_states
from findleaks.target.arch import Arch
from findleaks.target.base import Range

SHOWN = 16  # broken descriptors that are reported one by one; others are only counted
HUGE = 2 << 20  # bytes of a pageslab (hpdata.h, 5.3), in which only pages in use have descriptors


class _Columns(NamedTuple):
    """The addresses and words of the descriptors, and the index of each descriptor in the raw
    bytes."""

    descriptors: list[int]
    bits: list[int]
    address: list[int]
    size: list[int]
    record: list[int]

    def only(self, kept: Sequence[int]) -> _Columns:
        return _Columns(*([column[i] for i in kept] for column in self))


class Extents:
    """All extents, ascending and disjoint, as one column for each attribute.

    `bits`, `address` and `size` are words of the descriptor. `record` is the descriptor's index in
    `raw`, where each has `length` bytes as little-endian words. `good` is true if the descriptor's
    class, size and state agree. `blocks` are the indices of the extents that contain blocks."""

    def __init__(
        self, arch: Arch, layout: ExtentLayout, classes: Classes, raw: bytes, length: int, columns: _Columns, good: list[bool]
    ) -> None:
        self.arch = arch
        self.layout = layout
        self.classes = classes
        self.raw = raw
        self.length = length
        self.descriptors, self.bits, self.address, self.size, self.record = columns
        self.good = good
        bits = self.bits
        outside = -1 << self.classes.page
        state, szind, szinds = layout.state, layout.szind, (1 << self.classes.szind_bits) - 1
        states = (1 << layout.state_bits) - 1
        self.start = [a & outside for a in self.address]
        self.szind = [b >> szind & szinds for b in bits]
        # Pages that the hugepage allocator caches (sec.c) are in state active, but have no size
        # class.
        none = len(self.classes.sizes)
        self.state = [b >> state & states or (0 if szind < none else KEPT) for b, szind in zip(bits, self.szind)]
        self.arena = [b & layout.arena_mask for b in bits]
        self.slab = [b >> layout.slab & 1 for b in bits]
        self.blocks = [i for i, (state, good) in enumerate(zip(self.state, self.good)) if not state and good]
        self.pad = self._padding()

    def _padding(self) -> int:
        """Return the number of bytes by which large extents exceed their blocks. It depends on the
        build: one page, so that a block can begin anywhere in the first page (sz_large_pad), or
        0."""
        page, sizes, small = 1 << self.classes.page, self.classes.sizes, len(self.classes.small)
        for i in self.blocks:
            if not self.slab[i] and self.szind[i] >= small and (self.address[i] % page or self.size[i] > sizes[self.szind[i]]):
                return page
        return 0

    def __len__(self) -> int:
        return len(self.descriptors)

    def end(self, i: int) -> int:
        return self.start[i] + self.size[i]

    def at(self, address: int) -> int:
        """Return the index of the extent that contains `address`, or -1."""
        i = bisect_right(self.start, address) - 1
        return i if i >= 0 and address < self.end(i) else -1

    def shard(self, i: int) -> int:
        """Return the index of the slab's bin among the bins of its class."""
        return self.bits[i] >> self.layout.nfree + self.nfree_bits & 63

    @cached_property
    def nfree_bits(self) -> int:
        """SC_LG_SLAB_MAXREGS + 1. SC_LG_SLAB_MAXREGS is the logarithm of the number of regions of
        the smallest class in a page, unless the build changed it."""
        return max(self.classes.page - 3, (self.classes.most_regions - 1).bit_length()) + 1

    def nfree(self, i: int) -> int:
        """Return the number of free regions of a slab according to its descriptor."""
        return self.bits[i] >> self.layout.nfree & (1 << self.nfree_bits) - 1

    def bitmap(self, i: int) -> int:
        """Return a slab's bitmap. A set bit is a free region. Bits beyond the last region are
        cleared."""
        count = self.classes.small[self.szind[i]].regions
        at = self.record[i] * self.length + self.layout.bitmap
        return int.from_bytes(self.raw[at : at + (count + 63) // 64 * 8], "little") & (1 << count) - 1

    def word(self, i: int, offset: int) -> int:
        """Return the word at `offset` in the descriptor of an extent."""
        at = self.record[i] * self.length + offset
        return int.from_bytes(self.raw[at : at + self.arch.word], "little")

    @cached_property
    def alike(self) -> Mapping[int, int]:
        """The number of extents with blocks, by the bits of the descriptor for arena, class, free
        regions, and slab."""
        layout = self.layout
        szinds, frees = (1 << self.classes.szind_bits) - 1, (1 << self.nfree_bits) - 1
        mask, bits = layout.arena_mask | 1 << layout.slab | szinds << layout.szind | frees << layout.nfree, self.bits
        return Counter([bits[i] & mask for i in self.blocks])

    def usable(self, i: int) -> int:
        """Return the usable size of an active extent's blocks (malloc_usable_size) in bytes.

        It is the size of the class. In 5.3.1, which rounds large sizes up to pages, it is all bytes
        of a large extent except the padding. A small block that the profiler sampled is alone in
        its extent and has the size of its class. No block ends after the end of its extent."""
        szind = self.szind[i]
        size = self.classes.sizes[szind]
        if self.slab[i]:
            return size
        offset = self.address[i] - self.start[i]
        return min(size, self.size[i] - (offset if szind < len(self.classes.small) else max(offset, self.pad)))

    def runs(self) -> array[int]:
        """Return a record of RUN words ("Q") for each extent with blocks, in order; see
        `Blocks.append_runs`."""
        classes = self.classes
        slab_states, whole = run_states(State.IN_USE, State.FREE), run_states(State.IN_USE, State.IN_USE)
        first, step = 8 * self.layout.bitmap, 8 * self.length
        # by (class, whether it is a slab): stride, size, count, states
        known: dict[int, tuple[int, int, int, int]] = {}
        for szind, small in enumerate(classes.small):
            known[szind << 1 | 1] = small.size, small.size, small.regions, slab_states
        places = self.blocks
        kinds = [self.szind[i] << 1 | self.slab[i] for i in places]
        rows = [known.get(kind) or (0, self.usable(i), 1, whole) for i, kind in zip(places, kinds)]
        runs = array("Q", bytes(8 * RUN * len(places)))
        runs[0::RUN] = array("Q", [self.address[i] for i in places])
        for word, column in zip((1, 2, 3, 5), zip(*rows)):
            runs[word::RUN] = array("Q", column)
        runs[4::RUN] = array("Q", [self.record[i] * step + first for i in places])
        return runs


def read_extents(
    engine: Engine, bases: Bases, elements: Elements, classes: Classes, layout: ExtentLayout, problems: list[Problem]
) -> Extents:
    """Read the extents in the radix tree. Extents that contradict the tree, or overlap others, are
    reported and left out."""
    page, inside = classes.page, (1 << classes.page) - 1
    length = layout.bitmap + max(classes.bitmap, 64)
    # The tree's elements ascend. So do the extents' addresses, except for broken ones.
    wanted = [descriptor for descriptor in dict.fromkeys(elements.descriptors) if descriptor]
    gathered, missing = engine.gather(bases.pieces(), wanted, length)
    words = engine.arch.words(gathered)
    # numbers in this machine's byte order, including the words of bitmaps
    raw = bytes(words)
    step, size = length // bases.memory.size, bases.memory.size
    bits, address, sizes = words[0::step].tolist(), words[8 // size :: step].tolist(), words[8 // size + 1 :: step].tolist()
    if size == 4:
        bits = [low | high << 32 for low, high in zip(bits, words[1::step])]
    columns = _Columns(wanted, bits, address, sizes, list(range(len(wanted))))
    bad: list[tuple[int, str]] = []
    columns = _select_known(bases, elements, page, columns, missing, bad)
    columns = _remove_overlaps(columns._replace(size=[s & ~inside for s in columns.size]), ~inside, bad)
    good = _check_all(classes, layout, columns, bad)
    for descriptor, why in bad[:SHOWN]:
        problems.append(Problem(descriptor, f"the descriptor at {descriptor:#x} {why}: its blocks are not read"))
    if len(bad) > SHOWN:
        problems.append(Problem(bad[SHOWN][0], f"{len(bad) - SHOWN:,} more damaged descriptors, from {bad[SHOWN][0]:#x} on"))
    return Extents(engine.arch, layout, classes, raw, length, columns, good)


def _select_known(
    bases: Bases, elements: Elements, page: int, columns: _Columns, missing: Sequence[int], bad: list[tuple[int, str]]
) -> _Columns:
    """Return the descriptors, by address, that the tree has for their first and last page.
    Descriptors in `missing` (indices) are unreadable. Descriptors that are not returned are added
    to `bad`."""
    wanted = columns.descriptors
    frames = {descriptor >> 21 for descriptor in wanted}
    outside = {frame for frame in frames if bases.block(frame << 21) is None}
    broken = {i for i, descriptor in enumerate(wanted) if descriptor >> 21 in outside} if outside else set()
    bad += [(wanted[i], "lies outside jemalloc's own memory") for i in sorted(broken)]
    broken.update(missing)
    pages = dict(zip(elements.pages, elements.descriptors)).get
    firsts = [a >> page for a in columns.address]
    lasts = [first + (s >> page) - 1 for first, s in zip(firsts, columns.size)]
    if not broken and list(map(pages, firsts)) == list(map(pages, lasts)) == wanted and not any(map(lt, lasts, firsts)):
        return columns
    kept = []
    for i, (first, last, descriptor) in enumerate(zip(firsts, lasts, wanted)):
        if i in broken:
            continue
        if first <= last and pages(first) == descriptor == pages(last):
            kept.append(i)
        else:
            what = f"describes the pages at {columns.address[i]:#x}, {columns.size[i] >> page << page:,} bytes"
            bad.append((descriptor, f"{what}, but the radix tree has other descriptors for the first and last"))
    kept.sort(key=columns.address.__getitem__)
    return columns.only(kept)


def _remove_overlaps(columns: _Columns, outside: int, bad: list[tuple[int, str]]) -> _Columns:
    """Remove each extent that overlaps the previous one. `outside` is the mask of the bits above
    the offset in a page."""
    starts = [a & outside for a in columns.address]
    if not any(map(gt, map(add, starts, columns.size), starts[1:])):
        return columns
    kept, floor = [], 0
    for i, (start, size) in enumerate(zip(starts, columns.size)):
        if start < floor:
            bad.append((columns.descriptors[i], f"describes the pages at {start:#x}, {size:,} bytes, which overlap the preceding ones"))
        else:
            kept.append(i)
            floor = start + size
    return columns.only(kept)


def _check_all(classes: Classes, layout: ExtentLayout, columns: _Columns, bad: list[tuple[int, str]]) -> list[bool]:
    """Return whether each descriptor is consistent. This is decided once for each combination of
    class, state and size."""
    inside = (1 << classes.page) - 1
    decides = 1 << layout.slab | (1 << layout.szind + classes.szind_bits) - (1 << layout.state)
    deciding, offsets = [b & decides for b in columns.bits], [a & inside for a in columns.address]
    wrong = {}
    for kind in set(zip(deciding, columns.size, offsets)):
        why = _find_fault(classes, layout, *kind)
        if why:
            wrong[kind] = why
    if not wrong:
        return [True] * len(deciding)
    kinds = list(zip(deciding, columns.size, offsets))
    for i, kind in enumerate(kinds):
        if kind in wrong:
            bad.append((columns.descriptors[i], f"of the pages at {columns.address[i]:#x} {wrong[kind]}"))
    return [kind not in wrong for kind in kinds]


def _find_fault(classes: Classes, layout: ExtentLayout, bits: int, size: int, offset: int) -> str:
    """Return what is wrong with the class or size of an active extent, or "". `offset` is where its
    block begins."""
    szind = bits >> layout.szind & (1 << classes.szind_bits) - 1
    if bits >> layout.state & (1 << layout.state_bits) - 1 != ACTIVE or szind == len(classes.sizes):
        return ""
    if offset % 8:
        return "has an odd number as the address of a block"
    if bits >> layout.slab & 1:
        if szind >= len(classes.small):
            return f"has a slab of size class {szind}, but the number of these classes is {len(classes.small)}"
        if size != classes.small[szind].slab or offset:
            return f"has a slab of {classes.small[szind].size}-byte regions, but {size:,} bytes"
    elif szind >= len(classes.sizes):
        return f"has size class {szind}, but the number of classes is {len(classes.sizes)}"
    elif szind and offset + classes.sizes[szind - 1] >= size:
        return f"has a block of {classes.sizes[szind]:,} bytes in pages of {size:,} bytes"
    return ""


def get_state_name(state: int) -> str:
    """Return jemalloc's name for a state of pages."""
    return STATES[state] if state < len(STATES) else "kept" if state == KEPT else "in transition"


def find_pageslabs(memory: Memory, bases: Bases, seen: Extents) -> list[Range]:
    """Return the pageslabs that contain extents, ascending; [] if there are none."""
    bit = seen.layout.hpa
    if bit < 0:
        return []
    found = set()
    pageslab = 8 + 2 * memory.size  # offset of edata_t's pointer to it
    for descriptor in {seen.word(i, pageslab) for i, bits in enumerate(seen.bits) if bits >> bit & 1}:
        start = memory.word(descriptor) if bases.block(descriptor) is not None else None
        if start and start % HUGE == 0:
            found.add(Range(start, start + HUGE))
    return sorted(found)


def group_extents(extents: Extents, extra: Sequence[Range]) -> list[tuple[int, int, int]]:
    """Return (start, end, arena) of runs of adjacent extents of one arena, ascending. `extra` are
    pageslabs, which are added as a whole because their free pages have no descriptor."""
    found: list[tuple[int, int, int]] = []
    low = high = whose = -1
    hpa = extents.layout.hpa if extra else -1
    for start, size, arena, bits in zip(extents.start, extents.size, extents.arena, extents.bits):
        end = start + size
        if hpa >= 0 and bits >> hpa & 1:
            at = bisect_right(extra, (start, 1 << 64)) - 1
            if at >= 0 and end <= extra[at].end:
                start, end = extra[at]
        if high >= start and whose == arena:
            if end > high:
                high = end
        else:
            found.append((low, high, whose))
            low, high, whose = start, end, arena
    found.append((low, high, whose))
    return found[1:]
