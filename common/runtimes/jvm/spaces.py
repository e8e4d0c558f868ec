"""The spaces of the Java heap, and which parts of them hold no object.

Sources: OpenJDK 17, 21 and 25, src/hotspot/share: gc/g1/heapRegion.hpp and heapRegionManager.hpp
(later g1HeapRegion.hpp), gc/serial, gc/parallel, gc/shared/space.hpp,
gc/shared/threadLocalAllocBuffer.hpp. A space, or a region of G1's, has objects in [bottom, top). In
the space that is allocated from, each thread has a thread-local allocation buffer (TLAB), of which
[top, end) is not used, nor is a reserve behind its end; its top moves before an object is written.
Only a collection moves objects, and sets a flag while it does: `_is_gc_active`, since JDK 22
`_is_stw_gc_active`. ZGC and Shenandoah move objects while the program runs: their spaces are
ignored."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.bulk import read_records
from findleaks.engine.contract import Engine
from findleaks.runtimes.jvm.tables import Field, Tables
from findleaks.runtimes.jvm.threads import java_threads
from findleaks.target.base import Range

MAX_REGIONS = 1 << 20  # regions of a plausible G1 heap
FIELDS = 256  # bytes from a region's or a buffer's start in which its bounds lie
MAX_RESERVE = 1 << 9  # upper limit of a TLAB's reserve in words, several times what it ever is
FILLER = 2  # lower limit of the reserve in words: the smallest array that can fill a gap

REGIONS = ("HeapRegion", "G1HeapRegion")
MANAGERS = ("HeapRegionManager", "G1HeapRegionManager")
EDEN, REGION = "eden", "a region of G1's"


class Space(NamedTuple):
    """A space of the Java heap: [bottom, top) has its objects, [top, end) has none."""

    name: str
    bottom: int
    top: int
    end: int


def heap_addresses(tables: Tables) -> Optional[Range]:
    """Return the addresses into which the Java heap may grow."""
    heap = tables.word("Universe", "_collectedHeap")
    place = tables.place("CollectedHeap", "_reserved", heap or 0) if heap else 0
    words = tables.memory.words(place, 2) if place else None
    return Range(words[0], words[0] + words[1] * tables.memory.size) if words else None


def collecting(tables: Tables) -> Optional[int]:
    """Return the address of the flag of a running collection, 0 if none is running; None if
    unknown."""
    heap = tables.word("Universe", "_collectedHeap")
    for flag in ("_is_gc_active", "_is_stw_gc_active"):
        place = tables.place("CollectedHeap", flag, heap or 0)
        value = tables.memory.int32(place) if place else None
        if value is not None:
            return place if value & 0xFF else 0
    return None


def spaces(tables: Tables, engine: Engine) -> list[Space]:
    """Return the spaces of G1, Parallel or Serial, ascending; [] for others, or if inconsistent."""
    heap, whole = tables.word("Universe", "_collectedHeap"), heap_addresses(tables)
    if not heap or whole is None or whole.start >= whole.end:
        return []
    found = _regions(tables, engine, heap, whole)
    return found or _generations(tables, heap, whole)


def _regions(tables: Tables, engine: Engine, heap: int, whole: Range) -> list[Space]:
    """Return the regions of G1, all of one size, contiguous from the start of the heap. Each must
    be at the address given by its number."""
    table = tables.place("G1CollectedHeap", "_hrm", heap)
    table = next((place for kind in MANAGERS if (place := tables.place(kind, "_regions", table))), 0) if table else 0
    kind = next((kind for kind in REGIONS if (kind, "GrainBytes") in tables.fields), REGIONS[0])
    size = tables.word(kind, "GrainBytes")
    base, length = tables.word("G1HeapRegionTable", "_base", table), tables.word("G1HeapRegionTable", "_length", table)
    bounds = [tables.fields.get((kind, name)) for name in ("_bottom", "_top", "_end")]
    if not base or not length or length > MAX_REGIONS or not size or length * size != whole.end - whole.start:
        return []
    numbers = {region: number for number, region in enumerate(tables.memory.words(base, length) or ()) if region}
    addresses = sorted(numbers)
    found: list[Space] = []
    for address, (bottom, top, end) in zip(addresses, _columns(tables, engine, addresses, bounds)):
        start = whole.start + numbers[address] * size
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
    """Return the four spaces of Parallel's or Serial's generations; [] unless all are valid, in the
    heap, and disjoint."""
    young, old = tables.word("ParallelScavengeHeap", "_young_gen"), tables.word("ParallelScavengeHeap", "_old_gen")
    kinds, owners = ("PSYoungGen", "PSOldGen", "_object_space"), (young, old)
    bounds: Sequence[str] = ("MutableSpace",)
    if not (young and old):
        serial = next((kind for kind in ("GenCollectedHeap", "SerialHeap") if (kind, "_young_gen") in tables.fields), "")
        owners = (tables.word(serial, "_young_gen", heap), tables.word(serial, "_old_gen", heap))
        kinds, bounds = ("DefNewGeneration", "TenuredGeneration", "_the_space"), ("ContiguousSpace", "Space")
    places = [(name, tables.word(kinds[0], f"_{name}_space", owners[0] or 0)) for name in (EDEN, "from", "to")]
    places.append(("old generation", tables.word(kinds[1], kinds[2], owners[1] or 0)))
    found: list[Space] = []
    for name, space in places:
        words = [_bound(tables, bounds, field, space or 0) for field in ("_bottom", "_top", "_end")]
        found.append(Space(name if name not in ("from", "to") else f"{name} space", *words))
    found.sort(key=lambda space: space.bottom)
    edges = [edge for space in found for edge in space[1:]]
    return found if [whole.start, *edges, whole.end] == sorted([whole.start, *edges, whole.end]) else []


def _bound(tables: Tables, kinds: Sequence[str], field: str, space: int) -> int:
    """Return a field of a space, or 0. Fields belong to different types in different versions."""
    return next((value for kind in kinds if (value := tables.word(kind, field, space))), 0)


class Dead(NamedTuple):
    """Part of a space without objects; `what` describes it in a sentence."""

    start: int
    end: int
    what: str


def dead(tables: Tables, engine: Engine, found: Sequence[Space]) -> list[Dead]:
    """Return the dead parts of these spaces, ascending, disjoint; [] during a collection."""
    if not found or collecting(tables) != 0:
        return []
    made = [Dead(space.top, space.end, _unused(space)) for space in found if space.top < space.end]
    made += _buffers(tables, engine, found)
    made.sort()
    return [part for number, part in enumerate(made) if not number or part.start >= made[number - 1].end]


def _unused(space: Space) -> str:
    if space.top == space.bottom:
        return f"{space.name} that is free" if space.name == REGION else f"{space.name}, which is empty"
    return f"{space.name} above its top"


def _buffers(tables: Tables, engine: Engine, found: Sequence[Space]) -> Iterator[Dead]:
    """Yield the unused parts of the threads' buffers."""
    tlab = tables.fields.get(("Thread", "_tlab"))
    places = sorted({thread + tlab.offset for thread in java_threads(tables) if thread}) if tlab is not None else []
    fields = [tables.fields.get(("ThreadLocalAllocBuffer", name)) for name in ("_start", "_top", "_end")]
    behind = _reserve(tables) * tables.memory.size
    bottoms = [space.bottom for space in found]
    for start, top, end in _columns(tables, engine, places, fields):
        at = bisect_right(bottoms, start) - 1
        if at < 0 or not start <= top <= end <= found[at].top or found[at].name not in (EDEN, REGION):
            continue
        if end + behind <= found[at].top:
            end += behind
        if top < end:
            yield Dead(top, end, f"{found[at].name}, what a thread has not used of its buffer")


def _reserve(tables: Tables) -> int:
    """Return the words after a TLAB's end that belong to it
    (ThreadLocalAllocBuffer::end_reserve)."""
    filler = tables.word("CollectedHeap", "_lab_alignment_reserve") or FILLER
    prefetched = tables.int32("ThreadLocalAllocBuffer", "_reserve_for_allocation_prefetch") or 0
    return max((words for words in (FILLER, filler, prefetched) if words <= MAX_RESERVE), default=0)
