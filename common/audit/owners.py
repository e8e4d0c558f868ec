"""Owners of root memory: the global variable, stack frame, thread-local variable, mapping or
register that a word belongs to.

Roots have priorities. What a global variable leads to is owned by the variable, even if a frame or
a register happens to point to it too. Variables of a managed language (a Python module's) come
first, then other variables, then mappings; stacks and registers own only what nothing else leads
to.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Optional

from findleaks.audit import stack_owners, variables
from findleaks.audit.containers.reader import Reader
from findleaks.engine.dominators import NO_ROOT
from findleaks.formatting import printable, size
from findleaks.libc.loader import table_blocks
from findleaks.libc.stacks import cached_thread_pointers, dtv_words
from findleaks.session import Session
from findleaks.target.base import Range, Region
from findleaks.target.ranges import intersection, subtract, subtract_few


class Sort(IntEnum):
    """The sort of a root. Priorities begin at MANAGED, VARIABLE, MAPPING, STACK and REGISTERS;
    these include the red zone below the stack pointer."""

    MANAGED = 0  # a variable of a managed language, which is in a block
    VARIABLE = 1
    THREAD_LOCAL = 2
    LIBRARY = 3  # of libc and ld.so, with interior pointers to blocks: DTVs
    MAPPING = 4
    STACK = 5
    REGISTERS = 6


WORDS = ("managed-variable", "variable", "thread-local", "library", "mapping", "stack", "registers")
_PRIORITIES = (Sort.VARIABLE, Sort.MAPPING, Sort.STACK, Sort.REGISTERS)


@dataclass
class Owner:
    """A root. `name`: "g_agent"; `where`: "libagent.so, data", or "". `ranges`: its memory,
    ascending; `words`: values outside `ranges`, such as registers, by name. `thread`: a tid, 0 for
    none."""

    sort: Sort
    name: str
    where: str = ""
    thread: int = 0
    ranges: list[Range] = field(default_factory=list)
    words: list[tuple[str, int]] = field(default_factory=list)
    managed: bool = False  # part of a managed runtime's heap
    table: int = 0  # of a managed variable: a block that its value has for itself

    @property
    def label(self) -> str:
        """ "g_agent (libagent.so, data)" """
        return f"{self.name} ({self.where})" if self.where else self.name

    @property
    def word(self) -> str:
        """Its name as a command line takes it, not quoted yet. The address instead, where a
        debugger would evaluate the name even in quotes, or it would be taken for an option; ""
        where it has neither."""
        if self.name and self.name[0] not in "$&*(-" and "`" not in self.name:
            return self.name
        return hex(self.ranges[0].start) if self.ranges else ""


class Owners:
    """All owners of a session's roots. `bounds` and `numbers`: as Graph.dominators takes them.
    `priorities`: the numbers at which the second and later priorities begin."""

    def __init__(self, found: Iterable[Owner]) -> None:
        self.all = sorted((owner for owner in found if owner.ranges or owner.words), key=lambda owner: owner.sort)
        self.priorities = [sum(owner.sort < sort for owner in self.all) for sort in _PRIORITIES]
        self.bounds, self.numbers = _bounds([(r.start, r.end, n) for n, owner in enumerate(self.all) for r in owner.ranges])

    def priority(self, number: int) -> int:
        """The priority of an owner, 0 the first."""
        return sum(number >= first for first in self.priorities)

    def at(self, address: int) -> Optional[int]:
        """The number of the owner of the word at `address`."""
        place = bisect_right(self.bounds, address) - 1
        return self.numbers[place] if place >= 0 and self.numbers[place] != NO_ROOT else None


def owners(session: Session, reader: Reader) -> Owners:
    """Every root of the session with its owner."""
    target = session.target
    roots = session.roots
    numbers = {thread.tid: number for number, thread in enumerate(target.threads(), 1)}

    def whose(tid: int) -> str:
        return "main thread" if tid == target.pid or (numbers.get(tid) == 1 and target.pid is None) else f"thread {numbers.get(tid, tid)}"

    found = [
        Owner(Sort.MANAGED, printable(one.name), f"{runtime.name} variable", words=[("value", one.value)], table=one.table)
        for runtime in session.runtimes
        for one in runtime.variables()
    ]
    for name, where, ranges in variables.variables(session, reader):
        found.append(Owner(Sort.VARIABLE, name, where, 0, ranges))
    for tid, name, where, ranges in stack_owners.thread_locals(session):
        found.append(Owner(Sort.THREAD_LOCAL, name, f"{where}, thread-local, {whose(tid)}" if where else whose(tid), tid, ranges))
    dtvs = {owner.thread: owner for owner in found if owner.name == stack_owners.CONTROL_NAME}
    taken = [r for owner in found for r in owner.ranges]
    for tid, function, ranges in stack_owners.frames(session, taken):
        found.append(Owner(Sort.STACK, f"{whose(tid)}'s stack", function, tid, ranges))
    taken += [r for owner in found if owner.sort == Sort.STACK for r in owner.ranges]
    found += _managed(session, taken)
    taken += [r for owner in found if owner.managed for r in owner.ranges]
    words = list(_owners_outside_memory(session, whose, dtvs))
    found += _mappings(target.regions(), roots, [*taken, *(r for owner in words for r in owner.ranges)])
    found += words
    return Owners(found)


def _owners_outside_memory(session: Session, whose: Callable[[int], str], controls: Mapping[int, Owner]) -> Iterator[Owner]:
    """Owners of words outside root memory: registers; pointers to the blocks that hold DTVs and
    ld.so's table; pointers to the blocks that threads run on. `controls`: the owners of threads'
    control blocks, which their DTVs are part of."""
    target = session.target
    blocks = session.directory.blocks
    for thread in target.threads():
        words = [(name or "vector", value) for name, value, read in session.unread.words(thread) if read]
        zone = [Range(thread.sp - target.arch.red_zone, thread.sp)] if thread.sp > target.arch.red_zone else []
        zone = subtract_few(zone, subtract_few(zone, session.roots)) if blocks.find(thread.sp) < 0 else []
        yield Owner(Sort.REGISTERS, f"{whose(thread.tid)}'s registers", "", thread.tid, zone, words)
        for name, address in (("sp", thread.sp), ("tp", thread.thread_pointer)):
            index = blocks.find(address)
            if index >= 0:
                yield Owner(Sort.LIBRARY, f"what {whose(thread.tid)} runs on", "", thread.tid, [], [(name, blocks.address(index))])
        if thread.thread_pointer:
            dtv = [("dtv", value) for value in dtv_words(target, thread.thread_pointer)]
            if thread.tid in controls:
                controls[thread.tid].words += dtv
                continue
            yield Owner(Sort.LIBRARY, "thread-local storage", f"libc, {whose(thread.tid)}", thread.tid, [], dtv)
    ended = [("dtv", value) for pointer in cached_thread_pointers(target) for value in dtv_words(target, pointer)]
    yield Owner(Sort.LIBRARY, "thread-local storage of threads that ended", "libc", 0, [], ended)
    yield Owner(Sort.LIBRARY, "table of loaded files", "ld.so", 0, [], [("segment", value) for value in table_blocks(target)])


def _managed(session: Session, taken: Sequence[Range]) -> Iterator[Owner]:
    """Parts of managed runtimes' heaps: "Ruby's heap pages"."""
    left = subtract(session.roots, taken)
    for runtime in session.runtimes:
        for part in runtime.parts():
            ranges = intersection(left, part.ranges) if not part.inside else []
            if ranges:
                name = part.name if part.name.startswith(runtime.name) or "'" in part.name else f"{runtime.name}'s {part.name}"
                yield Owner(Sort.MAPPING, printable(name), printable(part.detail), 0, ranges, managed=True)
                left = subtract(left, ranges)


def _mappings(regions: Sequence[Region], roots: Sequence[Range], taken: Iterable[Range]) -> Iterator[Owner]:
    """Owners of the rest of root memory: its mappings."""
    left = subtract(roots, taken)
    starts = [region.start for region in regions]
    pieces: dict[int, list[Range]] = {}
    for start, end in left:
        at = max(bisect_right(starts, start) - 1, 0)
        while at < len(regions) and regions[at].start < end:
            low, high = max(start, regions[at].start), min(end, regions[at].end)
            if low < high:
                pieces.setdefault(at, []).append(Range(low, high))
            at += 1
    for at, ranges in pieces.items():
        region = regions[at]
        name = printable(region.name.rsplit("/", 1)[-1] if region.name.startswith("/") else region.name)
        what = f"{name} mapping" if name and not name.startswith("[") else name or "anonymous mapping"
        yield Owner(Sort.MAPPING, f"{what} at {region.start:#x}", size(region.size), 0, ranges)


def _bounds(spans: Iterable[tuple[int, int, int]]) -> tuple[array[int], array[int]]:
    """Bounds, ascending, and the owner of what follows each. Where spans overlap, the one that
    begins first has the words."""
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
