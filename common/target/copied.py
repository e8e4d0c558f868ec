"""A live process as a target: stopped while its memory is copied, then read from the copy."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Optional, Union

from findleaks.errors import Interrupted, TargetError
from findleaks.formatting import size as size_text
from findleaks.target.available_memory import available_memory
from findleaks.target.base import Piece, Range, Region, Thread
from findleaks.target.copying import CopiedRuns, CopyBuffer, CopyPlacement, Transfer, pages_to_copy, windows
from findleaks.target.files import read_file, read_memory
from findleaks.target.image_target import ImageTarget
from findleaks.target.kernel_references import KernelState, decode_raw_state, peek_signals, read_kernel_state
from findleaks.target.live import LiveTarget
from findleaks.target.mapped_files import MappedFile, MappedFiles
from findleaks.target.maps import regions_of
from findleaks.target.notes import RegisterNotes
from findleaks.target.process import LocalProcess, folder_of
from findleaks.target.ptrace import Tracer, explain_refusal, has_ended, tasks
from findleaks.target.ranges import find_overlaps
from findleaks.target.reader import Extent, ExtentReader
from findleaks.target.residency.presence import Presence
from findleaks.target.stop_record import StopRecord, start_time_of, stat_of
from findleaks.target.stopped import CopyPlan, StopData, extents_of, join_pages
from findleaks.target.stopped_pages import StoppedPages, protected_parts, read_stopped_pages
from findleaks.target.unread_data import UnreadReader

PIECE = 4 << 20  # most bytes of a mapped file read at once
_LONGEST = 8 << 20  # most bytes of a piece that `iterate_stored` yields
_SPARE = 64 << 20
"""Bytes of memory that must be available for the analysis, in addition to the copy and a quarter of
its size."""
# bytes: the available memory is checked again if the copy grew by more than this since the plan
_SMALL = 16 << 20

Progress = Callable[[float], None]
"""Progress callback: takes the completed part of the work (0: unknown), and may raise."""


class NoMemory(Exception):
    """There is too little memory for a copy. The text of the exception is printed as a warning."""


class CopiedProcess(ExtentReader, LocalProcess):
    """A process that is read from a copy of its memory. The constructor stops the process, copies
    its memory, and resumes it. Raises NoMemory if there is not enough memory for a copy."""

    def __init__(self, pid: int, progress: Optional[Progress] = None) -> None:
        LocalProcess.__init__(self, pid, stopped=False)
        ExtentReader.__init__(self, self.arch, [])
        self._progress: Progress = progress or (lambda part: None)
        self._threads: Sequence[Thread] = []
        self._names: dict[int, str] = {}
        self._auxv: dict[int, int] = {}
        self._files: Optional[MappedFiles] = None
        self._presence: Optional[Presence] = None
        self._record: Optional[StopRecord] = None
        self._protected: Sequence[Range] = ()
        self._kernel_state: Optional[KernelState] = None
        self.stopped = 0.0  # seconds for which the process was stopped
        try:
            self._copy()
        except BaseException:
            self.close()
            raise

    # -- before, during and after the stop

    def _copy(self) -> None:
        plan = self._plan_copy()
        stop = StopData()
        tracer = Tracer(self._pid, self.arch)
        try:
            tracer.stop(lambda: self._during(plan, stop, tracer))
        finally:
            tracer.release()
        self.stopped = tracer.seconds
        self._adopt(plan, stop, tracer.threads, tracer.register_notes(), tracer.warnings)

    def _adopt(
        self, plan: CopyPlan, stop: StopData, threads: Sequence[Thread], registers: Sequence[RegisterNotes], warnings: Sequence[str]
    ) -> None:
        """Set the state of this target from the plan and the data of the stop."""
        self._threads = threads
        self.warnings += warnings
        self._proc = stop.proc
        self._map(stop.maps)
        self._files = MappedFiles(stop.proc, stop.maps, self._page)
        self._names, self._auxv = super().thread_names(), super().auxv
        assert stop.at is not None
        self._presence = stop.at.presence
        self._protected = protected_parts(stop.at, stop.regions)
        self._kernel_state = decode_raw_state(stop.kernel, self.arch) if stop.kernel is not None else None
        self._record = StopRecord(stop.proc, stop.stat, stop.maps, stop.at, registers)
        self.taken_at, self.start_time = stop.taken_at, start_time_of(stop.stat)
        self.set_extents(extents_of(plan, stop, self._files))
        for gap in stop.absent:
            self._add_unread(*gap)
        self._describe(len(self._threads))

    def _plan_copy(self) -> CopyPlan:
        try:
            maps = read_file(f"{self._proc}/maps")
        except OSError as error:
            raise TargetError(explain_refusal(self._pid, error.errno)) from None
        regions = without_overlaps(regions_of(maps))
        at = read_stopped_pages(self._proc, self._page, regions, self._progress)
        if at is None and has_ended(self._pid):
            raise TargetError(f"pid {self._pid}: the process has ended")
        if at is None:
            raise NoMemory("The system does not report which pages of the process are in memory: it stays stopped while it is read.")
        return self._plan(maps, regions, at)[0]

    def _plan(self, maps: bytes, regions: Sequence[Region], at: StoppedPages) -> tuple[CopyPlan, CopiedRuns]:
        """Create a populated buffer for these pages, and assign each page its place. Raises
        NoMemory if the system refuses the buffer."""
        made, pages = windows(regions, at)
        _check_memory(self._pid, pages)
        size = made[-1].offset + made[-1].end - made[-1].start if made else 0
        try:
            buffer = CopyBuffer(size)
        except (OSError, OverflowError, ValueError):
            raise _no_memory(self._pid, size, available_memory()) from None
        layout, placed = CopyPlacement(made, buffer.address), CopiedRuns.none()
        for _, words in pages_to_copy(regions, at):
            layout.place(words, placed, [])
        done = 0

        def progress(count: int) -> None:
            nonlocal done
            done += count
            self._progress(done / (pages or 1))

        for start, count in join_pages(placed):
            buffer.ready(start - buffer.address, count, progress)
        return CopyPlan(maps, regions, made, buffer), placed

    def _during(self, plan: CopyPlan, stop: StopData, tracer: Tracer) -> bool:
        """Copy the process during the stop. Runs in the tracing thread, which Ctrl-C does not
        interrupt."""

        def look() -> None:
            if tracer.cancelled:
                raise Interrupted

        stop.proc = folder_of(self._pid)
        memory = -1
        collecting = gc.isenabled()
        gc.disable()  # a collection may take longer than all other work during the stop
        try:
            memory = os.open(f"{stop.proc}/mem", os.O_RDONLY | os.O_CLOEXEC)
            stop.taken_at = time.time()
            stop.maps = read_file(f"{stop.proc}/maps")
            stop.stat = stat_of(f"/proc/{self._pid}")
            stop.kernel = read_kernel_state(stop.proc, tasks(self._pid), peek_signals, UnreadReader(self._pid))
            self.exe_path = _link(f"{stop.proc}/exe")
            stop.regions = plan.regions if stop.maps == plan.maps else regions_of(stop.maps)
            stop.at = read_stopped_pages(stop.proc, self._page, stop.regions, lambda part: look())
            if stop.at is None:
                raise ProcessLookupError
            self._place(plan, stop)
            # A main thread that ended before the others has no memory: use the id of another
            # thread.
            transfer = Transfer(int(os.path.basename(stop.proc)), memory, self._page, look)
            transfer.run(stop.placed)
            stop.absent = transfer.absent
            for region in stop.regions:
                if region.name.startswith("[vdso"):
                    stop.kernels.append((region.start, read_memory(memory, region.start, region.size)))
            if has_ended(self._pid):
                raise ProcessLookupError
        except OSError as error:
            if isinstance(error, (ProcessLookupError, FileNotFoundError)) or has_ended(self._pid):
                raise TargetError(f"pid {self._pid}: the process has ended while it was copied") from None
            raise TargetError(explain_refusal(self._pid, error.errno)) from None
        finally:
            if memory >= 0:
                os.close(memory)
            if collecting:
                gc.enable()
        return True

    def _place(self, plan: CopyPlan, stop: StopData) -> None:
        """Assign each page a place in the plan's buffer, or in one created during the stop."""
        assert stop.at is not None
        layout = CopyPlacement(plan.windows, plan.buffer.address)
        for _, words in pages_to_copy(stop.regions, stop.at):
            layout.place(words, stop.placed, stop.rest)
        count = sum(end - start for start, end in stop.rest)
        if count > _SMALL:
            _check_memory(self._pid, count)
        if stop.rest:
            stop.extra = CopyBuffer(count)
            at = stop.extra.address
            for start, end in stop.rest:
                stop.placed.add(start, at, end - start)
                at += end - start

    # -- the target

    def _file_end(self, region: Region) -> int:
        return region.end if region.anonymous or self._files is None else self._files.end(region)

    def _slice_extent(self, extent: Extent, low: int, high: int) -> Iterator[Piece]:
        if isinstance(extent.source, MappedFile):
            return self._readable_pieces(low, high, PIECE, extent.source.some)
        return super()._slice_extent(extent, low, high)

    def resident(self, start: int, end: int) -> Optional[int]:
        found = self._presence
        return None if found is None else found.resident.bytes(start, end) + found.swapped.bytes(start, end)

    def presence(self, progress: Progress) -> Optional[Presence]:
        """See Target. Describes the time of the stop."""
        return self._presence

    @property
    def protected(self) -> Sequence[Range]:
        """See Target. Describes the time of the stop."""
        return self._protected

    def record(self, progress: Progress) -> Optional[StopRecord]:
        """Return the data, other than memory, that a core records about the process."""
        return self._record

    def iterate_stored(self, start: int, end: int) -> Iterator[Piece]:
        """Yield the parts of [start, end) that may be nonzero, ascending, at most 8 MiB each: the
        copied pages, and the contents of mapped files."""
        for extent, low, high in find_overlaps(self._extents, self._starts, start, end):
            move = extent.start - extent.offset
            source = extent.source
            if isinstance(source, MappedFile):
                for part in source.data_parts(low, high):
                    yield from self._readable_pieces(*part, PIECE, source.some)
                continue
            for at, stop in source.nonzero(low - move, high - move):
                while at < stop:
                    size = min(stop - at, _LONGEST)
                    yield Piece(at + move, source.part(at, size))
                    at += size

    def threads(self) -> Sequence[Thread]:
        return self._threads

    def thread_names(self) -> dict[int, str]:
        return self._names

    def kernel_state(self) -> Optional[KernelState]:
        """See Target. Describes the time of the stop."""
        return self._kernel_state

    @property
    def auxv(self) -> dict[int, int]:
        """See Target. Describes the time of the stop."""
        return self._auxv

    def run_on(self, seconds: float) -> bool:
        """See Target. The process is already running, so after `seconds` it is copied again.
        Returns False if it has ended, or if there may not be enough memory for the new copy. Raises
        TargetError if memory runs out while it is copied."""
        before = sum(source_size(extent) for extent in self._extents)
        if has_ended(self._pid) or available_memory() + before < before + before // 4 + _SPARE:
            return False
        self.close()
        time.sleep(seconds)
        ImageTarget.__init__(self)
        try:
            self._copy()
        except NoMemory as lacking:
            raise TargetError(f"pid {self._pid}: memory ran out while it was read again: {lacking}") from None
        return True

    def close(self) -> None:
        """Free the memory of the copy. May be called more than once."""
        super().close()
        files, self._files = self._files, None
        if files is not None:
            files.close()


def source_size(extent: Extent) -> int:
    """Return the maximum number of bytes of findleaks' own memory that an extent takes."""
    return extent.end - extent.start if extent.source.direct else 0


def without_overlaps(regions: Sequence[Region]) -> list[Region]:
    """Return the regions. Omit each region that overlaps the last region in the result. The kernel
    lists the regions of a running process in several reads, and the process may change its mappings
    between them."""
    found: list[Region] = []
    for region in regions:
        if not found or region.start >= found[-1].end:
            found.append(region)
    return found


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _check_memory(pid: int, size: int) -> None:
    found = available_memory()
    if size + size // 4 + _SPARE > found:
        raise _no_memory(pid, size, found)


def _no_memory(pid: int, size: int, found: int) -> NoMemory:
    return NoMemory(
        f"pid {pid}: not enough memory for a copy of {size_text(size)} ({size_text(found)} available): "
        "the process was stopped while it was read."
    )


def attach(pid: int, progress: Optional[Progress] = None) -> Union[CopiedProcess, LiveTarget]:
    """Open a process as a target. Normally the target is a copy of the process, which keeps
    running. If there is not enough memory for a copy, it is the process itself, which stays stopped
    until `close()` or the end of `with`."""
    try:
        return CopiedProcess(pid, progress)
    except NoMemory as lacking:
        why = str(lacking)
    target = LiveTarget(pid, stopped=False)
    target.warnings.append(why)
    return target
