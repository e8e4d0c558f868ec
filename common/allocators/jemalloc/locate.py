"""Find jemalloc in a process, and decide which release's structures it has."""

from __future__ import annotations

import re
from collections.abc import Sequence

from findleaks.allocators.base import Problem
from findleaks.allocators.images import Image, find_version
from findleaks.allocators.jemalloc import arenas, classes, extents, tree
from findleaks.allocators.jemalloc.base import Bases
from findleaks.allocators.jemalloc.classes import Classes
from findleaks.allocators.jemalloc.extents import Extents
from findleaks.allocators.jemalloc.instance import Jemalloc
from findleaks.allocators.jemalloc.layout import KEPT, get_layouts
from findleaks.allocators.jemalloc.view import Parts
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.target.base import Target

VERSION = re.compile(rb"\0(\d{1,2}\.\d{1,3}\.\d{1,3})-\d{1,6}-g[0-9a-f]{7,40}\0")
"""JEMALLOC_VERSION: the release, the number of commits since, and the commit."""

SAMPLE = 512  # slabs whose bitmaps are counted to distinguish the layouts


def find_allocators(target: Target, engine: Engine, places: Sequence[tuple[Image, int]]) -> list[Jemalloc]:
    """Find every jemalloc to which one of these places belongs. A place is a word with the value
    32, which may be in the table of size classes."""
    memory = Memory(target)
    found: dict[int, tuple[Image, list[Classes]]] = {}
    for image, address in places:
        table = classes.read_classes(memory, address)
        if table is not None:
            found.setdefault(image.module.start, (image, []))[1].append(table)
    made = []
    for image, tables in found.values():
        bases = Bases(memory, tables[0])
        words = list(tree.find_candidates(engine, memory, image, bases))
        roots = tree.find_roots(memory, engine, image, tables[0], bases, words)
        for i, root in enumerate(sorted(roots)):
            # Two jemallocs in one image have equal tables, so any table fits.
            made.append(_read_allocator(engine, memory, image, tables[min(i, len(tables) - 1)], bases, words, root))
    return made


def _read_allocator(
    engine: Engine, memory: Memory, image: Image, table: Classes, bases: Bases, words: Sequence[tuple[int, int]], root: tree.Root
) -> Jemalloc:
    """Read the jemalloc whose radix tree has this root."""
    problems: list[Problem] = []
    leaves = tree.read_leaves(memory, engine, root, bases, problems)
    elements = tree.read_elements(memory, engine, root, leaves)
    seen = _read_extents(engine, bases, elements, table, problems)
    low, high = root.range
    nodes = {value for address, value in words if low <= address < high} | {leaf for leaf, _ in leaves}
    list_ = arenas.find_table(bases, words, nodes)
    shape = arenas.find_shape(memory, engine, list_, arenas.find_candidates(bases, words, nodes), seen)
    parts = Parts(image, table, root, leaves, bases, elements, seen, list_, shape)
    version = find_version(memory.target, image.module, VERSION) or seen.layout.name
    return Jemalloc(memory.target, engine, parts, version, problems)


def _read_extents(engine: Engine, bases: Bases, elements: tree.Elements, table: Classes, problems: list[Problem]) -> Extents:
    """Read the extents in the layout in which most extents are consistent. If two layouts fit
    equally, use the newer one."""
    tried: list[tuple[float, Extents, list[Problem]]] = []
    for layout in get_layouts(engine.arch).extents:
        found: list[Problem] = []
        seen = extents.read_extents(engine, bases, elements, table, layout, found)
        tried.append((_score_extents(seen), seen, found))
        if tried[-1][0] == 1:
            break
    _, seen, found = max(tried, key=lambda one: one[0])
    problems += found
    return seen


def _score_extents(seen: Extents) -> float:
    """Return the share of extents that are consistent (0 to 1). An extent is consistent if its
    class fits its size, and for a slab, the number of free regions fits the bitmap."""
    # States from 6 on do not exist (edata.h), except for KEPT.
    good = sum(seen.good) - sum(6 <= state < KEPT for state in seen.state)
    slabs = [i for i in seen.blocks if seen.slab[i]]
    sample = slabs[:: len(slabs) // SAMPLE + 1]
    right = sum(seen.nfree(i) == bin(seen.bitmap(i)).count("1") for i in sample)
    return (good + right) / (len(seen) + len(sample)) if len(seen) else 0.0
