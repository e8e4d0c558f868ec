"""Pageslabs of the hugepage allocator (hpdata.h, 5.3).

A pageslab is 2 MiB of pages, of which only those in use have descriptors.
"""

from __future__ import annotations

from findleaks.allocators.jemalloc.base import Bases
from findleaks.allocators.jemalloc.extents import HUGE, Extents
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.target.base import Range

E_PS = 24  # of edata_t


def find(memory: Memory, engine: Engine, bases: Bases, seen: Extents) -> list[Range]:
    """The pageslabs that contain extents, ascending; [] if there are none."""
    bit = seen.layout.hpa
    if bit < 0:
        return []
    descriptors = {seen.word(i, E_PS) for i, bits in enumerate(seen.bits) if bits >> bit & 1}
    found = set()
    for descriptor in descriptors:
        start = memory.word(descriptor) if bases.block(descriptor) is not None else None
        if start and start % HUGE == 0:
            found.add(Range(start, start + HUGE))
    return sorted(found)
