"""Read memory of a target by address from buffers in findleaks' memory: a mapped core, mapped
files."""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Optional

from findleaks.errors import UnreadableMemory
from findleaks.target.arch import Arch
from findleaks.target.base import MARGIN, PIECE, Piece, Range
from findleaks.target.ranges import find_overlaps, gaps
from findleaks.target.runs import Runs
from findleaks.value_classes import NamedTuple

MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)

SKIP = 256 << 20  # least bytes of known zeros that `pieces` omits, as for a live process
PAGE = 4096  # bytes


def map_file(fd: int, size: int, scattered: bool = False) -> memoryview:
    """Map `size` bytes of an open file copy-on-write. If `scattered`, map it without read-ahead.
    ctypes can take addresses in such a map (it refuses read-only memory), but no write reaches the
    file. The mapping does not count against the overcommit limit, which a big core would exceed.
    Some systems do count it. If such a system refuses the mapping, it is read-only, and `pieces`
    copies the data."""
    flags = mmap.MAP_PRIVATE | MAP_NORESERVE
    try:
        made = mmap.mmap(fd, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError:
        made = mmap.mmap(fd, size, flags=flags, prot=mmap.PROT_READ)
    if scattered and hasattr(made, "madvise"):
        with suppress(OSError):  # this is only advice to the kernel
            made.madvise(mmap.MADV_RANDOM)
    return memoryview(made)


def zeros(size: int) -> memoryview:
    """Return `size` bytes of zeros that take no memory."""
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE))


class Source:
    """A buffer, created on first use. If `direct` is set, `view` has all of it.
    `data` has the parts that may be nonzero, if they are known without reading. The other parts are
    holes of a file, which are zeros; a core may have terabytes of them."""

    direct = True

    def __init__(self, view: Optional[memoryview] = None, data: Optional[Runs] = None) -> None:
        self._view = view
        self.data = data

    def view(self) -> memoryview:
        if self._view is None:
            self._view = self.make()
        return self._view

    def make(self) -> memoryview:
        raise NotImplementedError

    def part(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes from `offset` on; fewer at the end of the buffer."""
        return self.view()[offset : offset + size]

    def nonzero(self, offset: int, end: int) -> Iterator[Range]:
        """Yield the parts of [offset, end) that may be nonzero, ascending."""
        return iter((Range(offset, end),)) if self.data is None else self.data.within(offset, end)

    def ahead(self, offset: int, size: int) -> None:
        """Start to read `size` bytes from `offset` on. If the file is not cached, this is three
        times as fast as page faults."""
        owner = self.view().obj
        if isinstance(owner, mmap.mmap) and hasattr(owner, "madvise"):
            for start, end in self.nonzero(offset, min(offset + size, len(owner))):
                low = start // mmap.PAGESIZE * mmap.PAGESIZE
                if low < end:
                    try:
                        owner.madvise(mmap.MADV_WILLNEED, low, end - low)
                    except (OSError, ValueError):  # this is only advice to the kernel
                        pass

    def close(self) -> None:
        """Free the memory. If pieces are still in use, the last one frees it."""
        view, self._view = self._view, None
        if view is not None:
            owner = view.obj
            try:
                view.release()
                if isinstance(owner, mmap.mmap):
                    owner.close()
            except BufferError:
                pass


class Zeros(Source):
    """`size` bytes of zeros that take no memory.
    `view` has at most PIECE bytes, because the headers of a core may claim any size."""

    direct = False

    def __init__(self, size: int) -> None:
        super().__init__(data=Runs.of(()))
        self.size = size

    def make(self) -> memoryview:
        return zeros(min(self.size, PIECE))

    def part(self, offset: int, size: int) -> memoryview:
        size = min(size, self.size - offset)
        return self.view()[:size] if size <= PIECE else memoryview(bytearray(size))


class Extent(NamedTuple):
    """Memory [start, end) of the target, which is stored at `offset` of `source`."""

    start: int
    end: int
    offset: int
    source: Source

    def part(self, start: int, end: int) -> Extent:
        """Return the part [start, end) of this extent, which must contain it."""
        return Extent(start, end, self.offset + start - self.start, self.source)


def disjoint(extents: Sequence[Extent]) -> list[Extent]:
    """Sort extents, drop empty ones, and join those that continue one another.
    If two overlap, the earlier one is kept."""
    result: list[Extent] = []
    last = 0
    for start, end, offset, source in sorted(extents, key=lambda e: (e[0], -e[1])):
        if start < last:
            offset += last - start
            start = last
        if start < end:
            before = result[-1] if result else None
            if before and (before.end, before.source, before.offset + before.end - before.start) == (start, source, offset):
                result[-1] = before._replace(end=end)  # most extents are adjacent in the file, too
            else:
                result.append(Extent(start, end, offset, source))
            last = end
    return result


class ExtentReader:
    """Implements `read`, `word` and `pieces` of the Target protocol for sorted, disjoint
    extents."""

    def __init__(self, arch: Arch, extents: Sequence[Extent]) -> None:
        self.arch = arch
        self._size = arch.word
        self._unpack = struct.Struct(arch.word_format).unpack_from
        self.set_extents(extents)

    def set_extents(self, extents: Sequence[Extent]) -> None:
        self._extents = extents
        self._starts = [extent.start for extent in extents]
        # Cache of the extent of the last word read: the words of a list or a structure are mostly
        # in one extent.
        self._low, self._high, self._delta = 1, 0, 0
        self._view = memoryview(b"")

    def _at(self, address: int) -> int:
        """Return the index of the extent that contains `address`, or -1."""
        index = bisect_right(self._starts, address) - 1
        return index if index >= 0 and address < self._extents[index].end else -1

    def read(self, address: int, size: int) -> bytes:
        """Return exactly `size` bytes, never fewer.
        Raises UnreadableMemory."""
        if size <= 0:
            return b""
        index = self._at(address)
        if index < 0:
            raise UnreadableMemory(address, size)
        extent = self._extents[index]
        at = address - extent.start + extent.offset
        if address + size <= extent.end:
            return extent.source.part(at, size).tobytes()
        missing = next(gaps(address, address + size, self._extents, self._starts), None)
        if missing is not None:  # checked before copying, because a corrupt size may be huge
            raise UnreadableMemory(address, size, f"nothing is mapped from {missing.start:#x}")
        parts = find_overlaps(self._extents, self._starts, address, address + size)
        return b"".join(extent.source.part(low - extent.start + extent.offset, high - low) for extent, low, high in parts)

    def word(self, address: int) -> int:
        """Return the unsigned, pointer-sized word at `address`.
        Raises UnreadableMemory."""
        if self._low <= address <= self._high:
            return int(self._unpack(self._view, address - self._delta)[0])
        index = self._at(address)
        if index < 0:
            raise UnreadableMemory(address, self._size)
        extent = self._extents[index]
        if address + self._size > extent.end or not extent.source.direct:
            return int(self._unpack(self.read(address, self._size))[0])
        self._view = extent.source.view()
        self._low, self._high, self._delta = extent.start, extent.end - self._size, extent.start - extent.offset
        return int(self._unpack(self._view, address - self._delta)[0])

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """Yield the present parts of [start, end), ascending, each at most PIECE bytes.
        Omits very long runs of known zeros."""
        for extent, low, high in find_overlaps(self._extents, self._starts, start, end):
            if extent.source.data is None or high - low < SKIP:
                yield from self._slice_extent(extent, low, high)
            else:
                following = low  # start of the bytes that are not yielded yet
                for part in self._nonzero(extent, low, high, MARGIN):
                    if part.start - following >= SKIP:
                        yield from self._slice_extent(extent, low, following)
                        low = part.start
                    following = part.end
                yield from self._slice_extent(extent, low, following if high - following >= SKIP else high)

    def _slice_extent(self, extent: Extent, low: int, high: int) -> Iterator[Piece]:
        while low < high:
            at = low - extent.start + extent.offset
            size = min(high - low, PIECE)
            if high - low > size:
                extent.source.ahead(at + size, min(high - low - size, PIECE))
            data = extent.source.part(at, size)
            if data.readonly:
                data = memoryview(bytearray(data))
            yield Piece(low, data)
            low += size

    def nonzero(self, start: int, end: int, margin: int = MARGIN) -> Iterator[Range]:
        """See Target."""
        for extent, low, high in find_overlaps(self._extents, self._starts, start, end):
            yield from self._nonzero(extent, low, high, margin)

    @staticmethod
    def _nonzero(extent: Extent, low: int, high: int, margin: int) -> Iterator[Range]:
        """Yield the parts of [low, high) that may be nonzero, as whole pages with a margin."""
        move, reached = extent.start - extent.offset, low
        for start, end in extent.source.nonzero(max(low - move - margin, extent.offset), high - move + margin):
            start = max((start + move - margin) & -PAGE, reached)
            reached = max(min(-(-(end + move + margin) // PAGE) * PAGE, high), reached)
            if start < reached:
                yield Range(start, reached)

    def close(self) -> None:
        """Free the memory of the extents."""
        self._view = memoryview(b"")
        self._low, self._high = 1, 0
        for source in {extent.source for extent in self._extents}:
            source.close()
        self.set_extents([])
