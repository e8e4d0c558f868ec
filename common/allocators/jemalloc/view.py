"""The interface of a jemalloc to checks and statistics, and its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from findleaks.allocators.base import Problem
from findleaks.allocators.images import Image
from findleaks.allocators.jemalloc import arenas, profile, tree
from findleaks.allocators.jemalloc.base import Bases
from findleaks.allocators.jemalloc.classes import Classes
from findleaks.allocators.jemalloc.extents import Extents
from findleaks.allocators.jemalloc.tcache import JemallocCache
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine


class Parts(NamedTuple):
    """The parts of a jemalloc: its image, the table of small classes, the tree with its leaves
    (each with the number of its first page), the base allocator, the extents, the arenas and the
    offsets in them."""

    image: Image
    classes: Classes
    root: tree.Root
    leaves: list[tuple[int, int]]
    bases: Bases
    elements: tree.Elements
    extents: Extents
    arenas: list[arenas.JemallocArena]
    shape: arenas.ArenaShape


class JemallocView(Protocol):
    """See instance.Jemalloc. Readers set `checked`, and change nothing else."""

    memory: Memory
    parts: Parts
    caches_found: list[JemallocCache]
    internal: set[int]
    problems: list[Problem]
    profiler: profile.ProfilerBlocks
    engine: Engine
    checked: Mapping[str, int]
