"""The state of threads at the time of the snapshot: waiting in the kernel, or running in a file."""

from __future__ import annotations

import re

from findleaks.errors import UnreadableMemory
from findleaks.target.base import Target, Thread

_LONGEST = 4  # the longest instruction of a system call in bytes


def waits_in_kernel(target: Target, pc: int) -> bool:
    """Whether the instruction before `pc` is a system call, so that the thread waits in the kernel.
    A waiting thread is not changing a heap."""
    try:
        return re.search(b"(?:" + target.arch.system_call + rb")\Z", target.read(pc - _LONGEST, _LONGEST), re.DOTALL) is not None
    except UnreadableMemory:
        return True  # not every core has the text of libraries, so the answer is unknown


def threads_running_in(target: Target, address: int) -> list[Thread]:
    """Return the threads that run code of the file at this address. Data that they change may be
    inconsistent."""
    module = next((one for one in target.modules() if one.start <= address < one.end), None)
    if module is None:
        return []
    return [thread for thread in target.threads() if module.start <= thread.pc < module.end and not waits_in_kernel(target, thread.pc)]
