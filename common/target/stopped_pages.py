"""Find the pages that a stopped process has: private pages, which are copied, and shared pages.
Sources: include/uapi/linux/fs.h (PAGEMAP_SCAN, 6.7), Documentation/admin-guide/mm/pagemap.rst."""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

from findleaks.target.base import Range, Region
from findleaks.target.ranges import merge_ranges
from findleaks.target.residency import presence
from findleaks.target.residency.presence import FILE, RUN, SWAPPED, VECTOR, ZERO, Presence
from findleaks.target.runs import Runs

_TOP = 1 << 63  # addresses from here on belong to the kernel


class StoppedPages(NamedTuple):
    """The pages of a process at one stop.

    `own` has anonymous pages, and file pages that were written to since they were mapped, including
    swapped pages. The zero page of the kernel is omitted if the kernel identifies it. `shared` has
    the pages of files and of shared memory that are mapped at the stop."""

    presence: Presence
    own: Runs
    shared: Runs


def protected_parts(at: StoppedPages, regions: Sequence[Region]) -> list[Range]:
    """Return the pages that the process cannot access; see Target.protected."""
    found = (region for region in regions if region.may_hold_data)
    return [part for one in found for part in (at.own if one.private else at.shared).within(one.start, one.end)]


def read_stopped_pages(proc: str, page: int, regions: Sequence[Region], progress: Callable[[float], None]) -> Optional[StoppedPages]:
    """Find the pages of a stopped process; None if the system does not report them.
    `proc` is its folder ("/proc/4711"). `progress` is called regularly, and may raise."""
    # The vsyscall page belongs to the kernel
    regions = [region for region in regions if region.end < _TOP]
    if not regions:
        return None
    try:
        fd = os.open(f"{proc}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _scan(fd, regions, progress)
    except OSError:
        return _read(fd, proc, page, regions, progress)  # a kernel before 6.7
    finally:
        os.close(fd)


def _scan(fd: int, regions: Sequence[Region], progress: Callable[[float], None]) -> StoppedPages:
    own, shared, resident, swapped = array("Q"), array("Q"), array("Q"), array("Q")
    vector = ctypes.create_string_buffer(RUN * VECTOR)
    at, end = regions[0].start, regions[-1].end
    while at < end:
        runs, at = presence.scan_pagemap(fd, at, end, vector)
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
    return StoppedPages(Presence("pagemap", known, held, Runs(swapped), held.total), Runs(own), Runs(shared))


def _read(fd: int, proc: str, page: int, regions: Sequence[Region], progress: Callable[[float], None]) -> Optional[StoppedPages]:
    """Find the pages by smaps and pagemap entries, for kernels without PAGEMAP_SCAN."""
    found = presence.read_presence(proc, page, progress)
    if found is None:
        return None
    there = Runs.of(merge_ranges([*found.resident, *found.swapped]))
    own: list[tuple[int, int]] = []
    shared: list[tuple[int, int]] = []
    for region in regions:
        if not region.private:
            shared += there.within(region.start, region.end)
        elif region.anonymous:
            own += there.within(region.start, region.end)
        else:
            for low, high in there.within(region.start, region.end):
                own += (run[:2] for run in presence.entries(fd, page, low, high, progress) if not run[2] & FILE)
    return StoppedPages(found, Runs.of(own), Runs.of(shared))
