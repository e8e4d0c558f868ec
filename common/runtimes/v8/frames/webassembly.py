"""Name the functions of WebAssembly that a frame executes.

V8 compiles a module outside its heap. A tree of the process has the ranges of code and the
NativeModule of each; a tree of the NativeModule has the WasmCode of each piece of code. Code that
was compiled since the last look-up is in a vector behind this tree. The bytes of the module have
the names of functions, if the compiler kept them.

Every step is checked: nodes of a tree refer to their parents, and a WasmCode refers to its module
and to the start of its code.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/wasm/wasm-code-manager.h (WasmCode, NativeModule,
WasmCodeManager), src/objects/managed.h; libstdc++, bits/stl_tree.h; WebAssembly core specification,
appendix "Custom Sections" (names)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.runtimes.v8.frames.bytecode import iterate_positions
from findleaks.runtimes.v8.frames.heap import FrameHeap
from findleaks.runtimes.v8.frames.module_names import read_function_names
from findleaks.runtimes.v8.metadata import TAG
from findleaks.unwind.stacks import NamedFrame
from findleaks.value_classes import NamedTuple

KIND = "WebAssembly"
GENERATED = "code that V8 generated"
NO_LINE = "modules of WebAssembly have no lines"
INTERRUPTED = "V8's tables describe calls only: functions that are inlined at this instruction are unknown"
UNKNOWN = "V8's description of this code was not found"

# The address of the process's manager of code, in V8 9.4 and newer, and before.
_MANAGERS = (
    "_ZN2v88internal4wasm12_GLOBAL__N_117global_wasm_stateE",
    "_ZZN2v88internal4wasm12_GLOBAL__N_119GetSharedWasmEngineEvE6object",
)
_MANAGER_WORDS, _MODULE_WORDS = 128, 176  # words of the two objects that are searched
_DEEPEST = 96  # nodes of a path in a tree
_MOST_NEW, _MOST_SCRIPTS = 1 << 16, 1 << 16  # pieces of code in the vector, scripts of an isolate
_MOST_CODE = 1 << 28  # bytes of one function
_MOST_MODULE, _COMPARED = 1 << 31, 1 << 10  # bytes of a module; bytes at each end that identify it
_MANAGED_WORDS = 8  # words of the object that owns a NativeModule for V8's heap
_URL = "wasm://"  # V8 8.4 stores names of scripts without this beginning
_MARKER = -8  # distance of the type of a frame from its frame pointer
_FUNCTION_FRAMES = ("frametype_WasmFrame", "frametype_WasmCompiledFrame")
_WRAPPER_FRAMES = ("frametype_WasmToJsFrame", "frametype_WasmToJsFunctionFrame")


class _Fields(NamedTuple):
    """Offsets in a WasmCode. The lowest bits of the byte `kind` are 0 for a function."""

    module: int
    start: int
    size: int
    function: int
    kind: int
    mask: int


_FIELDS = {
    (7, 8): _Fields(48, 0, 8, 56, 60, 0xFF),
    (8, 4): _Fields(0, 8, 32, 48, 16, 7),
    (9, 4): _Fields(0, 8, 32, 48, 16, 7),
    (10, 2): _Fields(0, 8, 32, 48, 16, 3),
    (11, 3): _Fields(0, 8, 24, 44, 80, 3),
    (12, 4): _Fields(0, 8, 24, 44, 80, 3),
    (13, 6): _Fields(0, 8, 32, 56, 96, 3),
}
_BYTES = 104  # of a WasmCode that are read


class _Tables(NamedTuple):
    """Offsets in a WasmCode whose functions may have inlined functions: of the address of the
    tables, and of the sizes of the parts that precede the positions, of the positions, and of the
    inlined functions. `has_tail_call`: an entry of these says whether the function replaced its
    caller."""

    tables: int
    before: tuple[int, int]
    positions: int
    inlined: int
    has_tail_call: bool


_TABLES = {
    (11, 3): _Tables(16, (40, 28), 32, 36, False),
    (12, 4): _Tables(16, (40, 28), 32, 36, True),
    (13, 6): _Tables(24, (52, 36), 40, 44, True),
}
_MOST_TABLES, _MOST_INLINED = 1 << 24, 256  # bytes of the tables of a function; inlined functions
_POSITION_BITS = 31  # of a position, below the number of the inlined function


class WasmCode(NamedTuple):
    """Code of a module. `function`: its index; -1 for code that executes no function of the
    module. `module`: the address of the NativeModule. `address`: that of the WasmCode."""

    start: int
    end: int
    function: int
    module: int
    address: int


class WebAssembly:
    """The code of WebAssembly in the process of this heap."""

    def __init__(self, heap: FrameHeap) -> None:
        self._heap = heap
        self._names: dict[tuple[int, int, bytes], Mapping[int, str]] = {}
        self._scripts: dict[int, str] = {}
        self._found: dict[int, Optional[WasmCode]] = {}

    def read_again(self) -> None:
        """Drop what was read of objects; see FrameHeap."""
        self._scripts, self._found = {}, {}

    @cached_property
    def _manager(self) -> int:
        """The address of the variable that refers to the manager of code; 0 if there is none."""
        symbols = (self._heap.target.symbol(name) for name in _MANAGERS)
        return next((one.address for one in symbols if one is not None), 0)

    def find(self, pc: int) -> Optional[WasmCode]:
        """Return the code at an address; None if there is none."""
        if pc not in self._found:
            fields, module = _FIELDS.get(self._heap.version), self.module_at(pc)
            self._found[pc] = self._find_in(module, pc, fields) if module and fields is not None else None
        return self._found[pc]

    def module_at(self, pc: int) -> int:
        """Return the address of the NativeModule whose code may be at an address; 0 if there is
        none."""
        manager = self._word(self._manager) if self._manager else 0
        for _, root in self._headers(manager, _MANAGER_WORDS) if manager else ():
            node = self._last(root, pc)
            start, end, module = (self._heap.memory.words(node + 32, 3) if node else None) or (0, 0, 0)
            if start <= pc < end and module:
                return module
        return 0

    def _find_in(self, module: int, pc: int, fields: _Fields) -> Optional[WasmCode]:
        """Return the code at an address in a module."""
        for header, root in self._headers(module, _MODULE_WORDS):
            node = self._last(root, pc)
            start, code = (self._heap.memory.words(node + 32, 2) if node else None) or (0, 0)
            found = self._read(code, module, fields) if start <= pc and code else None
            if found is not None and found.start == start and pc < found.end:
                return found
            first, last = self._heap.memory.words(header + 40, 2) or (0, 0)
            count = (last - first) // 8
            for one in (self._heap.memory.words(first, count) or ()) if 0 < count <= _MOST_NEW else ():
                found = self._read(one, module, fields)
                if found is None:
                    break
                if found.start <= pc < found.end:
                    return found
        return None

    def _read(self, address: int, module: int, fields: _Fields) -> Optional[WasmCode]:
        """Return the WasmCode at an address; None if there is none of this module."""
        data = self._heap.memory.read(address, _BYTES) if address % 8 == 0 else b""

        def number(offset: int, size: int) -> int:
            return int.from_bytes(data[offset : offset + size], "little")

        if len(data) < _BYTES or number(fields.module, 8) != module:
            return None
        start, size, index = number(fields.start, 8), number(fields.size, 4), number(fields.function, 4)
        if not 0 < size <= _MOST_CODE:
            return None
        is_function = not data[fields.kind] & fields.mask and not index >> 31
        return WasmCode(start, start + size, index if is_function else -1, module, address)

    # -- trees of libstdc++

    def _headers(self, address: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield the header and the root (0 if it is empty) of each std::map in an object of `count`
        words. The header is the parent of the root, and is red (0)."""
        words = self._heap.memory.words(address, count) or ()
        for at, (color, root, first, last) in enumerate(zip(words, words[1:], words[2:], words[3:])):
            header = address + 8 * at
            is_header = self._word(root + 8) == header if root and root % 8 == 0 else not root and first == last == header
            if is_header and not color & 0xFFFFFFFF:
                yield header, root

    def _last(self, node: int, key: int) -> int:
        """Return the node with the greatest key that is not above `key`, below this node of a
        std::map; 0 if there is none."""
        found = 0
        for _ in range(_DEEPEST):
            words = self._heap.memory.words(node, 5) if node else None
            if words is None:
                break
            _, _, left, right, own = words
            found, node = (node, right) if own <= key else (found, left)
        return found

    # -- names

    def names(self, code: WasmCode, pc: int, exact: bool) -> Iterator[NamedFrame]:
        """Yield the names of code at an address, innermost first. `exact`: the address is not a
        return address. A function without a name in its module has the name that V8 prints in the
        stack of an error: "wasm-function[3]"."""
        if code.function < 0:
            yield NamedFrame(pc, GENERATED, pc - code.start, "")
            return
        names, script = self._names_of(code.module), self._script_of(code.module)
        for index in (code.function,) if exact else self._functions(code, pc - code.start):
            name = names.get(index, "") or f"wasm-function[{index}]"
            yield NamedFrame(0, name, 0, "", script, kind=KIND, reason=INTERRUPTED if exact else NO_LINE)

    def _functions(self, code: WasmCode, offset: int) -> Iterator[int]:
        """Yield the indices of the functions that are executed at a return address, innermost
        first. `offset`: that of the return address in the code."""
        layout, memory = _TABLES.get(self._heap.version), self._heap.memory
        sizes = [memory.int32(code.address + one) or 0 for one in (*layout.before, layout.positions, layout.inlined)] if layout else []
        is_absent = False
        if layout is not None and sizes[3] and all(0 <= one <= _MOST_TABLES for one in sizes):
            tables = self._word(code.address + layout.tables) + sum(sizes[:2])
            data = self._heap.read_table(tables, sizes[2] + sizes[3])
            position, entries, size = _position_before(data[: sizes[2]], offset), data[sizes[2] :], 12 + layout.has_tail_call
            for _ in range(_MOST_INLINED):
                number = (position >> _POSITION_BITS) - 1
                entry = entries[number * size : (number + 1) * size] if number >= 0 else b""
                if len(entry) < size:
                    break
                if not is_absent:
                    yield int.from_bytes(entry[:4], "little")
                is_absent = layout.has_tail_call and entry[4] != 0
                position = int.from_bytes(entry[-8:], "little")
        if not is_absent:
            yield code.function

    def name_unknown(self, pc: int, fp: int) -> Optional[NamedFrame]:
        """Name a frame of WebAssembly whose code is unknown, by the type that the frame contains;
        None for other frames."""
        marker = self._word(fp + _MARKER) if fp else 0
        if marker in self._markers(_FUNCTION_FRAMES):
            return NamedFrame(0, "", 0, "", kind=KIND, reason=UNKNOWN)
        return NamedFrame(pc, GENERATED, 0, "") if marker in self._markers(_WRAPPER_FRAMES) else None

    def _markers(self, names: Sequence[str]) -> Sequence[int]:
        types = (self._heap.metadata.constant(name) for name in names)
        return [2 * one for one in types if one is not None]

    def _names_of(self, module: int) -> Mapping[int, str]:
        """Return the names of the functions of a module, by index."""
        memory = self._heap.memory
        for word in memory.words(module, _MODULE_WORDS) or ():
            data, size = (memory.words(word, 2) if word and word % 8 == 0 else None) or (0, 0)
            if data and memory.read(data, 4) == b"\0asm" and 4 < size <= _MOST_MODULE:
                # A process that runs may have freed a module, and have created another one here.
                part = min(size, _COMPARED)
                key = data, size, memory.read(data, part) + memory.read(data + size - part, part)
                if key not in self._names:
                    self._names[key] = read_function_names(memory, data, size)
                return self._names[key]
        return {}

    def _script_of(self, module: int) -> str:
        """Return the name of the script that V8 has for a module; "" if it is unknown."""
        if module not in self._scripts:
            self._scripts[module] = next(self._script_names(module), "")
        return self._scripts[module]

    def _script_names(self, module: int) -> Iterator[str]:
        offset = self._heap.metadata.offset
        owner, name = offset("Script", "wasm_managed_native_module"), offset("Script", "name")
        for isolate in self._heap.isolates if owner is not None and name is not None else ():
            scripts = self._heap.metadata.roots(isolate).get("script_list", 0)
            count = (self._word(scripts + 8) >> 32) + 1 if scripts else 0
            for weak in (self._heap.memory.words(scripts + 16, count) or ()) if count <= _MOST_SCRIPTS else ():
                script = weak & ~2
                if self._heap.is_a(script, ("script",)) and self._owns(self._word(script - TAG + (owner or 0)), module):
                    found = self._heap.read_string(self._word(script - TAG + (name or 0)))
                    yield found if not found or found.startswith(_URL) else f"{_URL}wasm/{found}"

    def _owns(self, managed: int, module: int) -> bool:
        """Whether the object at a tagged address owns a NativeModule: it refers to an object that
        refers to a shared pointer."""
        owner = self._word(managed - TAG + 8) if managed & TAG else 0
        words = self._heap.memory.words(owner, _MANAGED_WORDS) if owner and owner % 8 == 0 else None
        return any(self._word(one) == module for one in words or () if one and one % 8 == 0)

    def _word(self, address: int) -> int:
        return self._heap.memory.word(address) or 0


def _position_before(table: bytes, offset: int) -> int:
    """Return the last position in a table of positions at an offset that is lower than this one; 0
    if there is none."""
    found = 0
    for at, position in iterate_positions(table, -1):
        if at >= offset:
            break
        found = position
    return found
