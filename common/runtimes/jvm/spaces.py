"""The spaces of the Java heap, and which parts of them hold no object.

Sources: OpenJDK 17, 21 and 25, src/hotspot/share: gc/g1/heapRegion.hpp and heapRegionManager.hpp
(later g1HeapRegion.hpp), gc/serial, gc/parallel, gc/shared/space.hpp,
gc/shared/threadLocalAllocBuffer.hpp. A space, or a region of G1's, has objects in [bottom, top). In
the space from which threads allocate, each thread has a thread-local allocation buffer (TLAB). Its
part [top, end) is not used, and neither is a reserve after its end. Its top moves before an object
is written. Only a collection moves objects. During a collection, a flag is set: `_is_gc_active`,
since JDK 22 `_is_stw_gc_active`. ZGC and Shenandoah move objects while the program runs:
concurrent_spaces.py has their spaces."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.bulk import read_records
from findleaks.engine.contract import Engine
from findleaks.runtimes.jvm.layout import read_alignment
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.threads import java_threads
from findleaks.runtimes.jvm.vm_structs import Field
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges

MAX_REGIONS = 1 << 20  # regions of a plausible G1 heap
FIELDS = 256  # bytes from a region's or a buffer's start in which its bounds lie
MAX_RESERVE = 1 << 9  # upper limit of a TLAB's reserve in words, several times what it ever is
FILLER = 2  # words of the smallest array, which fills a gap
_PREFETCHED, _OLD_VERSION = "_reserve_for_allocation_prefetch", "Abstract_VM_Version"  # of JDK 8

REGIONS = ("HeapRegion", "G1HeapRegion")
MANAGERS = ("HeapRegionManager", "G1HeapRegionManager")
EDEN, OLD, REGION = "eden", "old generation", "a region of G1's"
CHUNK = 24  # bytes of the smallest chunk of CMS, which the tables of JDK 8 lack


class Space(NamedTuple):
    """A space of the Java heap: [bottom, top) has its objects, [top, end) has none. Each object
    begins at a multiple of `step` bytes after the bottom; 0 stands for the usual alignment of
    objects. An object has more than `least` bytes. For `chunk` see engine.ObjectWalk.set_range."""

    name: str
    bottom: int
    top: int
    end: int
    step: int = 0
    chunk: int = 0
    least: int = 0


def heap_addresses(tables: Tables) -> Optional[Range]:
    """Return the addresses into which the Java heap may grow."""
    heap = tables.word("Universe", "_collectedHeap")
    place = tables.place("CollectedHeap", "_reserved", heap or 0) if heap else 0
    words = tables.memory.words(place, 2) if place else None
    return Range(words[0], words[0] + words[1] * tables.memory.size) if words else None


def collecting(tables: Tables) -> Optional[int]:
    """Return the address of the flag that is set during a collection, 0 if none is running; None if
    this is unknown."""
    heap = tables.word("Universe", "_collectedHeap")
    for flag in ("_is_gc_active", "_is_stw_gc_active"):
        place = tables.place("CollectedHeap", flag, heap or 0)
        value = tables.memory.int32(place) if place else None
        if value is not None:
            return place if value & 0xFF else 0
    return None


def spaces(tables: Tables, engine: Engine) -> list[Space]:
    """Return the spaces of G1, Parallel or Serial, ascending. Returns [] for other collectors, and
    if the spaces are inconsistent."""
    heap, whole = tables.word("Universe", "_collectedHeap"), heap_addresses(tables)
    if not heap or whole is None or whole.start >= whole.end:
        return []
    found = _regions(tables, engine, heap, whole)
    return found or _generations(tables, heap, whole)


def region_structures(tables: Tables) -> Sequence[int]:
    """Return the addresses of G1's structures for regions. They contain the address of the first
    object of the region, and keep no object alive."""
    base, length = _region_table(tables, tables.word("Universe", "_collectedHeap") or 0)
    return [region for region in tables.memory.words(base, length) or () if region] if base and length and length <= MAX_REGIONS else ()


def has_region_bounds(tables: Tables, address: int) -> bool:
    """Return whether G1's structure for a region may be at `address`: the words at the offsets of
    its bounds are the bounds of a region. One such structure is not in G1's table:
    G1AllocRegion::_dummy_region, with the bounds of the first region. Its end is the address of the
    first object of the second region."""
    kind, regions = _region_kind(tables), region_addresses(tables)
    bounds = [_find_bound(tables, kind, name) for name in ("_bottom", "_end")]
    words = [tables.memory.word(address + field.offset) for field in bounds if field]
    return len(words) == len(bounds) and words[0] in regions and words[1] == (words[0] or 0) + regions.step


def region_size(tables: Tables) -> int:
    """Return the size of G1's structure for a region in bytes; 0 if it is unknown."""
    return tables.sizes.get(_region_kind(tables), 0)


def region_addresses(tables: Tables) -> range:
    """Return the addresses of the regions of G1; empty for other collectors."""
    base, length = _region_table(tables, tables.word("Universe", "_collectedHeap") or 0)
    size, whole = tables.word(_region_kind(tables), "GrainBytes"), heap_addresses(tables)
    if not base or not length or not size or whole is None or length * size != whole.end - whole.start:
        return range(0)
    return range(*whole, size)


def _region_kind(tables: Tables) -> str:
    return next((kind for kind in REGIONS if (kind, "GrainBytes") in tables.fields), REGIONS[0])


def _find_bound(tables: Tables, kind: str, name: str) -> Optional[Field]:
    """Return the field with a bound of a G1 region, such as "_end"; None if it is unknown. Older
    versions declare it in a base class."""
    kinds = (kind, "G1ContiguousSpace", "G1OffsetTableContigSpace", "Space")
    return next((field for one in kinds if (field := tables.fields.get((one, name)))), None)


def _region_table(tables: Tables, heap: int) -> tuple[Optional[int], Optional[int]]:
    """Return the address and the length of G1's table of regions."""
    table = tables.place("G1CollectedHeap", "_hrm", heap) if heap else 0
    table = next((place for kind in MANAGERS if (place := tables.place(kind, "_regions", table))), 0) if table else 0
    return tables.word("G1HeapRegionTable", "_base", table), tables.word("G1HeapRegionTable", "_length", table)


def _regions(tables: Tables, engine: Engine, heap: int, whole: Range) -> list[Space]:
    """Return the regions of G1, all of one size, contiguous from the start of the heap. Each must
    be at the address given by its number."""
    base, length = _region_table(tables, heap)
    kind = _region_kind(tables)
    size = tables.word(kind, "GrainBytes")
    bounds = [_find_bound(tables, kind, name) for name in ("_bottom", "_top", "_end")]
    if not base or not length or length > MAX_REGIONS or not size or length * size != whole.end - whole.start:
        return []
    numbers = {region: number for number, region in enumerate(tables.memory.words(base, length) or ()) if region}
    addresses = sorted(numbers)
    found: list[Space] = []
    for address, (bottom, top, end) in zip(addresses, _columns(tables, engine, addresses, bounds)):
        start = whole.start + numbers[address] * size
        if end > start + size and end <= whole.end and (end - start) % size == 0:
            # In JDK 8, the end of the first region of a large object is that of its last region.
            end, top = start + size, min(top, start + size)
        if (bottom, end) == (start, start + size) and bottom <= top <= end:
            found.append(Space(REGION, bottom, top, end))
    return sorted(found, key=lambda space: space.bottom)


def _columns(tables: Tables, engine: Engine, addresses: Sequence[int], fields: Sequence[Optional[Field]]) -> Iterator[tuple[int, ...]]:
    """Yield the values of these fields, one word each, for each structure; the addresses ascend. A
    value is 0 if it is unreadable, or if a field's offset is larger than in any version: only that
    much of each structure is read."""
    word = tables.memory.size
    offsets = [field.offset for field in fields if field is not None]
    if not addresses or len(offsets) < len(fields) or max(offsets) >= FIELDS or any(offset % word for offset in offsets):
        return iter([(0,) * len(fields)] * len(addresses))
    count = max(offsets) // word + 1
    data, _ = read_records(tables.target, engine, addresses, count * word)
    words = tables.memory.arch.unpack(bytes(data))
    return zip(*(words[offset // word :: count] for offset in offsets))


def _generations(tables: Tables, heap: int, whole: Range) -> list[Space]:
    """Return the four spaces of Parallel's or Serial's generations. Returns [] unless all are
    valid, in the heap, and disjoint."""
    young, old = tables.word("ParallelScavengeHeap", "_young_gen"), tables.word("ParallelScavengeHeap", "_old_gen")
    kinds, owners = ("PSYoungGen", "PSOldGen", "_object_space"), (young, old)
    bounds: Sequence[str] = ("MutableSpace", "ImmutableSpace")
    if not (young and old):
        owners = _serial_generations(tables, heap)
        old_kind = "TenuredGeneration" if ("TenuredGeneration", "_the_space") in tables.fields else "OneContigSpaceCardGeneration"
        kinds, bounds = ("DefNewGeneration", old_kind, "_the_space"), ("ContiguousSpace", "Space")
    places = [(name, tables.word(kinds[0], f"_{name}_space", owners[0] or 0)) for name in (EDEN, "from", "to")]
    places.append((OLD, tables.word(kinds[1], kinds[2], owners[1] or 0)))
    cms = tables.is_set("UseConcMarkSweepGC") is True
    found = _free_list_spaces(tables, owners[1] or 0) if cms else []
    for name, space in places[:-1] if cms else places:
        words = [_bound(tables, bounds, field, space or 0) for field in ("_bottom", "_top", "_end")]
        found.append(Space(name if name not in ("from", "to") else f"{name} space", *words))
    found.sort(key=lambda space: space.bottom)
    edges = [edge for space in found for edge in space[1:4]]
    return found if [whole.start, *edges, whole.end] == sorted([whole.start, *edges, whole.end]) else []


def _free_list_spaces(tables: Tables, generation: int) -> list[Space]:
    """Return the parts of the old generation of CMS, before and after the memory from which it
    allocates small objects (compactibleFreeListSpace.hpp, LinearAllocBlock)."""
    space = tables.word("ConcurrentMarkSweepGeneration", "_cmsSpace", generation) or 0
    bottom, end = tables.word("Space", "_bottom", space) or 0, tables.word("Space", "_end", space) or 0
    place = tables.place("CompactibleFreeListSpace", "_smallLinearAllocBlock", space)
    start, words = (tables.memory.words(place, 2) if place else None) or (0, 0)
    chunk = tables.word("CompactibleFreeListSpace", "_min_chunk_size_in_bytes") or CHUNK
    stop = start + words * tables.memory.size
    if not bottom <= start <= stop <= end:
        start = stop = end
    return [Space(OLD, bottom, start, stop, 0, chunk), Space(OLD, stop, end, end, 0, chunk)]


def _serial_generations(tables: Tables, heap: int) -> tuple[Optional[int], Optional[int]]:
    """Return the two generations of Serial. JDK 8 has an array of them."""
    array = tables.place("GenCollectedHeap", "_gens", heap)
    words = tables.memory.words(array, 2) if array else None
    if words is not None:
        return words[0], words[1]
    serial = next((kind for kind in ("GenCollectedHeap", "SerialHeap") if (kind, "_young_gen") in tables.fields), "")
    return tables.word(serial, "_young_gen", heap), tables.word(serial, "_old_gen", heap)


def _bound(tables: Tables, kinds: Sequence[str], field: str, space: int) -> int:
    """Return a field of a space, or 0. Fields belong to different types in different versions."""
    return next((value for kind in kinds if (value := tables.word(kind, field, space))), 0)


class Dead(NamedTuple):
    """A part of a space that has no objects. `what` describes it in a sentence."""

    start: int
    end: int
    what: str


def dead(tables: Tables, engine: Engine, found: Sequence[Space]) -> list[Dead]:
    """Return the dead parts of these spaces, ascending, disjoint; [] during a collection."""
    if not found or collecting(tables) != 0:
        return []
    made = [Dead(space.top, space.end, _describe_unused(space)) for space in found if space.top < space.end]
    for one in _buffers(tables, engine, found):
        if one.top < one.end:
            made.append(Dead(one.top, one.end, f"{one.space.name}, what a thread has not used of its buffer"))
    made.sort()
    return [part for number, part in enumerate(made) if not number or part.start >= made[number - 1].end]


def _describe_unused(space: Space) -> str:
    if space.top == space.bottom:
        return f"{space.name} that is free" if space.name == REGION else f"{space.name}, which is empty"
    return f"{space.name} above its top"


class _Buffer(NamedTuple):
    """A thread's buffer in a space. It has objects in [start, top), and none in [top, end)."""

    start: int
    top: int
    end: int
    space: Space


def _buffers(tables: Tables, engine: Engine, found: Sequence[Space]) -> Iterator[_Buffer]:
    """Yield the threads' buffers."""
    tlab = tables.fields.get(("Thread", "_tlab"))
    places = sorted({thread + tlab.offset for thread in java_threads(tables) if thread}) if tlab is not None else []
    fields = [tables.fields.get(("ThreadLocalAllocBuffer", name)) for name in ("_start", "_top", "_end")]
    behind = _reserve(tables) * tables.memory.size
    bottoms = [space.bottom for space in found]
    references = tables.references
    for words in _columns(tables, engine, places, fields):
        start, top, end = map(references.locate, words) if references is not None else words
        at = bisect_right(bottoms, start) - 1
        if at < 0 or not start <= top <= end <= found[at].top or found[at].name not in (EDEN, REGION):
            continue
        if end + behind <= found[at].top:
            end += behind
        yield _Buffer(start, top, end, found[at])


def buffer_words(tables: Tables) -> frozenset[int]:
    """Return the addresses of the words that contain the bounds of threads' allocation buffers
    (TLABs). These words are not references, although an object may begin at such a bound."""
    tlab, behind = tables.fields.get(("Thread", "_tlab")), tables.fields.get(("ThreadLocalAllocBuffer", "_desired_size"))
    if tlab is None or behind is None or behind.offset > FIELDS:
        return frozenset()
    places = (thread + tlab.offset for thread in java_threads(tables) if thread)
    return frozenset(word for place in places for word in range(place, place + behind.offset, tables.memory.size))


class ObjectRange(NamedTuple):
    """A range of contiguous objects, which start in [start, end).

    The last object ends at `limit` or below: a large object extends over several regions of G1's.
    For `step`, `chunk` and `least` see Space."""

    start: int
    end: int
    limit: int
    step: int = 0
    chunk: int = 0
    least: int = 0


def object_ranges(tables: Tables, engine: Engine, found: Sequence[Space]) -> list[ObjectRange]:
    """Return the ranges with objects in these spaces, ascending. A thread's buffer is a separate
    range, because its last object may be incomplete."""
    limits = merge_ranges(Range(space.bottom, space.top) for space in found)
    buffers = sorted(_buffers(tables, engine, found), key=lambda one: one.start)
    made: list[ObjectRange] = []
    for space in found:
        limit = limits[bisect_right(limits, (space.bottom, 1 << 64)) - 1].end
        start = space.bottom
        for one in buffers:
            if one.space is space and one.start >= start:
                made += [ObjectRange(start, one.start, one.start), ObjectRange(one.start, one.top, one.top)]
                start = one.end
        made.append(ObjectRange(start, space.top, limit, space.step, space.chunk, space.least))
    return [one for one in made if one.start < one.end]


def _reserve(tables: Tables) -> int:
    """Return how many words after the end of a TLAB belong to it
    (ThreadLocalAllocBuffer::alignment_reserve).

    The smallest filler fits into them. If the alignment of objects is as large as this filler, no
    words are reserved for it. JDK 8 reserves the header of an array in any case."""
    alignment = read_alignment(tables)
    filler = tables.word("CollectedHeap", "_lab_alignment_reserve")
    if filler is None:
        filler = FILLER if alignment < FILLER * tables.memory.size else 0
    prefetched = tables.int32("ThreadLocalAllocBuffer", _PREFETCHED) or 0
    if (_OLD_VERSION, _PREFETCHED) in tables.fields:
        filler = FILLER if tables.is_set("UseCompressedClassPointers") else FILLER + 1
        prefetched = tables.int32(_OLD_VERSION, _PREFETCHED) or 0
    words = max((words for words in (filler, prefetched) if words <= MAX_RESERVE), default=0)
    return words + -words % (alignment // tables.memory.size)
