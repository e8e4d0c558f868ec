"""A synthetic allocator with a given list of blocks, and a session that uses it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fake import FakeTarget

from findleaks.allocators.base import Allocator, Heap, Problem
from findleaks.allocators.directory import Directory
from findleaks.allocators.heap_parts import HeapPart, HeapParts
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.load import load
from findleaks.engine.terms import State
from findleaks.session import Session
from findleaks.target.base import Range


class Listed(NamedTuple):
    address: int
    size: int
    state: State = State.IN_USE


class ListAllocator(Allocator):
    """One heap [start, end) with the blocks given."""

    name, version, where, granule = "listed", "1", "nowhere", 16

    def __init__(self, start: int, end: int, blocks: Iterable[Listed]) -> None:
        self.problems: list[Problem] = []
        self.blocks = sorted(blocks)
        self.range = Range(start, end)

    def heaps(self) -> Sequence[Heap]:
        return [Heap(self.range.start, self.range.end, "main", self._walk)]

    def _walk(self, blocks: Blocks) -> None:
        blocks.append([b.address for b in self.blocks], [b.size for b in self.blocks], [b.state for b in self.blocks])


def session(target: FakeTarget, allocators: Sequence[ListAllocator], engine: Engine | None = None) -> Session:
    """Return a session whose directory has these allocators, instead of those that findleaks would find."""
    made = Session(target, engine or load(target.arch))
    heaps = sorted((HeapPart(h, a, h.start, h.end) for a in allocators for h in a.heaps()), key=lambda owned: owned.heap.start)
    blocks = made.engine.blocks(target.arch, 16)
    for owned in heaps:
        owned.heap.walk(blocks)
    blocks.seal()
    made.__dict__["directory"] = Directory(allocators, blocks, HeapParts(heaps), [p for a in allocators for p in a.problems])
    return made
