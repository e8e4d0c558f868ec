"""Find memory that Go's runtime maps for itself, outside the heap. It contains descriptors of spans
and arenas, the bitmaps of the page allocator, and what the runtime allocates and never frees.

Sources: Go 1.18 to 1.26, src/runtime: malloc.go (persistentalloc: chunks of 256 KiB, each of which
begins with the address of the next; persistentChunks), mpagealloc.go (pageAlloc.summary: five
slices, one for each level; chunks), mheap.go (heapArena), mpagealloc_64bit.go (the levels)."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from findleaks.allocators.bulk import find_pointers
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.go.heap import ARENA, PAGES, Heap, anonymous
from findleaks.target.base import Range
from findleaks.target.ranges import intersection, merge_ranges, nonzero_pieces, subtract
from findleaks.value_classes import NamedTuple

_CHUNK = 256 << 10  # persistentChunkSize
_MAX_CHUNKS = 1 << 16
_LEVELS = (14, 17, 20, 23, 26)  # log2 of the capacities of pageAlloc.summary
_SUMMARY = 24 * len(_LEVELS)  # bytes of pageAlloc.summary: a slice for each level
_SECOND_LEVELS = 1 << 13  # pallocChunksL1Bits: pointers to groups of chunks
_GROUP = 128 << 13  # bytes of a group: a pallocData has 128 bytes
_PAGE = 4096


class Metadata(NamedTuple):
    """The memory that Go's runtime maps for itself. `ranges`: all of this memory that is mapped,
    readable and writable, sorted and disjoint. `persistent`: the part that is never freed.
    `lengths`: the variables that contain the addresses and lengths of bitmaps (pageAlloc.summary).
    In a program that is not position-independent, such a length may look like the address of a
    block of malloc. Example: 0x5b29d8 in Go 1.26 with a heap at 0x3653a4400000."""

    ranges: Sequence[Range]
    persistent: Sequence[Range]
    lengths: Sequence[Range]


def metadata(memory: Memory, engine: Engine, heap: Heap, data: Sequence[Range]) -> Metadata:
    """Return the memory that Go's runtime maps for itself. `data`: the program's variables."""
    regions = anonymous(memory.target.regions())
    if not regions:
        return Metadata([], [], [])
    persistent: list[Range] = []
    found: list[Range] = [Range(entry, entry + heap.layout + 8 * PAGES + _PAGE) for entry in heap.entries]
    lengths: list[Range] = []
    tried: set[int] = set()
    spans = sorted(heap.spans.addresses)
    for start, end in data:
        for piece in nonzero_pieces(memory.target, start, end):
            addresses, values = find_pointers(engine, piece, regions[0].start, regions[-1].end)
            for address, value in zip(addresses, values):
                if value % _PAGE or value in tried:
                    continue
                tried.add(value)
                chunks = _persistent_chunks(memory, value)
                if any(_has(chunk, spans) for chunk in chunks):
                    persistent += chunks
                bitmaps = _page_allocator(memory, address)
                found += bitmaps
                lengths += [Range(address, address + _SUMMARY)] if bitmaps else []
    mapped = merge_ranges(Range(region.start, region.end) for region in regions)
    arenas = [Range(base, base + ARENA) for base in heap.arenas]
    own, kept = (subtract(intersection(mapped, merge_ranges(part)), arenas) for part in ([*found, *persistent], persistent))
    return Metadata(own, kept, lengths)


def _persistent_chunks(memory: Memory, head: int) -> list[Range]:
    """Return the chunks of the list that begins at `head`; [] if there is no such list."""
    found: dict[int, None] = {}
    while head:
        following = memory.word(head) if head % _PAGE == 0 and head not in found and len(found) < _MAX_CHUNKS else None
        if following is None:
            return []
        found[head] = None
        head = following
    return [Range(start, start + _CHUNK) for start in found]


def _has(chunk: Range, spans: Sequence[int]) -> bool:
    at = bisect_left(spans, chunk.start)
    return at < len(spans) and spans[at] < chunk.end


def _page_allocator(memory: Memory, address: int) -> list[Range]:
    """Return the memory of the page allocator if pageAlloc.summary is at `address`, else []."""
    words = memory.words(address, 3 * len(_LEVELS))
    if words is None or any(words[3 * level + 2] != 1 << bits for level, bits in enumerate(_LEVELS)):
        return []
    found = [Range(words[3 * level], words[3 * level] + (8 << bits)) for level, bits in enumerate(_LEVELS)]
    groups: Sequence[int] = memory.words(address + _SUMMARY, _SECOND_LEVELS) or array("Q")
    return [*found, *(Range(group, group + _GROUP) for group in groups if group)]
