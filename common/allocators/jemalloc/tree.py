"""The radix tree from pages to descriptors (rtree.h): finds its root and reads its leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.bulk import pointing
from findleaks.allocators.images import Image
from findleaks.allocators.jemalloc.base import Bases
from findleaks.allocators.jemalloc.classes import Classes
from findleaks.allocators.jemalloc.layout import Levels, levels
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import nonzero_pieces

ALIGNED = 64  # bytes that descriptors are aligned to at least
CONFIRMED = 3
TRIED = 64
PART = 64 << 10


class Root(NamedTuple):
    """The root's address, and the shape of the tree."""

    address: int
    levels: Levels

    @property
    def size(self) -> int:
        return 8 << self.levels.root


class Elements(NamedTuple):
    """The elements of all leaves that point to a descriptor, as two parallel lists: page numbers
    and addresses of descriptors."""

    pages: list[int]
    descriptors: list[int]


def candidates(engine: Engine, memory: Memory, image: Image, bases: Bases) -> Iterator[tuple[int, int]]:
    """(address, value) of the words of an image's data that point into the base allocator's
    blocks."""
    regions = memory.target.regions()
    low, high = regions[0].start, regions[-1].end
    frames: dict[int, bool] = {}
    for start, end in image.data:
        for piece in nonzero_pieces(memory.target, start, end):
            if memory.target.interrupted():
                raise Interrupted
            for address, value in zip(*pointing(engine, piece, low, high)):
                frame = value >> 21
                if frame not in frames:
                    frames[frame] = bases.block(value) is not None
                if frames[frame] and value % 8 == 0:
                    yield address, value


def find(memory: Memory, engine: Engine, image: Image, classes: Classes, bases: Bases, words: Sequence[tuple[int, int]]) -> list[Root]:
    """The roots in the image. For a pointer to a leaf (or to a node above leaves), the descriptors
    that the leaf's elements point to determine which element of the root the pointer must be."""
    found: dict[Root, int] = {}
    for address, value in words:
        if any(root.address <= address < root.address + root.size for root in found):
            continue
        for shape in levels(classes.page):
            root = _root(memory, engine, classes, bases, address, value, shape)
            if root is not None and any(start <= root and root + (8 << shape.root) <= end for start, end in _whole(image)):
                found[Root(root, shape)] = 1
                break
    return list(found)


def _whole(image: Image) -> list[Range]:
    """The image's data, adjacent parts joined."""
    joined: list[Range] = []
    for start, end in image.data:
        if joined and joined[-1].end == start:
            joined[-1] = Range(joined[-1].start, end)
        else:
            joined.append(Range(start, end))
    return joined


def _root(memory: Memory, engine: Engine, classes: Classes, bases: Bases, address: int, value: int, shape: Levels) -> Optional[int]:
    """The address of the root if the word at `address`, which points to `value`, is one of its
    elements; else None."""
    leaf = value
    for bits in shape.inner:
        block = bases.block(leaf)
        if block is None or leaf + (8 << bits) > block.end:
            return None
        leaf = next((word for _, word in _filled(memory, engine, leaf, leaf + (8 << bits))), 0)
    block = bases.block(leaf) if leaf else None
    if block is None or leaf + (shape.element << shape.leaf) > block.end:
        return None
    votes: dict[int, int] = {}
    for tried, (at, word) in enumerate(_filled(memory, engine, leaf, leaf + (shape.element << shape.leaf))):
        descriptor = _descriptor(word, shape)
        key = memory.word(descriptor + 8) if descriptor and (at - leaf) % shape.element == 0 else None
        if key and key >> classes.page & ((1 << shape.leaf) - 1) == (at - leaf) // shape.element:
            index = key >> shape.under_root(classes.page)
            root = address - 8 * index
            votes[root] = votes.get(root, 0) + 1
            if votes[root] == CONFIRMED:
                return root
        if tried == TRIED:
            break
    # A young process may have no more than two extents under this leaf.
    return max(votes, key=lambda root: votes[root]) if votes else None


def _filled(memory: Memory, engine: Engine, start: int, end: int) -> Iterator[tuple[int, int]]:
    """(address, value) of the words that are not 0."""
    for low, high in memory.target.nonzero(start, end):
        for at in range(low, high, PART):
            for piece in memory.target.pieces(at, min(at + PART, high)):
                yield from zip(*pointing(engine, piece, 1, 1 << 64))


def _descriptor(word: int, shape: Levels) -> int:
    """The descriptor that a leaf's element points to: packed elements have the size class above it
    and flags below (rtree.h)."""
    if shape.element == 8:
        word &= (1 << shape.address) - 1
        return word & -ALIGNED
    return word if word % ALIGNED == 0 else 0


def leaves(memory: Memory, engine: Engine, root: Root, bases: Bases, problems: list[tuple[int, str]]) -> list[tuple[int, int]]:
    """(leaf, number of its first page) of every leaf; words that are no pointer to one go to
    `problems`."""
    shape = root.levels
    level, bits = [(root.address, 0)], shape.root
    for below, element in (*((inner, 8) for inner in shape.inner), (shape.leaf, shape.element)):
        found = []
        for node, first in level:
            for at, value in _filled(memory, engine, node, node + (8 << bits)):
                block = bases.block(value)
                if block is None or value % 8 or value + (element << below) > block.end:
                    problems.append((at, f"the radix tree's element at {at:#x} is {value:#x}, no node: what hangs from it is not seen"))
                else:
                    found.append((value, (first | (at - node) // 8) << below))
        level, bits = found, below
    return level


def elements(memory: Memory, engine: Engine, root: Root, found: Sequence[tuple[int, int]]) -> Elements:
    """All elements of these leaves that point to a descriptor."""
    shape = root.levels
    shift = 3 if shape.element == 8 else 4
    result = Elements([], [])
    mask = (1 << shape.address) - ALIGNED
    for leaf, first in found:
        if memory.target.interrupted():
            raise Interrupted
        for piece in memory.target.pieces(leaf, leaf + (shape.element << shape.leaf)):
            _read(engine, piece, leaf, first, shift, mask, result)
    return result


def _read(engine: Engine, piece: Piece, leaf: int, first: int, shift: int, mask: int, result: Elements) -> None:
    at, values = pointing(engine, piece, ALIGNED, 1 << 64)
    if shift == 3:
        # Elements without a descriptor may still have a size class: they point to 0.
        base = (first << 3) - leaf
        result.pages.extend([a + base >> 3 for a in at])
        result.descriptors.extend([v & mask for v in values])
    else:
        pairs = [(first + (a - leaf >> 4), v) for a, v in zip(at, values) if (a - leaf) % 16 == 0]
        result.pages.extend([page for page, _ in pairs])
        result.descriptors.extend([descriptor for _, descriptor in pairs])
