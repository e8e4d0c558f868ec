"""What readers and checks know of a libumem."""

from __future__ import annotations

from typing import Protocol

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.umem.arenas import Vmem
from findleaks.allocators.umem.caches import Rounds, Slab, Slabs, UmemCache
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece, Target


class UmemView(Protocol):
    """See instance.Umem. Readers add to `problems`, and change nothing else."""

    target: Target
    engine: Engine
    memory: Memory
    pieces: tuple[Piece, ...]
    null: int
    vmem: list[Vmem]
    umem_caches: list[UmemCache]
    kept: list[UmemCache]
    slabs: Slabs
    rounds: list[Rounds]
    problems: list[Problem]
    where: str

    def bufctl(self, slab: Slab, buffer: int) -> int:
        """See instance.Umem."""
        ...
