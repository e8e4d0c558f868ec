"""Clone a process: stop it, let one of its threads fork, and resume it. The clone stays stopped.

The clone has the process's private memory, copied on write. It is created by an injected
clone(CLONE_FILES): a fork with exit signal 0 and a shared table of files. It leaves that table by
close_range(CLOSE_RANGE_UNSHARE), with no file open, so it neither keeps files open nor flushes
them.

The clone is a child of the process itself. It blocks all signals, and its registers point at
exit_group(0), the only code that it ever executes: on request, or when its tracer dies, which makes
the kernel let it run. As the exit signal is 0, the process receives no SIGCHLD, and its wait(2)
does not report the clone (only __WALL or __WCLONE would). A second, shorter stop of one thread
reaps the clone (`reap`): that thread calls wait4(__WALL).

The alternative is a second fork by a child that ends at once. It needs no second stop, but makes
the clone an orphan. Process 1 of a container, or a subreaper, then becomes its parent and receives
a SIGCHLD. Many such programs never reap an unknown child, and PostgreSQL's postmaster restarts all
its servers if an unknown child was killed. The clone also becomes an orphan if the process ends
before it. Therefore the clone exits with status 0, never by a signal.

Sources: clone(2), close_range(2), namespaces(7), wait(2); Linux kernel/exit.c, kernel/fork.c,
6.18; Documentation/filesystems/proc.rst (VmFlags, fdinfo); postgres 16,
src/backend/postmaster/postmaster.c (CleanupBackend)."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import time
from array import array
from collections.abc import Callable, Sequence
from ctypes import addressof, c_char
from typing import NamedTuple, Optional, Union

from findleaks.errors import Interrupted, TargetError
from findleaks.injection import seized
from findleaks.injection.clonable import NOT_COPIED, check_clonable, clone_failure, link, mapping_flags, refuse, unforkable
from findleaks.injection.clone_pages import compose_stopped_pages, pages_of
from findleaks.injection.remote_syscall import entry
from findleaks.injection.requests import ORIG_RAX, WALL, Requests
from findleaks.injection.seized import SeizedThread, instruction_at, unsuitable
from findleaks.target.arch import X86_64
from findleaks.target.base import Range, Region, Thread
from findleaks.target.copying import KERNELS, CopiedRuns, Transfer
from findleaks.target.encoded_numbers import decode_signed
from findleaks.target.files import read_file, read_memory
from findleaks.target.maps import regions_of
from findleaks.target.notes import RegisterNotes
from findleaks.target.process import folder_of
from findleaks.target.ptrace import Tracer, has_ended, system_call, tasks
from findleaks.target.stop_record import stat_of
from findleaks.target.stopped_pages import StoppedPages, read_stopped_pages

SHARED_BYTES = 32 << 20
"""Maximum number of bytes of shared memory that are copied during the stop, in about 10 ms. A clone
has no copy of shared memory."""
_PATIENCE = 0.02  # seconds to wait for a thread in uninterruptible sleep
# Maximum number of stops to find a thread that can make system calls; seconds between two stops
_TRIES, _PAUSE = 50, 0.001
_SLEEP = 0.05  # seconds for threads in uninterruptible sleep to wake, before another stop
_REAP_SECONDS = 5.0  # seconds after which a clone that cannot be reaped is abandoned
_UNSHARE = 2  # CLOSE_RANGE_UNSHARE


class Taken(NamedTuple):
    """Data that was read from the process during the stop."""

    clone: int  # process id of the clone
    local: int  # process id of the clone in the pid namespace of the process
    proc: str  # directory under /proc of a thread that has memory
    exe: str  # path of the program; "" if unknown
    maps: bytes  # /proc/PID/maps
    at: StoppedPages  # pages; for files, as they were shortly before the stop
    threads: Sequence[Thread]
    warnings: Sequence[str]
    scanned: dict[int, array[int]]  # runs of pages; the key is the start of the region
    copied: CopiedRuns  # pages copied during the stop: address, offset in the shared memory, bytes
    kept: frozenset[int]  # starts of the regions of which all pages were copied
    absent: Sequence[Range]  # pages that could not be copied
    seconds: float  # duration of the stop
    stat: bytes  # /proc/PID/stat
    taken_at: float  # seconds since 1970
    registers: Sequence[RegisterNotes] = ()  # registers of the threads, as in a core


class Cloning:
    """The clone of process `pid`. `take` creates it, and `end` ends it; the same thread must call
    both. `shared`: a descriptor of memory that receives the pages copied during the stop.
    `cancelled` is called before each stop; if it returns True, the work ends."""

    def __init__(self, pid: int, shared: int, cancelled: Callable[[], bool]) -> None:
        self.pid, self._cancelled = pid, cancelled
        self._shared = shared
        self._clone: Optional[SeizedThread] = None
        self._local = 0
        self._closes = True  # whether seccomp permits close_range(2) in the clone
        self._late: list[Tracer] = []  # tracers of threads that have not stopped yet

    def take(self) -> Taken:
        """Create the clone. Raises Refused, or TargetError if findleaks cannot attach to the
        process."""
        flags = check_clonable(self.pid)
        proc = folder_of(self.pid)
        before = read_stopped_pages(proc, X86_64.page, _read_mappings(proc), _ignore)
        if before is None:
            self._check_alive()
            raise refuse(self.pid, "the system does not report which of its pages are in memory")
        seconds = 0.0
        gc.disable()  # a garbage collection may take longer than the stop
        found: Union[Taken, str] = ""
        for _ in range(_TRIES):
            if self._cancelled():
                raise Interrupted
            tracer = Tracer(self.pid, X86_64)
            began = time.monotonic()
            try:
                tracer.stop_all(_PATIENCE)
                found = self._during(tracer, flags, before)
            except OSError as error:
                self._check_alive()
                raise TargetError(f"pid {self.pid}: cannot be read: {os.strerror(error.errno or 0).lower()}") from None
            finally:
                if not tracer.detach_all():
                    self._late.append(tracer)
                seconds += time.monotonic() - began
            if not isinstance(found, str):
                self._close_files()
                found = found._replace(threads=tracer.threads, registers=tracer.register_notes(), warnings=tracer.warnings, seconds=seconds)
                return self._with_pages(found, before)
            time.sleep(_SLEEP if self._late else _PAUSE)
            if self.watch():
                break
        raise refuse(self.pid, str(found))

    def watch(self) -> bool:
        """Resume the threads that were in uninterruptible sleep during the stop. Returns False when
        none are left. Call this every few ms while it returns True, and regularly afterwards,
        because it also detects the death of the clone. Otherwise the end of the clone's pid
        namespace would have to wait until the death is detected."""
        self._late = [tracer for tracer in self._late if not tracer.detach_all()]
        if self._clone is not None:
            self._clone.look()
        return bool(self._late)

    def end(self) -> float:
        """End the clone, if there is one, and reap it. Returns the seconds for which a thread was
        stopped.
        Raises TargetError if the clone could not be reaped. May be called again."""
        clone, self._clone = self._clone, None
        if clone is None:
            return 0.0
        clone.end()
        return reap(self.pid, self._local)

    def _check_alive(self) -> None:
        if has_ended(self.pid):
            raise TargetError(f"pid {self.pid}: the process has ended")

    # -- during the stop

    def _during(self, tracer: Tracer, flags: dict[int, set[str]], before: StoppedPages) -> Union[Taken, str]:
        """Return the data that was read during the stop, or the reason why no thread can create the
        clone at this stop."""
        proc = folder_of(self.pid)
        memory = os.open(f"{proc}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            maps = read_file(f"{proc}/maps")
            regions = regions_of(maps)
            thread = _injector(self.pid, tracer, memory, regions)
            if isinstance(thread, str):
                return thread
            if unforkable(self.pid, thread.tid):
                raise refuse(self.pid, "its children would start a pid namespace (unshare)")
            try:
                self._closes = _check_seccomp(thread)
            except TargetError as error:
                raise refuse(self.pid, str(error)) from None
            scanned, copied, kept, absent = self._copy_uncloned(proc, memory, regions, flags, before)
            clone, self._local = thread.clone(seized.CLONE_FILES)
            if not clone:
                raise refuse(self.pid, clone_failure(-self._local))
            self._clone = SeizedThread(clone, clone, thread.instruction)
            return Taken(
                clone,
                self._local,
                proc,
                link(f"{proc}/exe"),
                maps,
                before,
                (),
                (),
                scanned,
                copied,
                kept,
                absent,
                0.0,
                stat_of(proc),
                time.time(),
            )
        finally:
            os.close(memory)

    def _copy_uncloned(
        self, proc: str, memory: int, regions: Sequence[Region], flags: dict[int, set[str]], before: StoppedPages
    ) -> tuple[dict[int, array[int]], CopiedRuns, frozenset[int], Sequence[Range]]:
        """Copy what is missing from the clone: shared memory, up to a limit, and memory that the
        process does not pass to its children (MADV_DONTFORK, MADV_WIPEONFORK)."""
        scanned: dict[int, array[int]] = {}
        copied, size = CopiedRuns.none(), 0
        for region in regions:
            if region.private:
                uncloned = bool(flags.get(region.start, set()) & NOT_COPIED)
            else:
                uncloned = region.writable and size + before.shared.bytes(region.start, region.end) <= SHARED_BYTES
            if not uncloned or region.name.startswith(KERNELS):
                continue
            words = scanned[region.start] = pages_of(proc, region)
            for start, end in zip(words[::2], words[1::2]):
                copied.add(start, size, end - start)
                size += end - start
        if not size:
            return scanned, copied, frozenset(scanned), ()
        os.ftruncate(self._shared, size)
        with mmap.mmap(self._shared, size) as buffer:
            first = c_char.from_buffer(buffer)
            base = addressof(first)
            transfer = Transfer(int(os.path.basename(proc)), memory, X86_64.page, lambda: None)
            transfer.run(CopiedRuns(copied.source, array("Q", (base + at for at in copied.destination)), copied.size))
            del first
        return scanned, copied, frozenset(scanned), transfer.absent

    # -- the clone

    def _with_pages(self, taken: Taken, before: StoppedPages) -> Taken:
        """Add the pages of the clone to the data of the stop."""
        regions = regions_of(taken.maps)
        there = read_stopped_pages(f"/proc/{taken.clone}", X86_64.page, regions, _ignore)
        if there is None:
            raise TargetError(f"pid {self.pid}: its clone was killed")
        own = dict(mapping_flags(taken.clone))
        lacking = [
            Range(region.start, region.end)
            for region in regions
            if region.readable and region.private and region.start not in taken.kept and not region.name.startswith(KERNELS)
            if region.start not in own or "wf" in own[region.start]
        ]
        return taken._replace(at=compose_stopped_pages(regions, before, taken.scanned, there), absent=[*taken.absent, *lacking])

    def _close_files(self) -> None:
        """Give the clone a table of files of its own, in which no file is open. Failure is ignored
        if the clone has died."""
        clone = self._clone
        assert clone is not None
        try:
            if not self._closes or clone.call(seized.CLOSE_RANGE, 0, (1 << 32) - 1, _UNSHARE, kill=True) != 0:
                # Seccomp does not permit the call, or the kernel is older than Linux 5.9.
                clone.call(seized.UNSHARE, seized.CLONE_FILES, kill=True)
                for name in os.listdir(f"/proc/{clone.pid}/fd"):
                    clone.call(seized.CLOSE, int(name), kill=True)
        except (TargetError, OSError):
            pass


def reap(pid: int, local: int) -> float:
    """Make a process reap its clone, which has ended. Returns the seconds for which a thread was
    stopped. `local`: the clone's id in the pid namespace of the process.
    Raises TargetError on failure."""
    seconds, limit = 0.0, time.monotonic() + _REAP_SECONDS
    late: list[Tracer] = []
    why = "none of its threads can be stopped"
    while not has_ended(pid) and time.monotonic() < limit:
        for tid in sorted(tasks(pid), key=lambda tid: system_call(pid, tid) in (None, -1)):
            tracer = Tracer(pid, X86_64)
            began = time.monotonic()
            try:
                if tracer.stop_one(tid, _PATIENCE):
                    result = _wait4(pid, tracer, local)
                    if not isinstance(result, str) and result in (local, -errno.ECHILD):
                        return seconds + time.monotonic() - began
                    why = str(result)
            except (TargetError, OSError) as error:
                why = str(error)
            finally:
                if not tracer.detach_all():
                    late.append(tracer)
                seconds += time.monotonic() - began
            late = [tracer for tracer in late if not tracer.detach_all()]
        time.sleep(_PAUSE)
    if has_ended(pid):
        return seconds
    raise TargetError(f"pid {pid}: its clone has ended, but stays as a zombie ({local}) until the process ends: {why}")


def _wait4(pid: int, tracer: Tracer, local: int) -> Union[int, str]:
    proc = folder_of(pid)
    memory = os.open(f"{proc}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        thread = _injector(pid, tracer, memory, _read_mappings(proc))
        if isinstance(thread, str):
            return thread
        thread.check_seccomp(thread.tid, thread.instruction, seized.WAIT4, (local, 0, WALL | os.WNOHANG, 0))
        return thread.call(seized.WAIT4, local, 0, WALL | os.WNOHANG, 0)
    finally:
        os.close(memory)


def _injector(pid: int, tracer: Tracer, memory: int, regions: Sequence[Region]) -> Union[SeizedThread, str]:
    """Return a stopped thread that can make system calls, or the reason why there is none. A thread
    in a system call is preferred. Threads that are about to receive a signal are excluded, because
    the signal would be lost."""

    def read(address: int, size: int) -> bytes:
        return read_memory(memory, address, size)

    requests, why = Requests(), "none of its threads can be stopped between two instructions"
    found = [(tid, words) for tid, number in tracer.stops.items() if number == 0 and (words := requests.registers(tid))]
    for tid, words in sorted(found, key=lambda row: decode_signed(row[1][ORIG_RAX], 64) < 0):
        reason = unsuitable(requests, tid, words, read)
        if not reason:
            return SeizedThread(pid, tid, instruction_at(words, read) or entry(regions, read))
        why = f"thread {tid}: {reason}"
    return why


def _check_seccomp(thread: SeizedThread) -> bool:
    """Whether the clone may use close_range(2). Raises TargetError if another call is not
    permitted."""

    def check(number: int, *arguments: int) -> None:
        thread.check_seccomp(thread.tid, thread.instruction, number, arguments)

    check(seized.CLONE, seized.CLONE_FILES, 0, 0, 0, 0)
    check(seized.WAIT4, 0, 0, WALL | os.WNOHANG, 0)
    check(seized.EXIT_GROUP, 0)
    try:
        check(seized.CLOSE_RANGE, 0, (1 << 32) - 1, _UNSHARE)
        return True
    except TargetError:
        check(seized.UNSHARE, seized.CLONE_FILES)
        check(seized.CLOSE, 0)
        return False


def _ignore(part: float) -> None:
    """Ignore progress."""


def _read_mappings(proc: str) -> list[Region]:
    """Return the current mappings of the process with this /proc directory; [] if it has ended."""
    try:
        return regions_of(read_file(f"{proc}/maps"))
    except OSError:
        return []
