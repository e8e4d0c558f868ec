"""Pointers that the kernel stores for a process: how many were read, and which cannot be read."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from findleaks.audit.kernel_waits import EPOLL_WAITS, URING_ENTER, count_waiting
from findleaks.engine.terms import NO_BLOCK, Kind
from findleaks.formatting import counted, shortened, size
from findleaks.results.amounts import Amount
from findleaks.results.notes import KernelReferences
from findleaks.target.kernel_objects import AIO_CONTEXT, AIO_RING, TIMERS_UNREAD, URING, URING_NAME

if TYPE_CHECKING:
    from findleaks.results.note_parts import KernelUse, Unreadable
    from findleaks.session import Session

_ENTRIES_AT = 0x10000000
"""IORING_OFF_SQES (linux/io_uring.h): offset at which the entries of an io_uring are mapped."""


def count_unreadable(session: Session) -> dict[str, int]:
    """Count the kernel objects of the process with pointers that only the kernel can read, by
    name."""
    target = session.target
    state = target.kernel_state()
    found = dict(state.hidden) if state is not None else {}
    found.pop(TIMERS_UNREAD, None)  # reported only if there is evidence of timers
    if URING_NAME not in found:
        rings = [region for region in target.regions() if region.name == URING]
        entries = sum(region.file_offset == _ENTRIES_AT for region in rings)
        found.update({URING_NAME: entries or 1} if rings else {})
    if state is None and URING_NAME not in found and count_waiting(target, URING_ENTER):
        found[URING_NAME] = 1  # a ring without mappings of its own (IORING_SETUP_NO_MMAP)
    contexts = sum(region.name.startswith(AIO_RING) for region in target.regions())
    found.update({AIO_CONTEXT: contexts} if contexts else {})
    return found


def count_epoll_waiters(session: Session) -> int:
    """Count the threads that wait in epoll_wait in a process whose epoll registrations are unknown.
    0 if they are known."""
    target = session.target
    return 0 if target.kernel_state() is not None else count_waiting(target, EPOLL_WAITS)


def list_kernel_uses(session: Session) -> Sequence[KernelUse]:
    """List the ways in which the process can have given pointers to the kernel, if blocks are
    leaked and the kernel's objects are unknown; epoll only if no thread waits in epoll_wait."""
    state = session.target.kernel_state()
    if not _has_leaks(session) or (state is not None and TIMERS_UNREAD not in state.hidden):
        return ()
    from findleaks.audit.kernel_use import EPOLL, TIMERS, find_kernel_uses

    found = session.once("kernel uses", lambda: list(find_kernel_uses(session)))
    if state is not None:
        return [one for one in found if one.what == TIMERS]
    return [one for one in found if one.what != EPOLL or not count_epoll_waiters(session)]


def summarise_kernel_pointers(session: Session) -> KernelReferences:
    """Return the pointers that the kernel stores: how many were read, and which cannot be read."""
    blocks, words = session.directory.blocks, array("Q", (word for word, _ in session.kernel_references))
    indices, _ = blocks.find_all(words) if words and len(blocks) else (array("I"), array("Q"))
    known = session.target.kernel_state() is not None
    unreadable, waiters, uses = count_unreadable(session), count_epoll_waiters(session), list_kernel_uses(session)
    return KernelReferences(
        references=sum(index != NO_BLOCK for index in indices) if known else None,
        unreadable=[_to_unreadable(name, count) for name, count in unreadable.items()],
        epoll_waiters=waiters,
        uses=uses,
        doubtful=_leaked(session) if unreadable or waiters or uses else Amount(0, 0),
        signal_stacks=Amount(len(session.signal_stacks), sum(map(blocks.size, map(blocks.find, session.signal_stacks)))),
    )


def _to_unreadable(name: str, count: int) -> Unreadable:
    from findleaks.results.note_parts import Unreadable  # few processes have such objects

    return Unreadable(name, count)


def describe_unreadable_pointers(session: Session) -> Iterator[str]:
    """A sentence on what cannot be read, if blocks are reported as leaked that it may refer to."""
    if not _has_leaks(session):
        return
    held = [counted(count, name) for name, count in count_unreadable(session).items()]
    waiting = count_epoll_waiters(session)
    if waiting:
        held.append(f"epoll registrations ({counted(waiting, 'thread')} in epoll_wait)")
    held += [f"{one.what} ({shortened(one.module, 40)} uses {one.function})" for one in list_kernel_uses(session)]
    if held:
        leaked, target = _leaked(session), session.target
        where = "cannot be read" if target.kernel_state() is not None or target.live else "are not in this core (use --pid)"
        count = "1 leaked block" if leaked.blocks == 1 else f"any of the {leaked.blocks:,} leaked blocks"
        yield f"{count} ({size(leaked.bytes)}) may be referenced by the kernel, by objects whose pointers {where}: {', '.join(held)}"


def _has_leaks(session: Session) -> bool:
    return bool(len(session.directory.blocks)) and session.graph().has_kind(Kind.DEFINITE, 1)


def _leaked(session: Session) -> Amount:
    """All leaked blocks."""
    found = [session.graph().totals(kind) for kind in (Kind.DEFINITE, Kind.INDIRECT)] if len(session.directory.blocks) else []
    return Amount(sum(one.blocks for one in found), sum(one.bytes for one in found))
