"""Google's tcmalloc with per-CPU caches (github.com/google/tcmalloc), not gperftools'.

Nearly always linked into the program, whose .bss it fills: the page map's root alone takes
megabytes. The table of size classes is found there, then the central lists, which name their
classes; their spans lead to the page map, and this to all spans (locate.py)."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.base import Allocator
from findleaks.allocators.tcmallocs import class_tables
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target

LEAST = 1 << 20  # smallest image's writable bytes; the page heap takes 2 MiB in any build

NAME = "google-tcmalloc"


def find(target: Target, engine: Engine, taken: Sequence[Range] = ()) -> Sequence[Allocator]:
    """See base.Finder. Most processes have no image with enough data to search."""
    places = class_tables(target, engine, LEAST)
    if not places:
        return []
    from findleaks.allocators.tcmalloc_google.instance import allocators

    return allocators(target, engine, places)
