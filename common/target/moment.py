"""The pages of a process at one moment, that of a stop: which are its own and must be copied, which are of files or shared.

Sources: include/uapi/linux/fs.h (PAGEMAP_SCAN, 6.7), Documentation/admin-guide/mm/pagemap.rst (bits 61 to 63).
"""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

from findleaks.target.base import Region
from findleaks.target.ranges import merged
from findleaks.target.residency import presence
from findleaks.target.residency.presence import FILE, SWAPPED, VECTOR, ZERO, Presence
from findleaks.target.runs import Runs

_OF_FILE = 0x20  # of an entry's top byte
_HELD = 0xC0
_STEP = 1 << 15  # pages looked at in one read
_TOP = 1 << 63


class Moment(NamedTuple):
    """`own`: the pages that are anonymous memory, or were written to since they were mapped from a file, in swap, too; the kernel's zero
    page is not among them, as far as the kernel tells. `shared`: pages of files and of shared memory that are mapped just now."""

    presence: Presence
    own: Runs
    shared: Runs


def moment(proc: str, page: int, regions: Sequence[Region], tell: Callable[[float], None]) -> Optional[Moment]:
    """Of the process whose folder is `proc` ("/proc/4711"), whose mappings are `regions`; None where the system does not tell. `tell` is
    called now and then, and may raise."""
    regions = [region for region in regions if region.end < _TOP]  # vsyscall's page is the kernel's
    if not regions:
        return None
    try:
        fd = os.open(f"{proc}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _scanned(fd, regions, tell)
    except OSError:
        return _read(fd, proc, page, regions, tell)  # a kernel before 6.7
    finally:
        os.close(fd)


def _scanned(fd: int, regions: Sequence[Region], tell: Callable[[float], None]) -> Moment:
    own, shared, resident, swapped = array("Q"), array("Q"), array("Q"), array("Q")
    vector = ctypes.create_string_buffer(24 * VECTOR)
    at, end = regions[0].start, regions[-1].end
    while at < end:
        runs, at = presence.ask(fd, at, end, vector)
        for low, high, kind in runs:
            if kind & ZERO:
                continue
            for words in (shared if kind & FILE else own, swapped if kind & SWAPPED else resident):
                if words and words[-1] == low:
                    words[-1] = high
                else:
                    words.append(low)
                    words.append(high)
        tell(0.0)
    known = Runs.of((region.start, region.end) for region in regions)
    held = Runs(resident)
    return Moment(Presence("pagemap", known, held, Runs(swapped), held.total), Runs(own), Runs(shared))


def _read(fd: int, proc: str, page: int, regions: Sequence[Region], tell: Callable[[float], None]) -> Optional[Moment]:
    """What smaps and the entries of pagemap tell."""
    found = presence.live(proc, page, tell)
    if found is None:
        return None
    there = Runs.of(merged([*found.resident, *found.swapped]))
    own: list[tuple[int, int]] = []
    shared: list[tuple[int, int]] = []
    for region in regions:
        if not region.private:
            shared += there.within(region.start, region.end)
        elif not region.name.startswith("/"):
            own += there.within(region.start, region.end)
        else:
            for low, high in there.within(region.start, region.end):
                changed = _changed(fd, page, low, high)
                own += changed.within(low, high)
    return Moment(found, Runs.of(own), Runs.of(shared))


def _changed(fd: int, page: int, start: int, end: int) -> Runs:
    """The pages of [start, end) that are there, and no file's."""
    words = []
    for low in range(start // page, end // page, _STEP):
        entries = os.pread(fd, 8 * (min(low + _STEP, end // page) - low), 8 * low)
        for number, byte in enumerate(entries[7::8]):
            if byte & _HELD and not byte & _OF_FILE:
                words.append(((low + number) * page, (low + number + 1) * page))
    return Runs.of(words)
