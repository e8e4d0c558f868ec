"""Read the objects of a state of LuaJIT.

Source: src/lj_obj.h, lj_gc.c, lj_str.c, lj_func.c, lj_tab.c, lj_debug.c and lj_dispatch.h of LuaJIT
2.1 (2020-09 to 2026), 64-bit with LJ_GC64. The main thread begins the first block that the
allocator of the state hands out. The global_State follows it in this block.

Objects that LuaJIT has for itself (buffers, the tables of FFI types, traces that are recorded) are
no objects of Lua. Only LuaJIT frees them, so they are roots."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from itertools import chain

from findleaks.allocators.bulk import read_records
from findleaks.allocators.directory import Directory
from findleaks.allocators.luajit.instance import LuaJitAllocator
from findleaks.allocators.luajit.layout import MAIN
from findleaks.allocators.luajit.references import decode, is_light
from findleaks.engine.contract import Engine
from findleaks.engine.dominators import NO_ROOT
from findleaks.engine.terms import EVERY_WORD, NO_BLOCK, Exclusion
from findleaks.engine.terms import State as BlockState
from findleaks.runtimes.lua import objects as lua
from findleaks.runtimes.lua.jit_locals import list_calls, list_locals
from findleaks.runtimes.lua.jit_types import FfiTypes
from findleaks.runtimes.lua.layout import FIXED, FUNCTION, NUMBER, STRING, TABLE, TEXT, THREAD, USERDATA, Layout, State, describe_place
from findleaks.runtimes.lua.weak import WeakWords, is_object
from findleaks.target.base import Range, Target
from findleaks.target.interruptible import interruptible

_STRING, _UPVALUE, _THREAD, _PROTOTYPE, _FUNCTION, _TRACE, _CDATA, _TABLE, _USERDATA = range(4, 13)
"""Types of objects: the byte at offset 9."""
_TYPES = {_STRING: STRING, _THREAD: THREAD, _FUNCTION: FUNCTION, _TABLE: TABLE, _USERDATA: USERDATA, _CDATA: USERDATA}
_TYPE = 9
_NIL = (1 << 64) - 1
_TAG = 47  # bits below the type of a value
_PRIMITIVE = 0x1FFFC  # least type of values that are neither numbers nor objects

_WORDS = 14  # of an object that are read
_METATABLE = 32  # in tables and userdata
_BASE, _TOP, _STACK, _OPEN, _ENVIRONMENT = 32, 40, 56, 64, 72
"""In threads. _OPEN: the list of open upvalues; _ENVIRONMENT: the table of global variables."""
_TABLE_BYTES, _UPVALUE_BYTES, _USERDATA_BYTES, _USERDATA_LENGTH, _COLOCATED = 64, 48, 48, 24, 11
_PC, _UPVALUES, _FFID, _UPVALUE_COUNT = 32, 40, 10, 11  # in functions
PROTOTYPE = 104  # bytes of GCproto; functions refer to the code behind it
_CHUNK, _LINE, _UPVALUE_NAMES, _VARIABLES = 64, 72, 88, 96  # in prototypes
_NO_LINE = 0x7FFFFF00  # this number and higher ones are not lines
_VALUE = 32  # in upvalues: the address of the value
_ELEMENTS, _NODES, _LENGTH, _MASK, _NODE = 16, 40, 48, 52, 24  # in tables; bytes of a node
_SLICE = (1 << 13) * _NODE  # bytes of nodes that are read at a time
_MOST_DEAD_KEYS = 1 << 17
_ROOT, _LISTS_END, _STRINGS, _STRING_MASK, _VM_STATE, _REGISTRY, _CURRENT = 40, 80, 152, 160, 184, 272, 376
"""In global_State. [_ROOT, _LISTS_END): heads of lists of all objects, and of the collector's."""
_IN_C = -2 & 0xFFFFFFFF  # value of vmstate: a C function is running

LAYOUT = Layout(
    *("2.1", 0, 96, 16, 0, 0, _STACK, _STRINGS, 16, 0, _REGISTRY, MAIN, (_ROOT,), (), 432),
    *(_ELEMENTS, _NODES, _METATABLE, _LENGTH, _NODE, _LINE, _CHUNK, _UPVALUE_NAMES, 0, 0, 0, _PROTOTYPE, _UPVALUE, _PC),
)
_LEAF, _PLAIN, _LISTED, _EMPTY, _CODE, _STATE = range(1, 7)
EXCLUSIONS = (
    Exclusion(0),
    Exclusion(EVERY_WORD),
    Exclusion(3),  # the next object; the type, and stale bytes behind it
    Exclusion(3 | 1 << 3),  # and gclist
    # The following also refer to the inside of the global_State: nodes of a table without nodes,
    Exclusion(3 | 1 << 3 | 1 << 5 | 1 << 7),
    Exclusion(3 | 1 << 3 | 1 << 4),  # the code of a C function,
    Exclusion(3 | 1 << 2 | 1 << 3),  # glref of a thread
)


def _kind_of(value: int) -> int:
    """Return the type of the object that a value refers to, or NUMBER."""
    return _TYPES.get(~(value >> _TAG) & 15, 0) if decode(value) != value else NUMBER


class JitObjects(lua.Objects):
    """The objects of all states of LuaJIT in a process; see lua.Objects. `interior`: (bytes of a
    block, offset) pairs at which objects, or what refers to them, begin inside blocks."""

    _exclusions = EXCLUSIONS

    def __init__(self, target: Target, engine: Engine, directory: Directory, states: Sequence[State]) -> None:
        self.interior: set[tuple[int, int]] = set()
        self._dead_keys = 0
        self._ffi: dict[int, FfiTypes] = {}  # by state
        self._cdata_names: dict[int, dict[int, str]] = {}  # by state and number of the type
        super().__init__(target, engine, directory, states)
        self._add_own(directory)

    def _read(self, state: State) -> None:
        memory = self._memory
        self.roots.append(state.block)
        self.dead.append(Range(state.address + _ROOT, state.address + _LISTS_END))
        strings, mask = memory.word(state.address + _STRINGS) or 0, memory.int32(state.address + _STRING_MASK) or 0
        index = self._blocks.find(strings) if strings else -1
        heads = [memory.word(state.address + _ROOT) or 0]
        if index >= 0 and mask < lua.MOST_NODES:
            self._set_part(index, _LEAF)
            heads += [head & ~1 for head in memory.words(strings, mask + 1) or ()]
        nodes = self._follow([head for head in heads if head])
        self._add_all(state, nodes)
        threads = [node for node in nodes if self.type_of(node) == THREAD]
        heads = [memory.word(thread + _OPEN) or 0 for thread in threads]
        self._add_all(state, self._follow([head for head in heads if head]))

    def _set_part(self, index: int, pattern: int) -> None:
        self.found[index], self.patterns[index] = lua.PARTS, pattern

    def _add_all(self, state: State, nodes: Sequence[int]) -> None:
        records, missing = read_records(self._target, self._engine, nodes, 8 * _WORDS)
        words = self._target.arch.words(records)
        indices, sizes = self._blocks.find_all(nodes)
        for number, (address, index, size) in enumerate(zip(nodes, indices, sizes)):
            if number not in missing and index != NO_BLOCK and self.found[index] == NO_ROOT:
                self._add(state, address, index, size, words[_WORDS * number : _WORDS * (number + 1)])

    def _add(self, state: State, address: int, index: int, size: int, words: Sequence[int]) -> None:
        head = words[1].to_bytes(8, "little")
        kind, pattern, start, used = head[1], _LISTED, self._blocks.address(index), size
        added = 0
        if kind == _STRING:
            number, pattern = lua.STRINGS, _LEAF
            if head[0] & FIXED:
                self.roots.append(start)
        elif kind == _TABLE:
            number = self._object_number(state, words[_METATABLE // 8], lua.TABLES)
            added = self._add_parts(state, address, head, words)
            pattern = self._add_colocated(state, address, size, words, _LISTED if words[_LENGTH // 8] >> 32 else _EMPTY)
            self.tables[index] = address, state  # short arrays are in the block of the table
            used = _TABLE_BYTES + 8 * (head[_COLOCATED - 8] if head[_COLOCATED - 8] < 0x80 else 0)
        elif kind == _FUNCTION:
            is_c = head[_FFID - 8]
            used = _UPVALUES + 8 * (head[_UPVALUE_COUNT - 8] + bool(is_c))
            number, pattern = (lua.C_FUNCTIONS, _CODE) if is_c else (self._function_number(state, words[_PC // 8] - PROTOTYPE), _LISTED)
        elif kind == _USERDATA:
            used = _USERDATA_BYTES + (words[_USERDATA_LENGTH // 8] & 0xFFFFFFFF)
            number, pattern = self._object_number(state, words[_METATABLE // 8], lua.USERDATAS), _PLAIN
        elif kind == _CDATA:
            number, pattern = self._number(self._cdata_name(state, head[2] | head[3] << 8)), _PLAIN
            self.interior.add((size, address - start))
        elif kind == _THREAD:
            number, pattern = lua.THREADS, _STATE
            self._add_stack(state, address, words)
        elif kind == _PROTOTYPE:
            number = lua.PROTOTYPES
            self.interior.add((size, PROTOTYPE))
        elif kind == _UPVALUE:
            number, pattern, used = lua.UPVALUES, _PLAIN, _UPVALUE_BYTES
        elif kind == _TRACE:
            number = self._number("trace")
        else:
            self.problems.append((address, f"LuaJIT's object at {address:#x} has the unknown type {kind}"))
            return
        self._cut(start, size, used)
        self.found[index], self.patterns[index] = number, pattern
        self.totals[number][0] += 1
        self.totals[number][1] += size + added

    def _cdata_name(self, state: State, number: int) -> str:
        """Return the name of objects of FFI whose type has this number."""
        if number not in self._cdata_names.setdefault(state.address, {}):
            if state.address not in self._ffi:
                self._ffi[state.address] = FfiTypes(self._memory, state.address, LAYOUT.size, lambda string: self.text(state, string))
            self._cdata_names[state.address][number] = " ".join(filter(None, ("cdata", self._ffi[state.address].name(number))))
        return self._cdata_names[state.address][number]

    def _cut(self, start: int, size: int, used: int) -> None:
        """Add the end of a block to `dead`, if the block is longer than LuaJIT requested."""
        if used < size:
            self.dead.append(Range(start + (used + 7 & -8), start + size))

    def _add_parts(self, state: State, address: int, head: bytes, words: Sequence[int]) -> int:
        length, mask = words[_LENGTH // 8] & 0xFFFFFFFF, words[_LENGTH // 8] >> 32
        added, mode = 0, self._weak_modes.find(state, words[_METATABLE // 8])
        for part, used in ((words[_ELEMENTS // 8], 8 * length), (words[_NODES // 8], _NODE * (mask + 1))):
            found = self._blocks.lookup(part) if part else None
            if found is not None and found[1] == part and self.found[found[0]] == NO_ROOT:
                self._set_part(found[0], self._add_weak(part, min(used, found[2]), mode, part == words[_NODES // 8]) if mode else 0)
                self.tables[found[0]] = address, state
                self._cut(part, found[2], used)
                added += found[2]
                if part == words[_NODES // 8]:
                    self._add_dead_keys(part, min(used, found[2]))
        return added

    def _add_dead_keys(self, nodes: int, size: int) -> None:
        """Add the keys of nodes whose value is nil to `dead`. The collector ignores these keys."""
        for start in range(nodes, nodes + size - _NODE + 1, _SLICE):
            count = min(_SLICE, nodes + size - start) // _NODE
            words = self._memory.words(start, _NODE // 8 * count)
            if words is None or _NIL not in words[::3]:
                continue
            for number, (value, key) in enumerate(zip(words[::3], words[1::3])):
                if value == _NIL and key != _NIL and (decode(key) != key or is_light(key)):
                    self._dead_keys += 1
                    if self._dead_keys == _MOST_DEAD_KEYS:
                        what = "too many removed keys: the remaining ones count as references"
                        self.problems.append((start + _NODE * number, what))
                    if self._dead_keys >= _MOST_DEAD_KEYS:
                        return
                    place = start + _NODE * number + 8
                    self.dead.append(Range(place, place + 8))

    def _add_colocated(self, state: State, address: int, size: int, words: Sequence[int], plain: int) -> int:
        """Return the pattern of a table's block. Short arrays are in the block of the table."""
        length = words[_LENGTH // 8] & 0xFFFFFFFF
        if words[_ELEMENTS // 8] != address + _TABLE_BYTES or "v" not in self._weak_modes.find(state, words[_METATABLE // 8]):
            return plain
        values = self._memory.words(words[_ELEMENTS // 8], min(length, (size - _TABLE_BYTES) // 8)) or ()
        weak = [number for number, value in enumerate(values, _TABLE_BYTES // 8) if is_object(_kind_of(value))]
        return self._unused.pattern(plain, address, size, [(number, number + 1) for number in weak])

    def _add_weak(self, start: int, size: int, mode: str, has_nodes: bool) -> int:
        """Return the pattern of the array or the nodes of a weak table; see weak.py."""
        step, columns, places = _NODE // 8 if has_nodes else 1, list[int](), list[Iterator[int]]()
        for column, letter in enumerate("vk"[:step]):
            if letter in mode:
                types = {value >> _TAG: value for _, values in self._slices(start, size, step) for value in values[column::step]}
                if not any(is_object(_kind_of(value)) for value in types.values()):
                    continue
                if any(_kind_of(value) == STRING or is_light(value) for value in types.values()):
                    places.append(self._list_weak(start, size, step, column))
                else:
                    columns.append(column)
        return self._unused.weak_pattern(WeakWords(columns, chain.from_iterable(places)), start, step, size // (8 * step))

    def _slices(self, start: int, size: int, step: int) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the address and the words of parts of an array or of nodes. Raises Interrupted."""
        for at in interruptible(self._target, range(start, start + size, _SLICE)):
            yield at, self._memory.words(at, min(_SLICE, start + size - at) // (8 * step) * step) or ()

    def _list_weak(self, start: int, size: int, step: int, column: int) -> Iterator[int]:
        for at, values in self._slices(start, size, step):
            yield from (at + 8 * number for number in range(column, len(values), step) if is_object(_kind_of(values[number])))

    def _add_stack(self, state: State, thread: int, words: Sequence[int]) -> None:
        """Add the unused part of a thread's stack to `dead`. Only C functions set the top of the
        thread that is running."""
        found = self._blocks.lookup(words[_STACK // 8])
        if found is None or found[1] != words[_STACK // 8]:
            return
        self.threads.append((state, thread))
        self._set_part(found[0], 0)
        is_running = self._memory.word(state.address + _CURRENT) == thread
        in_c = self._memory.int32(state.address + _VM_STATE) == _IN_C
        top = words[_TOP // 8]
        if (in_c or not is_running) and found[1] <= top < found[1] + found[2]:
            self.dead.append(Range(top, found[1] + (found[2] & -8)))

    def _add_own(self, directory: Directory) -> None:
        """Add the blocks in use that have no object to the roots."""
        for allocator in directory.allocators:
            for start, end in directory.of(allocator) if isinstance(allocator, LuaJitAllocator) else ():
                first, last = self._blocks.at_or_after(start), self._blocks.at_or_after(end)
                columns = self._blocks.columns(first, last)
                rows = zip(self.found[first:last], columns.address, columns.state)
                self.roots += [address for number, address, state in rows if number == NO_ROOT and state == BlockState.IN_USE]

    def _registry(self, state: State) -> tuple[int, int, int]:
        place = state.thread + _ENVIRONMENT
        return self.reference(state.address + _REGISTRY), self._memory.word(place) or 0, place

    def type_of(self, address: int) -> int:
        index = self._blocks.find(address)
        known = index >= 0 and self.found[index] < len(self.names)
        data = self._memory.read(address + _TYPE, 1) if known else b""
        return _TYPES.get(data[0], 0) if data else 0

    def reference(self, place: int) -> int:
        return decode(self._memory.word(place) or 0)

    def place(self, state: State, proto: int) -> str:
        source = self._memory.word(proto + _CHUNK) if proto > 0 else None
        line = self._memory.int32(proto + _LINE) if source else None
        # LuaJIT's own functions in Lua have no line.
        return describe_place(self.text(state, source), line) if source and line is not None and line < _NO_LINE else ""

    def is_script(self, state: State, function: int) -> bool:
        head = self._memory.read(function + 8, _FFID - 7)
        return bool(head) and head[_TYPE - 8] == _FUNCTION and not head[_FFID - 8]

    def prototype(self, state: State, function: int) -> int:
        return (self._memory.word(function + _PC) or 0) - PROTOTYPE

    def upvalues(self, state: State, function: int) -> Iterator[tuple[str, int]]:
        words = self._memory.words(function, 5)
        head = words[1].to_bytes(8, "little") if words is not None else bytes(8)
        cells = self._memory.words(function + _UPVALUES, head[_UPVALUE_COUNT - 8]) or ()
        names = self._memory.word(words[_PC // 8] - PROTOTYPE + _UPVALUE_NAMES) if words is not None else None
        text = self._memory.read(names, lua.LONGEST) if names else b""
        for name, cell in zip(text.split(b"\0")[:-1], cells):
            place = self._memory.word(cell + _VALUE)
            if place:
                yield name.decode("utf-8", "replace"), place

    def local_variables(self, state: State, thread: int) -> Iterator[tuple[int, str, int]]:
        words = self._memory.words(thread, _WORDS) or (0,) * _WORDS
        for call in list_calls(self._memory, words[_BASE // 8], words[_STACK // 8]):
            proto = (self._memory.word(call.function + _PC) or 0) - PROTOTYPE if self.is_script(state, call.function) else 0
            info = self._memory.word(proto + _VARIABLES) if proto > 0 else None
            for name, place in list_locals(self._memory, call, proto + PROTOTYPE, info) if info else ():
                yield call.function, name, place

    def entries(self, state: State, table: int) -> Iterator[tuple[object, int, int, int]]:
        found = self._memory.members(table, "PIIPPPPII") if table else None
        if found is None:
            return
        _, _, _, elements, _, _, nodes, length, mask = found
        values = self._memory.words(elements, length) if 0 < length <= lua.MOST_NODES else None
        for number, value in enumerate(values or ()):
            if value != _NIL:
                yield number, _kind_of(value), decode(value), elements + 8 * number
        read = self._memory.words(nodes, _NODE // 8 * (mask + 1)) if 0 < mask < lua.MOST_NODES else None
        for number, (value, key) in enumerate(zip((read or ())[::3], (read or ())[1::3])):
            if value != _NIL:
                yield self._name(state, key), _kind_of(value), decode(value), nodes + _NODE * number

    def _name(self, state: State, key: int) -> object:
        """Return a key: a string, a number, or None."""
        if decode(key) != key:
            return self.text(state, decode(key)) if _kind_of(key) == STRING else None
        if key >> _TAG >= _PRIMITIVE:
            return None
        (number,) = struct.unpack("<d", key.to_bytes(8, "little"))
        return int(number) if number.is_integer() else number

    def key_at(self, state: State, table: int, address: int) -> object:
        found = self._memory.members(table, "PIIPPPPII")
        if found is None:
            return None
        _, _, _, elements, _, _, nodes, length, mask = found
        if elements <= address < elements + 8 * length:
            return (address - elements) // 8
        if mask and nodes <= address < nodes + _NODE * (mask + 1) and not (address - nodes) % _NODE:
            return self._name(state, self._memory.word(address + 8) or 0)
        return None

    def text(self, state: State, string: int) -> str:
        length = self._memory.int32(string + 20) if string else None
        data = self._memory.read(string + TEXT, min(length, lua.LONGEST)) if length else b""
        return os.fsdecode(data)

    def length(self, state: State, table: int) -> int:
        return sum(1 for _ in self.entries(state, table))
