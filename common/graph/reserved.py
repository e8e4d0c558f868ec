"""Reserved addresses without contents, such as the inaccessible end of an arena, or the space into
which a managed heap can grow.

They are mapped without access (PROT_NONE), so the kernel gives them no pages. GDB's gcore writes
them as zeros and marks each segment readable, so in its cores they are private anonymous memory
that is readable but not writable. Allocators and runtimes list the addresses that they reserved.
Other reserved addresses are identified by their mapping, and in cores by gcore by their zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from findleaks.target.base import Range, Region, Target
from findleaks.target.ranges import intersection, merge_ranges, nonzero_pieces, subtract
from findleaks.value_classes import NamedTuple

STEP = 1 << 20  # bytes that are compared with zeros between two checks for Ctrl-C

_ANONYMOUS = "[anon"  # the prefix of names given by prctl(PR_SET_VMA_ANON_NAME)


class Reserved(NamedTuple):
    """Addresses reserved by one owner."""

    owner: str  # "glibc 2.36", "JVM"; "" if unknown
    ranges: Sequence[Range]  # sorted and disjoint

    @property
    def bytes(self) -> int:
        return sum(end - start for start, end in self.ranges)


def inaccessible_ranges(regions: Iterable[Region], readable: bool) -> list[Range]:
    """Return the private anonymous mappings without access, sorted and disjoint. With `readable`,
    also return read-only mappings, for cores that mark all memory readable."""
    found = (region for region in regions if _is_inaccessible(region) and (readable or not region.readable))
    return merge_ranges(Range(region.start, region.end) for region in found)


def _is_inaccessible(region: Region) -> bool:
    """Whether a region is private anonymous memory that is neither writable nor executable."""
    anonymous = not region.name or region.name.startswith(_ANONYMOUS)
    return anonymous and region.private and not (region.writable or region.executable)


def reserved_by_owner(target: Target, owners: Iterable[tuple[str, Sequence[Range]]]) -> list[Reserved]:
    """Return the reservations that the mappings confirm. If several owners claim an address, it
    belongs to the first of them."""
    left = inaccessible_ranges(target.regions(), not target.live)
    found: dict[str, list[Range]] = {}
    for owner, claimed in owners:
        mine = intersection(left, claimed)
        if mine:
            found[owner] = merge_ranges([*found.get(owner, []), *mine])
            left = subtract(left, mine)
    return [Reserved(owner, ranges) for owner, ranges in found.items()]


def unowned_reserved(target: Target, taken: Sequence[Reserved], flagged: bool, progress: Callable[[], None]) -> list[Range]:
    """Return the reserved addresses without an owner: mappings without access. With `flagged` (a
    core may mark all memory readable), also return read-only memory with only zeros, unless the
    core is truncated. `progress` is called for each MiB, and may raise."""
    regions = target.regions()
    holes = merge_ranges(part for one in taken for part in one.ranges)
    sure = inaccessible_ranges(regions, False)
    found = subtract(sure, holes)
    if flagged and not (target.live or target.truncated):
        readable = subtract(subtract(inaccessible_ranges(regions, True), sure), holes)
        found += [part for part in readable if _zeros(target, part, progress)]
    return merge_ranges(found)


def _zeros(target: Target, part: Range, progress: Callable[[], None]) -> bool:
    """Return whether the readable contents are all zeros."""
    zeros = bytes(STEP)
    for piece in nonzero_pieces(target, *part):
        for low in range(0, len(piece.data), STEP):
            progress()
            data = piece.data[low : low + STEP].tobytes()
            if data != zeros[: len(data)]:
                return False
    return True
