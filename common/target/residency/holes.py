"""Resident pages of a core's process, by the holes that the kernel left in the core file.

Linux fs/coredump.c, dump_user_range (6.x; the same since 2.6.x): for a page that is not there, or
is the zero page, no byte is written and the file position moves on, which leaves a hole. Every
other page is written, even if it is all zeros. vma_dump_size leaves out private anonymous mappings
that were never written to.
Other programs make holes as well: `cp --sparse=always`, coredumpctl, rsync, tar and newer versions
of GDB's gcore leave out zeros, whether in memory or not. So holes are trusted only where nothing
but the kernel's own writing explains them:

1. The core has the kernel's form, not gcore's (`by_kernel`).
2. The holes have the granularity of a page: each begins and ends at a page, and not all at the
   bounds of larger blocks, as with file systems and tools that work in larger blocks.
3. The file holds a page that is all zeros, which a tool that leaves out zeros would have left out.
   Often it is the last one: where the last pages were not there, Linux since 5.12 ends the file
   with one byte of zero (do_coredump), while cp, tar, rsync and coredumpctl only set its size.
   (cpio writes that byte too: holes of its sparse copies are trusted wrongly.) A core without such
   a page may be just as the kernel wrote it, but nothing in it proves so."""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Callable, Sequence
from typing import Optional

from findleaks.target import elf
from findleaks.target.base import Range, Region
from findleaks.target.layout import Load
from findleaks.target.ranges import holding, merged
from findleaks.target.residency.presence import Presence
from findleaks.target.runs import Runs

_SLICE = 1 << 20  # bytes searched between two checks for Ctrl-C


_SHORT = 1 << 20  # holes of fewer bytes are read as zeros: as fast, and fewer pieces
_SMALL = 128 << 10  # bytes of a part at most, on average, of a file that is `scattered`
_SHORTEST = 64 << 10  # the same where those were more than the data: pages scattered over terabytes


def data_parts(fd: int, size: int) -> Optional[list[Range]]:
    """The parts of an open file of `size` bytes that are not holes, ascending; None: unknown."""
    at, data = 0, []
    try:
        while at < size:
            at = os.lseek(fd, at, os.SEEK_DATA)
            end = os.lseek(fd, at, os.SEEK_HOLE)
            data.append(Range(at, end))
            at = end
    except OSError as error:
        if error.errno != errno.ENXIO:  # ENXIO: nothing but holes from here on
            return None
    return data


def scattered(data: Sequence[Range], size: int) -> bool:
    """Whether a file of `size` bytes is mostly holes between small parts. The kernel's read-ahead
    would then fill memory with zeros of holes: 17 s for 4,000 pages scattered over a terabyte."""
    there = sum(end - start for start, end in data)
    return 2 * there < size and there < _SMALL * len(data)


def without_long_holes(data: Sequence[Range]) -> Runs:
    """The parts, joined across short holes."""
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


def by_kernel(head: elf.Header, loads: Sequence[Load], unit: int, page: int) -> bool:
    """Whether a core may be the kernel's by its form. GDB's gcore adds section headers, gives
    offsets in mapped files in bytes (`unit`: NT_FILE's page size, 0 without that note), and does
    not align pages of memory to pages of the file."""
    # Of more than 65,534 segments the kernel, too, writes the one section header that counts them
    # (fs/binfmt_elf.c, fill_extnum_info).
    sections = head.shnum > (head.phnum == elf.PN_XNUM) or (head.shoff > 0 and head.phnum != elf.PN_XNUM)
    whole = all((load.offset - load.start) % page == 0 for load in loads if load.there)
    return not sections and unit in (0, page) and whole


def by_pages(data: Sequence[Range], first: int, size: int, page: int) -> bool:
    """Whether the holes between the parts `data` have the granularity of a page. Bounds before
    `first`, the offset of the first segment, do not count."""
    bounds = [at for part in data for at in part if first < at < size]
    return all(at % page == 0 for at in bounds) and any(at // page & 1 for at in bounds)


def page_of_zeros(view: memoryview, data: Runs, page: int, progress: Callable[[float], None]) -> int:
    """Offset of a whole page of zeros in the parts of a file outside its holes; -1: none.
    The last page is tried first. `progress` gets the part that is done, each MiB, and may raise."""
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
            begins = part.cast("Q")[::words].tolist()  # each page's first word: few are zero
            if 0 in begins:
                for index, word in enumerate(begins):
                    if not word and part[index * page : (index + 1) * page].tobytes() == zeros:
                        return low + index * page
            low += len(part)
            done += len(part)
    return -1


def presence(data: Runs, loads: Sequence[Load], regions: Sequence[Region], anonymous: bool) -> Optional[Presence]:
    """Resident pages by the holes; None where segments overlap in the file (the kernel's do not).
    Covers anonymous mappings only: of files the kernel also writes pages that were not in memory.
    `anonymous`: the core has such memory at all (coredump_filter), so that a mapping without a byte
    in it was never written to."""
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
        segment = holding(loads, region.start) if not region.name.startswith("/") else None
        if segment is not None and (segment.filesz or anonymous):
            end = segment.start + segment.there if segment.filesz else region.end
            known.append(Range(region.start, min(region.end, end)))
    return Presence("holes of the core", Runs.of(merged(known)), Runs(held), Runs.of(()))
