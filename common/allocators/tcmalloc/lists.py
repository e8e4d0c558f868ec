"""Lists of freed blocks of spans (central_freelist.cc), linked by their first words."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator

from findleaks.allocators.base import Problem, add_first_problems
from findleaks.allocators.tcmalloc.heap import TcmallocHeap
from findleaks.allocators.tcmalloc.locate import Place
from findleaks.allocators.tcmalloc.spans import Span
from findleaks.allocators.tcmallocs.caches import damaged_link
from findleaks.errors import Interrupted
from findleaks.target.base import Range

WINDOW = 32 << 20  # bytes of memory whose lists of spans are followed at a time


def follow_spans(one: TcmallocHeap) -> tuple[array[int], Counter[int]]:
    """Return the addresses of the blocks on lists of spans ("Q"), without blocks outside their
    span, and the number of blocks by size class."""
    free: array[int] = array("Q")
    listed: Counter[int] = Counter()

    def problems() -> Iterator[Problem]:
        for spans in _windows(one):
            pieces = list(one.target.pieces(spans[0].start, spans[-1].end))
            counts = [_blocks(one.place, span) for span in spans]
            followed = one.engine.follow_all(pieces, [span.objects for span in spans], 0, max(counts))
            ended, first = dict(followed.problems), 0
            for number, (span, last) in enumerate(zip(spans, followed.ends)):
                mine = followed.nodes[first:last]
                first = last
                if mine and (min(mine) < span.start or max(mine) >= span.end):
                    mine = array("Q", (node for node in mine if span.start <= node < span.end))
                    why = ended.get(number)
                    ended[number] = f"{why} and it leads outside the span" if why else "it leads outside the span"
                listed[span.number] += len(mine)
                free.extend(mine)
                if len(mine) + span.refcount != counts[number] or number in ended:
                    at = damaged_link(one.target, mine) if mine and number in ended else Range(span.address, span.address)
                    yield _span_problem(one.place, span, len(mine), counts[number], ended.get(number, ""), at)

    add_first_problems(one.problems, problems(), "spans whose lists and counts differ", one.place.root)
    return free, listed


def _windows(one: TcmallocHeap) -> Iterator[list[Span]]:
    """Yield groups of spans that have blocks on their lists. A group spans at most WINDOW bytes."""
    window: list[Span] = []
    for span in one.spans:
        if span.number and (span.objects or span.refcount != _blocks(one.place, span)):
            if window and span.end - window[0].start > WINDOW:
                if one.target.is_interrupted():
                    raise Interrupted
                yield window
                window = []
            window.append(span)
    if window:
        yield window


def _blocks(place: Place, span: Span) -> int:
    return (span.end - span.start) // place.sizes[span.number]


def _span_problem(place: Place, span: Span, found: int, count: int, why: str, damaged: Range) -> Problem:
    """Make the problem of a span's list. `why` is the reason why the list ended early. It is "" if
    only the numbers differ, as they do for a moment while a thread frees a block."""
    size = place.sizes[span.number]
    text = f"span at {span.start:#x}, {count:,} blocks of {size}: {found:,} on its free list, {span.refcount:,} in use by its count"
    return Problem(damaged.start, f"{text}; {why}" if why else text, bool(why) or found + span.refcount > count, damaged)
