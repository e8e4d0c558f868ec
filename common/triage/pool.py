"""Examine cores in parallel on this machine, each in a separate process.

If a core makes its process fail (by a signal, lack of memory, or a timeout), only the row of this
core is affected. The number of processes is limited by `jobs` and by memory: the sum of their
estimated sizes must not exceed the available memory."""

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
from findleaks.triage.examine import Source, examine, make_failure
from findleaks.triage.row import Row, unpack_row

LEAST_MEMORY = 128 << 20  # bytes of memory that a process needs for any core
PART = 0.5  # bytes of memory for each byte of a core on disk
PACKED = 4  # bytes of a core for each byte of a compressed core
SHARE = 0.8  # fraction of the free memory that is used
WAIT = 0.1  # seconds between two calls of `waiting`
PR_SET_PDEATHSIG = 1  # linux/prctl.h

_PACKED_NAMES = (".zst", ".gz", ".xz", ".bz2", ".lz4")


_LATE = (
    *("findleaks.target.compressed", "findleaks.runtimes.directory", "findleaks.audit.pages", "findleaks.audit.top_retainer"),
    *("findleaks.engine.native.engine", "gzip", "lzma", "bz2"),
)


class Limits(NamedTuple):
    """The limits. `jobs`: maximum number of processes at a time. `memory`: bytes for all processes
    together, which is also the limit for each. `timeout`: seconds for each process; 0: no limit."""

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
    """Return the default limits: one process for each usable processor, and fewer if memory is
    short."""
    from findleaks.target.available_memory import available_memory

    free = memory if memory is not None else int(SHARE * available_memory())
    usual = min(len(os.sched_getaffinity(0)), max(1, free // (4 * LEAST_MEMORY)))
    return Limits(jobs or usual, free, timeout, sysroot)


def examine_all(
    sources: Sequence[Source], limits: Limits, waiting: Callable[[], None] = lambda: None
) -> Generator[tuple[Source, Row], None, None]:
    """Yield each source with its row, when it has been examined. `waiting` is called at least every
    WAIT seconds. Closing the generator ends all processes at once."""
    _preload()
    with selectors.DefaultSelector() as ended:
        running: dict[int, _Job] = {}
        left = list(reversed(sources))
        done: list[tuple[Source, Row]] = []
        try:
            while left or running or done:
                while left and _fits(left[-1], running, limits):
                    # Ctrl-C is blocked during the fork. When it arrives, each child must be in
                    # `running` and ignore it. Otherwise the child would continue as a second
                    # parent.
                    with ctrl_c_later():
                        job, descriptor = _start(left.pop(), limits)
                        running[descriptor] = job
                        ended.register(descriptor, selectors.EVENT_READ)
                # Yield after other processes were started, because the caller may wait for a disk.
                yield from done
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
    """Delay a Ctrl-C until the end of the `with` block, even if another thread receives it, such as
    a thread of dask. Children inherit the signal mask."""
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
    """Import modules that are usually imported at their first use, once here instead of in each
    process."""
    for module in _LATE:
        import_module(module)
    missing_native()  # this also loads the C engine


def estimate_memory(source: Source) -> int:
    """Return the estimated number of bytes of memory for examining a file."""
    try:
        stored = os.stat(source.path).st_blocks * 512
    except (OSError, ValueError):
        stored = 0
    return LEAST_MEMORY + int(PART * stored * (PACKED if source.path.endswith(_PACKED_NAMES) else 1))


def _fits(source: Source, running: dict[int, _Job], limits: Limits) -> bool:
    if not running:
        return True
    return len(running) < limits.jobs and sum(job.memory for job in running.values()) + estimate_memory(source) <= limits.memory


def _start(source: Source, limits: Limits) -> tuple[_Job, int]:
    reads, writes = os.pipe()
    # Otherwise the garbage collector of the child would copy every page with objects of the parent.
    gc.freeze()
    parent, pid = os.getpid(), os.fork()
    if not pid:
        _child(source, limits, writes, parent)
    os.close(writes)
    return _Job(pid, source, time.monotonic(), estimate_memory(source), bytearray()), reads


def _child(source: Source, limits: Limits, writes: int, parent: int) -> NoReturn:
    """Examine the core and write the row.

    The process ends when its parent ends. It ignores Ctrl-C, which the parent handles. If memory is
    short, the kernel ends this process rather than others."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(status)  # the parent ended before the request was made
        with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
        if limits.jobs > 1:  # one thread, because other processes use the other processors
            os.environ.setdefault(THREADS, "1")
        row = examine(source, limits.sysroot, opened=lambda target: _bound_memory(target, limits.memory))
        with os.fdopen(writes, "wb") as out:
            out.write(json.dumps(row.pack()).encode("ascii"))
        status = 0
    except (Exception, KeyboardInterrupt):
        pass  # the parent detects that the row is incomplete
    finally:
        os._exit(status)


def _bound_memory(target: Target, memory: int) -> None:
    """Limit the memory of the process to `memory` bytes. The mapping of the core does not count,
    because its pages belong to the file."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        used = next((int(line.split()[1]) << 10 for line in file if line.startswith("VmData:")), 0)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = used + memory
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _result(job: _Job) -> Row:
    """Return the row of a process that has closed its pipe."""
    _, status = os.waitpid(job.pid, 0)
    with suppress(ValueError, KeyError, TypeError):
        return unpack_row(json.loads(job.said))
    return _make_failure(job, _why(status))


def _why(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return "the process that read it ended without a result"
    number = os.WTERMSIG(status)
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    by_kernel = " (possibly by the kernel, as memory was short)" if number == signal.SIGKILL else ""
    return f"the process that read it was ended by {name}{by_kernel}"


def _too_long(running: dict[int, _Job], ended: selectors.BaseSelector, timeout: float) -> Iterator[tuple[Source, Row]]:
    """End the processes that exceed the time limit, and yield their rows."""
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
            yield job.source, _make_failure(job, f"not finished after {timeout:g} s (--timeout), {human(job.source.size)}")


def _make_failure(job: _Job, why: str) -> Row:
    return replace(make_failure(job.source, why), seconds=time.monotonic() - job.began)


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)
