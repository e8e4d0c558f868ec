"""Parts that both engines share: limits, messages about problems (the C engine returns codes),
sets, and sort orders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from findleaks.engine.terms import RUN, Exclusion, Group
from findleaks.errors import FindleaksError
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, range_at

MAX_BLOCKS = 1 << 30  # block indices fit 30 bits: an edge is an index and two flag bits
MAX_EDGES = (1 << 31) - 1

CYCLE_GAP = 4 << 20  # Ranges closer than this number of bytes are read as one.

# glibc's usable size exceeds the requested size by fewer words than this (alignment to two words,
# minimum chunk).
SLACK_WORDS = 3

# Reasons why following a list stopped, as in the C engine's follow.c.
END, CYCLE, UNREADABLE, MISALIGNED, TOO_LONG, LEAVES = range(6)

NOT_NESTED = "slabs or their runs do not ascend, are not above the previous blocks, or a run is in no slab"


class TooManyBlocks(FindleaksError):
    """More than 2^30 blocks or 2^31 references: too many for the graph's 32-bit numbers."""

    def __init__(self, what: str) -> None:
        super().__init__(f"more {what} than can be analysed at once: 2^30 blocks, 2^31 references")


def list_problem(code: int, node: int, count: int) -> str:
    """Return why a list ended early at `node` after `count` good nodes; "" for END."""
    why = {
        CYCLE: f"the list has a cycle at {node:#x} after {count} nodes",
        UNREADABLE: f"node {node:#x} cannot be read",
        MISALIGNED: f"node {node:#x} is misaligned",
        TOO_LONG: f"more than {count} nodes, the next is {node:#x}",
        LEAVES: f"the list leaves the pool, to {node:#x}",
    }
    return why[code] if code else ""


LARGEST_GRANULE = 4096  # of blocks, in bytes


def check_granule(granule: int) -> None:
    """Raise ValueError unless the granule is a power of two, from 4 to LARGEST_GRANULE."""
    if granule < 4 or granule & (granule - 1) or granule > LARGEST_GRANULE:
        raise ValueError(f"granule {granule}: not a power of two between 4 and {LARGEST_GRANULE}")


def clip(first: int, last: int | None, count: int) -> tuple[int, int]:
    """Return the part of the range of indices [first, last) that exists; `last` None: up to the
    end."""
    first = min(max(first, 0), count)
    return first, max(first, min(count if last is None else last, count))


class RangeSet:
    """Membership in a list of ranges."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self.ranges = merge_ranges(ranges)

    def __contains__(self, address: int) -> bool:
        return range_at(self.ranges, address) is not None

    def __len__(self) -> int:
        return len(self.ranges)


def sort_groups(groups: Iterable[Group]) -> list[Group]:
    """Return groups sorted by bytes (direct + indirect), most first. No two groups compare equal,
    so both engines return the same order."""
    return sorted(
        groups, key=lambda g: (-(g.bytes + g.indirect_bytes), g.kind, g.type_word, g.size, g.cycle, g.indirect_blocks > 0, g.label, g.mark)
    )


def check_labels(labels: int, ranks: Sequence[int], blocks: int) -> None:
    """Raise ValueError unless there is a label for each block, and no rank is 0."""
    if labels != blocks:
        raise ValueError(f"{labels} labels, {blocks} blocks")
    if 0 in ranks:
        raise ValueError("rank 0; ranks begin at 1")


def check_ascending(starts: Sequence[int], sizes: Sequence[int], states: Sequence[int], granule: int, floor: int, limit: int) -> str | None:
    """Return why blocks cannot be appended above `floor`. None if they ascend, are disjoint, and
    are aligned to granules."""
    if not len(starts) == len(sizes) == len(states):
        return "starts, sizes and states differ in length"
    for start, size, state in zip(starts, sizes, states):
        if start % granule or start < floor or size < 0 or start + max(size, 1) > limit:
            return f"block {start:#x} of {size} bytes is not above the previous block, or not on a granule of {granule}"
        if not 0 <= state <= 3:
            return f"block {start:#x}: no such state: {state}"
        floor = start + max(size, 1)
    return None


def check_runs(runs: Sequence[int], bits: int, granule: int, floor: int, limit: int) -> str | None:
    """Return why runs of blocks cannot be appended above `floor` with this number of bits. None if
    they can."""
    if len(runs) % RUN:
        return f"{len(runs)} words are not a whole number of runs"
    for at in range(0, len(runs), RUN):
        start, stride, size, count, bit, states = runs[at : at + RUN]
        if not count:
            continue
        if start % granule or stride % granule or start < floor or (count > 1 and max(size, 1) > stride):
            place = f"is not above the previous block, or not on a granule of {granule}"
            return f"run of {count} blocks at {start:#x}, {stride} bytes apart, {place}"
        floor = start + (count - 1) * stride + max(size, 1)
        if count > MAX_BLOCKS or floor > limit:
            return f"run of {count} blocks at {start:#x}, {stride} bytes apart, exceeds the address space"
        if states & 255 > 3 or states >> 8 > 3:
            return f"run at {start:#x}: no such states: {states:#x}"
        if states & 255 != states >> 8 and bit + count > bits:
            return f"run at {start:#x}: bits {bit} to {bit + count} of a bitmap of {bits}"
    return None


def checked_exclusions(patterns: bytearray, exclusions: Sequence[Exclusion], count: int) -> Sequence[Exclusion]:
    """Return the exclusions of Graph.exclude_words. Raises ValueError if they do not fit `count`
    blocks."""
    if len(patterns) != count:
        raise ValueError(f"{len(patterns)} bytes, {count} blocks")
    beyond = patterns.translate(None, bytes(range(min(len(exclusions), 256))))
    if beyond or not exclusions or exclusions[0] != Exclusion(0):
        raise ValueError(f"{len(exclusions)} exclusions, pattern {max(beyond, default=0)}")
    return exclusions
