"""What an allocator's reader offers; adding an allocator is adding one file (or folder) whose finder the directory lists."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Optional, Protocol

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import Heuristic, Size, State
from findleaks.target.base import Range, Target
from findleaks.target.ranges import subtract

if TYPE_CHECKING:
    from findleaks.allocators.retention import FreeMemory, Retention
    from findleaks.target.runs import Runs

PAGE = 4096
"""Bytes without a block from which on memory counts as spare, and not as what rounding leaves over."""


class Problem(NamedTuple):
    """What is wrong: where, and one line for the user with what it means for the result. `corrupt` tells damage in the target, which
    `verify` explains, from limits of what could be read or reconciled.

    `damaged` is where the wrong bytes are, if that is known better than `address`, and `expected` the word that should be there. An
    empty `damaged` names the block or record that is meant, none of whose bytes need be wrong: a block freed twice.
    """

    address: int
    what: str
    corrupt: bool = True
    damaged: Optional[Range] = None
    expected: Optional[int] = None


class Cache(NamedTuple):
    """A size class: counts are blocks, `*_bytes` and `memory` bytes. in_use + cached + free is the total of what it has cut up.

    `arena` is "" where the class is not divided among arenas; `size` the usable bytes of a block, 0 where sizes differ (large
    blocks, a band of glibc's sizes); `memory` what its slabs, spans or chunks take, headers and tails included. `allocs` and `fails`
    are None where the allocator does not count them; `own` holds its own counters under its own names (jemalloc's "curregs").
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
    """An arena, heap or central store: bytes in blocks in use, cached and free, and mapped in all (metadata included). `spare` of the
    mapped bytes are kept, but cut up into no blocks: glibc's top, dirty extents, spans on a list of free ones."""

    name: str
    in_use: int
    cached: int
    free: int
    mapped: int
    own: Mapping[str, int] = {}
    spare: int = 0


class ThreadCache(NamedTuple):
    """What one thread keeps of one size class. `thread` is its tid, 0 where not known; `address` that of the cache itself. `owner` names
    what keeps it where that is no thread ("CPU 5")."""

    thread: int
    address: int
    name: str
    size: int
    blocks: int
    bytes: int
    owner: str = ""


class Spare(NamedTuple):
    """[start, end) of a heap is kept by the allocator without being cut up into blocks. `sort` is its own word for it: "top", "dirty",
    "retained", "free pages" …; `arena` the heap's."""

    start: int
    end: int
    sort: str
    arena: str


@dataclass
class Heap:
    """A contiguous range whose blocks one `walk` appends in ascending order.

    `arena` labels it ("main", "arena 3", "mmapped"). `metadata` are the parts that are the allocator's own (heap_info, arena
    headers); the whole of [start, end) is never root memory, but for `foreign`: parts that are somebody else's, or that corruption
    hides, known once `walk` has run. `walk` may be called once; it appends to `blocks`, reports corruption
    by appending to `problems` and then returns normally, so that the next heap is still walked. Many slabs side by side
    are one heap: a heap costs microseconds, a slab must not.
    """

    start: int
    end: int
    arena: str
    walk: Callable[[Blocks], None]
    metadata: list[Range] = field(default_factory=list)
    foreign: list[Range] = field(default_factory=list)
    inner: list[Range] = field(default_factory=list)  # heaps of other allocators inside its blocks, once it was walked

    def parts(self) -> list[Range]:
        """[start, end) less `inner`: where its own blocks are."""
        return subtract([Range(self.start, self.end)], self.inner)

    def owned(self) -> list[Range]:
        """[start, end) less `foreign`: what is never root memory."""
        return subtract([Range(self.start, self.end)], self.foreign)


class Allocator:
    """One instance of an allocator in a process. Subclasses set the attributes and override what they can say.

    The directory calls `heaps`, each heap's `walk`, then `sealed`, once and in this order; what follows in the class is asked later,
    of an allocator whose blocks are known, in any order and any number of times.
    """

    name: str  # "glibc"
    version: str  # "2.36", or "2.26-2.42" when only the layout is known
    where: str  # "libc.so.6"
    granule: int
    problems: list[Problem]
    checked: Mapping[str, int] = {}
    """What the last `verify` looked at ("chunk headers", "free-list links", "bitmaps" …), counted as it goes."""
    nested = False
    """True where its heaps may be in blocks of another allocator: those blocks then are that one's METADATA."""
    usual_file = ""
    """How the name of the file begins that it is nearly always in, and that need not be named then ("libc.so"); "" for any."""
    remainder_words = 0
    """Words by which a block may be longer than another that was asked for with the same size, since no rest so short is cut off."""
    free_footer_words = 0
    """Words at the end of a block that its size has only while it is in use: in a free one they are the allocator's."""

    release_call = ""
    """The call by which a program makes it give free pages back to the kernel ("malloc_trim(0)"); "" where it has none."""
    releases_free_pages = False
    """Whether `release_call` was seen to give back all free pages, and no more."""
    release_settings: Sequence[str] = ()
    """Settings under which it keeps fewer free pages, a phrase each."""
    retention_note = ""
    """A phrase on what it keeps or gives back by itself, whatever the settings; or ""."""
    cache_setting = ""
    """A phrase on how to make its thread caches smaller; "" where there is no way."""

    def heaps(self) -> Sequence[Heap]:
        """Its heaps, disjoint, in any order; the same objects each time."""
        raise NotImplementedError

    def sealed(self, blocks: Blocks) -> None:
        """All heaps are walked and `blocks` is sealed: mark cached, free and metadata blocks, reconcile totals."""

    def heuristics(self, heaps: Sequence[Range]) -> tuple[Heuristic, Sequence[int]]:
        """Interior pointers that its program uses as a matter of course, so that they count as start references, and the addresses of
        the types that Heuristic.OBJECTS is about. `heaps`: all memory of blocks, of whatever allocator."""
        return Heuristic.NONE, ()

    def metadata(self) -> Sequence[Range]:
        """Ranges outside its heaps that are the allocator's own and must not be roots (main_arena and mp_ in libc's data, thread caches
        with stale entries, radix trees, descriptors of slabs, …)."""
        return []

    def reserved(self) -> Sequence[Range]:
        """Addresses outside its heaps that it has reserved to grow into and not opened: they hold nothing, in a core that has zeros there,
        too. What of these the process can write to is left out by whoever asks."""
        return []

    def summary(self) -> dict[str, object]:
        """For `allocators[]` in the JSON: arenas, and how the totals reconcile."""
        return {}

    def locate(self, address: int) -> str:
        """One phrase on where in the allocator an address lies ("top of arena 3", "heap_info"), or ""."""
        return ""

    def caches(self, blocks: Blocks) -> list[Cache]:
        """Every size class of every arena that has cut up memory, large blocks included: together they are all its blocks."""
        return tally(self.name, self.heaps(), blocks)

    def arenas(self, blocks: Blocks) -> list[Arena]:
        """Arenas, in their own order."""
        return []

    def spare(self, blocks: Blocks) -> Sequence[Spare]:
        """What of its heaps it keeps without having cut it up into blocks; disjoint, in any order. Here: every stretch of a page or more
        without a block in it, which is neither metadata nor foreign."""
        found = []
        for heap in self.heaps():
            for start, end in subtract(heap.parts(), [*heap.metadata, *heap.foreign]):
                found += [Spare(low, high, "free pages", heap.arena) for low, high in blocks.gaps(start, end, PAGE)]
        return found

    def released(self, blocks: Blocks) -> Optional[Runs]:
        """The whole pages that `release_call` would give back, resident or not, exact but for what other threads do meanwhile; None where
        that cannot be foreseen. Raises Interrupted."""
        return None

    def retention(self, free: FreeMemory) -> Retention:
        """Why it keeps this free memory, and what to try."""
        from findleaks.allocators.retention import explain_retention  # only `verdict` needs it

        return explain_retention(free, self)

    def thread_caches(self, blocks: Blocks) -> list[ThreadCache]:
        """What each thread keeps, classes without blocks left out."""
        return []

    def counted(self) -> Mapping[str, int]:
        """The allocator's own totals, under its own names, as it would print them itself (bytes or counts); {} where it keeps none."""
        return {}

    structure = 4096
    """Bytes that its descriptors, bins and lists take at most, one of each: who changes one has a pointer into it."""

    def in_hand(self, words: Sequence[int], blocks: Blocks) -> Iterable[int]:
        """Further addresses that a thread inside this allocator has in its hands with these words, in whatever form: of a block by its
        header or descriptor, of the list it is on. See allocators/in_flight.py."""
        return ()

    def changing(self, problem: Problem, words: Sequence[int], blocks: Blocks) -> bool:
        """Whether a thread inside this allocator that has these words, ascending, was just changing what the problem is about. Here: one
        of them is an address of a block or structure there."""
        near = Range(problem.address - self.structure, problem.address + self.structure)
        return any_within(words, [*around(problem, blocks, 0), *([] if blocks.find(problem.address) >= 0 else [near])])

    def verify(self, blocks: Blocks) -> Iterator[Optional[Problem]]:
        """Everything that is wrong beyond `problems`: what walking need not look at (both directions of links, bitmaps against counts,
        canaries). Yields as it goes, None where nothing is wrong for a while (say, every 100 ms): the caller shows progress and looks at
        Ctrl-C then."""
        return iter(())


def starts(blocks: Blocks, start: int, end: int) -> Iterator[int]:
    """Addresses of the blocks that start in [start, end)."""
    return (blocks.address(index) for index in range(blocks.at_or_after(start), blocks.at_or_after(end)))


def around(problem: Problem, blocks: Blocks, header: int) -> Iterator[Range]:
    """The bytes a problem names, and the blocks there and right before, each with a header of `header` bytes before it."""
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
    """Whether one of the words, ascending, lies in one of the ranges."""
    return any(words[at] < high for low, high in ranges for at in (bisect_left(words, low),) if at < len(words))


class Finder(Protocol):
    """Finds every instance of one allocator in a target by structure (symbols are a shortcut only); [] if it is not there.

    `taken` are sorted ranges that allocators found before it own for sure: it need not look there for memory of its own.
    """

    def __call__(self, target: Target, engine: Engine, taken: Sequence[Range]) -> Sequence[Allocator]: ...


def tally(name: str, heaps: Iterable[Heap], blocks: Blocks) -> list[Cache]:
    """Size classes as the index of blocks shows them: one a size and arena. `memory` counts usable bytes alone."""
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
