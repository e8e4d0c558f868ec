"""Find the heaps of a truncated core that lacks main_arena.

main_arena is in libc's data, near the end of a core, so that a truncated core often has heaps but
not main_arena. Their structure identifies them:

- In a heap of the main arena, each chunk begins where the previous one ends, up to a fencepost, the
  end of the mapping, or the end of the core. If no fencepost follows, the last chunk is the top.
- The arena of a thread follows the heap_info at the start of its first heap.

The fastbins of the main arena are unknown, so that freed blocks in them count as in use. The state
of other chunks is in the header of the chunk after them. If another heap directly follows the top,
the top counts as a block in use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.glibc import arenas
from findleaks.allocators.glibc.arenas import GlibcArena, GlibcSpan
from findleaks.allocators.glibc.engine import sound_chunks
from findleaks.allocators.glibc.layout import FLAG_BITS, HEAP_INFOS, NBINS, PREV_INUSE, STATES, StateLayout, align_chunk, measure_fencepost
from findleaks.allocators.glibc.locate import GlibcInstance
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Range, Target
from findleaks.target.ranges import intersection

# Numbers of consecutive chunks that identify a heap of the main arena
LEAST_CHUNKS = 32
LEAST_COMPLETE = 2  # if they end with the mapping
LEAST_FENCED = 1  # if a fencepost follows
MOST_PAGES = 1 << 16  # pages at which chunks are searched, besides the starts of mappings


def find_remains(target: Target, engine: Engine, free: Sequence[Range]) -> Optional[GlibcInstance]:
    """Return an instance whose main arena has address 0; None if the core has no heap of glibc.
    `free`: memory that may contain heaps."""
    memory = Memory(target)
    mappings = [Range(region.start, region.end) for region in target.regions()]
    parts = [part for mapping in mappings for part in intersection([mapping], free)]
    threads = list(_find_thread_arenas(memory, parts))
    layouts = [arena.layout for arena in threads] + [layout for layout in STATES if layout.word == memory.size and layout.fastbins]
    main = _make_main_arena(layouts[0])
    taken = {arena.address & -memory.arch.page for arena in threads}
    spans = list(_find_spans(memory, engine, main, [part for part in parts if part.start not in taken]))
    if not spans and not threads:
        return None
    _set_top(main, spans)
    for number, arena in enumerate(threads, 1):
        arena.number = number
    return GlibcInstance([main, *threads], "", None, lost_spans=spans)


def _find_thread_arenas(memory: Memory, free: Sequence[Range]) -> Iterator[GlibcArena]:
    """Yield the arenas at the starts of ranges, in the layout whose bins are plausible."""
    for start, _ in free:
        word = memory.word(start)
        if word is None or not any(word == start + info.size for info in HEAP_INFOS if info.word == memory.size):
            continue
        for layout in (layout for layout in STATES if layout.word == memory.size):
            arena = arenas.read_arena(memory, word, layout)
            if arena is not None and arena.is_initialised and arenas.is_plausible(memory, arena):
                arena.heap_info = arenas.find_heap_info(memory, arena)
                yield arena
                break


def _make_main_arena(layout: StateLayout) -> GlibcArena:
    """Return an arena at address 0 whose bins and fastbins are empty."""
    main = GlibcArena(0, 0, layout, False, 0, (0,) * layout.fastbins, 0, (), 0, 0, 0, 0)
    main.bins = tuple(main.bin_head(index) for index in range(NBINS) for _ in range(2))
    return main


def _find_spans(memory: Memory, engine: Engine, main: GlibcArena, parts: Sequence[Range]) -> Iterator[GlibcSpan]:
    """Yield the spans of the main arena in these parts of mappings. Each span begins at a page."""
    page, left = memory.arch.page, MOST_PAGES
    for start, end in parts:
        at = start
        while at < end and (left or at == start):
            if memory.target.is_interrupted():
                raise Interrupted
            span = _read_span(memory, engine, main, Range(at, end))
            if span is not None:
                yield span
            else:
                left = max(left - 1, 0)
            at = span.end + -span.end % page if span is not None else at + page


def _read_span(memory: Memory, engine: Engine, main: GlibcArena, part: Range) -> Optional[GlibcSpan]:
    """Return the span at the start of a part of a mapping; None if no chunks are there. The span
    ends with the top, with a fencepost, or where the core ends."""
    start, end = part
    first = align_chunk(memory, start, main.layout.align)
    head = memory.word(first + memory.size)
    if head is None or head & FLAG_BITS != PREV_INUSE:
        return None
    piece = next(iter(memory.target.pieces(start, end)))
    run = sound_chunks(engine, piece, first, end, PREV_INUSE, 0)
    fence = measure_fencepost(memory, run.chunk, main.layout.align) if run.chunk < end else 0
    if run.headers < (LEAST_FENCED if fence else LEAST_COMPLETE if run.chunk == end else LEAST_CHUNKS):
        return None
    if run.chunk == end:
        return GlibcSpan(main, start, first, run.previous, end, end - start)
    if fence:
        behind = run.chunk + fence
        return GlibcSpan(main, start, first, run.chunk, behind, behind - start, metadata=[Range(run.chunk, behind)])
    if run.chunk + 2 * memory.size > piece.address + len(piece.data):
        return GlibcSpan(main, start, first, end, end, end - start, top_unknown=True)
    return None


def _set_top(main: GlibcArena, spans: Sequence[GlibcSpan]) -> None:
    """Make the last chunk of the largest complete span the top of the main arena. The last chunk of
    each other complete span was its top, and is free."""
    main.system_mem = main.max_system_mem = sum(span.system for span in spans)
    for span in sorted(spans, key=lambda span: -span.system):
        if span.top_unknown or span.metadata:
            continue
        if not main.top:
            main.top, main.top_size = span.stop, span.end - span.stop
        else:
            span.stop, span.top_unknown = span.end, True
