"""The directory of blocks: finds every allocator of a target and walks all heaps into one index."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Optional

from findleaks.allocators.base import Allocator, Finder, Heap, Problem
from findleaks.allocators.heap_parts import HeapPart, HeapParts
from findleaks.allocators.heaps import SlabHeap
from findleaks.allocators.images import find_modules
from findleaks.allocators.in_flight import ThreadInside, find_changing_thread
from findleaks.allocators.mapped import NO_MAPPINGS, MappingBlocks
from findleaks.allocators.nesting import Slabs, Walk, nest_heaps
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.shared import LARGEST_GRANULE
from findleaks.engine.terms import State, Totals
from findleaks.target.base import Piece, Range, Target
from findleaks.target.ranges import intersection, merge_ranges

FINDERS = (
    "findleaks.allocators.asan",
    "findleaks.allocators.scudo",
    "findleaks.allocators.partitionalloc",
    "findleaks.allocators.jemalloc",
    "findleaks.allocators.tcmalloc_google",
    "findleaks.allocators.tcmalloc",
    "findleaks.allocators.mimalloc",
    "findleaks.allocators.musl",
    "findleaks.allocators.pymalloc",
    "findleaks.allocators.gslice",
    "findleaks.allocators.zend",
    "findleaks.allocators.perl",
    "findleaks.allocators.luajit",
    "findleaks.allocators.glibc",
)
"""Modules with a function `find(target, engine, taken)`, in the order they are called. Add new
allocators here.

A module sets `NAME` if the allocator is commonly called by another name than its package. glibc is
the last: its mmapped chunks look like other memory, so the memory of all other allocators must be
known before."""

NESTED_FINDERS = (
    "findleaks.allocators.pmr",
    "findleaks.allocators.sqlite",
    "findleaks.allocators.aprbuckets",
    "findleaks.allocators.boostpool",
)
"""Modules with a function `find_nested(target, engine, blocks, is_leaked)`. It returns allocators
whose heaps are inside `blocks` in use of the allocators above."""

ONLY_IN: dict[str, tuple[str, ...]] = {
    "findleaks.allocators.gslice": ("libglib-2.0",),
    "findleaks.allocators.zend": ("php", "libphp", "mod_php", "frankenphp"),
    "findleaks.allocators.perl": ("perl", "libperl"),
    "findleaks.allocators.luajit": ("luajit", "libluajit"),
    "findleaks.allocators.pmr": ("libstdc++.so",),
    "findleaks.allocators.sqlite": ("libsqlite3",),
    "findleaks.allocators.aprbuckets": ("libaprutil-1",),
    "findleaks.allocators.boostpool": ("libstdc++.so", "libc++.so"),
}
"""For some allocators, the prefixes of the names of files that contain them. The module of such an
allocator is imported only if a file with such a name is loaded."""

MAX_CHANGED = 1000  # more problems are damage, because malloc changes few places at a time


def list_names() -> list[str]:
    """Return the names of the supported allocators."""
    finders = (*FINDERS, *NESTED_FINDERS)
    return [getattr(importlib.import_module(finder), "NAME", finder.rsplit(".", 1)[-1]) for finder in finders]


def find_nested(target: Target, engine: Engine, blocks: Blocks, is_leaked: Callable[[int], bool]) -> list[Allocator]:
    """Return the allocators inside blocks in use of the other ones.

    `is_leaked`: whether an address is inside a leaked block. A block with a nested heap may also
    contain objects that nothing describes. These become root memory. If the block is leaked, this
    would hide what leaked with it, so readers do not divide the block. The first call computes a
    graph."""
    modules = (name for name in NESTED_FINDERS if name not in ONLY_IN or find_modules(target, ONLY_IN[name]))
    return [one for name in modules for one in importlib.import_module(name).find_nested(target, engine, blocks, is_leaked)]


class Directory:
    """All blocks of all allocators (`blocks`, a sealed index), and the owner of each range.

    `heaps` are disjoint parts of heaps, ascending. `problems` lists what is corrupt. Blocks of a
    corrupt heap that can still be read are in `blocks`. `mappings` are the leaked mappings, which
    are in `blocks` and `heaps`, but not in `allocators`."""

    def __init__(
        self,
        allocators: Sequence[Allocator],
        blocks: Blocks,
        heaps: HeapParts,
        problems: list[Problem],
        mappings: MappingBlocks = NO_MAPPINGS,
    ) -> None:
        self.allocators = allocators
        self.mappings = mappings
        self.blocks = blocks
        self.heaps = heaps
        self.problems = problems
        self.half_changed: list[tuple[Problem, ThreadInside]] = []
        self._encoded = [(one, merge_ranges(self.of(one))) for one in allocators if one.encodes_references]

    @property
    def is_corrupt(self) -> bool:
        """Whether corruption was found when the heaps were read. `verify` may find more."""
        return any(problem.corrupt for problem in self.problems)

    def remove_half_changed(self, inside: Sequence[ThreadInside]) -> None:
        """Move the problems that a thread was just causing, because it was inside an allocator,
        from `problems` to `half_changed`."""
        self.problems[:], self.half_changed = self.separate_half_changed(self.problems, inside)
        excused = {id(problem) for problem, _ in self.half_changed}
        for allocator in self.allocators:
            allocator.problems[:] = [problem for problem in allocator.problems if id(problem) not in excused]

    def separate_half_changed(
        self, problems: Sequence[Problem], inside: Sequence[ThreadInside]
    ) -> tuple[list[Problem], list[tuple[Problem, ThreadInside]]]:
        """Divide `problems` into two lists: problems that no thread inside an allocator explains;
        and the others, each with the thread that explains it."""
        if not inside or len(problems) > MAX_CHANGED:
            return list(problems), []
        found = [(problem, find_changing_thread(problem, inside, self.blocks)) for problem in problems]
        return [problem for problem, one in found if one is None], [(problem, one) for problem, one in found if one is not None]

    def owner(self, address: int) -> Optional[HeapPart]:
        """Return the part of a heap that contains `address`, or None."""
        return self.heaps.at(address)

    def decode_references(self, piece: Piece) -> Piece:
        """Return a piece of memory in which the encoded addresses in blocks are decoded."""
        for allocator, ranges in self._encoded:
            for start, end in intersection([Range(piece.address, piece.address + len(piece.data))], ranges):
                low, high = start - piece.address, end - piece.address
                data = bytearray(piece.data)
                data[low:high] = allocator.decode_references(Piece(start, piece.data[low:high])).data
                piece = Piece(piece.address, memoryview(data))
        return piece

    def of(self, allocator: Allocator) -> list[Range]:
        """Return the parts of heaps that belong to `allocator`, ascending."""
        return [Range(owned.start, owned.end) for owned in self.heaps if owned.allocator is allocator]

    def totals(self, allocator: Allocator) -> list[Totals]:
        """Return the number and bytes of an allocator's blocks, by State."""
        counts = [heap.count(self.blocks) for heap, owner in self.heaps.owners if owner is allocator]
        return [Totals.sum_of(one[state] for one in counts) for state in State]

    def ranges(self) -> list[Range]:
        """Return the memory of all heaps, ascending. Adjacent heaps are merged into one range. A
        heap inside a block of another heap is part of the range of that heap."""
        return merge_ranges([*(Range(heap.start, heap.end) for heap in self._whole()), *self.heaps.apart])

    def _whole(self) -> list[Heap]:
        """Return the heaps, except heaps of slabs. Slabs are in other heaps or in `heaps.apart`."""
        return [heap for heap, _ in self.heaps.owners if not isinstance(heap, SlabHeap)]

    def bookkeeping(self) -> list[Range]:
        """Return the allocators' words inside the program's variables and blocks, unsorted."""
        return [part for allocator in self.allocators for part in allocator.bookkeeping()]

    def list_claimed(self) -> list[Range]:
        """Return the sorted ranges of heaps, and of metadata outside them. They are never root
        memory."""
        ranges = [part for heap in self._whole() for part in heap.list_owned()] + self.heaps.apart
        ranges += [metadata for allocator in self.allocators for metadata in allocator.metadata()]
        return sorted(ranges)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable the cyclic garbage collector, which would take a tenth of the time and find
    nothing."""
    active = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if active:
            gc.enable()


@_without_garbage_collection()
def build_directory(target: Target, engine: Engine, mapped: Sequence[Range] = (), inner: Sequence[Allocator] = ()) -> Directory:
    """Find the allocators, walk their heaps, and seal the index of blocks. Each of the `mapped`
    ranges becomes one block; see mapped.py. `inner`: further allocators, which may be nested."""
    allocators: list[Allocator] = []
    heaps: list[tuple[Heap, Allocator]] = []
    taken: list[Range] = []
    for name in FINDERS:
        if name in ONLY_IN and not find_modules(target, ONLY_IN[name]):
            continue
        find: Finder = importlib.import_module(name).find
        for allocator in find(target, engine, taken):
            found = [(heap, allocator) for heap in allocator.heaps()]
            allocator.ordinal = 1 + sum(other.name == allocator.name for other in allocators)
            allocators.append(allocator)
            heaps += found
            if not allocator.nested:
                taken = merge_ranges([*taken, *(Range(heap.start, heap.end) for heap, _ in found)])
    for allocator in inner:
        allocators.append(allocator)
        heaps += [(heap, allocator) for heap in allocator.heaps()]
    mappings = MappingBlocks(mapped, min(target.arch.page, LARGEST_GRANULE))  # up to 64 KiB
    heaps += [(heap, mappings) for heap in mappings.heaps()]
    granule = min((allocator.granule for allocator in allocators), default=2 * target.arch.word)
    problems: list[Problem] = []
    tree = nest_heaps(heaps, problems)
    walked = sum(node.heap.end - node.heap.start for node in tree if node.allocator is not mappings)
    blocks = engine.blocks(target.arch, granule, walked)
    walk = Walk(blocks, engine, target, Slabs(heaps, problems), problems)
    walk.walk(tree)
    blocks.seal()
    for allocator in allocators:
        allocator.mark_blocks(blocks)
        problems += allocator.problems
    return Directory(allocators, blocks, walk.parts, problems, mappings)
