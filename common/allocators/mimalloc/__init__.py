"""mimalloc without symbols, 64-bit, in its own library or linked into the program.

Versions: 2.0.9 to 2.4 (segments), 3.0 to 3.4 and 3.6 (a page map). Sources:
include/mimalloc/types.h, src/segment.c, src/page.c, src/free.c, src/arena.c and src/page-map.c of
these versions.

This module is imported for every process. It only searches for traces of a mimalloc: in 2.x,
segment headers at multiples of 32 MiB; in 3.x, a pointer to a page map whose first entry points to
the end of the map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.allocators.base import Allocator
from findleaks.allocators.bulk import find_pointers
from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.allocators.mimalloc.map_header import is_map_size, measure_map_header
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, nonzero_pieces, range_at

SEGMENT = 1 << 25  # bytes: the size and alignment of a segment of 2.x
CANDIDATES = 1 << 12  # pointers of one file that are tried as page maps


def find(target: Target, engine: Engine, taken: Sequence[Range]) -> Sequence[Allocator]:
    """Find the mimallocs of a process (see base.Finder)."""
    if target.arch.word != 8 or target.arch.byteorder != "little":
        return []
    memory = Memory(target)
    writable = merge_ranges(Range(r.start, r.end) for r in target.regions() if r.writable and r.readable)
    segments = list(_find_segments(memory, writable, taken))
    maps = _find_page_maps(memory, engine, writable)
    if not segments and not maps:
        return []
    from findleaks.allocators.mimalloc import instance

    return instance.find_all(target, engine, writable, segments, maps)


def _find_segments(memory: Memory, writable: Sequence[Range], taken: Sequence[Range]) -> Iterator[int]:
    """Yield the multiples of 32 MiB at which there is a plausible header of a 2.x segment.
    instance.py checks them."""
    reached = 0
    for start, end in (part for whole in writable for part in memory.target.nonzero(*whole)):
        for at in range(max(-(-start // SEGMENT) * SEGMENT, reached), end, SEGMENT):
            reached = at + SEGMENT
            words = memory.words(at + 208, 12)
            if words is None or range_at(taken, at) is not None:
                continue
            # The shift is the index of `used`. The gap is the number of words from there to
            # segment_slices, which info_slices, kind and slice_entries follow.
            for shift, gap in ((0, 1), (1, 3), (1, 2)):
                used, slices, info, kind, entries = words[shift], *words[shift + 1 + gap : shift + 5 + gap]
                if used <= 512 and 1 <= info <= 2048 and info <= entries <= 513 and entries <= slices < 1 << 32 and kind <= 1:
                    yield at
                    break


def _find_page_maps(memory: Memory, engine: Engine, writable: Sequence[Range]) -> list[tuple[int, int]]:
    """Return (address of the variable, page map of 3.x) of each such pointer in a file's data."""
    found: dict[int, int] = {}
    for image in find_images(memory.target) if writable else ():
        tried = 0
        for at, value in _find_page_pointers(memory.target, engine, image.data, writable[0].start, writable[-1].end):
            if tried > CANDIDATES:
                break
            if value not in found and range_at(writable, value) is not None:
                tried += 1
                if _is_page_map(memory, value):
                    found[value] = at
    return [(at, value) for value, at in found.items()]


def _find_page_pointers(target: Target, engine: Engine, ranges: Sequence[Range], low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield (address, value) of the words in these ranges that point to the start of a page in
    [low, high)."""
    for start, end in ranges:
        for piece in nonzero_pieces(target, start, end):
            addresses, values = find_pointers(engine, piece, low, high)
            # Most pointers in a program's data do not point to a page. A search for a zero in their
            # lowest bytes is faster than a check of each.
            lowest = memoryview(values).cast("B")[::8].tobytes()
            number = lowest.find(0)
            while number >= 0:
                if not values[number] & 0xFFF:
                    yield addresses[number], values[number]
                number = lowest.find(0, number + 1)


def _is_page_map(memory: Memory, address: int) -> bool:
    """Whether the map's entry for the lowest addresses points to the end of its first level."""
    # The map of 3.6 has a header with the bytes of the first level and the map's own address.
    if memory.word(address + 16) == address:
        return measure_map_header(memory, address) > 0
    return is_map_size((memory.word(address) or 0) - address)
