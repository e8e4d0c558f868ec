"""Read which pages of a process are resident at one moment, in all mappings: anonymous, file,
shared. Sources: Linux Documentation/filesystems/proc.rst (smaps), admin-guide/mm/pagemap.rst,
include/uapi/linux/fs.h (PAGEMAP_SCAN, 6.7: reports the zero page to every user; 6.16: guard pages),
include/uapi/linux/kernel-page-flags.h (KPF_ZERO_PAGE: on older kernels, only the superuser can read
it)."""

from __future__ import annotations

import ctypes
import os
import re
import struct
from array import array
from collections.abc import Callable, Iterator
from typing import Optional

from findleaks.target.base import Range
from findleaks.target.files import read_file
from findleaks.target.runs import Runs
from findleaks.value_classes import NamedTuple

_PAGEMAP_SCAN = 0xC0606610  # _IOWR('f', 16, struct pm_scan_arg), 96 bytes
FILE, PRESENT, SWAPPED, ZERO = 1 << 2, 1 << 3, 1 << 4, 1 << 5  # PAGE_IS_…; FILE: or shared memory
GUARD = 1 << 8  # PAGE_IS_GUARD: made by MADV_GUARD_INSTALL, has no data; SWAPPED is set too
VECTOR = 1 << 13  # most runs that one call of PAGEMAP_SCAN returns
RUN = 24  # bytes of a run (struct page_region)
_STEP = 1 << 16  # pages whose entries are read from pagemap in one call
# Kind of a page by the top byte of its pagemap entry: bits 63, 62, 61; bit 58 is set for a guard.
_HELD = (0, SWAPPED, PRESENT, PRESENT)
_KINDS = bytes(0 if byte & 4 else _HELD[byte >> 6] | (FILE if byte >> 5 in (3, 5, 7) else 0) for byte in range(256))
_PFN = (1 << 55) - 1  # the page frame number in a pagemap entry
_KPF_ZERO_PAGE = 1 << 24
_MAPPING = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) [r-][w-][x-][ps] ")


UNKNOWN = "unknown"


class Presence(NamedTuple):
    """Resident pages, as disjoint, ascending ranges of whole pages. For a core, `resident` may have
    pages outside `known`: pages of mapped files, which were not necessarily resident."""

    # "pagemap" (live), "side file", "holes of the core", "note of the core", or UNKNOWN (then all
    # lists are empty).
    source: str
    known: Runs  # memory of known residency: all mappings (live), or anonymous ones (holes)
    resident: Runs  # pages in memory, without the kernel's zero page
    swapped: Runs  # pages in swap, which are not resident
    rss: Optional[int] = None  # resident bytes as counted by the kernel; None: unknown
    # Mappings in which an unknown number of the resident pages are the zero page.
    unsure: tuple[Range, ...] = ()
    warnings: tuple[str, ...] = ()
    saved: str = ""  # time at which the side file was written

    def __bool__(self) -> bool:
        return self.source != UNKNOWN

    def bytes(self, start: int, end: int) -> Optional[int]:
        """Return the number of resident bytes in [start, end); None unless all of [start, end) is
        known."""
        if start >= end:
            return 0
        return self.resident.bytes(start, end) if self.known.bytes(start, end) == end - start else None


class MappingCounts(NamedTuple):
    """A mapping with its counts from smaps, in bytes; -1 if smaps cannot be read."""

    start: int
    end: int
    rss: int
    swap: int


def read_presence(proc: str, page: int, progress: Callable[[float], None]) -> Optional[Presence]:
    """Read the resident pages of a live process; None if the system does not report them.
    `proc` is its folder ("/proc/4711"); the process should be stopped. `progress` is called at
    least every 200 ms with the completed part, and may raise."""
    try:
        fd = os.open(f"{proc}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        mappings = _smaps(proc)
        if not mappings:
            return None
        resident, swapped = array("Q"), array("Q")
        unsure: list[Range] = []
        scan = [True]
        for at, mapped in enumerate(mappings):
            progress(at / len(mappings))
            if mapped.rss == 0 and mapped.swap == 0:
                continue
            count = 0
            for start, end, kind in _scan_mapping(fd, page, mapped, scan, progress):
                _append_run(swapped if kind & SWAPPED else resident, start, end)
                count += end - start if kind & PRESENT else 0
            if 0 <= mapped.rss < count:
                unsure.append(Range(mapped.start, mapped.end))
    except OSError:
        return None
    finally:
        os.close(fd)
    known = Runs.of((mapped.start, mapped.end) for mapped in mappings)
    rss = sum(mapped.rss for mapped in mappings) if all(mapped.rss >= 0 for mapped in mappings) else None
    return Presence("pagemap", known, Runs(resident), Runs(swapped), rss, tuple(unsure))


def _append_run(words: array[int], start: int, end: int) -> None:
    if words and words[-1] == start:
        words[-1] = end
    else:
        words.append(start)
        words.append(end)


def _smaps(proc: str) -> list[MappingCounts]:
    """Read the mappings, ascending, without the vsyscall page, which belongs to the kernel."""
    try:
        lines, counted = read_file(f"{proc}/smaps").split(b"\n"), 0
    except OSError:
        lines, counted = read_file(f"{proc}/maps").split(b"\n"), -1
    found: list[MappingCounts] = []
    for line in lines:
        if line[:4] == b"Rss:":
            found[-1] = found[-1]._replace(rss=int(line.split()[1]) << 10)
        elif line[:5] == b"Swap:":
            found[-1] = found[-1]._replace(swap=int(line.split()[1]) << 10)
        else:
            match = _MAPPING.match(line)
            if match is not None:
                found.append(MappingCounts(int(match[1], 16), int(match[2], 16), counted, counted))
    return [mapped for mapped in found if mapped.end < 1 << 63]


def _scan_mapping(
    fd: int, page: int, mapped: MappingCounts, scan: list[bool], progress: Callable[[float], None]
) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, PRESENT or SWAPPED) of the runs of pages in a mapping. Zero pages are
    omitted if the kernel identifies them."""
    at = mapped.start
    if scan[0]:
        try:
            vector = ctypes.create_string_buffer(RUN * VECTOR)
            while at < mapped.end:
                runs, at = scan_pagemap(fd, at, mapped.end, vector)
                yield from (run for run in runs if not run[2] & ZERO)
                progress(0.0)
            return
        except OSError:
            scan[0] = False  # a kernel before 6.7
    held = mapped.rss + mapped.swap if mapped.rss >= 0 else None
    runs = list(entries(fd, page, mapped.start, mapped.end, progress, held))
    if 0 <= mapped.rss < sum(end - start for start, end, kind in runs if kind & PRESENT):
        runs = list(entries(fd, page, mapped.start, mapped.end, progress, zeros=True))
    yield from runs


def entries(
    fd: int, page: int, start: int, end: int, progress: Callable[[float], None], held: Optional[int] = None, zeros: bool = False
) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, kinds) of runs of pages in [start, end), from pagemap entries.
    Stops after `held` bytes are found, to skip the rest of a huge reservation. With `zeros`, the
    zero page is omitted if it can be identified."""
    for low in range(start, end, _STEP * page):
        for run in _read(fd, page, low, min(low + _STEP * page, end), zeros):
            held = None if held is None else held - (run[1] - run[0])
            yield run
        progress(0.0)
        if held is not None and held <= 0:
            return


def scan_pagemap(fd: int, start: int, end: int, vector: ctypes.Array[ctypes.c_char]) -> tuple[list[tuple[int, int, int]], int]:
    """Call PAGEMAP_SCAN once.
    Returns (start, end, kinds) of the runs of PRESENT or SWAPPED pages, without guard pages, and
    the address to continue from. `vector` has space for the runs, RUN bytes each.
    Raises OSError if the kernel lacks PAGEMAP_SCAN."""
    try:
        count = _scan(fd, start, end, vector, GUARD)
    except OSError:
        count = _scan(fd, start, end, vector, 0)  # a kernel before 6.16 does not know guard pages
    runs = list(struct.iter_unpack("=3Q", vector.raw[: RUN * count]))
    # walk_end is not used: it is stale if the kernel filled its own buffer more than once
    # (fs/proc/task_mmu.c, do_pagemap_scan, 6.7 to 6.18).
    following = runs[-1][1] if RUN * count == len(vector) else end
    return runs, following if following > start else end


def _scan(fd: int, start: int, end: int, vector: ctypes.Array[ctypes.c_char], omitted: int) -> int:
    """Call PAGEMAP_SCAN for pages that are not `omitted`; return the number of runs in `vector`."""
    import fcntl

    # size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, anyof, return
    reported = FILE | PRESENT | SWAPPED | ZERO
    fields = (96, 0, start, end, 0, ctypes.addressof(vector), len(vector) // RUN, 0, omitted, omitted, PRESENT | SWAPPED, reported)
    return int(fcntl.ioctl(fd, _PAGEMAP_SCAN, bytearray(struct.pack("=12Q", *fields)), True))


def _read(fd: int, page: int, low: int, high: int, zeros: bool) -> Iterator[tuple[int, int, int]]:
    entries = os.pread(fd, 8 * ((high - low) // page), 8 * (low // page))
    kinds = bytearray(entries[7::8].translate(_KINDS))
    for at in _zeros(entries, kinds) if zeros else ():
        kinds[at] = 0
    at, count = 0, len(kinds)
    while at < count:
        kind = kinds[at]
        stop = at + 1
        other = re.compile(b"[^" + re.escape(bytes([kind])) + b"]", re.DOTALL).search(kinds, stop)
        stop = other.start() if other else count
        if kind:
            yield low + at * page, low + stop * page, kind
        at = stop


def _zeros(entries: bytes, kinds: bytearray) -> list[int]:
    """Return the indices of entries of the zero page. [] without root, because then frame numbers
    are 0."""
    frames = [entry & _PFN for entry in array("Q", entries)]
    places: dict[int, list[int]] = {}
    for at, frame in enumerate(frames):
        if frame and kinds[at] & PRESENT:
            places.setdefault(frame, []).append(at)
    if not places:
        return []
    found: list[int] = []
    try:
        with open("/proc/kpageflags", "rb", buffering=0) as file:
            for frame, where in places.items():
                flags = os.pread(file.fileno(), 8, 8 * frame)
                if len(flags) == 8 and int.from_bytes(flags, "little") & _KPF_ZERO_PAGE:
                    found += where
    except OSError:
        return []
    return found
