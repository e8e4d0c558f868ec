"""jemalloc 5.2 to 5.3, read without symbols: in its own library, in another one (with any prefix),
or linked into the program.

Sources: 5.2.1, 5.3.0 and 5.3.1 (include/jemalloc/internal: extent_structs.h, edata.h, rtree.h,
bin.h, cache_bin.h, tcache_structs.h, base.h, arena_structs.h; src/stats.c). layout.py has the
differences."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.base import Allocator
from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece, Range, Target

MIN_DATA = {8: 128 << 10, 4: 16 << 10}
"""The smallest size of an image's writable data with jemalloc in bytes, by bytes of a word.

The root of its radix tree has 256 KiB (2 MiB with addresses of 48 bits, 512 KiB with pages of 64
KiB), or 4 KiB with words of 4 bytes. Its table of arenas has 4,096 words."""

# possible page sizes in bytes; a slab of class SECOND is one page
PAGES = (4 << 10, 8 << 10, 16 << 10, 64 << 10)
SECOND = 32  # bytes; every jemalloc has this class; its entry in bin_infos leads to the others


PART = 256 << 10  # bytes searched at once; a larger buffer would be mapped anew for each part


def _may_be_entry(memory: Memory, piece: Piece, address: int) -> bool:
    """Whether {32, bytes of a slab (one page), number of regions} may be at `address`."""
    offset = address - piece.address
    form = memory.arch.structure("PPI")
    if offset + form.size > len(piece.data):  # the entry continues in the next piece
        _, slab, regions = memory.members(address, "PPI") or (0, 0, 0)
    else:
        _, slab, regions = form.unpack_from(piece.data, offset)
    return bool(slab in PAGES and regions * SECOND == slab)


def find(target: Target, engine: Engine, taken: Sequence[Range] = ()) -> Sequence[Allocator]:
    """Find the jemallocs of a process (see base.Finder). If there is none, this takes only a search
    for one value in large images."""
    places = []
    memory = Memory(target)
    for image in find_images(target):
        if image.size < MIN_DATA[target.arch.word]:
            continue
        for low, high in (part for whole in image.data for part in target.nonzero(*whole)):
            for start in range(low, high, PART):
                for piece in target.pieces(start, min(start + PART, high)):
                    found = engine.search(piece, SECOND, SECOND + 1)
                    places += [(image, address) for address in found if _may_be_entry(memory, piece, address)]
    if not places:
        return []
    from findleaks.allocators.jemalloc.locate import find_allocators

    return find_allocators(target, engine, places)
