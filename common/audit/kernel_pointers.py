"""Describe pointers that the kernel stores for a process: how many were read, and which cannot be
read."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from findleaks.engine.terms import NO_BLOCK, Kind, Totals
from findleaks.formatting import format_count, shorten, size
from findleaks.libc.thread_state import EPOLL_WAITS, URING_ENTER, count_waiting
from findleaks.results.amounts import Amount
from findleaks.results.notes import KernelReferences
from findleaks.target.kernel_objects import AIO_CONTEXT, AIO_RING, TIMERS_UNREAD, URING, URING_NAME

if TYPE_CHECKING:
    from findleaks.results.note_parts import KernelUse, Unreadable
    from findleaks.session import Session
    from findleaks.target.base import Module

_ENTRIES_AT = 0x10000000
"""IORING_OFF_SQES (linux/io_uring.h): the file offset at which the entries of an io_uring are
mapped."""
_TIMERS, _EPOLL, _PIPES, _MEMFDS = "POSIX timers", "epoll registrations", "pipes and sockets", "memfds that are not mapped"
_URING_BUFFERS = "buffers registered with an io_uring"
_FUNCTIONS = {
    "timer_create": _TIMERS,
    **dict.fromkeys(("sigqueue", "pthread_sigqueue"), "queued signals"),
    **dict.fromkeys(("mq_send", "mq_timedsend", "mq_notify", "msgsnd"), "message queues"),
    "epoll_ctl": _EPOLL,
    **dict.fromkeys(("pipe", "pipe2", "socketpair", "eventfd"), _PIPES),
    "memfd_create": _MEMFDS,
    # liburing; the process does not map the ring if its memory belongs to the program
    **dict.fromkeys((f"io_uring_register{part}" for part in ("", "_buffers", "_buffers_tags", "_buffers_update_tag")), _URING_BUFFERS),
}
"""Functions that pass a pointer to the kernel, or create an object through which pointers are
passed."""
_INTERPRETERS = ("python", "ruby", "perl", "php", "node", "java", "beam", "erl", "lua", "ocaml", "dotnet")
"""Prefixes of the names of interpreters, and of their libraries (after "lib"). They import these
functions for scripts, which register numbers of descriptors with epoll and send no pointers."""
_SYSTEM = ("/lib", "/usr/lib")
"""Directories of the distribution's libraries. Many of these libraries import `pipe` for other
purposes."""


def count_unreadable(session: Session) -> dict[str, int]:
    """Return, by name, the number of the process's kernel objects that have pointers only the
    kernel can read."""
    target = session.target
    state = target.kernel_state()
    found = dict(state.hidden) if state is not None else {}
    found.pop(TIMERS_UNREAD, None)  # reported only if the process seems to have timers
    if URING_NAME not in found:
        rings = [region for region in target.regions() if region.name == URING]
        entries = sum(region.file_offset == _ENTRIES_AT for region in rings)
        found.update({URING_NAME: entries or 1} if rings else {})
    if state is None and URING_NAME not in found and count_waiting(target, URING_ENTER):
        found[URING_NAME] = 1  # a ring that the process did not map (IORING_SETUP_NO_MMAP)
    contexts = sum(region.name.startswith(AIO_RING) for region in target.regions())
    found.update({AIO_CONTEXT: contexts} if contexts else {})
    return found


def count_epoll_waiters(session: Session) -> int:
    """Return the number of threads that wait in epoll_wait if the epoll registrations of the
    process are unknown; 0 if they are known."""
    target = session.target
    return 0 if target.kernel_state() is not None else count_waiting(target, EPOLL_WAITS)


def list_kernel_uses(session: Session) -> Sequence[KernelUse]:
    """Return the ways in which the process may have given pointers to the kernel.
    The result is empty if no block is leaked or if the kernel's objects are known. It includes
    epoll only if no thread waits in epoll_wait."""
    state = session.target.kernel_state()
    if not _has_leaks(session) or (state is not None and TIMERS_UNREAD not in state.hidden):
        return ()
    found = session.once("kernel uses", lambda: list(_find_kernel_uses(session)))
    if state is not None:
        return [one for one in found if one.what == _TIMERS]
    return [one for one in found if one.what != _EPOLL or not count_epoll_waiters(session)]


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
        doubtful=_count_leaked(session) if unreadable or waiters or uses else Amount(0, 0),
        signal_stacks=_amount(session, session.signal_stacks),
        possible_signal_stacks=_possible_signal_stacks(session),
    )


def _possible_signal_stacks(session: Session) -> Amount:
    """Return the leaked blocks that may be alternate signal stacks."""
    graph, blocks = session.graph(), session.directory.blocks
    return _amount(session, [start for start in session.graphs.signal_stacks.possible if graph.kind(blocks.find(start)) == Kind.DEFINITE])


def _amount(session: Session, starts: Sequence[int]) -> Amount:
    blocks = session.directory.blocks
    return Amount(len(starts), sum(map(blocks.size, map(blocks.find, starts))))


def _to_unreadable(name: str, count: int) -> Unreadable:
    # Few processes have pointers that only the kernel knows, so this is imported here.
    from findleaks.results.note_parts import Unreadable

    return Unreadable(name, count)


def describe_unreadable_pointers(session: Session) -> Iterator[str]:
    """If blocks are leaked, yield sentences about kernel objects whose pointers cannot be read."""
    if not _has_leaks(session):
        return
    stacks, threads = _possible_signal_stacks(session), len(session.target.threads())
    if stacks.blocks:
        most = (
            f"up to {threads:,} of {stacks.blocks:,} leaked blocks"
            if stacks.blocks > threads
            else format_count(stacks.blocks, "leaked block")
        )
        yield (
            f"{most} ({size(stacks.bytes)}) may be alternate signal stacks, whose addresses only the kernel stores: the process calls"
            " sigaltstack, and the blocks contain only zeros"
        )
    held = [format_count(count, name) for name, count in count_unreadable(session).items()]
    waiting = count_epoll_waiters(session)
    if waiting:
        held.append(f"epoll registrations ({format_count(waiting, 'thread')} in epoll_wait)")
    held += [f"{one.what} ({shorten(one.module, 40)} uses {one.function})" for one in list_kernel_uses(session)]
    if held:
        leaked, target = _count_leaked(session), session.target
        where = "cannot be read" if target.kernel_state() is not None or target.live else "are not in this core (use --pid)"
        count = "1 leaked block" if leaked.blocks == 1 else f"any of the {leaked.blocks:,} leaked blocks"
        yield f"{count} ({size(leaked.bytes)}) may be referenced by the kernel, by objects whose pointers {where}: {', '.join(held)}"


def _has_leaks(session: Session) -> bool:
    return bool(len(session.directory.blocks)) and session.graph().has_kind(Kind.DEFINITE, 1)


def _count_leaked(session: Session) -> Amount:
    """Return the number and bytes of all leaked blocks."""
    if not len(session.directory.blocks):
        return Amount(0, 0)
    return Amount.of(Totals.sum_of(map(session.graph().totals, (Kind.DEFINITE, Kind.INDIRECT))))


def _find_kernel_uses(session: Session) -> Iterator[KernelUse]:
    """Yield the ways in which the process may have given pointers to the kernel. Each is yielded
    once, with a function that a module imports for it."""
    # Few processes call functions that pass pointers to the kernel, so this is imported here.
    from findleaks.results.note_parts import KernelUse

    target = session.target
    found: set[str] = set()
    modules = target.modules()
    for module in modules:
        excluded = found if _is_own(module, target.exe_path) else {*found, _EPOLL, _PIPES, _MEMFDS}
        name = module.path.rsplit("/", 1)[-1]
        if name.removeprefix("lib").startswith(_INTERPRETERS):
            continue
        for table in list(target.symbol_tables(module))[-1:]:  # .dynsym, or static: .symtab
            for function, (_, _, section, _, _) in table.find_named([one for one, what in _FUNCTIONS.items() if what not in excluded]):
                what = _FUNCTIONS[function]
                # A static program defines these functions, so it does not import them.
                if what not in found and (not section or len(modules) == 1):
                    found.add(what)
                    yield KernelUse(what, function, name)


def _is_own(module: Module, program: str) -> bool:
    """Whether the module is the program, or a library that does not belong to the distribution."""
    return module.path == program or not module.path.startswith(_SYSTEM)
