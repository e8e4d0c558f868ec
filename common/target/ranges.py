"""Lists of address ranges: merged, subtracted, searched. Ranges are half open, in bytes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional, Protocol, TypeVar

from findleaks.target.base import MARGIN, Piece, Range, Target


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The ranges sorted and disjoint: those that overlap or touch joined, empty ones left out."""
    out: list[Range] = []
    for start, end in sorted(ranges):
        if end <= start:
            continue
        if out and start <= out[-1].end:
            out[-1] = Range(out[-1].start, max(out[-1].end, end))
        else:
            out.append(Range(start, end))
    return out


def subtract(ranges: Sequence[Range], holes: Iterable[Range]) -> list[Range]:
    """`ranges`, which are sorted and disjoint, without `holes`, which may overlap.
    Linear but for sorting the holes: a core may have tens of thousands of both."""
    left: list[Range] = []
    taken = merged(holes)
    first = 0
    for start, end in ranges:
        while first < len(taken) and taken[first].end <= start:
            first += 1
        at, hole = start, first
        while hole < len(taken) and taken[hole].start < end:
            if taken[hole].start > at:
                left.append(Range(at, taken[hole].start))
            at = taken[hole].end
            hole += 1
        if at < end:
            left.append(Range(at, end))
    return left


def inside(ranges: Sequence[Range], address: int) -> Optional[Range]:
    """The one of these sorted, disjoint ranges that holds `address`."""
    index = bisect_right(ranges, (address, 1 << 65)) - 1
    return ranges[index] if index >= 0 and address < ranges[index].end else None


def subtract_few(ranges: Sequence[Range], holes: Sequence[Range]) -> list[Range]:
    """`subtract` for few ranges and many (sorted, disjoint) `holes`: only near ones are read."""
    if not ranges:
        return []
    first, last = bisect_right(holes, (ranges[0].start, 0)), bisect_right(holes, (ranges[-1].end, 0))
    return subtract(ranges, holes[max(first - 1, 0) : last])


def intersection(ranges: Sequence[Range], others: Iterable[Range]) -> list[Range]:
    """The parts of `others` that lie in the sorted, disjoint `ranges`."""
    return subtract(merged(others), subtract(merged(others), ranges))


def nonzero_pieces(target: Target, start: int, end: int, margin: int = MARGIN) -> Iterator[Piece]:
    """`Target.pieces` for searches: long runs of known zeros are left out."""
    for part in target.nonzero(start, end, margin):
        yield from target.pieces(*part)


class Ranged(Protocol):
    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


_Ranged = TypeVar("_Ranged", bound=Ranged)


def overlapping(parts: Sequence[_Ranged], starts: Sequence[int], start: int, end: int) -> Iterator[tuple[_Ranged, int, int]]:
    """The sorted, disjoint parts that overlap [start, end), each with the bounds of the overlap;
    `starts` are the starts of the parts."""
    for index in range(max(bisect_right(starts, start) - 1, 0), len(parts)):
        part = parts[index]
        if part.start >= end:
            return
        low, high = max(start, part.start), min(end, part.end)
        if low < high:
            yield part, low, high


def gaps(start: int, end: int, parts: Sequence[Ranged], starts: Sequence[int]) -> Iterator[Range]:
    """The parts of [start, end) that none of the sorted, disjoint `parts` covers."""
    for _, low, high in overlapping(parts, starts, start, end):
        if start < low:
            yield Range(start, low)
        start = high
    if start < end:
        yield Range(start, end)


def holding(mapped: Sequence[_Ranged], address: int) -> Optional[_Ranged]:
    """The sorted, disjoint region or module that holds `address`, by a binary search; or None."""
    index = region_index(mapped, address)
    return mapped[index] if index >= 0 else None


def region_index(regions: Sequence[Ranged], address: int) -> int:
    """The index of the sorted, disjoint region or module that holds `address`, or -1."""
    low, high = 0, len(regions)
    while low < high:
        middle = (low + high) // 2
        if regions[middle].start <= address:
            low = middle + 1
        else:
            high = middle
    return low - 1 if low and address < regions[low - 1].end else -1


def around(piece: Piece, holes: Sequence[Range]) -> Iterator[Piece]:
    """The parts of a piece outside sorted, disjoint holes; the piece itself if none lies in it."""
    low, high = piece.address, piece.address + len(piece.data)
    near = holes[max(bisect_right(holes, (low, low)) - 1, 0) : bisect_left(holes, (high,))]
    for start, end in subtract([Range(low, high)], near) if near else [Range(low, high)]:
        yield piece if end - start == len(piece.data) else Piece(start, piece.data[start - low : end - low])


def blanked(piece: Piece, holes: Sequence[Range]) -> Piece:
    """The piece with zeros in place of sorted, disjoint holes; itself if none lies in it."""
    low, high = piece.address, piece.address + len(piece.data)
    near = holes[max(bisect_right(holes, (low, low)) - 1, 0) : bisect_left(holes, (high,))]
    parts = [(max(start, low) - low, min(end, high) - low) for start, end in near if end > low]
    if not parts:
        return piece
    data = bytearray(piece.data)
    for start, end in parts:
        data[start:end] = bytes(end - start)
    return Piece(low, memoryview(data))


def merged_to(ranges: Iterable[Range], most: int, near: int = 0) -> list[Range]:
    """Sorted ranges, merged across gaps of less than `near` bytes, and across the smallest others
    until there are `most`."""
    made = sorted(ranges)
    gaps = sorted(range(1, len(made)), key=lambda at: made[at].start - made[at - 1].end)
    joined = {at for at in gaps if made[at].start - made[at - 1].end < near} | set(gaps[: max(0, len(made) - most)])
    found: list[Range] = []
    for at, one in enumerate(made):
        if at in joined:
            found[-1] = Range(found[-1].start, max(found[-1].end, one.end))
        else:
            found.append(one)
    return found
