"""Pointers that the kernel keeps for a process: how many were read, and what cannot be read."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING

from findleaks.engine.terms import NO_BLOCK, Kind
from findleaks.formatting import counted
from findleaks.libc.thread_state import waits_in_kernel
from findleaks.results.amounts import Amount
from findleaks.results.notes import KernelReferences
from findleaks.target.arch import X86_64
from findleaks.target.kernel_objects import AIO_CONTEXT, AIO_RING, URING, URING_NAME

if TYPE_CHECKING:
    from findleaks.results.note_parts import Unreadable
    from findleaks.session import Session

_ENTRIES_AT = 0x10000000
"""IORING_OFF_SQES (linux/io_uring.h): the offset at which each io_uring's entries are mapped."""
_EPOLL_WAITS = (232, 281, 441)
"""epoll_wait, epoll_pwait, epoll_pwait2 of x86-64 (arch/x86/entry/syscalls/syscall_64.tbl)."""


def unreadable(session: Session) -> dict[str, int]:
    """What the process has whose pointers only the kernel knows, by name, with its number."""
    target = session.target
    state = target.kernel_state()
    found = dict(state.hidden) if state is not None else {}
    if URING_NAME not in found:
        rings = [region for region in target.regions() if region.name == URING]
        entries = sum(region.file_offset == _ENTRIES_AT for region in rings)
        found.update({URING_NAME: entries or 1} if rings else {})
    contexts = sum(region.name.startswith(AIO_RING) for region in target.regions())
    found.update({AIO_CONTEXT: contexts} if contexts else {})
    return found


def epoll_waiters(session: Session) -> int:
    """The number of threads that wait in epoll_wait, of a process whose registrations with epoll
    are not known; 0 if they are. Only of x86-64, where a core has the number of the system call."""
    target = session.target
    if target.kernel_state() is not None or target.arch.name != X86_64.name:
        return 0
    inside = (thread for thread in target.threads() if thread.registers.get("orig_rax") in _EPOLL_WAITS)
    return sum(waits_in_kernel(target, thread.pc) for thread in inside)


def kernel_pointers(session: Session) -> KernelReferences:
    """The pointers that the kernel keeps: how many were read, and what cannot be read."""
    blocks, words = session.directory.blocks, array("Q", (word for word, _ in session.kernel_references))
    indices, _ = blocks.find_all(words) if words and len(blocks) else (array("I"), array("Q"))
    known = session.target.kernel_state() is not None
    return KernelReferences(
        references=sum(index != NO_BLOCK for index in indices) if known else None,
        unreadable=[_unreadable(name, count) for name, count in unreadable(session).items()],
        epoll_waiters=epoll_waiters(session),
        signal_stacks=Amount(len(session.signal_stacks), sum(map(blocks.size, map(blocks.find, session.signal_stacks)))),
    )


def _unreadable(name: str, count: int) -> Unreadable:
    from findleaks.results.note_parts import Unreadable  # few processes have such

    return Unreadable(name, count)


def kernel_notes(session: Session) -> Iterator[str]:
    """A sentence on what cannot be read, if blocks are reported as leaked that it may refer to."""
    if not len(session.directory.blocks) or not session.graph().has_kind(Kind.DEFINITE, 1):
        return
    hidden = unreadable(session)
    if hidden:
        what = " and ".join(counted(count, name) for name, count in hidden.items())
        yield (
            f"the process has {what}: pointers that the kernel keeps there cannot be read; "
            "blocks referenced only from there are reported as leaked"
        )
    waiting = epoll_waiters(session)
    if waiting:
        whose = f"{waiting:,} threads wait" if waiting > 1 else "1 thread waits"
        yield (
            f"{whose} in epoll_wait, and the data registered with epoll is not known (a core lacks it, the live process has it): "
            "blocks referenced only from there are reported as leaked"
        )
