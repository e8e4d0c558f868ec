"""gperftools' heap profiler (HEAPPROFILE=…, HeapProfilerStart): its table of stacks, its map from
blocks to them, and the memory of that map. Sources: heap-profile-table.h, heap-profile-stats.h,
addressmap-inl.h, base/low_level_alloc.cc, 2.7 to 2.18.1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from findleaks.allocators.base import Problem, first_problems
from findleaks.allocators.bulk import records
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.search import words_between
from findleaks.allocators.tcmallocs.page_map import WORD
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Range
from findleaks.target.ranges import merged

HASHES = 1 << 12  # AddressMap::kHashSize
LISTS = 1 << 13  # AddressMap::kClusterBlocks; a cluster is {next, id, lists}
ENTRY = 32  # AddressMap::Entry: next, key, bytes, bucket with two flags
LONGEST = 128  # entries of a list at most: it is of 128 bytes
BUCKETS = 179999  # HeapProfileTable::kHashTableSize
DEEPEST = 32  # frames of a stack, kMaxStackDepth
MOST = 1 << 22  # buckets or pieces of memory at most
HEADER = 32  # low_level_alloc.cc, AllocList::Header: size, magic, arena, padding
MAGIC = 0x4C833E95  # kMagicAllocated, exclusive-or with its own address
POLL = 1 << 10  # steps between two checks for Ctrl-C


class Layout(NamedTuple):
    """Offsets in HeapProfileTable, and in a bucket: depth, stack, next. Its counters come first:
    allocations and frees (`width` bytes each), then bytes of both (8 each)."""

    table: int
    map: int
    width: int
    depth: int


LAYOUTS = (
    Layout(80, 96, 8, 40),  # 2.17 to 2.18.1
    Layout(88, 104, 8, 40),  # 2.15 and 2.16: with profile_mmap_
    Layout(80, 96, 4, 32),  # 2.7 to 2.10, with profile_mmap_
)


class Bucket(NamedTuple):
    """What was allocated by one stack, and freed of that."""

    frames: tuple[int, ...]
    allocs: int
    frees: int
    alloc_size: int
    free_size: int


class Map(NamedTuple):
    """AddressMap, as it is in memory."""

    hashtable: int
    free: int
    alloc: int
    dealloc: int
    allocated: int


class HeapProfile(NamedTuple):
    """A profile that is being taken: where its table of buckets is. `memory`: of its map, whose
    keys are no references; `problems`: of that."""

    layout: Layout
    table: int
    map: Map
    memory: Sequence[Range]
    problems: Sequence[Problem]


@dataclass
class Contents:
    """What is in a profile. `buckets` by their address; `entries`: blocks with their requested size
    and bucket."""

    buckets: dict[int, Bucket] = field(default_factory=dict)
    entries: list[tuple[int, int, int]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def find(memory: Memory, engine: Engine, image: Image) -> Optional[HeapProfile]:
    """The profile that is being taken with this image's code, or None."""
    regions = memory.target.regions()
    low, high = (regions[0].start, regions[-1].end) if regions else (1, 1)
    tried: set[int] = set()  # tables of the page heap point to the same few things again and again
    for _, address in words_between(memory.target, engine, image.data, max(low, 1), high):
        if address in tried:
            continue
        tried.add(address)
        for layout in _layouts(memory, image, address):
            map_ = Map(*(memory.words(memory.word(address + layout.map) or 0, 5) or (0,) * 5))
            problems: list[Problem] = []
            pieces = _pieces_of_map(memory, map_, problems)
            return HeapProfile(layout, memory.word(address + layout.table) or 0, map_, pieces, problems)
    return None


def _layouts(memory: Memory, image: Image, address: int) -> Iterator[Layout]:
    """With which a HeapProfileTable may be there: it begins with two functions, which its map names
    too. Two layouts differ in the buckets only."""
    module = image.module
    functions = memory.words(address, 2) if address % WORD == 0 else None
    if functions is None or not all(module.start <= function < module.end for function in functions):
        return
    for layout in LAYOUTS:
        map_ = memory.words(memory.word(address + layout.map) or 0, 5)
        if map_ is not None and map_[2:4] == functions and _fits(memory, address, layout):
            yield layout


def _fits(memory: Memory, address: int, layout: Layout) -> bool:
    """Whether the first bucket has a stack in this layout; there are buckets wherever a profile is
    taken."""
    table = memory.word(address + layout.table) or 0
    for _, words in memory.scan(table, table + WORD * BUCKETS):
        for bucket in filter(None, words):
            return _frames(memory, bucket, layout) is not None
    return False


def _frames(memory: Memory, bucket: int, layout: Layout) -> Optional[tuple[int, ...]]:
    words = memory.words(bucket + layout.depth, 2)
    if words is None:
        return None
    depth = words[0] & 0xFFFFFFFF
    return () if not depth else memory.words(words[1], depth) if depth <= DEEPEST else None


def read(memory: Memory, engine: Engine, profile: HeapProfile) -> Contents:
    """The buckets and entries of a profile; damaged ones are left out. Raises Interrupted."""
    found = Contents(problems=list(profile.problems))
    _read_buckets(memory, profile, found)
    _read_entries(memory, engine, profile, found)
    return found


def _pieces_of_map(memory: Memory, map_: Map, problems: list[Problem]) -> list[Range]:
    """All memory that the map allocated: a list, each piece with its size in front."""
    pieces: list[Range] = []
    at, seen = map_.allocated, set[int]()
    while at and at not in seen and len(seen) < MOST:
        if len(seen) % POLL == 0 and memory.target.interrupted():
            raise Interrupted
        seen.add(at)
        header = memory.words(at - HEADER, 2)
        link = memory.word(at)
        if header is None or link is None or header[1] != MAGIC ^ (at - HEADER):
            what = f"the heap profiler's memory is damaged at {at:#x}: what it points to may be called reachable"
            problems.append(Problem(at, what))
            break
        pieces.append(Range(at - HEADER, at - HEADER + header[0]))
        at = link
    return merged(sorted(pieces))


def _read_buckets(memory: Memory, profile: HeapProfile, found: Contents) -> None:
    bad, layout = [], profile.layout
    for start, words in memory.scan(profile.table, profile.table + WORD * BUCKETS):
        for number, head in enumerate(words):
            at = head
            while at and at not in found.buckets and len(found.buckets) < MOST:
                if len(found.buckets) % POLL == 0 and memory.target.interrupted():
                    raise Interrupted
                bucket = _bucket(memory, at, layout)
                if bucket is None:
                    where = start + WORD * number
                    bad.append(
                        Problem(
                            at, f"the heap profiler's bucket at {at:#x}, of {where:#x}, is damaged: blocks allocated there have no stack"
                        )
                    )
                    break
                found.buckets[at] = bucket
                at = memory.word(at + layout.depth + 2 * WORD) or 0
    first_problems(found.problems, bad, "buckets like that")


def _bucket(memory: Memory, at: int, layout: Layout) -> Optional[Bucket]:
    frames = _frames(memory, at, layout) if at % WORD == 0 else None
    words = memory.words(at, 4)
    if frames is None or words is None:
        return None
    if layout.width == 4:
        words = words[0] & 0xFFFFFFFF, words[0] >> 32, words[1], words[2]
    allocs, frees, alloc_size, free_size = words
    return Bucket(frames, allocs, frees, alloc_size, free_size) if frees <= allocs and free_size <= alloc_size else None


def _read_entries(memory: Memory, engine: Engine, profile: HeapProfile, found: Contents) -> None:
    """Follow the lists of all clusters at once; their entries are in the map's memory."""
    heads = [head for cluster in _clusters(memory, profile.map.hashtable, found.problems) for head in _heads(memory, cluster)]
    pieces = [piece for start, end in profile.memory for piece in memory.target.pieces(start, end)]
    followed = engine.follow_all(pieces, heads, 0, LONGEST)
    nodes = sorted(set(followed.nodes))
    data, missing = records(memory.target, engine, nodes, ENTRY)
    words = memoryview(data).cast("Q")
    columns = (words[column :: ENTRY // WORD].tolist() for column in (1, 2, 3))
    found.entries = [(key, size, bucket & -4) for i, (key, size, bucket) in enumerate(zip(*columns)) if i not in missing]
    ended = (Problem(heads[number], f"a list of the heap profiler's map ends early: {why}") for number, why in followed.problems)
    first_problems(found.problems, ended, "lists like that")


def _clusters(memory: Memory, hashtable: int, problems: list[Problem]) -> Sequence[int]:
    found: dict[int, None] = {}
    for head in memory.words(hashtable, HASHES) or ():
        at = head
        while at and at not in found and len(found) < MOST:
            if memory.target.interrupted():
                raise Interrupted
            link = memory.word(at)
            if link is None:
                problems.append(Problem(at, f"the heap profiler's map leads to {at:#x}, which cannot be read: blocks there have no stack"))
                break
            found[at] = None
            at = link
    return list(found)


def _heads(memory: Memory, cluster: int) -> Iterator[int]:
    """The lists of a cluster that are not empty."""
    first = cluster + 2 * WORD
    for _, words in memory.scan(first, first + WORD * LISTS):
        yield from filter(None, words)
