"""Name the functions that a frame of V8's code executes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.v8.frames.builtins import Builtins, is_interpreter
from findleaks.runtimes.v8.frames.bytecode import Bytecode
from findleaks.runtimes.v8.frames.heap import FrameHeap
from findleaks.runtimes.v8.frames.machine_code import BASELINE, OTHER, Code, CodeFinder
from findleaks.runtimes.v8.frames.partial_frames import COMPLETE, frame_state
from findleaks.runtimes.v8.frames.promises import Promises
from findleaks.runtimes.v8.frames.translations import Translations
from findleaks.runtimes.v8.frames.webassembly import GENERATED, WebAssembly
from findleaks.runtimes.v8.metadata import TAG
from findleaks.runtimes.v8.strings import SMI_SHIFT
from findleaks.target.arch import X86_64
from findleaks.target.ranges import region_at
from findleaks.unwind.stacks import NamedFrame
from findleaks.value_classes import NamedTuple

KIND, MICROTASKS = "JavaScript", "Builtins_RunMicrotasks"

# Why something is unknown
NO_TABLE = "V8 has no table of the function's lines"
NO_BYTECODE = "the bytecode that the function executes is unknown"
INTERRUPTED = "V8's tables describe calls only: the line and functions that are inlined at this instruction are unknown"
UNKNOWN_CALL = "V8's tables do not describe this call: the line and functions that are inlined here are unknown"
NO_FRAME = "the function has just been entered, or returns"
NO_NAME = "the function is inlined, and the program computes its name at run time, so its name is unknown"
NO_FUNCTION = "the frame does not refer to a function"

_REGISTERS = X86_64.dwarf_registers
FP, _PC, _DISPATCH = (_REGISTERS.index(name) for name in ("rbp", "rip", "r15"))
# Registers of bytecode handlers: the array of bytecodes and the offset in it (src/codegen/x64)
_BYTECODE_REGISTERS = tuple(_REGISTERS.index(name) for name in ("r12", "r9"))
_BYTECODES = 256  # entries of the table of handlers for each size of operands
_FUNCTION, _ARRAY, _OFFSET = -16, -32, -40  # distances from the frame pointer
_OLD_ARRAY, _OLD_OFFSET = -24, -32  # before V8 9.0, whose frames have the number of arguments
_WITH_BYTECODE = ("interpreter_data", "baseline_data", "code", "code_data_container")


class Place(NamedTuple):
    """A place that is executed in a function. `shared`, `function`, `array`: the tagged addresses
    of the SharedFunctionInfo, the function and its BytecodeArray; 0 if unknown. `offset`: that of
    the current bytecode; -1 if unknown. `reason`: why the offset is unknown."""

    shared: int
    function: int
    array: int
    offset: int
    reason: str = NO_BYTECODE


class FrameNames:
    """Names the frames of the V8 with this heap."""

    def __init__(self, heap: FrameHeap) -> None:
        self.heap = heap
        self.builtins, self.code = Builtins(heap.target, heap.memory, heap.isolates), CodeFinder(heap)
        self._bytecode, self._translations = Bytecode(heap), Translations(heap)
        self.webassembly = WebAssembly(heap)
        is_old = heap.version < (9, 0)
        constant = heap.metadata.constant
        self._array = constant("off_fp_bytecode_array") or (_OLD_ARRAY if is_old else _ARRAY)
        self.offset_in_frame = constant("off_fp_bytecode_offset") or (_OLD_OFFSET if is_old else _OFFSET)

    def read_again(self, memory: Memory) -> None:
        """Drop what was read of objects; see FrameHeap."""
        self.heap.read_again(memory)
        self.code.read_again(memory)
        self.webassembly.read_again()

    def waiting(self, isolate: int) -> Iterator[NamedFrame]:
        """Yield the functions that wait for the microtask that an isolate executes."""
        for function, offset in Promises(self.heap, self._bytecode).waiting(isolate):
            shared = self.heap.shared_of(function)
            if not shared:
                break
            yield self.name(Place(shared, function, self.bytecode_of(shared), offset))._replace(is_async=True)

    def names(self, pc: int, exact: bool, registers: Mapping[int, int], inner: Mapping[int, int]) -> Iterator[NamedFrame]:
        """Yield the names of a frame, innermost first. `inner`: the registers of a bytecode handler
        that was interrupted and returns to this frame."""
        places = self.places(pc, registers.get(FP, 0), inner) if not exact else ()
        if places:
            yield from map(self.name, places)
            return
        builtin = self.builtins.find(pc)
        if builtin is not None:
            yield NamedFrame(pc, builtin.name, pc - builtin.start, builtin.module)
        elif region_at(self.heap.target.modules(), pc) is None:
            yield from self._name_generated(pc, exact, registers)

    def _name_generated(self, pc: int, exact: bool, registers: Mapping[int, int]) -> Iterator[NamedFrame]:
        """Yield the names of the code at an address that is in no file, innermost first; none for
        code that V8 has not generated."""
        module_code = self.webassembly.find(pc - (not exact))
        code = self.code_at(pc) if module_code is None else None
        unknown = self.webassembly.name_unknown(pc, registers.get(FP, 0)) if module_code is None and code is None and not exact else None
        if module_code is not None:
            yield from self.webassembly.names(module_code, pc, exact)
        elif code is not None:
            yield self._name_code(self._with_kind(code, registers.get(FP, 0)), pc, exact, registers)
        elif unknown is not None:
            yield unknown

    def places(self, pc: int, fp: int, inner: Mapping[int, int]) -> Sequence[Place]:
        """Return what a frame executes at a return address, innermost first; () if the frame
        is not that of a function, or if the place is unknown. For `inner` see `names`."""
        builtin = self.builtins.find(pc)
        if builtin is not None:
            array, shared = self._array_of(fp), self._function(fp)
            is_function = is_interpreter(builtin.name) and array and shared
            return [Place(shared, self._read_function(fp), array, self._interpreted_offset(fp, array, inner))] if is_function else ()
        code = self.code_at(pc)
        if code is None:
            return ()
        code = self._with_kind(code, fp)
        if code.kind == BASELINE:
            place = self._baseline_place(code, pc, fp)
            return [place] if place is not None else ()
        return list(self._optimized_places(code, pc, fp)) if code.kind != OTHER else ()

    def _with_kind(self, code: Code, fp: int) -> Code:
        """Return the code, as baseline code if its frame is that of baseline code. V8 9.4 does not
        mark baseline code."""
        is_baseline = code.kind == OTHER and self._array_of(fp) and self._function(fp)
        return code._replace(kind=BASELINE) if is_baseline else code

    def code_at(self, pc: int) -> Optional[Code]:
        """Return the code in V8's heap at an address; None if there is none."""
        is_possible = region_at(self.heap.target.modules(), pc) is None and not self.webassembly.module_at(pc)
        return self.code.find(pc) if is_possible else None

    def generated_start(self, pc: int) -> Optional[int]:
        """Return the start of the code that V8 generated at an address; None if there is none."""
        found = self.code_at(pc) or self.webassembly.find(pc)
        return found.start if found is not None else None

    def bytecode_of(self, shared: int) -> int:
        """Return the tagged address of the BytecodeArray of a SharedFunctionInfo; 0 if it has
        none."""
        return next(filter(None, map(self._find_bytecode, self._fields(shared))), 0)

    def _find_bytecode(self, word: int, depth: int = 2) -> int:
        """Return the BytecodeArray at a tagged address, or the one to which an object that has the
        function's code refers; 0 if there is none."""
        if self._bytecode.is_bytecode(word):
            return word
        if not depth or not self.heap.is_a(word, _WITH_BYTECODE):
            return 0
        return next((found for one in self._fields(word) if (found := self._find_bytecode(one, depth - 1))), 0)

    def _fields(self, word: int) -> Sequence[int]:
        """Return the first words of an object after its map."""
        return self.heap.memory.words(word - TAG + 8, 3) or ()

    def _read_function(self, fp: int) -> int:
        """Return the word of a frame that has the tagged address of its function."""
        return self.heap.memory.word(fp + _FUNCTION) or 0 if fp else 0

    def _function(self, fp: int) -> int:
        """Return the tagged address of the SharedFunctionInfo of the function of a frame; 0 if it
        has none."""
        return self.heap.shared_of(self._read_function(fp))

    def _array_of(self, fp: int) -> int:
        """Return the tagged address of the BytecodeArray in a frame; 0 if it has none."""
        found = self.heap.memory.word(fp + self._array) or 0 if fp else 0
        return found if self._bytecode.is_bytecode(found) else 0

    def _interpreted_offset(self, fp: int, array: int, inner: Mapping[int, int]) -> int:
        """Return the offset of the current bytecode of a frame of the interpreter; -1 if it is
        unknown. Handlers store it in the frame before they call a function; until then it is in a
        register."""
        stored = self.heap.memory.word(fp + self.offset_in_frame) or 0
        held = self._check_offset(array, stored >> SMI_SHIFT) if not stored & 0xFFFFFFFF else -1
        if not inner:
            return held
        own, in_register = (inner.get(register, 0) for register in _BYTECODE_REGISTERS)
        current = self._check_offset(array, in_register) if own == array else -1
        return next((one for one in (current, held) if one >= 0 and self._is_handled(array, one, inner)), -1)

    def _is_handled(self, array: int, offset: int, inner: Mapping[int, int]) -> bool:
        """Whether the handler that was interrupted is that of the bytecode at this offset. A
        handler that ends may have the offset of the next bytecode in the register."""
        code = self.heap.memory.read(array - TAG + self._bytecode.header + offset, 1)
        handler = self.builtins.find(inner.get(_PC, 0))
        places = [inner.get(_DISPATCH, 0) + 8 * (code[0] + scale * _BYTECODES) for scale in range(3)] if code else []
        return handler is not None and any(self.heap.memory.word(place) == handler.start for place in places)

    def _check_offset(self, array: int, raw: int) -> int:
        """Return the offset in the bytecode for the offset `raw` from the tagged address of the
        array; -1 if it is not in the bytecode."""
        offset = raw + 1 - self._bytecode.header
        return offset if self._bytecode.contains(array, offset) else -1

    def name(self, place: Place) -> NamedFrame:
        """Name the function and the line of a place."""
        shared, function, array, offset, reason = place
        name, script = self.heap.name_function(shared, function)
        position = self._bytecode.position(array, offset) if array and offset >= 0 else None
        positions = self.heap.functions.positions(shared)
        is_inside = position is not None and (positions is None or positions[0] <= position <= positions[1])
        line = self.heap.functions.line_at(shared, position) if position is not None and is_inside else 0
        unnamed = "" if name else NO_NAME
        if line or not script:
            return NamedFrame(0, name, 0, "", script, line, kind=KIND, reason=unnamed)
        first = self.heap.functions.of_shared(shared).line
        why = f"{NO_TABLE if offset >= 0 else reason}{f'; the function begins at line {first}' if first else ''}"
        return NamedFrame(0, name, 0, "", script, kind=KIND, reason=f"{why}; {unnamed}" if unnamed else why)

    def _name_code(self, code: Code, pc: int, exact: bool, registers: Mapping[int, int]) -> NamedFrame:
        """Name the function of code for which `names` has found no place."""
        fp, unknown = registers.get(FP, 0), NamedFrame(0, "", 0, "", kind=KIND, reason=NO_FUNCTION)
        if code.kind == OTHER:
            return NamedFrame(pc, GENERATED, pc - code.start, "")
        if code.kind == BASELINE:
            # Before the code has created its frame, and after it has removed this frame, rbp is
            # the caller's.
            if exact and frame_state(self.heap.target, code.start, pc) != COMPLETE:
                return unknown._replace(reason=NO_FRAME)
            place = self._baseline_place(code, pc + 1, fp) if exact else None
            return self.name(place) if place is not None else unknown
        outermost = self._translations.function_of(code)
        place = Place(outermost, self._outermost_function(outermost, fp), 0, -1, INTERRUPTED if exact else UNKNOWN_CALL)
        return self.name(place) if outermost else unknown

    def _baseline_place(self, code: Code, pc: int, fp: int) -> Optional[Place]:
        """Return the place that baseline code executes before the address `pc`; None if the
        frame is not that of a function."""
        shared, array = self._function(fp), self._array_of(fp)
        if not shared or not array:
            return None
        return Place(shared, self._read_function(fp), array, self._bytecode.of_baseline(array, code.positions, pc - code.start))

    def _outermost_function(self, outermost: int, fp: int) -> int:
        """Return the function in a frame of optimized code, if the SharedFunctionInfo of this
        function is `outermost`; 0 otherwise."""
        return self._read_function(fp) if outermost and self._function(fp) == outermost else 0

    def _optimized_places(self, code: Code, pc: int, fp: int) -> Iterator[Place]:
        inlined = self._translations.read(code, pc)
        held = self._outermost_function(self._translations.function_of(code), fp) if inlined else 0
        for number, (shared, function, offset) in enumerate(inlined, 1):
            if offset >= 0:
                yield Place(shared, held if number == len(inlined) else function, self.bytecode_of(shared), offset)
            elif self.heap.shared_of(function):
                # A builtin, which the compiler replaced by its own code.
                yield Place(self.heap.shared_of(function), function, 0, -1)
