"""Why a process ended: its signal, the place, its last message, and damage of the heap.

Reads cores whose process ended by its own fault or its own abort(); a core that was made from
outside (gcore, `kill -ABRT`) has no crash."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from findleaks.audit.corruption import Damage, Explainer
from findleaks.audit.crash.abort_message import read_abort_message
from findleaks.audit.crash.cpp_exception import CppException, find_exception, is_terminating
from findleaks.audit.crash.rust_panic import RustPanic, find_panic, is_panic_frame
from findleaks.audit.heap_check import check_heap
from findleaks.session import Session
from findleaks.target.base import Target, Thread
from findleaks.unwind.frames import Unwinder
from findleaks.unwind.stacks import NamedFrame, Namer

FRAMES = 64  # of the stack of the thread that crashed, at most

BELOW = 1 << 20  # bytes below the stack pointer that a function's frame may reach
_RUST_PANIC = ("core::panicking::", "std::panicking::", "rust_begin_unwind")
_ENDS = (signal.SIGABRT, signal.SIGILL, signal.SIGTRAP)
"""Signals with which a panic ends a process."""

RED_ZONE = 256  # bytes above it that may still be in an unmapped page, when a push faults

_LIBRARIES = ("libc.", "libc-", "libpthread", "ld-linux", "ld-musl", "libstdc++.", "libgcc_s.", "libc++", "linux-vdso", "[vdso]")
"""Beginnings of the names of libraries whose functions a process crashes in for others' faults."""


@dataclass(frozen=True)
class Crash:
    """How a process ended."""

    signal: str  # "SIGSEGV"
    thread: int  # tid
    address: Optional[int]  # that a SIGSEGV or SIGBUS accessed; None: not known
    below_stack: bool  # whether `address` is less than BELOW bytes below the stack pointer
    frame: Optional[NamedFrame]  # the innermost that is none of the C or C++ library's
    message: str  # that glibc printed before abort(), unescaped; "" if none
    exception: Optional[CppException]  # that nothing caught
    panic: Optional[RustPanic]
    runtime_message: str  # with which a managed runtime ended the process, unescaped; "" if none
    damage: Optional[Damage]  # the first damaged place of a heap
    damages: int  # damaged places


def read_crash(session: Session) -> Optional[Crash]:
    """How the process ended; None if it did not end by its own fault. Interrupted if the user asks
    to stop."""
    target = session.target
    thread = _crashed_thread(target)
    if thread is None:
        return None
    places = crashed_places(target)
    frames = [frame for _, frame in places]
    aborted = target.signal == signal.SIGABRT
    message = read_abort_message(target) if aborted else ""
    exception = panic = None
    if aborted and not message and is_terminating([frame.function for frame in frames]):
        exception = find_exception(session, thread)
    said = "" if message or exception else _runtime_message(session, thread, places)
    if target.signal in _ENDS and not (message or exception or said):
        panic = find_panic(session, thread)
    found = [] if exception or panic or said else _damages(session)
    return Crash(
        signal_name(target.signal),
        thread.tid,
        target.fault_address,
        target.fault_address is not None and 0 < thread.sp - target.fault_address + RED_ZONE < BELOW,
        own_frame(_outside_rust(frames) if panic is not None else frames),
        message,
        exception,
        panic,
        said,
        found[0] if found else None,
        len(found),
    )


def signal_name(number: int) -> str:
    """ "SIGSEGV"; "" for none."""
    if not number:
        return ""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _crashed_thread(target: Target) -> Optional[Thread]:
    return next((one for one in target.threads() if one.tid == target.crashed), None) if target.crashed else None


def crashed_frames(target: Target) -> list[NamedFrame]:
    """The innermost frames of the thread that crashed; [] if no thread did. Without the frames with
    which Rust's libraries panicked."""
    return _outside_rust([frame for _, frame in crashed_places(target)])


def crashed_places(target: Target) -> list[tuple[int, NamedFrame]]:
    """The stack pointers and names of the innermost frames of the thread that crashed."""
    thread = _crashed_thread(target)
    if thread is None:
        return []
    unwinder = Unwinder(target)
    namer = Namer(target, unwinder)
    return [(frame.sp, namer.name(frame)) for frame in unwinder.trace_with_registers(thread, [], FRAMES).frames]


def _outside_rust(frames: list[NamedFrame]) -> list[NamedFrame]:
    """The frames from the function that panicked on, if Rust's libraries did so for it."""
    panics = [at for at, frame in enumerate(frames) if frame.function.startswith(_RUST_PANIC)]
    if not panics:
        return frames
    return [frame for frame in frames[panics[-1] + 1 :] if not is_panic_frame(frame.function)] or frames


def _runtime_message(session: Session, thread: Thread, places: Sequence[tuple[int, NamedFrame]]) -> str:
    """The text with which a managed runtime ended the process; "" if none did."""
    frames = [(sp, frame.function, frame.module) for sp, frame in places]
    return next(filter(None, (runtime.fatal_message(thread, frames) for runtime in session.runtimes)), "")


def own_frame(frames: Sequence[NamedFrame]) -> Optional[NamedFrame]:
    """The innermost frame that is none of the C or C++ library's, or the innermost one."""
    return next((frame for frame in frames if not frame.module.startswith(_LIBRARIES)), frames[0] if frames else None)


def _damages(session: Session) -> list[Damage]:
    """Return the damaged places of all heaps, the first explained: what `verify` reports."""
    found: list[Damage] = []
    for allocator in session.directory.allocators:
        problems, _ = check_heap(session, allocator)
        corrupt = [problem for problem in problems if problem.corrupt]
        if corrupt and not found:
            found.append(Explainer(session).explain(allocator.name, corrupt.pop(0)))
        found += [Damage(problem, allocator.name) for problem in corrupt]
    return found
