"""gperftools' tcmalloc, read without symbols: in a library of its own, in another, or linked into the program.

Sources: gperftools 2.7 to 2.18 (src/common.h, central_freelist.h, page_heap.h, pagemap.h, span.h, thread_cache.h); layouts are in
layout.py. google/tcmalloc, which keeps caches per CPU, is another allocator and is not read here.
"""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.base import Allocator
from findleaks.allocators.tcmallocs import class_tables
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target

LEAST = 24 << 10
"""Bytes of writable memory of the smallest image that can hold tcmalloc: its central lists alone take as much in a small-but-slow build,
some 160 KB in others."""


def find(target: Target, engine: Engine, taken: Sequence[Range] = ()) -> Sequence[Allocator]:
    """Every gperftools tcmalloc in the target; see base.Finder. Without one, all that is done is to look for two values in the data of
    the loaded files."""
    places = class_tables(target, engine, LEAST)
    if not places:
        return []
    from findleaks.allocators.tcmalloc.instance import allocators

    return allocators(target, engine, places)
