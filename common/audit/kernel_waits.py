"""Threads that wait in given system calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from findleaks.errors import UnreadableMemory
from findleaks.libc.thread_state import waits_in_kernel
from findleaks.target.arch import AARCH64, ARM, I386, PPC64LE, RISCV64, X86_64

if TYPE_CHECKING:
    from findleaks.target.base import Target

EPOLL_WAITS = {
    X86_64.name: (232, 281, 441),
    AARCH64.name: (22, 441),
    RISCV64.name: (22, 441),
    I386.name: (256, 319, 441),
    ARM.name: (252, 346, 441),
    PPC64LE.name: (238, 303, 441),
}
"""Numbers of epoll_wait, epoll_pwait and epoll_pwait2 (arch/*/kernel/syscalls/syscall.tbl,
include/uapi/asm-generic/unistd.h). S390x keeps no number in a register."""
URING_ENTER = dict.fromkeys((X86_64.name, AARCH64.name, RISCV64.name, I386.name, ARM.name, PPC64LE.name), (426,))
"""The number of io_uring_enter."""


def count_waiting(target: Target, calls: Mapping[str, Sequence[int]]) -> int:
    """Count the threads that wait in one of these system calls, given by architecture."""
    arch = target.arch
    numbers = calls.get(arch.name, ())
    inside = [thread.pc for thread in target.threads() if thread.registers.get(arch.system_call_number) in numbers]
    # Only x86 has a register for the number alone. Elsewhere, the instruction is the evidence.
    is_certain = arch.system_call_number.startswith("orig_")
    return sum(waits_in_kernel(target, pc) for pc in inside if is_certain or _is_readable(target, pc - 4))


def _is_readable(target: Target, address: int) -> bool:
    try:
        return bool(target.read(address, 4))
    except UnreadableMemory:
        return False
