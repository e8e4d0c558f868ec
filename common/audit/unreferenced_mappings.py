"""Anonymous mappings that no word outside refers to: mmap without munmap.

The kernel merges neighbouring mappings, so that one range may consist of many calls of mmap. A
range counts as referenced if any word of live memory outside all of these ranges, or of a
referenced one, is an address in it. Words of free and of leaked blocks do not count."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice

from findleaks.allocators.search import find_words_between
from findleaks.audit.rooted_ranges import find_rooted_ranges
from findleaks.engine.terms import Kind, State
from findleaks.libc.stacks import thread_stacks
from findleaks.session import Session
from findleaks.target.base import Range, Region
from findleaks.target.ranges import intersection, merge_ranges, subtract

MOST_WORDS = 1 << 18  # words of heaps that are examined; with more, all ranges count as referenced
_PHASE = "looking for references to mappings"


def find_unreferenced_mappings(session: Session) -> list[Range]:
    """Return the ranges, ascending; [] in a process with a managed heap that findleaks does not
    read object by object, as references there may be compressed."""
    if any(not runtime.lists_objects or runtime.maps_unreferenced_memory for runtime in session.runtimes):
        return []
    left = _candidates(session)
    if not left:
        return []
    found, left = _divide(left, find_rooted_ranges(session, left, subtract(session.roots, left), _PHASE))
    if left:
        in_heap, left = _split_by_heap(session, left)
        found += in_heap
    while found and left:  # what referenced mappings refer to
        found, left = _divide(left, find_rooted_ranges(session, left, merge_ranges(found), _PHASE, registers=False))
    return left


def _candidates(session: Session) -> list[Range]:
    """Return private anonymous mappings of data that nothing else explains, ascending."""
    mapped = [Range(region.start, region.end) for region in session.target.regions() if _is_plain(region)]
    known = [part for one in session.reserved for part in one.ranges]
    known += [piece for runtime in session.runtimes for part in runtime.parts() for piece in part.ranges]
    known += [*session.directory.claimed(), *thread_stacks(session.target).values()]
    known += [Range(module.start, module.end) for module in session.target.modules()]
    explained = merge_ranges(known)
    # A mapping that is explained in part belongs to the same owner as a whole.
    return [one for one in merge_ranges(mapped) if not intersection([one], explained)]


def _is_plain(region: Region) -> bool:
    return region.private and region.writable and not region.executable and not region.name


def _divide(ranges: Sequence[Range], chosen: Sequence[bool]) -> tuple[list[Range], list[Range]]:
    """Return the chosen ranges, and the others."""
    return [one for one, is_in in zip(ranges, chosen) if is_in], [one for one, is_in in zip(ranges, chosen) if not is_in]


def _split_by_heap(session: Session, ranges: Sequence[Range]) -> tuple[list[Range], list[Range]]:
    """Divide ranges into those that a block in use which is not leaked refers to, and others."""
    blocks, kinds = session.directory.blocks, session.graph().kinds()
    words = find_words_between(session.target, session.engine, session.heap_ranges(), ranges[0].start, ranges[-1].end)
    seen = 0
    values = set()
    for address, value in islice(words, MOST_WORDS):
        seen += 1
        index = blocks.find(address)
        if index >= 0 and blocks.state(index) == State.IN_USE and kinds[index] not in (Kind.DEFINITE, Kind.INDIRECT):
            values.add(value)
    if seen == MOST_WORDS:
        return list(ranges), []
    ordered = sorted(values)
    return _divide(ranges, [_has_value(ordered, one) for one in ranges])


def _has_value(ordered: Sequence[int], one: Range) -> bool:
    at = bisect_left(ordered, one.start)
    return at < len(ordered) and ordered[at] < one.end
