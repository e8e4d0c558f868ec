"""Google's tcmalloc with per-CPU caches (github.com/google/tcmalloc), which is another allocator than gperftools' of that name.

It is nearly always linked into the program. Its variables are more than any other allocator's: the root of the page map alone takes
megabytes of .bss. There the table of size classes is found, then the central lists, which name their classes; their spans lead to
the page map, and this to all spans (locate.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.base import Allocator
from findleaks.allocators.tcmallocs import class_tables
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target

LEAST = 1 << 20
"""Bytes of writable memory of the smallest image that can hold it: the page heap takes 2 MiB in any build."""

NAME = "google-tcmalloc"


def find(target: Target, engine: Engine, taken: Sequence[Range] = ()) -> Sequence[Allocator]:
    """Every one of Google's tcmallocs in the target; see base.Finder. Most processes have no image with so much data."""
    places = class_tables(target, engine, LEAST)
    if not places:
        return []
    from findleaks.allocators.tcmalloc_google.instance import allocators

    return allocators(target, engine, places)
