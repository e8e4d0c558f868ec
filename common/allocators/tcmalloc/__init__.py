"""gperftools' tcmalloc, read without symbols: in its own library, in another, or in the program.

Sources: gperftools 2.7 to 2.18 (src/common.h, central_freelist.h, page_heap.h, pagemap.h, span.h,
thread_cache.h); layouts are in layout.py. google/tcmalloc, which keeps caches per CPU, is another
allocator and is not read here.
"""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.base import Allocator
from findleaks.allocators.tcmallocs import class_tables
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target

LEAST = 24 << 10
"""Bytes of writable memory of the smallest image that can hold tcmalloc.

Its central lists alone take as much in a small-but-slow build, some 160 KB in others.
"""


def find(target: Target, engine: Engine, taken: Sequence[Range] = ()) -> Sequence[Allocator]:
    """See base.Finder: every gperftools tcmalloc in the target.

    Where there is none, this only searches the data of the loaded files for two values.
    """
    places = class_tables(target, engine, LEAST)
    if not places:
        return []
    from findleaks.allocators.tcmalloc.instance import allocators

    return allocators(target, engine, places)
