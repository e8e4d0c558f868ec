"""Lower the priority of roots that belong to a managed runtime with a heap of objects; see
Part.has_objects.

Such a runtime does not clear memory that it uses again, so a stale word may lead from its variables
to a structure that an object refers to. The structure belongs to the objects."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from findleaks.allocators.bulk import find_pointers_into, read_scattered
from findleaks.audit.owner import Owner, OwnerSort
from findleaks.audit.stack_owners import CONTROL_NAME
from findleaks.session import Session
from findleaks.target.base import Module, Range
from findleaks.target.ranges import region_at, subtract_few


def lower_priorities(session: Session, owners: Sequence[Owner]) -> list[Owner]:
    """Change the sort of variables and thread-local variables of such runtimes to RUNTIME.

    libc stores the argument of a thread's function in the control block of the thread. Words of
    control blocks that refer to an object of a class of the runtime are removed from their owners.
    Returns new owners for these words."""
    runtimes = [one for one in session.runtimes if not one.shares_module and any(part.has_objects for part in one.parts())]
    names = {one.where for one in runtimes}
    files = [module for module in session.target.modules() if os.path.basename(module.path) in names]
    if not files:
        return []
    for owner in owners:
        is_own = owner.sort == OwnerSort.VARIABLE and region_at(files, owner.ranges[0].start) is not None
        if is_own or (owner.sort == OwnerSort.THREAD_LOCAL and owner.where.partition(",")[0] in names):
            owner.sort = OwnerSort.RUNTIME
    return list(_divide_control_blocks(session, owners, files))


def _divide_control_blocks(session: Session, owners: Sequence[Owner], files: Sequence[Module]) -> Iterator[Owner]:
    target, size, heaps = session.target, session.target.arch.word, session.heap_ranges()
    if not heaps:
        return
    for owner in (one for one in owners if one.name == CONTROL_NAME):
        words: list[Range] = []
        for piece in session.pieces(owner.ranges, "naming roots"):
            places, values = find_pointers_into(session.engine, piece, [Range(heaps[0].start, heaps[-1].end)])
            tables = target.arch.words(bytes(read_scattered(target, session.engine, values, size)[0]))
            words += [Range(place, place + size) for place, table in zip(places, tables) if region_at(files, table) is not None]
        if words:
            owner.ranges = subtract_few(owner.ranges, words)
            yield Owner(OwnerSort.RUNTIME, owner.name, owner.where, owner.thread, words)
