"""Locate V8's heap: its offset in an isolate, its counters of external memory, and its chunks.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/api/api.cc
(Isolate::AdjustAmountOfExternalAllocatedMemory, Isolate::GetHeapStatistics), src/heap/heap.cc
(Heap::UpdateExternalMemory), src/heap/basic-memory-chunk.h, later memory-chunk.h and
memory-chunk-metadata.h.

The first function loads the heap's address in the isolate (lea). It adds to the total (lock xadd),
in the isolate or, through a function that it calls, in the heap. The second function stores the
bytes of backing stores as the statistics' eighth word. A chunk begins at a multiple of 256 KiB. Its
size is among its first words. The heap's address follows the size, or is in memory that one of the
first words points to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.disasm.functions import instructions_at
from findleaks.disasm.instruction import Instruction
from findleaks.runtimes.node.symbols import ADJUST
from findleaks.runtimes.v8.layout import FAR, code_of
from findleaks.target.base import Range, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import merge_ranges, range_at

STATISTICS = "_ZN2v87Isolate17GetHeapStatisticsEPNS_14HeapStatisticsE"
EIGHTH = 56  # offset of the eighth word of the statistics
CHUNK = 256 << 10  # alignment of chunks in bytes, and the size of ordinary ones
PAGE = 4096
# Words of a chunk, or of memory that its first four words point to, that may be the heap's address.
HEADER = 32
FIRST = 8  # number of a chunk's first words that may be its size
LENGTH = 256  # maximum number of bytes read of a called function


class Heap(NamedTuple):
    """Offsets from the start of an isolate: of its heap, and of two counters of bytes.

    The counter at `reported` has the memory reported to V8. The counter at `external` has the
    memory of backing stores (process.memoryUsage()'s external). An offset is 0 if it is unknown."""

    heap: int
    reported: int
    external: int


def derive(target: Target) -> Optional[Heap]:
    """Return the offsets; None if the function is not as expected. Raises CapstoneMissing."""
    code, statistics = code_of(target, (ADJUST,)), code_of(target, (STATISTICS,))
    heap = next((one.displacement for one in code or statistics if one.name == "lea" and _far(one)), None)
    if heap is None or not code:
        # Up to V8 8.4, the first function is in a header, and the total is not known.
        return Heap(heap, 0, _stores(statistics)) if heap is not None else None
    called = (instructions_at(target, one.target, LENGTH) for one in code if one.name == "call" and one.target is not None)
    totals = chain([_find_counter(code, heap)], (_find_counter(body, heap, True) for body in called))
    total = next((offset for offset in totals if offset is not None), None)
    return Heap(heap, total, _stores(statistics)) if total is not None else None


def _stores(code: list[Instruction]) -> int:
    """Return the offset from which the eighth word of the statistics is loaded; 0 if it is not
    found."""
    loaded: dict[int, int] = {}
    for one in code:
        if one.loads and _far(one):
            loaded[one.destination] = one.displacement or 0
        elif one.stores and one.displacement == EIGHTH:
            return loaded.get(one.source, 0)
    return 0


def _far(one: Instruction) -> bool:
    return one.displacement is not None and one.displacement >= FAR and one.base >= 0


def _find_counter(code: Iterable[Instruction], heap: int, is_relative: bool = False) -> Optional[int]:
    """Return the offset in the isolate of the counter that is incremented. With `is_relative`, the
    code's offset is relative to the heap."""
    for one in code:
        if one.name == "xadd" and one.displacement is not None:
            return one.displacement if one.displacement >= FAR and not is_relative else heap + one.displacement
    return None


Header = tuple[int, int]
"""Location of the heap's address: (index of the chunk's word that points to it, -1: the chunk's own
header; index in the memory pointed to)."""


def chunks(target: Target, heaps: frozenset[int], others: Sequence[Range] = ()) -> list[Range]:
    """Return the chunks of these heaps, ascending; chunks of large objects are larger than others.
    Raises only Interrupted.

    V8 maps its chunks itself, so none begins in `others` (heaps of allocators, ascending). A malloc
    block may contain the heap's address at the offset that a chunk's header uses, and must not be
    taken for a chunk."""
    memory = Memory(target)
    # (possible start of a chunk, end of memory, its headers)
    headed: list[tuple[int, int, dict[Header, tuple[int, ...]]]] = []
    regions = [region for region in target.regions() if not region.name.startswith("/")]
    # A chunk may contain unreadable parts.
    hidden = merge_ranges([Range(region.start, region.end) for region in regions if not region.readable])
    for start, end in merge_ranges([Range(region.start, region.end) for region in regions]):
        for at in interruptible(target, _places(target, start, end), 256):
            headers = dict(_headers(memory, at, heaps)) if not (range_at(hidden, at) or range_at(others, at)) else {}
            if headers:
                headed.append((at, end, headers))
    votes = Counter(header for _, _, headers in headed for header in headers)
    # Choose the most frequent header: other memory may look like a chunk with another kind of
    # header.
    header = max(votes, key=lambda one: (votes[one], one), default=(0, 0))
    return _size_chunks([(at, end, headers[header]) for at, end, headers in headed if header in headers])


def _places(target: Target, start: int, end: int) -> Iterator[int]:
    """Yield possible starts of chunks in [start, end), ascending. Skips known zeros, which may be
    terabytes."""
    after = -(-start // CHUNK) * CHUNK
    for low, high in target.nonzero(start, end):
        for at in range(max(low // CHUNK * CHUNK, after), high, CHUNK):
            yield at
            after = at + CHUNK


def _headers(memory: Memory, at: int, heaps: frozenset[int]) -> Iterator[tuple[Header, tuple[int, ...]]]:
    for first, words in heads(memory, at, heaps):
        if not heaps.isdisjoint(words):
            yield from (((first, number), words) for number, word in enumerate(words) if word in heaps)


def heads(memory: Memory, at: int, heaps: Container[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (-1, words of the chunk's own header), then (index, words pointed to) for each of its
    first four words that points to memory other than the heaps themselves."""
    words = memory.words(at, HEADER) or ()
    if words:
        yield -1, words
    for first, pointed in enumerate(words[:4]):
        leads = pointed > PAGE and pointed % memory.size == 0 and pointed != at and pointed not in heaps
        there = memory.words(pointed, HEADER) if leads else None
        if there is not None:
            yield first, there


def _size_chunks(headed: Sequence[tuple[int, int, tuple[int, ...]]]) -> list[Range]:
    """Return the chunks with these headers.

    Memory that a freed chunk's header refers to may have been reused. Such a header has no address
    in the chunk and is skipped."""
    own = [any(word & -CHUNK == at for word in words) for at, _, words in headed]
    places = _sizes([one for one, its in zip(headed, own) if its])
    found: list[Range] = []
    for (at, end, words), its in zip(headed, own):
        size = next((words[place] for place in places if _fits(words[place], end - at)), 0) if its else min(CHUNK, end - at)
        if size and (not found or at >= found[-1].end):
            found.append(Range(at, at + size))
    return found


def _sizes(headed: Sequence[tuple[int, int, tuple[int, ...]]]) -> list[int]:
    """Return indices of words that may be the size of chunks, likeliest first.

    The word that is a plausible size in every chunk is preferred; of several such words, the
    larger. (Another word, the bytes allocated in a chunk, is a plausible size only in some
    chunks.)"""
    sizes: defaultdict[int, list[int]] = defaultdict(list)
    for at, end, words in headed:
        for place, word in enumerate(words[:FIRST]):
            if _fits(word, end - at):
                sizes[place].append(word)
    return sorted(sizes, key=lambda place: (-len(sizes[place]), -sum(sizes[place])))


def _fits(size: int, most: int) -> bool:
    return PAGE <= size <= most and size % PAGE == 0
