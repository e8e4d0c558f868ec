"""Find the linear allocation areas of local heaps.

Each thread that allocates in V8's old space has a LocalHeap, also the main thread. Memory from the
top to the limit of its areas has no objects yet. No space refers to these areas.

Sources: V8 9.4 to 13.6 (Node 16 to 24), src/heap/local-heap.h (the first word is the heap; it has
the addresses of its allocators, and of the previous and the next LocalHeap),
src/heap/concurrent-allocator.h and linear-allocation-area.h (an allocator has {start, top,
limit})."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from findleaks.allocators.memory import Memory
from findleaks.runtimes.node.heap import PAGE
from findleaks.target.base import Range

HEAP_WORDS, LOCAL_WORDS = 1024, 256  # words of a heap and of a LocalHeap that are read
FEWEST = 64  # words that are read at the end of memory
ALLOCATOR_WORDS = 16
MOST_LOCAL = 256  # objects of a heap that may be a LocalHeap


def local_areas(memory: Memory, heap: int, chunks: Sequence[Range]) -> Iterator[Range]:
    """Yield the unused ends of the areas of local heaps. `heap` is the address of an isolate's
    heap, `chunks` are V8's pages, ascending."""
    starts = [chunk.start for chunk in chunks]
    waiting = _objects_of(memory, heap, _read_words(memory, heap, HEAP_WORDS))
    seen = set(waiting)
    while waiting and len(seen) <= MOST_LOCAL:
        local = waiting.pop()
        words = _read_words(memory, local, LOCAL_WORDS)
        found = [one for one in _objects_of(memory, heap, words) if one not in seen]
        seen.update(found)
        waiting += found
        for word in dict.fromkeys(words):
            fields = (memory.words(word, ALLOCATOR_WORDS) or ()) if _is_address(memory, word) else ()
            for start, top, limit in zip(fields, fields[1:], fields[2:]):
                if 0 < start <= top < limit and not (start | top | limit) % memory.size:
                    at = bisect_left(starts, start) - 1
                    if at >= 0 and limit <= chunks[at].end:
                        yield Range(top, limit)


def _objects_of(memory: Memory, heap: int, words: Sequence[int]) -> list[int]:
    """Return the addresses among these words of objects whose first word is the heap."""
    return [word for word in dict.fromkeys(words) if _is_address(memory, word) and memory.word(word) == heap]


def _read_words(memory: Memory, address: int, most: int) -> Sequence[int]:
    """Return up to `most` words, fewer at the end of memory."""
    while most > FEWEST:
        words = memory.words(address, most)
        if words is not None:
            return words
        most //= 2
    return memory.words(address, FEWEST) or ()


def _is_address(memory: Memory, word: int) -> bool:
    return word >= PAGE and word % memory.size == 0
