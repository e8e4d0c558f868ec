"""Name the functions that a frame of V8's code executes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from findleaks.runtimes.v8.frames.builtins import Builtin, Builtins, is_interpreter
from findleaks.runtimes.v8.frames.bytecode import Bytecode
from findleaks.runtimes.v8.frames.heap import FrameHeap
from findleaks.runtimes.v8.frames.machine_code import BASELINE, OTHER, Code, CodeFinder
from findleaks.runtimes.v8.frames.partial_frames import COMPLETE, frame_state
from findleaks.runtimes.v8.frames.promises import Promises
from findleaks.runtimes.v8.frames.translations import Translations
from findleaks.runtimes.v8.metadata import TAG
from findleaks.runtimes.v8.strings import SMI_SHIFT
from findleaks.target.arch import X86_64
from findleaks.target.ranges import region_at
from findleaks.unwind.stacks import NamedFrame

KIND, MICROTASKS = "JavaScript", "Builtins_RunMicrotasks"

# Why something is unknown
NO_TABLE = "V8 has no table of the function's lines"
NO_BYTECODE = "the bytecode that the function executes is unknown"
INTERRUPTED = "V8's tables describe calls only: the line and functions that are inlined at this instruction are unknown"
UNKNOWN_CALL = "V8's tables do not describe this call: the line and functions that are inlined here are unknown"
NO_FRAME = "the function has just been entered, or returns"
NO_FUNCTION = "the frame does not refer to a function"

_REGISTERS = X86_64.dwarf_registers
_FP, _PC, _DISPATCH = (_REGISTERS.index(name) for name in ("rbp", "rip", "r15"))
# Registers of bytecode handlers: the array of bytecodes and the offset in it (src/codegen/x64)
_BYTECODE_REGISTERS = tuple(_REGISTERS.index(name) for name in ("r12", "r9"))
_BYTECODES = 256  # entries of the table of handlers for each size of operands
_FUNCTION, _ARRAY, _OFFSET = -16, -32, -40  # distances from the frame pointer
_OLD_ARRAY, _OLD_OFFSET = -24, -32  # before V8 9.0, whose frames have the number of arguments
_WITH_BYTECODE = ("interpreter_data", "baseline_data", "code", "code_data_container")


class FrameNames:
    """Names the frames of the V8 with this heap."""

    def __init__(self, heap: FrameHeap) -> None:
        self.heap = heap
        self.builtins, self.code = Builtins(heap.target, heap.memory, heap.isolates), CodeFinder(heap)
        self._bytecode, self._translations = Bytecode(heap), Translations(heap)
        is_old = heap.version < (9, 0)
        constant = heap.metadata.constant
        self._array = constant("off_fp_bytecode_array") or (_OLD_ARRAY if is_old else _ARRAY)
        self._offset = constant("off_fp_bytecode_offset") or (_OLD_OFFSET if is_old else _OFFSET)

    def waiting(self, isolate: int) -> Iterator[NamedFrame]:
        """Yield the functions that wait for the microtask that an isolate executes."""
        for function, offset in Promises(self.heap, self._bytecode).waiting(isolate):
            shared = self.heap.shared_of(function)
            if not shared:
                break
            yield self._place(shared, function, self.bytecode_of(shared), offset)._replace(is_async=True)

    def names(self, pc: int, exact: bool, registers: Mapping[int, int], inner: Mapping[int, int]) -> Iterator[NamedFrame]:
        """Yield the names of a frame, innermost first. `inner`: the registers of a bytecode handler
        that was interrupted and returns to this frame."""
        builtin = self.builtins.find(pc)
        if builtin is not None:
            yield from self._name_builtin(builtin, pc, exact, registers, inner)
            return
        code = self.code_at(pc)
        if code is None:
            return
        fp = registers.get(_FP, 0)
        if code.kind == OTHER and self._array_of(fp) and self._function(fp):
            code = code._replace(kind=BASELINE)  # V8 9.4 has no mark of baseline code
        if code.kind == OTHER:
            yield NamedFrame(pc, "code that V8 generated", pc - code.start, "")
        elif code.kind == BASELINE:
            yield self._name_baseline(code, pc, exact, registers)
        else:
            yield from self._name_optimized(code, pc, exact, fp)

    def _name_builtin(
        self, builtin: Builtin, pc: int, exact: bool, registers: Mapping[int, int], inner: Mapping[int, int]
    ) -> Iterator[NamedFrame]:
        fp = registers.get(_FP, 0)
        array, shared = self._array_of(fp), self._function(fp)
        if not exact and is_interpreter(builtin.name) and array and shared:
            yield self._place(shared, self._held(fp), array, self._interpreted_offset(fp, array, inner))
        else:
            yield NamedFrame(pc, builtin.name, pc - builtin.start, builtin.module)

    def code_at(self, pc: int) -> Optional[Code]:
        """Return the code that V8 generated at an address."""
        return self.code.find(pc) if region_at(self.heap.target.modules(), pc) is None else None

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

    def _held(self, fp: int) -> int:
        """Return the word of a frame that has the tagged address of its function."""
        return self.heap.memory.word(fp + _FUNCTION) or 0 if fp else 0

    def _function(self, fp: int) -> int:
        """Return the tagged address of the SharedFunctionInfo of the function of a frame; 0 if it
        has none."""
        return self.heap.shared_of(self._held(fp))

    def _array_of(self, fp: int) -> int:
        """Return the tagged address of the BytecodeArray in a frame; 0 if it has none."""
        found = self.heap.memory.word(fp + self._array) or 0 if fp else 0
        return found if self._bytecode.is_bytecode(found) else 0

    def _interpreted_offset(self, fp: int, array: int, inner: Mapping[int, int]) -> int:
        """Return the offset of the current bytecode of a frame of the interpreter; -1 if it is
        unknown. Handlers store it in the frame before they call a function; until then it is in a
        register."""
        stored = self.heap.memory.word(fp + self._offset) or 0
        held = self._checked(array, stored >> SMI_SHIFT) if not stored & 0xFFFFFFFF else -1
        if not inner:
            return held
        own, in_register = (inner.get(register, 0) for register in _BYTECODE_REGISTERS)
        current = self._checked(array, in_register) if own == array else -1
        return next((one for one in (current, held) if one >= 0 and self._is_handled(array, one, inner)), -1)

    def _is_handled(self, array: int, offset: int, inner: Mapping[int, int]) -> bool:
        """Whether the handler that was interrupted is that of the bytecode at this offset. A
        handler that ends may have the offset of the next bytecode in the register."""
        code = self.heap.memory.read(array - TAG + self._bytecode.header + offset, 1)
        handler = self.builtins.find(inner.get(_PC, 0))
        places = [inner.get(_DISPATCH, 0) + 8 * (code[0] + scale * _BYTECODES) for scale in range(3)] if code else []
        return handler is not None and any(self.heap.memory.word(place) == handler.start for place in places)

    def _checked(self, array: int, raw: int) -> int:
        """Return the offset in the bytecode from that in the (tagged) array; -1 if it is not in
        it."""
        offset = raw + 1 - self._bytecode.header
        return offset if self._bytecode.contains(array, offset) else -1

    def _place(self, shared: int, function: int, array: int, offset: int, reason: str = NO_BYTECODE) -> NamedFrame:
        """Name a function at a bytecode offset. `function`: its tagged address, 0 if unknown.
        `reason`: why the offset is unknown, if it is -1."""
        name, script = self.heap.name_function(shared, function)
        position = self._bytecode.position(array, offset) if array and offset >= 0 else None
        positions = self.heap.functions.positions(shared)
        is_inside = position is not None and (positions is None or positions[0] <= position <= positions[1])
        line = self.heap.functions.line_at(shared, position) if position is not None and is_inside else 0
        if line or not script:
            return NamedFrame(0, name, 0, "", script, line, kind=KIND)
        first = self.heap.functions.of_shared(shared).line
        why = f"{NO_TABLE if offset >= 0 else reason}{f'; the function begins at line {first}' if first else ''}"
        return NamedFrame(0, name, 0, "", script, kind=KIND, reason=why)

    def _name_baseline(self, code: Code, pc: int, exact: bool, registers: Mapping[int, int]) -> NamedFrame:
        fp = registers.get(_FP, 0)
        shared, array = self._function(fp), self._array_of(fp)
        # Before the code has a frame, and after it has removed it, rbp is the caller's.
        if exact and frame_state(self.heap.target, code.start, pc) != COMPLETE:
            return NamedFrame(0, "", 0, "", kind=KIND, reason=NO_FRAME)
        if not shared or not array:
            return NamedFrame(0, "", 0, "", kind=KIND, reason=NO_FUNCTION)
        # A return address is that of the instruction after a call.
        offset = self._bytecode.of_baseline(array, code.positions, pc - code.start + exact)
        return self._place(shared, self._held(fp), array, offset)

    def _name_optimized(self, code: Code, pc: int, exact: bool, fp: int) -> Iterator[NamedFrame]:
        outermost = self._translations.function_of(code)
        held = self._held(fp) if outermost and self._function(fp) == outermost else 0
        inlined = self._translations.read(code, pc) if not exact else ()
        for number, (shared, function, offset) in enumerate(inlined, 1):
            if offset >= 0:
                yield self._place(shared, held if number == len(inlined) else function, self.bytecode_of(shared), offset)
            elif self.heap.shared_of(function):
                # A builtin, which the compiler replaced by its own code.
                yield self._place(self.heap.shared_of(function), function, 0, -1)
        if not inlined:
            reason = INTERRUPTED if exact else UNKNOWN_CALL
            named = self._place(outermost, held, 0, -1, reason) if outermost else None
            yield named or NamedFrame(0, "", 0, "", kind=KIND, reason=NO_FUNCTION)
