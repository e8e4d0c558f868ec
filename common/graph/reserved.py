"""Reserved addresses without contents: an arena's unopened end, a managed heap's space to grow.

They are mapped without access (PROT_NONE), so the kernel gives them no pages. GDB's gcore writes
them all the same, as zeros, and flags each segment readable: its cores have them as private
anonymous memory, readable but not writable. Allocators and runtimes say what they reserved; others
are recognised by the mapping, and in such cores by zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from findleaks.target.base import Range, Region, Target
from findleaks.target.ranges import intersection, merged, nonzero_pieces, subtract
from findleaks.value_classes import NamedTuple

STEP = 1 << 20  # bytes compared with zeros between two checks for Ctrl-C

_ANONYMOUS = "[anon"  # with a name given by prctl(PR_SET_VMA_ANON_NAME)


class Reserved(NamedTuple):
    """Addresses reserved by one owner."""

    owner: str  # "glibc 2.36", "JVM"; "" if unknown
    ranges: Sequence[Range]  # sorted and disjoint

    @property
    def bytes(self) -> int:
        return sum(end - start for start, end in self.ranges)


def inaccessible_ranges(regions: Iterable[Region], readable: bool) -> list[Range]:
    """Private anonymous mappings without access, sorted and disjoint; with `readable` also
    read-only ones, as in cores that flag all memory readable."""
    return merged(Range(region.start, region.end) for region in regions if _is_inaccessible(region) and (readable or not region.readable))


def _is_inaccessible(region: Region) -> bool:
    anonymous = not region.name or region.name.startswith(_ANONYMOUS)
    return anonymous and region.private and not (region.writable or region.executable)


def reserved_by_owner(target: Target, owners: Iterable[tuple[str, Sequence[Range]]]) -> list[Reserved]:
    """Reservations that the mappings confirm; the first owner that claims an address gets it."""
    left = inaccessible_ranges(target.regions(), not target.live)
    found: dict[str, list[Range]] = {}
    for owner, claimed in owners:
        mine = intersection(left, claimed)
        if mine:
            found[owner] = merged([*found.get(owner, []), *mine])
            left = subtract(left, mine)
    return [Reserved(owner, ranges) for owner, ranges in found.items()]


def unowned_reserved(target: Target, taken: Sequence[Reserved], flagged: bool, progress: Callable[[], None]) -> list[Range]:
    """Reserved unattributed addresses: mappings without access; with `flagged` (a core may
    flag all memory readable) also read-only zeros, unless truncated. `progress`: each MiB, may
    raise."""
    regions = target.regions()
    holes = merged(part for one in taken for part in one.ranges)
    sure = inaccessible_ranges(regions, False)
    found = subtract(sure, holes)
    if flagged and not (target.live or target.truncated):
        readable = subtract(subtract(inaccessible_ranges(regions, True), sure), holes)
        found += [part for part in readable if _zeros(target, part, progress)]
    return merged(found)


def _zeros(target: Target, part: Range, progress: Callable[[], None]) -> bool:
    """Whether its present contents are all zeros."""
    zeros = bytes(STEP)
    for piece in nonzero_pieces(target, *part):
        for low in range(0, len(piece.data), STEP):
            progress()
            data = piece.data[low : low + STEP].tobytes()
            if data != zeros[: len(data)]:
                return False
    return True
