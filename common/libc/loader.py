"""Find the memory of ld.so, and its blocks to which only interior pointers refer.

glibc 2.35 and later keep a table of loaded files for stack unwinders. After the first `dlopen`, the
segments of the table are in blocks, aligned to cache lines (elf/dl-find_object.c, struct
dlfo_mappings_segment: previous, to_free, size, allocated, …). Only `to_free` in the segment itself
points to the start of the block. Without this rule, every program that loads plugins would have a
"possible" leak of some 2 KiB."""

from __future__ import annotations

from bisect import bisect_left

from findleaks.target.base import Range, Target
from findleaks.target.ranges import nonzero_pieces
from findleaks.target.words import word_at

_LINE = 128  # the longest cache line in bytes; segments are aligned to a cache line
# Maximum number of bytes of ld.so's data that are searched. ld.so has 10 KiB of data, but the
# headers of a core may be wrong.
_MOST = 1 << 20

_LINKERS = ("ld-linux", "ld-2.", "ld64.", "ld.so")


def linker_ranges(target: Target) -> list[Range]:
    """Return the addresses from start to end of ld.so."""
    return [Range(one.start, one.end) for one in target.modules() if one.path.rsplit("/", 1)[-1].startswith(_LINKERS)]


def table_blocks(target: Target) -> list[int]:
    """Return the addresses of the blocks that contain segments of the table."""
    found: list[int] = []
    word = target.arch.word
    regions = target.regions()
    starts = [region.start for region in regions]
    for inside in linker_ranges(target):
        left = _MOST
        for number in range(bisect_left(starts, inside.start), len(regions)):
            region = regions[number]
            if region.start >= inside.end:
                break
            if region.executable or not region.readable:
                continue
            end = min(region.end, inside.end, region.start + left)
            left -= max(end - region.start, 0)
            for piece in nonzero_pieces(target, region.start, end):
                if piece.address % word == 0:
                    words = target.arch.unpack(bytes(piece.data))
                    found += [start for segment in words if segment and not segment % (8 * word) and (start := _start(target, segment))]
    return found


def _start(target: Target, segment: int) -> int:
    """Return the word `to_free` of a possible segment, or 0. It must be aligned like a block of
    malloc, and at most a cache line below the segment."""
    word = target.arch.word
    start = word_at(target, segment + word)
    return start if 0 <= segment - start < _LINE and start % (2 * word) == 0 else 0
