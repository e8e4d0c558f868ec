"""Google's tcmalloc with per-CPU caches (github.com/google/tcmalloc), not gperftools'.

It is nearly always linked into the program. It has more variables than any other allocator: the
root of the page map alone takes megabytes of .bss. The table of size classes is found in them, then
the central lists, which name their classes. Their spans lead to the page map, and this to all spans
(locate.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.base import Allocator
from findleaks.allocators.tcmallocs import class_tables
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target

LEAST = 1 << 20
"""Bytes of writable memory of the smallest image that can hold it.

The page heap takes 2 MiB in any build.
"""

NAME = "google-tcmalloc"


def find(target: Target, engine: Engine, taken: Sequence[Range] = ()) -> Sequence[Allocator]:
    """See base.Finder: every one of Google's tcmallocs in the target.

    Most processes have no image with enough data to search.
    """
    places = class_tables(target, engine, LEAST)
    if not places:
        return []
    from findleaks.allocators.tcmalloc_google.instance import allocators

    return allocators(target, engine, places)
