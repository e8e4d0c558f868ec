"""Thread caches: finds every thread's tcache_perthread_struct through its TLS, without symbols.

The variable `tcache` of libc is static TLS: it is at the same offset from every thread pointer,
near `thread_arena`, which contains an arena's address. It points to a block of known size whose
content can be checked: counters agree with list heads, and list heads point to chunks of the list's
size."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.glibc.layout import FLAG_BITS, SMALL_TCACHE_BINS, TCACHES, TcacheLayout
from findleaks.target.base import Thread
from findleaks.target.ranges import region_at
from findleaks.value_classes import NamedTuple, dataclass, field

if TYPE_CHECKING:
    from findleaks.allocators.glibc.heap_view import HeapView

CLOSE = 4 << 10  # bytes of TLS on either side of the thread pointer that are searched first
WINDOW = 64 << 10
WIDE = 8 << 20  # bytes that are searched in programs with huge thread-local arrays
NEAR = 256  # bytes between `tcache` and `thread_arena`; measured: 8 to 24
SAMPLES = 4  # threads whose whole TLS is searched


class BadList(NamedTuple):
    """A list that does not fit its counter or its size."""

    what: str  # a phrase
    number: int  # of the list
    misfit: int = 0  # first block of the list, if its size is wrong; else 0


@dataclass(eq=False, repr=False)
class Tcache:
    """The cache of one thread. `lists` has (index, head, expected length or -1) of each list that
    is not empty. `good` is the number of lists without a fault; `bad` has the other lists."""

    tid: int  # 0 if unknown
    address: int
    layout: TcacheLayout
    lists: list[tuple[int, int, int]] = field(default_factory=list)
    good: int = 0
    bad: list[BadList] = field(default_factory=list)

    def head(self, index: int) -> int:
        """Return the address of the head of a list."""
        return self.address + self.layout.entries + index * self.layout.word

    @property
    def name(self) -> str:
        """ "thread 17's cache", or a name with the address if the thread is unknown"""
        return f"thread {self.tid}'s cache" if self.tid else f"the thread cache at {self.address:#x}"


class Tcaches(NamedTuple):
    """The thread caches of a process."""

    caches: list[Tcache]
    unread: list[int]  # threads whose cache could not be read


class Misfit(NamedTuple):
    """A list of a thread cache that starts at something other than a chunk of its size. `problem`:
    what is reported."""

    problem: Problem
    cache: Tcache
    number: int  # of the list
    first: int


def find_tcaches(glibc: HeapView, threads: Sequence[Thread]) -> Tcaches:
    """Find the cache of every thread. If a thread pointer is unknown, also return the thread caches
    that are the first chunk of an arena: a thread's first call of malloc often allocates its cache
    there."""
    known = [thread for thread in threads if thread.thread_pointer]
    unread = [thread.tid for thread in threads if not thread.thread_pointer]
    offset = _find_offset(glibc, known)
    caches: dict[int, Tcache] = {}
    if offset is not None:
        for thread in known:
            pointer = glibc.memory.word(thread.thread_pointer + offset)
            if pointer is None:
                unread.append(thread.tid)
            elif pointer and glibc.owns(pointer):
                cache = examine_tcache(glibc, pointer)
                if cache is not None:
                    cache.tid = thread.tid
                    caches.setdefault(pointer, cache)
    if unread:
        for pointer in sorted(_list_first_blocks(glibc).difference(caches)):
            cache = examine_tcache(glibc, pointer)
            if cache is not None and cache.good > len(cache.bad):
                caches[pointer] = cache
    return Tcaches([caches[pointer] for pointer in sorted(caches)], unread)


def _list_first_blocks(glibc: HeapView) -> set[int]:
    """Return the first block of each span."""
    return {span.first + 2 * glibc.memory.size for span in glibc.spans}


def _find_offset(glibc: HeapView, threads: Sequence[Thread]) -> Optional[int]:
    """Return the offset from the thread pointer to the pointer to the cache for which there is most
    evidence, or None.

    The search begins near the thread pointer. The evidence for each offset is summed over a few
    threads, so that a stale pointer in the TLS of one thread is not chosen."""
    for window in (CLOSE, WINDOW, WIDE):
        weights: dict[int, int] = {}
        for thread in threads[:SAMPLES]:
            for offset, weight in _find_evidence(glibc, thread.thread_pointer, window):
                weights[offset] = weights.get(offset, 0) + weight
        for thread in threads[SAMPLES : 8 * SAMPLES]:
            for offset in weights:
                cache = examine_tcache(glibc, glibc.memory.word(thread.thread_pointer + offset) or 0)
                weights[offset] += 0 if cache is None else 1 + cache.good
        if weights:
            return max(weights, key=lambda offset: (weights[offset], -abs(offset)))
        threads = threads if window == CLOSE else threads[:1]
    return None


def _find_evidence(glibc: HeapView, pointer: int, window: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, weight) of the words near a thread pointer that point to a thread cache. Words
    below it are searched first (TLS variant II), then words above it (variant I).

    The weight is 8 if an arena's address is near (`thread_arena`), 4 if the cache is the first
    block of a span, and one for each good list, up to 8."""
    word = glibc.memory.size
    low, high = min(span.start for span in glibc.spans), max(span.stop for span in glibc.spans)
    known_arenas, first_blocks = {arena.address for arena in glibc.instance.arenas}, _list_first_blocks(glibc)
    home = region_at(glibc.target.regions(), pointer)
    if home is None:
        return
    for start, end in ((pointer - window, pointer), (pointer, pointer + window)):
        found = False
        for base, words in glibc.memory.scan(max(start & -word, home.start), min(end, home.end)):
            arenas = [i for i, v in enumerate(words) if v in known_arenas]
            for index in [i for i, v in enumerate(words) if low <= v < high]:
                cache = examine_tcache(glibc, words[index])
                if cache is not None:
                    near = any(abs(index - i) * word <= NEAR for i in arenas)
                    first = words[index] in first_blocks
                    if near or first or cache.good:
                        found = True
                        yield base + index * word - pointer, 8 * near + 4 * first + min(cache.good, 8)
        if found:
            return


def examine_tcache(glibc: HeapView, pointer: int) -> Optional[Tcache]:
    """Return the thread cache at `pointer`, in the layout that fits best, or None."""
    memory = glibc.memory
    if not pointer or pointer % glibc.granule or not glibc.owns(pointer):
        return None
    head = memory.word(pointer - memory.size)
    if head is None:
        return None
    size = head & ~FLAG_BITS
    found = []
    for layout in TCACHES:
        least = layout.chunk_size(glibc.granule)
        # malloc returns a free chunk as a whole if the remainder would be too small for a chunk. In
        # 2.43 the remainder was as large as the smallest chunk (measured).
        if layout.word == memory.size and least <= size <= least + 4 * memory.size:
            cache = _read_tcache(glibc, pointer, layout)
            if cache is not None and len(cache.bad) <= max(cache.good, 2):
                found.append(cache)
    return max(found, key=lambda cache: cache.good - len(cache.bad), default=None)


def _read_tcache(glibc: HeapView, pointer: int, layout: TcacheLayout) -> Optional[Tcache]:
    """Read the thread cache at `pointer` by `layout`, and check each list against its counter and
    size."""
    memory, cache = glibc.memory, Tcache(0, pointer, layout)
    words = memory.words(pointer, layout.size // layout.word)
    if words is None:
        return None
    raw = memory.target.read(pointer, layout.bins * layout.counter)
    form = memory.arch.word_format[0] + str(layout.bins) + ("H" if layout.counter == 2 else "B")
    counts = struct.unpack(form, raw)
    heads = words[layout.entries // layout.word :]
    fill = 0
    if layout.slots:
        most, capacity = max(counts, default=0), glibc.par("tcache_count")
        fill = most if capacity is None else capacity
        if most > fill:
            return None
    least = 4 * memory.size  # malloc.c, MINSIZE
    for index, (count, first) in enumerate(zip(counts, heads)):
        length = fill - count if layout.slots else count
        if not first:
            if length:
                cache.bad.append(BadList(f"list {index} is empty, but its counter is {length}", index))
            continue
        size = memory.word(first - memory.size) if glibc.owns(first) and first % glibc.granule == 0 else None
        fits = size is not None and (index >= SMALL_TCACHE_BINS or size & ~FLAG_BITS == least + index * glibc.granule)
        if fits and length > 0:
            cache.good += 1
        else:
            what = f"list {index} starts at {first:#x}, "
            wrong = (what + "but its counter is 0", index) if fits else (what + "which is not a chunk of its size", index, first)
            cache.bad.append(BadList(*wrong))
        cache.lists.append((index, first, length))
    return cache
