"""Which pages of a process were in memory, by the holes in the core that the kernel wrote of it.

Linux fs/coredump.c, dump_user_range (6.x; the same since 2.6.x): of a page that is not there, or is the zero page, no byte is written and
the file position moves on, which leaves a hole; every other page is written, zeros too. vma_dump_size leaves out private anonymous
mappings that were never written to.
"""

from __future__ import annotations

import errno
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Optional

from findleaks.target.base import Range, Region
from findleaks.target.layout import Load
from findleaks.target.presence import Presence
from findleaks.target.ranges import merged
from findleaks.target.runs import Runs

_LOOKED_AT = 512 << 20
"""Bytes of a core looked through for a page of zeros that is no hole."""


_SHORT = 1 << 20
"""Holes shorter than this are read as what they are, zeros: as fast as leaving them out, and fewer pieces."""


def data_parts(fd: int, size: int) -> Optional[list[Range]]:
    """The parts of a file that are no holes, ascending; None where the system does not tell."""
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


def without_long_holes(data: Sequence[Range]) -> Runs:
    """The parts with the short holes between them."""
    words: array[int] = array("Q")
    for start, end in data:
        if words and start - words[-1] < _SHORT:
            words[-1] = end
        else:
            words.append(start)
            words.append(end)
    return Runs(words)


def told(view: memoryview, data: Sequence[Range], loads: Sequence[Load], page: int) -> bool:
    """Whether the holes of a file with these parts of data tell which pages were there.

    Tools that leave out zeros (GDB's gcore since 16, `cp --sparse=always`, coredumpctl) make holes too, of all pages of zeros: so a file
    without any page of zeros in its data tells nothing. GDB's segments do not begin at whole pages of the file.
    """
    if any(load.there and (load.offset - load.start) % page for load in loads):
        return False
    zeros, left = bytes(page), _LOOKED_AT
    for start, end in data:
        for at in range(start + -start % page, end - page + 1, page):
            if view[at : at + page] == zeros:
                return True
            left -= page
        if left < 0:
            break
    return False


def presence(data: Sequence[Range], loads: Sequence[Load], regions: Sequence[Region], anonymous: bool) -> Optional[Presence]:
    """What holes tell, of memory whose segments stand one behind the other in the file; None where they overlap, as the kernel's never
    do. Known are anonymous mappings: of files the kernel also writes pages that were only in the file. `anonymous`: the core has such
    memory at all (coredump_filter), so that a mapping without a byte of it was never written to."""
    parts = Runs.of(data).words
    reached = 0
    for load in sorted(loads, key=lambda load: load.offset):
        if load.there:
            if load.offset < reached:
                return None
            reached = load.offset + load.there
    held: array[int] = array("Q")
    for load in sorted(loads):
        mine = _cut(parts, load.offset, load.offset + load.there)
        if mine:
            move = load.start - load.offset
            mine = array("Q", [at + move for at in mine])
            if held and held[-1] > mine[0]:
                return None
            if held and held[-1] == mine[0]:
                held.pop()
                mine = mine[1:]
            held += mine
    starts = [load.start for load in loads]
    known: list[Range] = []
    for region in regions:
        at = bisect_right(starts, region.start) - 1
        load = loads[max(at, 0)]
        if at >= 0 and region.start < load.end and not region.name.startswith("/"):
            if load.filesz:
                known.append(Range(region.start, min(region.end, load.start + load.there)))
            elif anonymous:
                known.append(Range(region.start, region.end))
    return Presence("holes of the core", Runs.of(merged(known)), Runs(held), Runs.of(()))


def _cut(words: array[int], low: int, high: int) -> array[int]:
    """The parts in [low, high) of the ranges in a flat array."""
    first, last = bisect_right(words, low), bisect_left(words, high)
    made = words[first - (first & 1) : last + (last & 1)] if low < high else array("Q")
    if made:
        made[0], made[-1] = max(made[0], low), min(made[-1], high)
    return made
