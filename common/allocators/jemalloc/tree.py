"""The radix tree from pages to descriptors (rtree.h): finds its root and reads its leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.bulk import find_pointers
from findleaks.allocators.images import Image
from findleaks.allocators.jemalloc.base import Bases
from findleaks.allocators.jemalloc.classes import Classes
from findleaks.allocators.jemalloc.layout import Levels, list_levels
from findleaks.allocators.memory import Memory
from findleaks.allocators.search import find_words_between
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges

ALIGNED = 64  # the least alignment of descriptors in bytes
CONFIRMED = 3  # elements of a leaf that confirm a root
TRIED = 64  # elements of a leaf that are tried
PART = 64 << 10  # bytes of a node that are searched at once


class Root(NamedTuple):
    """The root of a radix tree. `word` is the size of a word in bytes."""

    address: int
    levels: Levels
    word: int

    @property
    def range(self) -> Range:
        return Range(self.address, self.address + (self.word << self.levels.root))


class Elements(NamedTuple):
    """The elements of all leaves that point to a descriptor, in parallel lists."""

    pages: list[int]
    descriptors: list[int]


def find_candidates(engine: Engine, memory: Memory, image: Image, bases: Bases) -> Iterator[tuple[int, int]]:
    """Yield (address, value) of the words of an image's data that point into the base allocator's
    blocks."""
    regions = memory.target.regions()
    low, high = regions[0].start, regions[-1].end
    frames: dict[int, bool] = {}
    for address, value in find_words_between(memory.target, engine, image.data, low, high):
        frame = value >> 21
        if frame not in frames:
            frames[frame] = bases.block(value) is not None
        if frames[frame] and value % memory.size == 0:
            yield address, value


def find_roots(
    memory: Memory, engine: Engine, image: Image, classes: Classes, bases: Bases, words: Sequence[tuple[int, int]]
) -> list[Root]:
    """Find the roots in the image.

    An element of the root points to a leaf, or to a node above leaves. The descriptors in that leaf
    show which pages the leaf covers. The pages determine the index of the element, and from that
    the address of the root can be computed."""
    found: list[Root] = []
    data = merge_ranges(image.data)
    for address, value in words:
        if any(root.range.start <= address < root.range.end for root in found):
            continue
        for shape in list_levels(classes.page, memory.size):
            start = _find_root(memory, engine, classes, bases, address, value, shape)
            root = Root(start, shape, memory.size) if start is not None else None
            if root is not None and any(low <= root.range.start and root.range.end <= high for low, high in data):
                found.append(root)
                break
    return found


def _find_root(memory: Memory, engine: Engine, classes: Classes, bases: Bases, address: int, value: int, shape: Levels) -> Optional[int]:
    """Return the address of the root if the word at `address`, which points to `value`, is one of
    its elements; otherwise None."""
    leaf = value
    for bits in shape.inner:
        block = bases.block(leaf)
        if block is None or leaf + (memory.size << bits) > block.end:
            return None
        leaf = next((word for _, word in _find_filled(memory, engine, leaf, leaf + (memory.size << bits))), 0)
    block = bases.block(leaf) if leaf else None
    if block is None or leaf + (shape.element << shape.leaf) > block.end:
        return None
    votes: dict[int, int] = {}
    for tried, (at, word) in enumerate(_find_filled(memory, engine, leaf, leaf + (shape.element << shape.leaf))):
        descriptor = _extract_descriptor(word, shape)
        key = memory.word(descriptor + 8) if descriptor and (at - leaf) % shape.element == 0 else None
        if key and key >> classes.page & ((1 << shape.leaf) - 1) == (at - leaf) // shape.element:
            index = key >> shape.under_root(classes.page)
            root = address - memory.size * index
            votes[root] = votes.get(root, 0) + 1
            if votes[root] == CONFIRMED:
                return root
        if tried == TRIED:
            break
    # In a young process, this leaf may have only two extents.
    return max(votes, key=lambda root: votes[root]) if votes else None


def _find_filled(memory: Memory, engine: Engine, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (address, value) of the words that are not 0."""
    parts = (Range(at, min(at + PART, end)) for at in range(start, end, PART))
    return find_words_between(memory.target, engine, parts, 1, 1 << 64)


def _extract_descriptor(word: int, shape: Levels) -> int:
    """Return the address of the extent descriptor in an element of a leaf of the tree. In a packed
    element, the size class is in the bits above the address, and flags are in the low bits
    (rtree.h)."""
    if shape.packed:
        word &= (1 << shape.address) - 1
        return word & -ALIGNED
    return word if word % ALIGNED == 0 else 0


def read_leaves(memory: Memory, engine: Engine, root: Root, bases: Bases, problems: list[Problem]) -> list[tuple[int, int]]:
    """Return (leaf, number of its first page) of all leaves. Report invalid elements in
    `problems`."""
    shape = root.levels
    level, bits, size = [(root.address, 0)], shape.root, memory.size
    for below, element in (*((inner, size) for inner in shape.inner), (shape.leaf, shape.element)):
        found = []
        for node, first in level:
            for at, value in _find_filled(memory, engine, node, node + (size << bits)):
                block = bases.block(value)
                if block is None or value % size or value + (element << below) > block.end:
                    what = f"the radix tree's element at {at:#x} is {value:#x}, which is not a node: the extents behind it are not read"
                    problems.append(Problem(at, what))
                else:
                    found.append((value, (first | (at - node) // size) << below))
        level, bits = found, below
    return level


def read_elements(memory: Memory, engine: Engine, root: Root, found: Sequence[tuple[int, int]]) -> Elements:
    """Return all elements of these leaves that point to a descriptor. Raises Interrupted."""
    shape = root.levels
    pages: list[int] = []
    descriptors: list[int] = []
    mask = (1 << shape.address) - ALIGNED
    for leaf, first in found:
        if memory.target.is_interrupted():
            raise Interrupted
        for piece in memory.target.pieces(leaf, leaf + (shape.element << shape.leaf)):
            at, values = find_pointers(engine, piece, ALIGNED, 1 << 64)
            if shape.packed:
                # Elements without a descriptor may still have a size class. Descriptor 0 is
                # extracted from them.
                base = (first << 3) - leaf
                pages += [a + base >> 3 for a in at]
                descriptors += [v & mask for v in values]
            else:
                kept = [i for i, a in enumerate(at) if (a - leaf) % shape.element == 0]
                pages += [first + (at[i] - leaf) // shape.element for i in kept]
                descriptors += [values[i] for i in kept]
    return Elements(pages, descriptors)
