"""Read the frames of Python functions that threads execute, without a heap.

_PyEval_EvalFrameDefault executes Python functions. Before 3.11, each call of it executes one Python
function. Since 3.11, one call also executes the Python functions that this function calls. The
native frame of the call then contains a structure that marks the outermost of these functions: a
_PyCFrame in 3.11, since 3.12 an entry frame. The address of this structure identifies the native
frame.

Sources: Include/cpython/frameobject.h of CPython 3.9 and 3.10 (PyFrameObject);
Include/internal/pycore_frame.h of 3.11 to 3.13, pycore_interpframe_structs.h of 3.14
(_PyInterpreterFrame and its owners); Include/cpython/pystate.h (PyThreadState, _PyCFrame)."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Optional

from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.allocators.pymalloc.instance import version_of
from findleaks.runtimes.cpython.call_chain import (
    C_FRAMES,
    ENTRY_FRAMES,
    PAIRED,
    ChainLayout,
    chain_settings,
    code_and_instruction,
    find_state,
    frame_spans,
)
from findleaks.runtimes.cpython.code_objects import UNIT, CodeObject, CodeReader, Types
from findleaks.runtimes.cpython.thread_states import Runtime, find_runtime, thread_states
from findleaks.runtimes.current_memory import CurrentMemory
from findleaks.target.arch import X86_64
from findleaks.target.base import Module, Range, Symbol, Target
from findleaks.target.ranges import region_at
from findleaks.unwind.managed_frames import DEEPEST, MOST_HASHED, ChainedCall, ChainPart, ManagedFrames, NativeStack, Segment
from findleaks.unwind.stacks import NamedFrame
from findleaks.value_classes import NamedTuple

KIND = "Python"
_EVALUATOR = "_PyEval_EvalFrameDefault"
_NOT_PYTHON = 3  # least owner of a frame that executes no Python function
_MOST_PASSED = 1 << 17  # frames behind the listed ones that are searched for an entry frame
_TAGS = 7  # bits of a reference of 3.14 (_PyStackRef)
_CURRENT = {(3, 9): 24, (3, 10): 24, (3, 11): 56, (3, 12): 56, (3, 13): 72, (3, 14): 72}
"""Offset in a thread state of the innermost frame; in 3.11 and 3.12 of the innermost _PyCFrame."""


class _Layout(NamedTuple):
    """Offsets in a frame. `owner` is -1 if a frame has none, or if it does not matter."""

    code: int
    previous: int
    instruction: int
    owner: int


class _CFrame(NamedTuple):
    """A _PyCFrame of 3.11: its address, the innermost frame, and the previous _PyCFrame."""

    address: int
    frame: int
    previous: int


_OLD_LAYOUTS = {(3, 9): _Layout(32, 24, 104, -1), (3, 10): _Layout(32, 24, 96, -1), (3, 11): _Layout(32, 48, 56, -1)}


def _layout_of(release: tuple[int, int]) -> _Layout:
    return _OLD_LAYOUTS.get(release) or _Layout(0, 8, 56, 70 if release < (3, 14) else 74)


def _is_supported(runtime: Optional[Runtime]) -> bool:
    """Whether frames of a version can be read. Free-threaded 3.14 has bytecode for each thread."""
    return runtime is not None and runtime.release in _CURRENT and not (runtime.shift and runtime.release >= (3, 14))


def find_frame_reader(target: Target) -> Optional[FrameReader]:
    """Return a reader for the interpreter in a process; None if there is none, if it exports no
    symbols, or if the machine is one of 32 bits or big-endian."""
    symbol = target.symbol("_PyRuntime")
    memory = Memory(target)
    if symbol is None or memory.size != 8 or target.arch.byteorder != "little":
        return None
    image = next((one for one in find_images(target) if one.module.start <= symbol.address < one.module.end), None)
    if image is None:
        return None
    numbers = re.match(r"(\d+)\.(\d+)", version_of(target, image))
    if numbers is None:
        return None  # the interpreter was not started
    runtime = find_runtime(memory, symbol.address, (int(numbers[1]), int(numbers[2])))
    types = [target.symbol(name, image.name) for name in ("PyCode_Type", "PyUnicode_Type", "PyBytes_Type")]
    known = [one.address for one in types if one is not None]
    return FrameReader(target, memory, runtime, Types(*known) if len(known) == len(types) else None, symbol)


class FrameReader(ManagedFrames):
    """Reads frames of Python functions; see ManagedFrames."""

    kind = KIND
    library_files = re.compile(r"<frozen|/lib(?:64)?/python\d[\d.]*t?/(?!.*(-packages|gems)/)")

    def __init__(self, target: Target, memory: Memory, runtime: Optional[Runtime], types: Optional[Types], symbol: Symbol) -> None:
        """`symbol`: the symbol _PyRuntime."""
        self._target, self._memory, self._symbol = target, memory, symbol
        self._states: Mapping[int, Sequence[int]] = {}
        self._named: dict[tuple[int, int], NamedFrame] = {}
        self.warnings: list[str] = []
        self.number_read = 0  # frames read so far, also internal and damaged ones
        self._is_supported = runtime is not None and types is not None and _is_supported(runtime)
        if runtime is None or not _is_supported(runtime) or types is None:
            self._warn("this version of CPython is not supported" if types is not None else "symbols are missing")
            return
        self._release, self._layout = runtime.release, _layout_of(runtime.release)
        self._types, self._runtime = types, runtime
        self._code = CodeReader(memory, types, runtime.release, runtime.shift)
        self._states = thread_states(target, memory, runtime)

    def _warn(self, why: str) -> None:
        text = f"frames of Python functions are not read: {why}"
        if text not in self.warnings:
            self.warnings.append(text)

    # -- calls in a running process

    @cached_property
    def _chain(self) -> Optional[ChainLayout]:
        """How the chain of frames is found; None if it is unknown. Also None for a free-threaded
        interpreter, because it may free code objects at any time."""
        if not self._is_supported or self._runtime.shift or self._target.arch.name != X86_64.name:
            return None
        state = find_state(self._memory, self._symbol, self._runtime)
        kind = PAIRED if self._release < (3, 11) else C_FRAMES if self._release == (3, 11) else ENTRY_FRAMES
        if state is None or (kind == PAIRED and not self._evaluators):
            return None
        code, previous, instruction, owner = self._layout
        return ChainLayout(kind, state, _CURRENT[self._release], self._release == (3, 12), code, previous, instruction, max(owner, 0))

    @property
    def reads_calls(self) -> bool:
        return self._chain is not None

    @property
    def chain_settings(self) -> Sequence[int]:
        return chain_settings(self._chain, self._types.code, self._release) if self._chain is not None else ()

    @property
    def is_paired(self) -> bool:
        return self._chain is not None and self._chain.kind == PAIRED

    def executes(self, pc: int) -> bool:
        if self.is_paired:
            return any(start < pc <= end for start, end in self._evaluators)
        return self._module.start <= pc < self._module.end if self._module is not None else False

    @cached_property
    def _module(self) -> Optional[Module]:
        return region_at(self._target.modules(), self._symbol.address)

    def read_again(self, read: Callable[[int, int], bytes]) -> None:
        if self._chain is not None:
            self._memory = CurrentMemory(self._target, read)
            self._code = CodeReader(self._memory, self._types, self._release, self._runtime.shift)

    def chain_parts(self, thread_pointer: int, stack: Range) -> Iterator[ChainPart]:
        if self._chain is None:
            return
        for span in frame_spans(self._memory, self._chain, thread_pointer):
            calls = []
            for frame in span.frames:
                address, instruction = code_and_instruction(self._memory, self._chain, frame)
                calls.append(ChainedCall(self.function(address), instruction))
            yield ChainPart(span.anchor, calls)

    def function(self, address: int) -> Optional[CodeObject]:
        """Return the code object at an address. In the result, `bytecode` is an offset from the
        address of the code object."""
        code = self._code.read(address) if self._chain is not None else None
        return code._replace(bytecode=code.bytecode and code.bytecode - address) if code is not None else None

    def read_code(self, address: int) -> Optional[CodeObject]:
        """Return the code object at an address; None if there is none, or if the version of the
        interpreter is not supported."""
        return self._code.read(address) if self._is_supported else None

    def name_bytecode(self, function: Hashable, address: int) -> Optional[NamedFrame]:
        if function is None:
            return NamedFrame(0, "", 0, "", kind=KIND)
        if not isinstance(function, CodeObject) or function.is_internal:
            return None
        if function.bytecode:
            at = address - function.bytecode
        else:
            at = (address - (address >> 31 << 32)) * (UNIT if self._release == (3, 10) else 1)
        # If the stub hashed only a part of the table of lines, this table may be that of another
        # function.
        is_known = len(function.table) <= MOST_HASHED or self._release >= (3, 12)
        return NamedFrame(0, function.function, 0, "", function.file, self._code.find_line(function, at) if is_known else 0, kind=KIND)

    # -- stacks

    def segments(self, stack: NativeStack) -> Sequence[Segment]:
        """Return the frames of a thread; see ManagedFrames."""
        found: list[Segment] = []
        for state in self._states.get(stack.thread.tid, ()):
            current = self._memory.word(state + _CURRENT[self._release]) or 0
            if self._release < (3, 11):
                found += self._pair_frames(stack, list(self._frames(current)))
            elif self._release == (3, 11):
                found += self._by_c_frames(stack, current)
            else:
                found += self._by_entry_frames(stack, self._innermost(current) if self._release == (3, 12) else current)
        return sorted(found, key=lambda one: one.at if one.at >= 0 else len(stack.trace.frames))

    def name_frame(self, frame: int) -> Optional[NamedFrame]:
        """Return the name of the frame at this address, such as that of a suspended coroutine; None
        if it is damaged."""
        named = self._name(frame) if self._is_supported else None
        return named if named is not None and named.function else None

    @property
    def has_inner_frames(self) -> bool:
        """Whether a frame object contains the address of its frame; before 3.11 it is the frame."""
        return self._is_supported and self._release >= (3, 11)

    def name_frames(self, frame: int, most: int = DEEPEST) -> Sequence[NamedFrame]:
        """Return the names of this frame and of those that called it, innermost first, at most
        `most`; () if one is damaged."""
        found: list[NamedFrame] = []
        for _, named in islice(self._frames(frame), None if most >= DEEPEST else most) if self._is_supported else ():
            if named is not None and not named.function:
                return ()
            if named is not None:
                found.append(named)
        return tuple(found)

    def _frames(self, frame: int, end: int = 0) -> Iterator[tuple[int, Optional[NamedFrame]]]:
        """Yield the address of each frame up to `end`, with its name; None for an entry frame and
        other frames of the interpreter itself."""
        for _ in range(DEEPEST):
            if not frame or frame == end:
                return
            self.number_read += 1
            previous = self._memory.word(frame + self._layout.previous)
            if previous is None:
                self._warn("some are damaged")
                return
            yield frame, self._name(frame) if self._is_python(frame) else None
            frame = previous
        self._warn(f"a thread has more than {DEEPEST:,}")

    def _is_python(self, frame: int) -> bool:
        if self._layout.owner < 0:
            return True
        owner = self._memory.read(frame + self._layout.owner, 1)
        return not owner or owner[0] < _NOT_PYTHON

    def _name(self, frame: int) -> Optional[NamedFrame]:
        address = (self._memory.word(frame + self._layout.code) or 0) & ~_TAGS
        code = self._code.read(address)
        if code is None:
            self._warn("some are damaged")
            return NamedFrame(0, "", 0, "", kind=KIND)
        if code.is_internal:
            return None
        at = self._instruction(frame, code.bytecode)
        key = address, at
        if key not in self._named:
            line = self._code.line(address, code, at)
            self._named[key] = NamedFrame(0, code.function, 0, "", code.file, line, kind=KIND)
        return self._named[key]

    def _instruction(self, frame: int, bytecode: int) -> int:
        """Return the offset in bytes of the instruction that a frame executes; -1 or -2 before the
        first."""
        if self._release >= (3, 11):
            return (self._memory.word(frame + self._layout.instruction) or 0) - bytecode
        at = self._memory.int32(frame + self._layout.instruction) or 0
        if at >> 31:
            return -1
        return at * UNIT if self._release == (3, 10) else at

    def _innermost(self, c_frame: int) -> int:
        """Return the innermost frame of 3.12, whose _PyCFrame has {innermost frame, previous
        _PyCFrame}."""
        frame, previous = self._memory.words(c_frame, 2) or (0, 0)
        outer = self._memory.word(previous) or 0 if previous else 0
        return frame if self._distance(frame, outer, DEEPEST) >= 0 else outer

    def _by_entry_frames(self, stack: NativeStack, first: int) -> Iterator[Segment]:
        frames: list[NamedFrame] = []
        address, is_cut = 0, False
        for number, (address, frame) in enumerate(self._frames(first), 1):
            is_cut = number == DEEPEST
            at = stack.find(address) if frame is None else -1
            if frame is not None:
                frames.append(frame)
            elif frames and at >= 0:  # an entry frame is on the native stack
                yield Segment(at, tuple(frames))
                frames = []
        if frames:
            yield Segment(stack.find(self._find_entry(address)) if is_cut else -1, tuple(frames))

    def _find_entry(self, frame: int) -> int:
        """Return the address of the entry frame of the call that executes a frame; 0 if none is
        found."""
        for _ in range(_MOST_PASSED):
            frame = self._memory.word(frame + self._layout.previous) or 0
            if not frame or not self._is_python(frame):
                return frame
        return 0

    def _by_c_frames(self, stack: NativeStack, c_frame: int) -> Iterator[Segment]:
        """Yield the frames of 3.11."""
        inner, left = self._c_frame(c_frame), DEEPEST
        while inner.address and left > 0:
            outer = self._c_frame(inner.previous)
            count = self._distance(inner.frame, outer.frame, left)
            if count < 0 and inner.address != c_frame:
                return self._warn("some are damaged")
            frames = self._frames(inner.frame, outer.frame) if count > 0 else ()
            found = tuple(frame for _, frame in frames if frame is not None)
            if found:
                yield Segment(stack.find(inner.address), found)
            inner, left = outer, left - max(count, 0) - 1

    def _distance(self, frame: int, outer: int, most: int) -> int:
        """Return the number of frames from `frame` outwards before `outer`, at most `most`; -1 if
        they do not lead there. The innermost structure on the native stack may have no frame yet,
        but a stale address."""
        seen: set[int] = set()
        while len(seen) < most:
            if not frame or frame == outer or frame in seen:
                return len(seen) if frame == outer else -1
            seen.add(frame)
            frame = self._memory.word(frame + self._layout.previous) or 0
        return most

    def _c_frame(self, address: int) -> _CFrame:
        words = self._memory.words(address, 3) if address else None
        return _CFrame(address, words[1], words[2]) if words is not None else _CFrame(0, 0, 0)

    @cached_property
    def _evaluators(self) -> Sequence[tuple[int, int]]:
        """Return start and end of each part of _PyEval_EvalFrameDefault, which executes Python
        functions."""
        parts = [self._target.symbol(name) for name in (_EVALUATOR, f"{_EVALUATOR}.cold")]
        return [(one.address, one.address + one.size) for one in parts if one is not None]

    def _pair_frames(self, stack: NativeStack, frames: Sequence[tuple[int, Optional[NamedFrame]]]) -> Iterator[Segment]:
        """Yield the frames of 3.9 and 3.10: each has a native frame. The innermost native frame may
        have no Python frame yet, or its Python frame may have ended. In a greenlet, the outermost
        native frames belong to other greenlets, and their Python frames are not in `frames`."""
        parts, addresses = self._evaluators, [address for address, _ in frames]
        native = [at for at, frame in enumerate(stack.trace.frames) if any(start <= frame.call < end for start, end in parts)]
        if len(native) > len(frames) and self._is_executed_by(stack, native[1:], addresses):
            del native[0]
        if len(native) >= len(frames) or stack.trace.end:
            places = [*native, *[-1] * len(frames)][: len(frames)]
        else:
            places = [self._find_owner(stack, address) for address in addresses]
            for at in range(len(places) - 2, -1, -1):  # a stale address may be in an outer frame
                places[at] = min(places[at], places[at + 1], key=lambda one: one if one >= 0 else DEEPEST)
        for at, (_, frame) in zip(places, frames):
            if frame is not None:
                yield Segment(at, (frame,))

    def _is_executed_by(self, stack: NativeStack, native: Sequence[int], addresses: Sequence[int]) -> bool:
        """Return whether most native frames refer to the Python frame at the same position in
        `addresses`. A call of _PyEval_EvalFrameDefault keeps this address in a register or in its
        part of the stack; calls outside it do not."""
        pairs, frames = list(zip(native, addresses)), stack.trace.frames
        known = 0
        for at, address in pairs:
            size = frames[at + 1].sp - frames[at].sp if at + 1 < len(frames) else 0
            words = self._memory.words(frames[at].sp, size // self._memory.size) if 0 < size < 1 << 16 else None
            registers, own = stack.registers[at]
            known += address in (words or ()) or address in map(registers.get, own or ())
        return 2 * known > len(pairs)

    def _find_owner(self, stack: NativeStack, frame: int) -> int:
        """Return the index of the outermost native frame that has the address of a Python frame; -1
        if none has.

        This is the caller of _PyEval_EvalFrameDefault. It is needed if that function's frame was
        not recognised because it executes a part that the compiler moved elsewhere."""
        frames = stack.trace.frames
        for at in range(len(frames) - 2, -1, -1):
            size = frames[at + 1].sp - frames[at].sp
            if 0 < size < 1 << 16 and frame in (self._memory.words(frames[at].sp, size // self._memory.size) or ()):
                return at
        return -1
