"""Blocks that an allocator maps one by one, and the memory where they can be.

Shared by glibc and musl's oldmalloc, neither of which keeps a list of such blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from findleaks.allocators.base import Heap
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.libc.stacks import thread_stacks
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merged, subtract

HUGE = "/anon_hugepage"
"""The kernel's name for anonymous huge pages, which the tunable glibc.malloc.hugetlb asks for."""

NOT_HEAP = ("/", "[stack", "[vvar", "[vdso", "[vsyscall")

MMAPPED = "mmapped"
"""The label of heaps of mapped blocks."""


class Mapped(NamedTuple):
    """A mapping [start, end) that holds one chunk, whose header is at `chunk`; `size` bytes behind
    the header are usable."""

    start: int
    chunk: int
    end: int
    size: int


def unclaimed(target: Target, claimed: Iterable[Range]) -> list[Range]:
    """Sorted ranges of anonymous writable memory, adjacent regions joined, without `claimed` and
    live threads' stacks."""
    anonymous = [
        Range(region.start, region.end)
        for region in target.regions()
        if region.writable and region.readable and region.private
        if not region.name.startswith(NOT_HEAP) or region.name.startswith(HUGE)
    ]
    return subtract(merged(anonymous), [*claimed, *thread_stacks(target).values()])


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
    """The heap of adjacent mappings, whose blocks are in use and follow headers of `header`
    bytes."""

    def walk(blocks: Blocks) -> None:
        blocks.append([one.chunk + header for one in run], [one.size for one in run], [State.IN_USE] * len(run))

    return Heap(run[0].start, run[-1].end, MMAPPED, walk)
