"""Give the reasons why a result is uncertain: corruption, totals that differ, unattributed
memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.directory import list_names
from findleaks.audit.missing_memory import find_missing_memory
from findleaks.engine.terms import State
from findleaks.formatting import size, some
from findleaks.libc.stacks import thread_stacks
from findleaks.runtimes.directory import heap_owners
from findleaks.target.base import Range, Target, excluded_warning
from findleaks.target.missing import format_ranges
from findleaks.target.ranges import merge_ranges, region_index, subtract

if TYPE_CHECKING:
    from findleaks.runtimes.base import Part
    from findleaks.session import Session

OTHER_ALLOCATORS = ("libhoard", "libsnmalloc", "librpmalloc", "liblsan", "libtsan", "libtbbmalloc", "libumem")
"""Prefixes of the names of modules with an allocator that findleaks may not be able to read. No
warning mentions a module in which an allocator was found."""

STACK_LOOK = 1 << 20  # bytes above a stack pointer that are read

UNOWNED = 0.10
"""Fraction of the resident private memory that may be unattributed without a warning."""


def result_warnings(session: Session, unread_reported: bool = False) -> Iterator[str]:
    """Yield one line for each reason why the result may be incomplete or wrong, with the
    consequence. `unread_reported`: the command itself reports how much memory is not read."""
    if session.target.lacks:
        yield session.target.lacks
        return
    yield from (problem.what for problem in session.directory.problems)
    yield from _blank_stack_warning(session.target)
    yield from _unread_memory(session, unread_reported)
    yield from (missing.sentence() for missing in find_missing_memory(session))
    if session.target.live and session.target.unread:
        yield _unread_sentence(session.target)
    if session.target.unknown_registers:
        yield f"{session.target.unknown_registers} are unknown: blocks that only these registers refer to are reported as leaked"


def is_trusted(session: Session) -> bool:
    """Whether the reported leaks can be trusted.
    False if memory that can contain references is missing (regions, registers, part of a heap,
    every thread), or if no block was found."""
    target = session.target
    missing = (
        subtract(target.unread, target.excluded) or _missing_reference_memory(session, target.excluded) or find_missing_memory(session)
    )
    complete = not (missing or target.truncated or session.directory.problems)
    complete = complete and not target.unknown_registers and session.directory.blocks.totals(State.IN_USE).blocks > 0
    return complete and bool(target.threads()) and not find_blank_stacks(target)


def _missing_reference_memory(session: Session, ranges: Sequence[Range]) -> list[Range]:
    """Return the missing ranges that can contain references. Memory that only allocators use, such
    as the shadow memory of a sanitizer, is left out."""
    own = (part for allocator in session.directory.allocators for part in allocator.metadata()) if ranges else ()
    return subtract(merge_ranges(ranges), own)


def target_warnings(session: Session) -> list[str]:
    """Return the target's warnings. The warning about missing memory is left out if only allocators
    use that memory."""
    target, found = session.target, session.target.warnings
    if not target.excluded:
        return found
    missed = _missing_reference_memory(session, target.excluded)
    about = [excluded_warning(missed)] if missed else []
    return [other for one in found for other in (about if one == excluded_warning(target.excluded) else [one])]


def _unread_sentence(target: Target) -> str:
    """Describe the memory of a live process that could not be read."""
    regions = target.regions()
    names = {regions[at].name or format_ranges([part]) for part in target.unread for at in [region_index(regions, part.start)] if at >= 0}
    amount = size(sum(end - start for start, end in target.unread))
    return f"{amount} of writable memory cannot be read ({some(sorted(names))}): pointers in it are not seen"


def find_blank_stacks(target: Target) -> list[int]:
    """Return the tids of threads whose stack is all zeros from the stack pointer up.
    No running thread has such a stack.

    If GDB 13's gcore cannot read a page, it writes the rest of that mapping as zeros (gdb/gcore.c,
    gcore_copy_callback). glibc 2.42 and later guard stacks with such pages (MADV_GUARD_INSTALL)
    inside one mapping of many stacks."""
    regions = target.regions()
    blank = set()
    # All bytes from an earlier stack pointer to `zeros` are zero. If `ended`, the byte at `zeros`
    # is not zero. Each byte is therefore examined once, although stacks may share a mapping.
    zeros, ended = 0, False
    for thread in sorted(target.threads(), key=lambda thread: thread.sp):
        at = region_index(regions, thread.sp)
        if at < 0 or not regions[at].readable:
            continue  # the stack overflowed into a guard page
        end = min(regions[at].end, thread.sp + STACK_LOOK)
        if thread.sp > zeros:
            zeros, ended = thread.sp, False
        if zeros < end and not ended:
            zeros = _first_nonzero(target, zeros, end)
            ended = zeros < end
        if zeros >= end and any(target.pieces(thread.sp, min(end, thread.sp + 256))):
            blank.add(thread.tid)
    return [thread.tid for thread in target.threads() if thread.tid in blank]


def _first_nonzero(target: Target, start: int, end: int) -> int:
    """Return the address of the first byte of [start, end) that is present and not zero, or
    `end`."""
    for low, high in target.nonzero(start, end):
        step = 256
        while low < high:
            for piece in target.pieces(low, min(low + step, high)):
                left = len(bytes(piece.data).lstrip(b"\0"))
                if left:
                    return piece.address + len(piece.data) - left
            low += step
            step = 1 << 16
    return end


def _blank_stack_warning(target: Target) -> Iterator[str]:
    blank, threads = len(find_blank_stacks(target)), len(target.threads())
    if blank:
        whose = f"{blank} of {threads} threads" if threads > 1 else "the only thread"
        yield (
            f"the stack of {whose} is all zeros in this core: GDB's gcore writes zeros from the first page that it cannot read. "
            "Blocks reported as leaked may be referenced from there; use a core written by the kernel, or the live process (--pid)"
        )


def _unread_memory(session: Session, reported: bool) -> Iterator[str]:
    """Yield warnings about allocators that findleaks cannot read, and about unattributed memory."""
    directory = session.directory
    read = {allocator.where for allocator in directory.allocators}
    others = ", ".join(sorted(name for name in _module_names(session) if name.startswith(OTHER_ALLOCATORS) and name not in read))
    if not directory.blocks.totals(State.IN_USE).blocks:
        loaded = f" ({others} is loaded)" if others else ""
        unowned, _ = _count_unattributed(session, _list_managed(session))
        memory = f"{size(unowned)} of anonymous writable memory belongs to none of: {', '.join(list_names())}"
        found = "no allocator found" if not directory.allocators else "no block in use found"
        if not any(part.bytes for part in _list_managed(session)):
            yield f"{found}{loaded}: leaks cannot be determined; {memory}. `whatis` still works"
        return
    unowned, total = _count_unattributed(session)
    if others:
        yield (
            f"{others} is loaded, and findleaks cannot read its blocks: its memory counts as root "
            f"memory ({size(unowned)} of anonymous writable memory is unattributed)"
        )
        return
    if reported:
        return
    if unowned > max(UNOWNED * total, 1 << 20):
        unowned, total = _count_unattributed(session, _list_managed(session))
    if unowned > max(UNOWNED * total, 1 << 20):
        share = f"{size(unowned)} of anonymous writable memory ({unowned * 100 // total} % of {size(total)}) is unattributed"
        yield f"{share}{managed_heaps(session)}: it counts as root memory, and leaks inside it are not detected"


def _list_managed(session: Session) -> list[Part]:
    return [part for runtime in session.runtimes for part in runtime.parts()]


def list_reader_notes(session: Session) -> list[str]:
    """Return the notes of all runtimes and allocators. Each is a sentence about something that the
    user must know, such as memory that is not examined."""
    notes = [*(runtime.note() for runtime in session.runtimes), *(allocator.note() for allocator in session.directory.allocators)]
    return list(dict.fromkeys(filter(None, notes)))


def _count_unattributed(session: Session, managed: Sequence[Part] = ()) -> tuple[int, int]:
    """Return two numbers of resident bytes (mapped bytes if residency is unknown): of unattributed
    private memory, and of all private memory.

    Unattributed memory is anonymous and writable. It is not a stack, not part of a loaded file, not
    of a known allocator, and not in `managed`."""
    target = session.target
    private = [Range(r.start, r.end) for r in target.regions() if r.writable and r.readable and r.private]
    anonymous = [Range(r.start, r.end) for r in target.regions() if r.writable and r.readable and not r.name.startswith(("/", "[stack"))]
    unowned = subtract(anonymous, subtract(anonymous, session.root_memory))
    others = [Range(module.start, module.end) for module in target.modules()] + list(thread_stacks(target).values())
    unowned = subtract(unowned, merge_ranges([*others, *(piece for part in managed for piece in part.ranges)]))
    held = [_count_resident(session, ranges) for ranges in (unowned, private)]
    return held[0], max(held[1], held[0], 1)


def _count_resident(session: Session, ranges: Sequence[Range]) -> int:
    """Count bytes in memory or in swap, from the residency that the command has read, else from the
    target. If both are unknown, all bytes count."""
    found, pages = 0, session.presence
    for start, end in ranges:
        if pages is not None:
            held: Optional[int] = pages.resident.bytes(start, end) + pages.swapped.bytes(start, end)
        else:
            held = session.target.resident(start, end)
        found += end - start if held is None else held
    return found


def managed_heaps(session: Session) -> str:
    """Return " (it may be the managed heap of Ruby)"; "" if no runtime may own such memory."""
    owners = heap_owners(_module_names(session), {allocator.name for allocator in session.directory.allocators})
    return f" (it may be the managed heap of {' and '.join(owners)})" if owners else ""


def _module_names(session: Session) -> list[str]:
    return [module.path.rsplit("/", 1)[-1] for module in session.target.modules()]
