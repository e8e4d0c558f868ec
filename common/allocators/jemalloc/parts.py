"""The parts found of one jemalloc, which its checks and statistics read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from findleaks.allocators.base import Problem
from findleaks.allocators.images import Image
from findleaks.allocators.jemalloc import tree
from findleaks.allocators.jemalloc.arenas import Arena, Shape
from findleaks.allocators.jemalloc.base import Bases
from findleaks.allocators.jemalloc.classes import Classes
from findleaks.allocators.jemalloc.extents import Extents
from findleaks.allocators.jemalloc.tcache import Cache
from findleaks.allocators.memory import Memory


class Parts(NamedTuple):
    """The image, the table of small classes, the tree with its leaves (each with the number of its
    first page), the base allocator, the extents, the arenas and the offsets in them."""

    image: Image
    classes: Classes
    root: tree.Root
    leaves: list[tuple[int, int]]
    bases: Bases
    elements: tree.Elements
    extents: Extents
    arenas: list[Arena]
    shape: Shape


class JemallocView(Protocol):
    """The attributes of instance.Jemalloc that checks and statistics read; they set `checked`."""

    memory: Memory
    parts: Parts
    caches_found: list[Cache]
    internal: set[int]
    problems: list[Problem]
    checked: Mapping[str, int]
