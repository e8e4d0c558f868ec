"""Find the regions of Shenandoah in JDK 11, whose tables lack them.

They are found by structure: the heap refers to an array of pointers to regions, and each region
contains its own start and end. Later words of a region are the end of its objects (`top`), and the
end of objects that were copied there; the first is never less than the second.

Source: OpenJDK 11u, src/hotspot/share/gc/shenandoah: shenandoahHeap.hpp (`_regions`),
shenandoahHeapRegion.hpp (`_index`, `_bottom`, `_end`, ..., `_state`, ..., `_top`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from findleaks.runtimes.jvm.vm_structs import VMStructs
from findleaks.target.base import Range

_HEAP, _REGION = 128, 14  # words that are read of the heap, and of a region
_BOTTOM, _END = 1, 2  # words of a region
_MOST = 1 << 20  # regions


class Region(NamedTuple):
    """A region: start, end of its objects, and end."""

    bottom: int
    top: int
    end: int


def find_regions(tables: VMStructs, heap: int, whole: Range, size: int) -> Sequence[Region]:
    """Return the regions of `size` bytes in the reserved addresses `whole`, in their order; () if
    they are not found."""
    memory, count = tables.memory, (whole.end - whole.start) // size
    if not 1 < count <= _MOST:
        return ()
    for array in memory.words(heap, _HEAP) or ():
        places = memory.words(array, 2) if array and array % memory.size == 0 else None
        if places and all(_is_region(tables, one, whole.start + at * size, size) for at, one in enumerate(places)):
            regions = [memory.words(one, _REGION) or () for one in memory.words(array, count) or ()]
            return _read_tops(regions, whole.start, size) if len(regions) == count else ()
    return ()


def _is_region(tables: VMStructs, region: int, bottom: int, size: int) -> bool:
    words = tables.memory.words(region, _REGION) if region and region % tables.memory.size == 0 else None
    return words is not None and words[_BOTTOM : _END + 1] == (bottom, bottom + size)


def _read_tops(regions: Sequence[Sequence[int]], start: int, size: int) -> Sequence[Region]:
    bounds = [Range(start + at * size, start + (at + 1) * size) for at in range(len(regions))]
    if any(tuple(words[_BOTTOM : _END + 1]) != bound for words, bound in zip(regions, bounds)):
        return ()
    columns = list(zip(*regions))[_END + 1 :]
    tops = [column for column in columns if all(start <= word <= end for word, (start, end) in zip(column, bounds))]
    top = max(tops, key=sum, default=())
    return [Region(start, word, end) for (start, end), word in zip(bounds, top)]
