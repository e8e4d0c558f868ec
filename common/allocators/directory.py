"""The directory of blocks: every allocator found in a target, its heaps walked in address order into one index."""

from __future__ import annotations

import bisect
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from findleaks.allocators.base import Allocator, Finder, Heap, Problem
from findleaks.graph.base import Blocks, Engine
from findleaks.target.base import Range, Target

FINDERS = ("findleaks.allocators.glibc",)
"""Modules with a `find(target, engine)`; a new allocator adds itself here."""


@dataclass(frozen=True)
class Owned:
    """A heap and whose it is."""

    heap: Heap
    allocator: Allocator


class Directory:
    """All blocks of all allocators (`blocks`, sealed), and who owns which range.

    `problems` holds what was corrupt, with addresses; what could be read of the other heaps is in `blocks`.
    """

    def __init__(self, allocators: Sequence[Allocator], blocks: Blocks, heaps: Sequence[Owned], problems: list[Problem]) -> None:
        self.allocators = allocators
        self.blocks = blocks
        self.heaps = heaps
        self.problems = problems
        self._starts = [owned.heap.start for owned in heaps]

    def owner(self, address: int) -> Optional[Owned]:
        """The heap that holds `address`, or None."""
        at = bisect.bisect_right(self._starts, address) - 1
        return self.heaps[at] if at >= 0 and address < self.heaps[at].heap.end else None

    def claimed(self) -> list[Range]:
        """Sorted ranges that are the allocators' own: heaps, and metadata outside them. Never roots."""
        ranges = [part for owned in self.heaps for part in owned.heap.owned()]
        ranges += [metadata for allocator in self.allocators for metadata in allocator.metadata()]
        return sorted(ranges)


def build(target: Target, engine: Engine) -> Directory:
    """Find the allocators, walk their heaps, seal the index."""
    allocators: list[Allocator] = []
    for name in FINDERS:
        find: Finder = importlib.import_module(name).find
        allocators += find(target, engine)
    granule = min((allocator.granule for allocator in allocators), default=2 * target.arch.word)
    blocks = engine.blocks(target.arch, granule)
    heaps, problems = _disjoint([Owned(heap, allocator) for allocator in allocators for heap in allocator.heaps()])
    for owned in heaps:
        owned.heap.walk(blocks)
    blocks.seal()
    for allocator in allocators:
        allocator.sealed(blocks)
        problems += allocator.problems
    return Directory(allocators, blocks, heaps, problems)


def _disjoint(heaps: list[Owned]) -> tuple[list[Owned], list[Problem]]:
    """Sort the heaps; of two that overlap the later is left out and named (two readers claim the same memory)."""
    kept: list[Owned] = []
    problems: list[Problem] = []
    for owned in sorted(heaps, key=lambda owned: (owned.heap.start, -owned.heap.end)):
        if kept and owned.heap.start < kept[-1].heap.end:
            other = kept[-1]
            problems.append(
                Problem(
                    owned.heap.start,
                    f"{owned.allocator.name} {owned.heap.arena} overlaps {other.allocator.name} {other.heap.arena} "
                    f"at {other.heap.start:#x}: left out",
                )
            )
        else:
            kept.append(owned)
    return kept, problems
