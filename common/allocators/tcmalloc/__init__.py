"""gperftools' tcmalloc, read without symbols: in its own library, in another one, or in the
program.

Sources: gperftools 2.7 to 2.18 (src/common.h, central_freelist.h, page_heap.h, pagemap.h, span.h,
thread_cache.h). layout.py has the layouts. google/tcmalloc, with caches for each CPU, is
tcmalloc_google."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.base import Allocator
from findleaks.allocators.tcmallocs import class_tables
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target

# Minimum number of writable bytes of an image with tcmalloc. This is the size of the central lists
# in a small-but-slow build; in other builds they have some 160 KB.
LEAST = 24 << 10


def find(target: Target, engine: Engine, taken: Sequence[Range] = ()) -> Sequence[Allocator]:
    """Find the tcmallocs of a process (see base.Finder). If there is none, this takes only a search
    of the files' data for two values."""
    places = class_tables(target, engine, LEAST)
    if not places:
        return []
    from findleaks.allocators.tcmalloc.instance import allocators

    return allocators(target, engine, places)
