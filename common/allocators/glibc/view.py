"""The attributes of one glibc malloc that checks, statistics and remedies read."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Optional, Protocol

from findleaks.allocators.base import Heap, Problem
from findleaks.allocators.glibc.arenas import Span
from findleaks.allocators.glibc.locate import Instance
from findleaks.allocators.glibc.mmapped import Mapped
from findleaks.allocators.glibc.reconcile import Balance
from findleaks.allocators.glibc.tcache import Caches, ThreadCache
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.target.base import Piece, Range, Target


class GlibcView(Protocol):
    """See instance.Glibc. Readers add to `problems` and `checked`, and change nothing else."""

    target: Target
    engine: Engine
    memory: Memory
    granule: int
    instance: Instance
    spans: list[Span]
    mapped: list[Mapped]
    unclaimed: list[Range]
    tcaches: Caches
    mangled: Optional[bool]
    balances: list[Balance]
    kept: list[tuple[ThreadCache, int, array[int]]]
    problems: list[Problem]
    checked: dict[str, int]

    def par(self, name: str) -> Optional[int]: ...

    def heaps(self) -> Sequence[Heap]: ...

    def owns(self, address: int) -> bool: ...

    def all_pieces(self) -> list[Piece]: ...

    def walked_blocks(self, span: Span, blocks: Blocks) -> Blocks: ...
