"""Read the touched pages of a process's anonymous memory from /proc/PID/pagemap.
The zero page, which a read before the first write maps, counts as untouched if the kernel
identifies it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

from findleaks.target.base import Range
from findleaks.target.residency import presence
from findleaks.target.residency.presence import RUN, ZERO

_MANY = 512  # most runs that one call of PAGEMAP_SCAN returns


class PageMap:
    """The touched pages of private anonymous memory. In other memory, pages that are not mapped may
    have data, too."""

    def __init__(self, proc: str, page: int) -> None:
        self._page = page
        self._scan = True
        try:
            self._fd = os.open(f"{proc}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def list_touched(self, start: int, end: int) -> list[Range]:
        """Return the runs of touched pages that overlap [start, end), ascending. If they are
        unknown, return [start, end)."""
        runs: list[Range] = []
        try:
            for low, high in self._runs(start, end, _MANY):
                if runs and runs[-1].end == low:
                    runs[-1] = Range(runs[-1].start, high)
                else:
                    runs.append(Range(low, high))
        except (OSError, OverflowError):
            return [Range(start, end)]
        return runs

    def next_touched(self, start: int, end: int) -> int:
        """Return the address of the first touched page in [start, end), or `end`."""
        try:
            return max(start, next((low for low, _ in self._runs(start, end, 1)), end))
        except (OSError, OverflowError):
            return start

    def _runs(self, start: int, end: int, most: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of touched pages, `most` per system call."""
        start, end = start // self._page * self._page, -(-end // self._page) * self._page
        vector = ctypes.create_string_buffer(RUN * most)
        while start < end and self._scan:
            try:
                found, start = presence.scan_pagemap(self._fd, start, end, vector)
            except OSError:
                self._scan = False
            else:
                yield from (run[:2] for run in found if not run[2] & ZERO)
        yield from (run[:2] for run in presence.entries(self._fd, self._page, start, end, lambda part: None))

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
