"""A live process that is stopped while it is read: /proc/PID/mem, and ptrace or a debugger."""

from __future__ import annotations

import errno
import os
import struct
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Optional

from findleaks.errors import TargetError, UnreadableMemory
from findleaks.target.base import Piece, Range, Region, Thread
from findleaks.target.process import LocalProcess, folder_of
from findleaks.target.ptrace import Tracer, ended, refusal, sleeping, tasks
from findleaks.target.reader import Zeros
from findleaks.target.residency import presence
from findleaks.target.residency.pagemap import PageMap
from findleaks.target.residency.presence import Presence
from findleaks.target.symbols import Symbolic

PIECE = 4 << 20
"""Bytes of a piece. /proc/PID/mem is fastest at 1 to 4 MiB a call: the buffer stays cached."""
_AHEAD = 16 << 10  # bytes read at once for short reads
_MOST_PAGES = 1 << 14  # pages in the cache of short reads
_MOST_BAD_PAGES = 1024  # unreadable pages in a row, after which the rest of a region is given up
SKIP = 256 << 20
"""`pieces` leaves out runs of never-touched anonymous memory of at least this many bytes.

A sanitizer's shadow memory has terabytes of it.
"""


class LiveTarget(LocalProcess):
    """A process by pid.

    With `stopped` the caller (a debugger) holds it stopped, and nothing is done to it. Otherwise
    it is stopped here, and runs on at `close()` (or use `with`).
    """

    def __init__(self, pid: int, stopped: bool = True) -> None:
        super().__init__(pid, stopped)
        pid = self._pid
        self._unpack = struct.Struct(self.arch.word_format).unpack_from
        self._pages: dict[int, bytes] = {}
        self._tracer: Optional[Tracer] = None
        self._memory = -1
        self._pagemap: Optional[PageMap] = None
        self._zeros = Zeros(PIECE)
        try:
            if not stopped:
                self._tracer = Tracer(pid, self.arch)
                self._tracer.stop()
                self.warnings += self._tracer.warnings
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        pid = self._pid
        self._proc = folder_of(pid)  # again: now that all are stopped, no thread ends any more
        try:
            self._memory = os.open(f"{self._proc}/mem", os.O_RDONLY | os.O_CLOEXEC)
            with open(f"{self._proc}/maps", "rb") as file:
                data = file.read()
        except OSError as error:
            raise TargetError(refusal(pid, errno.ESRCH if error.errno == errno.ENOENT else error.errno or errno.EPERM)) from None
        self._pagemap = PageMap(self._proc, self._page)
        self._map(data)
        self._describe(len(tasks(pid)))

    # -- bytes

    def _region_at(self, address: int) -> Optional[Region]:
        index = bisect_right(self._region_starts, address) - 1
        return self._regions[index] if index >= 0 and address < self._regions[index].end else None

    def _pread(self, address: int, size: int) -> bytes:
        """The bytes that can be read at `address`, at most `size`; b"" if there are none."""
        try:
            return os.pread(self._memory, size, address)
        except (OSError, OverflowError):  # vsyscall's offset does not fit in an off_t
            return b""

    def read(self, address: int, size: int) -> bytes:
        """Exactly `size` bytes, or UnreadableMemory; never short."""
        if size <= 0:
            return b""
        if size <= _AHEAD:
            data = self._cached(address, size)
            if data is not None:
                return data
        else:
            reached, end = address, address + size  # check first: a corrupt size may be huge
            while reached < end:
                region = self._region_at(reached)
                if region is None:
                    raise UnreadableMemory(address, size)
                reached = region.end
        if self._region_at(address) is None:
            raise UnreadableMemory(address, size, self._read_error(address))
        parts = []
        at, end = address, address + size
        while at < end:
            data = self._pread(at, min(end - at, 1 << 30))
            if not data:
                raise UnreadableMemory(address, size, self._read_error(at))
            parts.append(data)
            at += len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_error(self, address: int) -> str:
        region = self._region_at(address)
        if region is None:
            # No further look: trying words that may be no addresses comes here thousands of times.
            return "not in the target"
        return "the process has ended" if ended(self._pid) else f"{region.name or 'the mapping'} cannot be read at {address:#x}"

    def _cached(self, address: int, size: int) -> Optional[bytes]:
        page, last = address // self._page, (address + size - 1) // self._page
        parts = []
        for key in range(page, last + 1):
            data = self._pages.get(key) or self._load(key)
            if not data:
                return None
            parts.append(data)
        low = address - page * self._page
        return (parts[0] if len(parts) == 1 else b"".join(parts))[low : low + size]

    def _load(self, key: int) -> bytes:
        """Read a page and the next few of its region into the cache; the page."""
        address = key * self._page
        region = self._region_at(address)
        if region is None:
            return b""
        data = self._pread(address, min(_AHEAD, region.end - address))
        if len(self._pages) > _MOST_PAGES:
            self._pages.clear()
        for low in range(0, len(data) // self._page * self._page, self._page):
            self._pages[key + low // self._page] = data[low : low + self._page]
        return self._pages.get(key, b"")

    def word(self, address: int) -> int:
        """The pointer-sized unsigned word at `address`, or UnreadableMemory."""
        page = self._pages.get(address // self._page)
        if page is not None and address % self._page <= self._page - self.arch.word:
            return int(self._unpack(page, address % self._page)[0])
        return int(self._unpack(self.read(address, self.arch.word))[0])

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """The readable parts of [start, end), ascending, each at most 4 MiB.

        Pages of anonymous memory that were never touched are zeros. They are not read, since that
        would make the process's page tables grow. Very long runs of them are left out.
        """
        index = max(bisect_right(self._region_starts, start) - 1, 0)
        while index < len(self._regions) and self._regions[index].start < end:
            region = self._regions[index]
            index += 1
            low, high = max(start, region.start), min(end, region.end)
            if low >= high or not region.readable:
                continue
            if self._pagemap is not None and region.private and region.writable and not region.name.startswith("/"):
                yield from self._touched_pieces(low, high)
            else:
                yield from self._all_pieces(low, high)

    def nonzero(self, start: int, end: int) -> Iterator[Range]:
        """See Target."""
        return iter((Range(start, end),))

    def _all_pieces(self, low: int, high: int) -> Iterator[Piece]:
        bad = 0
        while low < high:
            size = min(PIECE, high - low)
            data = bytearray(size)
            got = self._fill(low, memoryview(data))
            if got:
                yield Piece(low, memoryview(data)[:got])
                low += got
                bad = 0
            if got < size:  # a page that cannot be read: device memory, beyond a file's end
                skipped = min(self._page - low % self._page, high - low)
                bad += 1
                if bad >= _MOST_BAD_PAGES:
                    skipped = high - low
                self._add_unread(low, low + skipped)
                low += skipped

    def _fill(self, address: int, view: memoryview) -> int:
        """Read as much as possible into `view`; the number of bytes."""
        done = 0
        while done < len(view):
            try:
                got = os.preadv(self._memory, [view[done:]], address + done)
            except (OSError, OverflowError):
                break
            if not got:
                self._check_alive()
                break
            done += got
        return done

    def _check_alive(self) -> None:
        if ended(self._pid):
            raise TargetError(f"pid {self._pid}: the process has ended while it was read")

    def _add_unread(self, start: int, end: int) -> None:
        region = self._region_at(start)
        if region is None or not region.writable:
            return
        if self.unread and self.unread[-1].end == start:
            self.unread[-1] = Range(self.unread[-1].start, end)
        else:
            self.unread.append(Range(start, end))

    def _touched_pieces(self, low: int, high: int) -> Iterator[Piece]:
        assert self._pagemap is not None
        while low < high:
            size = min(PIECE - low % PIECE if high - low > PIECE else PIECE, high - low)
            runs = self._pagemap.touched(low, low + size)
            if not runs:
                following = self._pagemap.next_touched(low + size, high)
                if following - low >= SKIP:
                    low = following - following % self._page
                    continue
                self._check_alive()  # every page of a process that is gone looks untouched
                yield Piece(low, self._zeros.view()[:size])
                low += size
                continue
            data = bytearray(size)
            view = memoryview(data)
            for start, end in runs:
                start, end = max(start, low), min(end, low + size)
                while start < end:
                    start += self._fill(start, view[start - low : end - low])
                    if start < end:
                        self._add_unread(start, min(start + self._page - start % self._page, end))
                        start += self._page - start % self._page
            yield Piece(low, view)
            low += size

    def resident(self, start: int, end: int) -> Optional[int]:
        """See Target."""
        if self._pagemap is None:
            return None
        runs = self._pagemap.touched(start, end)
        return sum(max(0, min(run.end, end) - max(run.start, start)) for run in runs)

    def presence(self, progress: Callable[[float], None]) -> Optional[Presence]:
        """See Target."""
        return presence.live(self._proc, self._page, progress)

    # -- the rest of the protocol

    def threads(self) -> Sequence[Thread]:
        if self._tracer is not None:
            return self._tracer.threads
        found = [sleeping(self._pid, tid, self.arch) for tid in tasks(self._pid)]
        return [t for t in found if t is not None]

    def run_on(self, seconds: float) -> bool:
        """See Target."""
        if self._tracer is None:
            return False
        self.close()
        time.sleep(seconds)
        self.unread, self.warnings = [], []
        Symbolic.__init__(self)
        tracer = self._tracer = Tracer(self._pid, self.arch)
        try:
            tracer.stop()
            self.warnings += tracer.warnings
            self._open()
        except BaseException:
            self.close()
            raise
        return True

    def close(self) -> None:
        """Let the process run on, if it was stopped here. May be called more than once."""
        try:
            tracer, self._tracer = self._tracer, None
            if tracer is not None:
                tracer.release()
        finally:
            memory, self._memory = self._memory, -1
            if memory >= 0:
                os.close(memory)
            if self._pagemap is not None:
                self._pagemap.close()
                self._pagemap = None
            self._pages.clear()
