"""Google's tcmalloc with caches for each CPU (github.com/google/tcmalloc). This is not the tcmalloc
of gperftools.

It is usually linked into the program, whose .bss is then large: the page map's root alone has
megabytes. The table of size classes is found there, then the central lists, which have the numbers
of their classes. The page map is found by the spans of these lists. It refers to all spans
(locate.py)."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.base import Allocator
from findleaks.allocators.tcmallocs import class_tables
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target

# the least number of writable bytes of an image; the page heap has 2 MiB in any build
LEAST = 1 << 20

NAME = "google-tcmalloc"


def find(target: Target, engine: Engine, taken: Sequence[Range] = ()) -> Sequence[Allocator]:
    """Find Google's tcmallocs in a process (see base.Finder). Most processes have no image with
    enough data to search."""
    places = class_tables(target, engine, LEAST)
    if not places:
        return []
    from findleaks.allocators.tcmalloc_google.instance import allocators

    return allocators(target, engine, places)
