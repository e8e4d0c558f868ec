"""jemalloc 5.2 to 5.3, read without symbols.

It may be a library of its own, part of another (with any prefix), or linked into the program.

Sources: jemalloc 5.2.1, 5.3.0 and 5.3.1 (include/jemalloc/internal: extent_structs.h, edata.h,
rtree.h, bin.h, cache_bin.h, tcache_structs.h, base.h, arena_structs.h; src/stats.c). layout.py has
the differences between them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from findleaks.allocators.base import Allocator
from findleaks.allocators.images import images
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece, Range, Target

MIN_DATA = 128 << 10
"""Bytes of writable memory that an image must have to contain jemalloc: the root of its radix tree
alone takes 256 KiB (2 MiB where addresses have 48 bits, 512 KiB with pages of 64 KiB)."""

PAGES = (4 << 10, 8 << 10, 16 << 10, 64 << 10)
"""Possible page sizes in bytes: a slab of class SECOND is one page."""

SECOND = 32
"""A size class that every jemalloc has, as it appears in the table of small classes (bin_infos).
Its neighbours in the table give the other classes."""


PART = 256 << 10
"""Bytes examined at a time: buffers of this size are reused, larger ones would be mapped anew each
time."""


def _entry(memory: Memory, piece: Piece, address: int) -> bool:
    """Whether `address` may hold the table's entry for 32 bytes: size, bytes of a slab (a page),
    number of regions."""
    offset = address - piece.address
    if offset + 24 > len(piece.data):  # the entry continues in the next piece
        words = memory.words(address, 3)
        return words is not None and words[1] in PAGES and (words[2] & 0xFFFFFFFF) * SECOND == words[1]
    _, slab, regions = struct.unpack_from("<QQI", piece.data, offset)
    return slab in PAGES and regions * SECOND == slab


def find(target: Target, engine: Engine, taken: Sequence[Range] = ()) -> Sequence[Allocator]:
    """Every jemalloc in the target; see base.Finder. Without one, the only cost is a search for one
    value in the data of files whose data is large enough."""
    if target.arch.word != 8 or target.arch.byteorder != "little":
        return []
    places = []
    memory = Memory(target)
    for image in images(target):
        if image.size < MIN_DATA:
            continue
        for low, high in (part for whole in image.data for part in target.nonzero(*whole)):
            for start in range(low, high, PART):
                for piece in target.pieces(start, min(start + PART, high)):
                    found = engine.search(piece, SECOND, SECOND + 1)
                    places += [(image, address) for address in found if _entry(memory, piece, address)]
    if not places:
        return []
    from findleaks.allocators.jemalloc.locate import allocators

    return allocators(target, engine, places)
