"""Predict what malloc_trim(0) would return to the kernel (malloc.c, mtrim, systrim; 2.10 to 2.43).

Every arena first merges the chunks of its fastbins with free neighbours. In each free chunk,
MADV_DONTNEED returns the whole pages after the header and the links (struct malloc_chunk, six
words). If the main arena's top ends at the break, brk returns all of it but MINSIZE. The tops of
other arenas, and blocks in thread caches, are not returned."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING

from findleaks.allocators.glibc.view import GlibcView
from findleaks.engine.contract import Blocks
from findleaks.errors import Interrupted
from findleaks.target.base import Range
from findleaks.target.ranges import region_at, subtract
from findleaks.target.runs import Runs

if TYPE_CHECKING:
    from findleaks.allocators.glibc.arenas import GlibcSpan

_CHECK_EVERY = 1 << 16
STEP = 256 << 20  # bytes of heap between two checks for Ctrl-C: 50 ms if all are small blocks


def predict_trim(glibc: GlibcView, blocks: Blocks) -> Runs:
    """Return the whole pages that malloc_trim(0) would return, resident or not. Raises
    Interrupted."""
    found: array[int] = array("Q")  # a heap may have a million such chunks
    page, word = glibc.memory.arch.page, glibc.memory.size
    for span in glibc.spans:
        top = _find_top_at_break(glibc, span)
        for low, high in _find_free_runs(glibc, span, blocks):
            if high == span.arena.top and span.arena.top_size:
                top = low if top else 0  # fastbin chunks right below top become part of it
                continue
            start = -(-(low + 6 * word) // page) * page
            if high - low > page - 1 + 6 * word and high - start >= page:
                found.extend((start, start + (high - start) // page * page))
        if top:
            end = span.arena.top + span.arena.top_size
            extra = (end - top - 4 * word - 1) // page * page  # MINSIZE
            if extra:
                found.extend((end - extra, end))
    return Runs(found)


def _find_top_at_break(glibc: GlibcView, span: GlibcSpan) -> int:
    """Return the address of the main arena's top if it is in this span and ends at the break, so
    that systrim shortens it; otherwise 0."""
    arena = span.arena
    if arena.number or not arena.top_size or not span.first <= arena.top < span.end:
        return 0
    end = arena.top + arena.top_size
    region = region_at(glibc.target.regions(), end - 1)
    return arena.top if arena.is_contiguous and region is not None and region.end == end else 0


def _find_free_runs(glibc: GlibcView, span: GlibcSpan, blocks: Blocks) -> Iterator[tuple[int, int]]:
    """Yield runs of free chunks of a page or more, ascending: from the first header of the run to
    the header after it."""
    word, page = glibc.memory.size, glibc.memory.arch.page
    taken = [*span.foreign, *span.metadata, *_list_nested_heaps(glibc, span, blocks)]
    for part in subtract([Range(span.first, span.stop)], taken):
        if part.end - part.start < page:
            continue
        flat: array[int] = array("Q")
        for start in range(part.start, part.end, STEP):
            if glibc.target.is_interrupted():
                raise Interrupted
            more = blocks.free_runs(Range(start, min(start + STEP, part.end)), page)
            if flat and more and flat[-1] == more[0]:
                flat.pop()
                more = more[1:]
            flat += more
        # A block in use includes the first word of the next chunk. A chunk's header is two words.
        for at, (low, high) in enumerate(zip(flat[::2], flat[1::2])):
            if at % _CHECK_EVERY == 0 and glibc.target.is_interrupted():
                raise Interrupted
            low = low - word if low > part.start else low
            high = high - 2 * word if high < part.end else high
            if high - low >= page:
                yield low, high


def _list_nested_heaps(glibc: GlibcView, span: GlibcSpan, blocks: Blocks) -> list[Range]:
    """Return the chunks that contain heaps of other allocators."""
    inner = next((heap.inner for heap in glibc.heaps() if heap.start == span.start), array("Q"))
    outer = glibc.walked_blocks(span, blocks)
    chunks = outer.columns_of(outer.find_all(inner[::2])[0])  # zeros for a heap that is in no chunk
    ends = (address + size - glibc.memory.size for address, size in zip(chunks.address, chunks.size))
    return [Range(start, max(end, last)) for start, end, last in zip(inner[::2], inner[1::2], ends)]
