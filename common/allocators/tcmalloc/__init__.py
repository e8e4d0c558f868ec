"""gperftools' tcmalloc, read without symbols: in its own library, in another, or in the program.

Sources: gperftools 2.7 to 2.18 (src/common.h, central_freelist.h, page_heap.h, pagemap.h, span.h,
thread_cache.h); layouts: layout.py. google/tcmalloc, with caches per CPU, is tcmalloc_google."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.base import Allocator
from findleaks.allocators.tcmallocs import class_tables
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target

# Writable bytes of an image that can hold tcmalloc, at least: its central lists alone take as much
# in a small-but-slow build, some 160 KB in others.
LEAST = 24 << 10


def find(target: Target, engine: Engine, taken: Sequence[Range] = ()) -> Sequence[Allocator]:
    """See base.Finder. Without tcmalloc this only searches the files' data for two values."""
    places = class_tables(target, engine, LEAST)
    if not places:
        return []
    from findleaks.allocators.tcmalloc.instance import allocators

    return allocators(target, engine, places)
