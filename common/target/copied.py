"""A live process as a target: stopped while its memory is copied, then read from the copy."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Optional, Union

from findleaks.errors import Interrupted, TargetError
from findleaks.formatting import size as size_text
from findleaks.target.available_memory import available
from findleaks.target.base import Piece, Range, Region, Thread
from findleaks.target.copying import Copied, CopyBuffer, Layout, Transfer, wanted, windows
from findleaks.target.files import content, memory_at
from findleaks.target.image_target import ImageTarget
from findleaks.target.kernel_references import KernelState, decode, peek_signals, read_kernel_state
from findleaks.target.live import LiveTarget
from findleaks.target.mapped_files import MappedFile, MappedFiles
from findleaks.target.maps import regions_of
from findleaks.target.moment import Moment, moment, protected_parts
from findleaks.target.notes import RegisterNotes
from findleaks.target.process import LocalProcess, folder_of
from findleaks.target.ptrace import Tracer, ended, refusal, tasks
from findleaks.target.ranges import overlapping
from findleaks.target.reader import Extent, ExtentReader
from findleaks.target.residency.presence import Presence
from findleaks.target.stop_record import StopRecord, start_time_of, stat_of
from findleaks.target.stopped import Plan, Stop, extents_of, joined

PIECE = 4 << 20  # bytes of a mapped file that are read at once
_LONGEST = 8 << 20  # bytes of a piece of `stored`
_SPARE = 64 << 20
"""Bytes to leave free beside the copy and a quarter of it: the analysis needs memory, too."""
_SMALL = 16 << 20  # bytes added since the plan, up to which available memory is not checked again

Progress = Callable[[float], None]
"""Progress callback: takes the part of the work that is done (0: unknown), and may raise."""


class NoMemory(Exception):
    """There is no memory for a copy. The text is a warning's."""


class CopiedProcess(ExtentReader, LocalProcess):
    """A process by pid, stopped, copied and released in the constructor.
    NoMemory where there is no memory for the copy."""

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
        self.stopped = 0.0  # seconds that the process was stopped
        try:
            self._copy()
        except BaseException:
            self.close()
            raise

    # -- before, during and after the stop

    def _copy(self) -> None:
        plan = self._planned()
        stop = Stop()
        tracer = Tracer(self._pid, self.arch)
        try:
            tracer.stop(lambda: self._during(plan, stop, tracer))
        finally:
            tracer.release()
        self.stopped = tracer.seconds
        self._adopt(plan, stop, tracer.threads, tracer.register_notes(), tracer.warnings)

    def _adopt(
        self, plan: Plan, stop: Stop, threads: Sequence[Thread], registers: Sequence[RegisterNotes], warnings: Sequence[str]
    ) -> None:
        """Make this the process that was copied."""
        self._threads = threads
        self.warnings += warnings
        self._proc = stop.proc
        self._map(stop.maps)
        self._files = MappedFiles(stop.proc, stop.maps, self._page)
        self._names, self._auxv = super().thread_names(), super().auxv
        assert stop.at is not None
        self._presence = stop.at.presence
        self._protected = protected_parts(stop.at, stop.regions)
        self._kernel_state = decode(stop.kernel, self.arch) if stop.kernel is not None else None
        self._record = StopRecord(stop.proc, stop.stat, stop.maps, stop.at, registers)
        self.taken_at, self.start_time = stop.taken_at, start_time_of(stop.stat)
        self.set_extents(extents_of(plan, stop, self._files))
        for gap in stop.absent:
            self._add_unread(*gap)
        self._describe(len(self._threads))

    def _planned(self) -> Plan:
        try:
            maps = content(f"{self._proc}/maps")
        except OSError as error:
            raise TargetError(refusal(self._pid, error.errno)) from None
        regions = regions_of(maps)
        at = moment(self._proc, self._page, regions, self._progress)
        if at is None and ended(self._pid):
            raise TargetError(f"pid {self._pid}: the process has ended")
        if at is None:
            raise NoMemory("The system does not report which pages of the process are in memory: it is stopped while it is read.")
        return self._plan(maps, regions, at)[0]

    def _plan(self, maps: bytes, regions: Sequence[Region], at: Moment) -> tuple[Plan, Copied]:
        """A populated buffer for these pages, and their places in it; NoMemory if that is none."""
        made, pages = windows(regions, at)
        _check_memory(self._pid, pages)
        size = made[-1].offset + made[-1].end - made[-1].start if made else 0
        try:
            buffer = CopyBuffer(size)
        except (OSError, OverflowError, ValueError):
            raise _no_memory(self._pid, size, available()) from None
        layout, placed = Layout(made, buffer.address), Copied.none()
        for _, words in wanted(regions, at):
            layout.place(words, placed, [])
        done = 0

        def progress(count: int) -> None:
            nonlocal done
            done += count
            self._progress(done / (pages or 1))

        for start, count in joined(placed):
            buffer.ready(start - buffer.address, count, progress)
        return Plan(maps, regions, made, buffer), placed

    def _during(self, plan: Plan, stop: Stop, tracer: Tracer) -> bool:
        """Copy the process during the stop. Runs in the tracing thread, which gets no Ctrl-C."""

        def look() -> None:
            if tracer.cancelled:
                raise Interrupted

        stop.proc = folder_of(self._pid)
        memory = -1
        collecting = gc.isenabled()
        gc.disable()  # a collection may take longer than everything else here
        try:
            memory = os.open(f"{stop.proc}/mem", os.O_RDONLY | os.O_CLOEXEC)
            stop.taken_at = time.time()
            stop.maps = content(f"{stop.proc}/maps")
            stop.stat = stat_of(f"/proc/{self._pid}")
            stop.kernel = read_kernel_state(stop.proc, tasks(self._pid), peek_signals)
            self.exe_path = _link(f"{stop.proc}/exe")
            stop.regions = plan.regions if stop.maps == plan.maps else regions_of(stop.maps)
            stop.at = moment(stop.proc, self._page, stop.regions, lambda part: look())
            if stop.at is None:
                raise ProcessLookupError
            self._place(plan, stop)
            # The id of a thread that has memory: a main thread that ended first has none.
            transfer = Transfer(int(os.path.basename(stop.proc)), memory, self._page, look)
            transfer.run(stop.placed)
            stop.absent = transfer.absent
            for region in stop.regions:
                if region.name.startswith("[vdso"):
                    stop.kernels.append((region.start, memory_at(memory, region.start, region.size)))
            if ended(self._pid):
                raise ProcessLookupError
        except OSError as error:
            if isinstance(error, (ProcessLookupError, FileNotFoundError)) or ended(self._pid):
                raise TargetError(f"pid {self._pid}: the process has ended while it was copied") from None
            raise TargetError(refusal(self._pid, error.errno)) from None
        finally:
            if memory >= 0:
                os.close(memory)
            if collecting:
                gc.enable()
        return True

    def _place(self, plan: Plan, stop: Stop) -> None:
        """Give each page its place, in the plan's buffer or in one made during the stop."""
        assert stop.at is not None
        layout = Layout(plan.windows, plan.buffer.address)
        for _, words in wanted(stop.regions, stop.at):
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

    def _sliced(self, extent: Extent, low: int, high: int) -> Iterator[Piece]:
        if isinstance(extent.source, MappedFile):
            return self._readable_pieces(low, high, PIECE, extent.source.some)
        return super()._sliced(extent, low, high)

    def resident(self, start: int, end: int) -> Optional[int]:
        found = self._presence
        return None if found is None else found.resident.bytes(start, end) + found.swapped.bytes(start, end)

    def presence(self, progress: Progress) -> Optional[Presence]:
        """See Target. The answer is that of the stop."""
        return self._presence

    @property
    def protected(self) -> Sequence[Range]:
        """See Target. The answer is that of the stop."""
        return self._protected

    def record(self, progress: Progress) -> Optional[StopRecord]:
        """What a core says of the process besides its memory."""
        return self._record

    def stored(self, start: int, end: int) -> Iterator[Piece]:
        """What may be other than zeros in [start, end), ascending, at most 8 MiB at once: the
        copied pages, and of mapped files what they have there."""
        for extent, low, high in overlapping(self._extents, self._starts, start, end):
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
        """See Target. The answer is that of the stop."""
        return self._kernel_state

    @property
    def auxv(self) -> dict[int, int]:
        """See Target. The answer is that of the stop."""
        return self._auxv

    def run_on(self, seconds: float) -> bool:
        """See Target. The process is running already, and is copied once more.
        False where it has ended, or memory has become scarce."""
        before = sum(source_size(extent) for extent in self._extents)
        if ended(self._pid) or available() + before < before + before // 4 + _SPARE:
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
        """Free the copy's memory. May be called more than once."""
        super().close()
        files, self._files = self._files, None
        if files is not None:
            files.close()


def source_size(extent: Extent) -> int:
    """Most bytes of findleaks' memory that an extent takes."""
    return extent.end - extent.start if extent.source.direct else 0


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _check_memory(pid: int, size: int) -> None:
    found = available()
    if size + size // 4 + _SPARE > found:
        raise _no_memory(pid, size, found)


def _no_memory(pid: int, size: int, found: int) -> NoMemory:
    return NoMemory(
        f"pid {pid}: there is no memory for a copy of {size_text(size)} ({size_text(found)} can be used): "
        "the process was stopped while it was read."
    )


def attach(pid: int, progress: Optional[Progress] = None) -> Union[CopiedProcess, LiveTarget]:
    """A process as a target: a copy of it, while it runs on.
    Without memory for a copy, the process itself, stopped until `close()` or the end of `with`."""
    try:
        return CopiedProcess(pid, progress)
    except NoMemory as lacking:
        why = str(lacking)
    target = LiveTarget(pid, stopped=False)
    target.warnings.append(why)
    return target
