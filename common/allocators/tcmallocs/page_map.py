"""The page map of both tcmallocs (pagemap.h): a radix tree from page numbers to spans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from findleaks.allocators.base import Problem
from findleaks.allocators.bulk import find_pointers
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target
from findleaks.target.ranges import nonzero_pieces, range_at

WORD = 8
ADDRESS_BITS = 48  # kAddressBits in gperftools' common.h and Google's internal/config.h
MOST_ENTRIES, SPARE_ENTRIES = 4, 1 << 16
"""The maximum number of entries that are read: MOST_ENTRIES for each mapped page, plus
SPARE_ENTRIES.

An intact page map has one entry for each page. In a damaged page map, words of other memory may
refer to the same entries many times."""
SPAN_MASK = (1 << ADDRESS_BITS) - 1  # the bits of an entry that are the span's address


class PageMapLayout:
    """A build: pages of 1 << `shift` bytes, and a page map of 2 or 3 `levels` for addresses of
    `address_bits` bits."""

    shift: int
    levels: int
    address_bits: int = ADDRESS_BITS

    @property
    def page(self) -> int:
        return 1 << self.shift

    @property
    def page_bits(self) -> int:
        return self.address_bits - self.shift

    @property
    def interior_bits(self) -> int:
        return (self.page_bits + 2) // 3 if self.levels == 3 else 0

    @property
    def leaf_bits(self) -> int:
        return self.page_bits - 2 * self.interior_bits if self.levels == 3 else (self.page_bits + 1) // 2

    @property
    def root_bits(self) -> int:
        return self.page_bits - self.interior_bits - self.leaf_bits

    @property
    def spans_at(self) -> int:
        """The offset of the words with spans in a leaf."""
        return 0

    @property
    def leaf(self) -> int:
        """The size of a leaf in bytes."""
        return WORD << self.leaf_bits

    @property
    def classes(self) -> int:
        """The number of size classes that the build has space for."""
        raise NotImplementedError

    @property
    def stride(self) -> int:
        """The bytes between the central lists of two size classes."""
        raise NotImplementedError


@dataclass(frozen=True)
class Place:
    """The addresses of one tcmalloc: class_to_size_ (`table`), the central lists, and the page
    map's root. `sizes` has bytes by class, 0 for none."""

    image: Image
    layout: PageMapLayout
    sizes: Sequence[int]
    table: int
    central: int
    root: int


class Tree(NamedTuple):
    """The entries of the page map that are not 0, ascending by page. `classes` has their size
    classes if leaves contain these. `nodes` are all nodes below the root, leaves last."""

    pages: Sequence[int]
    words: Sequence[int]
    classes: Sequence[int]
    nodes: Sequence[Range]


def entries(target: Target, engine: Engine, node: Range) -> list[tuple[int, int]]:
    """Return (number, value) of the words of a node that are not 0."""
    found: list[tuple[int, int]] = []
    for piece in nonzero_pieces(target, *node):
        found += [((at - node.start) // WORD, value) for at, value in zip(*find_pointers(engine, piece, 1, 1 << 64))]
    return found


def read_nodes(memory: Memory, engine: Engine, place: Place) -> tuple[list[tuple[int, int]], list[Range]]:
    """Return (number of the first page, address) of each leaf, and all nodes below the root, leaves
    last."""
    layout, target = place.layout, memory.target
    found = entries(target, engine, Range(place.root, place.root + (WORD << layout.root_bits)))
    nodes: list[Range] = []
    if layout.levels == 3:
        nodes = [Range(node, node + (WORD << layout.interior_bits)) for _, node in found]
        below = [(high << layout.interior_bits, entries(target, engine, node)) for (high, _), node in zip(found, nodes)]
        found = [(high | number, leaf) for high, leaves in below for number, leaf in leaves]
    nodes += [Range(leaf, leaf + layout.leaf) for _, leaf in found]
    return [(number << layout.leaf_bits, leaf) for number, leaf in found], nodes


def leaf_entries(
    target: Target, engine: Engine, layout: PageMapLayout, leaves: Sequence[tuple[int, int]], problems: list[Problem]
) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Yield (number of the first page, address, entries) of each leaf. If a damaged page map has
    too many entries, this ends early, and a problem is added."""
    mapped = sum(region.end - region.start for region in target.regions())
    left = mapped // layout.page * MOST_ENTRIES + SPARE_ENTRIES
    for first, leaf in leaves:
        start = leaf + layout.spans_at
        found = entries(target, engine, Range(start, start + (WORD << layout.leaf_bits)))
        left -= len(found)
        if left < 0:
            what = f"the page map has more entries than pages: those of {first << layout.shift:#x} and above are not used"
            problems.append(Problem(leaf, what))
            return
        yield first, leaf, found


def find_root(
    memory: Memory,
    engine: Engine,
    layout: PageMapLayout,
    data: Sequence[Range],
    named: tuple[int, int],
    regions: Sequence[Range],
    nodes: Range,
) -> int:
    """Return the address of the page map's root in `data`, or 0.

    `named` is the address of a span and its first page. A root is right if it leads from this page
    to this span. `regions` are the result of `writable`. The entry for the page in the root must
    point into `nodes`."""
    span, page = named
    high = page >> (layout.page_bits - layout.root_bits)
    if high >> layout.root_bits:
        return 0
    for low, end in data:
        # All of the root node is in the data of the file. This limits the addresses at which its
        # entry for this page can be.
        first, last = low + WORD * high, end - WORD * ((1 << layout.root_bits) - high - 1)
        for piece in nonzero_pieces(memory.target, first, last) if first < last else ():
            for at in engine.search(piece, *nodes):
                node = memory.word(at) or 0
                if node % WORD == 0 and range_at(regions, node) and _leads(memory, layout, node, page, span):
                    return at - WORD * high
    return 0


def writable(target: Target) -> list[Range]:
    """Return the memory that may contain spans' descriptors and nodes of the page map."""
    return [Range(region.start, region.end) for region in target.regions() if region.readable and region.writable]


def _leads(memory: Memory, layout: PageMapLayout, node: int, page: int, span: int) -> bool:
    """Return whether the entry for the page, below this node of the map, refers to the span."""
    if layout.levels == 3:
        node = memory.word(node + WORD * (page >> layout.leaf_bits & (1 << layout.interior_bits) - 1)) or 0
    word = memory.word(node + layout.spans_at + WORD * (page & (1 << layout.leaf_bits) - 1))
    return word is not None and word & SPAN_MASK == span
