"""The types of a session's blocks, from debug information and the reference graph."""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.target.base import Piece, Range
from findleaks.target.ranges import merge_ranges

if TYPE_CHECKING:
    from findleaks.debuginfo.program_types import ProgramTypes
    from findleaks.debuginfo.type_table import TypeTable
    from findleaks.engine.type_spread import TypeSpread
    from findleaks.session import Session
    from findleaks.types.known import KnownTypes
    from findleaks.types.spread import Spreading

COPIED = 512 << 20
"""Most bytes of heaps that are copied for this, if the target's memory is not mapped here."""


def known_types(session: Session) -> Optional[KnownTypes]:
    """Return the types of blocks, computed once; None without debug information, or if the session
    does not use it for this (Session.use_debug_types)."""
    return None if not session.has_debug_types else session.once("known_types", lambda: find_known_types(session))


def type_table(session: Session) -> Optional[TypeTable]:
    """Return the types and variables of all modules; None as for `known_types`."""
    program = session.type_index.program() if session.has_debug_types else None
    return program.table if program is not None else None


def find_known_types(session: Session) -> Optional[KnownTypes]:
    """Return the types of blocks; None without debug information, or if memory would have to be
    copied and is too large."""
    program = session.type_index.program()
    if program is None or not len(session.directory.blocks):
        return None
    pieces = _memory(session)
    if pieces is None:
        return None
    from findleaks.types.known import KnownTypes

    with session.timed("types"):
        search = _spread(session, program, pieces)
        specs, roots = search.layouts.specs, search.roots
        return KnownTypes(program.table, specs, search.spread.claims(), search.spread.origins(), roots, search.witnesses)


def _memory(session: Session) -> Optional[Sequence[Piece]]:
    """Return the memory of blocks and roots; None if it is too large to be copied."""
    heaps = merge_ranges(session.heap_ranges())
    first = next(iter(session.target.pieces(*heaps[0])), None) if heaps else None
    if first is None:
        return None
    is_mapped = isinstance(first.data.obj, mmap.mmap) and not session.target.tagged
    if not is_mapped and sum(end - start for start, end in heaps) > COPIED:
        return None
    return list(session.pieces(merge_ranges([*heaps, *session.root_memory]), "finding types", whole=True))


def _spread(session: Session, program: ProgramTypes, pieces: Sequence[Piece]) -> Spreading:
    from findleaks.types.heap import HeapView
    from findleaks.types.roots import find_locals, find_thread_locals, find_variables
    from findleaks.types.spread import Spreading

    target, blocks, table = session.target, session.directory.blocks, program.table
    regions = target.regions()
    mapped = merge_ranges(Range(region.start, region.end) for region in regions if region.readable)
    code = merge_ranges(Range(region.start, region.end) for region in regions if region.executable)
    spread: TypeSpread = session.engine.type_spread(blocks)
    spread.use(pieces)
    spread.set_memory(mapped, code)
    view = HeapView(target.arch, blocks, pieces, mapped, code)
    search = Spreading(spread, view, session.directory, table, _modules(program), session.budget, session.report_progress)
    search.add_classes(_classes(session, table))
    search.add_roots(find_variables(program))
    search.add_roots(find_thread_locals(target, session.type_index, program))
    search.settle()
    search.add_locals(find_locals(target, session.type_index, program))
    search.settle()
    search.compare(session.graph())
    return search


def _modules(program: ProgramTypes) -> array[int]:
    """Return, for each type of a program, a bit for each module that has it."""
    masks = array("Q", bytes(8 * len(program.table)))
    for at, numbers in enumerate(program.numbers.values()):
        for number in numbers:
            masks[number] |= 1 << min(at, 63)
    return masks


def _classes(session: Session, table: TypeTable) -> Iterator[tuple[int, str]]:
    """Yield the first words of blocks that identify a C++ class, with its name."""
    from findleaks.debuginfo.type_table import Flag

    if not any(flags & Flag.POLYMORPHIC for flags in table.flags):
        return
    types, seen = session.types, array("Q")
    for group in session.graph().typed(session.pieces(session.heap_ranges(), "reading types"), types.ranges()):
        if group.type_word not in seen and types.is_class(group.type_word):
            seen.append(group.type_word)
            yield group.type_word, types.name(group.type_word)
