"""Nested heaps: heaps inside blocks of another allocator, such as pymalloc's arenas in malloc's
blocks.

Each block has exactly one allocator."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from findleaks.allocators.base import Allocator, Heap, Problem, add_first_problems
from findleaks.allocators.heap_parts import HeapParts
from findleaks.allocators.heaps import SlabHeap
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import RUN, State
from findleaks.target.base import Range, Target
from findleaks.value_classes import dataclass, field

NOT_INSIDE = "is not in one single block of"


@dataclass(eq=False, repr=False)
class Node:
    """A heap, and the heaps inside its blocks, ascending."""

    heap: Heap
    allocator: Allocator
    inner: list[Node] = field(default_factory=list)


def nest_heaps(heaps: Sequence[tuple[Heap, Allocator]], problems: list[Problem]) -> list[Node]:
    """Arrange heaps as trees and return the outermost heaps, ascending. Heaps of slabs are left
    out; see Slabs.

    A heap may be inside another one only if its allocator can be nested. Any other overlap means
    that two readers claim the same memory. In this case, the heap is left out and reported in
    `problems`."""
    tops: list[Node] = []
    open_: list[Node] = []
    whole = (pair for pair in heaps if not isinstance(pair[0], SlabHeap))
    for heap, allocator in sorted(whole, key=lambda one: (one[0].start, -one[0].end, one[1].nested)):
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


class Slabs:
    """The slabs of all SlabHeaps, ascending. `owners` has, for each slab, the index of its heap in
    `heaps`. A slab that is empty or overlaps a lower one is left out."""

    def __init__(self, heaps: Sequence[tuple[Heap, Allocator]], problems: list[Problem]) -> None:
        self.heaps = [(heap, allocator) for heap, allocator in heaps if isinstance(heap, SlabHeap)]
        self.bounds, self.runs, self.owners, self._run_starts = array("Q"), array("Q"), array("I"), array("Q")
        if len(self.heaps) == 1 and self.heaps[0][0].is_checked:
            only = self.heaps[0][0]
            self.bounds, self.runs = only.slabs, only.runs
            self.owners = array("I", bytes(4 * (len(self.bounds) // 2)))
        elif self.heaps:
            self._merge(problems)

    def _merge(self, problems: list[Problem]) -> None:
        rows = []
        for owner, (heap, _) in enumerate(self.heaps):
            rows += [(start, end, owner, number) for number, (start, end) in enumerate(zip(heap.slabs[::2], heap.slabs[1::2]))]
        starts = [heap.runs[::RUN] for heap, _ in self.heaps]
        lost: list[tuple[int, int]] = []
        for start, end, owner, _ in sorted(rows):
            if start >= end or (self.bounds and start < self.bounds[-1]):
                lost.append((start, owner))
                continue
            first, last = (bisect_left(starts[owner], at) for at in (start, end))
            self.bounds.extend((start, end))
            self.owners.append(owner)
            self.runs.extend(self.heaps[owner][0].runs[RUN * first : RUN * last])
        self._report(lost, "is empty or overlaps another slab", problems)

    def between(self, start: int, end: int) -> tuple[int, int]:
        """Return the range [first, last) of the numbers of the slabs that start in [start, end)."""
        return (bisect_left(self.bounds, start) + 1) // 2, (bisect_left(self.bounds, end) + 1) // 2

    def bounds_of(self, first: int, last: int) -> array[int]:
        """Return the start and the end of each slab with a number in [first, last), in turn
        ("Q")."""
        return self.bounds if 2 * (last - first) == len(self.bounds) else self.bounds[2 * first : 2 * last]

    def runs_of(self, first: int, last: int) -> array[int]:
        """Return the runs of the slabs with the numbers [first, last): RUN words each ("Q")."""
        if first == last:
            return array("Q")
        if 2 * (last - first) == len(self.bounds):
            return self.runs
        if not self._run_starts:
            self._run_starts = self.runs[::RUN]
        low, high = (bisect_left(self._run_starts, at) for at in (self.bounds[2 * first], self.bounds[2 * last - 1]))
        return self.runs[RUN * low : RUN * high]

    def report(self, numbers: Sequence[int], where: str, problems: list[Problem]) -> None:
        """Report slabs that are left out."""
        self._report([(self.bounds[2 * number], self.owners[number]) for number in numbers], where, problems)

    def _report(self, lost: Sequence[tuple[int, int]], where: str, problems: list[Problem]) -> None:
        found = (
            Problem(start, f"{allocator.name} {heap.arena} at {start:#x} {where}: left out", False)
            for start, (heap, allocator) in ((start, self.heaps[owner]) for start, owner in lost)
        )
        add_first_problems(problems, found, "slabs that are left out")


class Walk:
    """Appends the blocks of heaps, of the heaps inside them, and of slabs, in ascending order.
    `parts` are the parts of the heaps that were walked."""

    def __init__(self, blocks: Blocks, engine: Engine, target: Target, slabs: Slabs, problems: list[Problem]) -> None:
        self._blocks, self._engine, self._target, self._slabs, self._problems = blocks, engine, target, slabs, problems
        self.parts = HeapParts()
        self._kept = array("Q")  # slabs
        self._owners = array("I")  # of these slabs
        self._slab_numbers = [self.parts.number(*one) for one in slabs.heaps]

    def walk(self, tops: Sequence[Node]) -> None:
        """Walk the outermost heaps, and the slabs outside of these heaps."""
        at = 0
        for node in tops:
            self._walk_apart(at, node.heap.start)
            self._walk_heap(node)
            at = node.heap.end
        self._walk_apart(at, 1 << 64)
        self._remove_left_out()

    def _walk_apart(self, start: int, end: int) -> None:
        """Append the slabs in [start, end). This range is outside of all other heaps."""
        first, last = self._slabs.between(start, end)
        if first == last:
            return
        if self._slabs.bounds[2 * last - 1] > end:
            last -= 1
            self._slabs.report([last], "overlaps another heap", self._problems)
        self._blocks.append_runs(self._slabs.runs_of(first, last))
        slabs, owners = self._slabs.bounds_of(first, last), self._slabs.owners[first:last]
        self._kept = self._kept + slabs
        self._owners += owners
        for at, owner in enumerate(owners):
            self.parts.append(self._slab_numbers[owner], *slabs[2 * at : 2 * at + 2])
        self.parts.apart += map(Range, slabs[::2], slabs[1::2])

    def _walk_heap(self, node: Node) -> None:
        """Append the blocks of a heap and of the heaps and slabs inside it.

        A block that contains a heap becomes METADATA up to the start of that heap. A heap that is
        not completely inside one block in use is left out and reported."""
        heap, mine = node.heap, self.parts.number(node.heap, node.allocator)
        first, last = self._slabs.between(heap.start, heap.end)
        if not node.inner and first == last:
            heap.walk(self._blocks)
            self.parts.append(mine, heap.start, heap.end)
            return
        outer = self._engine.blocks(self._target.arch, node.allocator.granule)
        heap.walk(outer)
        outer.seal()
        at, floor, part = 0, 0, heap.start
        for child in node.inner:
            start, end = child.heap.start, child.heap.end
            index = outer.find(start)
            around = outer.address(index) if index >= 0 else 0
            if index < 0 or outer.state(index) != State.IN_USE or end > around + outer.size(index) or start < floor:
                what = f"{child.allocator.name} {child.heap.arena} at {start:#x} {NOT_INSIDE} {node.allocator.name}: left out"
                self._problems.append(Problem(start, what, False))
                continue
            self._append(node, mine, outer, (at, max(at, index)), (part, start))
            if index >= at and start > around:
                self._blocks.append([around], [start - around], [State.METADATA])
            self._walk_heap(child)
            heap.inner = heap.inner + array("Q", (start, end))
            heap.inner_roots += child.heap.foreign + child.heap.inner_roots
            at, floor, part = index + 1, end, end
        self._append(node, mine, outer, (at, len(outer)), (part, heap.end))

    def _append(self, node: Node, mine: int, outer: Blocks, indices: tuple[int, int], where: tuple[int, int]) -> None:
        """Append blocks of a heap, and the slabs in a part of the heap. `indices` is the range of
        the indices of these blocks in `outer`, and `where` is the range of addresses of this
        part."""
        first, last = self._slabs.between(*where)
        slabs, owners = self._slabs.bounds_of(first, last), self._slabs.owners[first:last]
        lost = self._blocks.append_nested(outer, *indices, slabs, self._slabs.runs_of(first, last))
        if lost:
            self._slabs.report([first + number for number in lost], f"{NOT_INSIDE} {node.allocator.name}", self._problems)
            slabs = slabs[:]
            for number in reversed(lost):
                del slabs[2 * number : 2 * number + 2], owners[number]
        numbers = owners if not any(self._slab_numbers) else array("I", (self._slab_numbers[owner] for owner in owners))
        self.parts.append_slabs(mine, *where, slabs, numbers)
        # There may be millions of slabs. If one heap contains all of them, their array is not
        # copied.
        node.heap.inner = node.heap.inner + slabs if node.heap.inner else slabs
        self._kept = self._kept + slabs if self._kept else slabs
        self._owners += owners

    def _remove_left_out(self) -> None:
        """Remove the slabs that were left out from the `slabs` of their heaps."""
        kept = [array("Q") for _ in self._slabs.heaps]
        if len(kept) == 1:
            kept = [self._kept]
        else:
            for at, owner in enumerate(self._owners):
                kept[owner].extend(self._kept[2 * at : 2 * at + 2])
        for (heap, _), slabs in zip(self._slabs.heaps, kept):
            heap.slabs = slabs
