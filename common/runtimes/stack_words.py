"""Read the words of all threads' stacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.allocators.memory import Memory
from findleaks.target.ranges import region_at

_MOST = 1 << 23  # bytes of all stacks that are read


def scan_stacks(memory: Memory) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield (address, words) for each readable part of the stacks, from the stack pointers on.
    Raises Interrupted."""
    left = _MOST
    for thread in memory.target.threads():
        region = region_at(memory.target.regions(), thread.sp)
        start = thread.sp & -memory.size
        end = min(region.end, start + left) if region is not None else start
        left -= end - start
        yield from memory.scan(start, end)
