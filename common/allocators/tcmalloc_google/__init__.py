"""Google's tcmalloc with per-CPU caches (github.com/google/tcmalloc), which is another allocator than gperftools' of that name.

It is nearly always linked into the program. Its variables are more than any other allocator's: the root of the page map alone takes
megabytes of .bss. There the table of size classes is found, then the central lists, which name their classes; their spans lead to
the page map, and this to all spans (locate.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.base import Allocator
from findleaks.allocators.images import images
from findleaks.graph.base import Engine
from findleaks.target.base import Range, Target

LEAST = 1 << 20
"""Bytes of writable memory of the smallest image that can hold it: the page heap takes 2 MiB in any build."""

MARKS = (8 << 32, 16 << 32 | 8)
"""How SizeMap::class_to_size_ (32-bit, from size class 0 up: 0, 8, 16, …) begins, as the words of either alignment that hold the 8."""


def find(target: Target, engine: Engine, taken: Sequence[Range] = ()) -> Sequence[Allocator]:
    """Every one of Google's tcmallocs in the target; see base.Finder. Most processes have no image with so much data."""
    places = []
    for image in images(target):
        if image.size < LEAST:
            continue
        for start, end in image.data:
            for piece in target.pieces(start, end):
                for address in engine.search_any(piece, MARKS):
                    low = piece.data[address - piece.address]  # 0 of the first mark, 8 of the other
                    places.append((image, address - (4 if low else 0)))
    if not places:
        return []
    from findleaks.allocators.tcmalloc_google import locate

    return locate.allocators(target, engine, places)
