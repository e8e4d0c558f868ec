"""Chunks that each have a separate mapping (malloc.c, sysmalloc_mmap), for requests of
mmap_threshold or more.

No list contains these chunks; mp_ only counts them. Each chunk occupies whole pages. Its size word
has the flag IS_MMAPPED and no other. memalign moves the chunk further into the mapping and stores
the distance in prev_size; the old header stays at the start of the page.

Up to 2.41 the size of a chunk extends to the end of the mapping. In 2.43 it is two words less, and
the block includes one of these two words.

The kernel merges mappings with adjacent ones, even with mappings of other code. So every page of
memory without an owner is tried until the counts of mp_ are reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Optional

from findleaks.allocators.glibc.layout import FLAG_BITS, IS_MMAPPED
from findleaks.allocators.mappings import MappedChunk
from findleaks.allocators.memory import Memory
from findleaks.errors import Interrupted
from findleaks.target.base import Range
from findleaks.target.ranges import nonzero_pieces

MOST_ADDED, MOST_SINGLE = 3, 300  # limits of _add_up: chunks of a set, and different sizes


def find_mmapped(memory: Memory, align: int, free: Sequence[Range], count: Optional[int], size: Optional[int]) -> list[MappedChunk]:
    """Find mmapped chunks in the disjoint ranges `free`, ascending. Stop when `count` chunks with
    `size` bytes in total are found (None: unknown). The largest ranges, such as the heap of a JVM,
    are searched last, because each page of a range is read."""
    found: list[MappedChunk] = []
    total = 0
    page = memory.arch.page
    if count == 0 and not size:
        return found
    for start, end in sorted(free, key=lambda one: one.end - one.start):
        at = start
        for place in _find_candidates(memory, align, start, end):
            if place < at:
                continue
            mapped = _read_mapping(memory, align, place, end)
            if mapped is not None:
                found.append(mapped)
                total += mapped.end - mapped.start
                at = mapped.end
                if len(found) == count and size is not None and size_agrees(found, size, memory.size) and size - total < page:
                    return sorted(found)
    return _remove_strays(sorted(found), count, size, memory.size)


def size_agrees(found: Sequence[MappedChunk], size: int, word: int) -> bool:
    """Return whether mp_.mmapped_mem can be `size` with these chunks.

    Sizes must be equal, except that 2.43 adds two words whenever mremap resizes a chunk (measured;
    its chunks leave one word unused)."""
    over = size - sum(m.end - m.start for m in found)
    if over > 0 and any(m.chunk + 2 * word + m.size != m.end for m in found):
        return over % (2 * word) == 0
    return over == 0


def _remove_strays(found: list[MappedChunk], count: Optional[int], size: Optional[int], word: int) -> list[MappedChunk]:
    """Leave out memory that only looks like a chunk, if that makes both counts of mp_ right.

    One of three sets is left out: all chunks of one size; the smallest chunks, because malloc maps
    only large requests; or a few chunks whose sizes add up to the surplus bytes, because a JVM's
    class metadata has one or two pages that begin like a chunk. Of several possible sets, the one
    whose total is nearest is chosen (2.43 counts a little too much). If two are equally good, all
    chunks are kept."""
    surplus = len(found) - count if count is not None else 0
    if size is None or surplus <= 0:
        return found
    sizes = Counter(m.end - m.start for m in found)
    choices = {frozenset({each}) for each, times in sizes.items() if times == surplus}
    choices.add(frozenset(sorted(sizes.elements())[:surplus]))
    choices.update(_add_up(sizes, surplus, sum(sizes.elements()) - size))
    served: list[tuple[int, list[MappedChunk]]] = []
    for strays in choices:
        kept = [m for m in found if m.end - m.start not in strays]
        if len(kept) == count and size_agrees(kept, size, word):
            served.append((size - sum(m.end - m.start for m in kept), kept))
    served.sort(key=lambda choice: choice[0])
    return served[0][1] if served and (len(served) == 1 or served[0][0] < served[1][0]) else found


def _add_up(sizes: Counter[int], count: int, total: int) -> Iterator[frozenset[int]]:
    """Yield sets of `count` sizes that add up to `total`. Only sizes of which there is a single
    chunk are used."""
    single = [size for size, times in sizes.items() if times == 1]
    if not 0 < count <= MOST_ADDED or len(single) > MOST_SINGLE:
        return
    known = set(single)
    for others in combinations(single, count - 1):
        last = total - sum(others)
        if last in known and last not in others:
            yield frozenset({*others, last})


_MARKS = bytes(byte & FLAG_BITS == IS_MMAPPED for byte in range(256))


def _find_candidates(memory: Memory, align: int, start: int, end: int) -> Iterator[int]:
    """Yield the pages whose size word is that of a mmapped chunk."""
    page, word = memory.arch.page, memory.size
    offset = -2 * word % align + word  # on i386, chunks begin 8 bytes into the page
    at = start + -start % page
    for piece in nonzero_pieces(memory.target, at, end):
        if memory.target.is_interrupted():
            raise Interrupted()
        skip = -piece.address % page + offset
        # The byte of the size word that has the flags.
        low = skip if memory.arch.byteorder == "little" else skip + word - 1
        data = piece.data
        marks = bytes(data[low::page]).translate(_MARKS)
        index = marks.find(1)
        while index >= 0 and skip + index * page + word <= len(data):
            yield piece.address + skip - offset + index * page
            index = marks.find(1, index + 1)


def _read_mapping(memory: Memory, align: int, start: int, limit: int) -> Optional[MappedChunk]:
    """Return the mmapped chunk in the mapping that starts at `start`, or None."""
    page, word = memory.arch.page, memory.size
    header = start + -2 * word % align
    plain = _read_chunk(memory, start, header, limit)
    if plain is None:  # memalign, or mremap after it, must have left a stale header
        words = memory.words(header, 2)
        size = (words[1] & ~FLAG_BITS) + header - start if words is not None else 0
        if words is None or words[0] & ~FLAG_BITS != header - start or size < page or size % page not in (0, page - 2 * word):
            return None
    # alignments of memalign are larger than malloc's
    for shift in range(align.bit_length(), 40):
        alignment = 1 << shift
        if start + alignment > limit + page:
            break
        chunk = (header + 2 * word + alignment - 1) // alignment * alignment - 2 * word
        for place in (chunk, chunk + alignment):
            if place > header and place + 2 * word < limit:
                moved = _read_chunk(memory, start, place, limit)
                if moved is not None:
                    return moved
    return plain


def _read_chunk(memory: Memory, start: int, chunk: int, limit: int) -> Optional[MappedChunk]:
    """Return the mmapped chunk whose header is at `chunk`, in a mapping that starts at `start`, or
    None."""
    words, word = memory.words(chunk, 2), memory.size
    if words is None or words[0] & ~FLAG_BITS != chunk - start or words[1] & FLAG_BITS != IS_MMAPPED:
        return None
    end = chunk + (words[1] & ~FLAG_BITS)
    spare = 0
    if end % memory.arch.page:
        end += 2 * word
        spare = word
    if end % memory.arch.page or not chunk + 2 * word < end <= limit:
        return None
    return MappedChunk(start, chunk, end, end - spare - chunk - 2 * word)
