"""Read the objects of a state of Lua: types, names, and the words that are not references.

Sources: lgc.c, lobject.h, lstate.h, lstring.c, ltable.c of Lua 5.1.5 to 5.4.4, 64-bit."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence

from findleaks.allocators.bulk import read_records
from findleaks.allocators.directory import Directory
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.engine.dominators import NO_ROOT
from findleaks.engine.terms import NO_BLOCK, Exclusion, Totals
from findleaks.runtimes.lua.class_names import ClassNames
from findleaks.runtimes.lua.layout import (
    C_FUNCTION,
    FUNCTION,
    MAIN_CHUNK,
    NUMBER,
    STRING,
    TABLE,
    TEXT,
    THREAD,
    USERDATA,
    Layout,
    State,
    describe_place,
    select_fixed,
)
from findleaks.runtimes.lua.locals import LAYOUTS, list_calls, list_finished_calls, list_locals, runs_lua
from findleaks.runtimes.lua.unused import EXCLUSIONS, PROTOTYPE_PATTERNS, THREAD_PATTERNS, VALUE, Unused, array_length
from findleaks.runtimes.lua.weak import WeakModes, find_weak_words
from findleaks.target.base import Range, Target

STRINGS, TABLES, FUNCTIONS, C_FUNCTIONS, USERDATAS, THREADS, PROTOTYPES, UPVALUES, PARTS, NAMED = range(10)
"""Numbers of types. From NAMED on, functions of one place and objects of one metatable have their
own numbers."""
NAMES = ("string", "table", "function", "C function", "userdata", "thread", "prototype", "upvalue", "elements of a table")
FUNCTION_AT = "function at "
MOST_OBJECTS = 1 << 28
MOST_NODES = 1 << 24  # nodes, and elements of the array, of one table
MOST_TYPES = 1 << 16
MOST_UPVALUES = 255  # of one function
LONGEST = 1 << 10  # bytes of a name
_MANY_GLOBALS = 1000  # most global variables with tables that have names of their own
_CALL_51, _GLOBALS = 40, 120  # offsets in lua_State of 5.1: CallInfo, the table of global variables
_LEAF = 1


class Objects:
    """The objects of all states in a process.

    - `found` has the number of the type of each block's object, or NO_ROOT ("I").
    - `patterns` has an index into EXCLUSIONS for each block, `names` the names of the types.
    - `totals` has number and bytes of the objects of each type.
    - `threads` are the threads of Lua, each with its state.
    - `dead` are heads of lists of objects, and unused parts of threads' stacks.
    - `roots` are blocks that the collector does not free before it closes the state.
    - `exclusions` are the words that are not references, by pattern."""

    _exclusions: Sequence[Exclusion] = EXCLUSIONS

    def __init__(self, target: Target, engine: Engine, directory: Directory, states: Sequence[State]) -> None:
        self._target, self._engine, self._blocks = target, engine, directory.blocks
        self._heaps = directory.ranges()
        self._memory = Memory(target)
        # Unused words are searched for on little-endian machines only. On others, the place of the
        # type in a value depends on the version.
        self._is_little = target.arch.byteorder == "little"
        self.found = array("I", [NO_ROOT]) * len(self._blocks)
        self.patterns = bytearray(len(self._blocks))
        self.names = list(NAMES)
        self.totals = [[0, 0] for _ in NAMES]
        self.tables: dict[int, tuple[int, State]] = {}  # by block of the elements: the table
        self.threads: list[tuple[State, int]] = []
        self.dead: list[Range] = []
        self._unused = Unused(self._exclusions, self._memory)
        self.roots: list[int] = []
        self.problems: list[tuple[int, str]] = []
        self._stacks = set[int]()  # blocks of stacks that were read
        self._numbers: dict[str, int] = {}
        self._functions: dict[int, int] = {}  # types of functions, by their prototype
        self.classes = ClassNames(self)
        self._weak_modes = WeakModes(self)
        for state in states:
            self._read(state)
        self.dead += self._unused.ranges
        if self._unused.is_full:
            why = "many tables and stacks of Lua have unused elements: stale words in some of these count as references"
            self.problems.append((self._unused.ranges[-1].start, why))

    @property
    def exclusions(self) -> Sequence[Exclusion]:
        return self._unused.exclusions

    def total(self, number: int) -> Totals:
        """Return number and bytes of the objects of a type."""
        return Totals(*self.totals[number])

    def _read(self, state: State) -> None:
        """Read the objects of a state."""
        layout = state.layout
        self.roots.append(state.block)
        table, _, size = self._memory.members(state.address + layout.strings, "PII") or (0, 0, 0)
        index = self._blocks.find(table) if table else -1
        heads = [self._memory.word(state.address + offset) or 0 for offset in layout.lists]
        if index >= 0:
            self.patterns[index] = _LEAF
            if layout.version in ("5.1", "5.2") and size <= MOST_NODES:
                heads += [head for head in self._memory.words(table, size) or () if head]
        self.dead += [Range(state.address + offset, state.address + offset + 8) for offset in layout.lists]
        if layout.cache:
            self.dead.append(Range(*(state.address + bound for bound in layout.cache)))
        nodes = self._follow([head for head in heads if head])
        records, missing = read_records(self._target, self._engine, nodes, 72)
        words = self._target.arch.words(records)
        indices, sizes = self._blocks.find_all(nodes)
        self._add_thread(state, state.thread)
        if layout.has_fixed_list:
            last = heads[len(layout.lists) - 1]
            self.roots += self._follow([last] if last else [])
        elif self._is_little:
            self.roots += select_fixed(nodes, words[1::9])
        strings, found, patterns = self.totals[STRINGS], self.found, self.patterns
        for number, (address, index, size, head) in enumerate(zip(nodes, indices, sizes, words[1::9])):
            if number in missing or index == NO_BLOCK or found[index] != NO_ROOT:
                continue
            if self._is_little and head & 15 == STRING:  # most objects are strings
                found[index], patterns[index] = STRINGS, _LEAF
                strings[0] += 1
                strings[1] += size
            else:
                self._add(state, address, index, size, words[9 * number : 9 * number + 9])

    def _follow(self, heads: Sequence[int]) -> array[int]:
        """Return the objects in lists, ascending. The first word of an object is the next one."""
        pieces = [piece for start, end in self._heaps for piece in self._target.pieces(start, end)]
        lists = self._engine.follow_all(pieces, heads, 0, MOST_OBJECTS)
        for number, why in lists.problems:
            self.problems.append((heads[number], f"Lua's list of objects is damaged, {why}: further objects are unknown"))
        return array("Q", sorted(set(lists.nodes)))

    def _add(self, state: State, address: int, index: int, size: int, words: Sequence[int]) -> None:
        """Add an object of `size` bytes, given its first 9 words."""
        layout = state.layout
        head = words[1].to_bytes(8, self._target.arch.byteorder)
        kind, pattern, is_c, whole = head[0] & 15, 4, False, size
        if kind == STRING:
            number, pattern = STRINGS, _LEAF
        elif kind == TABLE:
            number, pattern = self._object_number(state, words[layout.metatable // 8], TABLES), 2
            size += self._add_parts(state, address, head, words)
        elif kind == FUNCTION:
            is_c = bool(head[0] & C_FUNCTION or (layout.version == "5.1" and head[2]))
            number, pattern = (C_FUNCTIONS if is_c else self._function_number(state, words[layout.function // 8])), 3
            if layout.version == "5.3" and not is_c:
                self._add_upvalues(address, head[2])
        elif kind == USERDATA:
            number = self._object_number(state, words[3 if layout.version == "5.4" else 2], USERDATAS)
        elif kind == THREAD:
            number, pattern = THREADS, THREAD_PATTERNS[layout.version]
            self._add_thread(state, address)
            # The program may refer to the middle of this block, so the block itself is a root.
            self.roots.append(self._blocks.address(index))
        elif kind in (layout.proto, layout.upvalue):
            is_prototype = kind == layout.proto
            number, pattern = (PROTOTYPES, PROTOTYPE_PATTERNS[layout.version]) if is_prototype else (UPVALUES, 4)
        else:
            self.problems.append((address, f"Lua's object at {address:#x} has the unknown type {kind}"))
            return
        if self._is_little and pattern != _LEAF:
            pattern = self._unused.object_pattern(layout, pattern, address, whole, words, is_c)
        self.found[index], self.patterns[index] = number, pattern
        self.totals[number][0] += 1
        self.totals[number][1] += size

    def _add_upvalues(self, function: int, count: int) -> None:
        """Add the upvalues of a function of Lua 5.3. These upvalues are in no list of objects."""
        for cell in self._memory.words(function + 32, count) or ():
            found = self._blocks.lookup(cell)
            if found is not None and found[1] == cell and self.found[found[0]] == NO_ROOT:
                self.found[found[0]] = UPVALUES
                self.patterns[found[0]] = self._unused.pattern(0, cell, found[2], [(4, found[2] // 8)])
                self.totals[UPVALUES][0] += 1
                self.totals[UPVALUES][1] += found[2]

    def _add_parts(self, state: State, address: int, head: bytes, words: Sequence[int]) -> int:
        """Set the type of the blocks with a table's elements. Returns their bytes."""
        added, layout = 0, state.layout
        nodes = min(1 << head[3] % 64, MOST_NODES)
        mode = self._weak_modes.find(state, words[layout.metatable // 8])
        for place, used in ((layout.array, VALUE * array_length(layout, words)), (layout.node, layout.node_size * nodes)):
            part = words[place // 8]
            found = self._blocks.lookup(part) if part else None
            if found is not None and found[1] == part and self.found[found[0]] == NO_ROOT:
                self.found[found[0]] = PARTS
                self.tables[found[0]] = address, state
                added += found[2]
                if self._is_little:
                    step = 2 if place == layout.array else layout.node_size // 8
                    plain = 0
                    if mode:
                        count = min(used, found[2]) // (8 * step)
                        plain = self._unused.weak_pattern(find_weak_words(self._memory, part, step, count, mode), part, step, count)
                    self.patterns[found[0]] = self._unused.part_pattern(layout, part, found[2], used, step, plain)
        return added

    def _add_thread(self, state: State, thread: int) -> None:
        """Exclude the words of a thread's stack that are not references: the part above its top,
        and values without references (see unused.py). While a function of Lua runs, the top is at
        least that of the function, because only C functions maintain the top of the thread."""
        layout = state.layout
        self.threads.append((state, thread))
        words = self._memory.words(thread, 9) or (0,) * 9
        stack, call = words[layout.stack // 8], words[layout.call_info // 8]
        top = words[2]
        if layout.version != "5.1" and call:
            self.dead += list_finished_calls(self._memory, self._blocks, call)
        if not self._is_little or runs_lua(self._memory, layout.version, call):
            top = max(top, (self._memory.word(call + layout.top) or 0) if call else 0)
        found = self._blocks.lookup(stack) if stack else None
        if found is not None and found[1] <= top < found[1] + found[2] and found[0] not in self._stacks:
            self._stacks.add(found[0])
            if not self._is_little:
                self.dead.append(Range(top, found[1] + (found[2] & -8)))
            elif stack == found[1]:
                self.patterns[found[0]] = self._unused.stack_pattern(layout, stack, found[2], top)
            else:
                # A program's own allocator may place a stack inside a larger block.
                self._unused.add_stack(stack, top, found[1] + (found[2] & -8))

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            if len(self._numbers) >= MOST_TYPES:
                name = "(of further types)"
            if name not in self._numbers:
                self._numbers[name] = len(self.names)
                self.names.append(name)
                self.totals.append([0, 0])
        return self._numbers[name]

    def _function_number(self, state: State, proto: int) -> int:
        number = self._functions.get(proto)
        if number is None:
            place = self.place(state, proto)
            number = self._functions[proto] = self._number(FUNCTION_AT + place) if place else FUNCTIONS
        return number

    def place(self, state: State, proto: int) -> str:
        """Return file and line where a function is defined ("cache.lua:12"), or ""."""
        source = self._memory.word(proto + state.layout.source) if proto else None
        line = self._memory.int32(proto + state.layout.line) if proto else None
        return describe_place(self.text(state, source) if source else "", line)

    def _object_number(self, state: State, metatable: int, plain: int) -> int:
        """Return the number of the type of a table or userdata with a metatable."""
        if not metatable:
            return plain
        name = self.classes.find(state, metatable)
        return self._number(name) if name else plain

    def is_script(self, state: State, function: int) -> bool:
        """Whether the function at an address is written in Lua."""
        head = self._memory.read(function + 8, 3)
        return bool(head) and head[0] & (15 | C_FUNCTION) == FUNCTION and not (state.layout.version == "5.1" and head[2])

    def prototype(self, state: State, function: int) -> int:
        """Return the address of the prototype of a function of Lua, or 0."""
        return self._memory.word(function + state.layout.function) or 0

    def file_of(self, state: State, function: int) -> str:
        """Return the file in which a function of Lua is defined, or ""."""
        place = self.place(state, self.prototype(state, function))
        return place.split(MAIN_CHUNK)[0] if place.endswith(MAIN_CHUNK) else place.rpartition(":")[0]

    def modules(self, state: State) -> Iterator[tuple[str, int]]:
        """Yield name and table of each loaded module."""
        for key, kind, loaded, _ in self.entries(state, self._registry(state)[0]):
            if kind == TABLE and key == "_LOADED":
                found = self.entries(state, loaded)
                yield from ((name, value) for name, kind, value, _ in found if kind == TABLE and isinstance(name, str))

    def globals(self, state: State) -> Iterator[tuple[str, int, int]]:
        """Yield name, value and address of the reference of each global variable that has an
        object, and of each field of loaded modules. `_G` stands for very many tables."""
        registry, table, whole = self._registry(state)
        for key, kind, value, place in self.entries(state, registry):
            if kind == TABLE and key == 2 and not table:
                table, whole = value, place
        found = [one for one in self.entries(state, table) if one[1] >= TABLE and isinstance(one[0], str) and one[2] != table]
        many = sum(one[1] == TABLE for one in found) > _MANY_GLOBALS
        if many:
            yield "_G", table, whole
        yield from ((str(key), value, place) for key, kind, value, place in found if kind != TABLE or not many)
        for module, one in ((name, one) for name, one in self.modules(state) if one != table):
            for key, inner, value, place in self.entries(state, one):
                if inner >= TABLE and isinstance(key, str):
                    yield f"{module}.{key}", value, place

    def _registry(self, state: State) -> tuple[int, int, int]:
        """Return the registry; and the table of global variables and the address of the reference
        to it, or 0 if it is element 2 of the registry."""
        place = state.thread + _GLOBALS if state.layout.version == "5.1" else 0
        return self._memory.word(state.address + state.layout.registry) or 0, self._memory.word(place) or 0 if place else 0, place

    def registry(self, state: State) -> Iterator[tuple[str, int, int]]:
        """Yield the name of the registry, its value, and the address of the word that refers to it.
        C code stores references in the registry (luaL_ref)."""
        place = state.address + state.layout.registry
        yield "registry", self.reference(place), place

    def upvalues(self, state: State, function: int) -> Iterator[tuple[str, int]]:
        """Yield the name, and the address of the value, of each local variable of outer functions
        that a function of Lua uses."""
        layout, memory = state.layout, self._memory
        proto = memory.word(function + layout.function) or 0
        count, names = memory.int32(proto + layout.upvalue_count) or 0, memory.word(proto + layout.upvalues) or 0
        for number in range(min(count, MOST_UPVALUES)):
            cell = memory.word(function + layout.function + 8 + 8 * number) or 0
            place = memory.word(cell + (0 if layout.version == "5.3" else 16)) if cell else 0
            string = memory.word(names + layout.name_step * number) if names else 0
            if place and string:
                yield self.text(state, string), place

    def local_variables(self, state: State, thread: int) -> Iterator[tuple[int, str, int]]:
        """Yield the function, and the name and the address of the value, of each local variable of
        the Lua functions that run in a thread, innermost first."""
        layout = LAYOUTS[state.layout.version]
        at = self._memory.word(thread + (_CALL_51 if layout.step else state.layout.call_info)) or 0
        for call in list_calls(self._memory, layout, at):
            if self.is_script(state, call.function):
                proto = self._memory.word(call.function + state.layout.function) or 0
                for name, place in list_locals(self._memory, layout, call, proto):
                    yield call.function, self.text(state, name), place

    def place_of(self, function: int) -> str:
        """Return file and line where a function of Lua is defined, or ""."""
        index = self._blocks.find(function)
        name = self.names[self.found[index]] if index >= 0 and self.found[index] < len(self.names) else ""
        return name[len(FUNCTION_AT) :] if name.startswith(FUNCTION_AT) else ""

    def type_of(self, address: int) -> int:
        """Return the type of the object at an address; 0 if there is none."""
        index = self._blocks.find(address)
        known = index >= 0 and self.found[index] < len(self.names)
        data = self._memory.read(address + 8, 1) if known else b""
        return data[0] & 15 if data else 0

    def reference(self, place: int) -> int:
        """Return the address of the object to which the value at `place` refers. Return 0 if the
        value is not an object: its first word can be stale."""
        words = self._memory.words(place, 2) or (0, 0)
        return words[0] if words[1] & 15 >= STRING or self._target.arch.byteorder == "big" else 0

    def entries(self, state: State, table: int) -> Iterator[tuple[object, int, int, int]]:
        """Yield key (a string or a number, else None), type and first word of the value, and the
        address of the value, of each element of a table."""
        layout, order = state.layout, self._target.arch.byteorder
        words = self._memory.words(table, 8) if table else None
        if words is None:
            return
        count = self._memory.int32(table + layout.length) or 0
        values = self._memory.words(words[layout.array // 8], 2 * count) if 0 < count < MOST_NODES and words[layout.array // 8] else ()
        for number in range(len(values or ()) // 2):
            kind = values[2 * number + 1] & 15  # type: ignore[index]
            if kind:
                yield number + 1, kind, values[2 * number], words[layout.array // 8] + 16 * number  # type: ignore[index]
        size, start = layout.node_size // 8, words[layout.node // 8]
        read = self._nodes(layout, words)
        for number in range(len(read) // size):
            node = read[size * number : size * number + size]
            kind = node[1].to_bytes(8, order)[0] & 15
            if kind:
                yield self._key(state, node), kind, node[0], start + layout.node_size * number

    def _nodes(self, layout: Layout, table: Sequence[int]) -> Sequence[int]:
        """Return the words of a table's nodes, given those of the table."""
        nodes, start = 1 << table[1].to_bytes(8, self._target.arch.byteorder)[3] % 64, table[layout.node // 8]
        return (self._memory.words(start, layout.node_size // 8 * nodes) if start and nodes <= MOST_NODES else None) or ()

    def _key(self, state: State, node: Sequence[int]) -> object:
        """Return the key of a node: a string, a number, or None."""
        head = node[1 if len(node) == 3 else 3].to_bytes(8, self._target.arch.byteorder)
        kind = head[1 if len(node) == 3 else 0] & 15
        return self.text(state, node[2]) if kind == STRING else node[2] if kind == NUMBER else None

    def key_at(self, state: State, table: int, address: int) -> object:
        """Return the key of the element of a table whose value is at an address: a string, a
        number, or None."""
        layout = state.layout
        words = self._memory.words(table, 8) or (0,) * 8
        number, rest = divmod(address - words[layout.array // 8], 16)
        if not rest and 0 <= number < (self._memory.int32(table + layout.length) or 0):
            return number + 1
        node = self._memory.words(address, layout.node_size // 8)
        aligned = (address - words[layout.node // 8]) % layout.node_size == 0
        return self._key(state, node) if node is not None and aligned else None

    def text(self, state: State, string: int) -> str:
        """Return the text of a string."""
        words = self._memory.words(string, 3)
        if words is None:
            return ""
        head = words[1].to_bytes(8, self._target.arch.byteorder)
        short = state.layout.version in ("5.3", "5.4") and not head[0] & 0x10
        return os.fsdecode(self._memory.read(string + TEXT, min(head[3] if short else words[2], LONGEST)))

    def length(self, state: State, table: int) -> int:
        """Return the number of elements of a table."""
        layout = state.layout
        words, count = self._memory.words(table, 8) or (0,) * 8, self._memory.int32(table + layout.length) or 0
        values = (self._memory.words(words[layout.array // 8], 2 * count) if 0 < count <= MOST_NODES else None) or ()
        shift = 0 if self._target.arch.byteorder == "little" else 56
        kinds = (*values[1::2], *self._nodes(layout, words)[1 :: layout.node_size // 8])
        return sum(1 for word in kinds if word >> shift & 15)
