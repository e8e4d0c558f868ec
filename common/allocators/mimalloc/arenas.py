"""Arenas of mimalloc 2.x: memory reserved for segments, part of which is unused (src/arena.c).

mi_arena_t is in the library's data, which has space for the first arenas, or in a mapping of its
own, as in CPython 3.13. Three of its words follow each other: `start`, `block_count` (blocks of 32
MiB), and `field_count`, the words of a bitmap of blocks."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.allocators.mimalloc.layout import SEGMENT
from findleaks.allocators.search import find_words_between
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, subtract

MAX_BLOCKS = 1 << 20  # the largest number of blocks of an arena
MOST_MAPPED = 1 << 16  # bytes of a mapping that may contain mi_arena_t
REACH = 1 << 40  # maximum distance in bytes from the start of an arena to the first segment


def find_spare(target: Target, engine: Engine, segments: Sequence[Range]) -> list[Range]:
    """Return the parts of arenas around `segments` (ascending) that contain no segment. These parts
    are unused, and never root memory."""
    if not segments:
        return []
    memory = Memory(target)
    low, high = max(segments[0].start - REACH, SEGMENT), segments[-1].end
    found = []
    data = [part for image in find_images(target) for part in image.data]
    data += [Range(r.start, r.end) for r in target.regions() if r.writable and not r.name and r.end - r.start <= MOST_MAPPED]
    for at, first in find_words_between(target, engine, data, low, high):
        words = memory.words(at + 8, 2) if first % SEGMENT == 0 else None
        if words is not None and 1 <= words[0] <= MAX_BLOCKS and words[1] == (words[0] + 63) // 64:
            end = first + words[0] * SEGMENT
            if any(first <= segment.start and segment.end <= end for segment in segments):
                found.append(Range(first, end))
    writable = [Range(r.start, r.end) for r in target.regions() if r.writable]
    covered = merge_ranges(found)
    return subtract(covered, [*segments, *subtract(covered, writable)])
