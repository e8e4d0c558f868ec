"""What threads do at the moment of the snapshot: wait in the kernel, or run in a file."""

from __future__ import annotations

import re

from findleaks.errors import UnreadableMemory
from findleaks.target.base import Target, Thread

_LONGEST = 4  # bytes of a system call's instruction


def waits_in_kernel(target: Target, pc: int) -> bool:
    """Whether the instruction before `pc` is a system call. A thread that waits in the kernel is no
    more inside malloc than any caller."""
    try:
        return re.search(b"(?:" + target.arch.system_call + rb")\Z", target.read(pc - _LONGEST, _LONGEST), re.DOTALL) is not None
    except UnreadableMemory:
        return True  # the text of libraries is not in every core: nothing is known then


def threads_running_in(target: Target, address: int) -> list[Thread]:
    """Threads that run code of the file at this address: what they change may be inconsistent."""
    module = next((one for one in target.modules() if one.start <= address < one.end), None)
    if module is None:
        return []
    return [thread for thread in target.threads() if module.start <= thread.pc < module.end and not waits_in_kernel(target, thread.pc)]
