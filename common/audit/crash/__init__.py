"""Find out why a process ended: its signal, the place, its last message, and damage of the heap.

A core has a crash only if the process ended by its own fault or by its own abort(). A core that was
made from outside (gcore, `kill -ABRT`) has none."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import Optional

from findleaks.audit.corruption import Damage
from findleaks.audit.crash.closed_stream import ClosedStream, find_closed_stream
from findleaks.audit.crash.cpp_exception import CppException
from findleaks.audit.crash.crashed_stack import FRAMES, CrashedStack, read_stack
from findleaks.audit.crash.equal_words import EqualWords, find_equal_words
from findleaks.audit.crash.fault import Fault, find_fault
from findleaks.audit.crash.first_signal import FirstSignal, find_first_signal, find_stack
from findleaks.audit.crash.fortified import OVERFLOW, find_failed_check
from findleaks.audit.crash.freed_object import FreedObject, find_freed_object
from findleaks.audit.crash.last_words import LastWords, read_last_words
from findleaks.audit.crash.nearby_memory import NearbyMemory, find_nearby_memory, first_block
from findleaks.audit.crash.overwritten_base import find_sibling_word
from findleaks.audit.crash.pointer_source import Place, PointerSource, describe_place, describe_source, text_around
from findleaks.audit.crash.recursion import Recursion, find_recursion
from findleaks.audit.crash.released_pointer import ReleasedPointer, find_released_pointer
from findleaks.audit.crash.rust_panic import ALLOCATION_FAILURES, RustPanic, is_panic_frame
from findleaks.audit.crash.sanitizer_report import find_caller, is_sanitizer
from findleaks.audit.crash.value_origin import Origin, Tracer
from findleaks.audit.heap_check import find_damages
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.libc.thread_state import waits_in_kernel
from findleaks.runtimes.directory import code_tables_of, find_frames
from findleaks.session import Session
from findleaks.target.arch import X86_64
from findleaks.target.base import Target, Thread
from findleaks.target.notes import SI_TKILL
from findleaks.target.ranges import region_at
from findleaks.unwind.frames import FrameRegisters, Unwinder
from findleaks.unwind.managed_frames import NativeStack
from findleaks.unwind.stacks import NamedFrame, without_parameters
from findleaks.value_classes import NamedTuple, dataclass, replace

_NEAR_ABORT = 8  # innermost frames among which that of abort() is

BELOW = 1 << 20  # an address this close below the stack pointer may belong to a function's frame
_RUST_ENDS = ("core::panicking::", "std::panicking::", "rust_begin_unwind", *ALLOCATION_FAILURES)
# A function that calls the main function of a Rust program, or of its thread
_RUST_MAIN = "__rust_begin_short_backtrace"
# A function of Rust's libraries, or of a trait that they implement for one of their own types
_RUST_LIBRARY = re.compile(r"<?(&|mut |\*const |\*mut )*(std|core|alloc|hashbrown)::|<[^:]*? as (std|core|alloc)::")
RED_ZONE = 256  # a push may fault in an unmapped page up to this many bytes above the stack pointer

_LIBRARIES = (
    *("libc.", "libc-", "libpthread", "ld-linux", "ld-musl", "libstdc++.", "libgcc_s.", "libc++", "linux-vdso", "[vdso]"),
    *("libglib-2.0.", "libgobject-2.0.", "libjemalloc.", "libtcmalloc", "libmimalloc"),
)
"""Prefixes of the names of libraries. If a process crashes in one of them, the fault is usually in
its caller."""


_HEAP_CALLS = ("free", "cfree", "__libc_free", "malloc", "__libc_malloc", "calloc", "__libc_calloc", "realloc", "__libc_realloc")
_LIBC_CALLS = ("abort", "raise", "__assert_fail", "__assert_fail_base", "fclose", *_HEAP_CALLS)
"""Functions of libc that end processes or examine the heap, and that call no function of the
program."""


@dataclass(frozen=True)
class Crash:
    """How a process ended."""

    signal: str  # "SIGSEGV"
    thread: int  # tid
    address: Optional[int]  # the address that a SIGSEGV or SIGBUS accessed; None if unknown
    is_raised: bool  # whether the thread sent the signal to itself, as handlers of faults do
    above_stack: bool  # whether `address` is less than a page above the end of the stack
    below_stack: bool  # whether `address` is less than BELOW bytes below the stack pointer
    frame: Optional[NamedFrame]  # the innermost frame that is not in a library of _LIBRARIES
    managed: Optional[NamedFrame]  # the innermost frame of a managed function
    # The message of glibc or libstdc++, or else a description of how the process ended, unescaped;
    # "" if there is none
    message: str
    exception: Optional[CppException]  # the exception that no handler caught
    panic: Optional[RustPanic]
    # The message with which a managed runtime ended the process, unescaped; "" if none
    runtime_message: str
    damage: Optional[Damage]  # the first damaged place of a heap
    damages: int  # number of damaged places
    is_handled: bool = False  # whether the handler of the signal ended the process with abort()
    is_abort: bool = False  # whether the thread called abort()
    freed: Optional[FreedObject] = None  # freed object whose use caused the access to `address`
    is_jump: bool = False  # whether the thread called or jumped to `address`, which is not code
    value_type: str = ""  # type of the value that no handler caught; see FatalPlace
    fault_code: int = 0  # si_code of the signal
    is_sent: bool = False  # whether the thread sent the signal to itself outside of a handler
    fault: Optional[Fault] = None  # what the processor reported
    # Where the pointer of `released` comes from. If `released` is None: where the pointer, divisor
    # or index of `fault` comes from.
    source: Optional[PointerSource] = None
    text: str = ""  # the text around the word from which `source` was loaded; not escaped
    # The argument of free() or realloc(), if the process ended in this function
    released: Optional[ReleasedPointer] = None
    released_place: Optional[Place] = None  # what is at this pointer
    recursion: Optional[Recursion] = None  # the function whose frames filled the stack
    is_sent_again: bool = False  # whether the handler of the signal sent it again
    sent_signal: str = ""  # the other signal with which the handler ended the process; "" if none
    # The number of the system call that a SIGSYS refused (-1: none), and the innermost function
    refused_call: int = -1
    innermost: str = ""
    check: str = ""  # the function whose _FORTIFY_SOURCE check failed: "sprintf"
    musl_check: str = ""  # what executed musl's hlt: see musl_check.py; "" if nothing did
    nearby: Optional[NearbyMemory] = None  # the memory that belongs to `address`
    # The memory that overflowed as a stack, if it is not a thread's
    stack_place: Optional[Place] = None
    equal: Optional[EqualWords] = None  # the word from which the pointer was probably loaded
    stream: Optional[ClosedStream] = None  # the address that was used as a stream, if it is not one
    # The function of the program that `frame` called. It has no frame, because it jumped to another
    # function instead of calling it. "": there is no such function
    called: str = ""


class _Context(NamedTuple):
    """What the fields of a Crash are computed from. `tracer` and `frames` begin at the frame that
    the first signal interrupted."""

    session: Session
    stack: CrashedStack
    words: LastWords
    first: FirstSignal
    is_jump: bool  # see Crash
    tracer: Tracer
    frames: Sequence[NamedFrame]

    @property
    def own(self) -> Sequence[NamedFrame]:
        """The frames that are code."""
        return self.frames[self.is_jump :]


def read_crash(session: Session) -> Optional[Crash]:
    """Return how the process ended; None if the process did not cause its own end. Raises
    Interrupted if the user asks to stop."""
    target = session.target
    thread = _crashed_thread(target)
    if thread is None:
        return None
    stack = find_stack(target, thread)
    words = read_last_words(session, stack)
    first = find_first_signal(target, stack, words.is_unexplained)
    if first is None:
        return None
    is_jump = first.address is not None and first.address == stack.trace.frames[first.frame].pc
    tracer, frames = stack.tracer(first.frame, is_jump), stack.frames[first.frame :]
    context = _Context(session, stack, words, first, is_jump, tracer, frames)
    return _find_cause(context, _describe_end(context))


def _describe_end(context: _Context) -> Crash:
    """Return how the process ended, without the cause."""
    session, stack, words, first, is_jump, tracer, frames = context
    target, handled, own = session.target, first.handled, context.own
    damages = find_damages(session) if not words.is_language_error else []
    shown = own_frame(_outside_rust(own) if words.panic is not None or words.no_memory else own)
    return Crash(
        signal=signal_name(first.number),
        thread=stack.thread.tid,
        address=first.address,
        is_raised=handled is None and not first.is_repeated and waits_in_kernel(target, stack.thread.pc),
        above_stack=first.address is not None and _is_past_stack(target, first.sp, first.address),
        below_stack=first.address is not None and not is_jump and _is_below_stack(target, first.sp, first.address),
        frame=shown,
        managed=words.place.frame or _managed_frame(target, stack.thread),
        message=words.message or words.no_memory,
        exception=words.exception,
        panic=words.panic,
        runtime_message=words.runtime_message,
        damage=damages[0] if damages else None,
        damages=len(damages),
        is_handled=handled is not None and not first.is_sent_again,
        is_abort=any(frame.function == "abort" for frame in stack.frames[first.aborted :][:_NEAR_ABORT]),
        is_jump=is_jump,
        value_type=words.place.value_type,
        fault_code=first.code,
        is_sent=first.code == SI_TKILL and all(one.call != one.pc for one in stack.trace.frames[1:]),
        is_sent_again=first.is_repeated or (first.is_sent_again and handled is not None and handled.signal == target.signal),
        sent_signal=signal_name(target.signal) if first.is_sent_again and first.number != target.signal else "",
        refused_call=handled.call if handled is not None else target.refused_call,
        innermost=own[0].function if own else "",
        check=find_failed_check(tracer, own) if words.message.startswith(OVERFLOW) else "",
        called=_name_without_frame(tracer, frames, shown),
    )


def _find_cause(context: _Context, crash: Crash) -> Crash:
    """Return a crash with what is known about its cause."""
    session, stack, words, first, is_jump, tracer, frames = context
    address, handled = first.address, first.handled
    fault = find_fault(session.target, tracer, first.number, first.code, address)
    released = find_released_pointer(tracer, stack.unwinder, frames) if not words.is_language_error else None
    origin = released.origin if released is not None else fault.origin if fault is not None else None
    if origin is None and released is None and fault is not None and fault.siblings is not None:
        origin = find_sibling_word(session, fault.siblings, fault.value)
    freed = find_freed_object(session, stack.thread.registers, address, origin) if handled is None and address is not None else None
    is_segv, is_outside = first.number == signal.SIGSEGV, crash.below_stack or crash.above_stack
    is_access = (is_segv or first.number == signal.SIGBUS) and not (is_jump or is_outside) and freed is None
    source = describe_source(session, tracer, frames, origin)
    # A handler of the signal may have copied the registers.
    is_first = handled is None and not (first.is_repeated or first.is_sent_again)
    has_cause = released is not None or words.is_language_error or (source is not None and not source.local_of)
    is_unknown = (is_access or is_jump) and is_first and not has_cause
    return replace(
        crash,
        freed=freed,
        fault=fault,
        source=source,
        text=_text_of_pointer(session, origin, fault),
        released=released,
        released_place=describe_place(session, released.value) if released is not None else None,
        recursion=find_recursion(stack.unwinder, frames) if crash.below_stack else None,
        musl_check=_find_musl_check(session, tracer, context.own) if fault is not None and fault.instruction == "hlt" else "",
        nearby=find_nearby_memory(session, fault, address if is_segv else None) if is_access else None,
        stack_place=_other_stack(session, first.sp) if crash.below_stack else None,
        equal=find_equal_words(session, fault, address) if is_unknown else None,
        stream=find_closed_stream(session, tracer, frames) if not words.is_language_error else None,
    )


def _name_without_frame(tracer: Tracer, frames: Sequence[NamedFrame], frame: Optional[NamedFrame]) -> str:
    """Return the name of the function that `frame` called, if this function has no frame because it
    jumped to the function of the next inner frame instead of calling it. Return "" if it has a
    frame, is not of the program, or is unknown."""
    level = next((at for at, one in enumerate(frames) if one is frame), 0)
    if not level or level >= len(tracer.frames) or tracer.target.arch.name != X86_64.name:
        return ""
    try:
        called = tracer.called_function(level)
    except CapstoneMissing:
        return ""
    symbol = tracer.target.symbolize(called) if called and tracer.reader.entry(tracer.frames[level - 1].call) != called else None
    module = region_at(tracer.target.modules(), called)
    if symbol is None or symbol.address != called or module is None or _is_standard(symbol.name):
        return ""
    named = NamedFrame(0, symbol.name, 0, module.path.rpartition("/")[2])
    return "" if is_library(named.module) or is_sanitizer(named) else named.short_name()


def _find_musl_check(session: Session, tracer: Tracer, frames: Sequence[NamedFrame]) -> str:
    # Imported late: seldom needed
    from findleaks.audit.crash.musl_check import find_musl_check

    return find_musl_check(session, tracer, frames)


def _text_of_pointer(session: Session, origin: Optional[Origin], fault: Optional[Fault]) -> str:
    """Return the text around the word from which a pointer was loaded; "" if there is none."""
    if fault is not None and fault.kind == "return":
        word: Optional[int] = fault.address
    else:
        word = origin.address if origin is not None and origin.sort == "memory" else None
    return text_around(session, word) if word is not None else ""


def _other_stack(session: Session, sp: int) -> Optional[Place]:
    """Return the memory that contains the stack pointer if it is not the stack of a thread: an
    alternate signal stack, or the stack of a coroutine."""
    regions = session.target.regions()
    # The stack pointer may already be in the guard page.
    here = region_at(regions, sp)
    if here is None or not here.readable:
        here = next((one for one in regions if sp < one.start < sp + BELOW and one.readable), None)
    # The C library creates the stack of a thread in one mapping with its thread-local storage.
    if here is None or here.name or any(one.thread_pointer in here for one in session.target.threads()):
        return None
    place = describe_place(session, first_block(session, max(sp, here.start)))
    return place if place.sort in ("block", "mapping") else None


def _is_guarded(target: Target, address: int) -> bool:
    """Whether an address is in a gap between mappings, or in a guard page such as that of a
    stack."""
    region = region_at(target.regions(), address)
    return region is None or not region.readable


def _is_below_stack(target: Target, sp: int, address: int) -> bool:
    """Whether an address is less than BELOW bytes below the stack pointer, and cannot be
    accessed."""
    return 0 < sp - address + RED_ZONE < BELOW and _is_guarded(target, address)


def _is_past_stack(target: Target, sp: int, address: int) -> bool:
    """Whether an address is less than a page above the end of the stack that contains `sp`, and
    cannot be accessed."""
    stack = region_at(target.regions(), sp)
    return stack is not None and 0 <= address - stack.end < target.arch.page and _is_guarded(target, address)


def signal_name(number: int) -> str:
    """Return the name of a signal: "SIGSEGV"; "" if `number` is 0."""
    if not number:
        return ""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _crashed_thread(target: Target) -> Optional[Thread]:
    return next((one for one in target.threads() if one.tid == target.crashed), None) if target.crashed else None


def crashed_frames(target: Target) -> Sequence[NamedFrame]:
    """Return the innermost frames of the thread that crashed; [] if no thread crashed. Frames of
    Rust's libraries that only handle a panic are left out."""
    return _outside_rust([frame for _, frame in crashed_places(target)])


def crashed_places(target: Target) -> list[tuple[int, NamedFrame]]:
    """Return the innermost frames of the thread that crashed: for each, the stack pointer and the
    names."""
    thread = _crashed_thread(target)
    return list(read_stack(target, thread).places) if thread is not None else []


def _managed_frame(target: Target, thread: Thread) -> Optional[NamedFrame]:
    """The innermost frame of a managed function in the thread that crashed."""
    registers: list[FrameRegisters] = []
    readers = find_frames(target)
    unwinder = Unwinder(target, code_tables_of(target), [reader.step for reader in readers]) if readers else None
    trace = unwinder.trace_with_registers(thread, registers, FRAMES) if unwinder is not None else None
    segments = (one for reader in readers for one in reader.segments(NativeStack(thread, trace, registers))) if trace else ()
    return next((frame for one in segments for frame in one.frames if frame.function and frame.kind), None)


def _outside_rust(frames: Sequence[NamedFrame]) -> Sequence[NamedFrame]:
    """If Rust's libraries ended the process, return the frames of the functions that called these
    libraries. Otherwise return all frames."""
    panics = [at for at, frame in enumerate(frames) if frame.function.startswith(_RUST_ENDS)]
    if not panics:
        return frames
    return [frame for frame in frames[panics[-1] + 1 :] if not is_panic_frame(frame.function)] or frames


def is_library(module: str) -> bool:
    """Whether a module is a library of the system, in which faults are usually its caller's."""
    return module.startswith(_LIBRARIES)


def own_frame(frames: Sequence[NamedFrame]) -> Optional[NamedFrame]:
    """Return the innermost frame that is not in a library of _LIBRARIES, and not a function of the
    C++ library that was compiled into the program. If there is none, return the innermost frame
    outside of these libraries, or else the innermost frame."""
    if any(_RUST_MAIN in frame.function for frame in frames):
        frames = [frame for frame in frames if not _RUST_LIBRARY.match(frame.function)] or frames
    frames = _outside_sanitizers(_outside_libc(frames))
    found = [frame for frame in frames if not is_library(frame.module)] or frames[:1]
    return next((frame for frame in found if not _is_standard(frame.function)), found[0] if found else None)


def _outside_sanitizers(frames: Sequence[NamedFrame]) -> Sequence[NamedFrame]:
    """If a sanitizer ended the process, return the frames that called it."""
    caller = find_caller(frames)
    inner = frames[:caller]
    is_end = all(is_library(one.module) or is_sanitizer(one) or not one.function for one in inner)
    return frames[caller:] if is_end else frames


def _outside_libc(frames: Sequence[NamedFrame]) -> Sequence[NamedFrame]:
    """Return the frames that called libc if it is linked statically; otherwise all frames."""
    inner = frames[0].module if frames else ""
    calls = [at for at, frame in enumerate(frames) if frame.function.split(".")[0] in _LIBC_CALLS and frame.module == inner]
    return frames[calls[-1] + 1 :] if calls and not is_library(inner) and calls[-1] + 1 < len(frames) else frames


def _is_standard(function: str) -> bool:
    """Whether a function is in namespace std. Templates have a return type before the name, which
    may be in this namespace, too: "std::vector<int> parse<int>(char const*)"."""
    name = re.sub(r"<[^<>]*>", "", without_parameters(function))
    while name != (name := re.sub(r"<[^<>]*>", "", name)):
        pass
    return name.rsplit(" ", 1)[-1].startswith(("std::", "__gnu_cxx::"))
