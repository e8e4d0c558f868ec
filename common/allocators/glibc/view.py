"""The interface of a glibc malloc, including its thread caches, to checks, statistics and
remedies."""

from __future__ import annotations

from array import array
from typing import Protocol

from findleaks.allocators.base import Heap
from findleaks.allocators.glibc.arenas import GlibcSpan
from findleaks.allocators.glibc.heap_view import HeapView
from findleaks.allocators.glibc.reconcile import ArenaBalance
from findleaks.allocators.glibc.tcache import Misfit, Tcache, Tcaches
from findleaks.allocators.mappings import MappedChunk
from findleaks.engine.contract import Blocks
from findleaks.target.base import Piece, Range


class GlibcView(HeapView, Protocol):
    """See instance.Glibc. Readers add to `problems` and `checked`, and change nothing else."""

    name: str
    mapped: list[MappedChunk]
    unclaimed: list[Range]
    tcaches: Tcaches
    misfits: list[Misfit]
    balances: list[ArenaBalance]
    kept: list[tuple[Tcache, int, array[int]]]
    checked: dict[str, int]

    @property
    def chunk_pieces(self) -> tuple[Piece, ...]: ...
    def heaps(self) -> list[Heap]: ...
    def walked_blocks(self, span: GlibcSpan, blocks: Blocks) -> Blocks: ...
