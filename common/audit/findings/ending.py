"""Describe how a process ended that did not crash: a signal that another process or the kernel
sent, or abort()."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence

from findleaks.audit.crash import crashed_frames, own_frame, signal_name
from findleaks.audit.crash.crashed_stack import read_stack
from findleaks.escaping import visible
from findleaks.formatting import format_count, printable, shorten, size
from findleaks.libc.stdio_buffers import LONGEST, find_unwritten_text
from findleaks.runtimes.finding import Finding
from findleaks.session import Session
from findleaks.target.base import Target
from findleaks.target.notes import SI_USER
from findleaks.unwind.frame_locks import describe_thread
from findleaks.unwind.mutex_waits import find_lock_waits, group_by_lock
from findleaks.unwind.stacks import NamedFrame

# Signals whose default action writes a core
_SIGNALS = (
    signal.SIGQUIT,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGSEGV,
    signal.SIGXCPU,
    signal.SIGXFSZ,
    signal.SIGSYS,
)
_MOST_FILES = 3  # files whose unwritten text is shown
_MANY_WAITS = 8  # fewest threads of a running process whose wait for a mutex is described
_LIMITS = {signal.SIGXCPU: "CPU time (RLIMIT_CPU)", signal.SIGXFSZ: "the size of a file (RLIMIT_FSIZE)"}


def describe_end(session: Session, found: Sequence[Finding]) -> Iterator[str]:
    """Yield sentences about how the process ended, and about what it printed last. If it did not
    end, yield a sentence if most of its threads wait for one mutex."""
    target = session.target
    yield from _describe_signal(target, found)
    if target.crashed:
        yield from _describe_unwritten(target)
    elif target.signal not in _SIGNALS:
        yield from _describe_waits(target, found, max(_MANY_WAITS, (len(target.threads()) + 1) // 2))


def _describe_signal(target: Target, found: Sequence[Finding]) -> Iterator[str]:
    """Yield sentences about the signal. Yields none if a finding describes the crash, or if the
    signal is unknown."""
    if target.signal not in _SIGNALS or any(one.kind == "crash" for one in found):
        return
    name = signal_name(target.signal)
    if target.crashed and target.signal == signal.SIGABRT:
        frames = crashed_frames(target)
        frame = own_frame(frames) if any(one.function == "abort" for one in frames) else None
        if frame is not None:
            is_cpp = any(one.function.startswith("std::terminate") for one in frames)
            how = "called std::terminate(), which called abort()" if is_cpp else "called abort() and left no message in memory"
            yield f"The process ended with {name} in {_name_frame(frame)}, which {how}"
        return
    if target.crashed and target.fault_code != SI_USER:
        return
    # Linux sends SIGXFSZ in the name of the process (send_sig() in fs/read_write.c).
    is_limit = target.signal in _LIMITS and (not target.sender or (target.signal == signal.SIGXFSZ and target.sender == target.pid))
    if is_limit:
        yield f"The kernel sent {name}: a limit of {_LIMITS[signal.Signals(target.signal)]} was exceeded"
    elif target.sender:
        is_own = target.sender == target.pid
        who = "it" if is_own else f"process {target.sender}" if target.sender > 0 else "a process outside of its PID namespace"
        what = f"{who} sent {name}{' to itself, as kill() and raise() do' if is_own else ''}"
        yield f"The process did not crash: {what}. `stacks` shows what the threads were doing"
    elif target.first_thread and target.signal != signal.SIGTRAP:  # debuggers use SIGTRAP
        yield from _describe_unrecorded(target, name)
    yield from _describe_waits(target, found)


def _describe_unrecorded(target: Target, name: str) -> Iterator[str]:
    """Yield a sentence about a core without siginfo_t. QEMU writes such cores of the programs that
    it emulates (linux-user/elfload.c)."""
    thread = next((one for one in target.threads() if one.tid == target.first_thread), None)
    frame = own_frame(read_stack(target, thread).frames) if thread is not None else None
    place = f" Thread {target.first_thread} was in {_name_frame(frame)}." if frame is not None else ""
    yield f"The process got {name}, and the core does not record why (it has no NT_SIGINFO note).{place} `stacks` shows all threads"


def _describe_unwritten(target: Target) -> Iterator[str]:
    """Yield a sentence about each text that the process printed to a file and that is still in the
    buffer of stdio. abort() and signals do not write these buffers."""
    found = sorted(find_unwritten_text(target))  # stdout first
    for one in found[:_MOST_FILES]:
        name = {1: "stdout", 2: "stderr"}.get(one.descriptor, f"file descriptor {one.descriptor}")
        text = visible(one.end.strip())
        text = f"…{text[-LONGEST:]}" if max(one.size, len(text)) > LONGEST else text
        yield f'The last {size(one.size)} that the process printed to {name} were not written: "{text}"'
    if len(found) > _MOST_FILES:
        yield f"Text that the process printed to {format_count(len(found) - _MOST_FILES, 'other file')} was not written either"


def _name_frame(frame: NamedFrame) -> str:
    """Return a function and its module."""
    module = f" ({shorten(frame.module, 60)})" if frame.function and frame.module else ""
    return f"{shorten(frame.short_name(), 200)}{module}"


def _describe_waits(target: Target, found: Sequence[Finding], least: int = 1) -> Iterator[str]:
    """Yield a sentence about the mutex for which most threads wait, unless these are fewer than
    `least`, or a finding is about this mutex."""
    waits = find_lock_waits(target) if all(one.kind != "deadlock" for one in found) else []
    if not waits:
        return
    alike = max(group_by_lock(waits).values(), key=len)
    lock, names = alike[0].lock, target.thread_names()
    if len(alike) < least or any(one.lock == lock.address for one in found):
        return
    if len(alike) == 1:
        who = f"{describe_thread(alike[0].thread, names)} waits"
    else:
        who = f"{format_count(len(alike), 'thread')} wait"
    what = f"{printable(lock.name, 100)} ({lock.type} at {lock.address:#x})" if lock.name else f"the {lock.type} at {lock.address:#x}"
    yield f"{who[:1].upper()}{who[1:]} for {what}, which {describe_thread(lock.owner, names)} holds"
