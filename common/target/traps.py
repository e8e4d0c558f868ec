"""Distinguish a process that ended at a trap instruction from one that a debugger stopped."""

from __future__ import annotations

from findleaks.errors import UnreadableMemory
from findleaks.target.arch import AARCH64, X86_64
from findleaks.target.base import MappedMemory
from findleaks.target.notes import SIGTRAP, Process

_INT3 = b"\xcc"  # of x86-64; the pc is after it
_BRK, _BRK_MASK = 0xD4200000, 0xFFE0001F  # brk #imm16 of AArch64; the pc is at it


def crashed_thread(target: MappedMemory, process: Process) -> int:
    """Return the number of the thread that ended the process by its own fault; 0 if there is none.

    A core that a debugger wrote at a breakpoint has the same signal, SIGTRAP, as the core of a
    process that ended at a trap instruction. But debuggers set the pc back to the start of the
    breakpoint, and write the original instruction to the core."""
    if process.signal != SIGTRAP or not process.crashed:
        return process.crashed
    pc = next((thread.pc for thread in process.threads if thread.tid == process.crashed), 0)
    try:
        if target.arch.name == X86_64.name:
            return process.crashed if target.read(pc - 1, 1) == _INT3 else 0
        if target.arch.name == AARCH64.name:
            return process.crashed if int.from_bytes(target.read(pc, 4), "little") & _BRK_MASK == _BRK else 0
    except UnreadableMemory:
        pass
    return 0
