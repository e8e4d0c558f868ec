"""Read figures of the heaps of ZGC and Shenandoah, which move objects while the program runs.

Sources: OpenJDK 17, 21 and 25, src/hotspot/share/gc: z/vmStructs_z.hpp, z/zPageAllocator.hpp,
z/zAddress.hpp, x/vmStructs_x.hpp (in 21, ZGC without generations has names with X),
shenandoah/vmStructs_shenandoah.hpp, shenandoah/shenandoahHeap.hpp.

ZGC's heap is a file in memory ("java_heap"). It is mapped at addresses whose bits state how a
reference was marked. Without generations, the file is mapped three times, and one of the three
addresses is in use at a time: `_ZAddressGoodMask` is its bit. With generations, the file is mapped
once, at the address after the mask of offsets (zAddress.cpp, ZGlobalsPointers::initialize)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.runtimes.jvm.shenandoah_regions import find_regions
from findleaks.runtimes.jvm.vm_structs import VMStructs
from findleaks.runtimes.jvm.zgc_jdk11 import is_jdk11
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges

_FILE = "java_heap"
_MOST_NODES = 1024  # maximum number of NUMA nodes, each with a partition of the heap
_NODE_STRIDE = 4096  # bytes between two nodes' values (zValue.inline.hpp, ZValueStorage::offset)
EDEN_AGE, OLD_AGE = 0, 15  # the age of new pages, and of pages of the old generation (zPageAge.hpp)
_AGE = 2  # distance in bytes of a page's age from its type (zPage.hpp, with generations)
_JDK11_MASKS = ("AddressOffsetMask", "AddressMetadataMask")  # constants in JDK 11
_JDK11_VIEWS = 7  # the bits above an offset that select a mapping
_MOST_OFFSET = 1 << 48  # maximum size in bytes of a plausible range of addresses


class ConcurrentHeap(NamedTuple):
    """A heap of one of these collectors. Sizes are in bytes. `addresses`: the range in which the
    heap may be. `again`: ranges at which the same memory is mapped again."""

    collector: str  # "ZGC", "Shenandoah"
    used: int
    capacity: int
    most: int
    addresses: Range
    again: Sequence[Range] = ()

    @property
    def detail(self) -> str:
        """A phrase that describes the heap."""
        return f"{self.collector}, {self.capacity >> 20:,} MiB of at most {self.most >> 20:,}; all of it is searched"


def mapped_heap(target: Target) -> list[Range]:
    """Return the mappings of ZGC's file, found by name. This is for a heap whose figures cannot be
    read."""
    return merge_ranges(Range(region.start, region.end) for region in target.regions() if _FILE in region.name and region.writable)


def concurrent_heap(tables: VMStructs) -> Optional[ConcurrentHeap]:
    """Return the heap of ZGC or Shenandoah. Returns None for other collectors, and if figures
    contradict one another."""
    heap, prefix = tables.word("Universe", "_collectedHeap"), zgc_prefix(tables)
    if heap and prefix:
        return _zgc(tables, heap, prefix)
    reserved = tables.place("CollectedHeap", "_reserved", heap or 0)
    words = tables.memory.words(reserved, 2) if reserved else None
    if not heap or words is None:
        return None
    return _shenandoah(tables, heap, Range(words[0], words[0] + words[1] * tables.memory.size)) if words[1] else None


def _shenandoah(tables: VMStructs, heap: int, whole: Range) -> Optional[ConcurrentHeap]:
    """Read Shenandoah's heap. The tables have the heap's fields even if another collector is in
    use. Therefore the number and size of the regions must match the reserved addresses, and the
    first region must begin there."""
    count = tables.word("ShenandoahHeap", "_num_regions", heap) or 0
    size = tables.word("ShenandoahHeapRegion", "RegionSizeBytes") or 0
    if not size or count * size != whole.end - whole.start or not _has_shenandoah_regions(tables, heap, whole, size):
        return None
    owner, kind = heap, "ShenandoahHeap"
    if (kind, "_used") not in tables.fields:  # since 24 each generation counts
        owner, kind = tables.word(kind, "_global_generation", heap) or 0, "ShenandoahGeneration"
    used, committed = tables.word(kind, "_used", owner), tables.word("ShenandoahHeap", "_committed", heap)
    if used is None or committed is None or not used <= committed <= count * size:
        return None
    return ConcurrentHeap("Shenandoah", used, committed, count * size, whole)


def _has_shenandoah_regions(tables: VMStructs, heap: int, whole: Range, size: int) -> bool:
    """Return whether the first region of the heap begins at the first reserved address."""
    if ("ShenandoahHeap", "_regions") not in tables.fields:  # JDK 11
        return bool(find_regions(tables, heap, whole, size))
    array = tables.word("ShenandoahHeap", "_regions", heap) or 0
    first = tables.memory.word(array) or 0 if array else 0
    return tables.word("ShenandoahHeapRegion", "_bottom", first) == whole.start


def shenandoah_regions(tables: VMStructs) -> range:
    """Return the addresses of the regions of Shenandoah; empty for other collectors."""
    heap = concurrent_heap(tables)
    if heap is None or heap.collector != "Shenandoah":
        return range(0)
    return range(*heap.addresses, tables.word("ShenandoahHeapRegion", "RegionSizeBytes") or 1)


def zgc_prefix(tables: VMStructs) -> str:
    """Return the first letter of ZGC's names in the tables; "" if the collector is not ZGC. If a
    libjvm has two versions of ZGC, only the version in use has masks."""
    for prefix in "ZX":
        offsets = read_mask(tables, prefix, "AddressOffsetMask")
        if offsets and not offsets & (offsets + 1) and offsets < _MOST_OFFSET:
            return prefix
    return ""


def _zgc(tables: VMStructs, heap: int, prefix: str) -> Optional[ConcurrentHeap]:
    """Read ZGC's heap. The names in the tables begin with `prefix`."""
    offsets = read_mask(tables, prefix, "AddressOffsetMask")
    allocator = tables.place(f"{prefix}Heap", "_page_allocator", tables.place(f"{prefix}CollectedHeap", "_heap", heap))
    most = tables.word(f"{prefix}PageAllocator", "_max_capacity", allocator)
    if is_jdk11(tables):
        most = tables.word("ZPhysicalMemoryManager", "_max_capacity", tables.place("ZPageAllocator", "_physical", allocator))
    used, capacity = _totals(tables, prefix, allocator)
    if not most or not used <= capacity <= most <= offsets + 1:
        return None
    view, views = offsets + 1, [offsets + 1]
    good = read_mask(tables, prefix, "AddressGoodMask")
    if good:
        bits = read_mask(tables, prefix, "AddressMetadataMask")
        views = [1 << bit for bit in range(offsets.bit_length(), 64) if bits >> bit & 1]
        view = good if good in views else views[0] if views else good
    again = [Range(one, one + offsets + 1) for one in views if one != view and good]
    return ConcurrentHeap("ZGC", used, capacity, most, Range(view, view + offsets + 1), again)


def page_age(tables: VMStructs, page: int) -> int:
    """Return the age of the ZPage at this address, -1 if it is unreadable. Without generations,
    pages have no age."""
    data = tables.memory.read(tables.place("ZPage", "_type", page) + _AGE, 1)
    return data[0] if data else -1


def read_mask(tables: VMStructs, prefix: str, name: str) -> int:
    """Return one of ZGC's masks; 0 if it is missing. The table has pointers to the masks. In
    JDK 11, most masks are constants, also if another collector is in use."""
    if is_jdk11(tables) and name in _JDK11_MASKS:
        if not read_mask(tables, prefix, "AddressGoodMask"):
            return 0
        offsets = tables.constants.get("ZAddressOffsetMask", 0)
        return offsets if name == "AddressOffsetMask" else _JDK11_VIEWS * (offsets + 1)
    instance = tables.word(f"{prefix}GlobalsForVMStructs", "_instance_p")
    place = tables.word(f"{prefix}GlobalsForVMStructs", f"_{prefix}{name}", instance or 0)
    return tables.memory.word(place) or 0 if place else 0


def _totals(tables: VMStructs, prefix: str, allocator: int) -> tuple[int, int]:
    """Return used and committed bytes of the page allocator. Since 25, they are those of its
    partitions, one for each NUMA node."""
    if is_jdk11(tables):
        physical = tables.place("ZPageAllocator", "_physical", allocator)
        return (
            tables.word("ZPageAllocator", "_used", allocator) or 0,
            tables.word("ZPhysicalMemoryManager", "_capacity", physical) or 0,
        )
    if (f"{prefix}PageAllocator", "_used") in tables.fields:
        kind, owners = f"{prefix}PageAllocator", [allocator]
    else:
        kind, nodes = "ZPartition", tables.int32("ZNUMA", "_count") or 0
        array = tables.word("ZPerNUMAZPartition", "_addr", tables.place("ZPageAllocator", "_partitions", allocator)) or 0
        owners = [array + _NODE_STRIDE * node for node in range(nodes)] if array and 0 < nodes <= _MOST_NODES else []
    used = [tables.word(kind, "_used", owner) for owner in owners]
    capacity = [tables.word(kind, "_capacity", owner) for owner in owners]
    if not owners or None in used or None in capacity:
        return 1, 0
    return sum(value or 0 for value in used), sum(value or 0 for value in capacity)
