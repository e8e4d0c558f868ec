"""Find parts of V8's heap without objects.

Sources: V8 10.2 to 13.6 (Node 18 to 24), src/heap/new-spaces.h, src/heap/semi-spaces.h,
src/heap/basic-memory-chunk.h, later memory-chunk-metadata.h. The new space has two halves, each a
list of pages. Between collections only one half has objects: in all pages before the current one,
and in the current page up to the top. The sum of these equals the space's bytes in use, which V8
counts separately. A page's header has the two bounds of its area for objects."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.node.free_lists import free
from findleaks.runtimes.node.heap import CHUNK, PAGE
from findleaks.runtimes.node.spaces import HEADS, NEW_SPACE, Placed, Space, Spaces
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges

FIRST = 12  # words of a page's header that contain the bounds of its area
LARGEST_HEADER = 2 * PAGE
AREA = 3  # words of {start, top, limit}, to which a space or its allocator points


def dead(target: Target, engine: Engine, spaces: Spaces, others: Sequence[int]) -> list[Range]:
    """Return dead parts of these spaces, sorted and disjoint; [] if the chunks are inconsistent.
    Call this only for a process that was not stopped in a collection. `others`: addresses in memory
    that is not V8's. Freed chunks that contain one of them are ignored."""
    if spaces.problems or spaces.wild:
        return []
    memory, known = Memory(target), sorted(others)
    found: list[Range] = []
    for space in spaces.spaces:
        if space.isolate:
            found += _left(space)
            found += unused_new_space(memory, space) if space.name == NEW_SPACE else ()
    found += free(target, engine, spaces)
    # The header of a freed chunk may have been reused.
    unused = (chunk for chunk in spaces.freed if bisect_left(known, chunk.start) == bisect_left(known, chunk.end))
    found += [Range(chunk.start + LARGEST_HEADER, chunk.end) for chunk in unused]
    return merge_ranges(found)


def _left(space: Space) -> Iterator[Range]:
    """Yield the unused ends of the linear allocation areas, each within one of the space's
    chunks."""
    starts = [chunk.start for chunk in space.chunks]
    for start, end in space.left:
        at = bisect_left(starts, start + 1) - 1
        if at >= 0 and start < end <= space.chunks[at].end:
            yield Range(start, end)


def unused_new_space(memory: Memory, space: Space, top: int = 0) -> list[Range]:
    """Return dead parts of the new space: memory after the top, and the half without objects; [] if
    they are unknown. `top`: the top, if it is known (0: it follows from the space's bytes in
    use)."""
    owners = {placed.owner for placed in space.placed}
    if (space.counted is None and not top) or not 0 < len(owners) <= 2 or space.address in owners:
        return []
    halves = {owner: _sort_pages([placed for placed in space.placed if placed.owner == owner]) for owner in owners}
    areas = {placed.key: _area(memory, placed) for placed in space.placed}
    if not all(halves.values()) or not all(area.end for area in areas.values()):
        return []
    tops = {top} if top else _tops(memory, space)
    found_tops = ((half, *_top(its, areas, top, space.counted or 0)) for half, its in halves.items())
    used = [(half, last, found) for half, last, found in found_tops if last and found in tops]
    if len(used) != 1:
        return []
    half, last, top = used[0]
    found: list[Range] = []
    for owner, its in halves.items():
        behind = owner != half
        for placed in its:
            if behind:
                found.append(areas[placed.key])
            elif placed.key == last:
                found.append(Range(top, areas[last].end))
                behind = True
    return [part for part in found if part.start < part.end]


def _top(pages: Sequence[Placed], areas: dict[int, Range], top: int, used: int) -> tuple[int, int]:
    """Return the current page and the top: the given one, or (0) the one at which `used` bytes are
    in use; (0, 0) if there is none."""
    for placed in pages:
        area = areas[placed.key]
        if top:
            if area.start <= top <= area.end:
                return placed.key, top
            continue
        if used <= area.end - area.start:
            return placed.key, area.start + used
        used -= area.end - area.start
    return 0, 0


def _sort_pages(pages: Sequence[Placed]) -> list[Placed]:
    """Return the pages in list order; [] unless they form one list."""
    by_key = {placed.key: placed for placed in pages}
    heads = set(by_key) - {placed.following for placed in pages}
    placed = by_key.get(heads.pop()) if len(heads) == 1 else None
    found: list[Placed] = []
    while placed is not None and len(found) < len(pages):
        found.append(placed)
        placed = by_key.get(placed.following)
    return found if len(found) == len(pages) and not found[-1].following else []


def _area(memory: Memory, placed: Placed) -> Range:
    """Return a page's range for objects, whose two bounds are in the header; (0, 0) if they are
    missing."""
    start, end = placed.chunk
    words = memory.words(placed.key, FIRST) or ()
    begins = {word for word in words if start < word <= start + LARGEST_HEADER and word % memory.size == 0}
    return Range(begins.pop(), end) if len(begins) == 1 and end in words and end - start == CHUNK else Range(0, 0)


def _tops(memory: Memory, space: Space) -> set[int]:
    """Return possible tops: the space's words, and the second word of each {start, top, limit} to
    which one of them points."""
    words = memory.words(space.address, HEADS) or ()
    pointed = [memory.words(word, AREA) for word in words if word % memory.size == 0 and word >= PAGE]
    return {*words, *(area[1] for area in pointed if area is not None and area[0] <= area[1] <= area[2])}
