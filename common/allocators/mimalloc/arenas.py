"""Arenas of mimalloc 2.x: memory reserved for segments, part of which holds none now (src/arena.c).

mi_arena_t is in the library's data, where memory for the first arenas is set aside. It has in a row
`start`, `block_count` (blocks of 32 MiB) and `field_count`, the words of a bitmap of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.images import images
from findleaks.allocators.mimalloc.layout import SEGMENT
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merged, nonzero_pieces, subtract

MAX_BLOCKS = 1 << 20  # blocks of an arena, at most
REACH = 1 << 40  # bytes below the first segment within which an arena may begin


def spare(target: Target, engine: Engine, segments: Sequence[Range]) -> list[Range]:
    """The parts of the arenas around these segments (ascending) that no segment takes.

    They are never roots: nothing there is in use.
    """
    if not segments:
        return []
    found = []
    low, high = max(segments[0].start - REACH, SEGMENT), segments[-1].end
    for image in images(target):
        for start, end in image.data:
            for piece in nonzero_pieces(target, start, end):
                skip = -piece.address % 8
                words = piece.data[skip : skip + (len(piece.data) - skip) // 8 * 8].cast("Q")
                for at in engine.search(piece, low, high):
                    index = (at - piece.address - skip) >> 3
                    if words[index] % SEGMENT or index + 2 >= len(words):
                        continue
                    first, count, fields = words[index : index + 3]
                    if 1 <= count <= MAX_BLOCKS and fields == (count + 63) // 64:
                        whole = Range(first, first + count * SEGMENT)
                        if any(whole.start <= segment.start and segment.end <= whole.end for segment in segments):
                            found.append(whole)
    writable = [Range(r.start, r.end) for r in target.regions() if r.writable]
    covered = merged(found)
    return subtract(covered, [*segments, *subtract(covered, writable)])
