"""Find the stacks of the threads that run."""

from __future__ import annotations

from findleaks.libc.stacks import thread_stacks
from findleaks.session import Session
from findleaks.target.base import Range


def live_stacks(session: Session) -> dict[int, Range]:
    """Return {tid: stack} of the threads whose stacks are known: those that glibc created, guard
    included, and others whose stack pointer is in a mapping that is certainly only a stack. Stacks
    that a runtime allocated, such as those of goroutines, are not included."""
    stacks = thread_stacks(session.target)
    for thread in session.target.threads():
        if thread.tid not in stacks:
            stack = session.stack_at(thread.sp)
            if stack is not None:
                stacks[thread.tid] = stack
    return stacks
