"""Find tcmalloc's variables by the table of size classes.

The central lists are in the same data. Their spans have page numbers. The root of the page map is
recognised because its entry for such a page number refers to the span."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.tcmalloc.layout import (
    CLASSES,
    EMPTY,
    MAP_END,
    MAP_START,
    MAX_SMALL,
    NEXT,
    NONEMPTY,
    SIZE_CLASS,
    SPAN_WORDS,
    Layout,
    layouts_of,
    pages_table,
)
from findleaks.allocators.tcmallocs import page_map as places
from findleaks.allocators.tcmallocs.page_map import WORD
from findleaks.engine.contract import Engine
from findleaks.target.base import Range

# number of spans with which the page map's root is searched for; the first one suffices unless it
# is corrupt
SAMPLES = 24

PROBE = 5  # the size class whose number is searched for to find the central lists


@dataclass(frozen=True)
class Place(places.Place):
    """The addresses of one gperftools tcmalloc; see tcmallocs.page_map.Place."""

    layout: Layout

    def variables(self) -> list[Range]:
        """Return the variables whose contents look like pointers, or are stale pointers."""
        layout = self.layout
        return [
            Range(self.table + MAP_START, self.table + MAP_END),
            Range(self.central, self.central + CLASSES * layout.stride),
            Range(self.root - layout.cached_pages, self.root + layout.heap_end),
        ]

    def of_class(self, number: int) -> int:
        """Return the address of a size class's central list."""
        return self.central + number * self.layout.stride


def size_classes(memory: Memory, table: int) -> list[int]:
    """Return the sizes by class, 0 first, up to the largest (common.cc, SizeMap::Init); [] if there
    is no table."""
    words = memory.words(table, CLASSES // 2)
    if words is None:
        return []
    ints = [half for word in words for half in (word & 0xFFFFFFFF, word >> 32)]
    if MAX_SMALL not in ints:
        return []
    sizes = ints[: ints.index(MAX_SMALL) + 1]
    rising = all(a < b and b % 8 == 0 for a, b in zip(sizes, sizes[1:]))
    return sizes if rising and sizes[0] == 0 and len(sizes) > 2 * PROBE else []


def locate(memory: Memory, engine: Engine, image: Image, table: int, sizes: Sequence[int]) -> Optional[Place]:
    """Find the other variables of a tcmalloc, or return None."""
    regions = places.writable(memory.target)
    everywhere = Range(regions[0].start, regions[-1].end)
    # A span of the largest class contains one block (common.cc, SizeMap::Init), so its length shows
    # the page size.
    pages = memory.word(pages_table(table) + WORD * (len(sizes) - 1)) or 0
    known = layouts_of(memory.target.arch)
    layouts = [layout for layout in known if pages << layout.shift == MAX_SMALL] or known
    probes = [at for piece in image.pieces(memory.target) for at in engine.search(piece, PROBE, PROBE + 1)]
    for slots in dict.fromkeys(layout.slots for layout in layouts):
        alike = [layout for layout in layouts if layout.slots == slots]
        for central in _central(memory, probes, alike[0], len(sizes)):
            for named in list(_spans(memory, alike[0], central, len(sizes)))[:SAMPLES]:
                for layout in alike:
                    root = places.find_root(memory, engine, layout, image.data, named, regions, everywhere)
                    if root:
                        return Place(image, layout, sizes, table, central, root)
    return None


def _central(memory: Memory, probes: Sequence[int], layout: Layout, count: int) -> Iterator[int]:
    """Yield the addresses at which each of `count` central lists has the number of its class.
    `probes` are addresses of words that may be the number of class PROBE."""
    stride = layout.stride
    for at in probes:
        first = at - SIZE_CLASS - PROBE * stride
        if all(memory.word(first + number * stride + SIZE_CLASS) == number for number in range(1, count)):
            yield first


def _spans(memory: Memory, layout: Layout, central: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield (address, first page) of the first spans on the central lists."""
    for number in range(1, count):
        for head in (EMPTY, NONEMPTY):
            header = central + number * layout.stride + head
            span = memory.word(header + NEXT)
            if span and span != header:
                words = memory.words(span, SPAN_WORDS)
                if words is not None and words[0] and 0 < words[1] < 1 << 36:
                    yield span, words[0]
