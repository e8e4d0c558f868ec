"""Compute the resident pages of a process from the holes in its core file.

Linux fs/coredump.c, dump_user_range (6.x; the same since 2.6.x): for a page that is missing, or is
the zero page, the kernel writes nothing and advances the file position, which leaves a hole. It
writes every other page, even a page of zeros. vma_dump_size omits private anonymous mappings that
were never written to.

Other programs create holes, too: `cp --sparse=always`, coredumpctl, rsync, tar and newer versions
of GDB's gcore omit zeros, whether or not these were in memory. Therefore holes are trusted only if
all of these conditions show that the kernel created them:

1. The core has the kernel's format, not gcore's (`is_kernel_core`).
2. The holes have the granularity of a page: each begins and ends at a page boundary. Some of these
boundaries are not boundaries of larger blocks, in which some file systems and tools work.
3. The file contains a page of zeros, which a tool that omits zeros would have omitted. Often it is
the last one: if the last pages were missing, Linux since 5.12 ends the file with one byte of zero
(do_coredump), while cp, tar, rsync and coredumpctl only set its size. (cpio writes that byte, too:
holes of its sparse copies are trusted wrongly.) A core without a page of zeros may be original, but
nothing in it proves this."""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Callable, Sequence
from typing import Optional

from findleaks.target import elf
from findleaks.target.base import Range, Region
from findleaks.target.layout import Load
from findleaks.target.ranges import merge_ranges, region_at
from findleaks.target.residency.presence import Presence
from findleaks.target.runs import Runs

_SLICE = 1 << 20  # bytes searched between two checks for Ctrl-C


_SHORT = 1 << 20  # smaller holes are read as zeros, which is equally fast, and leaves fewer pieces
_SMALL = 128 << 10  # most bytes of an average part of a file that `is_scattered`
# The limit used if joining across holes below _SHORT would add more bytes than the data has, for
# example because pages are scattered over terabytes.
_SHORTEST = 64 << 10


def data_parts(fd: int, size: int) -> Optional[list[Range]]:
    """Return the parts of an open file of `size` bytes that are not holes, ascending; None:
    unknown."""
    at, data = 0, []
    try:
        while at < size:
            at = os.lseek(fd, at, os.SEEK_DATA)
            end = os.lseek(fd, at, os.SEEK_HOLE)
            data.append(Range(at, end))
            at = end
    except OSError as error:
        if error.errno != errno.ENXIO:  # ENXIO: only holes follow
            return None
    return data


def is_scattered(data: Sequence[Range], size: int) -> bool:
    """Return whether a file of `size` bytes consists mostly of holes between small parts.
    In such a file the read-ahead of the kernel would fill memory with the zeros of holes: this took
    17 s for 4,000 pages scattered over a terabyte."""
    there = sum(end - start for start, end in data)
    return 2 * there < size and there < _SMALL * len(data)


def without_long_holes(data: Sequence[Range]) -> Runs:
    """Return the parts, joined across short holes."""
    words: array[int] = array("Q")
    there = sum(end - start for start, end in data)
    between = (after.start - before.end for before, after in zip(data, data[1:]))
    short = _SHORT if sum(hole for hole in between if hole < _SHORT) <= there else _SHORTEST
    for start, end in data:
        if words and start - words[-1] < short:
            words[-1] = end
        else:
            words.append(start)
            words.append(end)
    return Runs(words)


def is_kernel_core(head: elf.Header, loads: Sequence[Load], unit: int, page: int) -> bool:
    """Return whether the core has the format of the kernel.
    GDB's gcore adds section headers, gives offsets in mapped files in bytes (`unit` is the page
    size in NT_FILE, 0 without this note), and does not align pages of memory to pages of the
    file."""
    # For more than 65,534 segments the kernel, too, writes one section header that counts them
    # (fs/binfmt_elf.c, fill_extnum_info).
    sections = head.shnum > (head.phnum == elf.PN_XNUM) or (head.shoff > 0 and head.phnum != elf.PN_XNUM)
    whole = all((load.offset - load.start) % page == 0 for load in loads if load.there)
    return not sections and unit in (0, page) and whole


def has_page_holes(data: Sequence[Range], first: int, size: int, page: int) -> bool:
    """Return whether the holes between the parts `data` have the granularity of a page. Bounds
    before `first`, the offset of the first segment, are ignored."""
    bounds = [at for part in data for at in part if first < at < size]
    return all(at % page == 0 for at in bounds) and any(at // page & 1 for at in bounds)


def find_zero_page(view: memoryview, data: Runs, page: int, progress: Callable[[float], None]) -> int:
    """Return the offset of a page of zeros that is not in a hole of the file; -1 if there is none.
    Tries the last page first. `progress` gets the completed part once per MiB, and may raise."""
    zeros, words = bytes(page), page // 8
    total, done = data.total or 1, 0
    start, end = data.words[-2:] or (0, 0)
    if end == len(view) and end - page >= start and end % page == 0 and view[end - page : end].tobytes() == zeros:
        return end - page
    for start, end in data:
        low, last = start + -start % page, end // page * page
        while low < last:
            progress(done / total)
            part = view[low : min(low + _SLICE, last)]
            begins = part.cast("Q")[::words].tolist()  # first word of each page, seldom zero
            if 0 in begins:
                for index, word in enumerate(begins):
                    if not word and part[index * page : (index + 1) * page].tobytes() == zeros:
                        return low + index * page
            low += len(part)
            done += len(part)
    return -1


def presence_of_holes(data: Runs, loads: Sequence[Load], regions: Sequence[Region], anonymous: bool) -> Optional[Presence]:
    """Return the resident pages, derived from the holes. None if segments overlap in the file,
    which does not occur in cores by the kernel.
    Covers only anonymous mappings, because the kernel also writes pages of files that were not in
    memory. `anonymous` means that the core has anonymous memory (coredump_filter); then a mapping
    without a byte in the core was never written to."""
    reached = 0
    for load in sorted(loads, key=lambda load: load.offset):
        if load.there:
            if load.offset < reached:
                return None
            reached = load.offset + load.there
    held: array[int] = array("Q")
    for load in sorted(loads):
        mine = data.cut(load.offset, load.offset + load.there)
        if mine:
            move = load.start - load.offset
            mine = array("Q", [at + move for at in mine])
            if held and held[-1] > mine[0]:
                return None
            if held and held[-1] == mine[0]:
                held.pop()
                mine = mine[1:]
            held += mine
    known: list[Range] = []
    for region in regions:
        segment = region_at(loads, region.start) if not region.name.startswith("/") else None
        if segment is not None and (segment.filesz or anonymous):
            end = segment.start + segment.there if segment.filesz else region.end
            known.append(Range(region.start, min(region.end, end)))
    return Presence("holes of the core", Runs.of(merge_ranges(known)), Runs(held), Runs.of(()))
