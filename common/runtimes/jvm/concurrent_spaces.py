"""Find where the objects are in the heaps of ZGC and Shenandoah.

Sources: OpenJDK 17, 21 and 25, src/hotspot/share/gc: z/zPageTable.hpp, z/zGranuleMap.hpp,
z/zPage.hpp, z/zVirtualMemory.hpp, z/zHeuristics.cpp, z/zGlobals.hpp (in 21, the names of ZGC
without generations begin with X), shenandoah/shenandoahHeapRegion.hpp.

ZGC's table has the page of each granule (2 MiB of addresses). A page has objects from its start to
its top. The alignment of the objects depends on the type of the page: small, medium, or large. A
large page has one object. Objects on medium and large pages have more than an eighth of the size of
a small page (ZObjectSizeLimitSmall). The memory of a new object contains previous objects until it
is cleared, so shorter objects are not valid. Shenandoah's regions have objects from bottom to top,
except empty regions, and trash, which has only garbage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from findleaks.allocators.bulk import find_pointers
from findleaks.engine.contract import Engine
from findleaks.runtimes.jvm.concurrent import EDEN_AGE, ConcurrentHeap, page_age
from findleaks.runtimes.jvm.shenandoah_regions import find_regions
from findleaks.runtimes.jvm.spaces import EDEN, REGION, Space
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.zgc_jdk11 import is_jdk11, object_shift, read_pages
from findleaks.target.ranges import nonzero_pieces

_SMALL, _MEDIUM = 0, 1  # types of pages; a page of another type has one object
_GRANULE = 21  # log2 of bytes, if the constant is missing
_MOST_REGIONS, _MOST_PAGES, _MOST_TABLE = 1 << 20, 1 << 22, 1 << 27
# A medium page has at most 1 / _MEDIUM_PART of the heap, and at most _MOST_MEDIUM bytes.
_MEDIUM_PART, _MOST_MEDIUM = 32, 32 << 20
_SMALL_PART = 3  # an object on a small page has at most 1 / 2^this of the page
_OBJECTS = 13  # log2 of the number of objects that a medium page can have
_UNUSED = ("_empty_uncommitted", "_empty_committed", "_trash")


def concurrent_spaces(tables: Tables, engine: Engine, heap: ConcurrentHeap) -> list[Space]:
    """Return the pages or regions, ascending. Returns [] if they cannot be read, overlap, or are
    not in the heap."""
    found = sorted(_pages(tables, engine, heap) if heap.collector == "ZGC" else _regions(tables, heap), key=lambda space: space.bottom)
    edges = [edge for space in found for edge in space[1:4]]
    whole = heap.addresses
    return found if [whole.start, *edges, whole.end] == sorted([whole.start, *edges, whole.end]) else []


def _regions(tables: Tables, whole: ConcurrentHeap) -> Iterator[Space]:
    heap = tables.word("Universe", "_collectedHeap") or 0
    if ("ShenandoahHeap", "_regions") not in tables.fields:  # JDK 11
        size = tables.word("ShenandoahHeapRegion", "RegionSizeBytes") or 0
        for one in find_regions(tables, heap, whole.addresses, size) if size else ():
            yield Space(REGION, one.bottom, one.top, one.end)
        return
    count, array = tables.word("ShenandoahHeap", "_num_regions", heap) or 0, tables.word("ShenandoahHeap", "_regions", heap) or 0
    unused = {tables.constants.get(f"ShenandoahHeapRegion::{name}") for name in _UNUSED}
    for region in (tables.memory.words(array, count) or ()) if array and count <= _MOST_REGIONS else ():
        state = tables.int32("ShenandoahHeapRegion", "_state", region)
        bottom, top, end = (tables.word("ShenandoahHeapRegion", name, region) or 0 for name in ("_bottom", "_top", "_end"))
        if state is not None and state not in unused:
            yield Space(REGION, bottom, top, end)


def _pages(tables: Tables, engine: Engine, heap: ConcurrentHeap) -> Iterator[Space]:
    if is_jdk11(tables):
        yield from _pages_jdk11(tables, heap)
        return
    generational = not heap.again and ("ZGlobalsForVMStructs", "_ZPointerLoadShift") in tables.fields
    prefix = "X" if not generational and ("XHeap", "_page_table") in tables.fields else "Z"
    collected = tables.word("Universe", "_collectedHeap") or 0
    table = tables.place(f"{prefix}Heap", "_page_table", tables.place(f"{prefix}CollectedHeap", "_heap", collected))
    place = tables.place(f"{prefix}GranuleMapForPageTable", "_map", tables.place(f"{prefix}PageTable", "_map", table))
    size, array = (tables.memory.word(place - 8) or 0, tables.memory.word(place) or 0) if place else (0, 0)
    if not array or not 0 < size <= _MOST_TABLE:
        return
    pages: set[int] = set()
    for piece in nonzero_pieces(tables.target, array, array + 8 * size):
        pages.update(find_pointers(engine, piece, 1, tables.memory.arch.mask)[1])
        if len(pages) > _MOST_PAGES:
            return
    granule = 1 << min(tables.constants.get(f"{prefix}GranuleSizeShift", _GRANULE), 40)
    for page in pages:
        space = _page(tables, prefix, page, heap, granule)
        if space is not None:
            yield space


def _pages_jdk11(tables: Tables, heap: ConcurrentHeap) -> Iterator[Space]:
    base = heap.addresses.start
    for page in read_pages(tables, heap.addresses.end - base - 1):
        if page.users:
            step = 1 << object_shift(tables, page.kind) if page.kind != _SMALL else 0
            least = 1 << max(tables.constants.get("ZPageSizeSmallShift", 0) - _SMALL_PART, 0) if step else 0
            yield Space(REGION, base + page.start, base + page.top, base + page.end, step, least=least)


def _page(tables: Tables, prefix: str, page: int, heap: ConcurrentHeap, granule: int) -> Optional[Space]:
    kind = (tables.int32(f"{prefix}Page", "_type", page) or 0) & 0xFF
    virtual, base = tables.place(f"{prefix}Page", "_virtual", page), heap.addresses.start
    start = tables.word(f"{prefix}VirtualMemory", "_start", virtual)
    end, size = (tables.word(f"{prefix}VirtualMemory", name, virtual) for name in ("_end", "_size"))
    top = tables.word(f"{prefix}Page", "_top", page)
    end = start + size if end is None and start is not None and size is not None else end
    if start is None or end is None or top is None or start % granule or not start <= top <= end:
        return None
    step = granule
    least = 1 << max(tables.constants.get(f"{prefix}PageSizeSmallShift", 0) - _SMALL_PART, 0)
    if kind == _SMALL:
        step = least = 0
    elif kind == _MEDIUM:
        most = min(heap.most // _MEDIUM_PART, _MOST_MEDIUM)
        step = 1 << max(most.bit_length() - 1 - _OBJECTS, 3)
    has_age = prefix == "Z" and not heap.again  # ZGC with generations
    # Pages of this age contain no objects that ZGC has moved.
    is_eden = has_age and page_age(tables, page) == EDEN_AGE
    return Space(EDEN if is_eden else REGION, base + start, base + top, base + end, step, least=least)
