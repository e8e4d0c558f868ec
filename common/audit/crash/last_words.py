"""What a process said before it ended: messages of libraries and runtimes, exceptions, panics."""

from __future__ import annotations

import signal
from typing import Optional

from findleaks.audit.crash.abort_message import read_abort_message
from findleaks.audit.crash.assertion import read_assertion
from findleaks.audit.crash.cpp_exception import CppException, describe_termination, find_exception, is_terminating
from findleaks.audit.crash.crashed_stack import CrashedStack
from findleaks.audit.crash.printed_message import TRAPS, read_printed_message
from findleaks.audit.crash.rust_panic import RustPanic, describe_allocation_failure, find_panic
from findleaks.audit.crash.sanitizer_report import read_sanitizer_report
from findleaks.runtimes.base import FatalPlace
from findleaks.session import Session
from findleaks.value_classes import NamedTuple

_ENDS = (signal.SIGABRT, signal.SIGILL, signal.SIGTRAP)
"""Signals that end a process after a panic."""


class LastWords(NamedTuple):
    """What a process said before it ended. Texts are unescaped, and "" if there are none."""

    message: str  # the message of a library for C or C++, or a description of its end
    exception: Optional[CppException]  # the exception that no handler caught
    panic: Optional[RustPanic]
    runtime_message: str  # the message of a managed runtime
    place: FatalPlace  # where the managed runtime ended the process
    no_memory: str  # which allocation of Rust failed
    is_unexplained: bool  # whether the process called abort(), and nothing says why

    @property
    def is_language_error(self) -> bool:
        """Whether an exception, a panic or a managed runtime ended the process."""
        return bool(self.exception or self.panic or self.runtime_message)


def read_last_words(session: Session, stack: CrashedStack) -> LastWords:
    """Return what the process said before it ended. Stops at the first source that has a text."""
    target, frames = session.target, stack.frames
    functions = [frame.function for frame in frames]
    aborted = target.signal == signal.SIGABRT
    message = read_abort_message(target) if aborted else ""
    exception = panic = None
    if aborted and not message and is_terminating(functions):
        exception = find_exception(session, stack.thread)
        message = "" if exception else describe_termination(functions)
    said, place = ("", FatalPlace()) if message or exception else _read_runtime_message(session, stack)
    if target.signal in _ENDS and not (message or exception or said):
        panic = find_panic(session, stack.thread)
    is_unexplained = aborted and not (message or exception or said or panic)
    if is_unexplained:
        message = read_sanitizer_report(session, stack) or read_assertion(stack.tracer(0, False), frames)
    if is_unexplained or (target.signal in TRAPS and not panic):
        message = message or read_printed_message(stack)
        is_unexplained = is_unexplained and not message
    no_memory = describe_allocation_failure(functions) if is_unexplained else ""
    return LastWords(message, exception, panic, said, place, no_memory, is_unexplained and not no_memory)


def _read_runtime_message(session: Session, stack: CrashedStack) -> tuple[str, FatalPlace]:
    """Return the message with which a managed runtime ended the process ("" if there is none), and
    the place where it did so."""
    frames = [(sp, frame.function, frame.module) for sp, frame in stack.places]
    found = ((runtime, runtime.fatal_message(stack.thread, frames)) for runtime in session.runtimes)
    ends = ((message, runtime.fatal_place(stack.thread, message)) for runtime, message in found)
    return next((one for one in ends if one[0] or one[1].frame is not None), ("", FatalPlace()))
