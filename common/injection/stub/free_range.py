"""Find a free address range near the code of a process, for findleaks' own mapping."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.target.base import Range, Region

PAGE = 4096
LOWEST_ADDRESS = 1 << 16  # no mappings below it, with the usual vm.mmap_min_addr
HIGHEST_ADDRESS = (1 << 47) - PAGE
# Maximum distance from the code in bytes, with a margin for operands near it
MAX_DISTANCE = (1 << 31) - (64 << 20)
# Number of bytes that stay free after the program's data, where the heap (brk) grows, and below the
# main stack
GROWTH = 1 << 30
STACK_LIMITS = 4  # bytes free below the stack, as a multiple of its limit; a program may raise it


def stack_growth(pid: int) -> int:
    """Return the number of bytes that stay free below the main stack of a process. Without
    randomised addresses, the kernel leaves only 128 MiB between this stack and the libraries, which
    is less than GROWTH."""
    try:
        limit, _ = resource.prlimit(pid, resource.RLIMIT_STACK)
    except OSError:
        return GROWTH
    return GROWTH if limit == resource.RLIM_INFINITY else min(STACK_LIMITS * limit, GROWTH)


def find_free_range(regions: Sequence[Region], size: int, near: Sequence[int], program: str, below_stack: int = GROWTH) -> Optional[int]:
    """Return the start of `size` free bytes at most MAX_DISTANCE from all addresses in `near`; None
    if there are none. The range nearest to the first address is chosen.

    One page on each side stays free, so that the kernel does not merge mappings. `program`: the
    path of the executable; GROWTH bytes after its data stay free. `below_stack`: number of bytes
    that stay free below the main stack, see stack_growth."""
    low = max(max(near) - MAX_DISTANCE, LOWEST_ADDRESS)
    high = min(min(near) + MAX_DISTANCE, HIGHEST_ADDRESS)
    found = [
        address
        for gap in _gaps(regions, program, below_stack)
        for start, end in [(max(gap.start + PAGE, low), min(gap.end - PAGE, high))]
        if end - start >= size
        for address in (start + PAGE - 1 & -PAGE, end - size & -PAGE)
        if start <= address and address + size <= end
    ]
    return min(found, key=lambda address: abs(address - near[0]), default=None)


def _gaps(regions: Sequence[Region], program: str, below_stack: int) -> Iterator[Range]:
    end, before = LOWEST_ADDRESS, ""
    last = max((region.end for region in regions if region.name == program), default=0)
    for region in [*regions, Region(HIGHEST_ADDRESS, HIGHEST_ADDRESS, False, False, False)]:
        start = end + GROWTH if before == "[heap]" or end == last else end
        stop = region.start - below_stack if region.name == "[stack]" else region.start
        if stop > start:
            yield Range(start, stop)
        end, before = max(end, region.end), region.name
