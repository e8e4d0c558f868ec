"""Finding tcmalloc's variables, starting from the table of size classes.

The central lists name their classes, and their spans name pages. The page map's root is where a
page's number leads back to its span.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.tcmalloc_google.layout import (
    LISTS,
    NUM_LISTS,
    OBJECT_SIZE,
    SIZE_CLASS,
    SPAN_WORDS,
    WORD,
    Layout,
)
from findleaks.engine.contract import Engine
from findleaks.errors import UnreadableMemory
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merged, nonzero_pieces

SAMPLES = 24
"""Spans from which the page map's root is looked for; the first suffices unless it is corrupt."""

PROBE = 5  # the size class by whose number the central lists are found
SPAN_MASK = (1 << 48) - 1
TAG_SHIFT = 42


@dataclass(frozen=True)
class Place:
    """The addresses of one tcmalloc's variables.

    `sizes`, `pages`: bytes and pages by size class, 0 where there is none. `size_map`, `central`,
    `root`: addresses of the SizeMap, of the first transfer cache, and of the page map's root.
    """

    image: Image
    layout: Layout
    sizes: Sequence[int]
    pages: Sequence[int]
    size_map: int
    central: int
    root: int

    def variables(self) -> list[Range]:
        """The variables found so far."""
        layout = self.layout
        return [
            Range(self.size_map, self.size_map + layout.size_map),
            Range(self.central, self.central + layout.classes * layout.stride),
            Range(self.root, self.root + (WORD << layout.root_bits) + WORD),
        ]

    def of_class(self, number: int) -> int:
        """Address of a size class's central list."""
        return self.central + number * self.layout.stride + self.layout.central_at

    def objects(self, number: int) -> int:
        """Blocks in a span of a size class."""
        return (self.pages[number] << self.layout.shift) // self.sizes[number]


def size_classes(target: Target, layout: Layout, table: int) -> tuple[list[int], list[int]]:
    """Sizes and pages by class (sizemap.cc, SizeMap::Init).

    Empty where class_to_size_ of this layout is not at `table`.
    """
    start, classes = table - layout.sizes_at, layout.classes
    try:
        sizes = list(memoryview(target.read(table, 4 * classes)).cast("I"))
        pages = list(target.read(start + layout.pages_at, classes))
    except UnreadableMemory:
        return [], []
    base = sizes[: layout.base]
    if layout.most_small not in base:
        return [], []
    used = base.index(layout.most_small) + 1
    rising = base[0] == 0 and all(a < b and b % 8 == 0 for a, b in zip(base[:used], base[1:used]))
    if not rising or any(base[used:]) or used < 2 * PROBE:
        return [], []
    for partition in range(1, layout.partitions):
        if sizes[partition * layout.base :][: layout.base] != base:
            return [], []
    for number, (size, count) in enumerate(zip(sizes, pages)):
        if number % layout.base == 0 or not size:
            continue
        if size not in base or not 0 < count < 64 or size > count << layout.shift:
            return [], []
        if count > 1 and size < layout.least_bitmap:
            return [], []
    return sizes, pages


def locate(
    memory: Memory, engine: Engine, image: Image, layout: Layout, table: int, sizes: Sequence[int], pages: Sequence[int]
) -> Optional[Place]:
    """The rest of a tcmalloc; None where it is not there."""
    regions = [Range(r.start, r.end) for r in memory.target.regions() if r.readable and r.writable]
    for central in _central(memory, engine, image, layout, sizes):
        place = Place(image, layout, sizes, pages, table - layout.sizes_at, central, 0)
        for span, page in list(_spans(memory, place))[:SAMPLES]:
            root = _root(memory, engine, image, layout, span, page, regions)
            if root:
                return Place(image, layout, sizes, pages, place.size_map, central, root)
    return None


def _central(memory: Memory, engine: Engine, image: Image, layout: Layout, sizes: Sequence[int]) -> Iterator[int]:
    """Addresses from which each central list names its own size class and size."""
    for start, end in image.data:
        for piece in nonzero_pieces(memory.target, start, end):
            for at in engine.search(piece, PROBE, PROBE + 1):
                lists = at - SIZE_CLASS - PROBE * layout.stride
                if all(_names(memory, lists + number * layout.stride, number, sizes) for number in range(layout.classes)):
                    yield lists - layout.central_at


def _names(memory: Memory, central: int, number: int, sizes: Sequence[int]) -> bool:
    return memory.word(central + SIZE_CLASS) == number and memory.word(central + OBJECT_SIZE) == sizes[number]


def _spans(memory: Memory, place: Place) -> Iterator[tuple[int, int]]:
    """(address, first page) of the first spans on each central list's lists of spans."""
    for number, size in enumerate(place.sizes):
        for which in range(NUM_LISTS) if size else ():
            head = place.of_class(number) + LISTS + which * 2 * WORD
            span = memory.word(head)
            words = memory.words(span, SPAN_WORDS) if span and span != head else None
            if span and words is not None:
                page = words[3] & (1 << place.layout.page_bits) - 1
                if page:
                    yield span, page


def _root(memory: Memory, engine: Engine, image: Image, layout: Layout, span: int, page: int, regions: Sequence[Range]) -> int:
    """The address of the page map's root, or 0: `page` leads from there to `span`."""
    high = page >> (layout.page_bits - layout.root_bits)
    starts = [region.start for region in regions]
    # Descriptors and leaves are of one kind of memory, which has address space of its own
    # (internal/memory_tag.h). The rest is searched only if this fails.
    near = span >> TAG_SHIFT << TAG_SHIFT
    for least, most in ((near, near + (1 << TAG_SHIFT)), (regions[0].start, regions[-1].end)):
        # The kernel splits the mapping, as part of the root is to have no huge pages (pagemap.cc,
        # MapRootWithSmallPages).
        for low, end in merged(image.data):
            # All of the root is in the data, so its entry for this page can only be in part of the
            # data.
            first, last = low + WORD * high, end - WORD * ((1 << layout.root_bits) - high - 1)
            for piece in nonzero_pieces(memory.target, first, last) if first < last else ():
                for at in engine.search(piece, least, most):
                    node = memory.word(at) or 0
                    index = bisect_right(starts, node) - 1
                    if index >= 0 and node < regions[index].end and node % WORD == 0 and _leads(memory, layout, node, page, span):
                        return at - WORD * high
    return 0


def _leads(memory: Memory, layout: Layout, node: int, page: int, span: int) -> bool:
    """Whether the page leads from this entry of the root to the span."""
    if layout.levels == 3:
        node = memory.word(node + WORD * (page >> layout.leaf_bits & (1 << layout.middle_bits) - 1)) or 0
    word = memory.word(node + layout.spans_at + WORD * (page & (1 << layout.leaf_bits) - 1))
    return word is not None and word & SPAN_MASK == span
