"""Addresses that are reserved and hold nothing yet: an arena's unopened end, the part of a managed heap that it may still grow into.

They are mapped without any access (PROT_NONE), so that the kernel gives them no pages. GDB's gcore writes them all the same, as zeros, and
flags each segment readable: in its cores they are private anonymous memory that can be read, but not written to. Allocators and runtimes
tell which addresses they have reserved; what they do not speak for is recognised by the mapping, and in such cores by its zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from findleaks.target.base import Range, Region, Target
from findleaks.target.ranges import intersection, merged, nonzero_pieces, subtract

STEP = 1 << 20
"""Bytes compared with zeros between two looks whether the user wants to stop."""

_ANONYMOUS = "[anon"  # with a name given by prctl(PR_SET_VMA_ANON_NAME)


class Reserved(NamedTuple):
    """Addresses reserved by `owner` ("glibc 2.36", "JVM"; "" where that is not known); `ranges` are sorted and disjoint."""

    owner: str
    ranges: Sequence[Range]

    @property
    def bytes(self) -> int:
        return sum(end - start for start, end in self.ranges)


def inaccessible_ranges(regions: Iterable[Region], readable: bool) -> list[Range]:
    """Private anonymous mappings that the program can do nothing with, sorted and disjoint; with `readable` also those that it cannot
    write to, as in cores that flag all memory readable."""
    return merged(Range(region.start, region.end) for region in regions if _is_inaccessible(region) and (readable or not region.readable))


def _is_inaccessible(region: Region) -> bool:
    anonymous = not region.name or region.name.startswith(_ANONYMOUS)
    return anonymous and region.private and not (region.writable or region.executable)


def reserved_by_owner(target: Target, owners: Iterable[tuple[str, Sequence[Range]]]) -> list[Reserved]:
    """What each owner says it has reserved, as far as the mappings agree; each address goes to the first who claims it."""
    left = inaccessible_ranges(target.regions(), not target.live)
    found: dict[str, list[Range]] = {}
    for owner, claimed in owners:
        mine = intersection(left, claimed)
        if mine:
            found[owner] = merged([*found.get(owner, []), *mine])
            left = subtract(left, mine)
    return [Reserved(owner, ranges) for owner, ranges in found.items()]


def unowned_reserved(target: Target, taken: Sequence[Reserved], flagged: bool, tell: Callable[[], None]) -> list[Range]:
    """Reserved addresses of no known owner: what has no access; with `flagged` (a core that may flag all memory readable) also what cannot
    be written to and is all zeros, unless the core is truncated. `tell` is called for each MiB looked at, and may raise."""
    regions = target.regions()
    holes = merged(part for one in taken for part in one.ranges)
    sure = inaccessible_ranges(regions, False)
    found = subtract(sure, holes)
    if flagged and not (target.live or target.truncated):
        readable = subtract(subtract(inaccessible_ranges(regions, True), sure), holes)
        found += [part for part in readable if _zeros(target, part, tell)]
    return merged(found)


def _zeros(target: Target, part: Range, tell: Callable[[], None]) -> bool:
    """Whether what is there of it is zeros."""
    zeros = bytes(STEP)
    for piece in nonzero_pieces(target, *part):
        for low in range(0, len(piece.data), STEP):
            tell()
            data = piece.data[low : low + STEP].tobytes()
            if data != zeros[: len(data)]:
                return False
    return True
