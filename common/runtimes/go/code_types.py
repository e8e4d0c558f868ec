"""Find the types of objects from the machine code of the functions that allocate them.

Code passes the address of a type to the functions of the runtime that allocate memory. This module
follows the results of these calls in the code of one function after another: into global variables,
into words of the stack, and into closures. It also follows the captured variables of closures, and
the receivers of methods.

The compiler makes a type for each closure: struct { F uintptr; X0 *main.Item }. F is the address of
the function's code.

The result is what the code proves about the static types of variables, so the type of an object
must still be checked against its size.

Sources: Go 1.18 to 1.27, src/cmd/compile: internal/ssagen/ssa.go (calls of the runtime),
internal/walk/closure.go, internal/ssa/stackalloc.go (a word of the stack has values of one type);
src/runtime: malloc.go, slice.go, map*.go."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.go import machine_code as code
from findleaks.runtimes.go.code_flow import ANYWHERE, UNKNOWN, Call, CodeTypes, Origin, State, Value, merge_states, split_code
from findleaks.runtimes.go.engine import NONE
from findleaks.runtimes.go.machine_code import ABSOLUTE, CONVENTIONS, NOWHERE, STACK, Convention, Step
from findleaks.runtimes.go.moduledata import Program
from findleaks.runtimes.go.offset_tables import OffsetTables
from findleaks.runtimes.go.path_ends import end_paths
from findleaks.runtimes.go.pclntab import Function, FunctionTable, find_function
from findleaks.runtimes.go.receivers import Receivers
from findleaks.runtimes.go.static_pointers import StaticPointers
from findleaks.runtimes.go.type_table import TypeNames
from findleaks.runtimes.go.types import CHAN, MAP, STRUCT, Type

_MAX_CODE = 1 << 16  # bytes of a function
_MOST_DEPTH = 2  # calls whose results are looked for in the called function
_BARRIER = "runtime.gcWriteBarrier"  # preserves all registers but one
_HARMLESS = ("runtime.morestack", "runtime.panic", "runtime.goPanic")  # these change no variable
_USES_MAP = re.compile(r"runtime\.map(assign|access|delete|clear|iterinit|IterStart)")
_CLOSURE = "struct { F uintptr"
_MOST_VISITS = 8  # of each part of a function, on average
_MOST_REGISTERS = 9  # that have arguments
_ARGUMENTS = 5  # registers that calls of the runtime use
_MOST_ARGUMENTS = 1 << 12  # bytes on the stack


_NOTHING = CodeTypes({}, {}, {}, NONE, {})


class CodeReader:
    """Reads the types that code proves. `most`: maximum number of bytes of code that are read.
    `closures`: the type values of closures, by address of their function, which callers may
    extend."""

    def __init__(
        self, memory: Memory, program: Program, names: TypeNames, tables: Iterable[FunctionTable], receivers: Receivers, most: int
    ) -> None:
        self._memory, self._program, self._names, self._tables = memory, program, names, list(tables)
        self._receivers, self.tables = receivers, OffsetTables(memory, program)
        self._convention = CONVENTIONS.get(memory.arch.name)
        self.closures: dict[int, int] = {}
        self._known: dict[tuple[int, tuple[tuple[int, int], ...]], CodeTypes] = {}
        self._left = self._most = most
        self.pointers = StaticPointers(memory, program)

    def find_function(self, pc: int) -> Optional[tuple[FunctionTable, Function]]:
        """See pclntab.find_function."""
        return find_function(self._tables, pc)

    def read(self, pc: int, arguments: tuple[tuple[int, int], ...] = (), depth: int = 0) -> CodeTypes:
        """Return the types that the code of the function at `pc` proves. `arguments`: see Call."""
        found = self.find_function(pc) if self._convention is not None else None
        if found is None or self._convention is None:
            return _NOTHING
        table, function = found
        key = function.entry, arguments
        if key not in self._known:
            self._known[key] = _NOTHING  # for recursive functions
            self._known[key] = self._read(self._convention, table, function, arguments, depth)
        return self._known[key]

    def read_called(self, entry: int, function: Optional[Function], depth: int) -> CodeTypes:
        """Return what the code of a called function proves; nothing for functions of the runtime,
        and for functions at a large depth."""
        is_read = function is not None and depth <= _MOST_DEPTH and not function.name.startswith(("runtime.", "internal/runtime/"))
        return self.read(entry, (), depth) if is_read else _NOTHING

    def forget(self) -> None:
        """Forget functions that were read, because more closures are known."""
        self._known.clear()
        self._left = self._most

    def _read(
        self, convention: Convention, table: FunctionTable, function: Function, arguments: tuple[tuple[int, int], ...], depth: int
    ) -> CodeTypes:
        start, end = table.extent(function.entry)
        if not 0 < end - start <= min(_MAX_CODE, self._left):
            return _NOTHING
        self._left -= end - start
        receiver = self._receivers.find(function.name)
        if receiver != NONE and not any(register == 0 for register, _ in arguments):
            arguments = (0, receiver), *arguments
        steps = end_paths(convention.decode(self._memory.read(start, end - start), start), self._tables)
        if any(step.kind == code.UNKNOWN_JUMP for step in steps):
            return _NOTHING
        found = _NOTHING
        for _ in range(2):  # the types of the frame's words are known only after the first pass
            walk = _Walk(self, convention, table, function, found.slots, depth)
            walk.run(steps, arguments)
            found = walk.result()
            if walk.missing.isdisjoint(found.slots):
                break
        return found

    def type_at(self, value: Value) -> Optional[Type]:
        """Return the type whose address is a constant; None if there is none."""
        return self._program.types.at(value.number) if value.number else None

    def object_of(self, one: Optional[Type], is_array: bool = False) -> int:
        """Return the type value of an object of this type."""
        if one is None:
            return NONE
        return self._names.value(one.address, is_array)

    def map_of(self, one: Optional[Type]) -> int:
        """Return the type value of a map of this type."""
        return self._names.map_value(one.address) if one is not None and one.kind == MAP else NONE

    def channel_of(self, one: Optional[Type]) -> int:
        """Return the type value of a channel of this type."""
        return self._names.channel_value(one) if one is not None and one.kind == CHAN else NONE

    def target_of(self, object_: int, offset: int) -> int:
        """Return the type value of the object to which a field of an object refers, or NONE."""
        return self._names.target(object_, offset) if object_ != NONE else NONE

    def is_closure(self, one: Optional[Type]) -> bool:
        """Return whether this is the type of a closure."""
        return one is not None and one.kind == STRUCT and one.name.startswith(_CLOSURE)

    def title(self, object_: int) -> str:
        """Return the name of a type value."""
        return self._names.title(object_)


class _Walk:
    """Follows the steps of one function. The code is divided into parts, each of which ends at a
    branch or before the target of one. A fact is known at the start of a part if it is known at the
    ends of all parts that precede it."""

    def __init__(
        self, reader: CodeReader, convention: Convention, table: FunctionTable, function: Function, slots: Mapping[int, int], depth: int
    ) -> None:
        self._reader, self._convention, self._table, self._function = reader, convention, table, function
        self._slots, self._depth, self._extent = slots, depth, table.extent(function.entry)
        self._state: State = {}
        self._stores: dict[int, set[int]] = {}
        self._closures: dict[int, set[int]] = {}
        self._results: set[int] = set()
        self._calls: dict[int, Call] = {}
        self._through: dict[Origin, set[int]] = {}  # stores where arguments point
        self._escaped: set[int] = set()
        self._is_complete = False
        self.missing: set[int] = set()
        """Words of the frame that were read, and of which nothing is known."""
        self._returns: dict[int, int] = {}  # addresses of calls, and those of the next instructions

    def run(self, steps: Sequence[Step], arguments: Iterable[tuple[int, int]]) -> None:
        """Follow the steps. `arguments`: see Call."""
        parts = split_code(steps)
        if self._function.entry not in parts:
            return
        self._returns = {one.address: after.address for one, after in zip(steps, steps[1:]) if one.kind == code.CALL}
        first: State = {(False, register): Value(origins=frozenset({(register, 0)})) for register in range(_MOST_REGISTERS)}
        first |= {(False, register): Value(object_, origins=frozenset({(register, 0)})) for register, object_ in arguments}
        context = self._reader.closures.get(self._function.entry, NONE)
        if context != NONE:
            first[False, self._convention.context] = Value(context)
        states: dict[int, State] = {self._function.entry: first}
        # The compiler places a part after those that lead to it, loops and rare cases excepted.
        # Therefore most parts are followed only once if the part with the lowest address is first.
        pending, visits = [self._function.entry], Counter[int]()
        for _ in range(_MOST_VISITS * len(parts)):
            if not pending:
                break
            start = heappop(pending)
            visits[start] += 1
            self._state = dict(states[start])
            steps_of, following = parts[start]
            for step in steps_of:
                self._follow(step)
            for target in following:
                if target == self._function.entry and any(step.kind == code.CALL for step in steps_of):
                    continue  # the stack was grown: all registers are those of the call
                known = states.get(target)
                merged = self._state if known is None else merge_states(known, self._state)
                if target in parts and merged != known:
                    states[target] = dict(merged)
                    if target not in pending:
                        heappush(pending, target)
        self._is_complete = not pending
        if not pending and max(visits.values()) == 1:
            return
        # Until here, too much was known: not all parts that lead to a part had been followed.
        self._stores, self._closures, self._results, self._calls = {}, {}, set(), {}
        self._through, self._escaped = {}, set()
        for start, state in states.items() if not pending else ():
            self._state = dict(state)
            for step in parts[start][0]:
                self._follow(step)

    def _get(self, register: int) -> Value:
        return self._state.get((False, register), UNKNOWN)

    def _set(self, register: int, value: Value) -> None:
        if value == UNKNOWN:
            self._state.pop((False, register), None)
        else:
            self._state[False, register] = value

    def _place(self, step: Step) -> Optional[int]:
        """Return the offset of a word of the stack from the frame's end."""
        depth = self._table.depth(step.address)
        return step.number - depth - self._convention.pushed if depth is not None and step.number % 8 == 0 else None

    def _follow(self, step: Step) -> None:
        kind = step.kind
        if kind == code.CONSTANT:
            self._set(step.register, Value(number=step.number))
        elif kind == code.COPY:
            self._set(step.register, self._get(step.base))
        elif kind == code.ADD:
            self._set(step.register, self._get(step.base).plus(step.number))
        elif kind == code.LOAD:
            self._set(step.register, self._load(self._resolve(step)))
        elif kind == code.STORE:
            self._store(self._resolve(step))
        elif kind == code.FORGET and step.register == NOWHERE:
            self._forget_registers()
        elif kind == code.FORGET:
            self._state.pop((False, step.register), None)
        elif kind == code.CALL:
            self._call(step)
        elif kind == code.END and step.number and self._get(0).number != 0:
            # If an argument is returned, it has the type of the other results.
            if self._get(0).object != NONE or not self._get(0).origins:
                self._results.add(self._get(0).object)
        elif kind == code.JUMP and not self._extent.start <= step.number < self._extent.end:
            self._results.add(NONE)  # those of another function
            self._escape(self._get(register) for register in range(_MOST_REGISTERS))

    def _forget_registers(self) -> None:
        self._state = {key: known for key, known in self._state.items() if key[0]}

    def _resolve(self, step: Step) -> Step:
        """Replace the register of a load or store by an address, if the register contains a
        constant."""
        known = self._get(step.base).number if step.base >= 0 else None
        return step._replace(base=ABSOLUTE, number=step.number + known) if known else step

    def _load(self, step: Step) -> Value:
        if step.base == ABSOLUTE:
            linked = self._reader.tables.read(step.number)
            pointed = linked if linked is not None else self._reader.pointers.read(step.number)
            return Value(number=pointed, place=step.number if linked is None else None)
        if step.base == STACK:
            place = self._place(step)
            known = self._state.get((True, place)) if place is not None else None
            if known is None and place is not None and place not in self._slots:
                self.missing.add(place)
            if known is not None:
                return known._replace(place=known.place if known.place is not None else place)
            return Value(self._slots.get(place, NONE), place=place) if place is not None else Value()
        return Value(self._reader.target_of(self._get(step.base).object, step.number)) if step.base >= 0 else Value()

    def _store(self, step: Step) -> None:
        value = self._get(step.register) if step.register >= 0 else Value()
        if step.base == STACK:
            place = self._place(step)
            if place is None:
                return
            self._state.pop((True, place), None)
            if step.register != code.NUMBER:
                if value != UNKNOWN:
                    self._state[True, place] = value
                if value.number != 0:
                    self._stores.setdefault(place, set()).add(value.object)
            return
        self._escape([value])
        if step.base == ABSOLUTE and self._reader.pointers.is_variable(step.number):
            self._prove(step.number, value.object)
        elif step.base >= 0:
            if value.number != 0 and step.register != code.NUMBER:
                for register, offset in self._get(step.base).origins:
                    self._store_through((register, offset if offset == ANYWHERE else offset + step.number), value.object)
            if step.number == 0 and value.number is not None:
                self._note_closure(self._get(step.base).object, value.number)

    def _store_through(self, origin: Origin, object_: int) -> None:
        """Note that an object, or something unknown (NONE), is stored where an argument points."""
        if origin[1] == ANYWHERE:
            self._escaped.add(origin[0])
        else:
            self._through.setdefault(origin, set()).add(object_)

    def _escape(self, values: Iterable[Value]) -> None:
        self._escaped.update(register for value in values for register, _ in value.origins)

    def _prove(self, place: Optional[int], object_: int) -> None:
        if place is not None and object_ != NONE:
            self._stores.setdefault(place, set()).add(object_)

    def _note_closure(self, object_: int, function: int) -> None:
        """Note the type of a closure, when the address of its function is stored in it."""
        found = self._reader.find_function(function) if object_ != NONE else None
        if found is not None and found[1].entry == function and self._reader.title(object_).startswith(_CLOSURE):
            self._closures.setdefault(function, set()).add(object_)

    def _call(self, step: Step) -> None:
        found = self._reader.find_function(step.number) if step.number else None
        name = found[1].name if found is not None and found[1].entry == step.number else ""
        if name.startswith(_BARRIER):
            self._state.pop((False, self._convention.barrier), None)
            return
        object_ = self._result_of(name, step.number)
        if not (name.startswith("runtime.") and (object_ != NONE or name.startswith(_HARMLESS))):
            self._follow_arguments(step.number, found[1] if found is not None and name else None)
        known = [(register, self._get(register).object) for register in range(_MOST_REGISTERS)]
        known = [(register, object_) for register, object_ in known if object_ != NONE]
        if known and step.number and step.address in self._returns:
            self._calls[self._returns[step.address]] = Call(step.number, tuple(known))
        self._forget_registers()
        if found is not None and name:
            self._forget_arguments(step, found[1])
        if object_ != NONE:
            self._set(0, Value(object_))

    def _follow_arguments(self, function: int, called: Optional[Function]) -> None:
        """Note what a called function stores where its arguments point: addresses of variables, and
        arguments of this function. `called`: None if it is unknown."""
        words = _MOST_REGISTERS if called is None or called.arguments < 0 else -(-called.arguments // 8)
        values = [self._get(register) for register in range(min(words, _MOST_REGISTERS))]
        if not any(value.origins or (value.number and self._reader.pointers.is_variable(value.number)) for value in values):
            return
        inner = self._reader.read_called(function, called, self._depth + 1)
        for register, value in enumerate(values):
            if not inner.is_known or register in inner.escaped:
                self._escape([value])
                if value.number and self._reader.pointers.is_variable(value.number):
                    self._stores.setdefault(value.number, set()).add(NONE)
                continue
            for offset, object_ in ((at, object_) for (one, at), object_ in inner.stores.items() if one == register):
                if value.number and self._reader.pointers.is_variable(value.number + offset):
                    self._stores.setdefault(value.number + offset, set()).add(object_)
                for origin, at in value.origins:
                    self._store_through((origin, at if at == ANYWHERE else at + offset), object_)

    def _forget_arguments(self, step: Step, called: Function) -> None:
        """Forget the words of the stack that a called function may change: those of its arguments
        and results. Loads from them may have the result of any call."""
        # On AArch64, they follow the return address.
        first = self._place(step._replace(number=0 if self._convention.pushed else 8))
        size = min(max(called.arguments, 0), _MOST_ARGUMENTS)
        for place in range(first, first + size, 8) if first is not None else ():
            self._state.pop((True, place), None)
            self._stores.setdefault(place, set()).add(NONE)

    def _result_of(self, name: str, function: int) -> int:
        """Return the type value of the object to which the result of a call refers."""
        reader = self._reader
        arguments = [self._get(register) for register in range(_ARGUMENTS)]
        first, second, *_, fifth = map(reader.type_at, arguments)
        if not name:
            return NONE
        if not name.startswith(("runtime.", "internal/runtime/")):
            return reader.read(function, (), self._depth + 1).result if function and self._depth < _MOST_DEPTH else NONE
        if _USES_MAP.match(name):
            if arguments[1].place is not None:
                self._prove(arguments[1].place, reader.map_of(first))
        elif name == "runtime.newobject":
            return reader.object_of(first)
        elif name.startswith("runtime.mallocgc"):
            return reader.object_of(second) if second is not None and arguments[0].number == second.size else NONE
        elif name in ("runtime.makeslice", "runtime.makeslice64"):
            return reader.object_of(first, True)
        elif name.startswith("runtime.growslice"):
            return reader.object_of(first if first is not None else fifth, True)
        elif name in ("runtime.makechan", "runtime.makechan64"):
            return reader.channel_of(first)
        elif name in ("runtime.makemap", "runtime.makemap64"):
            return reader.map_of(first)
        return NONE

    def result(self) -> CodeTypes:
        """Return what the steps have proved. Places with more than one type are left out."""
        stores = {place: next(iter(types)) for place, types in self._stores.items() if len(types) == 1 and NONE not in types}
        closures = {place: next(iter(types)) for place, types in self._closures.items() if len(types) == 1}
        variables = {place: stores.get(place, NONE) for place in self._stores if self._reader.pointers.is_variable(place)}
        slots = {place: value for place, value in stores.items() if place not in variables}
        result = next(iter(self._results)) if len(self._results) == 1 else NONE
        through = {origin: next(iter(types)) if len(types) == 1 else NONE for origin, types in self._through.items()}
        return CodeTypes(slots, variables, closures, result, self._calls, through, frozenset(self._escaped), self._is_complete)
