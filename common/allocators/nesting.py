"""Nested heaps: heaps inside blocks of another allocator, such as pymalloc's arenas in malloc's
blocks.

Each block has exactly one allocator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.allocators.base import Allocator, Heap, Problem
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Range, Target
from findleaks.value_classes import NamedTuple, dataclass, field


class HeapPart(NamedTuple):
    """A part [start, end) of a heap that contains no other heap. `heap` and `allocator` are those
    to which it belongs."""

    heap: Heap
    allocator: Allocator
    start: int
    end: int


@dataclass(eq=False, repr=False)
class Node:
    """A heap, and the heaps inside its blocks, ascending."""

    heap: Heap
    allocator: Allocator
    inner: list[Node] = field(default_factory=list)

    def parts(self) -> Iterator[HeapPart]:
        """Yield the parts of this heap and of the heaps inside it: ascending, disjoint, without
        gaps."""
        at = self.heap.start
        for node in self.inner:
            if node.heap.start > at:
                yield HeapPart(self.heap, self.allocator, at, node.heap.start)
            yield from node.parts()
            at = node.heap.end
        if at < self.heap.end:
            yield HeapPart(self.heap, self.allocator, at, self.heap.end)


def nest_heaps(heaps: Sequence[tuple[Heap, Allocator]], problems: list[Problem]) -> list[Node]:
    """Arrange heaps as trees and return the outermost heaps, ascending.

    A heap may be inside another one only if its allocator can be nested. Any other overlap means
    that two readers claim the same memory. In this case, the heap is left out and reported in
    `problems`."""
    tops: list[Node] = []
    open_: list[Node] = []
    for heap, allocator in sorted(heaps, key=lambda one: (one[0].start, -one[0].end, one[1].nested)):
        while open_ and open_[-1].heap.end <= heap.start:
            open_.pop()
        node = Node(heap, allocator)
        if not open_:
            tops.append(node)
        elif allocator.nested and heap.end <= open_[-1].heap.end and open_[-1].allocator is not allocator:
            open_[-1].inner.append(node)
        else:
            other = open_[-1]
            what = f"{allocator.name} {heap.arena} overlaps {other.allocator.name} {other.heap.arena} at {other.heap.start:#x}: left out"
            problems.append(Problem(heap.start, what, False))
            continue
        open_.append(node)
    return tops


def walk_heap(node: Node, blocks: Blocks, engine: Engine, target: Target, problems: list[Problem]) -> None:
    """Append the blocks of a heap and of the heaps inside it, in ascending order.

    A block that contains a heap becomes METADATA up to the start of that heap. A heap that is not
    completely inside one block in use is left out and reported in `problems`."""
    if not node.inner:
        node.heap.walk(blocks)
        return
    outer = engine.blocks(target.arch, node.allocator.granule)
    node.heap.walk(outer)
    outer.seal()
    at, floor = 0, 0
    kept = []
    for child in node.inner:
        start, end = child.heap.start, child.heap.end
        index = outer.find(start)
        around = outer.address(index) if index >= 0 else 0
        if index < 0 or outer.state(index) != State.IN_USE or end > around + outer.size(index) or start < floor:
            what = f"{child.allocator.name} {child.heap.arena} at {start:#x} is not in one single block of {node.allocator.name}: left out"
            problems.append(Problem(start, what, False))
            continue
        if index >= at:
            blocks.append_blocks(outer, at, index)
            if start > around:
                blocks.append([around], [start - around], [State.METADATA])
        walk_heap(child, blocks, engine, target, problems)
        kept.append(child)
        at, floor = index + 1, end
    blocks.append_blocks(outer, at, len(outer))
    node.inner = kept
    node.heap.inner = [Range(child.heap.start, child.heap.end) for child in kept]
