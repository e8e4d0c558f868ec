"""Read scudo's thread caches and its quarantine.

Each thread has a cache in its thread-local variables. The allocator itself has another cache, for
threads that end. A cache is found by its counters, which all caches link (LocalStats). The
quarantine is a list of batches, which are chunks that the allocator allocates from itself.
layout.py has the sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.scudo.layout import (
    BATCH_BYTES,
    BATCH_WORDS,
    CLASSES,
    HEADER,
    PER_CLASS,
    PER_CLASS_POINTERS,
    PER_CLASS_SIZE,
    PRIMARY,
    REGION,
    STATS,
    STATS_ALLOCATOR,
    STATS_QUARANTINE,
    class_size,
)
from findleaks.target.base import Range

MOST_CACHES = 1 << 18
MOST_BATCHES = 1 << 22


class ThreadBlocks(NamedTuple):
    """The cached blocks of one class in the thread cache at `cache`: the addresses of their
    chunks."""

    cache: int
    number: int
    chunks: Sequence[int]


class Caches(NamedTuple):
    """All thread caches: their memory, and the blocks in them."""

    memory: Sequence[Range]
    blocks: Sequence[ThreadBlocks]


class Batches(NamedTuple):
    """The chunks that are batches of the quarantine. `shared` is the number of batches that do not
    belong to a thread, and `quarantined` the number of chunks in these."""

    chunks: Sequence[int]
    shared: int
    quarantined: int


def read_caches(memory: Memory, allocator: int, starts: Sequence[int], problems: list[Problem]) -> Caches:
    """Read the thread caches that the allocator at `allocator` links. `starts` are the starts of
    the classes' regions."""
    found = Caches([], [])
    spaces: list[Range] = []
    blocks: list[ThreadBlocks] = []
    for stats in _list_stats(memory, allocator, problems):
        if memory.word(stats + STATS_ALLOCATOR) != allocator + PRIMARY:
            continue  # the counters of large blocks
        size = next((size for size in PER_CLASS if _fits(memory, stats, size)), 0)
        if not size:
            if any(_class_sizes(memory, stats, size) for size in PER_CLASS):
                problems.append(Problem(stats, f"scudo's thread cache before {stats:#x} is damaged: its blocks count as free", False))
            continue
        cache = stats - CLASSES * size
        spaces.append(Range(cache, stats + STATS_QUARANTINE + 4 * memory.size))
        blocks += _read_cache(memory, cache, size, starts, problems)
    return found._replace(memory=spaces, blocks=blocks)


def _list_stats(memory: Memory, allocator: int, problems: list[Problem]) -> Iterator[int]:
    """Yield the addresses of the linked counters."""
    count, at, _ = memory.words(allocator + STATS, 3) or (0, 0, 0)
    seen, before = 0, 0
    while at and seen < min(count, MOST_CACHES):
        following, previous = memory.words(at, 2) or (0, -1)
        if previous != before:
            break
        yield at
        before, at, seen = at, following, seen + 1
    if at or seen != count:
        what = f"scudo's list of thread caches at {allocator + STATS:#x} is damaged: blocks in some of them count as free"
        problems.append(Problem(allocator + STATS, what))


def _class_sizes(memory: Memory, stats: int, size: int) -> int:
    """Count the classes of the cache before `stats` that have the size of their class, if records
    of classes have `size` bytes."""
    cache = stats - CLASSES * size
    return sum(memory.word(cache + number * size + PER_CLASS_SIZE) == class_size(number) for number in range(1, CLASSES))


def _fits(memory: Memory, stats: int, size: int) -> bool:
    return _class_sizes(memory, stats, size) == CLASSES - 1


def _read_cache(memory: Memory, cache: int, size: int, starts: Sequence[int], problems: list[Problem]) -> Iterator[ThreadBlocks]:
    """Yield the blocks of each class in a cache whose records have `size` bytes."""
    most = (size - PER_CLASS_POINTERS) // memory.size
    for number in range(1, CLASSES):
        at = cache + number * size
        data = memory.read(at, size)
        if not data:
            continue
        # With records of 256 bytes, the count has two bytes, and its maximum follows.
        width = 2 if size == PER_CLASS[0] else 4
        count, limit = (int.from_bytes(data[place : place + width], memory.arch.byteorder) for place in (0, width))
        if count > min(most, limit):
            what = f"scudo's thread cache at {cache:#x} counts {count:,} cached {class_size(number)}-byte blocks: they count as free"
            problems.append(Problem(at, what, damaged=Range(at, at + width)))
            continue
        compact = memoryview(data)[PER_CLASS_POINTERS : PER_CLASS_POINTERS + memory.size * count].cast("Q")
        if count:
            yield ThreadBlocks(cache, number, [one + HEADER + (starts[number] if one < REGION else 0) for one in compact])


def read_batches(memory: Memory, start: int, size: int, caches: Caches, problems: list[Problem]) -> Batches:
    """Read the quarantine: the allocator's, whose list is in the `size` bytes from `start` on, and
    those of threads."""
    words = memory.words(start, size // memory.size) or ()
    shared: list[int] = []
    quarantined = 0
    for at in range(len(words) - 4):
        count, first, last, total = words[at : at + 4]
        aligned = first and last and first % HEADER == last % HEADER == 0
        if 0 < count <= MOST_BATCHES and aligned and total >= count * BATCH_BYTES and memory.word(last) == 0:
            shared, quarantined = _follow(memory, start + at * memory.size, problems)
            break
    chunks = list(shared)
    for space in caches.memory:
        chunks += _follow(memory, space.end - 4 * memory.size, problems)[0]
    return Batches(chunks, len(shared), quarantined)


def _follow(memory: Memory, place: int, problems: list[Problem]) -> tuple[list[int], int]:
    """Return the batches of the list at `place`, and the number of chunks in them."""
    count, at, last, _ = memory.words(place, 4) or (0, 0, 0, 0)
    chunks: list[int] = []
    quarantined = 0
    while at and len(chunks) < min(count, MOST_BATCHES):
        words = memory.words(at, BATCH_WORDS)
        if words is None:
            break
        chunks.append(at)
        quarantined += words[2] & 0xFFFFFFFF
        at = words[0]
    if len(chunks) != count or (chunks and chunks[-1] != last):
        what = f"scudo's quarantine list at {place:#x} is damaged: the rest of its batches count as blocks in use"
        problems.append(Problem(place, what))
    return chunks, quarantined
