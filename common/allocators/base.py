"""The interface of an allocator's reader.

To add an allocator, add a file or folder with a finder and list it in directory.FINDERS.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Optional, Protocol

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import Heuristic, Size, State
from findleaks.target.base import Range, Target
from findleaks.target.ranges import subtract

if TYPE_CHECKING:
    from findleaks.allocators.retention import FreeMemory, Retention
    from findleaks.target.runs import Runs

MAX_PROBLEMS = 20
"""Problems of a kind that are reported one by one."""

PAGE = 4096
"""Bytes. Stretches of this size or more without a block are spare; shorter ones are waste."""


class Problem(NamedTuple):
    """A problem: its address, and one line for the user that says what it means for the result.

    `corrupt` is set for damage in the target, which `verify` explains, and clear for limits of what
    could be read or reconciled. `damaged` is the range of the wrong bytes, where it is known better
    than by `address`; `expected` is the word that should be there. An empty `damaged` names a block
    or record whose bytes need not be wrong: a block freed twice.
    """

    address: int
    what: str
    corrupt: bool = True
    damaged: Optional[Range] = None
    expected: Optional[int] = None


class Cache(NamedTuple):
    """A size class. Counts are blocks; `*_bytes` and `memory` are bytes.

    in_use + cached + free is the number of blocks that the allocator has cut for the class. `arena`
    is "" where the class is not divided among arenas. `size` is the usable bytes of a block, or 0
    where sizes differ (large blocks, a band of glibc's sizes). `memory` is what the class's slabs,
    spans or chunks take, headers and tails included. `allocs` and `fails` are None where the
    allocator does not count them. `own` holds the allocator's counters under its own names
    (jemalloc's "curregs").
    """

    arena: str
    name: str
    size: int
    in_use: int
    cached: int
    free: int
    in_use_bytes: int
    cached_bytes: int
    free_bytes: int
    memory: int
    allocs: Optional[int] = None
    fails: Optional[int] = None
    own: Mapping[str, int] = {}

    @property
    def total(self) -> int:
        return self.in_use + self.cached + self.free


class Arena(NamedTuple):
    """An arena, heap or central store.

    Bytes in blocks in use, cached and free, and bytes mapped in all (metadata included). `spare`
    counts those of the mapped bytes that are kept without being cut into blocks: glibc's top, dirty
    extents, spans on a free list.
    """

    name: str
    in_use: int
    cached: int
    free: int
    mapped: int
    own: Mapping[str, int] = {}
    spare: int = 0


class ThreadCache(NamedTuple):
    """The blocks of one size class that one thread's cache holds.

    `thread` is its tid, 0 if unknown; `address` is that of the cache. `owner` names the cache's
    owner where that is no thread ("CPU 5").
    """

    thread: int
    address: int
    name: str
    size: int
    blocks: int
    bytes: int
    owner: str = ""


class Spare(NamedTuple):
    """A range [start, end) of a heap that the allocator keeps without having cut it into blocks.

    `sort` is the allocator's word for it: "top", "dirty", "retained", "free pages" …; `arena` is
    the heap's.
    """

    start: int
    end: int
    sort: str
    arena: str


@dataclass
class Heap:
    """A contiguous range whose blocks one `walk` appends in ascending order.

    `arena` labels it ("main", "arena 3", "mmapped"). `metadata` lists the parts that are the
    allocator's own (heap_info, arena headers). [start, end) is never root memory, except for
    `foreign`: parts that belong to others or that corruption hides, known once `walk` has run.

    `walk` may be called once. It appends to `blocks`, reports corruption by appending to
    `problems`, and then returns normally, so that the next heap is still walked. Many adjacent
    slabs form one heap: handling a heap costs microseconds, too much for each slab.
    """

    start: int
    end: int
    arena: str
    walk: Callable[[Blocks], None]
    metadata: list[Range] = field(default_factory=list)
    foreign: list[Range] = field(default_factory=list)
    # heaps of other allocators inside its blocks; known once it was walked
    inner: list[Range] = field(default_factory=list)

    def parts(self) -> list[Range]:
        """[start, end) without `inner`: the parts that hold its own blocks."""
        return subtract([Range(self.start, self.end)], self.inner)

    def owned(self) -> list[Range]:
        """[start, end) without `foreign`: the parts that are never root memory."""
        return subtract([Range(self.start, self.end)], self.foreign)


class Allocator:
    """One instance of an allocator in a process; subclasses set attributes and override methods.

    The directory calls `heaps`, then each heap's `walk`, then `sealed`, once each and in this
    order. The methods below `sealed` are called later, when all blocks are known, in any order and
    any number of times.
    """

    name: str  # "glibc"
    version: str  # "2.36", or "2.26-2.42" when only the layout is known
    where: str  # "libc.so.6"
    granule: int
    problems: list[Problem]
    checked: Mapping[str, int] = {}
    """What the last `verify` checked ("chunk headers", "free-list links", "bitmaps" …), counted as
    it goes."""
    nested = False
    """Whether its heaps may be in blocks of another allocator. Those blocks then are METADATA of
    the other."""
    usual_file = ""
    """How the name of the file that nearly always contains this allocator begins ("libc.so"); ""
    for any. The report need not name that file."""
    remainder_words = 0
    """Words by which two blocks allocated with the same size may differ: a remainder this short is
    not split off."""
    free_footer_words = 0
    """Words at the end of a block that belong to the program only while the block is in use, and to
    the allocator while it is free."""

    release_call = ""
    """The call by which a program makes the allocator return free pages to the kernel
    ("malloc_trim(0)"); "" where there is none."""
    releases_free_pages = False
    """Whether `release_call` was observed to return all free pages and no others."""
    release_settings: Sequence[str] = ()
    """Settings with which it keeps fewer free pages, a phrase each."""
    retention_note = ""
    """A phrase on what it keeps or returns by itself, whatever the settings; or ""."""
    cache_setting = ""
    """A phrase on how to make its thread caches smaller; "" where that is impossible."""

    def heaps(self) -> Sequence[Heap]:
        """Its heaps, disjoint, in any order; the same objects each time."""
        raise NotImplementedError

    def sealed(self, blocks: Blocks) -> None:
        """Called when all heaps are walked and `blocks` is sealed: mark cached, free and metadata
        blocks, reconcile totals."""

    def heuristics(self, heaps: Sequence[Range]) -> tuple[Heuristic, Sequence[int]]:
        """Heuristics for interior pointers that programs with this allocator always need, so that
        such pointers count as start references; and the addresses of the types for
        Heuristic.OBJECTS. `heaps`: the memory of all blocks of all allocators."""
        return Heuristic.NONE, ()

    def metadata(self) -> Sequence[Range]:
        """Ranges outside its heaps that belong to the allocator and must not be roots: main_arena
        and mp_ in libc's data, thread caches with stale entries, radix trees, slab descriptors, …
        """
        return []

    def reserved(self) -> Sequence[Range]:
        """Addresses outside its heaps that it has reserved for growth and not opened. They hold
        nothing, even in a core that has zeros there. The caller leaves out what the process can
        write to."""
        return []

    def summary(self) -> dict[str, object]:
        """For `allocators[]` in the JSON: arenas, and how the totals reconcile."""
        return {}

    def locate(self, address: int) -> str:
        """One phrase that says which part of the allocator an address is in ("top of arena 3",
        "heap_info"), or ""."""
        return ""

    def caches(self, blocks: Blocks) -> list[Cache]:
        """Every size class of every arena that has blocks, large blocks included. Together they
        cover all its blocks."""
        return tally(self.name, self.heaps(), blocks)

    def arenas(self, blocks: Blocks) -> list[Arena]:
        """Arenas, in their own order."""
        return []

    def spare(self, blocks: Blocks) -> Sequence[Spare]:
        """Ranges of its heaps that it keeps without having cut them into blocks; disjoint, in any
        order. By default: every stretch of a page or more that has no block and is neither metadata
        nor foreign."""
        found = []
        for heap in self.heaps():
            for start, end in subtract(heap.parts(), [*heap.metadata, *heap.foreign]):
                found += [Spare(low, high, "free pages", heap.arena) for low, high in blocks.gaps(start, end, PAGE)]
        return found

    def released(self, blocks: Blocks) -> Optional[Runs]:
        """The whole pages that `release_call` would return, resident or not; exact except for what
        other threads do meanwhile. None where that cannot be predicted. Raises Interrupted."""
        return None

    def retention(self, free: FreeMemory) -> Retention:
        """Why it keeps this free memory, and what to try against it."""
        from findleaks.allocators.retention import explain_retention  # only `verdict` needs it

        return explain_retention(free, self)

    def thread_caches(self, blocks: Blocks) -> list[ThreadCache]:
        """The blocks that each thread's cache holds, by size class; empty classes are left out."""
        return []

    def counted(self) -> Mapping[str, int]:
        """The allocator's own totals (bytes or counts) under the names that it prints them with; {}
        if it keeps none."""
        return {}

    structure = 4096
    """Bytes that one descriptor, bin or list head takes at most. A thread that changes one has a
    pointer into it."""

    def blocks_in_flight(self, words: Sequence[int], blocks: Blocks) -> Iterable[int]:
        """Further addresses that a thread inside this allocator refers to by these words, whatever
        their form: a block by its header or descriptor, or by the list it is on. See
        allocators/in_flight.py."""
        return ()

    def changing(self, problem: Problem, words: Sequence[int], blocks: Blocks) -> bool:
        """Whether a thread inside this allocator was just changing what the problem is about.
        `words`, ascending, are the thread's. By default: one of them is an address in a block or
        structure there."""
        near = Range(problem.address - self.structure, problem.address + self.structure)
        return any_within(words, [*around(problem, blocks, 0), *([] if blocks.find(problem.address) >= 0 else [near])])

    def verify(self, blocks: Blocks) -> Iterator[Optional[Problem]]:
        """Checks beyond those that fill `problems`: what a walk need not look at (links in both
        directions, bitmaps against counts, canaries). Yields each problem found, and None where
        none is found for a while (about 100 ms), so that the caller can show progress and check for
        Ctrl-C."""
        return iter(())


def starts(blocks: Blocks, start: int, end: int) -> Iterator[int]:
    """Addresses of the blocks that start in [start, end)."""
    return (blocks.address(index) for index in range(blocks.at_or_after(start), blocks.at_or_after(end)))


def first_problems(problems: list[Problem], found: Iterable[Problem], more: str, address: Optional[int] = None) -> None:
    """Add the first MAX_PROBLEMS of `found` to `problems`, and how many `more` there are.

    `address`: where the others are; by default where the first of them is.
    """
    left = iter(found)
    problems += islice(left, MAX_PROBLEMS)
    following = next(left, None)
    if following is not None:
        others = 1 + sum(1 for _ in left)
        problems.append(Problem(following.address if address is None else address, f"and {others:,} more {more}"))


def around(problem: Problem, blocks: Blocks, header: int) -> Iterator[Range]:
    """The bytes that a problem names, and the blocks at and right before them, each extended by
    `header` bytes before it."""
    place = problem.damaged or Range(problem.address, problem.address)
    yield Range(place.start, max(place.end, place.start + 1))
    yield Range(problem.address, problem.address + 1)
    for address in {place.start, place.start + header, problem.address, problem.address + header}:
        index = blocks.at_or_after(address + 1) - 1
        if index >= 0:
            start = blocks.address(index)
            end = start + blocks.size(index)
            if address <= end + header:
                yield Range(start - header, max(end, address + 1))


def any_within(words: Sequence[int], ranges: Iterable[Range]) -> bool:
    """Whether one of the words (ascending) lies in one of the ranges."""
    return any(words[at] < high for low, high in ranges for at in (bisect_left(words, low),) if at < len(words))


class Finder(Protocol):
    """Finds every instance of one allocator in a target by structure; symbols are only a shortcut.
    [] if there is none.

    `taken` are sorted ranges that are certain to belong to allocators found before; it need not
    search them.
    """

    def __call__(self, target: Target, engine: Engine, taken: Sequence[Range]) -> Sequence[Allocator]: ...


def tally(name: str, heaps: Iterable[Heap], blocks: Blocks) -> list[Cache]:
    """Size classes computed from the index of blocks: one for each size and arena. `memory` counts
    usable bytes only."""
    found: dict[tuple[str, int], list[int]] = {}
    for heap in heaps:
        for start, end in heap.parts():
            for size, state, count in blocks.by_size(start, end):
                if state != State.METADATA:
                    found.setdefault((heap.arena, size), [0, 0, 0])[state] += count
    return [
        Cache(arena, str(size), size, used, cached, free, used * size, cached * size, free * size, (used + cached + free) * size)
        for (arena, size), (used, cached, free) in sorted(found.items())
    ]


__all__ = ["Allocator", "Arena", "Cache", "Finder", "Heap", "Iterator", "Problem", "Size", "Spare", "State", "ThreadCache", "tally"]
