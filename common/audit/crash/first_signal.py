"""The signal with which a crash began. If a handler of this signal ended the process, with abort(),
with another signal, or by sending the signal again, the core has the last signal only."""

from __future__ import annotations

import signal
from typing import Optional

from findleaks.audit.crash.crashed_stack import CrashedStack, read_stack
from findleaks.audit.crash.fault import find_resent_fault
from findleaks.audit.crash.handled_fault import HandledFault, find_aborted_frame, find_handled_fault, is_sent_again
from findleaks.libc.thread_state import waits_in_kernel
from findleaks.target.base import Target, Thread
from findleaks.target.notes import SI_USER
from findleaks.value_classes import NamedTuple

_SENDERS = 256  # threads that may have sent the signal


class FirstSignal(NamedTuple):
    """The first signal of a crash."""

    number: int
    code: int  # si_code
    address: Optional[int]  # the address that a SIGSEGV or SIGBUS accessed; None if unknown
    frame: int  # index of the frame that the signal interrupted
    sp: int  # the stack pointer of this frame
    aborted: int  # index of the frame that an asynchronous SIGABRT interrupted; else 0
    handled: Optional[HandledFault]  # the fault whose handler is on the stack
    is_sent_again: bool  # whether a handler sent the last signal
    is_repeated: bool  # whether no handler is on the stack, but the code that faulted was found


def find_stack(target: Target, thread: Thread) -> CrashedStack:
    """Return the stack of the thread that crashed. If a handler sent the last signal with kill(),
    this is the thread that executes the handler: the kernel may deliver such a signal to any
    thread."""
    stack = read_stack(target, thread)
    is_sent = is_sent_again(target) and target.fault_code == SI_USER
    if not is_sent or not waits_in_kernel(target, thread.pc) or find_handled_fault(target, stack.trace) is not None:
        return stack
    for other in target.threads()[:_SENDERS]:
        found = read_stack(target, other)
        handled = find_handled_fault(target, found.trace)
        if handled is not None and handled.signal == target.signal:
            return found
    return stack


def find_first_signal(target: Target, stack: CrashedStack, is_unexplained: bool) -> Optional[FirstSignal]:
    """Return the first signal; None if another process sent the last one. `is_unexplained`: see
    LastWords."""
    is_resent = is_sent_again(target)
    aborted = find_aborted_frame(target, stack.trace) if target.signal == signal.SIGABRT else 0
    handled = find_handled_fault(target, stack.trace) if is_resent or is_unexplained else None
    if handled is not None:
        sp = stack.trace.frames[handled.at].sp
        return FirstSignal(handled.signal, handled.code, handled.address, handled.at, sp, aborted, handled, is_resent, False)
    repeated = find_resent_fault(target, stack.tracer(0, False), target.signal) if is_resent else None
    if is_resent and repeated is None and target.fault_code == SI_USER:
        return None
    code, address = repeated or (target.fault_code, target.fault_address)
    return FirstSignal(target.signal, code, address, aborted, stack.thread.sp, aborted, None, is_resent, repeated is not None)
