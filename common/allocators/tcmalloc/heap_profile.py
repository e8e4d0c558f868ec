"""Read gperftools' heap profiler (HEAPPROFILE=…, HeapProfilerStart): its table of stacks, its map
from blocks to stacks, and the memory of the map.

Sources: heap-profile-table.h, heap-profile-stats.h, addressmap-inl.h, base/low_level_alloc.cc, 2.7
to 2.18.1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, Optional

from findleaks.allocators.base import Problem, add_first_problems
from findleaks.allocators.bulk import read_records
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.search import find_words_between
from findleaks.allocators.tcmallocs.page_map import WORD
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.formatting import format_count
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, range_at

HASHES = 1 << 12  # AddressMap::kHashSize
LISTS = 1 << 13  # AddressMap::kClusterBlocks; a cluster is {next, id, lists}
ENTRY = 32  # AddressMap::Entry: next, key, bytes, bucket with two flags
LONGEST = 128  # maximum number of entries of a list, which is for 128 bytes of addresses
BUCKETS = 179999  # HeapProfileTable::kHashTableSize
DEEPEST = 32  # frames of a stack, kMaxStackDepth
TRIED = 64  # buckets that are examined to determine the layout
MOST = 1 << 22  # the largest number of buckets, or of pieces of memory
HEADER = 32  # low_level_alloc.cc, AllocList::Header: size, magic, arena, padding
MAGIC = 0x4C833E95  # kMagicAllocated, XORed with its own address
POLL = 1 << 10  # steps between two checks for Ctrl-C


class Layout(NamedTuple):
    """Offsets in HeapProfileTable, and in a bucket (depth, stack, next). A bucket begins with
    counters: allocations and frees (`width` bytes each), then the bytes of both (8 bytes each)."""

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
    """The numbers of allocations and frees with one stack."""

    frames: tuple[int, ...]
    allocs: int
    frees: int
    alloc_size: int
    free_size: int


class Map(NamedTuple):
    """An AddressMap, as it is in memory."""

    hashtable: int
    free: int
    alloc: int
    dealloc: int
    allocated: int


class HeapProfile(NamedTuple):
    """A profile that is being recorded.

    `table` is the address of its table of buckets, or 0 if the table is damaged. `memory` is the
    memory of the table and of the map; the map's keys must not count as references. `damaged` is
    true if this memory is not completely known, and `problems` explains why."""

    layout: Layout
    table: int
    map: Map
    memory: Sequence[Range]
    damaged: bool
    problems: Sequence[Problem]


class Entry(NamedTuple):
    """An entry of the map: its own address, the address of the block, and the address of the
    bucket."""

    address: int
    block: int
    bucket: int


@dataclass
class Contents:
    """The contents of a profile. `buckets` are by address. The bucket of each of `entries` is in
    `buckets`."""

    buckets: dict[int, Bucket] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def find(memory: Memory, engine: Engine, image: Image) -> Optional[HeapProfile]:
    """Find the profile that this image's code is recording, or return None."""
    regions = memory.target.regions()
    low, high = (regions[0].start, regions[-1].end) if regions else (1, 1)
    found: list[tuple[bool, bool, Layout, int]] = []
    tried: set[int] = set()  # tables already tried: the page heap has many equal pointers
    for _, address in find_words_between(memory.target, engine, image.data, max(low, 1), high):
        if address in tried:
            continue
        tried.add(address)
        fit = [(*marks, layout, address) for layout, marks in _layouts(memory, image, address)]
        found += fit
        if any(all(one[:2]) for one in fit):
            break
    # Either the map or the table may be damaged. In this case, the other one identifies the
    # profile.
    for mapped, listed, layout, address in sorted(found, key=lambda one: one[:2])[-1:]:
        return _profile(memory, engine, layout, address, mapped, listed)
    return None


def _layouts(memory: Memory, image: Image, address: int) -> Iterator[tuple[Layout, tuple[bool, bool]]]:
    """Yield the layouts with which a HeapProfileTable may be at `address`, and whether its map and
    its table are right.

    A HeapProfileTable begins with the addresses of two functions, which are also in its map. Two of
    the layouts differ only in the buckets."""
    module = image.module
    functions = memory.words(address, 2) if address % WORD == 0 else None
    if functions is None or not all(module.start <= function < module.end for function in functions):
        return
    for layout in LAYOUTS:
        map_ = memory.words(memory.word(address + layout.map) or 0, 5)
        mapped = map_ is not None and map_[2:4] == functions
        # Without the map, the stacks must consist of addresses in code.
        marks = mapped, _fits(memory, address, layout, code=not mapped)
        if any(marks):
            yield layout, marks


def _fits(memory: Memory, address: int, layout: Layout, code: bool) -> bool:
    """Whether most of the first buckets have a stack in this layout. With `code`, its frames must
    be addresses in code. Every profile has buckets."""
    table = memory.word(address + layout.table) or 0
    heads = (word for _, words in memory.scan(table, table + WORD * BUCKETS) for word in words if word)
    tried = [one.frames if one is not None else () for one in (_bucket(memory, head, layout) for head in islice(heads, TRIED))]
    regions = [Range(one.start, one.end) for one in memory.target.regions() if one.executable] if code else []
    fitting = [frames for frames in tried if frames and (not code or all(range_at(regions, frame) for frame in frames))]
    return 2 * len(fitting) > len(tried)


def _profile(memory: Memory, engine: Engine, layout: Layout, address: int, mapped: bool, listed: bool) -> HeapProfile:
    """Read the addresses of a profile's table and map, and the memory of the map."""
    problems: list[Problem] = []
    table, pieces = 0, list[Range]()
    if listed:
        table = memory.word(address + layout.table) or 0
    else:
        at = address + layout.table
        problems.append(Problem(at, f"the heap profiler's table, to which {at:#x} points, is damaged: no block has a stack"))
    if mapped:
        map_ = Map(*(memory.words(memory.word(address + layout.map) or 0, 5) or (0,) * 5))
        pieces = _pieces_of_map(memory, map_, problems)
    else:
        map_, at = Map(0, 0, 0, 0, 0), address + layout.map
        what = "no block has a stack, and blocks whose address it contains may be reported as reachable"
        problems.append(Problem(at, f"the heap profiler's map, to which {at:#x} points, is damaged: {what}"))
    heads = [Range(table, table + WORD * BUCKETS)] if table else []
    found = HeapProfile(layout, table, map_, merge_ranges(sorted([*pieces, *heads])), bool(problems), problems)
    if not problems:
        return found
    entries = [Range(entry.address, entry.address + ENTRY) for entry in read(memory, engine, found).entries]
    return found._replace(memory=merge_ranges(sorted([*found.memory, *entries])))


def _frames(memory: Memory, bucket: int, layout: Layout) -> Optional[tuple[int, ...]]:
    """Read the stack of a bucket, or return None if it is damaged."""
    words = memory.words(bucket + layout.depth, 2)
    if words is None:
        return None
    depth = words[0] & 0xFFFFFFFF
    return () if not depth else memory.words(words[1], depth) if depth <= DEEPEST else None


def read(memory: Memory, engine: Engine, profile: HeapProfile) -> Contents:
    """Read the buckets and entries of a profile, without damaged ones. Raises Interrupted."""
    found = Contents(problems=list(profile.problems))
    _read_buckets(memory, profile, found)
    _read_entries(memory, engine, profile, found)
    return found


def _pieces_of_map(memory: Memory, map_: Map, problems: list[Problem]) -> list[Range]:
    """Return all memory that the map allocated. This is a list of pieces, each of which is preceded
    by its size."""
    pieces: list[Range] = []
    at, seen = map_.allocated, set[int]()
    while at and at not in seen and len(seen) < MOST:
        if len(seen) % POLL == 0 and memory.target.is_interrupted():
            raise Interrupted
        seen.add(at)
        header = memory.words(at - HEADER, 2)
        link = memory.word(at)
        if header is None or link is None or header[1] != MAGIC ^ (at - HEADER):
            what = f"the heap profiler's memory is damaged at {at:#x}: blocks that it points to may be reported as reachable"
            problems.append(Problem(at, what))
            break
        pieces.append(Range(at - HEADER, at - HEADER + header[0]))
        at = link
    return merge_ranges(sorted(pieces))


def _read_buckets(memory: Memory, profile: HeapProfile, found: Contents) -> None:
    """Read the buckets of all lists of the table."""
    bad, layout = [], profile.layout
    for start, words in memory.scan(profile.table, profile.table + WORD * BUCKETS) if profile.table else ():
        for number, head in enumerate(words):
            at = head
            while at and len(found.buckets) < MOST:
                if len(found.buckets) % POLL == 0 and memory.target.is_interrupted():
                    raise Interrupted
                bucket = None if at in found.buckets else _bucket(memory, at, layout)
                if bucket is None:
                    what = "is damaged" if at not in found.buckets else "is in another list too"
                    where = f"the heap profiler's bucket at {at:#x}, in the list from {start + WORD * number:#x}, {what}"
                    bad.append(Problem(at, f"{where}: blocks allocated there have no stack"))
                    break
                found.buckets[at] = bucket
                at = memory.word(at + layout.depth + 2 * WORD) or 0
    add_first_problems(found.problems, bad, "buckets like that")


def _bucket(memory: Memory, at: int, layout: Layout) -> Optional[Bucket]:
    """Read a bucket, or return None if it is damaged."""
    frames = _frames(memory, at, layout) if at % WORD == 0 else None
    words = memory.words(at, 4)
    if frames is None or words is None:
        return None
    if layout.width == 4:
        words = words[0] & 0xFFFFFFFF, words[0] >> 32, words[1], words[2]
    allocs, frees, alloc_size, free_size = words
    return Bucket(frames, allocs, frees, alloc_size, free_size) if frees <= allocs and free_size <= alloc_size else None


def _read_entries(memory: Memory, engine: Engine, profile: HeapProfile, found: Contents) -> None:
    """Follow the lists of all clusters at once. Their entries must be in the map's memory."""
    heads = [head for cluster in _clusters(memory, profile, found.problems) for head in _heads(memory, cluster)]
    pieces = [piece for start, end in _list_searched(memory, profile) for piece in memory.target.pieces(start, end)] if heads else []
    followed = engine.follow_all(pieces, heads, 0, LONGEST)
    nodes = sorted(set(followed.nodes))
    data, missing = read_records(memory.target, engine, nodes, ENTRY)
    words = memoryview(data).cast("Q")
    blocks, buckets = (words[column :: ENTRY // WORD].tolist() for column in (1, 3))
    bad = []
    for i, node in enumerate(nodes):
        bucket = buckets[i] & -4
        if bucket in found.buckets:
            found.entries.append(Entry(node, blocks[i], bucket))
        elif i not in missing and profile.table:
            bad.append(
                Problem(node, f"an entry of the heap profiler's map at {node:#x} has no bucket: the block {blocks[i]:#x} has no stack")
            )
    add_first_problems(found.problems, bad, "entries like that")
    ended = (
        Problem(heads[number], f"a list of the heap profiler's map, from {heads[number]:#x} on, ends early: {why}")
        for number, why in followed.problems
    )
    add_first_problems(found.problems, ended, "lists like that")
    live = sum(bucket.allocs - bucket.frees for bucket in found.buckets.values())
    if live > len(found.entries):
        at, more = profile.map.hashtable, live - len(found.entries)
        what = f"the heap profiler counts {format_count(more, 'block')} in use more than its map, at {at:#x}, has: they have no stack"
        found.problems.append(Problem(at, what))


def _list_searched(memory: Memory, profile: HeapProfile) -> Sequence[Range]:
    """Return the memory that may contain entries: the map's memory if it is completely known,
    otherwise all memory."""
    if not profile.damaged:
        return profile.memory
    regions = memory.target.regions()
    return [Range(one.start, one.end) for one in regions if one.readable and one.writable and not one.name.startswith(("/", "[stack"))]


def _clusters(memory: Memory, profile: HeapProfile, problems: list[Problem]) -> Sequence[int]:
    """Return the addresses of the map's clusters."""
    if not profile.map.hashtable:
        return ()
    heads = memory.words(profile.map.hashtable, HASHES)
    if heads is None:
        at = profile.map.hashtable
        problems.append(Problem(at, f"the heap profiler's map at {at:#x} cannot be read: no block has a stack"))
    found: dict[int, None] = {}
    bad = []
    for head in heads or ():
        at = head
        while at and len(found) < MOST:
            if memory.target.is_interrupted():
                raise Interrupted
            link = memory.word(at)
            wrong = "cannot be read" if link is None else "is in another list too" if at in found else ""
            if not wrong and not profile.damaged and not range_at(profile.memory, at):
                wrong = "is outside its memory"
            if link is None or wrong:
                bad.append(Problem(at, f"the heap profiler's map leads to {at:#x}, which {wrong}: blocks there have no stack"))
                break
            found[at] = None
            at = link
    add_first_problems(problems, bad, "places like that")
    return list(found)


def _heads(memory: Memory, cluster: int) -> Iterator[int]:
    """Yield the heads of a cluster's lists that are not empty."""
    first = cluster + 2 * WORD
    for _, words in memory.scan(first, first + WORD * LISTS):
        yield from filter(None, words)
