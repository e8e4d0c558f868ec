"""Threads that were stopped inside an allocator: what they were changing may look wrong at that moment."""

from __future__ import annotations

import os
from collections.abc import Sequence

from findleaks.allocators.base import Allocator
from findleaks.errors import UnreadableMemory
from findleaks.report.text import printable
from findleaks.session import Session
from findleaks.target.base import Target

SYSCALLS = {"x86-64": b"\x0f\x05", "i386": b"\xcd\x80", "aarch64": b"\x01\x00\x00\xd4"}
"""What stands before the program counter of a thread that waits in the kernel. Such a thread is no more inside malloc than any caller."""


def inside_malloc(session: Session, allocators: Sequence[Allocator]) -> list[tuple[int, str]]:
    """(thread, where) of the threads whose program counter lies in the file an allocator is in, and not behind a system call."""
    target = session.target
    names = {os.path.basename(allocator.where) for allocator in allocators if allocator.where}
    modules = [module for module in target.modules() if os.path.basename(module.path) in names]
    found = []
    for thread in target.threads():
        module = next((module for module in modules if module.start <= thread.pc < module.end), None)
        if module is not None and not _waits(target, thread.pc):
            symbol = target.symbolize(thread.pc)
            name = os.path.basename(module.path)
            found.append((thread.tid, printable(f"{name} ({symbol.name})" if symbol is not None else name)))
    return found


def _waits(target: Target, pc: int) -> bool:
    """Whether the instruction before is the one for system calls."""
    code = SYSCALLS.get(target.arch.name, b"")
    try:
        return bool(code) and target.read(pc - len(code), len(code)) == code
    except UnreadableMemory:
        return True  # the text of libraries is not in every core: nothing is known then
