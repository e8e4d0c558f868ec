"""Operations on lists of address ranges: merge, subtract, search. Ranges are half open, in
bytes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional, Protocol, TypeVar

from findleaks.target.base import MARGIN, Piece, Range, Target

_DIVIDED = 1 << 16  # a piece is divided at its holes only if it has this many bytes per hole


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Sort ranges, join those that overlap or touch, and drop empty ones."""
    out: list[Range] = []
    low = high = -1
    for start, end in sorted(ranges):
        if end <= start:
            continue
        if start > high:
            if high > low:
                out.append(Range(low, high))
            low, high = start, end
        elif end > high:
            high = end
    if high > low:
        out.append(Range(low, high))
    return out


def subtract(ranges: Sequence[Range], holes: Iterable[Range]) -> list[Range]:
    """Return sorted, disjoint `ranges` without `holes`, which may overlap.
    Except for sorting the holes, this takes linear time, because a core may have tens of thousands
    of both."""
    left: list[Range] = []
    taken = merge_ranges(holes)
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


def range_at(ranges: Sequence[Range], address: int) -> Optional[Range]:
    """Return the range that contains `address`, or None. `ranges` must be sorted and disjoint."""
    index = bisect_right(ranges, (address, 1 << 65)) - 1
    return ranges[index] if index >= 0 and address < ranges[index].end else None


def subtract_few(ranges: Sequence[Range], holes: Sequence[Range]) -> list[Range]:
    """Do the same as `subtract`, for few ranges and many sorted, disjoint `holes`. Reads only the
    holes that are near the ranges."""
    if not ranges:
        return []
    first, last = bisect_right(holes, (ranges[0].start, 0)), bisect_right(holes, (ranges[-1].end, 0))
    return subtract(ranges, holes[max(first - 1, 0) : last])


def intersection(ranges: Sequence[Range], others: Iterable[Range]) -> list[Range]:
    """Return the parts of `others` that are in the sorted, disjoint `ranges`."""
    return subtract(merge_ranges(others), subtract(merge_ranges(others), ranges))


def nonzero_pieces(target: Target, start: int, end: int, margin: int = MARGIN) -> Iterator[Piece]:
    """Yield `Target.pieces` without long runs of known zeros, for searches."""
    for part in target.nonzero(start, end, margin):
        yield from target.pieces(*part)


class Ranged(Protocol):
    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


_Ranged = TypeVar("_Ranged", bound=Ranged)


def find_overlaps(parts: Sequence[_Ranged], starts: Sequence[int], start: int, end: int) -> Iterator[tuple[_Ranged, int, int]]:
    """Yield the sorted, disjoint parts that overlap [start, end), each with the bounds of the
    overlap; `starts` are the starts of the parts."""
    for index in range(max(bisect_right(starts, start) - 1, 0), len(parts)):
        part = parts[index]
        if part.start >= end:
            return
        low, high = max(start, part.start), min(end, part.end)
        if low < high:
            yield part, low, high


def gaps(start: int, end: int, parts: Sequence[Ranged], starts: Sequence[int]) -> Iterator[Range]:
    """Yield the parts of [start, end) that none of the sorted, disjoint `parts` covers."""
    for _, low, high in find_overlaps(parts, starts, start, end):
        if start < low:
            yield Range(start, low)
        start = high
    if start < end:
        yield Range(start, end)


def region_at(mapped: Sequence[_Ranged], address: int) -> Optional[_Ranged]:
    """Return the region or module that contains `address`, or None. `mapped` must be sorted and
    disjoint."""
    index = region_index(mapped, address)
    return mapped[index] if index >= 0 else None


def region_index(regions: Sequence[Ranged], address: int) -> int:
    """Return the index of the sorted, disjoint region or module that contains `address`, or -1."""
    low, high = 0, len(regions)
    while low < high:
        middle = (low + high) // 2
        if regions[middle].start <= address:
            low = middle + 1
        else:
            high = middle
    return low - 1 if low and address < regions[low - 1].end else -1


def cut_out(piece: Piece, holes: Sequence[Range]) -> Iterator[Piece]:
    """Yield the parts of a piece that are outside sorted, disjoint holes. If no hole overlaps the
    piece, yield the piece itself."""
    low, high = piece.address, piece.address + len(piece.data)
    near = holes[max(bisect_right(holes, (low, low)) - 1, 0) : bisect_left(holes, (high,))]
    for start, end in subtract([Range(low, high)], near) if near else [Range(low, high)]:
        yield piece if end - start == len(piece.data) else Piece(start, piece.data[start - low : end - low])


def blank_out(piece: Piece, holes: Sequence[Range]) -> Piece:
    """Return a piece with zeros in place of sorted, disjoint holes. If no hole overlaps the piece,
    return the piece itself."""
    low, high = piece.address, piece.address + len(piece.data)
    first = max(bisect_right(holes, (low, low)) - 1, 0)
    near = list(holes[first : bisect_left(holes, (high,))])
    if near and near[0].end <= low:
        del near[0]
    if not near:
        return piece
    # Only the first and the last hole may extend beyond the piece. The others, of which there may
    # be 100,000, need no change.
    near[0] = Range(max(near[0].start, low), near[0].end)
    near[-1] = Range(near[-1].start, min(near[-1].end, high))
    data = bytearray(piece.data)
    for start, end in near:
        data[start - low : end - low] = bytes(end - start)
    return Piece(low, memoryview(data))


def without_holes(piece: Piece, holes: Sequence[Range], word: int) -> Iterator[Piece]:
    """Yield a piece of memory without its holes. Holes are sorted, disjoint ranges whose words are
    not references.

    A large piece with few holes is divided at the holes, so that no data is copied. Otherwise zeros
    replace the holes. `word`: the size of a word in bytes; a piece is not divided inside a word."""
    low, high = piece.address, piece.address + len(piece.data)
    near = holes[max(bisect_right(holes, (low, low)) - 1, 0) : bisect_left(holes, (high,))]
    if len(near) * _DIVIDED > len(piece.data) or any((start | end) % word for start, end in near):
        yield blank_out(piece, holes)
    else:
        yield from cut_out(piece, near)


def merge_to_most(ranges: Iterable[Range], most: int, near: int = 0) -> list[Range]:
    """Merge sorted ranges across gaps of less than `near` bytes, then across the smallest gaps
    until at most `most` ranges are left."""
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
