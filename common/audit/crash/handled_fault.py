"""Find the fault whose signal handler ended the process: with abort(), as the JVM's does, or by
sending the signal again.

A signal is blocked while its handler runs. If the handler sends it again with raise(), the kernel
delivers it after the handler has returned to the instruction that faulted. The core then has the
registers of this instruction, but its siginfo_t describes the second signal.

The kernel starts a handler with a frame that has the siginfo_t, if the handler was installed with
SA_SIGINFO: on x86-64 {return address, ucontext, siginfo}, on AArch64 {siginfo, ucontext} (Linux
arch/x86/include/asm/sigframe.h, struct rt_sigframe; arch/arm64/kernel/signal.c)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.target.arch import AARCH64, X86_64
from findleaks.target.base import Target
from findleaks.target.notes import FAULTS, SI_TKILL, SI_USER, fault_address, refused_call
from findleaks.unwind.frames import Trace
from findleaks.value_classes import NamedTuple

# Offsets from the stack pointer to which the handler returns
_SIGINFO = {X86_64.name: 304, AARCH64.name: 0}
_SIZE = 128  # bytes of a siginfo_t


class HandledFault(NamedTuple):
    """A fault. `address`: the address that a SIGSEGV or SIGBUS accessed; None if it is unknown.
    `at`: the index of the frame that was interrupted. `code`: si_code. `call`: the number of the
    system call that a SIGSYS reports; -1 if there is none."""

    signal: signal.Signals
    address: Optional[int]
    at: int
    code: int
    call: int = -1


def is_sent_again(target: Target) -> bool:
    """Whether the process ended with the signal of a fault, but sent it to itself."""
    return target.signal in FAULTS and target.fault_code in (SI_TKILL, SI_USER) and bool(target.crashed)


def find_handled_fault(target: Target, trace: Trace) -> Optional[HandledFault]:
    """Return the fault that the innermost handler on a thread's stack handles. Handlers of SIGABRT
    are skipped. None if there is no other handler, or if its signal does not report a fault."""
    for at, info in _handled_signals(target, trace):
        number, _, code = target.arch.words32(info[:12])
        if number in FAULTS and 0 < code < 1 << 31:
            view = memoryview(info)
            return HandledFault(signal.Signals(number), fault_address(target.arch, view), at, code, refused_call(target.arch, view))
        if number != signal.SIGABRT:
            return None
    return None


def find_aborted_frame(target: Target, trace: Trace) -> int:
    """Return the index of the frame that the outermost handler of SIGABRT interrupted; 0 if SIGABRT
    was not handled. There may be several such handlers on the stack: in programs with cgo, Go's
    handler sends SIGABRT itself."""
    found = 0
    for at, info in _handled_signals(target, trace):
        if target.arch.words32(info[:4])[0] != signal.SIGABRT:
            break
        found = at
    return found


def _handled_signals(target: Target, trace: Trace) -> Iterator[tuple[int, bytes]]:
    """Yield the index of each frame that a signal interrupted, and the siginfo_t of the signal,
    innermost first."""
    offset = _SIGINFO.get(target.arch.name)
    for at in range(1, len(trace.frames) if offset is not None else 0):
        # The pc of an interrupted frame is not a return address, so `call` is equal to it.
        if trace.frames[at].call == trace.frames[at].pc:
            info = Memory(target).read(trace.frames[at - 1].sp + (offset or 0), _SIZE)
            if not info:
                return
            yield at, info
