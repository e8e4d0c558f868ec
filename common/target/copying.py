"""Copy the pages of a stopped process into a buffer that was prepared before the stop.

The buffer has a window for each part of the process's memory that has pages. A page has the same
offset in the window as in that part. Pages that the process lacks also stay untouched in the
buffer. They read as zeros, as in the process, and take no memory.
Sources: process_vm_readv(2), madvise(2), proc(5) (/proc/PID/mem)."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import sub
from typing import Any, NamedTuple

from findleaks.target.base import Range, Region, is_shared_memory
from findleaks.target.ranges import merge_ranges
from findleaks.target.reader import MAP_NORESERVE
from findleaks.target.runs import Runs
from findleaks.target.stopped_pages import StoppedPages

# Prefixes of the names of mappings that the kernel provides
KERNELS = ("[vdso", "[vvar", "[vsyscall")
_HOLES = (16 << 20, 1 << 20, 64 << 10, 0)
"""Candidates for the longest gap without pages, in bytes, that a window may span. `windows` uses
the first for which all windows together are at most `_SPREAD` times as large as the pages."""
_SPREAD = 16
_LEAST = 64 << 20  # bytes: windows whose total size is at most this are never too large
_POPULATE_WRITE, _HUGE, _NO_HUGE = 23, 14, 15  # MADV_…; the first since Linux 5.14
_HUGE_PAGE = 2 << 20  # bytes
_STEP = 64 << 20  # bytes copied or populated between two checks for Ctrl-C: some 30 ms
_LONGEST = 16 << 20  # most bytes of one element for process_vm_readv; longer runs are split
_VECTOR = 1024  # UIO_MAXIOV
_MOST_BAD = 1024  # unreadable pages in a row after which the rest of a run is skipped


class Window(NamedTuple):
    """A range [start, end) of the process's memory, and the offset of its copy in the buffer."""

    start: int
    end: int
    offset: int


class CopiedRuns(NamedTuple):
    """Runs of pages, as columns: address in the process, address of the copy, size in bytes."""

    source: array[int]
    destination: array[int]
    size: array[int]

    def add(self, source: int, destination: int, size: int) -> None:
        self.source.append(source)
        self.destination.append(destination)
        self.size.append(size)

    @classmethod
    def none(cls) -> CopiedRuns:
        return cls(array("Q"), array("Q"), array("Q"))


def pages_to_copy(regions: Sequence[Region], at: StoppedPages) -> Iterator[tuple[Region, array[int]]]:
    """Yield each region with the pages to copy, as a flat array of the start and end of each run.
    These are private pages, and shared pages that are not read only. Other pages are read later
    from the mapped files."""
    again = _pages_mapped_again(regions, at)
    for region in regions:
        if region.start in again:
            yield region, again[region.start]
        elif not region.name.startswith(KERNELS) and (region.private or region.writable or region.may_hold_data):
            yield region, (at.own if region.private else at.shared).cut(region.start, region.end)


def _pages_mapped_again(regions: Sequence[Region], at: StoppedPages) -> dict[int, array[int]]:
    """Return the pages to copy of each region of shared memory that is mapped more than once, by
    the start of the region. The kernel reports a page only for the mappings through which the
    process has used it. For example, ZGC maps its heap at three addresses, and uses one of them at
    a time."""
    files: dict[str, list[Region]] = {}
    for region in regions:
        if not region.private and region.writable and is_shared_memory(region.name):
            files.setdefault(region.name, []).append(region)
    found: dict[int, array[int]] = {}
    for mapped in files.values():
        if len({region.file_offset for region in mapped}) == len(mapped):
            continue
        used = merge_ranges(
            Range(low - region.start + region.file_offset, high - region.start + region.file_offset)
            for region in mapped
            for low, high in at.shared.within(region.start, region.end)
        )
        pages = Runs.of(used)
        for region in mapped:
            words = pages.cut(region.file_offset, region.file_offset + region.size)
            found[region.start] = array("Q", (word - region.file_offset + region.start for word in words))
    return found


def windows(regions: Sequence[Region], at: StoppedPages) -> tuple[list[Window], int]:
    """Return the windows, ascending, and the total number of bytes of the pages in them."""
    rows = [(region, words) for region, words in pages_to_copy(regions, at) if words]
    pages = sum(sum(words[1::2]) - sum(words[::2]) for _, words in rows)
    made: list[Window] = []
    for hole in _HOLES:
        made = _windows(rows, hole)
        if not made or made[-1].offset + made[-1].end - made[-1].start <= max(_SPREAD * pages, _LEAST):
            break
    return made, pages


def _windows(rows: Sequence[tuple[Region, array[int]]], hole: int) -> list[Window]:
    made: list[Window] = []
    offset = 0
    for region, words in rows:
        bound = hole if region.anonymous else 0
        if region.size <= bound:
            ranges = [(region.start, region.end)]
        else:
            ranges = []
            for start, end in zip(words[::2], words[1::2]):
                if ranges and start - ranges[-1][1] <= bound:
                    ranges[-1] = ranges[-1][0], end
                else:
                    ranges.append((start, end))
        for start, end in ranges:
            made.append(Window(start, end, offset))
            offset += end - start
    return made


class CopyBuffer:
    """A buffer that takes no memory until `ready` populates it, or until it is written to.
    Raises OSError if the system refuses it."""

    def __init__(self, size: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self._memory = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=flags)
        self.size = size
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._advise(_NO_HUGE, 0, size)  # otherwise one page of a sparse window takes 2 MiB

    def view(self) -> memoryview:
        """Return the whole buffer. It is freed when the last view is released."""
        return memoryview(self._memory)

    def ready(self, offset: int, size: int, progress: Callable[[int], None]) -> None:
        """Populate a part of the buffer before it is written to.
        `progress` is called after each step with the number of bytes populated, and may raise."""
        low, high = -(-offset // _HUGE_PAGE) * _HUGE_PAGE, (offset + size) // _HUGE_PAGE * _HUGE_PAGE
        if high - low >= 2 * _HUGE_PAGE:
            self._advise(_HUGE, low, high - low)
        end = offset + size
        while offset < end:
            part = min(_STEP, end - offset)
            if not self._advise(_POPULATE_WRITE, offset, part):
                with self.view() as view:
                    view[offset : offset + part : mmap.PAGESIZE] = bytes(-(-part // mmap.PAGESIZE))
            offset += part
            progress(part)

    def _advise(self, advice: int, offset: int, size: int) -> bool:
        try:
            if size:
                self._memory.madvise(advice, offset, size)
        except OSError:
            return False
        return True


class CopyPlacement:
    """Assigns each page its place in the buffer."""

    def __init__(self, made: Sequence[Window], address: int) -> None:
        self._starts = [window.start for window in made]
        self._ends = [window.end for window in made]
        self._moves = [address + window.offset - window.start for window in made]

    def place(self, words: array[int], placed: CopiedRuns, rest: list[Range]) -> None:
        """Add runs of pages (a flat array of starts and ends) to `placed`, or to `rest` if no
        window contains them."""
        if not words:
            return
        at = bisect_right(self._starts, words[0]) - 1
        if at >= 0 and words[-1] <= self._ends[at]:
            starts = words[::2]
            placed.source.extend(starts)
            placed.destination.extend(array("Q", map(self._moves[at].__add__, starts)))
            placed.size.extend(array("Q", map(sub, words[1::2], starts)))
            return
        for start, end in zip(words[::2], words[1::2]):
            at = max(bisect_right(self._starts, start) - 1, 0)
            while start < end:
                while at < len(self._starts) and self._ends[at] <= start:
                    at += 1
                stop = min(end, self._starts[at]) if at < len(self._starts) else end
                if start < stop:
                    rest.append(Range(start, stop))
                    start = stop
                    continue
                stop = min(end, self._ends[at])
                placed.add(start, start + self._moves[at], stop - start)
                start = stop


class Transfer:
    """Copies memory out of a process. `pid` is the id of one of its threads.
    `memory` is a descriptor of /proc/PID/mem. `look` is called regularly, and may raise."""

    def __init__(self, pid: int, memory: int, page: int, look: Callable[[], None]) -> None:
        self._pid, self._memory, self._page, self._look = pid, memory, page, look
        self.absent: list[Range] = []  # parts that could not be read
        libc: Any = ctypes.CDLL(None, use_errno=True)
        self._readv = libc.process_vm_readv
        self._readv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
        self._readv.restype = ctypes.c_ssize_t
        self._refused = False  # process_vm_readv is missing or not permitted

    def run(self, runs: CopiedRuns) -> None:
        """Copy these runs, and add unreadable parts to `absent`.
        Raises ProcessLookupError if the process is gone."""
        source, destination, size = _split_long(runs)
        at, count = 0, len(source)
        bad = 0
        while at < count:
            self._look()
            end = min(at + _VECTOR, count)
            while end - at > 1 and sum(size[at:end]) > _STEP:
                end = at + (end - at) // 2
            got = self._vector(source[at:end], destination[at:end], size[at:end])
            while at < end and got >= size[at]:
                got -= size[at]
                at += 1
                bad = 0
            if at < end:  # the next byte could not be read
                done = got + self._read_page(source[at] + got, destination[at] + got, size[at] - got)
                bad += done == got
                if done == got:
                    lost = size[at] - got if bad >= _MOST_BAD else min(self._page, size[at] - got)
                    self.absent.append(Range(source[at] + got, source[at] + got + lost))
                    done += lost
                source[at], destination[at], size[at] = source[at] + done, destination[at] + done, size[at] - done
                at += not size[at]

    def _vector(self, source: array[int], destination: array[int], size: array[int]) -> int:
        """Copy runs, in their order, with one call of process_vm_readv. Return the number of bytes
        copied."""
        count = len(source)
        if self._refused:
            return self._read_page(source[0], destination[0], size[0])
        local, remote = array("Q", bytes(16 * count)), array("Q", bytes(16 * count))
        local[::2], local[1::2] = destination, size
        remote[::2], remote[1::2] = source, size
        got = int(self._readv(self._pid, local.buffer_info()[0], count, remote.buffer_info()[0], count, 0))
        if got >= 0:
            return got
        error = ctypes.get_errno()
        if error == errno.ESRCH:
            raise ProcessLookupError(error, os.strerror(error))
        self._refused = error in (errno.EPERM, errno.ENOSYS)
        return 0

    def _read_page(self, source: int, destination: int, size: int) -> int:
        """Copy from /proc/PID/mem, which ignores page protection. Return the number of bytes
        copied.
        Copies one page, or the whole run if process_vm_readv is refused."""
        if not self._refused:
            size = min(size, self._page - source % self._page)
        try:
            return os.preadv(self._memory, [(ctypes.c_char * size).from_address(destination)], source)
        except (OSError, OverflowError):
            return 0


def _split_long(runs: CopiedRuns) -> CopiedRuns:
    """Return a copy of the columns in which runs longer than _LONGEST are split."""
    made = CopiedRuns.none()
    if not runs.size or max(runs.size) <= _LONGEST:
        for column, given in zip(made, runs):
            column.extend(given)
        return made
    for source, destination, size in zip(*runs):
        for at in range(0, size, _LONGEST):
            made.add(source + at, destination + at, min(_LONGEST, size - at))
    return made
