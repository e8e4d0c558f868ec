"""Find the types of objects to which only variables, stacks and closures refer.

These words have no types, but the code that sets them has (code_types.py). The functions whose code
is read are those on the stacks of goroutines, those that create the closures in the heap, and those
that set variables which refer to objects of unknown type."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress

from findleaks.allocators.memory import Memory
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.engine.contract import Engine
from findleaks.engine.terms import State
from findleaks.runtimes.go.code_flow import CodeTypes
from findleaks.runtimes.go.code_references import find_references
from findleaks.runtimes.go.code_types import CodeReader
from findleaks.runtimes.go.engine import NONE, TypeSearch, find_places
from findleaks.runtimes.go.moduledata import Program
from findleaks.runtimes.go.packages import is_library
from findleaks.runtimes.go.receivers import Receivers
from findleaks.runtimes.go.slot_fit import SlotFit
from findleaks.runtimes.go.span_table import ObjectSpans
from findleaks.runtimes.go.stack_roots import StackRoots
from findleaks.runtimes.go.type_table import TypeNames
from findleaks.target.base import Piece
from findleaks.target.interruptible import interruptible

# Bytes of code that are read: at least, for each object of unknown type, and at most. 1 MiB takes
# about 3 s.
_LEAST_CODE, _CODE, _MOST_CODE = 32 << 10, 64, 256 << 10
_MOST_FUNCTIONS = 1500  # whose code is read
_MOST_PATHS = 3000  # functions on stacks, each with its callers
_MOST_CLOSURES = 1 << 14  # functions of closures
_LOOK = 1 << 5  # functions between two checks for Ctrl-C
_PART = 8 << 20
_CLOSURE = re.compile(r"\.(func|gowrap|deferwrap)?\d+$|-fm$")  # names that the compiler gives them


class CodeObjects:
    """Finds objects whose types are proved by code. `variables`: address and value of each word of
    global variables. `has_headers`: since Go 1.22. `untyped`: the number of objects of unknown
    type, on which the work depends."""

    def __init__(
        self,
        memory: Memory,
        engine: Engine,
        program: Program,
        names: TypeNames,
        spans: ObjectSpans,
        stacks: StackRoots,
        variables: Iterable[tuple[int, int]],
        has_headers: bool,
        untyped: int,
    ) -> None:
        self._memory, self._engine, self._program, self._names = memory, engine, program, names
        self._spans, self._stacks, self._has_headers = spans, stacks, has_headers
        self._tables = stacks.tables
        receivers, most = Receivers(program.types, names, spans.sizes), min(max(_LEAST_CODE, _CODE * untyped), _MOST_CODE)
        self._reader = CodeReader(memory, program, names, self._tables, receivers, most)
        self._variables = list(variables)
        self._fit = SlotFit(names, spans, has_headers)
        self._closures: dict[int, int] = {}  # by function: the type value of its closures

    def find(self, search: TypeSearch, pieces: Sequence[Piece], problems: list[str]) -> list[tuple[int, int]]:
        """Return the index and the type value of objects of unknown type in `search`, which the
        caller has run. If no code can be read, add the reason to `problems`."""
        try:
            found = list(self._find(search, pieces))
        except CapstoneMissing as error:
            problems.append(f"the types of some objects to which only variables, stacks and closures refer are unknown: {error}")
            return []
        return self._fit.list_possible(search, found)

    def _find(self, search: TypeSearch, pieces: Sequence[Piece]) -> Iterator[tuple[int, int]]:
        untyped = [(address, value) for address, value in self._variables if self._is_untyped(search, value)]
        functions = self._list_closures(pieces)
        framed = list(dict.fromkeys(one.function for one in self._stacks.paths() if one is not None))
        owners = self._reader.pointers.find_owners((address for address, _ in untyped), self._variables)
        held = {address: [address, *owners.get(address, ())] for address, _ in untyped}
        wanted = {*functions, *chain.from_iterable(held.values()), *(one for one in framed if self._is_closure(one))}
        users: dict[int, list[int]] = {}  # by variable or function: the functions that refer to it
        for table in self._tables if wanted else ():
            linked = self._reader.tables.find(table.module, wanted)
            for address, place in find_references(self._memory.target, table.module, frozenset((*wanted, *linked))):
                users.setdefault(linked.get(address, address), []).append(table.extent(place).start)
        self._read_closures([user for one in (*functions, *framed) for user in users.get(one, ())])
        yield from self._list_objects(pieces)
        yield from self._list_of_frames()
        yield from self._list_of_variables(
            untyped, {one: [user for place in places for user in users.get(place, ())] for one, places in held.items()}
        )

    def _list_of_frames(self) -> Iterator[tuple[int, int]]:
        """Yield the objects to which words on stacks refer."""
        words, sources, addresses, values = self._stacks.frame_words()
        paths = self._stacks.paths()
        found: list[CodeTypes] = []
        for one in interruptible(self._memory.target, paths[: 1 + _MOST_PATHS], _LOOK):
            arguments: tuple[tuple[int, int], ...] = ()
            caller = paths[one.caller] if one is not None else None
            if one is not None and caller is not None:
                call = found[one.caller].calls.get(caller.pc)
                arguments = call.arguments if call is not None and call.function == one.function else ()
            found.append(self._reader.read(one.function if one is not None else 0, arguments))
        pairs = ((number, one) for number, one in enumerate(words) if one is not None and one.path < len(found))
        types = {number: found[one.path].slots.get(one.offset, NONE) for number, one in pairs}
        proved = {number: value for number, value in types.items() if value != NONE}
        for number, address, value in zip(sources, addresses, values):
            if number in proved and not self._reader.pointers.is_interface(address):
                yield value, proved[number]

    def _list_of_variables(self, untyped: Sequence[tuple[int, int]], users: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, int]]:
        """Yield the objects to which variables refer. `users`: by variable, the functions that may
        set it: they refer to it, or to a variable through which code can reach it."""
        readers = self._order_functions(user for address, _ in untyped for user in users.get(address, ()))
        proved: dict[int, set[int]] = {}
        for one in interruptible(self._memory.target, readers, _LOOK):
            for address, value in self._reader.read(one).variables.items():
                proved.setdefault(address, set()).add(value)
        for address, value in untyped:
            types = proved.get(address, ())
            if len(types) == 1 and NONE not in types and not self._reader.pointers.is_interface(address):
                yield value, next(iter(types))

    @staticmethod
    def _is_untyped(search: TypeSearch, address: int) -> bool:
        index = search.blocks.find(address)
        return index >= 0 and search.blocks.state(index) == State.IN_USE and search.type_of(index) == NONE

    def _name(self, function: int) -> str:
        found = self._reader.find_function(function)
        return found[1].name if found is not None else ""

    def _is_closure(self, function: int) -> bool:
        """Return whether a name is one that the compiler makes for closures."""
        return _CLOSURE.search(self._name(function)) is not None

    def _list_closures(self, pieces: Sequence[Piece]) -> list[int]:
        """Return the functions whose addresses are in words of the heap."""
        found: set[int] = set()
        for module in self._program.modules:
            for piece in pieces:
                for at in range(0, len(piece.data), _PART):
                    part = Piece(piece.address + at, piece.data[at : at + _PART])
                    values, _ = self._engine.gather((part,), self._engine.search(part, *module.text), 8)
                    found.update(self._engine.sum_by_value(array("Q", bytes(values)), array("Q"))[0])
        known = ((one, self._reader.find_function(one)) for one in sorted(found)[: 8 * _MOST_CLOSURES])
        return [one for one, function in known if function is not None and function[1].entry == one][:_MOST_CLOSURES]

    def _order_functions(self, functions: Iterable[int]) -> list[int]:
        """Return the functions whose code is read: each once, those of the program before those of
        the standard library, because not all may be read."""
        every = list(dict.fromkeys(functions))
        return sorted(every, key=lambda one: is_library(self._name(one)))[:_MOST_FUNCTIONS]

    def _read_closures(self, creators: Iterable[int]) -> None:
        """Read the types of closures from the code of the functions that create them."""
        order = self._order_functions(creators)
        found: dict[int, set[int]] = {}
        for one in interruptible(self._memory.target, order, _LOOK):
            for function, value in self._reader.read(one).closures.items():
                found.setdefault(function, set()).add(value)
        for function, values in found.items():
            if len(values) == 1:
                structure = self._names.keys[next(iter(values)) >> 1][1]
                self._closures[function] = self._names.closure_value(function, self._name(function), structure)
        self._reader.closures.update(self._closures)
        self._reader.forget()

    def _list_objects(self, pieces: Sequence[Piece]) -> Iterator[tuple[int, int]]:
        """Yield words of the heap that may be the start of a closure: addresses of functions."""
        low, high = min(self._closures, default=0), max(self._closures, default=-1) + 1
        for piece in pieces if high else ():
            places = self._engine.search(piece, low, high)
            data, _ = self._engine.gather((piece,), places, 8)
            for place, function in zip(places, array("Q", bytes(data))):
                if function in self._closures:
                    yield place, self._closures[function]

    def follow_closures(self, search: TypeSearch, pieces: Sequence[Piece]) -> bool:
        """Give closures of which only the function is known the type of this function's closures.
        Return whether there were any."""
        indices = list(find_places(search.types, self._names.function << 1)) if self._closures else []
        data, _ = self._engine.gather(pieces, [search.blocks.address(index) for index in indices], 8)
        values = [self._closures.get(code, NONE) for code in array("Q", bytes(data))]
        for index, value in compress(zip(indices, values), (value != NONE for value in values)):
            search.replace(index, value)
        return any(value != NONE for value in values)
