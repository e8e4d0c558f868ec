"""The arenas of the Perl interpreters of a process as an Allocator."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from findleaks.allocators.base import Allocator, Heap, Problem, add_first_problems
from findleaks.allocators.bulk import follow_lists
from findleaks.allocators.heaps import SlabHeap
from findleaks.allocators.images import Image, find_version
from findleaks.allocators.memory import Memory
from findleaks.allocators.perl.arenas import Values, arena_type, read_values, size_of_bodies
from findleaks.allocators.perl.layout import (
    FREE,
    HEAD,
    LAST_TYPE,
    MAGIC,
    PLAIN,
    STRUCT_WORDS,
    BodyArena,
    Interpreter,
    file_variables,
)
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import Lists, State, run_states
from findleaks.target.base import Range, Target

_VERSION = re.compile(rb"perl[^\0]{0,64}?/(5\.\d\d)(?:\.\d+)?[/\0]")  # the directories of @INC
_USED = run_states(State.IN_USE, State.IN_USE)
_SAMPLE = 64  # arenas of values whose values show where bodies begin


class PerlArenas(Allocator):
    """Arenas of values and of bodies with pointers. See Allocator.

    `interpreters` are the main interpreter, and those of other threads (ithreads). `interpreter` is
    the main one, with the arenas of all.

    Bodies without pointers stay a part of malloc's blocks: no word refers to their start."""

    name = "perl"
    nested = True
    managed = True
    granule = 8
    retention_note = "Perl never frees an arena before it exits"

    def __init__(self, target: Target, engine: Engine, image: Image, interpreter: Interpreter, others: Sequence[Interpreter] = ()) -> None:
        self.target, self.engine, self.image = target, engine, image
        self.interpreters = [interpreter, *others]
        self.interpreter = interpreter = _merge(self.interpreters) if others else interpreter
        self.where = image.name
        self.memory = Memory(target)
        self.problems = [Problem(address, what) for address, what in interpreter.problems]
        self._starts = [one.start for one in interpreter.values]
        arenas = [(one.start, one.start + one.slots * HEAD, one.start + HEAD, HEAD, one.slots - 1) for one in interpreter.values]
        self._heaps = _slab_heap("values", arenas)
        self.plain = [one for one in interpreter.bodies if one.type in PLAIN]
        """Arenas of bodies without pointers."""
        self._free = self._free_lists()
        self.sizes = self._sizes()
        sized = ((one, self.sizes.get(one.type, 0)) for one in interpreter.bodies)
        arenas = [(one.start, one.start + one.size, one.start, size, one.size // size) for one, size in sized if size]
        self._heaps += _slab_heap("bodies", arenas)

    @cached_property
    def version(self) -> str:  # type: ignore[override]
        """Perl's version ("5.36"), or ""."""
        return find_version(self.target, self.image.module, _VERSION)

    def _free_lists(self) -> Lists:
        """Return the lists of free bodies: those of type 0 of all interpreters, then those of type
        1, and so on."""
        types = 1 + max((one.type for one in self.interpreter.bodies), default=0)
        heads = [self.memory.words(one.roots, types) or () if one.roots else () for one in self.interpreters]
        for one, found in zip(self.interpreters, heads):
            if not found:
                what = "Perl's lists of free bodies were not found: free bodies count as in use"
                self.problems.append(Problem(one.address, what, False))
        wanted = [0 if kind in PLAIN or not found else found[kind] for kind in range(types) for found in heads]
        capacity = sum(one.size // 16 for one in self.interpreter.bodies)
        ranges = [Range(one.start, one.start + one.size) for one in self.interpreter.bodies if one.type not in PLAIN]
        lists = follow_lists(self.target, self.engine, ranges, wanted, capacity + 1, capacity)
        for kind, why in lists.problems:
            what = f"Perl's list of free bodies of type {kind // len(heads)} is damaged, {why}: further ones count as in use"
            self.problems.append(Problem(wanted[kind], what))
        return lists

    def _sizes(self) -> Mapping[int, int]:
        """Return the size of the bodies in the arenas of each type, without types whose size is
        unknown."""
        arenas: dict[int, list[BodyArena]] = {}
        for one in self.interpreter.bodies:
            if one.type not in PLAIN:
                arenas.setdefault(one.type, []).append(one)
        known: dict[int, list[int]] = {kind: [] for kind in arenas}
        for values in read_values(self.target, self.engine, self.interpreter.values[-_SAMPLE:]):
            for body, flags in zip(values.bodies, values.flags):
                if MAGIC <= flags & FREE <= LAST_TYPE:
                    known.setdefault(arena_type(flags & FREE, flags), []).append(body)
        ends = [0, *self._free.ends[len(self.interpreters) - 1 :: len(self.interpreters)]]
        free = {kind: self._free.nodes[start:end] for kind, (start, end) in enumerate(zip(ends, ends[1:]))}
        sizes = {kind: size_of_bodies(some, free.get(kind, ()), known[kind], kind) for kind, some in arenas.items()}
        for kind in sorted(kind for kind, size in sizes.items() if not size):
            what = f"the size of Perl's bodies of type {kind} is unknown: references in them are not followed"
            self.problems.append(Problem(arenas[kind][0].start, what, False))
        return {kind: size for kind, size in sizes.items() if size}

    def variables(self) -> array[int]:
        """Return the words of the interpreters' variables ("Q"), which are struct interpreter, or
        all variables of the file."""
        if self.interpreter.struct:
            return array("Q", (word for one in self.interpreters for word in self.memory.words(one.struct, STRUCT_WORDS) or ()))
        return array("Q", (word for _, words in file_variables(self.target, self.image) for word in words))

    def values(self) -> Iterator[Values]:
        """Yield all values, free ones included, ascending."""
        return read_values(self.target, self.engine, self.interpreter.values)

    @property
    def free_bodies(self) -> Sequence[int]:
        """The addresses of bodies in Perl's lists of free bodies."""
        return self._free.nodes

    def heaps(self) -> Sequence[Heap]:
        return self._heaps

    def mark_blocks(self, blocks: Blocks) -> None:
        for values in self.values():
            free = array("Q", (address for address, flags in zip(values.addresses, values.flags) if flags & FREE == FREE))
            blocks.set_state(free, State.FREE)
        wrong = blocks.set_state(array("Q", sorted(set(self._free.nodes))), State.FREE)
        more = "wrong entries in Perl's lists of free bodies"
        found = (Problem(node, f"Perl's lists of free bodies have {node:#x}, where no body begins") for node in wrong)
        add_first_problems(self.problems, found, more)

    def summary(self) -> dict[str, object]:
        arenas = {"value_arenas": len(self.interpreter.values), "body_arenas": len(self.interpreter.bodies)}
        return {**arenas, "reconciled": not self.problems}

    def locate(self, address: int) -> str:
        at = bisect_right(self._starts, address) - 1
        return "the header of an arena of Perl" if at >= 0 and address < self._starts[at] + HEAD else ""

    def read_counters(self) -> Mapping[str, int]:
        """Return PL_sv_count, which counts the values in use. It precedes sv_root and
        sv_arenaroot."""
        counts = [self.memory.word(one.address - 16) or 0 for one in self.interpreters if one.struct]
        return {"PL_sv_count": sum(counts)} if counts else {}


def _merge(interpreters: Sequence[Interpreter]) -> Interpreter:
    """Return the first interpreter with the arenas of all. In damaged memory, several may list the
    same arena."""
    values = {arena.start: arena for one in interpreters for arena in one.values}
    bodies = {arena.start: arena for one in interpreters for arena in one.bodies}
    return interpreters[0]._replace(
        values=[values[start] for start in sorted(values)],
        bodies=[bodies[start] for start in sorted(bodies)],
        sets=[block for one in interpreters for block in one.sets],
        problems=[problem for one in interpreters for problem in one.problems],
    )


def _slab_heap(arena: str, arenas: Sequence[tuple[int, int, int, int, int]]) -> list[SlabHeap]:
    """Return a list with the heap of these arenas; an empty list if there are no arenas. Each item
    of `arenas` has the start and end of an arena, and the address, size and number of its
    blocks."""
    slabs, runs = array("Q"), array("Q")
    for start, end, first, size, count in arenas:
        slabs.extend((start, end))
        runs.extend((first, size, size, count, 0, _USED))
    return [SlabHeap.of(arena, slabs, runs)] if slabs else []
