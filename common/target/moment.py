"""The pages of a process at the moment of a stop: its own, to be copied, and shared ones.

Sources: include/uapi/linux/fs.h (PAGEMAP_SCAN, 6.7), Documentation/admin-guide/mm/pagemap.rst
(bits 61 to 63).
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

# Of the top byte of a pagemap entry: bit 61 (file page or shared anonymous), bits 62 and 63.
_OF_FILE = 0x20
_HELD = 0xC0  # swapped or present
_STEP = 1 << 15  # pages whose entries are read in one call
_TOP = 1 << 63  # addresses from here on are the kernel's


class Moment(NamedTuple):
    """Pages by kind.

    `own`: pages of anonymous memory, and pages that were written to since they were mapped from a
    file, those in swap included. The kernel's zero page is not among them where the kernel
    identifies it.

    `shared`: pages of files and of shared memory that are mapped at the moment.
    """

    presence: Presence
    own: Runs
    shared: Runs


def moment(proc: str, page: int, regions: Sequence[Region], progress: Callable[[float], None]) -> Optional[Moment]:
    """The pages of a stopped process; None where the system does not report them.

    `proc` is the process's folder ("/proc/4711"), `regions` are its mappings. `progress` is called
    now and then, and may raise.
    """
    regions = [region for region in regions if region.end < _TOP]  # vsyscall's page is the kernel's
    if not regions:
        return None
    try:
        fd = os.open(f"{proc}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _scanned(fd, regions, progress)
    except OSError:
        return _read(fd, proc, page, regions, progress)  # a kernel before 6.7
    finally:
        os.close(fd)


def _scanned(fd: int, regions: Sequence[Region], progress: Callable[[float], None]) -> Moment:
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
        progress(0.0)
    known = Runs.of((region.start, region.end) for region in regions)
    held = Runs(resident)
    return Moment(Presence("pagemap", known, held, Runs(swapped), held.total), Runs(own), Runs(shared))


def _read(fd: int, proc: str, page: int, regions: Sequence[Region], progress: Callable[[float], None]) -> Optional[Moment]:
    """The pages from smaps and the entries of pagemap, for kernels without PAGEMAP_SCAN."""
    found = presence.live(proc, page, progress)
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
    """The pages of [start, end) that are present or swapped, and not a file's."""
    words = []
    for low in range(start // page, end // page, _STEP):
        entries = os.pread(fd, 8 * (min(low + _STEP, end // page) - low), 8 * low)
        for number, byte in enumerate(entries[7::8]):
            if byte & _HELD and not byte & _OF_FILE:
                words.append(((low + number) * page, (low + number + 1) * page))
    return Runs.of(words)
