"""A live process as a target. The process is stopped while it is cloned, and is then copied from
the clone."""

from __future__ import annotations

import ctypes
import os
from array import array
from typing import Optional

from findleaks.errors import TargetError
from findleaks.formatting import size as size_text
from findleaks.injection.cloning import SHARED_BYTES, Taken
from findleaks.injection.held_clone import HeldClone
from findleaks.target.copied import CopiedProcess, NoMemory, Progress
from findleaks.target.copying import CopiedRuns, CopyPlacement, Transfer, pages_to_copy
from findleaks.target.files import read_memory
from findleaks.target.kernel_references import peek_signals, read_kernel_state
from findleaks.target.maps import regions_of
from findleaks.target.process import folder_of
from findleaks.target.ptrace import state, tasks
from findleaks.target.stopped import CopyPlan, StopData
from findleaks.target.unread_data import UnreadReader


class ForkedProcess(CopiedProcess):
    """A process that is read through a clone. The constructor clones the process, copies the clone,
    ends the clone, and lets the process reap it.
    `stops`: seconds of each stop; the last stop, which reaps the clone, stops only one thread.
    `stopped`: their sum.
    Raises Refused (a TargetError) if the process cannot be cloned, and NoMemory if there is not
    enough memory for the copy."""

    stops: tuple[float, ...] = ()

    def _copy(self) -> None:
        clone = HeldClone(self._pid, self._progress)
        try:
            plan, stop = self._copy_clone(clone)
        except BaseException:
            try:
                clone.end()
            except TargetError:  # the first error is more specific
                pass
            raise
        try:
            clone.end()
        except TargetError as error:
            self.warnings.append(f"{error}.")
        self.stops = tuple(clone.stops)
        self.stopped = sum(clone.stops)
        self.exe_path = clone.taken.exe
        self._adopt(plan, stop, clone.taken.threads, clone.taken.registers, clone.taken.warnings)

    def _copy_clone(self, clone: HeldClone) -> tuple[CopyPlan, StopData]:
        taken, stop = clone.taken, StopData()
        stop.proc, stop.maps, stop.regions, stop.at = taken.proc, taken.maps, regions_of(taken.maps), taken.at
        stop.stat, stop.taken_at = taken.stat, taken.taken_at
        # This is read from the process, because the clone has no descriptors. The data may be a few
        # milliseconds newer.
        reader = UnreadReader(self._pid, is_running=True)
        stop.kernel = read_kernel_state(folder_of(self._pid), tasks(self._pid), peek_signals, reader)
        plan, stop.placed = self._plan(taken.maps, stop.regions, taken.at)
        layout = CopyPlacement(plan.windows, plan.buffer.address)
        self._copy_kept(clone, layout)
        rest = CopiedRuns.none()
        for region, words in pages_to_copy(stop.regions, taken.at):
            if region.start not in taken.kept:
                layout.place(words, rest, [])
        try:
            memory = os.open(f"/proc/{taken.clone}/mem", os.O_RDONLY | os.O_CLOEXEC)
            try:
                transfer = Transfer(taken.clone, memory, self._page, lambda: self._progress(0.0))
                transfer.run(rest)
                stop.absent = [*taken.absent, *transfer.absent]
                for region in stop.regions:
                    if region.name.startswith("[vdso"):
                        stop.kernels.append((region.start, read_memory(memory, region.start, region.size)))
            finally:
                os.close(memory)
        except (ProcessLookupError, FileNotFoundError):
            raise self._explain_kill() from None
        if state(taken.clone, taken.clone) in "ZX":
            raise self._explain_kill()
        self._warn_of_shared(stop, taken)
        return plan, stop

    def _explain_kill(self) -> TargetError:
        return TargetError(f"pid {self._pid}: its clone was killed while it was copied")

    def _copy_kept(self, clone: HeldClone, layout: CopyPlacement) -> None:
        """Add the pages that were copied during the stop."""
        for source, offset, size in zip(*clone.taken.copied):
            placed = CopiedRuns.none()
            layout.place(array("Q", (source, source + size)), placed, [])
            for start, destination, count in zip(*placed):
                part = (ctypes.c_char * count).from_address(destination)
                os.preadv(clone.shared, [part], offset + start - source)

    def _warn_of_shared(self, stop: StopData, taken: Taken) -> None:
        assert stop.at is not None
        shared = sum(
            sum(words[1::2]) - sum(words[::2])
            for region, words in pages_to_copy(stop.regions, stop.at)
            if not region.private and region.start not in taken.kept
        )
        if shared:
            self.warnings.append(
                f"pid {self._pid}: {size_text(shared)} of shared memory may be newer than the rest: "
                f"while the process is stopped, at most {size_text(SHARED_BYTES)} are copied."
            )


def fork(pid: int, progress: Optional[Progress] = None) -> ForkedProcess:
    """Open a process as a target. The target is a copy of a clone of the process. The process keeps
    running. Raises Refused (a TargetError) with the reason if the process cannot be cloned. Raises
    TargetError if findleaks cannot attach to it, or if there is not enough memory for the copy. The
    process is then unharmed."""
    try:
        return ForkedProcess(pid, progress)
    except NoMemory as lacking:
        raise TargetError(str(lacking).partition(": the process was")[0]) from None
