"""Find the owner of each word of root memory: a variable, thread-local variable, frame, mapping or
register.

Roots have priorities: memory reachable from a variable is attributed to the variable, even if a
frame or register also points to it. The order is: variables of a managed language (such as those of
a Python module), other variables, mappings and the kernel's pointers, variables of a runtime whose
heap is such a mapping, lists of callbacks, then stacks and registers."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Optional

from findleaks.audit.containers.reader import ContainerReader
from findleaks.audit.managed_objects import OwnedObjects, is_kept, list_callbacks, list_owned_objects
from findleaks.audit.mapping_owners import find_mapping_owners
from findleaks.audit.owner import Owner, OwnerSort, ThreadName
from findleaks.audit.references import SIGNAL_STACK
from findleaks.audit.runtime_roots import lower_priorities
from findleaks.audit.stack_owners import CONTROL_NAME, find_frame_owners, find_thread_locals
from findleaks.audit.variables import find_variables
from findleaks.engine.dominators import NO_ROOT
from findleaks.engine.terms import Totals
from findleaks.graph.joint_roots import join_names, replace_sets
from findleaks.libc.loader import table_blocks
from findleaks.libc.stacks import dtv_words, ended_thread_pointers
from findleaks.runtimes.base import Runtime, Variable
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.target.ranges import intersection, merge_ranges, subtract, subtract_few
from findleaks.target.thread_labels import number_threads

_PRIORITIES = (
    *(OwnerSort.VARIABLE, OwnerSort.MAPPING, OwnerSort.RUNTIME, OwnerSort.OWN_REFERENCE),
    *(OwnerSort.CALLBACKS, OwnerSort.TABLE, OwnerSort.STACK, OwnerSort.REGISTERS),
)


class Owners:
    """All owners of a session's roots.

    `bounds` and `numbers`: the arguments of Graph.dominators. `priorities`: the numbers of the
    owners at which the second and each later priority begin."""

    def __init__(self, found: Iterable[Owner], objects: Iterable[OwnedObjects] = ()) -> None:
        """`objects`: managed objects that variables retain. The owners of these variables come
        first, in the order of the variables in `objects`."""
        self.all = sorted((owner for owner in found if owner.ranges or owner.words), key=lambda owner: owner.sort)
        self.priorities = [sum(owner.sort < sort for owner in self.all) for sort in _PRIORITIES]
        self.bounds, self.numbers = _bounds([(r.start, r.end, n) for n, owner in enumerate(self.all) for r in owner.ranges])
        first = 0
        for one in objects:
            self.bounds, self.numbers = _divide_bounds(self.bounds, self.numbers, one, first)
            first += len(one.variables)

    def priority(self, number: int) -> int:
        """Return the priority of an owner; 0 is the highest."""
        return sum(number >= first for first in self.priorities)

    def at(self, address: int) -> Optional[int]:
        """Return the number of the owner of the word at `address`; None if it has none."""
        place = bisect_right(self.bounds, address) - 1
        return self.numbers[place] if place >= 0 and self.numbers[place] != NO_ROOT else None


def find_owners(session: Session, reader: ContainerReader) -> Owners:
    """Return the owners of all roots of the session."""
    target = session.target
    whose = number_threads(target)
    objects = list_owned_objects(session)
    found = [
        _managed_variable(one.runtime, variable, totals, one.joined.get(number, ()))
        for one in objects
        for number, (variable, totals) in enumerate(zip(one.variables, one.totals))
    ]
    others = (runtime for runtime in session.runtimes if runtime.object_nodes() is None)
    found += [_managed_variable(runtime, one) for runtime in others for one in runtime.variables()]
    if any(runtime.names_roots for runtime in session.runtimes):
        # Few processes have such a heap, so this is imported here.
        from findleaks.audit.heap_root_owners import find_heap_root_owners

        found += find_heap_root_owners(session)
    found += _separate_callbacks(session, list(find_variables(session, reader)))
    found += find_thread_locals(session, whose)
    dtvs = {owner.thread: owner for owner in found if owner.name == CONTROL_NAME}
    found += lower_priorities(session, found)
    found += find_frame_owners(session, whose, _ranges(found))
    found += _frame_owners(session, whose)
    found += _managed_heap_owners(session, _ranges(found), objects)
    words = list(_owners_outside_memory(session, whose, dtvs))
    found += find_mapping_owners(session, _ranges([*found, *words]))
    return Owners([*found, *words], objects)


def _managed_variable(runtime: Runtime, one: Variable, objects: Optional[Totals] = None, members: Sequence[Variable] = ()) -> Owner:
    """Return the owner for a managed variable. `objects`: objects that only this variable retains,
    for runtimes whose objects are not blocks. `members`: the variables that the owner stands for;
    () if it is one variable."""
    kind = runtime.name if one.is_local else f"{runtime.name} variable"
    made = Owner(OwnerSort.MANAGED, one.name, kind, words=[("value", one.value)], table=one.table)
    made.what, made.length, made.unit = one.what, one.length, one.unit
    made.apart, made.objects = objects is not None, objects or Totals(0, 0)
    if members:
        made.where += "s"
        made.members = [_managed_variable(runtime, member, Totals(0, 0)) for member in members]
    return made


def _separate_callbacks(session: Session, variables: Sequence[Owner]) -> list[Owner]:
    """Return these owners without the words that refer to tables of callbacks, and the owners of
    callbacks."""
    callbacks, tables = list[Owner](), dict[tuple[str, str], list[Range]]()
    for runtime, one in list_callbacks(session):
        if one.address:
            table = one.name, one.what or "table of the library"
            tables.setdefault(table, []).append(Range(one.address, one.address + session.target.arch.word))
        else:
            made = Owner(OwnerSort.CALLBACKS, one.name, runtime.name, words=[("value", one.value)])
            made.what, made.length, made.unit = one.what, one.length, one.unit
            callbacks.append(made)
    words = sorted(part for ranges in tables.values() for part in ranges)
    for owner in variables if words else ():
        owner.ranges = subtract_few(owner.ranges, words)
    lists = dict[str, list[tuple[str, int]]]()  # the words of the tables are not references to them
    for dependent in session.graphs.dependents:
        start = session.directory.blocks.address(dependent.block)
        if is_kept(session, start):
            lists.setdefault(dependent.phrase, []).append(("value", start))
    named = [
        Owner(OwnerSort.TABLE, name, where, ranges=sorted(ranges), words=lists.get(name, [])) for (name, where), ranges in tables.items()
    ]
    return [*variables, *callbacks, *named]


def join_owners(named: Owners, joint: Sequence[Sequence[int]]) -> tuple[Owners, list[int]]:
    """Replace each set of `joint` (numbers of variables) by one owner. Returns all owners, and the
    numbers of the joined ones."""
    found = replace_sets(named.all, joint, _join_variables)
    made = Owners(found)
    numbers = {id(owner): number for number, owner in enumerate(made.all)}
    return made, [numbers[id(owner)] for owner in found[: len(joint)]]


def _join_variables(members: Sequence[Owner]) -> Owner:
    """Return one owner for variables of one priority. Words outside memory get the name of their
    variable."""
    first = members[0]
    # Places contain commas, so " and " separates all of them.
    where = " and ".join(dict.fromkeys(one.where for one in members if one.where))
    where += "s" if first.sort == OwnerSort.MANAGED else ""
    names = list(dict.fromkeys(one.name for one in members))  # a thread-local variable: one name
    # A variable without a symbol is named by its file: "libjv.so, data+0x40". join_names() would
    # take the file for the holder of the variables.
    name = join_names(names) if len(names) > 1 and all(one.has_symbol for one in members) else " and ".join(names)
    made = Owner(first.sort, name, where, members=members)
    made.words = [(one.name, value) for one in members for _, value in one.words]
    made.ranges = sorted(part for one in members for part in one.ranges)
    return made


def _ranges(owners: Iterable[Owner]) -> list[Range]:
    return [part for owner in owners for part in owner.ranges]


def _owners_outside_memory(session: Session, whose: ThreadName, controls: Mapping[int, Owner]) -> Iterator[Owner]:
    """Yield owners of words that are not in root memory: registers, pointers that the kernel
    stores, and pointers to blocks that contain DTVs, ld.so's table, or the stack and control block
    of a thread.
    `controls`: the owner of each thread's control block, by tid. The thread's DTV is added to this
    owner."""
    target = session.target
    blocks = session.directory.blocks
    for thread in target.threads():
        words = [(name or "vector", value) for name, value, read in session.unread.words(thread) if read]
        zone = [Range(thread.sp - target.arch.red_zone, thread.sp)] if thread.sp > target.arch.red_zone else []
        zone = subtract_few(zone, subtract_few(zone, session.roots)) if blocks.find(thread.sp) < 0 else []
        yield Owner(OwnerSort.REGISTERS, f"{whose(thread.tid)}'s registers", "", thread.tid, zone, words)
        for name, address in (("sp", thread.sp), ("tp", thread.thread_pointer)):
            index = blocks.find(address)
            if index >= 0:
                yield Owner(
                    OwnerSort.LIBRARY, f"memory that {whose(thread.tid)} runs on", "", thread.tid, [], [(name, blocks.address(index))]
                )
        if thread.thread_pointer:
            dtv = [("dtv", value) for value in dtv_words(target, thread.thread_pointer)]
            if thread.tid in controls:
                controls[thread.tid].words += dtv
                continue
            yield Owner(OwnerSort.LIBRARY, "thread-local storage", f"libc, {whose(thread.tid)}", thread.tid, [], dtv)
    ended = [("dtv", value) for pointer in ended_thread_pointers(target) for value in dtv_words(target, pointer)]
    yield Owner(OwnerSort.LIBRARY, "thread-local storage of threads that ended", "libc", 0, [], ended)
    kept: dict[str, list[tuple[str, int]]] = {}
    for word, one in session.kernel_references:
        kept.setdefault(one.holder, []).append((one.part or "value", word))
    yield from (Owner(OwnerSort.KERNEL, holder, "kept by the kernel", 0, [], words) for holder, words in kept.items())
    stacks = [("stack", start) for start in session.signal_stacks]
    yield Owner(OwnerSort.KERNEL, f"{SIGNAL_STACK}s", "kept by the kernel", 0, [], stacks)
    yield Owner(OwnerSort.LIBRARY, "table of loaded files", "ld.so", 0, [], [("segment", value) for value in table_blocks(target)])


def _frame_owners(session: Session, whose: ThreadName) -> Iterator[Owner]:
    """Yield frames of managed languages that are not on the threads' stacks, such as Python's."""
    for runtime in session.runtimes:
        shared: dict[tuple[str, str], list[Range]] = {}
        for frame in runtime.frames():
            if frame.owners:
                shared.setdefault((frame.name, frame.owners), []).append(frame.range)
                continue
            ranges = intersection(session.roots, [frame.range])
            if ranges:
                where = f"{runtime.name} frame{f', {whose(frame.thread)}' if frame.thread else ''}"
                yield Owner(OwnerSort.MAPPING, frame.name, where, frame.thread, ranges)
        for (name, owners), parts in shared.items():
            ranges = intersection(session.roots, parts)
            if ranges:
                yield Owner(OwnerSort.MAPPING, name, f"{runtime.name} frames, {owners}", 0, ranges)


def _managed_heap_owners(session: Session, taken: Sequence[Range], objects: Sequence[OwnedObjects]) -> Iterator[Owner]:
    """Yield parts of managed heaps as owners, such as "Ruby's heap pages".
    If pages are in blocks, they are roots only if it is known what their objects refer to."""
    left = subtract(session.roots, taken)
    for runtime in session.runtimes:
        pages = [page for one in objects if one.runtime is runtime for page in one.objects.pages]
        parts = runtime.parts()
        own = merge_ranges(word for part in parts if part.own_words is not None for word in part.own_words())
        if own:
            words = intersection(left, own)
            yield Owner(OwnerSort.OWN_REFERENCE, f"references from objects to {runtime.name}'s structures", "", 0, words, managed=True)
            left = subtract(left, words)
        sort = OwnerSort.RUNTIME if any(part.has_objects for part in parts) else OwnerSort.MAPPING
        for part in parts:
            ranges = intersection(left, part.ranges) if not part.inside else merge_ranges(pages)
            if ranges:
                name = part.name if part.name.startswith(runtime.name) or "'" in part.name else f"{runtime.name}'s {part.name}"
                yield Owner(OwnerSort.MAPPING if part.has_objects else sort, name, part.detail, 0, ranges, managed=True)
                left = subtract(left, ranges)


def _bounds(spans: Iterable[tuple[int, int, int]]) -> tuple[array[int], array[int]]:
    """Return bounds, ascending, and the owner of the memory after each bound. Where spans overlap,
    the one that starts first wins."""
    bounds, numbers = array("Q"), array("I")
    for start, end, number in sorted(spans):
        start = max(start, bounds[-1] if bounds else 0)
        if start >= end:
            continue
        if bounds and bounds[-1] == start:
            numbers[-1] = number
        else:
            bounds.append(start)
            numbers.append(number)
        bounds.append(end)
        numbers.append(NO_ROOT)
    return bounds, numbers


def _divide_bounds(bounds: array[int], numbers: array[int], one: OwnedObjects, first: int) -> tuple[array[int], array[int]]:
    """Return the bounds with each managed object assigned to its own owner, numbered from `first`
    on.
    Adjacent objects are copied together, so this is fast for many objects."""
    made, owners = array("Q"), array("I")
    mine = array("I", (first + number for number in one.owners)) if first else one.owners
    at = 0
    for place, start in enumerate(bounds):
        made.append(start)
        owners.append(numbers[place])
        end = bounds[place + 1] if place + 1 < len(bounds) else start
        at = bisect_left(one.starts, start, at)
        last = bisect_left(one.starts, end, at)
        if last == at or numbers[place] == NO_ROOT:
            continue
        inner, owning = array("Q", bytes(16 * (last - at))), array("I", [numbers[place]]) * (2 * (last - at))
        inner[0::2], inner[1::2], owning[0::2] = one.starts[at:last], one.ends[at:last], mine[at:last]
        inner[-1] = min(inner[-1], end)
        made += inner
        owners += owning
        at = last
    return made, owners
