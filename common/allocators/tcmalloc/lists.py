"""Lists of freed blocks: those of spans, of thread caches and of transfer caches.

The first word of a freed block names the next (central_freelist.cc, linked_list.h).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.bulk import follow
from findleaks.allocators.tcmalloc.caches import FreeList, ThreadHeap
from findleaks.allocators.tcmalloc.layout import IN_USE, WORD
from findleaks.allocators.tcmalloc.locate import Place
from findleaks.allocators.tcmalloc.spans import Span
from findleaks.engine.contract import Engine
from findleaks.engine.terms import Lists as Followed
from findleaks.errors import Interrupted, UnreadableMemory
from findleaks.target.base import Range, Target

WINDOW = 32 << 20
"""Bytes of memory in which lists of spans are followed at a time."""

LONGEST = 1 << 22
"""Blocks on a thread cache's list, at most.

Thread caches hold 32 MB in all unless asked otherwise (common.h, kDefaultOverallThreadCacheSize).
"""

MAX_PROBLEMS = 20


class Lists:
    """Follows the lists, and counts their blocks.

    `central`, `thread` and `transfer` are blocks by size class. Problems of the lists go to the
    caller's list, the first MAX_PROBLEMS of each kind one by one.
    """

    def __init__(self, target: Target, engine: Engine, place: Place, spans: Sequence[Span], heaps: Sequence[Range]) -> None:
        self._target = target
        self._engine = engine
        self._place = place
        self._spans = spans
        self._heaps = heaps
        self.central: Counter[int] = Counter()
        self.thread: Counter[int] = Counter()
        self.transfer: Counter[int] = Counter()
        # every block found on a span's list, and in `cached` on a cache's, as often as it is there
        self.free: array[int] = array("Q")
        self.cached: array[int] = array("Q")
        self.tails: dict[int, int] = {}  # slot of a transfer cache -> last block of its chain
        self._ends: list[tuple[int, int]] = []  # (size class, where its part of `cached` ends)
        self.held: dict[int, Counter[int]] = {}  # thread cache -> blocks by size class

    def follow_spans(self, problems: list[Problem]) -> array[int]:
        """The blocks on lists of spans, without those outside their span."""
        free: array[int] = array("Q")
        differing = 0
        for spans in self._windows():
            pieces = list(self._target.pieces(spans[0].start, spans[-1].end))
            counts = [(span.end - span.start) // self._place.sizes[span.number] for span in spans]
            followed = self._engine.follow_all(pieces, [span.objects for span in spans], 0, max(counts))
            ended = dict(followed.problems)
            nodes, first = followed.nodes, 0
            for number, (span, last) in enumerate(zip(spans, followed.ends)):
                mine = nodes[first:last]
                first = last
                if mine and (min(mine) < span.start or max(mine) >= span.end):
                    mine = array("Q", (node for node in mine if span.start <= node < span.end))
                    ended.setdefault(number, "")
                    ended[number] += f"{' and ' if ended[number] else ''}it leads out of the span"
                self.central[span.number] += len(mine)
                free += mine
                if len(mine) + span.refcount != counts[number] or number in ended:
                    differing += 1
                    if differing <= MAX_PROBLEMS:
                        at = self._wrong(mine) if mine and number in ended else Range(span.address, span.address)
                        problems.append(_span_problem(self._place, span, len(mine), counts[number], ended.get(number, ""), at))
        if differing > MAX_PROBLEMS:
            problems.append(Problem(self._place.root, f"and {differing - MAX_PROBLEMS:,} more spans whose lists and counts differ"))
        self.free = free
        return free

    def cached_blocks(self) -> Iterator[tuple[int, int]]:
        """(address, size class of the list) of every block on a cache's list."""
        first = 0
        for number, last in self._ends:
            for address in self.cached[first:last]:
                yield address, number
            first = last

    def _windows(self) -> Iterator[list[Span]]:
        """Groups of spans that have blocks on their lists; a group spans at most WINDOW bytes."""
        window: list[Span] = []
        for span in self._spans:
            if span.number and span.location == IN_USE and (span.objects or span.refcount != self._most(span)):
                if window and span.end - window[0].start > WINDOW:
                    if self._target.interrupted():
                        raise Interrupted
                    yield window
                    window = []
                window.append(span)
        if window:
            yield window

    def _most(self, span: Span) -> int:
        return (span.end - span.start) // self._place.sizes[span.number]

    def follow_cached(self, lists: Sequence[FreeList], heaps: Sequence[ThreadHeap], problems: list[Problem]) -> array[int]:
        """The blocks found on these lists, which may be more or fewer than their caches count."""
        longest = min(max((one.length for one in lists), default=0) + 64, LONGEST)
        heads, expected = [one.head for one in lists], sum(one.length for one in lists)
        followed = follow(self._target, self._engine, self._heaps, heads, longest, expected)
        followed = self._in_heaps(followed)
        ended, first, differing = dict(followed.problems), 0, 0
        tids = {heap.address: heap.tid for heap in heaps}
        for number, (one, last) in enumerate(zip(lists, followed.ends)):
            count, final = last - first, followed.nodes[last - 1] if last > first else 0
            place = self._wrong(followed.nodes[first:last]) if number in ended and final else None
            first = last
            if one.slot < 0:
                self.thread[one.number] += count
                self.held.setdefault(one.cache, Counter())[one.number] += count
            else:
                self.transfer[one.number] += count
                if count:
                    self.tails[one.cache] = followed.nodes[last - 1]
            if count != one.length or number in ended:
                differing += 1
                if differing <= MAX_PROBLEMS:
                    problems.append(_cache_problem(self._place, one, tids.get(one.cache, 0), count, ended.get(number, ""), place))
        if differing > MAX_PROBLEMS:
            problems.append(
                Problem(self._place.central, f"and {differing - MAX_PROBLEMS:,} more lists of caches that differ from their counts")
            )
        self.cached = followed.nodes
        self._ends = [(one.number, last) for one, last in zip(lists, followed.ends)]
        return followed.nodes

    def _in_heaps(self, followed: Followed) -> Followed:
        """Each list up to the first node outside the heaps.

        Where a wrong link leads to memory of another owner, its contents may look like more links.
        """
        nodes = followed.nodes
        starts, ends = [heap.start for heap in self._heaps], [heap.end for heap in self._heaps]
        last = len(starts) - 1
        if not nodes or last < 0 or (not followed.problems and not self._target.live):
            return followed
        kept, bounds, problems, first = array("Q"), array("Q"), dict(followed.problems), 0
        for number, end in enumerate(followed.ends):
            mine = nodes[first:end]
            first = end
            if mine and not (starts[0] <= min(mine) and max(mine) < ends[last] and number not in problems):
                for count, node in enumerate(mine):
                    at = bisect_right(starts, node) - 1
                    if at < 0 or node >= ends[at]:
                        problems[number] = f"it goes on to {node:#x}, which is no block"
                        mine = mine[:count]
                        break
            kept += mine
            bounds.append(len(kept))
        return Followed(kept, bounds, sorted(problems.items()))

    def _wrong(self, nodes: Sequence[int]) -> Range:
        """Where a list that ended early is wrong.

        Either in the link of its last block, or it runs into a block that was freed twice.
        """
        try:
            link = self._target.word(nodes[-1])
        except UnreadableMemory:
            link = 0
        return Range(link, link) if link in nodes else Range(nodes[-1], nodes[-1] + WORD)


def _span_problem(place: Place, span: Span, found: int, count: int, why: str, damaged: Range) -> Problem:
    """The problem of a span's list.

    `why`: why the list ended early; "" where only the numbers differ, as they do for a moment while
    a thread frees.
    """
    size = place.sizes[span.number]
    text = f"span at {span.start:#x}, {count:,} blocks of {size}: {found:,} on its free list, {span.refcount:,} in use by its count"
    return Problem(damaged.start, f"{text}; {why}" if why else text, bool(why) or found + span.refcount > count, damaged)


def _cache_problem(place: Place, one: FreeList, tid: int, found: int, why: str, damaged: Optional[Range]) -> Problem:
    whose = f"thread {tid}'s cache" if tid else "a thread cache" if one.slot < 0 else f"slot {one.slot} of the transfer cache"
    text = f"{whose}, blocks of {place.sizes[one.number]}: {found:,} on the list, {one.length:,} by its count"
    at = damaged.start if damaged is not None else one.head or one.cache
    if damaged is not None and damaged.start == damaged.end:
        why += ": it was freed twice, or a link was written over"
    return Problem(at, f"{text}; {why}" if why else text, bool(why) or abs(found - one.length) > 1, damaged)
