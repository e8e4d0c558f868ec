"""Find tcmalloc's variables by the table of size classes.

The central lists have the numbers of their classes. Their spans have page numbers. The page map's
root is found because it leads from such a page number back to the span."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Optional

from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.tcmalloc_google.layout import LISTS, NUM_LISTS, OBJECT_SIZE, SIZE_CLASS, SPAN_WORDS, Layout
from findleaks.allocators.tcmallocs import page_map as places
from findleaks.allocators.tcmallocs.page_map import WORD
from findleaks.engine.contract import Engine
from findleaks.errors import UnreadableMemory
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges

# number of spans with which the page map's root is searched for; the first suffices unless it is
# corrupt
SAMPLES = 24

PROBE = 5  # the size class whose number is searched for to find the central lists
TAG_SHIFT = 42


@dataclass(frozen=True)
class Place(places.Place):
    """The addresses of one of Google's tcmallocs; see tcmallocs.page_map.Place. If there are
    transfer caches, `central` is the address of the first one. `pages` has the number of pages of a
    span by size class."""

    layout: Layout
    pages: Sequence[int]

    def variables(self) -> list[Range]:
        """Return the variables found so far."""
        layout = self.layout
        size_map = self.table - layout.sizes_at
        return [
            Range(size_map, size_map + layout.size_map),
            Range(self.central, self.central + layout.classes * layout.stride),
            Range(self.root, self.root + (WORD << layout.root_bits) + WORD),
        ]

    def of_class(self, number: int) -> int:
        """Return the address of a size class's central list."""
        return self.central + number * self.layout.stride + self.layout.central_at

    def objects(self, number: int) -> int:
        """Return the number of blocks in a span of a size class."""
        return (self.pages[number] << self.layout.shift) // self.sizes[number]


def size_classes(target: Target, layout: Layout, table: int) -> tuple[list[int], list[int]]:
    """Return the sizes and pages by class (sizemap.cc, SizeMap::Init). They are empty if
    class_to_size_ of this layout is not at `table`."""
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
    """Find the other variables of a tcmalloc, or return None."""
    regions = places.writable(memory.target)
    # The kernel splits the mapping, because part of the root must not have huge pages (pagemap.cc,
    # MapRootWithSmallPages).
    data = merge_ranges(image.data)
    for central in _central(memory, engine, image, layout, sizes):
        place = Place(image, layout, sizes, table, central, 0, pages)
        for named in list(_spans(memory, place))[:SAMPLES]:
            # Descriptors and leaves are in the same kind of memory, which has a separate address
            # range (internal/memory_tag.h). Other memory is searched only if this fails.
            near = named[0] >> TAG_SHIFT << TAG_SHIFT
            for nodes in (Range(near, near + (1 << TAG_SHIFT)), Range(regions[0].start, regions[-1].end)):
                root = places.find_root(memory, engine, layout, data, named, regions, nodes)
                if root:
                    return replace(place, root=root)
    return None


def _central(memory: Memory, engine: Engine, image: Image, layout: Layout, sizes: Sequence[int]) -> Iterator[int]:
    """Yield addresses at which each central list has its own size class and size."""
    for piece in image.pieces(memory.target):
        for at in engine.search(piece, PROBE, PROBE + 1):
            lists = at - SIZE_CLASS - PROBE * layout.stride
            if all(_names(memory, lists + number * layout.stride, number, sizes) for number in range(layout.classes)):
                yield lists - layout.central_at


def _names(memory: Memory, central: int, number: int, sizes: Sequence[int]) -> bool:
    """Return whether a central list has this size class and its size."""
    return memory.word(central + SIZE_CLASS) == number and memory.word(central + OBJECT_SIZE) == sizes[number]


def _spans(memory: Memory, place: Place) -> Iterator[tuple[int, int]]:
    """Yield (address, first page) of the first spans on each central list's lists of spans."""
    for number, size in enumerate(place.sizes):
        for which in range(NUM_LISTS) if size else ():
            head = place.of_class(number) + LISTS + which * 2 * WORD
            span = memory.word(head)
            words = memory.words(span, SPAN_WORDS) if span and span != head else None
            if span and words is not None:
                page = words[3] & (1 << place.layout.page_bits) - 1
                if page:
                    yield span, page
