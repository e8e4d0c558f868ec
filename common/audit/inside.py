"""Threads that were stopped inside an allocator: what they were changing may look wrong at that moment."""

from __future__ import annotations

import os
from collections.abc import Sequence

from findleaks.allocators.base import Allocator
from findleaks.libc.waiting import waits
from findleaks.report.text import printable
from findleaks.session import Session
from findleaks.target.ranges import holding


def inside_malloc(session: Session, allocators: Sequence[Allocator]) -> list[tuple[int, str]]:
    """(thread, where) of the threads whose program counter lies in the file an allocator is in, and not behind a system call."""
    target = session.target
    names = {os.path.basename(allocator.where) for allocator in allocators if allocator.where}
    modules = [module for module in target.modules() if os.path.basename(module.path) in names]
    found = []
    for thread in target.threads():
        module = holding(modules, thread.pc)
        if module is not None and not waits(target, thread.pc):
            symbol = target.symbolize(thread.pc)
            name = os.path.basename(module.path)
            found.append((thread.tid, printable(f"{name} ({symbol.name})" if symbol is not None else name)))
    return found
