"""Memory that is the JVM's own: Java heap, code cache, metaspace, class data archive, stacks of Java threads.

Sources: OpenJDK 17 and 21, src/hotspot/share: gc/g1/heapRegionManager.hpp, gc/serial, gc/parallel, memory/heap.hpp,
memory/virtualspace.hpp, memory/metaspace/virtualSpaceNode.hpp, runtime/threadSMR.hpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.runtimes.base import Part
from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.base import Range
from findleaks.target.ranges import merged

MOST_REGIONS = 1 << 20
MOST_THREADS = 1 << 16
MOST_HEAPS = 64
MOST_NODES = 1 << 16
NODE = 3
"""Words of a metaspace's node that are read."""

LIST = 4

CONTEXTS = ("_ZN9metaspace16MetaspaceContext23_nonclass_space_contextE", "_ZN9metaspace16MetaspaceContext20_class_space_contextE")
PAGE = 4096


def parts(tables: Tables) -> list[Part]:
    """Those that are there, in the order in which they are best read."""
    made = (_java_heap(tables), _code_cache(tables), _metaspace(tables), _archive(tables), _stacks(tables))
    return [part for part in made if part is not None]


def _committed(tables: Tables, start: int, end: int) -> list[Range]:
    """What is accessible of a range that was reserved as a whole."""
    regions = tables.target.regions()
    found = [Range(max(r.start, start), min(r.end, end)) for r in regions if r.readable and r.start < end and start < r.end]
    return merged(found)


def _java_heap(tables: Tables) -> Optional[Part]:
    heap = tables.word("Universe", "_collectedHeap")
    reserved = tables.place("CollectedHeap", "_reserved", heap or 0) if heap else 0
    words = tables.memory.words(reserved, 2) if reserved else None
    if words is None or heap is None:
        return None
    start, size = words[0], words[1] * tables.memory.size
    committed = _committed(tables, start, start + size)
    used, detail = _used(tables, heap, Range(start, start + size))
    reserve = f"{size >> 20:,} MiB reserved"
    return Part("Java heap", committed, used, False, f"{detail}, {reserve}" if detail else reserve)


def _used(tables: Tables, heap: int, whole: Range) -> tuple[Optional[int], str]:
    """Bytes below the tops of the heap's regions, or of its spaces; None for other collectors than G1, Parallel and Serial."""
    table = tables.place("G1CollectedHeap", "_hrm", heap)
    table = tables.place("HeapRegionManager", "_regions", table) if table else 0
    if table:
        found = _g1(tables, table, whole)
        if found is not None:
            return found
    spaces = list(_spaces(tables, heap, whole))
    return (sum(spaces), f"{len(spaces)} spaces") if spaces else (None, "")


def _g1(tables: Tables, table: int, whole: Range) -> Optional[tuple[int, str]]:
    base, length = tables.word("G1HeapRegionTable", "_base", table), tables.word("G1HeapRegionTable", "_length", table)
    if not base or not length or length > MOST_REGIONS:
        return None
    regions = tables.memory.words(base, length)
    used, count, size = 0, 0, 0
    for region in regions or ():
        if not region:
            continue
        bottom, top, end = (tables.word("HeapRegion", name, region) or 0 for name in ("_bottom", "_top", "_end"))
        if whole.start <= bottom <= top <= end <= whole.end:
            used += top - bottom
            count += top > bottom
            size = max(size, end - bottom)
    return (used, f"{count:,} regions of {size >> 20} MiB in use") if size else None


def _spaces(tables: Tables, heap: int, whole: Range) -> Iterator[int]:
    """Bytes in use of the spaces of Serial's generations, or of Parallel's."""
    young, old = tables.word("GenCollectedHeap", "_young_gen", heap), tables.word("GenCollectedHeap", "_old_gen", heap)
    places = [("DefNewGeneration", f"_{name}_space", young) for name in ("eden", "from", "to")]
    places.append(("TenuredGeneration", "_the_space", old))
    kind, bottom_of = "ContiguousSpace", "Space"
    if not (young and old and all(whole.start <= value < whole.end for value in _bottoms(tables, places, bottom_of))):
        young, old = tables.word("ParallelScavengeHeap", "_young_gen"), tables.word("ParallelScavengeHeap", "_old_gen")
        places = [("PSYoungGen", f"_{name}_space", young) for name in ("eden", "from", "to")]
        places.append(("PSOldGen", "_object_space", old))
        kind = bottom_of = "MutableSpace"
    for owner, field, of in places:
        space = tables.word(owner, field, of or 0)
        bottom = tables.word(bottom_of, "_bottom", space or 0)
        top = tables.word(kind, "_top", space or 0)
        if bottom and top and whole.start <= bottom <= top <= whole.end:
            yield top - bottom


def _bottoms(tables: Tables, places: Sequence[tuple[str, str, Optional[int]]], kind: str) -> list[int]:
    return [tables.word(kind, "_bottom", tables.word(owner, field, of or 0) or 0) or 0 for owner, field, of in places]


def _code_cache(tables: Tables) -> Optional[Part]:
    heaps = tables.word("CodeCache", "_heaps")
    length = tables.int32("GrowableArrayBase", "_len", heaps or 0)
    data = tables.word("GrowableArray<int>", "_data", heaps or 0)
    if not length or not data or length > MOST_HEAPS:
        return None
    found: list[Range] = []
    for heap in tables.memory.words(data, length) or ():
        space = tables.place("CodeHeap", "_memory", heap)
        low, high = tables.word("VirtualSpace", "_low", space), tables.word("VirtualSpace", "_high", space)
        if low and high and low < high:
            found.append(Range(low, high))
    return Part("code cache", merged(found), None, False, f"{length} heaps") if found else None


def _metaspace(tables: Tables) -> Optional[Part]:
    """The nodes of both lists of virtual spaces. A node begins with its next one, its base, and its size in bytes."""
    ranges: list[Range] = []
    reserved = 0
    for symbol in CONTEXTS:
        context = tables.symbol(symbol)
        context = tables.memory.word(context) or 0 if context else 0
        spaces = tables.memory.word(context + tables.memory.size) if context else None
        words = next((node for node in map(tables.memory.words, *_columns(tables, spaces or 0)) if _is_node(node)), None)
        for _ in range(MOST_NODES):
            if words is None or not _is_node(words):
                break
            base, size = words[1], words[2]
            ranges += [part for part in _committed(tables, base, base + size) if _writable(tables, part)]
            reserved += size
            words = tables.memory.words(words[0], NODE) if words[0] else None
    if not ranges:
        return None
    return Part("metaspace", merged(ranges), None, False, f"{reserved >> 20:,} MiB reserved")


def _columns(tables: Tables, spaces: int) -> tuple[Sequence[int], Sequence[int]]:
    """What the first words of a list of spaces point to: behind its name, and in 17 a table of functions, comes its first node."""
    words = tables.memory.words(spaces, LIST) or ()
    return words, [NODE] * len(words)


def _is_node(words: Optional[tuple[int, ...]]) -> bool:
    return words is not None and words[1] > 0 and words[2] > 0 and not (words[1] % PAGE or words[2] % PAGE)


def _writable(tables: Tables, part: Range) -> bool:
    return any(region.writable and region.start <= part.start < region.end for region in tables.target.regions())


def _archive(tables: Tables) -> Optional[Part]:
    base, top = tables.word("MetaspaceObj", "_shared_metaspace_base"), tables.word("MetaspaceObj", "_shared_metaspace_top")
    if not base or not top or base >= top:
        return None
    return Part("class data archive", _committed(tables, base, top), None)


def _stacks(tables: Tables) -> Optional[Part]:
    """Of Java threads, the compilers' among them; the collector's are threads like any other."""
    ranges = sorted(Range(base - size, base) for base, size in java_stacks(tables))
    return Part("stacks of Java threads", merged(ranges), None, False, f"{len(ranges):,} threads") if ranges else None


def java_stacks(tables: Tables) -> Iterator[tuple[int, int]]:
    """(upper end, size) of each Java thread's stack."""
    listed = tables.word("ThreadsSMRSupport", "_java_thread_list")
    count = tables.int32("ThreadsList", "_length", listed or 0)
    array = tables.word("ThreadsList", "_threads", listed or 0)
    if not listed or not count or not array or count > MOST_THREADS:
        return
    for thread in tables.memory.words(array, count) or ():
        base = size = None
        for kind in ("JavaThread", "Thread"):  # where the fields are moved between versions
            base = base or tables.word(kind, "_stack_base", thread)
            size = size or tables.word(kind, "_stack_size", thread)
        if base and size and size < base and size < 1 << 40:
            yield base, size
