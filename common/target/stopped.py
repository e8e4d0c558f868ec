"""The copy of a process as extents: its copied pages, and the memory between them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.target.base import Range, Region
from findleaks.target.copying import KERNELS, Copied, CopyBuffer, Window
from findleaks.target.mapped_files import MappedFile, MappedFiles
from findleaks.target.moment import Moment
from findleaks.target.reader import Extent, Source, Zeros
from findleaks.target.runs import Runs


class Plan(NamedTuple):
    """What was found of the process while it still ran, and the buffer made for its copy."""

    maps: bytes
    regions: Sequence[Region]
    windows: Sequence[Window]
    buffer: CopyBuffer


class Stop:
    """What was read during the stop."""

    def __init__(self) -> None:
        self.proc = ""  # the folder under /proc of a thread that has memory
        self.maps = b""  # the text of /proc/PID/maps
        self.regions: Sequence[Region] = ()
        self.at: Optional[Moment] = None
        self.placed = Copied.none()  # all pages that were copied
        self.rest: list[Range] = []  # pages outside the plan's windows
        self.extra: Optional[CopyBuffer] = None  # the buffer of `rest`
        self.absent: list[Range] = []  # pages that could not be read
        self.kernels: list[tuple[int, bytes]] = []  # address and bytes of the vDSO


class Extents:
    """The copy as extents: windows, and what lies between them."""

    def __init__(self, plan: Plan, stop: Stop, files: MappedFiles) -> None:
        self._stop, self._files = stop, files
        self._windows = plan.windows
        self._zeros = Zeros(1 << 63)
        self._buffers = [plan.buffer] if stop.extra is None else [plan.buffer, stop.extra]
        self._sources = [_Memory(buffer, stop.placed) for buffer in self._buffers]
        rows = [(one.start, one.end, 0, one.offset) for one in plan.windows]
        at = 0
        for start, end in stop.rest:
            rows.append((start, end, 1, at))
            at += end - start
        self._rows = sorted(rows)
        self._starts = [row[0] for row in self._rows]

    def made(self) -> list[Extent]:
        """The extents, sorted and disjoint."""
        kernels = dict(self._stop.kernels)
        found: list[Extent] = []
        for region in self._stop.regions:
            if region.name.startswith(KERNELS):
                data = kernels.get(region.start)
                if data:
                    found.append(Extent(region.start, region.start + len(data), 0, Source(memoryview(bytearray(data)))))
            elif region.anonymous and region.readable:
                found += self._filled(region, self._clipped(region), self._zeros, False)
            elif region.name.startswith("/") or not region.private:
                source = MappedFile(self._files, region) if region.readable else None
                found += self._filled(region, self._runs(region), source, True)
            else:
                found += self._filled(region, self._runs(region), None, False)
        return _without(found, self._stop.absent) if self._stop.absent else found

    def _filled(self, region: Region, parts: Sequence[Extent], between: Optional[Source], addressed: bool) -> Iterator[Extent]:
        """The copied parts of a region, with `between` filling the gaps.

        `addressed`: offsets in `between` are addresses of the process, else they are 0.
        """
        low = region.start
        for part in [*parts, None]:
            high = region.end if part is None else part.start
            if low < high and between is not None:
                yield Extent(low, high, low if addressed else 0, between)
            if part is not None:
                yield part
                low = part.end

    def _clipped(self, region: Region) -> list[Extent]:
        """The parts of a region that the windows cover."""
        found = []
        low = max(bisect_right(self._starts, region.start) - 1, 0)
        for start, end, number, at in self._rows[low : bisect_left(self._starts, region.end)]:
            begin, stop = max(start, region.start), min(end, region.end)
            if begin < stop:
                found.append(Extent(begin, stop, at + begin - start, self._sources[number]))
        return found

    def _runs(self, region: Region) -> list[Extent]:
        """The pages of a region that were copied."""
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
    """A buffer, with the pages that were copied into it."""

    def __init__(self, buffer: CopyBuffer, placed: Copied) -> None:
        base, end = buffer.address, buffer.address + buffer.size
        super().__init__(
            buffer.view(), Runs.of((at - base, at - base + count) for at, count in zip(placed.destination, placed.size) if base <= at < end)
        )

    def ahead(self, offset: int, size: int) -> None:
        pass


def joined(placed: Copied) -> Iterator[tuple[int, int]]:
    """(address in findleaks' memory, bytes) of the copied pages, adjacent ones joined."""
    low = high = -1
    for at, count in zip(placed.destination, placed.size):
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
