"""Build extents of a copied process: its copied pages, and the memory between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.target.base import Range, Region
from findleaks.target.copying import KERNELS, CopiedRuns, CopyBuffer, Window
from findleaks.target.kernel_references import RawState
from findleaks.target.mapped_files import MappedFile, MappedFiles
from findleaks.target.ranges import find_overlaps, gaps, merge_ranges
from findleaks.target.reader import Extent, Source, Zeros
from findleaks.target.runs import Runs
from findleaks.target.stopped_pages import StoppedPages


class CopyPlan(NamedTuple):
    """The state of the process before the stop, and the buffer for its copy."""

    maps: bytes
    regions: Sequence[Region]
    windows: Sequence[Window]
    buffer: CopyBuffer


class StopData:
    """Data read during the stop."""

    def __init__(self) -> None:
        self.proc = ""  # folder below /proc of a thread that has memory
        self.taken_at = 0.0  # seconds since 1970
        self.maps = b""  # the text of /proc/PID/maps
        self.stat = b""  # the text of /proc/PID/stat
        self.regions: Sequence[Region] = ()
        self.at: Optional[StoppedPages] = None
        self.placed = CopiedRuns.none()  # all copied pages
        self.rest: list[Range] = []  # pages outside the plan's windows
        self.extra: Optional[CopyBuffer] = None  # the buffer of `rest`
        self.absent: list[Range] = []  # pages that could not be read
        self.kernel: Optional[RawState] = None  # data that the kernel keeps for the process
        self.kernels: list[tuple[int, bytes]] = []  # address and bytes of the vDSO


def extents_of(plan: CopyPlan, stop: StopData, files: MappedFiles) -> list[Extent]:
    """Return the copy as extents, sorted and disjoint: the windows, and the memory between them."""
    windows = _windows(plan, stop)
    starts = [window.start for window in windows]
    zeros, kernels = Zeros(1 << 63), dict(stop.kernels)
    found: list[Extent] = []
    for region in stop.regions:
        parts = [window.part(low, high) for window, low, high in find_overlaps(windows, starts, region.start, region.end)]
        if region.name.startswith(KERNELS):
            data = bytearray(kernels.get(region.start, b""))
            found.append(Extent(region.start, region.start + len(data), 0, Source(memoryview(data))))
        elif region.anonymous and region.readable:
            found += [*parts, *_between(region, parts, zeros)]
        elif not region.anonymous and region.readable:
            pages = list(_pages(parts))
            found += [*pages, *_between(region, pages, MappedFile(files, region))]
        else:
            found += _pages(parts)
    absent = merge_ranges(stop.absent)
    starts = [gap.start for gap in absent]
    readable = (extent.part(*part) for extent in found for part in gaps(extent.start, extent.end, absent, starts))
    return sorted(readable, key=lambda extent: extent.start)


def _windows(plan: CopyPlan, stop: StopData) -> list[Extent]:
    """Return the parts of the process's memory that have a place in the buffers, ascending."""
    planned = _Memory(plan.buffer, stop.placed)
    made = [Extent(window.start, window.end, window.offset, planned) for window in plan.windows]
    if stop.extra is not None:
        later, at = _Memory(stop.extra, stop.placed), 0
        for start, end in stop.rest:
            made.append(Extent(start, end, at, later))
            at += end - start
    return sorted(made, key=lambda window: window.start)


def _between(region: Region, parts: Sequence[Extent], source: Source) -> Iterator[Extent]:
    """Yield extents that fill the parts of the region between these extents. Offsets in `source`
    are addresses."""
    for low, high in gaps(region.start, region.end, parts, [part.start for part in parts]):
        yield Extent(low, high, low, source)


def _pages(parts: Sequence[Extent]) -> Iterator[Extent]:
    """Yield the copied pages."""
    for part in parts:
        move = part.start - part.offset
        for start, end in part.source.nonzero(part.offset, part.end - move):
            yield Extent(start + move, end + move, start, part.source)


class _Memory(Source):
    """A buffer, with the pages that were copied into it."""

    def __init__(self, buffer: CopyBuffer, placed: CopiedRuns) -> None:
        base, end = buffer.address, buffer.address + buffer.size
        super().__init__(
            buffer.view(), Runs.of((at - base, at - base + count) for at, count in zip(placed.destination, placed.size) if base <= at < end)
        )

    def ahead(self, offset: int, size: int) -> None:
        pass


def join_pages(placed: CopiedRuns) -> Iterator[tuple[int, int]]:
    """Yield (address in findleaks' memory, bytes) of the copied pages. Adjacent pages are
    joined."""
    low = high = -1
    for at, count in zip(placed.destination, placed.size):
        if at != high:
            if high > low:
                yield low, high - low
            low = at
        high = at + count
    if high > low:
        yield low, high - low
