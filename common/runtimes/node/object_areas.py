"""Find the parts of V8's pages that consist of objects.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/heap/basic-memory-chunk.h, later
memory-chunk-metadata.h (a page's header has the two bounds of its area, and no other address in the
page), src/heap/linear-allocation-area.h ({start, top, limit}, up to V8 8.4 src/heap/spaces.h: {top,
limit}; memory from top to limit has no objects yet), src/heap/read-only-spaces.h (the area of a
read-only page ends with the page)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.allocators.memory import Memory
from findleaks.runtimes.node.dead import AREA, FIRST, unused_new_space
from findleaks.runtimes.node.heap import PAGE
from findleaks.runtimes.node.local_areas import local_areas
from findleaks.runtimes.node.spaces import HEADS, NEW_SPACE, Space, Spaces
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, subtract
from findleaks.value_classes import NamedTuple

READ_ONLY_WORDS = 16  # of the header of a read-only page
SMALLEST_HEADER = 16  # bytes of a page's header, since V8 12.9


class ObjectAreas(NamedTuple):
    """Parts of pages that consist of objects, and pages whose objects cannot be found;
    ascending."""

    areas: Sequence[Range]
    unknown: Sequence[Range]


def object_areas(memory: Memory, spaces: Spaces, heaps: Sequence[int], has_pairs: bool) -> ObjectAreas:
    """Return the areas of these spaces. `heaps` are the addresses of the isolates' heaps. The
    process must not be stopped in a collection. `has_pairs`: the linear allocation area of a space
    is {top, limit}, as up to V8 8.4."""
    areas: list[Range] = []
    unknown = [Range(*chunk) for chunk in spaces.wild]
    for space in spaces.spaces:
        found, missing = _areas(memory, space)
        unknown += missing
        if not space.isolate or space.name != NEW_SPACE:
            areas += subtract(merge_ranges(found), merge_ranges(_pair(memory, space) if has_pairs else _allocation_areas(memory, space)))
            continue
        # The pages of the half without objects are unused, too.
        tops = [area.start for area in (_pair(memory, space) if has_pairs else _allocation_areas(memory, space))]
        unused = [] if has_pairs else unused_new_space(memory, space)
        if not unused and len(tops) == 1:
            unused = unused_new_space(memory, space, tops[0])
        if unused:
            areas += subtract(merge_ranges(found), merge_ranges([*unused, *_left(space)]))
        else:
            unknown += found
    chunks = sorted(Range(*chunk) for space in spaces.spaces for chunk in space.chunks)
    local = [] if has_pairs else [area for heap in heaps for area in local_areas(memory, heap, chunks)]
    return ObjectAreas(list(subtract(sorted(areas), merge_ranges(local))), sorted(unknown))


def _areas(memory: Memory, space: Space) -> tuple[list[Range], list[Range]]:
    """Return the areas of a space's pages, and the pages whose areas are unknown."""
    found: list[Range] = []
    missing: list[Range] = []
    for placed in space.placed:
        start, end = placed.chunk
        bounds = {word for word in memory.words(placed.key, FIRST) or () if start < word <= end and word % memory.size == 0}
        if len(bounds) == 2:
            found.append(Range(min(bounds), max(bounds)))
        else:
            missing.append(placed.chunk)
    for start, end in () if space.isolate else space.chunks:
        words = memory.words(start, READ_ONLY_WORDS) or ()
        firsts = (word for word, following in zip(words, words[1:]) if following == end and start < word < end)
        first = next(firsts, start + SMALLEST_HEADER)
        is_known = space.used is not None and len(space.chunks) == 1
        found.append(Range(first, min(end, first + (space.used or 0)) if is_known else end))
    return found, missing


def _allocation_areas(memory: Memory, space: Space) -> Iterator[Range]:
    """Yield the unused rests of the linear allocation areas of a space, each within one page.

    The space contains {start, top, limit}, or its address. It also contains the original top and
    limit; of several areas with one limit, the one with the highest top is used."""
    words = memory.words(space.address, HEADS) or ()
    pointed = (memory.words(word, AREA) for word in words if word % memory.size == 0 and word >= PAGE)
    tops: dict[int, int] = {}
    for area in (*zip(words, words[1:], words[2:]), *pointed):
        if area is not None and 0 < area[0] <= area[1] < area[2] and area[1] % memory.size == 0:
            if any(start < area[0] and area[2] <= end for start, end in space.chunks):
                tops[area[2]] = max(area[1], tops.get(area[2], 0))
    yield from (Range(top, limit) for limit, top in tops.items())
    yield from _left(space)


def _pair(memory: Memory, space: Space) -> Iterator[Range]:
    """Yield the unused rest of the linear allocation area of a space. The space contains the two
    bounds of the area; no other two adjacent words in it are ascending addresses in a page."""
    words = memory.words(space.address, HEADS) or ()
    for top, limit in zip(words, words[1:]):
        if 0 < top <= limit and top % memory.size == 0 and any(start < top and limit <= end for start, end in space.chunks):
            yield Range(top, limit)
            return


def _left(space: Space) -> Iterator[Range]:
    return (Range(top, limit) for top, limit in space.left if top < limit)
