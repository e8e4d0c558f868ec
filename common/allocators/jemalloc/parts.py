"""What was found of one jemalloc, from which its checks and counts are made."""

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
    """What was found: where, the table of small classes, the tree with its leaves (and the number of the first page each is about), the
    base allocator, the extents, the arenas and where things are in them."""

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
    """What the checks and counts read of instance.Jemalloc; they set `checked`."""

    memory: Memory
    parts: Parts
    caches_found: list[Cache]
    internal: set[int]
    problems: list[Problem]
    checked: Mapping[str, int]
