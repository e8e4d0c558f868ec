"""Check the integrity of a glibc heap: everything that a debugging build of malloc asserts, and
more.

Sources: malloc/malloc.c of 2.26 to 2.43: do_check_malloc_state, do_check_chunk, tcache_get_n, free
(e->key, 2.29), tcache_key_initialize (2.34). Problems that the reader found are in `problems`."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.glibc.arenas import GlibcArena
from findleaks.allocators.glibc.in_flight import MANGLED_BY
from findleaks.allocators.glibc.layout import FLAG_BITS, IS_MMAPPED, PREV_INUSE, SMALL_TCACHE_BINS
from findleaks.allocators.glibc.lists import SHORT, follow_fastbins, follow_list
from findleaks.allocators.glibc.spans import read_pieces
from findleaks.allocators.glibc.tcache import Tcache
from findleaks.allocators.glibc.verify_bins import Bins
from findleaks.allocators.glibc.verify_chunks import Headers
from findleaks.allocators.glibc.view import GlibcView
from findleaks.engine.contract import Blocks
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, range_at, subtract

MAX_SEARCHED = 200_000  # blocks that are searched for overwritten links
MAX_SIMILAR = 16  # blocks whose first words may differ from a wrong head only in the page number
_PAGE_BITS = {8: 36, 4: 20}  # of the number of a page, by word size
MAX_PROBLEMS = 100  # problems of one sort that are reported one by one


def verify(heap: GlibcView, blocks: Blocks) -> Iterator[Optional[Problem]]:
    """Yield every problem that is not yet in heap.problems; see Allocator.verify."""
    heap.checked = {
        "chunk headers": 0,
        "free-list links": 0,
        "thread caches": len(heap.tcaches.caches),
        "arenas": len(heap.instance.arenas),
    }
    free: set[int] = set()
    _remove_consequences(heap)
    _find_overwritten_links(heap, blocks)
    for arena in heap.instance.arenas:
        yield from _check_arena(heap, arena, free)
    yield from _check_entries(heap, free)
    yield from _find_missing_mapped(heap)


def _remove_consequences(heap: GlibcView) -> None:
    """Remove the problems that follow from damage that is already reported."""
    unread = merge_ranges([part for span in heap.spans for part in span.foreign])

    def follows(problem: Problem) -> bool:
        """Return whether an entry is reported as not a block only because a reported wrong size
        made the memory there unreadable."""
        explained = problem.corrupt and not problem.damaged
        return explained and range_at(unread, problem.address) is not None and heap.owns(problem.address)

    heap.problems[:] = [problem for problem in heap.problems if not follows(problem)]


def _find_overwritten_links(heap: GlibcView, blocks: Blocks) -> None:
    """Find the blocks from which malloc took the wrong heads of thread caches' lists.

    malloc returns the first block of a list, and makes the link in it the new head. If the link was
    overwritten while the block was free, the head is what the program wrote, decoded like a link.
    The block is in use again, and its first word is unchanged until the program writes to it."""
    word, left = heap.memory.size, MAX_SEARCHED
    for problem, cache, index, first in heap.misfits:
        if problem not in heap.problems or index >= SMALL_TCACHE_BINS:
            continue
        size = 3 * word + index * heap.granule
        starts = blocks.columns_of(array("I", blocks.of_sizes(size, size, left))).address
        left -= len(starts)
        if left <= 0:
            return  # other blocks may match, too
        found = _find_link(heap, starts, first)
        if not found:
            continue
        what = f"{problem.what}: malloc took it from the first word of the block at {found:#x}, "
        what += "which was overwritten while the block was free; the block is in use again"
        heap.problems[heap.problems.index(problem)] = problem._replace(what=what, damaged=Range(found, found + word))
        head = Range(cache.head(index), cache.head(index) + word)
        heap.problems[:] = [one for one in heap.problems if one.damaged != head]


def _find_link(heap: GlibcView, starts: Sequence[int], head: int) -> int:
    """Return the only block whose first word is this wrong head, encoded as a link; 0 if it is
    unknown. Zeros, and words that are not mangled, are not unique: other blocks may contain the
    same. Many similar words, such as pointers, may contain one that matches by chance."""
    if heap.mangled is False:
        return 0
    words = ((start, heap.memory.word(start) or 0) for start in starts)
    near = [(start, link) for start, link in words if not (link ^ head) >> _PAGE_BITS[heap.memory.size]]
    found = [start for start, link in near if link and link == head ^ start >> MANGLED_BY]
    return found[0] if len(found) == 1 and len(near) <= MAX_SIMILAR else 0


def _check_arena(heap: GlibcView, arena: GlibcArena, free: set[int]) -> Iterator[Optional[Problem]]:
    """Compare one arena's headers and bins, and add its free chunks to `free`."""
    memory, word = heap.memory, heap.memory.size
    spans = [span for span in heap.spans if span.arena is arena]
    yield from _check_numbers(heap, arena)
    bins = Bins(memory, heap.engine, arena, read_pieces(memory, spans))
    found = list(bins.check())
    heap.checked["free-list links"] += bins.links
    yield from found
    unread = merge_ranges([part for span in spans for part in span.foreign])
    marked_free: set[int] = set()
    for span in spans:
        headers = Headers(memory, heap.engine, span, bins.chunks.__contains__)
        yield from headers.check()
        heap.checked["chunk headers"] += headers.count
        marked_free.update(headers.free)
    free |= marked_free | bins.chunks
    if marked_free == bins.chunks or arena.held:
        return
    for chunk in sorted(bins.chunks - marked_free)[:MAX_PROBLEMS]:
        if range_at(unread, chunk) is None and chunk not in bins.resized:
            yield _make_used_problem(heap, arena, chunk)
    if not bins.broken and not unread:
        for chunk in sorted(marked_free - bins.chunks)[:MAX_PROBLEMS]:
            what = f"the block at {chunk + 2 * word:#x} is free according to two headers, but is in no free list of {arena.name}"
            yield Problem(chunk, what, damaged=Range(chunk + word, chunk + 2 * word))


def _make_used_problem(heap: GlibcView, arena: GlibcArena, chunk: int) -> Problem:
    """Make the problem that a chunk in a bin is in use according to its headers."""
    memory, word = heap.memory, heap.memory.size
    size = (memory.word(chunk + word) or 0) & ~FLAG_BITS
    behind = chunk + size + word
    head = memory.word(behind)
    what = f"the block at {chunk + 2 * word:#x} is in a free list of {arena.name}, but the "
    if head is None or not head & PREV_INUSE:
        return Problem(chunk, what + "walk from chunk to chunk does not reach it")
    what += f"size word of the block behind it, at {behind + word:#x}, is {head:#x} which means that it is in use: "
    what += "it was freed and allocated at the same time, or the word was overwritten"
    return Problem(behind - word, what, damaged=Range(behind, behind + word), expected=head & ~PREV_INUSE)


def _check_numbers(heap: GlibcView, arena: GlibcArena) -> Iterator[Problem]:
    """Check an arena's counters and pointers."""
    word, layout = heap.memory.size, arena.layout
    at = arena.address + layout.system_mem
    if arena.system_mem > arena.max_system_mem:
        what = f"system_mem of {arena.name} is {arena.system_mem:#x}, more than its maximum so far, {arena.max_system_mem:#x}"
        yield Problem(at, what, damaged=Range(at, at + 2 * word))
    at = arena.address + layout.top + word
    remainder = heap.memory.word(at)
    if remainder and (remainder + 2 * word) % layout.align:
        what = f"last_remainder of {arena.name} is {remainder:#x}, which is not a chunk"
        yield Problem(at, what, damaged=Range(at, at + word))
    head = heap.memory.word(arena.top + word) if arena.top_size else None
    if head is not None and head & FLAG_BITS & ~PREV_INUSE:
        place = Range(arena.top + word, arena.top + 2 * word)
        what = f"the size word of the top of {arena.name} is {head:#x}: it has flags that no top has"
        yield Problem(arena.top, what, damaged=place, expected=arena.top_size | PREV_INUSE)
    for at, info in ((heap_info.start, heap_info) for heap_info in arena.heaps):
        touched = heap.memory.word(at + 3 * word) or 0
        if touched < info.end - info.start:
            what = f"heap_info of {arena.name} at {at:#x}: mprotect_size is {touched:#x}, less than its size {info.end - info.start:#x}"
            yield Problem(at, what, damaged=Range(at + 3 * word, at + 4 * word))


def _check_entries(heap: GlibcView, free: set[int]) -> Iterator[Optional[Problem]]:
    """Check thread caches and fastbins: counts, sizes, keys, and blocks that were freed twice."""
    seen: dict[int, str] = {}
    cached: list[tuple[Tcache, list[int]]] = []
    for cache in heap.tcaches.caches:
        blocks: list[int] = []
        for index, head, length in cache.lists:
            nodes, problem = follow_list(heap, head, max(length, SHORT))
            where = f"list {index} of {cache.name}"
            if not problem and len(nodes) != length:
                at = cache.address + index * cache.layout.counter
                what = f"{where} has {len(nodes):,} entries, but its counter is {length:,}"
                yield Problem(at, what, damaged=Range(at, at + cache.layout.counter))
            size = 4 * heap.memory.size + index * heap.granule if index < SMALL_TCACHE_BINS else 0
            yield from _check_list(heap, nodes, where, size, seen, free)
            blocks += nodes
        heap.checked["free-list links"] += len(blocks)
        cached.append((cache, blocks))
        yield None
    yield from _check_keys(heap, cached)
    for arena in heap.instance.arenas:
        for index, nodes, _ in follow_fastbins(heap, arena):
            heap.checked["free-list links"] += len(nodes)
            size = (index + 2) * 2 * heap.memory.size
            yield from _check_list(heap, nodes, f"fastbin {index} of {arena.name}", size, seen, free)
            yield None


def _check_list(heap: GlibcView, entries: Sequence[int], where: str, size: int, seen: dict[int, str], free: set[int]) -> Iterator[Problem]:
    """Check the blocks of a list: they have `size` (0: any), and are in no other list."""
    word = heap.memory.size
    heads = _read_words(heap, [block - word for block in entries])
    for block, head in zip(entries, heads):
        chunk = block - 2 * word
        place = Range(chunk + word, block)
        if size and head & ~FLAG_BITS != size:
            what = f"the freed block at {block:#x}, in {where}, has size word {head:#x}; the list is of chunks of {size:#x}"
            yield Problem(chunk, what, damaged=place, expected=size | head & FLAG_BITS)
        elif chunk in free:
            behind = chunk + (head & ~FLAG_BITS)
            what = f"the block at {block:#x} is in {where} and in a bin: it was freed twice"
            yield Problem(block, what, damaged=Range(behind + word, behind + 2 * word))
        if block in seen:
            yield Problem(block, f"the block at {block:#x} is in {where} and in {seen[block]}: it was freed twice")
        seen[block] = where


def _read_words(heap: GlibcView, places: Sequence[int]) -> Sequence[int]:
    """Read the words at these addresses. Many words are read in one call, because each is in
    another page."""
    if len(places) <= SHORT:
        return [heap.memory.word(place) or 0 for place in places]
    records, _ = heap.engine.gather(heap.pieces, places, heap.memory.size)
    return heap.memory.arch.unpack(bytes(records))


def _check_keys(heap: GlibcView, cached: Sequence[tuple[Tcache, Sequence[int]]]) -> Iterator[Problem]:
    """Check the second word of each cached block, a mark by which free() detects double frees.

    The mark is a random number of the process (2.34), the address of the cache (2.29 to 2.33), or
    missing (before). The value that most blocks have shows which one it is."""
    word = heap.memory.size
    marks = [(cache, block, heap.memory.word(block + word) or 0) for cache, blocks in cached for block in blocks]
    votes = Counter(mark for _, _, mark in marks)
    key, count = votes.most_common(1)[0] if votes else (0, 0)
    by_cache = 2 * sum(mark == cache.address for cache, _, mark in marks) > len(marks)
    if not by_cache and (key == 0 or 2 * count <= len(marks) or (count < 3 and not _is_in_libc(heap, key))):
        return
    wrong = [(cache, block, mark) for cache, block, mark in marks if mark != (cache.address if by_cache else key)]
    for cache, block, mark in wrong[:MAX_PROBLEMS]:
        should = cache.address if by_cache else key
        what = f"the freed block at {block:#x}, in {cache.name}, has {mark:#x} where free() left its mark {should:#x}"
        what += ": written to after it was freed; free() would not detect a second free of it"
        yield Problem(block + word, what, damaged=Range(block + word, block + 2 * word), expected=should)


def _is_in_libc(heap: GlibcView, value: int) -> bool:
    """Whether the word is in the memory around main_arena, where tcache_key is."""
    start = heap.instance.main.address & -heap.memory.arch.page
    pieces = heap.target.pieces(start - (64 << 10), start + (256 << 10))
    return any(heap.engine.search(piece, value, value + 1) for piece in pieces)


def _find_missing_mapped(heap: GlibcView) -> Iterator[Problem]:
    """Find a mmapped block whose header is damaged. It is in unclaimed memory whose size is the
    part of mp_'s count that no known block explains."""
    count, size = heap.par("n_mmaps"), heap.par("mmapped_mem")
    if count is None or size is None or count - len(heap.mapped) != 1:
        return
    missing = size - sum(m.end - m.start for m in heap.mapped)
    if missing <= 0 or missing % heap.memory.arch.page:
        return
    places = _find_unclaimed_places(heap, missing)
    if len(places) != 1:
        return
    header = places[0] + -2 * heap.memory.size % heap.granule
    words = heap.memory.words(header, 2)
    if words is not None:
        heap.problems[:] = [p for p in heap.problems if p.address != (heap.instance.par or heap.instance.main.address)]
        yield from _report_header(heap, places[0], header, (words[0], words[1]), missing)


def _find_unclaimed_places(heap: GlibcView, size: int) -> list[int]:
    """Return the addresses at which a mapping of this size may begin: at unclaimed memory of
    exactly this size; if there is none, in longer unclaimed memory, next to a mmapped block."""
    unclaimed = subtract(heap.unclaimed, [Range(m.start, m.end) for m in heap.mapped])
    longer = [part for part in unclaimed if part.end - part.start > size]
    starts, ends = {m.start for m in heap.mapped}, {m.end for m in heap.mapped}
    places = [part.start for part in unclaimed if part.end - part.start == size]
    places = places or [part.start for part in longer if part.start in ends]
    return places + [part.end - size for part in longer if part.end in starts]


def _report_header(heap: GlibcView, start: int, header: int, words: tuple[int, int], size: int) -> Iterator[Problem]:
    """Report which words of a mmapped chunk's header were overwritten. `start` and `size` are those
    of the mapping.

    Nothing but padding for alignment precedes the chunk in the mapping."""
    word = heap.memory.size
    right = size - (header - start) - heap.instance.layout.uncounted | IS_MMAPPED
    low = header if words[0] else header + word
    high = header + 2 * word if words[1] != right else header + word
    if low < high:
        what = (
            f"the header of the mmapped block at {header + 2 * word:#x} is overwritten: its size word is {words[1]:#x}, but "
            f"mp_ counts {size:,} bytes of mmapped memory that no other block explains; free() of this block would abort"
        )
        yield Problem(header, what, damaged=Range(low, high), expected=right if low == header + word else None)
