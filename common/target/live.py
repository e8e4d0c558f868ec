"""A live process that stays stopped while it is read: /proc/PID/mem, and ptrace or a debugger."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Optional

from findleaks.errors import TargetError
from findleaks.target.base import MARGIN, Piece, Range, Region, Thread
from findleaks.target.files import read_file, read_memory
from findleaks.target.image_target import ImageTarget
from findleaks.target.kernel_references import KernelState, decode_raw_state, peek_signals, read_kernel_state
from findleaks.target.mapped_files import MappedFiles
from findleaks.target.notes import RegisterNotes
from findleaks.target.paged import PagedReader
from findleaks.target.process import LocalProcess, folder_of
from findleaks.target.ptrace import Tracer, explain_refusal, has_ended, read_sleeping_thread, tasks
from findleaks.target.ranges import find_overlaps, intersection
from findleaks.target.reader import Zeros
from findleaks.target.residency import presence
from findleaks.target.residency.pagemap import PageMap
from findleaks.target.residency.presence import Presence
from findleaks.target.stop_record import StopRecord, start_time_of, stat_of
from findleaks.target.stopped_pages import protected_parts, read_stopped_pages
from findleaks.target.unread_data import UnreadReader

PIECE = 4 << 20
"""Bytes of a piece. /proc/PID/mem is fastest at 1 to 4 MiB a call: the buffer stays in the
cache."""
SKIP = 256 << 20
"""Minimum size in bytes of a run of untouched anonymous memory that `pieces` omits. The shadow
memory of a sanitizer has terabytes of such memory."""


class LiveTarget(PagedReader, LocalProcess):
    """A process that is stopped while it is read. With `stopped`, the caller (a debugger) already
    holds it stopped, and findleaks does not control it. Otherwise the constructor stops the
    process, and `close()` (or the end of `with`) resumes it."""

    def __init__(self, pid: int, stopped: bool = True) -> None:
        LocalProcess.__init__(self, pid, stopped)
        PagedReader.__init__(self, self.arch)
        self._tracer: Optional[Tracer] = None
        self._memory = -1
        self._kernel_state: Optional[KernelState] = None
        self._pagemap: Optional[PageMap] = None
        self._files: Optional[MappedFiles] = None
        self._zeros = Zeros(PIECE)
        self._stop_and_open(stopped)

    def _stop_and_open(self, stopped: bool) -> None:
        try:
            if not stopped:
                self._tracer = Tracer(self._pid, self.arch)
                self._tracer.stop(self._read_kernel_state)
                self.warnings += self._tracer.warnings
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        # Read again: no thread can end now that all are stopped.
        self._proc = folder_of(self._pid)
        self.taken_at, stat = time.time(), stat_of(f"/proc/{self._pid}")
        self.start_time = start_time_of(stat)
        try:
            self._memory = os.open(f"{self._proc}/mem", os.O_RDONLY | os.O_CLOEXEC)
            maps = read_file(f"{self._proc}/maps")
        except OSError as error:
            raise TargetError(explain_refusal(self._pid, error.errno)) from None
        self._pagemap = PageMap(self._proc, self._page)
        self._files = MappedFiles(self._proc, maps, self._page)
        self.__dict__.pop("protected", None)
        self._map(maps)
        self._describe(len(tasks(self._pid)))

    def _read_kernel_state(self) -> None:
        """Read the pointers that the kernel keeps. Runs in the tracing thread, because no other
        thread may read queued signals."""
        proc = folder_of(self._pid)
        self._kernel_state = decode_raw_state(read_kernel_state(proc, tasks(self._pid), peek_signals, UnreadReader(self._pid)), self.arch)

    def kernel_state(self) -> Optional[KernelState]:
        if self._kernel_state is None:
            self._read_kernel_state()
        return self._kernel_state

    # -- bytes

    def _file_end(self, region: Region) -> int:
        return region.end if region.anonymous or self._files is None else self._files.end(region)

    def _read_some(self, address: int, size: int) -> bytes:
        return read_memory(self._memory, address, size)

    def _read_error(self, region: Region, address: int) -> str:
        return "the process has ended" if has_ended(self._pid) else f"{region.name or 'the mapping'} cannot be read at {address:#x}"

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """Yield the readable parts of [start, end), ascending, each at most 4 MiB.
        Untouched pages of anonymous memory are zeros. They are not read, because this would enlarge
        the page tables of the process. Very long runs of them are omitted."""
        for region, low, high in find_overlaps(self._regions, self._region_starts, start, end):
            if region.readable and self._pagemap is not None and region.writable and region.anonymous:
                yield from self._touched_pieces(self._pagemap, low, high)
            elif region.readable:
                yield from self._readable_pieces(low, high, PIECE, self._read_piece)
            elif region.may_hold_data:
                for part in intersection(self.protected, [Range(low, high)]):
                    yield from self._readable_pieces(*part, PIECE, self._read_piece)

    def nonzero(self, start: int, end: int, margin: int = MARGIN) -> Iterator[Range]:
        """See Target. Omits very long runs of untouched anonymous memory."""
        for region, low, high in find_overlaps(self._regions, self._region_starts, start, end):
            if self._pagemap is not None and high - low >= SKIP and region.readable and region.writable and region.anonymous:
                yield from self._touched_parts(self._pagemap, low, high)
            else:
                yield Range(low, high)

    def _touched_parts(self, pagemap: PageMap, low: int, high: int) -> Iterator[Range]:
        start = at = low
        while at < high:
            following = pagemap.next_touched(at, high)
            if following - at >= SKIP:
                if start < at:
                    yield Range(start, at)
                start = following
            at = min(following + PIECE, high)
        if start < high:
            yield Range(start, high)

    def _read_piece(self, address: int, size: int) -> memoryview:
        view = memoryview(bytearray(size))
        return view[: self._fill(address, view)]

    def _fill(self, address: int, view: memoryview) -> int:
        """Read as much as possible into `view`; return the number of bytes."""
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
        if has_ended(self._pid):
            raise TargetError(f"pid {self._pid}: the process has ended while it was read")

    def _touched_pieces(self, pagemap: PageMap, low: int, high: int) -> Iterator[Piece]:
        while low < high:
            size = min(PIECE - low % PIECE if high - low > PIECE else PIECE, high - low)
            runs = pagemap.list_touched(low, low + size)
            if not runs:
                following = pagemap.next_touched(low + size, high)
                if following - low >= SKIP:
                    low = following - following % self._page
                    continue
                self._check_alive()  # all pages of an ended process look untouched
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
        if self._pagemap is None:
            return None
        runs = self._pagemap.list_touched(start, end)
        return sum(max(0, min(run.end, end) - max(run.start, start)) for run in runs)

    @cached_property
    def protected(self) -> Sequence[Range]:
        regions = [region for region in self._regions if region.may_hold_data]
        at = read_stopped_pages(self._proc, self._page, regions, lambda part: None) if regions else None
        return protected_parts(at, regions) if at is not None else ()

    def presence(self, progress: Callable[[float], None]) -> Optional[Presence]:
        return presence.read_presence(self._proc, self._page, progress)

    # -- writing a core

    def record(self, progress: Callable[[float], None]) -> Optional[StopRecord]:
        """Return the data, other than memory, that a core records about the process; None if the
        system does not report which pages are in memory."""
        at = read_stopped_pages(self._proc, self._page, self._regions, progress)
        if at is None:
            return None
        try:
            maps = read_file(f"{self._proc}/maps")
        except OSError as error:
            raise TargetError(explain_refusal(self._pid, error.errno)) from None
        if self._tracer is not None:
            registers = self._tracer.register_notes()
        else:
            form, names = self.arch.word_format, self.arch.registers
            packed = struct.Struct(f"{form[0]}{len(names)}{form[1]}").pack
            registers = [RegisterNotes(one.tid, 0, packed(*(one.registers.get(name, 0) for name in names)), ()) for one in self.threads()]
        return StopRecord(self._proc, stat_of(f"/proc/{self._pid}"), maps, at, registers)

    def iterate_stored(self, start: int, end: int) -> Iterator[Piece]:
        """Yield the readable parts of [start, end), ascending, at most 4 MiB each. A piece is valid
        until the next one is requested. Every page is read, which makes it resident."""
        buffer = memoryview(bytearray(min(PIECE, end - start)))
        while start < end:
            got = self._fill(start, buffer[: min(PIECE, end - start)])
            if got:
                yield Piece(start, buffer[:got])
                start += got
            else:
                following = min((start & -self._page) + self._page, end)
                self._add_unread(start, following)
                start = following

    # -- the rest of the Target protocol

    def threads(self) -> Sequence[Thread]:
        if self._tracer is not None:
            return self._tracer.threads
        found = (read_sleeping_thread(self._pid, tid, self.arch) for tid in tasks(self._pid))
        return [thread for thread in found if thread is not None]

    def run_on(self, seconds: float) -> bool:
        if self._tracer is None:
            return False
        self.close()
        time.sleep(seconds)
        ImageTarget.__init__(self)
        self._stop_and_open(stopped=False)
        return True

    def close(self) -> None:
        """Resume the process, if this object stopped it. May be called more than once."""
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
            if self._files is not None:
                self._files.close()
            self._pages.clear()
