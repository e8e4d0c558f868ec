"""The interface of an allocator's reader. To add an allocator, add a file or folder with a finder,
and list it in directory.FINDERS."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Optional, Protocol

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import Heuristic, Size, State
from findleaks.formatting import again
from findleaks.target.base import Range, Target
from findleaks.target.ranges import subtract
from findleaks.value_classes import NamedTuple, dataclass, field

if TYPE_CHECKING:
    from findleaks.allocators.retention import FreeMemory, Retention
    from findleaks.allocators.sites import Recording
    from findleaks.target.runs import Runs

MAX_PROBLEMS = 20  # problems of a kind that are reported one by one

PAGE = 4096  # bytes; a stretch this long without a block is spare, a shorter one is waste


class Problem(NamedTuple):
    """A problem: its address, and one line for the user that says what it means for the result.

    `corrupt`: damage in the target, which `verify` explains, not a limit of what could be read or
    reconciled. `damaged`: the wrong bytes, where known better than by `address`; an empty range
    names a block or record whose bytes need not be wrong, such as a block freed twice. `expected`:
    the word that should be there."""

    address: int
    what: str
    corrupt: bool = True
    damaged: Optional[Range] = None
    expected: Optional[int] = None


class Cache(NamedTuple):
    """A size class. Counts are of blocks; `*_bytes` and `memory` are bytes.

    in_use + cached + free blocks were cut for the class. `arena` is "" where arenas do not divide
    it. `size`: usable bytes of a block, 0 where sizes differ (large blocks, a band of glibc's
    sizes). `memory`: what its slabs, spans or chunks take, headers and tails included. `allocs` and
    `fails` are None if not counted. `own`: the allocator's own counters by name ("curregs")."""

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
    """An arena, heap or central store: bytes in blocks, and mapped bytes, metadata included.
    `spare`: mapped bytes that are not cut into blocks (glibc's top, dirty extents, free spans)."""

    name: str
    in_use: int
    cached: int
    free: int
    mapped: int
    own: Mapping[str, int] = {}
    spare: int = 0


class ThreadCache(NamedTuple):
    """The blocks of one size class in one thread's cache, which is at `address`.

    `thread`: its tid, 0 if unknown; `owner`: the cache's owner if that is no thread ("CPU 5")."""

    thread: int
    address: int
    name: str
    size: int
    blocks: int
    bytes: int
    owner: str = ""


class Spare(NamedTuple):
    """A range [start, end) of a heap that the allocator keeps without having cut it into blocks.

    `sort`: the allocator's word for it ("top", "dirty", "free pages"); `arena`: the heap's."""

    start: int
    end: int
    sort: str
    arena: str


@dataclass(eq=False, repr=False)
class Heap:
    """A contiguous range whose blocks one `walk` appends in ascending order.

    `arena` labels it ("main", "arena 3", "mmapped"); `metadata` lists parts that are the
    allocator's own. [start, end) is never root memory, except `foreign`: parts that belong to
    others or that corruption hides, known after `walk`.

    `walk` may be called once. It reports corruption in `problems` and returns normally, so that the
    next heap is still walked. Many adjacent slabs are one heap: each costs microseconds."""

    start: int
    end: int
    arena: str
    walk: Callable[[Blocks], None]
    metadata: list[Range] = field(default_factory=list)
    foreign: list[Range] = field(default_factory=list)
    inner: list[Range] = field(default_factory=list)  # other allocators' heaps; known after `walk`

    def parts(self) -> list[Range]:
        """[start, end) without `inner`: the parts that hold its own blocks."""
        return subtract([Range(self.start, self.end)], self.inner)

    def owned(self) -> list[Range]:
        """[start, end) without `foreign`: the parts that are never root memory."""
        return subtract([Range(self.start, self.end)], self.foreign)


class Allocator:
    """One instance of an allocator in a process; subclasses set attributes and override methods.

    Called once each, in this order: `heaps`, each heap's `walk`, `sealed`. The methods below
    `sealed` are called when all blocks are known, in any order and any number of times."""

    name: str  # "glibc"
    version: str  # "2.36", or "2.26-2.42" when only the layout is known
    where: str  # "libc.so.6"
    ordinal = 1  # among those of its name, in the order they were found
    granule: int
    problems: list[Problem]
    checked: Mapping[str, int] = {}
    """Checks of the last `verify`, counted: "chunk headers", "free-list links", "bitmaps" …"""
    nested = False
    """Whether its heaps may be in blocks of another allocator, which are METADATA then."""
    usual_file = ""
    """How the name of the file that nearly always contains this allocator begins ("libc.so"); ""
    for any. The report need not name that file."""
    remainder_words = 0
    """Words by which blocks of one request may differ: so short a remainder is not split off."""
    free_footer_words = 0
    """Words at a block's end that are the program's while in use, the allocator's while free."""

    release_call = ""
    """The call that returns free pages to the kernel ("malloc_trim(0)"); "" if there is none."""
    releases_free_pages = False  # `release_call` was seen to return all free pages, no others
    release_settings: Sequence[str] = ()  # settings to keep fewer free pages, a phrase each
    retention_note = ""  # a phrase on what it keeps or returns whatever the settings
    cache_setting = ""  # a phrase on how to make its thread caches smaller; "": impossible
    site_settings: Sequence[str] = ()
    """Settings with which it records allocation stacks, a phrase each; () if it has none."""

    def renamed(self, words: str) -> str:
        """These words, of the settings and calls above, with the names that this build has."""
        return words

    @property
    def title(self) -> str:
        """ "glibc 2.36"; of a further instance, as dlmopen(3) makes, "glibc 2.36 (second)"."""
        return again(f"{self.name} {self.version}".strip(), self.ordinal)

    def heaps(self) -> Sequence[Heap]:
        """Its heaps, disjoint, in any order; the same objects each time."""
        raise NotImplementedError

    def sealed(self, blocks: Blocks) -> None:
        """Mark cached, free and metadata blocks of the sealed index, reconcile totals."""

    def heuristics(self, heaps: Sequence[Range]) -> tuple[Heuristic, Sequence[int]]:
        """Heuristics for interior pointers that its programs always need, which then count as start
        references; and addresses of types for Heuristic.OBJECTS. `heaps`: memory of all blocks."""
        return Heuristic.NONE, ()

    def metadata(self) -> Sequence[Range]:
        """Its memory outside its heaps, which is never roots: variables (main_arena), thread caches
        with stale entries, radix trees, slab descriptors …"""
        return []

    def reserved(self) -> Sequence[Range]:
        """Addresses outside its heaps reserved for growth and not opened. They hold nothing, even
        if a core has zeros there. The caller leaves out what the process can write to."""
        return []

    def summary(self) -> dict[str, object]:
        """For `allocators[]` in the JSON: arenas, and how the totals reconcile."""
        return {}

    def locate(self, address: int) -> str:
        """The part of the allocator at an address ("heap_info", "top of arena 3"), or ""."""
        return ""

    def caches(self, blocks: Blocks) -> list[Cache]:
        """Every size class of every arena that has blocks; with large blocks, they cover all."""
        return tally(self.name, self.heaps(), blocks)

    def arenas(self, blocks: Blocks) -> list[Arena]:
        """Arenas, in their own order."""
        return []

    def spare(self, blocks: Blocks) -> Sequence[Spare]:
        """Ranges of its heaps kept without being cut into blocks; disjoint, in any order. Default:
        each stretch of a page or more without a block that is neither metadata nor foreign."""
        found = []
        for heap in self.heaps():
            for start, end in subtract(heap.parts(), [*heap.metadata, *heap.foreign]):
                found += [Spare(low, high, "free pages", heap.arena) for low, high in blocks.gaps(start, end, PAGE)]
        return found

    def released(self, blocks: Blocks) -> Optional[Runs]:
        """The whole pages, resident or not, that `release_call` would return; exact but for what
        other threads do meanwhile. None where unpredictable. Raises Interrupted."""
        return None

    def retention(self, free: FreeMemory) -> Retention:
        """Why it keeps this free memory, and what to try against it."""
        from findleaks.allocators.retention import explain_retention  # only `verdict` needs it

        return explain_retention(free, self)

    def class_of(self, address: int) -> str:
        """The name in `caches` of the class of a block at this address, where its size does not
        show it; "" where it does."""
        return ""

    @property
    def recorded(self) -> bool:
        """Whether there may be `recordings`; known without reading them."""
        return False

    def recordings(self, blocks: Blocks) -> Sequence[Recording]:
        """Allocation stacks that it, or a profiler that is part of it, recorded. Damaged records
        are left out, and are problems of the recording. Raises Interrupted."""
        return ()

    def thread_caches(self, blocks: Blocks) -> list[ThreadCache]:
        """The blocks that each thread's cache holds, by size class; empty classes are left out."""
        return []

    def counted(self) -> Mapping[str, int]:
        """The allocator's own totals (bytes or counts) by the names it prints; may be empty."""
        return {}

    structure = 4096
    """Bytes, at most, of a descriptor or bin. A thread that changes one has a pointer into it."""

    def blocks_in_flight(self, words: Sequence[int], blocks: Blocks) -> Iterable[int]:
        """Further addresses that a thread inside this allocator refers to by these words in any
        form: a block by its header, its descriptor or its list. See allocators/in_flight.py."""
        return ()

    def changing(self, problem: Problem, words: Sequence[int], blocks: Blocks) -> bool:
        """Whether a thread inside this allocator, with these ascending words, was just changing
        what the problem is about. Default: a word is an address in a block or structure there."""
        near = Range(problem.address - self.structure, problem.address + self.structure)
        return any_within(words, [*around(problem, blocks, 0), *([] if blocks.find(problem.address) >= 0 else [near])])

    def verify(self, blocks: Blocks) -> Iterator[Optional[Problem]]:
        """Checks that a walk does not need (links in both directions, bitmaps against counts,
        canaries). Yields each problem, and None every 100 ms or so for progress and Ctrl-C."""
        return iter(())


def starts(blocks: Blocks, start: int, end: int) -> Iterator[int]:
    """Addresses of the blocks that start in [start, end)."""
    return (blocks.address(index) for index in range(blocks.at_or_after(start), blocks.at_or_after(end)))


def first_problems(problems: list[Problem], found: Iterable[Problem], more: str, address: Optional[int] = None) -> None:
    """Add the first MAX_PROBLEMS of `found`, and how many `more` there are, at `address` (default:
    that of the first of these)."""
    left = iter(found)
    problems += islice(left, MAX_PROBLEMS)
    following = next(left, None)
    if following is not None:
        others = 1 + sum(1 for _ in left)
        problems.append(Problem(following.address if address is None else address, f"and {others:,} more {more}"))


def around(problem: Problem, blocks: Blocks, header: int) -> Iterator[Range]:
    """A problem's bytes, and the blocks at and right before it with their `header` bytes."""
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
    """Finds every instance of one allocator by structure; symbols are only a shortcut. `taken`:
    sorted ranges certain to belong to allocators found before, which need no search."""

    def __call__(self, target: Target, engine: Engine, taken: Sequence[Range]) -> Sequence[Allocator]: ...


def tally(name: str, heaps: Iterable[Heap], blocks: Blocks) -> list[Cache]:
    """Size classes by arena and size, from the index of blocks. `memory`: usable bytes only."""
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
