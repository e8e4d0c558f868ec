"""The interface of a glibc malloc to the readers of its spans, free lists and thread caches."""

from __future__ import annotations

from typing import Optional, Protocol

from findleaks.allocators.base import Problem
from findleaks.allocators.glibc.arenas import GlibcSpan
from findleaks.allocators.glibc.blame import Judge
from findleaks.allocators.glibc.locate import GlibcInstance
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece, Target


class HeapView(Protocol):
    """See instance.Glibc. Readers add to `problems`, and change nothing else."""

    target: Target
    engine: Engine
    memory: Memory
    granule: int
    instance: GlibcInstance
    spans: list[GlibcSpan]
    mangled: Optional[bool]
    judge: Judge
    problems: list[Problem]

    @property
    def pieces(self) -> list[Piece]: ...
    @property
    def listed_chunks(self) -> list[int]: ...
    def owns(self, address: int) -> bool: ...
    def par(self, name: str) -> Optional[int]: ...
