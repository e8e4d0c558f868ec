"""Cores examined side by side on this machine, each in a process of its own.

A process that a core brings to its end (a signal, no memory, no end of its work) is that core's row
and nothing else's. How many run at a time is bounded by number, and by memory: what they are likely
to take together is no more than there is.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import selectors
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from typing import NamedTuple, NoReturn, Optional

from findleaks.engine.load import THREADS, missing_native
from findleaks.formatting import size as human
from findleaks.target.base import Target
from findleaks.triage.examine import Source, examine, failed
from findleaks.triage.row import Row, unpacked

LEAST_MEMORY = 128 << 20  # bytes that a process takes however small the core is
PART = 0.5  # bytes of memory for a byte of a core on the disk
PACKED = 4  # bytes of a core in a byte of a compressed one
SHARE = 0.8  # of the free memory that is used
WAIT = 0.1  # seconds between two calls of `waiting`
PR_SET_PDEATHSIG = 1  # linux/prctl.h

_PACKED_NAMES = (".zst", ".gz", ".xz", ".bz2", ".lz4")


_LATE = (
    *("findleaks.target.compressed", "findleaks.runtimes.directory", "findleaks.audit.pages", "findleaks.audit.top_retainer"),
    *("findleaks.engine.native.engine", "gzip", "lzma", "bz2"),
)


class Limits(NamedTuple):
    """`jobs`: processes at a time; `memory`: bytes for all of them, and the most for one;
    `timeout`: seconds for each, 0: no limit."""

    jobs: int
    memory: int
    timeout: float
    sysroot: str = ""


class _Job(NamedTuple):
    pid: int
    source: Source
    began: float
    memory: int
    said: bytearray


def default_limits(jobs: Optional[int], memory: Optional[int], timeout: float, sysroot: str = "") -> Limits:
    """As many processes as there are processors to use, fewer where memory is short."""
    from findleaks.target.available_memory import available_memory

    free = memory if memory is not None else int(SHARE * available_memory())
    usual = min(len(os.sched_getaffinity(0)), max(1, free // (4 * LEAST_MEMORY)))
    return Limits(jobs or usual, free, timeout, sysroot)


def examined(
    sources: Sequence[Source], limits: Limits, waiting: Callable[[], None] = lambda: None
) -> Generator[tuple[Source, Row], None, None]:
    """Each source with its row, as they are done. `waiting` is called at least every WAIT seconds.
    Closing the generator ends all processes at once."""
    _preload()
    with selectors.DefaultSelector() as ended:
        running: dict[int, _Job] = {}
        left = list(reversed(sources))
        done: list[tuple[Source, Row]] = []
        try:
            while left or running or done:
                while left and _fits(left[-1], running, limits):
                    # A Ctrl-C must find no child that is not in `running`; and no child that does
                    # not ignore it yet, which would go on as a second parent.
                    with ctrl_c_later():
                        job, descriptor = _start(left.pop(), limits)
                        running[descriptor] = job
                        ended.register(descriptor, selectors.EVENT_READ)
                yield from done  # once others run: what becomes of a row may wait for a disk
                done = []
                for key, _ in ended.select(WAIT if running else 0):
                    data = os.read(key.fd, 1 << 20)
                    running[key.fd].said.extend(data)
                    if not data:
                        with ctrl_c_later():
                            ended.unregister(key.fd)
                            os.close(key.fd)
                            job = running.pop(key.fd)
                            done.append((job.source, _result(job)))
                done += _too_long(running, ended, limits.timeout)
                waiting()
        finally:
            with ctrl_c_later():
                for descriptor, job in running.items():
                    os.close(descriptor)
                    _end(job.pid)


@contextmanager
def ctrl_c_later() -> Iterator[None]:
    """A Ctrl-C meanwhile comes afterwards, also one that another thread gets, as dask's may.
    Children inherit the mask."""
    came: list[int] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def _preload() -> None:
    """Import what is imported when it is first needed: once, rather than in each process."""
    for module in _LATE:
        import_module(module)
    missing_native()  # loads the kernel


def estimated(source: Source) -> int:
    """The bytes of memory that examining a file is likely to take."""
    try:
        stored = os.stat(source.path).st_blocks * 512
    except (OSError, ValueError):
        stored = 0
    return LEAST_MEMORY + int(PART * stored * (PACKED if source.path.endswith(_PACKED_NAMES) else 1))


def _fits(source: Source, running: dict[int, _Job], limits: Limits) -> bool:
    if not running:
        return True
    return len(running) < limits.jobs and sum(job.memory for job in running.values()) + estimated(source) <= limits.memory


def _start(source: Source, limits: Limits) -> tuple[_Job, int]:
    reads, writes = os.pipe()
    gc.freeze()  # else the collector of the child would copy every page of its parent's objects
    parent, pid = os.getpid(), os.fork()
    if not pid:
        _child(source, limits, writes, parent)
    os.close(writes)
    return _Job(pid, source, time.monotonic(), estimated(source), bytearray()), reads


def _child(source: Source, limits: Limits, writes: int, parent: int) -> NoReturn:
    """Examine the core and write the row. It ends with its parent, not by a Ctrl-C, which is the
    parent's; and where memory is short, the kernel ends it rather than others."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(status)  # it ended before that was asked for
        with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
        if limits.jobs > 1:  # the others use the other processors
            os.environ.setdefault(THREADS, "1")
        row = examine(source, limits.sysroot, opened=lambda target: _bound_memory(target, limits.memory))
        with os.fdopen(writes, "wb") as out:
            out.write(json.dumps(row.packed()).encode("ascii"))
        status = 0
    except (Exception, KeyboardInterrupt):
        pass  # the parent sees that nothing whole was written
    finally:
        os._exit(status)


def _bound_memory(target: Target, memory: int) -> None:
    """Let the process take so much memory beyond the mapping of the core, whose pages are the
    file's."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        used = next((int(line.split()[1]) << 10 for line in file if line.startswith("VmData:")), 0)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = used + memory
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _result(job: _Job) -> Row:
    """The row of a process that has closed its pipe."""
    _, status = os.waitpid(job.pid, 0)
    with suppress(ValueError, KeyError, TypeError):
        return unpacked(json.loads(job.said))
    return _failed(job, _why(status))


def _why(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return "the process that read it ended without a result"
    number = os.WTERMSIG(status)
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    by_kernel = " (by the kernel, perhaps, for want of memory)" if number == signal.SIGKILL else ""
    return f"the process that read it was ended by {name}{by_kernel}"


def _too_long(running: dict[int, _Job], ended: selectors.BaseSelector, timeout: float) -> Iterator[tuple[Source, Row]]:
    """End the processes that have taken longer than the limit."""
    if not timeout:
        return
    now = time.monotonic()
    for descriptor, job in list(running.items()):
        if now - job.began > timeout:
            with ctrl_c_later():
                ended.unregister(descriptor)
                os.close(descriptor)
                del running[descriptor]
                _end(job.pid)
            yield job.source, _failed(job, f"not done after {timeout:g} s (--timeout), {human(job.source.size)}")


def _failed(job: _Job, why: str) -> Row:
    return replace(failed(job.source, why), seconds=time.monotonic() - job.began)


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)
