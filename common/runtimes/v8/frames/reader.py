"""Name the frames of JavaScript functions, and unwind code that V8 generated.

V8 executes functions of JavaScript in four ways; all frames have a frame pointer, with the function
and the context (or for other code a marker) below it:

- The interpreter (Ignition). Its frames have the array of bytecodes and the offset of the current
  one, and return to the builtin InterpreterEntryTrampoline.
- Baseline code (Sparkplug) has frames like those of the interpreter. A table gives the bytecode for
  an address of the code.
- Optimized code (Maglev and TurboFan) may contain inlined functions. Tables describe which
  functions are executed at each call.
- Builtins and bytecode handlers, which are compiled into the program, and are named by symbols.

Source: V8 7.8 to 13.6 (Node 12 to 24), src/execution/frame-constants.h, frames.cc."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.engine.contract import Engine
from findleaks.runtimes.current_memory import CurrentMemory
from findleaks.runtimes.v8.frames.builtins import HANDLER, PREFIX, is_interpreter
from findleaks.runtimes.v8.frames.frame_names import KIND, MICROTASKS, FrameNames
from findleaks.runtimes.v8.frames.heap import FrameHeap
from findleaks.runtimes.v8.frames.partial_frames import ABSENT, COMPLETE, PUSHED, frame_state
from findleaks.runtimes.v8.frames.recorded_calls import VERSIONS, RecordedCalls
from findleaks.runtimes.v8.isolates import Isolate, isolates
from findleaks.runtimes.v8.layout import Layout, Underivable, derive
from findleaks.runtimes.v8.metadata import has_metadata
from findleaks.target.arch import X86_64
from findleaks.target.base import Range, Target, Thread
from findleaks.target.ranges import region_at
from findleaks.unwind.frames import CodeStep
from findleaks.unwind.managed_frames import CallFrame, ManagedFrames, NativeStack, Segment, WalkFrame
from findleaks.unwind.stacks import NamedFrame

_REGISTERS = X86_64.dwarf_registers
_SP, _FP, _PC, _R10 = (_REGISTERS.index(name) for name in ("rsp", "rbp", "rip", "r10"))
_CALLS = {2: b"\xff", 3: b"\x41\xff", 4: b"\x41\xff", 5: b"\xe8"}  # size and first bytes of calls
_NOT_READ = "frames of JavaScript functions are not read"
_NOT_NAMED = "functions of JavaScript have no names in recorded stacks"
_NOT_STARTED = f"{_NOT_NAMED}: no thread was in V8 when the recording began; record again"
_MISSING = f"{_NOT_NAMED}: symbols or constants of this V8 are missing"


class JavaScriptFrames(ManagedFrames):
    """See ManagedFrames."""

    kind = KIND
    library_files = re.compile("^node:")

    def __init__(self, target: Target, engine: Engine) -> None:
        self.warnings: list[str] = []
        self._target, self._engine = target, engine

    @cached_property
    def _layout(self) -> Optional[Layout]:
        try:
            return derive(self._target)
        except (CapstoneMissing, Underivable) as error:
            self.warnings.append(f"{_NOT_READ}: {error}")
            return None

    @cached_property
    def _isolates(self) -> Sequence[Isolate]:
        return isolates(self._target, self._layout) if self._layout is not None else ()

    @cached_property
    def _heap(self) -> Optional[FrameHeap]:
        if self._layout is None:
            return None
        found = FrameHeap(self._target, self._engine, [one.address for one in self._isolates])
        if not found.is_readable:
            self.warnings.append(f"{_NOT_READ}: V8's table of roots was not found")
            return None
        return found

    @cached_property
    def _names(self) -> Optional[FrameNames]:
        return FrameNames(self._heap) if self._heap is not None else None

    # -- unwinding

    def step(self, pc: int, exact: bool, registers: Mapping[int, int]) -> Optional[CodeStep]:
        """Unwind the innermost frame. In all other frames the chain of frame pointers is whole."""
        if not exact or not {_SP, _FP} <= registers.keys() or not self._may_be_generated(pc) or self._names is None:
            return None
        builtin = self._names.builtins.find(pc)
        start = builtin.start if builtin is not None else self._names.generated_start(pc)
        if start is None:
            return None
        is_handler = builtin is not None and builtin.name.endswith(HANDLER)
        distance = builtin.distance if builtin is not None else 0
        state = frame_state(self._target, start - distance, pc - distance, calls_setup=self._names.webassembly.module_at(pc) != 0)
        caller = self._caller(state, is_handler, registers)
        return CodeStep(caller) if caller is not None else CodeStep(None, f"the frame of V8's code at {pc:#x} cannot be read")

    def _caller(self, state: int, is_handler: bool, registers: Mapping[int, int]) -> Optional[dict[int, int]]:
        """Return the registers of the caller: those in the likeliest state of the frame that has a
        return address. Bytecode handlers return to the interpreter only."""
        sp, fp = registers[_SP], registers[_FP]
        order = sorted((ABSENT, PUSHED, COMPLETE), key=lambda one: one != state)
        for one in order:
            frame = sp - 8 if one == ABSENT else sp if one == PUSHED else fp
            words = self._names.heap.memory.words(frame, 2) if self._names is not None and frame % 8 == 0 and frame >= sp - 8 else None
            if words is None:
                continue
            outer, returns = (fp if one == ABSENT else words[0]), words[1]
            if one == PUSHED and words[0] != fp:
                continue
            if self._is_return(returns, is_handler):
                return {**registers, _FP: outer, _SP: frame + 16, _PC: returns}
        returns = registers.get(_R10, 0)
        if state == ABSENT and not is_handler and self._is_return(returns, False):
            # The code removes arguments between the return address and the caller's frame.
            return {**registers, _PC: returns}
        return None

    def _is_return(self, pc: int, is_handler: bool) -> bool:
        parts = self._names
        if parts is None:
            return False
        builtin = parts.builtins.find(pc)
        if is_handler:
            return builtin is not None and is_interpreter(builtin.name)
        region = region_at(self._target.regions(), pc)
        if region is None or not region.executable:
            return False
        pc -= builtin.distance if builtin is not None else 0
        return any(parts.heap.memory.read(pc - size, len(code)) == code for size, code in _CALLS.items())

    # -- calls in a running process

    @property
    def reads_calls(self) -> bool:
        return self._calls is not None

    @cached_property
    def _calls(self) -> Optional[RecordedCalls]:
        return RecordedCalls(self._target, self._engine, self._layout) if self._layout is not None else None

    def read_again(self, read: Callable[[int, int], bytes]) -> None:
        if self._calls is not None:
            self._calls.read_again(CurrentMemory(self._target, read))

    @property
    def names_frames(self) -> bool:
        return self.reads_calls

    @property
    def chain_settings(self) -> Sequence[int]:
        return self._calls.chain_settings if self._calls is not None else ()

    def see_threads(self, thread_pointers: Sequence[int]) -> None:
        if self._calls is not None:
            self._calls.see_threads(thread_pointers)
            if not self.chain_settings:
                self.warnings.append(self._explain_no_settings(self._calls))

    def _explain_no_settings(self, calls: RecordedCalls) -> str:
        """Return a warning that recorded stacks have no names of functions."""
        if not calls.has_isolates:
            return _NOT_STARTED
        major, minor = self._heap.version if self._heap is not None else (0, 0)
        if major and not VERSIONS[0] <= (major, minor) < VERSIONS[1]:
            return f"{_NOT_NAMED}: V8 {major}.{minor} is not supported"
        return _MISSING

    def executes(self, pc: int) -> bool:
        return self._calls is not None and self._calls.is_moving(pc)

    def call_frame(self, pc: int) -> Optional[CallFrame]:
        return self._calls.call_frame(pc) if self._calls is not None and region_at(self._target.modules(), pc) is None else None

    def code_distance(self, pc: int) -> Optional[int]:
        return self._calls.code_distance(pc) if self._calls is not None and self._may_be_generated(pc) else None

    def call_functions(self, runtime: int, pc: int, fp: int) -> Sequence[NamedFrame]:
        return self._calls.functions(runtime, pc, fp) if self._calls is not None else ()

    def inherit(self, before: ManagedFrames) -> None:
        if isinstance(before, JavaScriptFrames) and self._calls is not None and before._calls is not None:
            self._calls.inherit(before._calls)
            self.warnings += (one for one in before.warnings if one not in self.warnings)

    def walk(self, thread_pointer: int) -> Optional[WalkFrame]:
        return self._calls.walk(thread_pointer) if self._calls is not None else None

    # -- names

    def segments(self, stack: NativeStack) -> Sequence[Segment]:
        found: list[Segment] = []
        if not any(self._may_be_generated(frame.pc) for frame in stack.trace.frames) or self._names is None:
            return found
        top = self._names.builtins.find(stack.trace.frames[0].pc)
        handler = stack.registers[0].registers if top is not None and top.name.endswith(HANDLER) else {}
        for at, (frame, known) in enumerate(zip(stack.trace.frames, stack.registers)):
            own = self._names.names(frame.pc, frame.call == frame.pc, known.registers, handler if at == 1 else {})
            names = (*self._waiting(frame.pc, stack.thread), *own)
            if names:
                found.append(Segment(at, names, True))
        return found

    def _may_be_generated(self, pc: int) -> bool:
        """Whether an address may be in V8's builtins or generated code. Without such an address
        nothing else is read, for example before a process has started V8."""
        return self._builtins.start <= pc < self._builtins.end or region_at(self._target.modules(), pc) is None

    @cached_property
    def _builtins(self) -> Range:
        """The range of the code of builtins in the program."""
        found = self._target.symbols_starting(PREFIX)
        return Range(min((one.address for one in found), default=0), max((one.address + one.size for one in found), default=0))

    def _waiting(self, pc: int, thread: Thread) -> Iterator[NamedFrame]:
        """Yield the functions that wait for the microtask that this frame executes."""
        if self._names is None:
            return
        builtin = self._names.builtins.find(pc)
        isolate = next((one.address for one in self._isolates if any(each.tid == thread.tid for each in one.threads)), None)
        if builtin is not None and builtin.name == MICROTASKS and isolate is not None:
            yield from self._names.waiting(isolate)


def find_frame_reader(target: Target) -> Optional[JavaScriptFrames]:
    """Return a reader for the V8 in this target; None if the V8 does not describe its heap."""
    from findleaks.engine.load import load  # sessions have loaded the engine

    return JavaScriptFrames(target, load(target.arch)) if has_metadata(target) else None
