"""A Perl interpreter in a process."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.directory import Directory
from findleaks.allocators.memory import Memory
from findleaks.allocators.perl.instance import PerlArenas
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.dominators import IGNORED
from findleaks.runtimes.base import Count, Exclusions, Holders, ObjectTypes, Part, ReferenceCounts, Runtime, Type, Variable
from findleaks.runtimes.compared_counts import CountedValues, Style, compare_counts
from findleaks.runtimes.count_verdict import CountVerdict
from findleaks.runtimes.perl import values as v
from findleaks.runtimes.perl.census import Census
from findleaks.runtimes.perl.variables import Names
from findleaks.target.base import Piece, Range, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import merge_ranges

_ENTRIES = (v.BODIES, v.ENTRIES_OF_HASHES)
_LEAVES = (v.UNDEFINED, v.NUMBERS, v.STRINGS)  # types whose values refer to no other value


class Perl(Runtime):
    """Perl in a process. See base.Runtime. `arenas` are the interpreter's arenas."""

    name = "Perl"
    lists_objects = True
    cycle_remedy = "so weaken a reference in each cycle (Scalar::Util::weaken) or break it"

    def __init__(self, target: Target, engine: Engine, directory: Directory, arenas: PerlArenas) -> None:
        self.problems: list[Problem] = []
        self.version, self.where = arenas.version, arenas.where
        self._target, self._engine, self._directory, self._arenas = target, engine, directory, arenas
        self._memory = Memory(target)

    @cached_property
    def _census(self) -> Census:
        return Census(self._target, self._engine, self._directory.blocks, self._arenas)

    def counters(self) -> Mapping[str, Count]:
        """Return PL_sv_count, the number of values in use."""
        return {name: Count(value) for name, value in self._arenas.read_counters().items()}

    def parts(self) -> Sequence[Part]:
        """Return the arenas. They are also heaps of an allocator."""
        blocks, ranges = self._directory.blocks, merge_ranges(self._directory.of(self._arenas))
        used = sum(blocks.bytes_in(array("Q", [bound for part in ranges for bound in part]))[:1])
        interpreter = self._arenas.interpreter
        detail = f"{len(interpreter.values):,} arenas of values, {len(interpreter.bodies) - len(self._arenas.plain):,} of bodies"
        return [Part("Perl's arenas", ranges, used, True, detail)]

    def types(self) -> Sequence[Type]:
        """Return objects by class, closures by file and line, and other values by type."""
        census = self._census
        rows = zip(range(len(census.names)), census.names, census.totals)
        return [Type(name, *total) for number, name, total in rows if total.blocks and number not in _ENTRIES]

    def holders(self) -> Optional[Holders]:
        """Return the type of the value in each block."""
        merged = array("I", (IGNORED if number in _LEAVES else number for number in self._census.found))
        return Holders(array("Q"), array("I"), array("I"), self._census.names, merged)

    def excluded_words(self) -> Optional[Exclusions]:
        """Exclude weak references, what refers to a value weakly, and lists of arenas."""
        return Exclusions(self._census.patterns, v.EXCLUSIONS)

    def dead(self) -> Sequence[Range]:
        """Return the unused ends of arrays and of the interpreter's stacks."""
        return sorted(self._census.dead)

    def permanent_blocks(self) -> Sequence[int]:
        """Return operations, lists of arenas, and strings whose start no word refers to."""
        return self._census.roots

    def object_types(self) -> Optional[ObjectTypes]:
        """Return the type of each value. A cycle is named after a closure, or else after an object,
        a hash or an array."""
        ranks = array("I", [1] * v.CLOSURES)
        for number, rank in ((v.REFERENCES, 2), (v.PADS, 2), (v.ARRAYS, 3), (v.HASHES, 4), (v.SUBS, 5)):
            ranks[number] = rank
        for name in self._census.names[v.CLOSURES :]:
            ranks.append(7 if name.startswith("closure") else 2 if name.startswith("pad of ") else 6)
        return ObjectTypes(
            self._census.found, self._census.names, ranks, self.name, "Perl value", parts=(v.PADS, v.BODIES, v.ENTRIES_OF_HASHES)
        )

    def reference_counts(self, graph: Graph, pieces: Iterable[Piece]) -> Optional[ReferenceCounts]:
        """Compare reference counts; see base.Runtime. Perl has no collector of cycles."""
        census = self._census
        values = CountedValues(census.found, census.names, census.counts.__getitem__, lambda index: 0)
        style = Style("SvREFCNT_dec()", CountVerdict.UNTRACKED_CYCLE, _ENTRIES, v.ARRAYS)
        return compare_counts(pieces, self._target.arch, graph, self._directory.blocks, values, style)

    @cached_property
    def _names(self) -> Names:
        return Names(self._memory, self._directory.blocks, self._census)

    @cached_property
    def _variables(self) -> Sequence[Variable]:
        return list(interruptible(self._target, self._names.variables()))

    def variables(self) -> Sequence[Variable]:
        """Return package variables and lexical ones with elements, objects, subs or long
        strings."""
        return self._variables

    def name_member(self, address: int, holder: int = 0) -> str:
        return self._names.member(address)

    def name_object(self, index: int) -> str:
        number = self._census.found[index]
        if number not in (v.ARRAYS, v.HASHES):
            return ""
        body = self._memory.word(self._directory.blocks.address(index))
        length = self._memory.word(body + 16) if body else None
        if length is None:
            return ""
        return f"ARRAY of {length + 1 & self._memory.arch.mask:,}" if number == v.ARRAYS else f"HASH of {length:,}"

    def describe(self, address: int) -> str:
        index = self._directory.blocks.find(address)
        number = self._census.found[index] if index >= 0 else v.NO_VALUE
        return f"Perl {self._census.names[number]}" if number < len(self._census.names) else ""
