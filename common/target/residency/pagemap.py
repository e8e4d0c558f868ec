"""Touched pages of a process's anonymous memory, from /proc/PID/pagemap.

The kernel's zero page is mapped where memory is read before it is written to. It counts as
untouched where the kernel identifies it.

Sources: Linux Documentation/admin-guide/mm/pagemap.rst (bit 63 present, 62 swapped),
include/uapi/linux/fs.h (PAGEMAP_SCAN and PAGE_IS_PFNZERO, 6.7).
"""

from __future__ import annotations

import errno
import os
import struct

from findleaks.target.base import Range

_PAGEMAP_SCAN = 0xC0606610  # _IOWR('f', 16, struct pm_scan_arg), 96 bytes
_PRESENT, _SWAPPED, _ZERO = 1 << 3, 1 << 4, 1 << 5  # PAGE_IS_…
_VECTOR = 512  # runs that one call of PAGEMAP_SCAN returns at most
# Whether a page is present or swapped, by the top byte of its pagemap entry.
_HELD = bytes(1 if byte & 0xC0 else 0 for byte in range(256))
_STEP = 1 << 15  # pages whose entries are read in one call


class PageMap:
    """Touched pages of private anonymous memory.

    Elsewhere a page can hold data without being mapped yet.
    """

    def __init__(self, proc: str, page: int) -> None:
        self._page = page
        self._scan = True
        try:
            self._fd = os.open(f"{proc}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def touched(self, start: int, end: int) -> list[Range]:
        """The runs of touched pages that overlap [start, end), ascending; all of it if unknown."""
        if self._fd < 0:
            return [Range(start, end)]
        if self._scan:
            try:
                return self._scanned(start, end, end)
            except OSError as error:
                if error.errno == errno.EINTR:
                    raise
                self._scan = False
        runs: list[Range] = []
        try:
            for low in range(start // self._page, -(-end // self._page), _STEP):
                high = min(low + _STEP, -(-end // self._page))
                self._read(low, high, runs)
        except (OSError, OverflowError):
            return [Range(start, end)]
        return runs

    def next_touched(self, start: int, end: int) -> int:
        """The address of the first touched page in [start, end), or `end`."""
        if self._fd >= 0 and self._scan and start < end:
            try:
                runs = self._scanned(start, end, end, 1)
                return max(start, runs[0].start) if runs else end
            except OSError:
                self._scan = False
        step = _STEP * self._page
        while start < end:
            runs = self.touched(start, min(start + step, end))
            if runs:
                return max(start, runs[0].start)
            start += step
        return end

    def _read(self, low: int, high: int, runs: list[Range]) -> None:
        entries = os.pread(self._fd, 8 * (high - low), 8 * low)
        held = entries[7::8].translate(_HELD)  # the top byte of each little-endian entry
        at = held.find(1)
        while at >= 0:
            stop = held.find(0, at)
            stop = len(held) if stop < 0 else stop
            runs.append(Range((low + at) * self._page, (low + stop) * self._page))
            at = held.find(1, stop)

    def _scanned(self, start: int, end: int, limit: int, most: int = 0) -> list[Range]:
        import ctypes
        import fcntl

        start, end = start // self._page * self._page, -(-end // self._page) * self._page
        runs: list[Range] = []
        vector = ctypes.create_string_buffer(24 * _VECTOR)
        while start < end:
            # size, flags, start, end, walk_end, vec, vec_len, max_pages,
            # inverted, mask, anyof, return
            # Inverted and required: pages other than the kernel's zero page, which reading maps.
            fields = (96, 0, start, end, 0, ctypes.addressof(vector), _VECTOR, most, _ZERO, _ZERO, _PRESENT | _SWAPPED, _PRESENT)
            argument = bytearray(struct.pack("=12Q", *fields))
            count = fcntl.ioctl(self._fd, _PAGEMAP_SCAN, argument, True)
            for low, high, _ in struct.iter_unpack("=3Q", vector.raw[: 24 * count]):
                if runs and runs[-1].end == low:
                    runs[-1] = Range(runs[-1].start, high)
                else:
                    runs.append(Range(low, high))
            walked = struct.unpack_from("=Q", argument, 32)[0]
            if most or walked <= start:
                break
            start = walked
        return runs

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
