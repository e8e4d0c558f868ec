"""Lua in a process."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.directory import Directory
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.dominators import IGNORED
from findleaks.engine.terms import NO_BLOCK, Totals
from findleaks.runtimes.base import (
    Count,
    Exclusions,
    Holders,
    MiscountedType,
    ObjectTypes,
    ReferenceCounts,
    Runtime,
    Type,
    Variable,
)
from findleaks.runtimes.count_verdict import CountVerdict
from findleaks.runtimes.lua.coroutines import COROUTINE_OF, name_coroutines
from findleaks.runtimes.lua.layout import FUNCTION, MAIN_CHUNK, TABLE, State
from findleaks.runtimes.lua.locals import is_suspended
from findleaks.runtimes.lua.objects import (
    FUNCTION_AT,
    FUNCTIONS,
    NAMED,
    NAMES,
    PARTS,
    STRINGS,
    TABLES,
    THREADS,
    UPVALUES,
    Objects,
)
from findleaks.target.base import Module, Piece, Range, Target
from findleaks.target.interruptible import interruptible

_MOST_VARIABLES = 1 << 14
_MOST_SUSPENDED = 16  # maximum number of suspended coroutines whose local variables are named
_SHOWN = 40  # characters of a key that are shown


def _name_local(variable: str, place: str) -> str:
    """Return the name of a local variable of a function. `place`: file and line of the function."""
    return f"local {variable} in {place.rpartition(':')[0] or place.split(MAIN_CHUNK)[0]}"


class Lua(Runtime):
    """Lua in a process. See base.Runtime. `module` is a file that contains Lua, `states` are its
    states."""

    name = "Lua"
    lists_objects = True
    collect_calls = "collectgarbage()", 'collectgarbage("restart")'

    def __init__(self, target: Target, engine: Engine, directory: Directory, module: Module, states: Sequence[State]) -> None:
        self.problems: list[Problem] = []
        self.version, self.where = states[0].layout.version, module.path.rsplit("/", 1)[-1]
        self._target, self._engine, self._directory, self._states = target, engine, directory, states
        self._memory = Memory(target)

    @cached_property
    def _objects(self) -> Objects:
        found = self._read_objects()
        name_coroutines(self._memory, self._directory.blocks, found)
        self.problems += [Problem(address, what) for address, what in islice(dict.fromkeys(found.problems), 8)]
        return found

    def _read_objects(self) -> Objects:
        return Objects(self._target, self._engine, self._directory, self._states)

    def counters(self) -> Mapping[str, Count]:
        """Return the bytes that collectgarbage("count") returns in Lua, of all states."""
        total = 0
        for state in self._states:
            parts = [self._memory.word(state.address + offset) or 0 for offset in (state.layout.total, state.layout.debt) if offset]
            total += sum(parts) & self._target.arch.mask
        return {'collectgarbage("count")': Count(total, "bytes")}

    def types(self) -> Sequence[Type]:
        """Return functions by file and line, objects with a metatable by its name, and others."""
        objects = self._objects
        rows = [(name, objects.total(number)) for number, name in enumerate(objects.names) if number != PARTS]
        return [Type(name, *total) for name, total in rows if total.blocks]

    def holders(self) -> Optional[Holders]:
        """Return the type of the object in each block. Strings refer to nothing."""
        merged = array("I", (IGNORED if number == STRINGS else number for number in self._objects.found))
        return Holders(array("Q"), array("I"), array("I"), self._objects.names, merged)

    def excluded_words(self) -> Optional[Exclusions]:
        """Exclude the links of the lists of all objects, and the collector's lists."""
        return Exclusions(self._objects.patterns, self._objects.exclusions)

    def dead(self) -> Sequence[Range]:
        """Return the heads of the lists of objects, and the unused parts of threads' stacks."""
        return sorted(self._objects.dead)

    def permanent_blocks(self) -> Sequence[int]:
        """Return states and threads: references to these may be inside their blocks."""
        return self._objects.roots

    def object_types(self) -> Optional[ObjectTypes]:
        """Return the type of each object. Groups are named after an object with a metatable, or
        else after a function or a table."""
        ranks = array("I", [1] * len(NAMES))
        for number, rank in ((TABLES, 3), (FUNCTIONS, 4), (UPVALUES, 2), (THREADS, 4)):
            ranks[number] = rank
        ranks.extend(5 if name.startswith((FUNCTION_AT, COROUTINE_OF)) else 6 for name in self._objects.names[NAMED:])
        return ObjectTypes(self._objects.found, self._objects.names, ranks, self.name, "Lua object", parts=(PARTS,))

    def reference_counts(self, graph: Graph, pieces: Iterable[Piece]) -> Optional[ReferenceCounts]:
        """Return which leaked objects are garbage: all of them, as the collector frees what nothing
        refers to. Lua does not count references."""
        blocks, leak_heads, found = self._directory.blocks, graph.leak_heads(), self._objects.found
        verdicts = bytearray(len(leak_heads))
        counts: dict[int, int] = {}
        sums = [[0, 0], [0, 0]]
        for index, leak_head in enumerate(leak_heads):
            if leak_head == NO_BLOCK:
                continue
            garbage = found[leak_head] < len(self._objects.names)
            sums[garbage][0] += 1
            sums[garbage][1] += blocks.size(index)
            if garbage:
                verdicts[index] = CountVerdict.UNCOLLECTED
                if found[index] < len(self._objects.names) and found[index] != PARTS:
                    counts[found[index]] = counts.get(found[index], 0) + 1
        types = [MiscountedType(self._objects.names[number], 0, 0, count) for number, count in counts.items()]
        totals = [Totals(*sums[0]), Totals(0, 0), Totals(*sums[1]), Totals(0, 0)]
        return ReferenceCounts(verdicts, array("I", bytes(4 * len(leak_heads))), totals, sorted(types, key=lambda one: one.name))

    @cached_property
    def _variables(self) -> Sequence[Variable]:
        return list(interruptible(self._target, self._find_variables()))

    def variables(self) -> Sequence[Variable]:
        """Return the variables that refer to tables with elements: global variables, fields of
        modules, local variables that functions in global variables or modules use, local variables
        of running functions, and the registry."""
        return self._variables

    def _find_variables(self) -> Iterator[Variable]:
        seen: set[int] = set()
        for state in self._states:
            functions: list[int] = []
            places: list[tuple[str, int, int]] = []
            for name, value, place in self._objects.globals(state):
                if self._objects.type_of(value) == FUNCTION:
                    functions.append(value)
                else:
                    places.append((name, value, place))
            for function in functions:
                places += self._upvalues(state, function)
            places += self._local_variables(state)
            places += self._objects.registry(state)
            for name, value, place in places:
                if value in seen or self._objects.type_of(value) != TABLE or len(seen) >= _MOST_VARIABLES:
                    continue
                seen.add(value)
                length = self._objects.length(state, value)
                parts = [part for part in self._parts(state, value) if part]
                if length:
                    what = self._objects.names[self._objects.found[self._directory.blocks.find(value)]]
                    yield Variable(name, place, value, parts[-1] if parts else 0, what, length, "elements")

    def _parts(self, state: State, table: int) -> Sequence[int]:
        """Return the addresses of the blocks with the elements of a table."""
        words = [self._memory.word(table + offset) or 0 for offset in (state.layout.array, state.layout.node)]
        return [word for word in words if word and self._directory.blocks.find(word) >= 0]

    def _upvalues(self, state: State, address: int) -> Iterator[tuple[str, int, int]]:
        """Yield name, value and address of the reference of each local variable of outer functions
        that a function of Lua uses."""
        where = self._objects.place_of(address)
        for variable, place in self._objects.upvalues(state, address) if where else ():
            if variable != "_ENV":  # _ENV has the global variables
                yield _name_local(variable, where), self._objects.reference(place), place

    def _local_variables(self, state: State) -> Iterator[tuple[str, int, int]]:
        """Yield name, value and address of the reference of each local variable of the Lua
        functions that run. If many coroutines are suspended, their variables are left out: what
        refers to the coroutines retains the memory of all of them."""
        threads = [thread for owner, thread in self._objects.threads if owner is state]
        suspended = {thread for thread in threads if is_suspended(self._memory, state.layout.version, thread)}
        few = len(suspended) <= _MOST_SUSPENDED
        for thread in threads if few else (thread for thread in threads if thread not in suspended):
            for function, variable, place in self._objects.local_variables(state, thread):
                yield _name_local(variable, self._objects.place_of(function)), self._objects.reference(place), place

    def name_member(self, address: int, holder: int = 0) -> str:
        index = self._directory.blocks.find(address)
        table, state = self._objects.tables.get(index, (0, None))
        if state is None:
            return ""
        found = self._objects.key_at(state, table, address)
        if isinstance(found, str):
            return f".{found}" if found.isidentifier() else f"['{found if len(found) <= _SHOWN else found[:_SHOWN] + '…'}']"
        return f"[{found}]" if found is not None else ""

    def describe(self, address: int) -> str:
        index = self._directory.blocks.find(address)
        number = self._objects.found[index] if index >= 0 else len(self._objects.names)
        return f"Lua {self._objects.names[number]}" if number < len(self._objects.names) else ""
