"""Spans: the contiguous runs of chunks that make up the memory of an arena.

malloc.c, sysmalloc: the main arena grows by brk. While brk succeeds, it is one span from
mp_.sbrk_base to the end of top. If another caller moved the break, or malloc had to use mmap (at
least 1 MiB at a time; always in the libc of another namespace), the old top ends with two
fenceposts of two words each, and a new span starts.

A full heap of a thread arena ends with one such fencepost and a header of size 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.glibc.arenas import GlibcArena, GlibcSpan
from findleaks.allocators.glibc.layout import FLAG_BITS, PREV_INUSE, align_chunk, measure_fencepost
from findleaks.allocators.glibc.walk import walk_pieces
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import region_at


def find_thread_spans(memory: Memory, arena: GlibcArena, problems: list[Problem]) -> list[GlibcSpan]:
    """Return the spans of a thread arena, one for each heap."""
    spans = []
    for index, heap in enumerate(arena.heaps):
        info = arena.heap_info.size if arena.heap_info else 0
        header = arena.end if index == 0 else heap.start + info
        first = align_chunk(memory, header, arena.layout.align)
        span = GlibcSpan(arena, heap.start, first, heap.end, heap.limit, heap.end - heap.start)
        span.metadata.append(Range(heap.start, first))
        if heap.start <= arena.top < heap.end:
            if arena.top_size and arena.top + arena.top_size == heap.end and arena.top >= first:
                span.stop = arena.top
            else:
                span.top_unknown = True
                problems.append(_make_top_problem(memory, arena, heap.end))
        else:
            span.stop = _find_heap_fence(memory, first, heap.end, arena.layout.align)
            if span.stop == heap.end:
                # The fencepost was overwritten, or this is the only heap of an arena whose top is
                # invalid.
                span.top_unknown = True
            else:
                span.metadata.append(Range(span.stop, heap.end))
        spans.append(span)
    return spans


def _find_heap_fence(memory: Memory, first: int, end: int, align: int) -> int:
    """Return where the fencepost of a full heap starts, or `end` if there is none.

    Its last header has size 0, and the size of the fencepost as prev_size: two words, or four if
    nothing was left of the old top (malloc.c, sysmalloc). Fewer bytes than the alignment follow
    it."""
    word = memory.size
    last = end - 2 * word - (end - 2 * word) % align
    words = memory.words(last, 2)
    if words is not None and words[1] == PREV_INUSE and words[0] in (2 * word, 4 * word):
        fence = last - words[0]
        head = memory.word(fence + word)
        if head is not None and head & ~FLAG_BITS == words[0] and fence >= first:
            return fence
    return end


def _make_top_problem(memory: Memory, arena: GlibcArena, end: int) -> Problem:
    """Make the problem that the size of an arena's top is wrong."""
    word = memory.size
    head = memory.word(arena.top + word)
    size = "cannot be read" if head is None else f"has size {head & ~FLAG_BITS:#x}"
    what = f"top of {arena.name} at {arena.top:#x} {size}, which does not end with its memory at {end:#x}"
    inside = head is not None and arena.top < end
    place = Range(arena.top + word, arena.top + 2 * word) if inside else None
    return Problem(arena.address, what, head is not None, place, end - arena.top | PREV_INUSE if inside else None)


def find_main_spans(
    memory: Memory, engine: Engine, arena: GlibcArena, sbrk_base: int, free: Sequence[Range], problems: list[Problem]
) -> list[GlibcSpan]:
    """Return the spans of the main arena. `sbrk_base` is 0 if it is unknown. `free` is unowned
    memory, which is searched for spans from mmap."""
    if not arena.is_initialised:
        return []
    top, end = arena.top, arena.top + arena.top_size
    if arena.is_contiguous:
        start = sbrk_base or end - arena.system_mem
        if not arena.top_size or not start < top or not _is_mostly_mapped(memory, start, end):
            return _make_span_without_top(memory, arena, start, problems)
        right = start + arena.system_mem
        region = region_at(memory.target.regions(), start)
        # The end of the mapping agrees with system_mem, so the size of top is wrong.
        if end != right and sbrk_base and region is not None and region.end == right > top:
            problems.append(_make_top_problem(memory, arena, right))
            arena.top_size, end = right - top, right
        elif end != right:
            what = f"the main arena spans {end - start:,} bytes from {start:#x} to {end:#x}, but its system_mem is {arena.system_mem:,}"
            problems.append(Problem(arena.address, what))
        first = align_chunk(memory, start, arena.layout.align)
        return [GlibcSpan(arena, start, first, top, end, end - start)]
    return _find_noncontiguous_spans(memory, engine, arena, sbrk_base, free, problems)


def _is_mostly_mapped(memory: Memory, start: int, end: int) -> bool:
    """Whether at least half of the range is mapped. Memory from brk is contiguous, but programs may
    exclude parts of it from cores."""
    mapped = sum(max(0, min(end, region.end) - max(start, region.start)) for region in memory.target.regions())
    return 2 * mapped >= end - start


def _make_span_without_top(memory: Memory, arena: GlibcArena, start: int, problems: list[Problem]) -> list[GlibcSpan]:
    """Return the span of a main arena whose top is corrupt: system_mem bytes from its start."""
    if memory.word(start & -memory.size) is None or not arena.system_mem:
        what = f"the main arena's top is {arena.top:#x}, which is not one of its chunks: its blocks are not read"
        problems.append(Problem(arena.address, what))
        return []
    region = region_at(memory.target.regions(), start)  # system_mem may be as corrupt as top
    end = min(start + arena.system_mem, region.end if region is not None else start)
    problems.append(_make_top_problem(memory, arena, end))
    return [GlibcSpan(arena, start, align_chunk(memory, start, arena.layout.align), end, end, arena.system_mem, top_unknown=True)]


def _find_noncontiguous_spans(
    memory: Memory, engine: Engine, arena: GlibcArena, sbrk_base: int, free: Sequence[Range], problems: list[Problem]
) -> list[GlibcSpan]:
    """Return the spans of a main arena that is not contiguous.

    Its top identifies the last span. The others are searched for at mp_.sbrk_base and at the pages
    of unowned memory, until the sizes add up to system_mem."""
    found: list[GlibcSpan] = []
    missing = arena.system_mem
    ranges = sorted(free, key=lambda r: (not r.start <= arena.top < r.end, not r.start <= sbrk_base < r.end, r.start))
    for start, end in ranges:
        at = start + -start % memory.arch.page
        while at < end and missing > 0:
            span = None
            # The break may have moved before the first call of malloc: ld.so of 2.31 stores a copy
            # of its tunables at the start of the heap, a static program its TLS.
            if at < sbrk_base < at + memory.arch.page:
                span = _find_span(memory, engine, arena, sbrk_base, end)
            span = span or _find_span(memory, engine, arena, at, end)
            if span is None or span.system > missing:
                at += memory.arch.page
                continue
            found.append(span)
            missing -= span.system
            at = span.end
    if missing:
        what = f"{missing:,} of {arena.system_mem:,} bytes of the main arena were not found: their blocks are not read"
        problems.append(Problem(arena.address, what))
    return sorted(found, key=lambda span: span.start)


def _find_span(memory: Memory, engine: Engine, arena: GlibcArena, start: int, limit: int) -> Optional[GlibcSpan]:
    """Return the span at `start` if it is complete, that is, if it ends with top, or with a
    fencepost at the end of a page. Otherwise return None."""
    word = memory.size
    first = align_chunk(memory, start, arena.layout.align)
    head = memory.word(first + word)
    if head is None or head & FLAG_BITS != PREV_INUSE or not 4 * word <= head - PREV_INUSE <= limit - first:
        return None
    holds_top = first <= arena.top < limit and arena.top_size > 0
    stop = arena.top if holds_top else limit
    blocks = engine.blocks(memory.arch, arena.layout.align)
    walked = walk_pieces(memory, blocks, first, stop)
    if walked.done and holds_top:
        end = arena.top + arena.top_size
        return GlibcSpan(arena, start, first, arena.top, end, end - start)
    fence = measure_fencepost(memory, walked.chunk, arena.layout.align) if walked.chunk > first else 0
    end = walked.chunk + fence
    if fence and end % memory.arch.page == 0:
        return GlibcSpan(arena, start, first, walked.chunk, end, end - start, metadata=[Range(walked.chunk, end)])
    return None


def read_pieces(memory: Memory, spans: Sequence[GlibcSpan]) -> tuple[Piece, ...]:
    """Return the memory of the spans' chunks, ascending, without the structures of arenas."""
    return tuple(piece for span in spans for piece in memory.target.pieces(span.first, span.end))
