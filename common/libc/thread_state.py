"""Determine whether a thread was waiting in the kernel when the process was stopped, and in which
file a thread was running."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from findleaks.errors import UnreadableMemory
from findleaks.target.arch import AARCH64, ARM, I386, PPC64LE, RISCV64, X86_64
from findleaks.target.base import Target, Thread
from findleaks.target.ranges import region_at

_LONGEST = 4  # the longest instruction of a system call in bytes

EPOLL_WAITS = {
    X86_64.name: (232, 281, 441),
    AARCH64.name: (22, 441),
    RISCV64.name: (22, 441),
    I386.name: (256, 319, 441),
    ARM.name: (252, 346, 441),
    PPC64LE.name: (238, 303, 441),
}
"""Numbers of epoll_wait, epoll_pwait and epoll_pwait2 (arch/*/kernel/syscalls/syscall.tbl,
include/uapi/asm-generic/unistd.h). On s390x, no register has the number during the call."""
URING_ENTER = dict.fromkeys((X86_64.name, AARCH64.name, RISCV64.name, I386.name, ARM.name, PPC64LE.name), (426,))
"""The number of io_uring_enter."""


def waits_in_kernel(target: Target, pc: int) -> bool:
    """Whether the instruction before `pc` is a system call, so that the thread waits in the kernel.
    A waiting thread is not changing a heap."""
    try:
        return re.search(b"(?:" + target.arch.system_call + rb")\Z", target.read(pc - _LONGEST, _LONGEST), re.DOTALL) is not None
    except UnreadableMemory:
        return True  # the core lacks the code: assume that the thread waits


def threads_running_in(target: Target, address: int) -> list[Thread]:
    """Return the threads that run code of the file at this address. Data that such a thread is
    changing may be inconsistent."""
    module = region_at(target.modules(), address)
    if module is None:
        return []
    return [thread for thread in target.threads() if module.start <= thread.pc < module.end and not waits_in_kernel(target, thread.pc)]


def count_waiting(target: Target, calls: Mapping[str, Sequence[int]]) -> int:
    """Count the threads that wait in one of these system calls. `calls` has the numbers of the
    calls by architecture."""
    arch = target.arch
    numbers = calls.get(arch.name, ())
    inside = [thread.pc for thread in target.threads() if thread.registers.get(arch.system_call_number) in numbers]
    # Only x86 has a register that only holds the call number. On other machines, check the
    # instruction, too.
    is_certain = arch.system_call_number.startswith("orig_")
    return sum(waits_in_kernel(target, pc) for pc in inside if is_certain or _is_readable(target, pc - _LONGEST))


def _is_readable(target: Target, address: int) -> bool:
    try:
        return bool(target.read(address, _LONGEST))
    except UnreadableMemory:
        return False
