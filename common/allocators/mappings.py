"""Blocks in separate mappings, of which glibc and musl's oldmalloc keep no list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from findleaks.allocators.base import Heap
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.libc.stacks import thread_stacks
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, subtract
from findleaks.value_classes import NamedTuple

NOT_HEAP = ("/", "[stack", "[vvar", "[vdso", "[vsyscall")

MMAPPED = "mmapped"  # the label of heaps of mapped blocks


class MappedChunk(NamedTuple):
    """A mapping [start, end) with one chunk. The header of the chunk is at `chunk`, and `size`
    usable bytes follow it."""

    start: int
    chunk: int
    end: int
    size: int


def find_unclaimed(target: Target, claimed: Iterable[Range]) -> list[Range]:
    """Return the sorted ranges of anonymous writable memory, without `claimed` ranges and the
    stacks of live threads."""
    anonymous = [
        Range(region.start, region.end)
        for region in target.regions()
        if region.writable and region.readable and region.private
        if not region.name.startswith(NOT_HEAP) or region.has_huge_pages
    ]
    return subtract(merge_ranges(anonymous), [*claimed, *thread_stacks(target).values()])


def group_adjacent(mapped: Iterable[MappedChunk]) -> Iterator[list[MappedChunk]]:
    """Divide ascending mappings into runs. In a run, each mapping begins where the previous one
    ends."""
    run: list[MappedChunk] = []
    for one in mapped:
        if run and one.start != run[-1].end:
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def make_mapped_heap(run: Sequence[MappedChunk], header: int) -> Heap:
    """Make one heap of adjacent mappings. Their blocks are in use and follow headers of `header`
    bytes."""

    def walk(blocks: Blocks) -> None:
        blocks.append([one.chunk + header for one in run], [one.size for one in run], [State.IN_USE] * len(run))

    return Heap(run[0].start, run[-1].end, MMAPPED, walk)
