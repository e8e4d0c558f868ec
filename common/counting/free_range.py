"""Where in a process there is room for a mapping of ours, near its code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.target.base import Range, Region

PAGE = 4096
LOWEST = 1 << 16
"""What the kernel lets nobody map below, as it is commonly set (vm.mmap_min_addr)."""
HIGHEST = (1 << 47) - PAGE
NEAR = (1 << 31) - (64 << 20)
"""Farthest from the code, so that operands of its neighbourhood are within 2 GiB as well."""
GROWTH = 1 << 30
"""Bytes that are left to the heap above the program's data (brk), and to the main thread's stack below it."""


def room(regions: Sequence[Region], size: int, near: Sequence[int], program: str) -> Optional[int]:
    """The address of `size` free bytes that is nearest to all of the places `near`; None where there is none within reach. A page is
    left free on both sides, so that the kernel does not join mappings. `program` is the path whose data the heap may follow."""
    low = max(max(near) - NEAR, LOWEST)
    high = min(min(near) + NEAR, HIGHEST)
    found = [
        address
        for gap in _gaps(regions, program)
        for start, end in [(max(gap.start + PAGE, low), min(gap.end - PAGE, high))]
        if end - start >= size
        for address in (start + PAGE - 1 & -PAGE, end - size & -PAGE)
        if start <= address and address + size <= end
    ]
    return min(found, key=lambda address: abs(address - near[0]), default=None)


def _gaps(regions: Sequence[Region], program: str) -> Iterator[Range]:
    end, before = LOWEST, ""
    last = max((region.end for region in regions if region.name == program), default=0)
    for region in [*regions, Region(HIGHEST, HIGHEST, False, False, False)]:
        start = end + GROWTH if before == "[heap]" or end == last else end
        stop = region.start - GROWTH if region.name == "[stack]" else region.start
        if stop > start:
            yield Range(start, stop)
        end, before = max(end, region.end), region.name
