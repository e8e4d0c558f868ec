"""The interface between findleaks and the reader of one allocator.

To add an allocator, write a file or folder with a finder and list it in directory.FINDERS."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Optional, Protocol

from findleaks.allocators.heaps import Heap
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import Heuristic, Size, State
from findleaks.formatting import again
from findleaks.target.base import Piece, Range, Target
from findleaks.target.ranges import subtract
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.allocators.retention import FreeMemory, Retention
    from findleaks.allocators.sites import Recording
    from findleaks.target.runs import Runs

MAX_PROBLEMS = 20  # further problems of the same kind are only counted

PAGE = 4096  # bytes; a longer gap without a block is spare memory, a shorter gap is waste


class Problem(NamedTuple):
    """A problem that a reader found, at `address`. `what` is one line for the user: the problem,
    and its consequence for the result.

    `corrupt` is true if the target's memory is damaged (`verify` explains the damage). It is false
    if something could not be read, or if totals do not agree. `damaged` is the range of wrong
    bytes, if it is known more precisely than `address`. An empty `damaged` range names a block or
    record whose own bytes need not be wrong, for example a block that was freed twice. `expected`
    is the correct value of the damaged word."""

    address: int
    what: str
    corrupt: bool = True
    damaged: Optional[Range] = None
    expected: Optional[int] = None


class Cache(NamedTuple):
    """The blocks of one size class. Counts are in blocks; `*_bytes`, `size` and `memory` in bytes.

    The class consists of in_use + cached + free blocks. `arena` is "" if the class is shared by all
    arenas. `size` is the usable size of a block, or 0 if sizes differ (large blocks, or a range of
    glibc's sizes). `memory` counts the slabs, spans or chunks of the class, with headers and tails.
    `allocs` and `fails` are None if the allocator does not count them. `own` has the allocator's
    own counters by name ("curregs")."""

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
    """An arena, heap or central store. All fields but `name` and `own` are in bytes.

    `mapped` includes metadata. `spare` counts mapped bytes that are not divided into blocks
    (glibc's top, dirty extents, free spans). `own` has the allocator's own counters by name."""

    name: str
    in_use: int
    cached: int
    free: int
    mapped: int
    own: Mapping[str, int] = {}
    spare: int = 0


class ThreadCache(NamedTuple):
    """The blocks of one size class in the thread cache at `address`.

    `thread` is the thread's tid, or 0 if it is unknown. `owner` names the owner of a cache that
    does not belong to a thread ("CPU 5"). `size` and `bytes` are in bytes."""

    thread: int
    address: int
    name: str
    size: int
    blocks: int
    bytes: int
    owner: str = ""


class Spare(NamedTuple):
    """A range [start, end) of a heap that belongs to the allocator, but is not divided into blocks.

    `sort` is the allocator's word for such memory ("top", "dirty", "free pages"). `arena` is the
    label of the heap."""

    start: int
    end: int
    sort: str
    arena: str


class Allocator:
    """One instance of an allocator in a process. Subclasses set attributes and override methods.

    The caller calls `heaps`, then `walk` of each heap, then `mark_blocks`, each once and in this
    order. The methods below `mark_blocks` are called when all blocks are known, in any order and
    any number of times."""

    name: str  # "glibc"
    version: str  # "2.36", or "2.26-2.42" if only the layout is known
    where: str  # "libc.so.6"
    ordinal = 1  # 1 for the first instance with this name, 2 for the second …
    granule: int
    problems: list[Problem]
    managed: bool = False
    """Whether the blocks are objects of an interpreter, not structures of C, C++ or Rust."""
    checked: Mapping[str, int] = {}
    """The number of checks of each sort that the last `verify` performed: "chunk headers",
    "bitmaps" …"""
    nested = False
    """True if the heaps of this allocator may be in blocks of another allocator, which become
    METADATA."""
    encodes_references = False
    """Whether words in its blocks may be encoded addresses. See `decode_references`."""
    usual_file = ""
    """The prefix of the file name that nearly always contains this allocator ("libc.so"), or "" if
    there is none. Reports may omit that file name."""
    remainder_words = 0
    """The number of words by which two blocks of one request size may differ, because the allocator
    does not split off a remainder this short."""
    free_footer_words = 0
    """The number of words at the end of a block that belong to the program while the block is in
    use, and to the allocator while it is free."""

    release_call = ""
    """The call that returns free pages to the kernel ("malloc_trim(0)"), or "" if there is none."""
    releases_free_pages = False  # measured: `release_call` returns all free pages
    release_settings: Sequence[str] = ()  # settings that reduce free pages; one phrase for each
    retention_note = ""  # a phrase about what the allocator keeps or returns with any setting
    cache_setting = ""  # a phrase about how to make thread caches smaller, or ""
    site_settings: Sequence[str] = ()
    """Settings that make the allocator record allocation stacks, a phrase for each; () if there are
    none."""

    def rename_settings(self, words: str) -> str:
        """Return `words`, a setting or call from above, with the names that this build of the
        allocator uses."""
        return words

    @property
    def title(self) -> str:
        """The name and version for messages: "glibc 2.36". If dlmopen(3) created a second instance,
        that is "glibc 2.36 (second)"."""
        return again(f"{self.name} {self.version}".strip(), self.ordinal)

    def heaps(self) -> Sequence[Heap]:
        """Return the heaps of this allocator: disjoint, in any order, and the same objects in each
        call."""
        raise NotImplementedError

    def mark_blocks(self, blocks: Blocks) -> None:
        """Mark the cached, free and metadata blocks of the sealed index, and compare totals."""

    def heuristics(self, heaps: Sequence[Range]) -> tuple[Heuristic, Sequence[int]]:
        """Return the heuristics for interior pointers that programs with this allocator always
        need, and the addresses of types for Heuristic.OBJECTS. References that these heuristics
        accept count as start references. `heaps` is the memory of all blocks."""
        return Heuristic.NONE, ()

    def bookkeeping(self) -> Sequence[Range]:
        """Return the allocator's words inside the program's variables and blocks, unsorted. They
        are not references in any graph."""
        return ()

    def possible_arrays(self, blocks: Blocks) -> Sequence[int]:
        """Return the indices of blocks in use that may be later elements of an array of blocks, of
        which the program refers only to the first one. Without a reference, they are possibly
        lost, not definitely."""
        return ()

    def decode_references(self, piece: Piece) -> Piece:
        """Return a piece of the memory of its heaps with each encoded address of an object
        decoded."""
        return piece

    def metadata(self) -> Sequence[Range]:
        """Return the allocator's memory outside its heaps, which is never root memory: variables
        (main_arena), thread caches with stale entries, radix trees, slab descriptors …"""
        return []

    def list_reserved(self) -> Sequence[Range]:
        """Return the addresses outside the heaps that the allocator has reserved for growth and not
        yet made accessible. They contain no data, even if a core has zeros there. The caller
        removes memory that the process can write to."""
        return []

    def summary(self) -> dict[str, object]:
        """Return the allocator's entry of `allocators[]` in the JSON. It has the arenas, and
        whether totals agree."""
        return {}

    def note(self) -> str:
        """Return a note for the user about memory of the allocator that is not divided into blocks,
        or ""."""
        return ""

    def locate(self, address: int) -> str:
        """Return the name of the allocator's part at `address` ("heap_info", "top of arena 3"), or
        ""."""
        return ""

    def caches(self, blocks: Blocks) -> list[Cache]:
        """Return the size classes of each arena that have blocks. Together with the classes of
        large blocks they cover all blocks."""
        return count_by_size(self.name, self.heaps(), blocks)

    def arenas(self, blocks: Blocks) -> list[Arena]:
        """Return the allocator's arenas, in the allocator's own order."""
        return []

    def spare(self, blocks: Blocks) -> Sequence[Spare]:
        """Return the ranges of the heaps that are not divided into blocks; disjoint, in any order.

        The default returns each gap of at least a page that has no block and is neither metadata
        nor foreign."""
        found = []
        for heap in self.heaps():
            for start, end in subtract(heap.parts(), [*heap.metadata, *heap.foreign]):
                found += [Spare(low, high, "free pages", heap.arena) for low, high in blocks.gaps(start, end, PAGE)]
        return found

    def find_releasable(self, blocks: Blocks) -> Optional[Runs]:
        """Return the whole pages, resident or not, that `release_call` would return to the kernel.
        The result is exact unless other threads allocate meanwhile. None if this cannot be
        predicted. Raises Interrupted."""
        return None

    def retention(self, free: FreeMemory) -> Retention:
        """Explain why the allocator keeps this free memory, and what the user can try."""
        from findleaks.allocators.retention import explain_retention  # only `verdict` needs it

        return explain_retention(free, self)

    def class_of(self, address: int) -> str:
        """Return the name of the size class, as in `caches`, of the block at `address`. Return ""
        if the block's size determines the class."""
        return ""

    @property
    def has_recordings(self) -> bool:
        """Whether the allocator may have recordings. The answer does not require reading them."""
        return False

    def recordings(self, blocks: Blocks) -> Sequence[Recording]:
        """Return the allocation stacks that the allocator or its heap profiler recorded. Damaged
        records are left out and listed as warnings of the recording. Raises Interrupted."""
        return ()

    def thread_caches(self, blocks: Blocks) -> list[ThreadCache]:
        """Return the blocks in each thread's cache, by size class. Empty classes are omitted."""
        return []

    def read_counters(self) -> Mapping[str, int]:
        """Return the allocator's own totals (bytes or counts), by the names under which it prints
        them. May be empty."""
        return {}

    structure = 4096
    """The maximum size in bytes of a descriptor or bin. A thread that is changing one has a pointer
    into it."""

    def blocks_in_flight(self, words: Sequence[int], blocks: Blocks) -> Iterable[int]:
        """Return the addresses of further blocks that a thread inside this allocator refers to.
        `words` are the thread's registers and stack. Allocators may refer to a block by its header,
        by a descriptor or by a list. See in_flight.py."""
        return ()

    def is_changing(self, problem: Problem, words: Sequence[int], blocks: Blocks) -> bool:
        """Return whether a thread inside this allocator is changing the memory that the problem is
        about. `words` are the thread's registers and stack, ascending.

        The default looks for a word that is an address in the damaged block or structure."""
        near = Range(problem.address - self.structure, problem.address + self.structure)
        return any_within(words, [*list_ranges_around(problem, blocks, 0), *([] if blocks.find(problem.address) >= 0 else [near])])

    def verify(self, blocks: Blocks) -> Iterator[Optional[Problem]]:
        """Yield the problems that a walk does not detect: lists linked in one direction only,
        bitmaps that contradict counts, overwritten canaries. Yields None about every 100 ms for
        progress and Ctrl-C."""
        return iter(())


def size_at(blocks: Blocks, address: int) -> int:
    """Return the size of the block in use that starts at an address; 0 if there is none."""
    found = blocks.lookup(address)
    return found[2] if found is not None and found[1] == address and found[3] == State.IN_USE else 0


def list_starts(blocks: Blocks, start: int, end: int) -> Iterator[int]:
    """Yield the addresses of the blocks that start in [start, end)."""
    return (blocks.address(index) for index in range(blocks.at_or_after(start), blocks.at_or_after(end)))


def add_first_problems(problems: list[Problem], found: Iterable[Problem], more: str, address: Optional[int] = None) -> None:
    """Append the first MAX_PROBLEMS of `found` to `problems`. If there are more, append one problem
    that counts the others ("and 30 more …"). Its address is `address`, or if that is None, the
    address of the first problem that it counts."""
    left = iter(found)
    problems += islice(left, MAX_PROBLEMS)
    following = next(left, None)
    if following is not None:
        others = 1 + sum(1 for _ in left)
        problems.append(Problem(following.address if address is None else address, f"and {others:,} more {more}", following.corrupt))


def list_ranges_around(problem: Problem, blocks: Blocks, header: int) -> Iterator[Range]:
    """Yield the ranges that a problem is about: its damaged bytes, the blocks that contain them,
    and the blocks right before these. `header` is the number of bytes of a block's header."""
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
    """Return whether one of the words (ascending) is in one of the ranges."""
    return any(words[at] < high for low, high in ranges for at in (bisect_left(words, low),) if at < len(words))


class Finder(Protocol):
    """A function that finds every instance of one allocator by the structure of its data. Symbols
    only make this faster.

    `taken` are sorted ranges that belong to allocators found before. They are not searched."""

    def __call__(self, target: Target, engine: Engine, taken: Sequence[Range]) -> Sequence[Allocator]: ...


def count_by_size(name: str, heaps: Iterable[Heap], blocks: Blocks) -> list[Cache]:
    """Count blocks by arena and usable size, using the index. In the result, `memory` counts only
    usable bytes."""
    ranges: dict[str, array[int]] = {}
    for heap in heaps:
        ranges.setdefault(heap.arena, array("Q")).extend(heap.part_bounds())
    found: dict[tuple[str, int], list[int]] = {}
    for arena, bounds in ranges.items():
        for size, state, count in blocks.by_size(bounds):
            if state != State.METADATA:
                found.setdefault((arena, size), [0, 0, 0])[state] += count
    return [
        Cache(arena, str(size), size, used, cached, free, used * size, cached * size, free * size, (used + cached + free) * size)
        for (arena, size), (used, cached, free) in sorted(found.items())
    ]


__all__ = ["Allocator", "Arena", "Cache", "Finder", "Heap", "Iterator", "Problem", "Size", "Spare", "State", "ThreadCache", "count_by_size"]
