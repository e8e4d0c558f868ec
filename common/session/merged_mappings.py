"""Divide anonymous memory into the mappings that the program created.

The kernel merges neighbouring mappings with equal rights, so one region may come from many calls of
mmap. The program's own data shows where the calls' mappings begin and end:

- Claims: a word contains the start of a mapping, and a word beside it the size or the end, as in
  the handle of a coroutine {stack, size}. If the mappings of many claims have one size, a gap
  between them of this size is a mapping, too, whose handle was freed or overwritten.
- Chains: each mapping begins with a header that contains the size of the mapping. The first one is
  at the start of the region, and gives the start of the next one.
- Strides: words contain addresses at multiples of one distance. This is not proof: a mapping may be
  twice as large as the others. Therefore, parts to which no word refers are only possibly leaked.

If parts contradict each other, the region is not divided. A reference to any part of it then keeps
all of it alive."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from math import gcd
from typing import TYPE_CHECKING

from findleaks.allocators.bulk import find_pointers
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.target.base import Range
from findleaks.target.ranges import find_overlaps, merge_ranges, merge_to_most, range_at
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.session import Session

LEAST = 4  # fewest claims or headers of a region that show how to divide it
# Fewest claims of equal size, or addresses at equal distances, that show how to divide the memory
# between them
MANY = 8
BESIDE = 4  # words before and after an address that may be the size or the end of its mapping
HEADER = 8  # words of a header that may contain the size of the mapping
MOST_PARTS = 1 << 16
CLUSTERS = 4  # ranges of addresses that are searched for references to regions
MOST_WORDS = 1 << 18  # words that refer to regions; if there are more, nothing is divided
PHASE = "looking for references to mappings"


class Parts(NamedTuple):
    """The parts of a region, ascending and without gaps. `doubtful`: the parts that are not
    certain. `has_starts`: whether the program's words contain the starts of the parts, not their
    ends."""

    ranges: Sequence[Range]
    doubtful: Collection[Range] = ()
    has_starts: bool = False


class References:
    """Words that refer to pages of a region, and the mappings that pairs of words claim. The first
    word of a pair is the start of the mapping. `claims`: the mappings by the position of the second
    word: its distance from the first one in words, and whether it is the end (True) or the size."""

    def __init__(self) -> None:
        self.starts: set[int] = set()  # also the end of the region, if a word contains it
        self.claims: dict[tuple[int, bool], set[Range]] = {}
        self.in_use: set[Range] = set()  # the claims that are not only in free memory

    def add(self, region: Range, page: int, words: Sequence[int], at: int, in_use: bool) -> None:
        """Add the word `at` of `words`, and the claims that the words beside it make."""
        start = words[at]
        self.starts.add(start)

        def claim(distance: int, end: int, is_end: bool) -> None:
            self.claims.setdefault((distance, is_end), set()).add(Range(start, end))
            if in_use:
                self.in_use.add(Range(start, end))

        def is_page(place: int) -> bool:
            return 0 <= place < len(words) and words[place] % page == 0 and region.start <= words[place] < region.end

        for place in range(max(at - BESIDE, 0), min(at + BESIDE + 1, len(words))):
            word, distance = words[place], place - at
            if not word or word % page:
                continue
            if start + word <= region.end:
                claim(distance, start + word, False)
            # In a table of addresses, the next address is not the end of a mapping.
            is_table = is_page(at - distance) or is_page(at + 2 * distance)
            if start < word <= region.end and not is_table:
                claim(distance, word, True)

    def covers_several(self, region: Range, claimed: Sequence[Range]) -> bool:
        """Whether a claim includes several mappings of `claimed`. They are then parts of one
        mapping, such as the slots of a pool.

        Two adjacent words may contain the starts of two mappings. Therefore, a claim with an end
        counts only if no claimed mapping starts at this end, and if the claim covers more than half
        of the region."""
        half, starts = (region.end - region.start) // 2, {one.start for one in claimed}
        for (_, is_end), claims in self.claims.items():
            every = (one for one in claims if not is_end or (one.end - one.start > half and one.end not in starts))
            if any(len(find_inside(claimed, one)) > 1 for one in every):
                return True
        return False


def divide_regions(session: Session, regions: Sequence[Range]) -> Mapping[Range, Parts]:
    """Return the parts of each region that can be divided. `regions`: ascending and disjoint."""
    target = session.target
    memory, page, size = Memory(target), target.arch.page, target.arch.word
    found, blocks = {region: References() for region in regions}, session.directory.blocks
    ends = {region.end: region for region in regions}
    clusters, count = merge_to_most(regions, CLUSTERS), 0
    for piece in session.pieces(merge_ranges([*session.root_memory, *session.heap_ranges()]), PHASE):
        for low, high in clusters:
            addresses, values = find_pointers(session.engine, piece, low, high + 1)
            count += len(addresses)
            if count > MOST_WORDS:
                return {}
            for value in ends.keys() & set(values):
                found[ends[value]].starts.add(value)
            pages = [(address, range_at(regions, value)) for address, value in zip(addresses, values) if value % page == 0]
            inner = [(address, region) for address, region in pages if region is not None]
            for (address, region), in_use in zip(inner, _are_in_use(blocks, [address for address, _ in inner])):
                place = address - piece.address
                first = max(place - 2 * BESIDE * size, place % size)
                words = target.arch.words(piece.data[first : place + (2 * BESIDE + 1) * size])
                found[region].add(region, page, words, (place - first) // size, in_use)
    own, starts = target.regions(), [one.start for one in target.regions()]
    inside = {one: [Range(low, high) for _, low, high in find_overlaps(own, starts, one.start, one.end)] for one in regions}
    divided = ((region, divide(memory, region, words, page, inside[region])) for region, words in found.items())
    return {region: parts for region, parts in divided if len(parts.ranges) > 1}


def _are_in_use(blocks: Blocks, addresses: Sequence[int]) -> list[bool]:
    """Return whether each address is outside of free blocks."""
    if not addresses or not len(blocks):
        return [True] * len(addresses)
    found = blocks.columns_of(blocks.find_all(array("Q", addresses))[0])
    return [not start or state == State.IN_USE for start, state in zip(found.address, found.state)]


def find_inside(own: Sequence[Range], region: Range) -> list[Range]:
    """Return the ranges that begin in a region. `own`: ascending."""
    return list(own[bisect_left(own, Range(region.start, 0)) : bisect_left(own, Range(region.end, 0))])


def divide(memory: Memory, region: Range, found: References, page: int, own: Sequence[Range] = ()) -> Parts:
    """Return the parts of a region; a single part if it cannot be divided. `own`: the mappings that
    the kernel lists in the region. There are several if mremap moved mappings: the kernel does not
    merge them."""
    parts = _follow_headers(memory, region, page)
    if parts:
        # If the program refers to the headers, the parts are arenas, and an arena without a
        # reference is leaked. The parts may also be the chunks of an allocator. The allocator finds
        # most chunks only by the size of the previous chunk, or all chunks are in one pool. Then an
        # unused chunk is not a leak. An allocator can also find its unused chunks by following the
        # sizes from the first chunk, if the program has the address of this chunk.
        is_walked = region.start in found.starts
        has_headers = len(found.starts.intersection(one.start for one in parts)) >= max(LEAST, len(parts) // 4)
        is_sure = has_headers and not is_walked and not found.covers_several(region, parts)
        return Parts(parts, () if is_sure else parts, region.end not in found.starts)
    for claims in sorted(found.claims.values(), key=lambda claims: -len(claims)):
        claimed = _choose_claims(region, claims)
        if claimed and not found.covers_several(region, claimed):
            parts = _fill_gaps(region, claimed)
            # If handles contain ends instead of starts, the lowest mapping has no claim.
            has_starts = claimed[0].start == region.start or claimed[-1].end not in found.starts
            # Without a handle in use, a part may also be an unused slot of a pool.
            return Parts(parts, [one for one in parts if one not in found.in_use], has_starts)
    (_, most), *_ = Counter(end - start for start, end in own).most_common(1) or [(0, 0)]
    if most >= max(MANY, len(own) // 4):
        return Parts(own, own)
    strides = _divide_by_stride(region, sorted(found.starts - {region.end}))
    return Parts([region]) if found.covers_several(region, strides.ranges) else strides


def _end_of(start: int, word: int, region: Range, page: int) -> int:
    """Return the end of the mapping at `start` if this word is its size or its end; 0 if not."""
    if not word or word % page:
        return 0
    return next((end for end in (start + word, word) if start < end <= region.end), 0)


def _follow_headers(memory: Memory, region: Range, page: int) -> list[Range]:
    """Return the mappings of a chain of headers from the start to the end of a region; [] if there
    is none."""
    first = memory.words(region.start, HEADER) or ()
    for number, word in enumerate(first):
        parts: list[Range] = []
        start = region.start
        while start < region.end and len(parts) < MOST_PARTS:
            word = memory.word(start + number * memory.size) or 0
            end = _end_of(start, word, region, page)
            if not end:
                break
            parts.append(Range(start, end))
            start = end
        if start == region.end and len(parts) >= LEAST:
            return parts
    return []


def _choose_claims(region: Range, claims: Collection[Range]) -> list[Range]:
    """Return claims that do not overlap, ascending; [] if there are fewer than LEAST, or if they
    contradict each other.

    A claim inside another one is a part of that mapping. If two claims overlap in another way, one
    of them is wrong."""
    chosen: list[Range] = []
    starts: list[int] = []
    for one in sorted(claims, key=lambda one: (one.start - one.end, one.start)):
        at = bisect_right(starts, one.start)
        before = chosen[at - 1] if at else None
        after = chosen[at] if at < len(chosen) else None
        if before is not None and one.end <= before.end:
            continue
        if (before is not None and one.start < before.end) or (after is not None and one.end > after.start):
            return []
        starts.insert(at, one.start)
        chosen.insert(at, one)
        if len(chosen) > MOST_PARTS:
            return []
    return chosen if len(chosen) >= LEAST and chosen != [region] else []


def _fill_gaps(region: Range, claimed: Sequence[Range]) -> list[Range]:
    """Return the claimed mappings, and the parts of the gaps between them. If the parts of a gap
    are unknown, the gap and the mappings before and after it become one part, because one of these
    mappings may be larger than its claim."""
    sizes = {one.end - one.start for one in claimed}
    size = sizes.pop() if len(sizes) == 1 and len(claimed) >= MANY else 0
    inner = claimed[-1].end - claimed[0].start - sum(one.end - one.start for one in claimed)
    is_regular = bool(size) and (region.end - region.start) // size <= 2 * len(claimed) and inner % size == 0
    parts: list[Range] = []
    start = region.start
    for one in [*claimed, Range(region.end, region.end)]:
        gap = one.start - start
        if gap and is_regular and gap % size == 0:
            parts += [Range(at, at + size) for at in range(start, one.start, size)]
            gap = 0
        if gap and parts:
            one = Range(parts.pop().start, one.end)
        elif gap:
            one = Range(start, one.end)
        if one.start < one.end:
            parts.append(one)
        start = one.end
    return parts


def _divide_by_stride(region: Range, starts: Sequence[int]) -> Parts:
    """Return the parts of a region if most of `starts`, ascending, have one distance, and the other
    distances are multiples of it."""
    distances = Counter(after - before for before, after in zip(starts, starts[1:]))
    if len(starts) < MANY:
        return Parts([region])
    (size, number) = distances.most_common(1)[0]
    count = (region.end - region.start) // size
    if size != gcd(*distances) or 2 * number < len(starts) - 1 or not 1 < count <= min(2 * len(starts), MOST_PARTS):
        return Parts([region])
    # Other memory may precede the first part, or follow the last one.
    cuts = range(region.start + (starts[0] - region.start) % size, region.end - size + 1, size)
    inner = [cut for cut in cuts if cut - region.start >= size]
    parts = [Range(*one) for one in zip([region.start, *inner], [*inner, region.end])]
    return Parts(parts, parts)
