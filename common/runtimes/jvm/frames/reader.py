"""Unwind the JVM's code cache, and name the Java methods in it.

The JVM executes Java methods in three kinds of code, all in its code cache:

- The interpreter. Its frames have a frame pointer, and at fixed distances from it the method and
  the current bytecode.
- Compiled methods, and wrappers of native methods. Their frames have a fixed size and no frame
  pointer. Tables describe which methods, also inlined ones, are executed at each call.
- Stubs, among them the one through which native code calls Java methods.

The caller of a frame of Java code is in the code cache, too. Each step is checked against this, so
that damaged or incomplete frames end a stack.

Sources: OpenJDK 8 to 25, src/hotspot/cpu/x86: frame_x86.hpp (interpreted frames; in JDK 8 they lack
the word for the mirror), frame_x86.cpp, stubGenerator_x86_64.cpp (call stub)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.current_memory import CurrentMemory
from findleaks.runtimes.jvm.frames.code_cache import CodeBlob, CodeCache
from findleaks.runtimes.jvm.frames.debug_information import DebugInformation, Scope
from findleaks.runtimes.jvm.frames.locks import JavaLocks, ThreadLocks
from findleaks.runtimes.jvm.frames.machine_code import PartialFrame, partial_frame
from findleaks.runtimes.jvm.frames.methods import JavaMethod, MethodReader, Numbers
from findleaks.runtimes.jvm.frames.monitors import Monitor, MonitorReader
from findleaks.runtimes.jvm.layout import read_layout
from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.arch import X86_64
from findleaks.target.base import Module, Target
from findleaks.target.ranges import region_at
from findleaks.unwind.frame_locks import LockWait, find_deadlocks
from findleaks.unwind.frames import CodeStep
from findleaks.unwind.managed_frames import CallFrame, ManagedFrames, NativeStack, Segment
from findleaks.unwind.stacks import NamedFrame
from findleaks.value_classes import NamedTuple

KIND = "Java"
_LIBRARIES = ("java.", "javax.", "jdk.", "sun.")  # packages of Java's own library
# Prefixes of library functions that other library functions call in order to wait
_WAITING = ("jdk.internal.", "sun.misc.", "java.lang.", "java.util.concurrent.locks.", "java.util.concurrent.ForkJoinPool.")
_REGISTERS = X86_64.dwarf_registers
_SP, _FP, _PC, _BCP, _RAX, _RBX = (_REGISTERS.index(name) for name in ("rsp", "rbp", "rip", "r13", "rax", "rbx"))
_WORD = 8
_FRAME_WORDS = 9  # words of an interpreted frame below the frame pointer
# Indices of these words, counted from the lowest address
_METHOD, _SENDER_SP = _FRAME_WORDS - 3, _FRAME_WORDS - 1
# Index of the word with the address of the bytecode: JDK 9 and later; JDK 8
_BYTECODES = (1, 2)
_MOST_EXTENSION = 1 << 20  # bytes of arguments and variables between two frames
_ENTRY_WRAPPER = 6  # words from the frame pointer down to the address of the JavaCallWrapper
# Words from the frame pointer down to the saved registers
_ENTRY_SAVED = {"rbx": 7, "r12": 8, "r13": 9, "r14": 10, "r15": 11}
_CONTINUATION = "continuation"  # part of the name of the stubs of virtual threads
_MOST_STUB_FRAME = 1 << 10  # bytes of the frame of a stub with a frame pointer
_MOST_TEMPORARY = 1 << 12  # bytes of monitors and arguments in a frame of the interpreter
_ENTRY, _ENTER = "method entry point", b"\x55\x48\x8b\xec"  # push rbp; mov rbp, rsp
_CALLS = {2: b"\xff", 3: b"\x41\xff", 5: b"\xe8"}  # size and first bytes of calls


class _Interpreted(NamedTuple):
    """A frame of the interpreter. `bytecode`: the index of the bytecode, -1 if it is unknown."""

    method: JavaMethod
    bytecode: int
    words: Sequence[int]


class _Entered(NamedTuple):
    """A method whose frame is not complete. `caller`: the registers of the caller, None if they are
    unknown."""

    method: JavaMethod
    caller: Optional[dict[int, int]]


class _Compilation(NamedTuple):
    """What tells compiled methods at one address apart: the address of the method's code, the
    number of its compilation, which is unique, and the code after a call in it. The JVM may patch
    this code while it is in use."""

    address: int
    number: Optional[int]
    code: bytes


class _LoadedMethod(NamedTuple):
    """A method, and what tells loads of its class apart."""

    method: JavaMethod
    loaded_class: int


class JavaFrames(ManagedFrames):
    """See ManagedFrames."""

    kind = KIND

    def __init__(self, target: Target, module: Module) -> None:
        self.warnings: list[str] = []
        self._target, self._memory = target, Memory(target)
        self._tables = tables = Tables(target, module)
        self._read_code()
        self._call_stub = tables.word("StubRoutines", "_call_stub_return_address") or 0
        if target.arch.name != X86_64.name:
            self._warn("this machine is not supported")
        elif not self._cache.is_known or not self._call_stub:
            self._warn("the code cache was not found")

    def _read_code(self) -> None:
        tables = self._tables
        numbers = Numbers(1 if ("InstanceKlass", "_fieldinfo_stream") in tables.fields else 0)
        self._cache = CodeCache(tables)
        self._methods = MethodReader(tables, numbers)
        self._debug = DebugInformation(tables, numbers)
        layout = read_layout(tables)
        self._locks = JavaLocks(tables, layout) if layout is not None else None
        self._monitors = MonitorReader(tables, numbers, self._debug, layout) if layout is not None else None

    def _warn(self, why: str) -> None:
        text = f"frames of Java methods are not read: {why}"
        if text not in self.warnings:
            self.warnings.append(text)

    @cached_property
    def _is_supported(self) -> bool:
        return not self.warnings

    def is_of_library(self, frame: NamedFrame) -> bool:
        return frame.function.startswith(_LIBRARIES)

    def is_of_wait(self, frame: NamedFrame) -> bool:
        return frame.function.startswith(_WAITING)

    def idle_remedies(self, frames: Sequence[NamedFrame]) -> Sequence[str]:
        from findleaks.runtimes.jvm.remedies import find_idle_remedies  # few commands need it

        return find_idle_remedies([one.function for one in frames])

    def thread_names(self) -> Mapping[int, str]:
        from findleaks.runtimes.jvm.thread_names import java_thread_names

        return java_thread_names(self._tables)

    # -- unwinding

    def step(self, pc: int, exact: bool, registers: Mapping[int, int]) -> Optional[CodeStep]:
        if not self._is_supported or pc not in self._cache:
            return None
        caller = self._step(pc, exact, registers) if {_SP, _FP} <= registers.keys() else None
        return CodeStep(caller) if caller is not None else CodeStep(None, f"the frame of the JVM's code at {pc:#x} cannot be read")

    def _step(self, pc: int, exact: bool, registers: Mapping[int, int]) -> Optional[dict[int, int]]:
        if pc == self._call_stub and not exact:
            return self._step_entry(registers)
        if self._cache.is_interpreted(pc):
            return self._step_interpreted(pc, exact, registers)
        blob = self._cache.find(pc)
        if blob is None:
            return None
        if not blob.frame_bytes:
            return self._step_stub(exact, registers)
        part: Optional[PartialFrame] = PartialFrame(blob.frame_bytes, True)
        if exact:
            part = partial_frame(self._target, blob, self._debug.entries(blob) if blob.method else (blob.start,), pc)
        return self._step_part(part, registers) if part is not None else None

    def _step_part(self, part: PartialFrame, registers: Mapping[int, int]) -> Optional[dict[int, int]]:
        sp = registers[_SP] + part.size
        words = self._memory.words(sp - 2 * _WORD, 2)
        if words is None or not self._is_code(words[1]):
            return None
        return {**registers, _FP: words[0] if part.has_saved else registers[_FP], _SP: sp, _PC: words[1]}

    def _step_interpreted(self, pc: int, exact: bool, registers: Mapping[int, int]) -> Optional[dict[int, int]]:
        entered = self._find_entered(pc, registers) if exact else None
        if entered is not None:
            return entered.caller
        frame = self._read_interpreted(exact, registers)
        if frame is None:
            return None
        outer, returns = frame.words[_FRAME_WORDS:]
        sp = self._outer_sp(registers[_FP], frame.words[_SENDER_SP])
        return {_FP: outer, _SP: sp, _PC: returns} if self._is_code(returns) else None

    def _step_entry(self, registers: Mapping[int, int]) -> Optional[dict[int, int]]:
        """Return the registers of the native code that called a Java method."""
        fp = registers[_FP]
        words = self._memory.words(fp, 2) if fp % _WORD == 0 and fp > registers[_SP] else None
        wrapper = self._memory.word(fp - _ENTRY_WRAPPER * _WORD) or 0
        stack = region_at(self._target.regions(), fp)
        if words is None or stack is None or not fp < wrapper < stack.end:
            return None
        caller = {_FP: words[0], _SP: fp + 2 * _WORD, _PC: words[1]}
        for name, distance in _ENTRY_SAVED.items():
            value = self._memory.word(fp - distance * _WORD)
            if value is not None:
                caller[_REGISTERS.index(name)] = value
        return caller

    def _step_stub(self, exact: bool, registers: Mapping[int, int]) -> Optional[dict[int, int]]:
        """Return the caller of a stub. A stub that was interrupted may have no frame. If it is an
        adapter, the return address may be in rax. Stubs that call functions have a frame
        pointer."""
        sp, fp = registers[_SP], registers[_FP]
        returns = self._memory.word(sp) or 0
        if exact and self._follows_call(returns):
            return {**registers, _SP: sp + _WORD, _PC: returns}
        if exact and self._follows_call(registers.get(_RAX, 0)):
            # The code that takes the address from the stack keeps the caller's stack pointer.
            outer = registers.get(_BCP, 0)
            return {**registers, _SP: outer if sp <= outer < sp + _MOST_EXTENSION else sp, _PC: registers[_RAX]}
        words = self._memory.words(fp, 2) if sp <= fp < sp + _MOST_STUB_FRAME else None
        if words is None or not self._follows_call(words[1]) or self._read_interpreted(False, registers) is not None:
            return None
        return {**registers, _FP: words[0], _SP: fp + 2 * _WORD, _PC: words[1]}

    def _is_code(self, pc: int) -> bool:
        """Return whether Java code may return to this address."""
        return self._cache.is_interpreted(pc) or self._cache.find(pc) is not None

    def _follows_call(self, pc: int) -> bool:
        """Return whether an address of Java code follows a call."""
        if pc not in self._cache or not self._is_code(pc):
            return False
        return self._cache.is_interpreted(pc) or any(self._memory.read(pc - size, len(code)) == code for size, code in _CALLS.items())

    def _find_entered(self, pc: int, registers: Mapping[int, int]) -> Optional[_Entered]:
        """Return the method that the interpreter is about to execute, if its frame does not exist
        or is incomplete. Until it is complete, rbx has the method, and r13 the stack pointer of the
        caller."""
        codelet = self._cache.codelet(pc)
        if codelet is None or not codelet.description.startswith(_ENTRY):
            return None
        at = self._memory.read(codelet.start, codelet.end - codelet.start).find(_ENTER) + codelet.start
        method, sp, fp = self._methods.read(registers.get(_RBX, 0)), registers[_SP], registers[_FP]
        if at < codelet.start or pc <= at:
            return _Entered(method, self._step_stub(True, registers)) if method is not None else None
        place = sp if pc == at + 1 else fp
        if method is None or not 0 <= place - sp < (_FRAME_WORDS - 1) * _WORD:
            return None
        words = self._memory.words(place, 2)
        if words is None or not self._is_code(words[1]):
            return _Entered(method, None)
        stored = self._memory.word(place - _WORD) if place > sp else None
        outer = self._outer_sp(place, stored or registers.get(_BCP, 0))
        return _Entered(method, {_FP: words[0], _SP: outer, _PC: words[1]})

    @staticmethod
    def _outer_sp(fp: int, sp: int) -> int:
        """Return the stack pointer of the caller of a frame of the interpreter, which extends the
        caller's frame by arguments and variables. `sp`: the one that the frame has."""
        least = fp + 2 * _WORD
        return sp if least <= sp < least + _MOST_EXTENSION and sp % _WORD == 0 else least

    def _read_interpreted(self, exact: bool, registers: Mapping[int, int]) -> Optional[_Interpreted]:
        """Return the interpreter's frame at the frame pointer; None if there is none."""
        fp, sp = registers[_FP], registers[_SP]
        words = self._memory.words(fp - _FRAME_WORDS * _WORD, _FRAME_WORDS + 2) if fp % _WORD == 0 and sp < fp else None
        if words is None:
            return None
        method = self._methods.read(words[_METHOD])
        if method is None or fp - sp > _MOST_TEMPORARY + method.stack_bytes:
            return None
        if method.is_native:
            return _Interpreted(method, -1, words)
        addresses = [registers.get(_BCP, 0)] if exact else []
        addresses += [words[index] for index in _BYTECODES if fp - (_FRAME_WORDS - index) * _WORD >= sp]
        at = next((one - method.start for one in addresses if method.start <= one < method.end), -1)
        return _Interpreted(method, at, words) if at >= 0 else None

    # -- frames at return addresses, without registers

    @property
    def reads_calls(self) -> bool:
        return self._is_supported

    def read_again(self, read: Callable[[int, int], bytes]) -> None:
        self._memory = self._tables.memory = CurrentMemory(self._target, read)
        self._read_code()

    def call_frame(self, pc: int) -> Optional[CallFrame]:
        if pc not in self._cache:
            return None
        if self._cache.is_interpreted(pc):
            return CallFrame((), bytecode=self._bytecode_word)
        if pc == self._call_stub:
            return CallFrame((NamedFrame(pc, "call_stub", 0, ""),), called_by_native=True)
        blob = self._cache.find(pc)
        frames = tuple(self._names(pc, False, {}))
        # Frames of a virtual thread may be in the Java heap. The outermost frame on the stack
        # returns to a stub, and its saved frame pointer belongs to the carrier thread.
        if blob is None or not (blob.frame_bytes or _CONTINUATION in blob.name):
            return CallFrame(frames, end=f"the frame of the JVM's code at {pc:#x} cannot be read")
        return CallFrame(frames, blob.frame_bytes, identity=self._compilation(blob.address, pc) if blob.method else blob)

    def is_current(self, pc: int, frame: CallFrame) -> bool:
        if not isinstance(frame.identity, _Compilation):
            return self.call_frame(pc) == frame
        blob, before = self._cache.find(pc), frame.identity
        now = self._compilation(before.address, pc)
        if blob is not None:
            return (blob.address, now.number) == (before.address, before.number)
        # The JVM frees compiled methods often. What it has freed stays in memory until other code
        # is put there.
        return now == before

    def _compilation(self, address: int, pc: int) -> _Compilation:
        return _Compilation(address, self._tables.int32("nmethod", "_compile_id", address), self._memory.read(pc, _WORD))

    @cached_property
    def _bytecode_word(self) -> int:
        """The offset of the address of the bytecode from the frame pointer of the interpreter."""
        is_8 = ("JVMFlag", "flags") not in self._tables.fields
        return (_BYTECODES[1 if is_8 else 0] - _FRAME_WORDS) * _WORD

    def function(self, address: int) -> Optional[_LoadedMethod]:
        method = self._methods.read(address)
        return _LoadedMethod(method, self._methods.loaded_class(address)) if method is not None else None

    def name_bytecode(self, function: Hashable, address: int) -> Optional[NamedFrame]:
        if not isinstance(function, _LoadedMethod):
            return None
        method = function.method
        if method.is_native:
            return self._name(method, -1)
        return self._name(method, address - method.start) if method.start <= address < method.end else None

    # -- names

    def segments(self, stack: NativeStack) -> Sequence[Segment]:
        if not self._is_supported:
            return ()
        found = []
        locks = self._locks.of_thread(stack.thread.tid) if self._locks is not None else None
        for at, (frame, known) in enumerate(zip(stack.trace.frames, stack.registers)):
            if frame.pc in self._cache and {_SP, _FP} <= known.registers.keys():
                names = tuple(self._names(frame.pc, frame.call == frame.pc, known.registers, locks))
                if names:
                    found.append(Segment(at, names, True))
        return found

    def deadlocks(self) -> Sequence[Sequence[LockWait]]:
        return find_deadlocks(self._locks.waits()) if self._is_supported and self._locks is not None else ()

    def _names(self, pc: int, exact: bool, registers: Mapping[int, int], locks: Optional[ThreadLocks] = None) -> Iterator[NamedFrame]:
        """Yield the names of a frame. `locks`: reads the locks of the thread's frames."""
        if self._cache.is_interpreted(pc):
            entered = self._find_entered(pc, registers) if exact else None
            if entered is not None:
                yield self._name(entered.method, 0)
                return
            frame = self._read_interpreted(exact, registers)
            if frame is not None:
                monitors = self._monitors.read_interpreted(registers[_FP], self._bytecode_word) if self._monitors is not None else ()
                yield with_locks(self._name(frame.method, frame.bytecode), locks, monitors)
                return
            codelet = self._cache.codelet(pc)
            if codelet is not None:
                yield NamedFrame(pc, f"interpreter: {codelet.description}", pc - codelet.start, "")
            return
        blob = self._cache.find(pc)
        if blob is None:
            return
        if not blob.method:
            yield self._name_stub(blob, pc, exact)
            return
        # The tables describe only calls, so the methods inlined at other instructions are unknown.
        for scope in [Scope(blob.method, -1)] if exact else self._scopes(blob, pc, registers):
            known = self._methods.read(scope.method)
            named = self._name(known, scope.bytecode) if known is not None else NamedFrame(0, "", 0, "", kind=KIND)
            monitors = self._monitors.read_compiled(blob, scope, registers) if self._monitors is not None and locks is not None else ()
            yield with_locks(named, locks, monitors)

    def _name_stub(self, blob: CodeBlob, pc: int, exact: bool) -> NamedFrame:
        if pc == self._call_stub:
            return NamedFrame(pc, "call_stub", 0, "")
        # The outermost frame on the stack returns to this stub, which copies further frames.
        if _CONTINUATION in blob.name and not exact:
            return NamedFrame(pc, "further frames are in the Java heap", 0, "")
        return NamedFrame(pc, blob.name, pc - blob.start, "")

    def _scopes(self, blob: CodeBlob, pc: int, registers: Mapping[int, int]) -> Sequence[Scope]:
        found = self._debug.scopes(blob, pc)
        if not found:
            original = self._debug.original_pc(blob, pc, registers.get(_SP, 0))
            found = self._debug.scopes(blob, original) if original is not None and blob.start <= original < blob.end else ()
        return found or (Scope(blob.method, -1),)

    def _name(self, method: JavaMethod, bytecode: int) -> NamedFrame:
        line = self._methods.line(method, bytecode) if bytecode >= 0 and not method.is_native else 0
        return NamedFrame(0, method.name, 0, "", method.file, line, kind=KIND)


def with_locks(frame: NamedFrame, locks: Optional[ThreadLocks], monitors: Sequence[Monitor]) -> NamedFrame:
    """Return the frame with its locks; without locks if `locks` is None."""
    found = locks.of_frame(frame.function, monitors) if locks is not None else ()
    return frame._replace(locks=found) if found else frame


def find_frame_reader(target: Target, module: Module) -> Optional[JavaFrames]:
    """Return a reader for the JVM in this file; None if its tables cannot be read."""
    if Memory(target).size != 8:
        return None
    reader = JavaFrames(target, module)
    return reader if reader._tables.fields else None
