"""The types of a session's blocks, from debug information and the reference graph."""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.errors import UsageError
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import merge_ranges
from findleaks.target.separate import has_debug_info, is_c_library

if TYPE_CHECKING:
    from findleaks.debuginfo.program_types import ProgramTypes
    from findleaks.debuginfo.type_table import TypeTable
    from findleaks.engine.type_spread import TypeSpread
    from findleaks.session import Session
    from findleaks.types.erasure import Managed
    from findleaks.types.hints import Hints
    from findleaks.types.known import KnownTypes
    from findleaks.types.spread import Spreading

COPIED = 512 << 20
"""Most bytes of heaps that are copied to find types, if the target's memory is not mapped into
findleaks."""

MOST_RECORDED = 1 << 20
"""Most blocks of a process whose recorded stacks are read to find types. For a million blocks, this
takes about 1.5 s."""


def known_types(session: Session) -> Optional[KnownTypes]:
    """Return the types of blocks, computed once; None without debug information, or if the session
    does not use it for this (Session.use_debug_types)."""
    return session.once("known_types", lambda: find_known_types(session))


def type_table(session: Session) -> Optional[TypeTable]:
    """Return the types and variables of all modules; None without debug information, or if the
    session does not use it."""
    program = _program(session)
    return program.table if program is not None else None


def _program(session: Session) -> Optional[ProgramTypes]:
    """Return the types of all modules; None in the same cases as `type_table`. If no module has
    debug information, the modules of findleaks that read it are not imported."""
    if session.debug_types is False:
        return None
    if session.debug_types is None and session.type_hints is None and _has_managed_blocks(session):
        return None
    is_possible = session.once(_may_have_types, lambda: _may_have_types(session))
    return session.type_index.program(read_all=bool(session.debug_types)) if is_possible else None


def _has_managed_blocks(session: Session) -> bool:
    """Whether blocks are objects of an interpreter, whose types need no debug information. Many
    builds of Python have debug information, which would take two seconds and add no names."""
    known = session.object_types
    return any(one.managed for one in session.directory.allocators) or (known is not None and not known.are_native)


def _may_have_types(session: Session) -> bool:
    """Whether a module has debug information, or may have some on a server. The C library alone
    does not count: its own types are of no use without those of its callers."""
    target = session.target
    modules = [one for one in target.modules() if one.path.startswith("/") and not is_c_library(one)]
    if os.environ.get("DEBUGINFOD_URLS"):
        return bool(modules)
    return any(has_debug_info(data) for module in modules for data in target.debug_data(module))


def find_known_types(session: Session) -> Optional[KnownTypes]:
    """Return the types of blocks; None as for `type_table`, or if memory would have to be copied
    and is too large."""
    program = _program(session)
    if program is None or not len(session.directory.blocks):
        return None
    pieces = _memory(session)
    if pieces is None:
        return None
    from findleaks.types.known import KnownTypes

    with session.measure("types"):
        modules = _modules(session, program)
        search = _spread(session, program, pieces, modules)
        objects = search.pools.finish() if search.pools is not None else None
        return KnownTypes(program.table, search.layouts.specs, search.spread.claims(), search.heap.headers, *modules, objects)


def _memory(session: Session) -> Optional[Sequence[Piece]]:
    """Return the memory of blocks and roots; None if it is too large to be copied."""
    heaps = session.heap_ranges()
    first = next(iter(session.target.pieces(*heaps[0])), None) if heaps else None
    if first is None:
        return None
    is_mapped = isinstance(first.data.obj, mmap.mmap) and not session.target.tagged
    if not is_mapped and sum(end - start for start, end in heaps) > COPIED:
        return None
    return list(session.pieces(merge_ranges([*heaps, *session.root_memory]), "finding types", whole=True))


def _spread(session: Session, program: ProgramTypes, pieces: Sequence[Piece], modules: tuple[array[int], int]) -> Spreading:
    from findleaks.types.headers import remove_headers
    from findleaks.types.heap import HeapView
    from findleaks.types.roots import find_locals, find_thread_locals, list_unset
    from findleaks.types.sizes import SizeClasses
    from findleaks.types.spread import Spreading

    target, table = session.target, program.table
    regions = target.regions()
    mapped = merge_ranges(Range(region.start, region.end) for region in regions if region.readable)
    code = merge_ranges(Range(region.start, region.end) for region in regions if region.executable)
    sizes = SizeClasses(session.directory, table.word)
    conventions = session.learned.conventions
    blocks, headers = remove_headers(
        session.engine, session.directory.blocks, sizes, pieces, mapped, conventions, lambda: session.report_progress("finding headers", 0)
    )
    spread: TypeSpread = session.engine.type_spread(blocks)
    spread.use(pieces)
    # A linker may store constants in the mapping of the code. If so, the mapping begins with the
    # ELF header, at the start of the file.
    only_code = [one for one in regions if one.executable and not one.writable and one.name.startswith("/") and one.file_offset]
    spread.set_memory(mapped, code, merge_ranges(Range(one.start, one.end) for one in only_code))
    view = HeapView(target.arch, blocks, pieces, headers)
    search = Spreading(spread, view, sizes, table, *modules, session.budget, session.report_progress)
    search.judge.find_managed = lambda address: _find_managed(session, program, address)
    _use_hint_files(session, search)
    _add_pools(session, search, mapped, code)
    hints = _apply_hints(session, search)
    session.types.embedded |= search.add_classes(_classes(session, table))
    unset, places = list_unset(target, table), table.variable_addresses
    kept = [at for at, place in enumerate(places) if place not in unset] if unset else range(len(places))
    search.add_roots([places[at] for at in kept], [table.variable_types[at] for at in kept])
    threads = list(find_thread_locals(target, session.type_index, program))
    search.add_roots([one.address for one in threads], [one.type for one in threads])
    search.settle()
    search.add_locals(find_locals(target, session.type_index, program))
    search.settle()
    if session.recorded and len(session.directory.blocks) <= MOST_RECORDED:
        _add_recorded(session, search, program)
    search.compare(session.graph())
    search.confirm()
    if hints is not None:
        session.type_index.warnings += hints.warnings()
    return search


def _add_recorded(session: Session, search: Spreading, program: ProgramTypes) -> None:
    """Use the recorded allocation stacks."""
    from findleaks.types.recorded import RecordedTypes, find_constructors

    find, blocks = find_constructors(session.target, session.type_index, program), session.directory.blocks
    recorded = RecordedTypes(session.sites, find, blocks, search.heap, search.layouts, search.content, search.rules)
    search.add_recorded(recorded, session.graph())


def _find_managed(session: Session, program: ProgramTypes, address: int) -> Managed:
    """Return the types that the manager at this address names (types/erasure.py)."""
    from findleaks.types.erasure import Managed, find_managed

    for module in session.target.modules():
        numbers = program.numbers.get(module.start)
        if numbers is None or not module.start <= address < module.end:
            continue
        types = session.type_index.manager_types(module, address - module.bias)
        if types:
            return find_managed(program.table, [numbers[one] for one in types])
    return Managed()


def _use_hint_files(session: Session, search: Spreading) -> None:
    """Use the hint files of findleaks for this program, and the user's."""
    from findleaks.types.hint_files import ready_files

    files = list(ready_files(search.table.strings))
    own = session.type_hints.file if session.type_hints is not None else None
    if own is not None:
        missing = next((name for name in own.needs if not search.table.find(name)), "")
        if missing:
            raise UsageError(f"{own.path}: this program has no type {missing!r}, which the file needs")
        files.insert(0, own)
    if files:
        search.use_slots(files)


def _add_pools(session: Session, search: Spreading, mapped: Sequence[Range], code: Sequence[Range]) -> None:
    """Let types spread into the pools of the process. PoolObjects also applies hints with a path,
    so it is needed for these, too."""
    pools = [one for runtime in session.runtimes for one in runtime.pooled_memory()]
    slots = search.rules.slots
    if not pools and (slots is None or not slots.paths.hints):
        return
    from findleaks.types.pool_objects import PoolObjects

    search.pools = PoolObjects(search, mapped, code)
    if pools:
        search.pools.set_memory([index for index, _ in pools], merge_ranges(memory for _, memory in pools))


def _apply_hints(session: Session, search: Spreading) -> Optional[Hints]:
    """Apply the user's hints; return None if there are none."""
    if session.type_hints is None or not session.type_hints.addresses:
        return None
    from findleaks.types.hints import Hints

    hints = Hints(search, session.type_hints.addresses)
    hints.apply()
    return hints


def check_hints(session: Session) -> None:
    """Apply the user's hints now. Raises UsageError for the first one that is impossible."""
    if session.type_hints is None:
        return
    if session.debug_types is False:
        raise UsageError("hints need debug information: omit --no-debug-types")
    if known_types(session) is None:
        has_blocks = len(session.directory.blocks)
        why = "the heaps are too large to be typed here" if type_table(session) is not None else "no debug information was found"
        why = next(iter(session.type_index.warnings), why)
        raise UsageError(f"hints cannot be used: {why if has_blocks else 'no blocks were found'}")


def _modules(session: Session, program: ProgramTypes) -> tuple[array[int], int]:
    """Return a mask for each type of a program, with a bit for each module that has the type; and
    the bits of all modules except the C library."""
    masks, usable = array("Q", bytes(8 * len(program.table))), 0
    own = {module.start for module in session.target.modules() if not is_c_library(module)}
    for at, (start, numbers) in enumerate(program.numbers.items()):
        bit = 1 << min(at, 63)
        usable |= bit if start in own else 0
        for number in numbers:
            masks[number] |= bit
    return masks, usable


def _classes(session: Session, table: TypeTable) -> Iterator[tuple[int, str]]:
    """Yield the first words of blocks that identify a C++ class, with its name."""
    from findleaks.debuginfo.type_table import Flag

    if not any(flags & Flag.POLYMORPHIC for flags in table.flags):
        return
    types, seen = session.types, set()
    for group in session.graph().group_typed(session.pieces(session.heap_ranges(), "reading types"), types.ranges()):
        if group.type_word not in seen and types.is_class(group.type_word):
            seen.add(group.type_word)
            yield group.type_word, types.full_name(group.type_word)
