"""Records of the address ranges that tcmalloc reserved (system-alloc.h, MmapRegion).

A record has the start of its region, which may also be the start of a block, so records must not
count as references. They are in pages of Abseil's LowLevelAlloc, which maps 64 KiB at a time."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.bulk import find_pointers
from findleaks.allocators.memory import Memory
from findleaks.allocators.tcmalloc_google.locate import Place
from findleaks.allocators.tcmallocs.page_map import WORD
from findleaks.engine.contract import Engine
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, nonzero_pieces, range_at, subtract

# absl/base/internal/low_level_alloc.cc, the header: size, magic number ^ its address, arena, a
# word.
MAGIC = 0x4C833E95
MAGICS = (MAGIC, MAGIC ^ (1 << 64) - 1)
HEADER, PAGE, CHUNK = 4 * WORD, 4096, 64 << 10


def region_records(memory: Memory, engine: Engine, place: Place, heaps: Sequence[Range], own: Sequence[Range]) -> list[Range]:
    """Return the pages with records of regions. Variables point to the records of regions in
    use."""
    regions = [Range(region.start, region.end) for region in memory.target.regions() if region.readable and region.writable]
    # A program's own variables may contain millions of pointers to blocks. These are skipped.
    between = subtract([Range(regions[0].start, regions[-1].end)], [*heaps, *own, *place.image.data])
    found: set[Range] = set()
    for start, end in merge_ranges(place.image.data):
        for piece in nonzero_pieces(memory.target, start, end):
            for low, high in between:
                for record in find_pointers(engine, piece, low, high)[1]:
                    header = record - HEADER
                    if header % (2 * WORD) == 0 and range_at(regions, header) and memory.word(header + WORD) == MAGIC ^ header:
                        # The start of a region plus its free part. Regions are used from the end
                        # downward.
                        names = (memory.word(record + WORD) or 0) + (memory.word(record + 2 * WORD) or 0)
                        if range_at(heaps, names):
                            found.add(_chunk(memory, header, regions))
    return merge_ranges(found)


def _chunk(memory: Memory, header: int, regions: Sequence[Range]) -> Range:
    """Return the range that LowLevelAlloc mapped with one call. It begins with a header at a page
    boundary."""
    arena, first = memory.word(header + 2 * WORD), header & -PAGE
    for start in range(header & -PAGE, (header & -PAGE) - CHUNK, -PAGE):
        word = memory.word(start + WORD)
        if word is not None and word ^ start in MAGICS and memory.word(start + 2 * WORD) == arena:
            first = start
    region = range_at(regions, header)
    return Range(first, min(first + CHUNK, region.end if region else header))
