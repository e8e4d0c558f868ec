"""Find the heaps of a truncated core that lacks main_arena.

main_arena is in libc's data, near the end of a core, so that a truncated core often has heaps but
not main_arena. Their structure identifies them:

- In a heap of the main arena, each chunk begins where the previous one ends, up to a fencepost, the
  end of the mapping, an mmapped chunk, or the end of the core. If no fencepost follows, the last
  chunk is the top.
- The arena of a thread follows the heap_info at the start of its first heap.

The fastbins of the main arena are unknown, so that freed blocks in them count as in use. The state
of other chunks is in the header of the chunk after them. If another heap directly follows the top,
the top counts as a block in use."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.glibc import arenas
from findleaks.allocators.glibc.arenas import GlibcArena, GlibcSpan
from findleaks.allocators.glibc.engine import SoundChunks, sound_chunks
from findleaks.allocators.glibc.layout import (
    FLAG_BITS,
    HEAP_INFOS,
    IS_MMAPPED,
    NBINS,
    PREV_INUSE,
    STATES,
    StateLayout,
    align_chunk,
    measure_fencepost,
)
from findleaks.allocators.glibc.locate import GlibcInstance
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Range, Target
from findleaks.target.ranges import find_overlaps

# Numbers of consecutive chunks that identify a heap of the main arena
LEAST_CHUNKS = 32
LEAST_COMPLETE = 2  # if they end with the mapping, or an mmapped chunk follows
LEAST_FENCED = 1  # if a fencepost follows
MOST_PAGES = 1 << 16  # pages at which chunks are searched, besides the starts of mappings


def find_remains(target: Target, engine: Engine, free: Sequence[Range]) -> Optional[GlibcInstance]:
    """Return an instance whose main arena has address 0; None if the core has no heap of glibc.
    `free`: memory that may contain heaps."""
    memory = Memory(target)
    starts = [one.start for one in free]
    parts = [Range(low, high) for region in target.regions() for _, low, high in find_overlaps(free, starts, region.start, region.end)]
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
            first = align_chunk(memory, at, main.layout.align)
            run = _follow_chunks(memory, engine, first, end)
            span = _make_span(memory, main, Range(at, end), first, run)
            if span is not None:
                yield span
                at = span.end + -span.end % page
                continue
            left = max(left - 1, 0)
            if memory.word(first + memory.size) is None:
                # A truncated core may lack many gigabytes of a mapping.
                piece = next(iter(memory.target.pieces(min(at + page, end), end)), None)
                at = piece.address // page * page if piece is not None else end
                continue
            # All chunks of a long run lead to the header that ended the run, so the search
            # continues after the start of the last chunk. The size of this chunk may be wrong.
            at = (run.previous if run.headers >= LEAST_CHUNKS else at) // page * page + page


def _follow_chunks(memory: Memory, engine: Engine, chunk: int, end: int) -> SoundChunks:
    """Follow the chunks from `chunk` on, up to `end`, while the header of each agrees with that of
    the next. The chunks may be in several pieces of memory. The result does not list free
    chunks."""
    previous, headers = 0, 0
    while chunk < end:
        head = memory.word(chunk + memory.size)
        if head is None:
            break
        if head & FLAG_BITS == 0 and previous and memory.word(chunk) == chunk - previous and 4 * memory.size <= head <= end - chunk:
            # The previous chunk is free, and its header is in another piece of memory.
            previous, chunk, headers = chunk, chunk + head, headers + 1
            continue
        piece = next(iter(memory.target.pieces(chunk, end)), None) if head & FLAG_BITS == PREV_INUSE else None
        run = sound_chunks(engine, piece, chunk, end, PREV_INUSE, 0) if piece is not None else None
        if run is None or piece is None or not run.headers:
            break
        previous, chunk, headers = run.previous, run.chunk, headers + run.headers
        if chunk + 2 * memory.size <= piece.address + len(piece.data):
            break  # the next header does not agree
    return SoundChunks(chunk, previous, headers, array("Q"))


def _make_span(memory: Memory, main: GlibcArena, part: Range, first: int, run: SoundChunks) -> Optional[GlibcSpan]:
    """Return the span of the main arena at the start of a part of a mapping. `run`: the chunks from
    `first` on, as _follow_chunks returns them. The span ends with the top, with a fencepost, or
    where the core ends. Return None if the chunks do not identify a span."""
    start, end = part
    words = memory.words(first, 4)
    if words is None or words[1] == words[3]:
        return None  # an array of equal numbers, such as 65, looks like headers of chunks
    if _is_mmapped(memory, run.chunk, end):
        end = run.chunk  # the kernel merged the mapping of the heap with that of the mmapped chunk
    fence = measure_fencepost(memory, run.chunk, main.layout.align) if run.chunk < end else 0
    behind = run.chunk + fence
    if fence and behind % memory.arch.page == 0 and run.headers >= LEAST_FENCED:
        return GlibcSpan(main, start, first, run.chunk, behind, behind - start, metadata=[Range(run.chunk, behind)])
    if run.chunk == end and run.headers >= LEAST_COMPLETE:
        return GlibcSpan(main, start, first, run.previous, end, end - start)
    if run.chunk < end and run.headers >= LEAST_CHUNKS and memory.word(run.chunk + memory.size) is None:
        return GlibcSpan(main, start, first, end, end, end - start, top_unknown=True)
    return None


def _is_mmapped(memory: Memory, chunk: int, end: int) -> bool:
    """Whether a chunk that has a mapping of its own begins at `chunk`, and ends before `end`."""
    words, page = memory.words(chunk, 2), memory.arch.page
    if words is None or chunk % page or words[0] or words[1] & FLAG_BITS != IS_MMAPPED:
        return False
    size = words[1] & ~FLAG_BITS
    return size % page == 0 and 0 < size <= end - chunk


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
