"""Blocks that are mapped one by one, which glibc and musl's oldmalloc keep no list of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from findleaks.allocators.base import Heap
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.libc.stacks import thread_stacks
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, subtract

HUGE = "/anon_hugepage"  # the kernel's name for anonymous huge pages (glibc.malloc.hugetlb)

NOT_HEAP = ("/", "[stack", "[vvar", "[vdso", "[vsyscall")

MMAPPED = "mmapped"  # the label of heaps of mapped blocks


class Mapped(NamedTuple):
    """A mapping [start, end) with one chunk: a header at `chunk`, `size` usable bytes behind it."""

    start: int
    chunk: int
    end: int
    size: int


def unclaimed(target: Target, claimed: Iterable[Range]) -> list[Range]:
    """Sorted ranges of anonymous writable memory without `claimed` and live threads' stacks."""
    anonymous = [
        Range(region.start, region.end)
        for region in target.regions()
        if region.writable and region.readable and region.private
        if not region.name.startswith(NOT_HEAP) or region.name.startswith(HUGE)
    ]
    return subtract(merge_ranges(anonymous), [*claimed, *thread_stacks(target).values()])


def adjacent(mapped: Iterable[Mapped]) -> Iterator[list[Mapped]]:
    """Runs of ascending mappings, each of which begins where the one before ends."""
    run: list[Mapped] = []
    for one in mapped:
        if run and one.start != run[-1].end:
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def mapped_heap(run: Sequence[Mapped], header: int) -> Heap:
    """The heap of adjacent mappings, whose blocks are in use, behind headers of `header` bytes."""

    def walk(blocks: Blocks) -> None:
        blocks.append([one.chunk + header for one in run], [one.size for one in run], [State.IN_USE] * len(run))

    return Heap(run[0].start, run[-1].end, MMAPPED, walk)
