"""Heaps of an allocator: contiguous ranges with blocks, or many slabs."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from operator import sub

from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State, Totals
from findleaks.target.base import Range
from findleaks.target.ranges import subtract
from findleaks.value_classes import dataclass, field


@dataclass(eq=False, repr=False)
class Heap:
    """A contiguous range of memory whose blocks `walk` appends in ascending order.

    `arena` is the label of the heap ("main", "arena 3", "mmapped"). `metadata` lists the parts with
    allocator metadata. No part of [start, end) is root memory, except `foreign`: parts that do not
    belong to the allocator, or that cannot be read because of corruption. `foreign` is complete
    after `walk`.

    `walk` may be called once. It adds corruption to the allocator's `problems` and returns
    normally, so that the next heap is still walked. Readers join adjacent slabs into one heap,
    because each heap costs microseconds."""

    start: int
    end: int
    arena: str
    walk: Callable[[Blocks], None]
    metadata: list[Range] = field(default_factory=list)
    foreign: list[Range] = field(default_factory=list)
    # starts and ends ("Q") of heaps and slabs of other allocators, ascending; complete after `walk`
    inner: array[int] = field(default_factory=lambda: array("Q"))
    # the `foreign` parts of heaps in blocks of this heap; complete after `walk`
    inner_roots: list[Range] = field(default_factory=list)

    def parts(self) -> list[Range]:
        """List the parts of [start, end) with this heap's own blocks: everything but `inner`."""
        bounds = self.part_bounds()
        return [Range(low, high) for low, high in zip(bounds[::2], bounds[1::2]) if low < high]

    def part_bounds(self) -> array[int]:
        """Return the starts and ends ("Q") of `parts()`, including those of empty parts."""
        return array("Q", [self.start, *self.inner, self.end])

    def inner_ranges(self) -> list[Range]:
        return list(map(Range, self.inner[::2], self.inner[1::2]))

    def count(self, blocks: Blocks) -> list[Totals]:
        """Return the totals of this heap's own blocks, by State."""
        whole = (blocks.totals(state, self.start, self.end) for state in State)
        inside = blocks.totals_in(self.inner)
        return [Totals(*map(sub, one, other)) for one, other in zip(whole, inside)]

    def list_owned(self) -> list[Range]:
        """List the parts of [start, end) that are never root memory: everything but `foreign`, and
        that of inner heaps."""
        whole, roots = [Range(self.start, self.end)], sorted([*self.foreign, *self.inner_roots])
        return subtract(whole, roots) if roots else whole


@dataclass(eq=False, repr=False)
class SlabHeap(Heap):
    """Many slabs in one object, in place of one Heap for each slab. Each slab is in a block of
    another allocator, or outside of all other heaps. A slab costs only nanoseconds, because it has
    no Python object.

    `slabs` has their starts and ends ("Q"), ascending, and [start, end) contains all of them.
    `runs` are the blocks of the slabs; see `Blocks.append_nested`. `walk` is not called. `metadata`
    and `inner` are empty. A slab inside another heap must be completely inside one block in use of
    this heap. Otherwise, it is removed when the heaps are walked."""

    slabs: array[int] = field(default_factory=lambda: array("Q"))
    runs: array[int] = field(default_factory=lambda: array("Q"))
    is_checked: bool = False
    """Whether the reader has checked that no slab is empty and that no slab overlaps another
    one."""

    @classmethod
    def of(cls, arena: str, slabs: array[int], runs: array[int], is_checked: bool = False) -> SlabHeap:
        """Return a heap of these slabs. `slabs` must not be empty."""
        return cls(slabs[0], slabs[-1], arena, lambda blocks: None, slabs=slabs, runs=runs, is_checked=is_checked)

    def part_bounds(self) -> array[int]:
        return self.slabs

    def count(self, blocks: Blocks) -> list[Totals]:
        return blocks.totals_in(self.slabs)

    def slab_at(self, address: int) -> int:
        """Return the number of the slab that contains an address, or -1."""
        at = bisect_right(self.slabs, address)
        return at // 2 if at % 2 else -1
