"""What was read of a process during its stop, and the memory that follows from it, as extents."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.target.base import Range, Region
from findleaks.target.copying import KERNELS, Copied, Room, Window, anonymous
from findleaks.target.mapped_files import MappedFile, MappedFiles
from findleaks.target.moment import Moment
from findleaks.target.reader import Extent, Source, Zeros
from findleaks.target.runs import Runs


class Plan(NamedTuple):
    """What was found of the process while it ran, and the room that was made for it."""

    maps: bytes
    regions: Sequence[Region]
    windows: Sequence[Window]
    room: Room


class Stop:
    """What was read during the stop."""

    def __init__(self) -> None:
        self.proc = ""
        self.maps = b""
        self.regions: Sequence[Region] = ()
        self.at: Optional[Moment] = None
        self.placed = Copied.none()
        self.rest: list[Range] = []
        self.extra: Optional[Room] = None
        self.absent: list[Range] = []
        self.kernels: list[tuple[int, bytes]] = []


class Extents:
    """The copy as extents: windows and what is between them."""

    def __init__(self, plan: Plan, stop: Stop, files: MappedFiles) -> None:
        self._stop, self._files = stop, files
        self._windows = plan.windows
        self._zeros = Zeros(1 << 63)
        self._rooms = [plan.room] if stop.extra is None else [plan.room, stop.extra]
        self._sources = [_Memory(room, stop.placed) for room in self._rooms]
        rows = [(one.start, one.end, 0, one.offset) for one in plan.windows]
        at = 0
        for start, end in stop.rest:
            rows.append((start, end, 1, at))
            at += end - start
        self._rows = sorted(rows)
        self._starts = [row[0] for row in self._rows]

    def made(self) -> list[Extent]:
        """Sorted and disjoint."""
        kernels = dict(self._stop.kernels)
        found: list[Extent] = []
        for region in self._stop.regions:
            if region.name.startswith(KERNELS):
                data = kernels.get(region.start)
                if data:
                    found.append(Extent(region.start, region.start + len(data), 0, Source(memoryview(bytearray(data)))))
            elif anonymous(region) and region.readable:
                found += self._filled(region, self._clipped(region), self._zeros, False)
            elif region.name.startswith("/") or not region.private:
                source = MappedFile(self._files, region) if region.readable else None
                found += self._filled(region, self._runs(region), source, True)
            else:
                found += self._filled(region, self._runs(region), None, False)
        return _without(found, self._stop.absent) if self._stop.absent else found

    def _filled(self, region: Region, parts: Sequence[Extent], between: Optional[Source], addressed: bool) -> Iterator[Extent]:
        """The parts of a region, and what is to be read between them."""
        low = region.start
        for part in [*parts, None]:
            high = region.end if part is None else part.start
            if low < high and between is not None:
                yield Extent(low, high, low if addressed else 0, between)
            if part is not None:
                yield part
                low = part.end

    def _clipped(self, region: Region) -> list[Extent]:
        """What the windows have of a region."""
        found = []
        low = max(bisect_right(self._starts, region.start) - 1, 0)
        for start, end, number, at in self._rows[low : bisect_left(self._starts, region.end)]:
            begin, stop = max(start, region.start), min(end, region.end)
            if begin < stop:
                found.append(Extent(begin, stop, at + begin - start, self._sources[number]))
        return found

    def _runs(self, region: Region) -> list[Extent]:
        """The pages that were copied of a region."""
        assert self._stop.at is not None
        found = []
        for part in self._clipped(region):
            move = part.start - part.offset
            data = part.source.data
            assert data is not None
            for start, end in data.within(part.offset, part.offset + part.end - part.start):
                found.append(Extent(start + move, end + move, start, part.source))
        return found


class _Memory(Source):
    """A room with the pages in it."""

    def __init__(self, room: Room, placed: Copied) -> None:
        base, end = room.address, room.address + room.size
        super().__init__(
            room.view(), Runs.of((at - base, at - base + count) for at, count in zip(placed.room, placed.size) if base <= at < end)
        )

    def ahead(self, offset: int, size: int) -> None:
        pass


def joined(placed: Copied) -> Iterator[tuple[int, int]]:
    """(address in our memory, bytes) of what was placed, joined where it is side by side."""
    low = high = -1
    for at, count in zip(placed.room, placed.size):
        if at != high:
            if high > low:
                yield low, high - low
            low = at
        high = at + count
    if high > low:
        yield low, high - low


def _without(extents: Sequence[Extent], gaps: Sequence[Range]) -> list[Extent]:
    found = []
    gaps = sorted(gaps)
    for extent in extents:
        low = extent.start
        for start, end in gaps:
            if end <= low or start >= extent.end:
                continue
            if low < start:
                found.append(Extent(low, start, extent.offset + low - extent.start, extent.source))
            low = max(low, end)
        if low < extent.end:
            found.append(Extent(low, extent.end, extent.offset + low - extent.start, extent.source))
    return found
