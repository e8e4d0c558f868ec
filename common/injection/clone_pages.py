"""Find the pages of a cloned process. Its private pages are those of the clone.

Scanning a process takes longer than cloning it. Therefore the pages of the clone are scanned while
the process is running again. A clone has all private pages of the process, but no pages of files
and of shared memory (Linux mm/memory.c, copy_page_range). Pages of files and of shared memory are
known from a scan before the stop."""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Mapping, Sequence

from findleaks.target.arch import X86_64
from findleaks.target.base import Region
from findleaks.target.ranges import merge_ranges
from findleaks.target.residency import presence
from findleaks.target.residency.presence import FILE, RUN, VECTOR, ZERO, Presence
from findleaks.target.runs import Runs
from findleaks.target.stopped_pages import StoppedPages


def pages_of(proc: str, region: Region) -> array[int]:
    """Return the private pages of a region. For a shared region, return all present pages. The
    result is a flat array of the start and end of each run; it is empty if the system does not
    report pages."""
    words: array[int] = array("Q")
    fd = os.open(f"{proc}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for low, high, kind in _runs(fd, region):
            if not kind & ZERO and not (region.private and kind & FILE):
                _append(words, array("Q", (low, high)))
    finally:
        os.close(fd)
    return words


def _runs(fd: int, region: Region) -> list[tuple[int, int, int]]:
    found, at = [], region.start
    vector = ctypes.create_string_buffer(RUN * VECTOR)
    try:
        while at < region.end:
            runs, at = presence.scan_pagemap(fd, at, region.end, vector)
            found += runs
    except OSError:  # a kernel before 6.7
        return list(presence.entries(fd, X86_64.page, region.start, region.end, lambda part: None))
    return found


def compose_stopped_pages(
    regions: Sequence[Region], before: StoppedPages, scanned: Mapping[int, array[int]], clone: StoppedPages
) -> StoppedPages:
    """Combine the pages at the time of the stop. For regions in `scanned`, these are the pages
    there. For other regions, they are the private pages of the clone, and the pages of files and
    shared memory as they were `before`."""
    own, shared, resident, swapped = array("Q"), array("Q"), array("Q"), array("Q")
    for region in regions:
        low, high = region.start, region.end
        words = scanned.get(low)
        if words is not None:
            _append(own if region.private else shared, words)
            _append(resident, words)
            continue
        files = before.shared.cut(low, high)
        there = clone.presence.resident.cut(low, high) if region.private else array("Q")
        _append(shared, files)
        if region.private:
            _append(own, clone.own.cut(low, high))
            _append(swapped, clone.presence.swapped.cut(low, high))
        if there and files:
            both = merge_ranges([*Runs(there), *Runs(files)])
            there = array("Q", (at for run in both for at in run))
        _append(resident, there or files)
    known = Runs.of((region.start, region.end) for region in regions if region.end < 1 << 63)
    held = Runs(resident)
    return StoppedPages(Presence("pagemap", known, held, Runs(swapped), held.total), Runs(own), Runs(shared))


def _append(words: array[int], more: array[int]) -> None:
    """Append runs that lie above all present ones. If the first touches the last present run, they
    are joined."""
    if words and more and words[-1] == more[0]:
        words[-1] = more[1]
        more = more[2:]
    words.extend(more)
