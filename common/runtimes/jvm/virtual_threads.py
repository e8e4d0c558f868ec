"""List virtual threads that no thread carries, with their frames, which are in the Java heap.

Sources: OpenJDK 21 and 25, src/java.base/share/classes/java/lang/VirtualThread.java,
jdk/internal/vm/Continuation.java and StackChunk.java; src/hotspot/share/oops:
stackChunkOop.hpp, src/hotspot/cpu/x86: stackChunkFrameStream_x86.inline.hpp. A virtual thread has
a continuation, and this has a list of StackChunk objects. The words of a stack follow the fields of
such an object. Its frames are like those on a thread's stack, with one exception: the word that
would contain the frame pointer of an interpreted frame contains the distance from this word to the
frame pointer, in words."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.engine.contract import Engine
from findleaks.runtimes.base import Runtime, UserThread
from findleaks.runtimes.jvm import spaces
from findleaks.runtimes.jvm.concurrent import concurrent_heap
from findleaks.runtimes.jvm.concurrent_spaces import concurrent_spaces
from findleaks.runtimes.jvm.frames.reader import JavaFrames
from findleaks.runtimes.jvm.java_classes import STACK_CHUNK, SUSPENDED, VIRTUAL_THREAD, class_of
from findleaks.runtimes.jvm.layout import read_layout
from findleaks.runtimes.jvm.object_fields import ObjectFields
from findleaks.runtimes.jvm.objects import JavaObjects
from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.base import Module, Range, Target
from findleaks.target.interruptible import interruptible
from findleaks.unwind.managed_frames import DEEPEST
from findleaks.unwind.stacks import NamedFrame
from findleaks.value_classes import NamedTuple

_CHUNK_CLASS = "InstanceStackChunkKlass"
_ENTER = "jdk.internal.vm.Continuation.enter"  # the outermost method of a virtual thread
_WORD = 8
_METHOD, _LINK = 3, 2  # words below the frame pointer; words below the stack pointer
_MOST_WORDS = 1 << 20  # of a stack
_MOST_CHUNKS = 1 << 10  # of a virtual thread
_CUT = NamedFrame(0, "further frames cannot be read", 0, "")
_CACHED = 1 << 16


class _Stack(NamedTuple):
    """The words of a stack in a StackChunk at `address`. Those from `top` on are in use. `pc` is
    the address at which the innermost frame continues, 0 if it is unknown."""

    address: int
    words: Sequence[int]
    top: int
    pc: int


class VirtualThreads(Runtime):
    """See Runtime. No block of malloc is read."""

    name = "JVM"
    version = ""
    user_thread = "virtual thread"

    def __init__(self, target: Target, engine: Engine, module: Module) -> None:
        self.where = os.path.basename(module.path)
        self.problems: list[Problem] = []
        self._target, self._engine, self._module = target, engine, module

    @cached_property
    def _tables(self) -> Tables:
        return Tables(self._target, self._module)

    @cached_property
    def _objects(self) -> Optional[JavaObjects]:
        """The objects of the Java heap; None if they cannot be read."""
        heap, layout = concurrent_heap(self._tables), read_layout(self._tables)
        if layout is None:
            return None
        parts = spaces.spaces(self._tables, self._engine) if heap is None else concurrent_spaces(self._tables, self._engine, heap)
        return JavaObjects(self._tables, self._engine, layout, spaces.object_ranges(self._tables, self._engine, parts))

    def user_threads(self) -> Sequence[UserThread]:
        # The class of the objects with frames exists since JDK 21. Only then is the heap read.
        if _CHUNK_CLASS not in self._tables.sizes:
            return ()
        objects = self._objects
        if objects is None:
            if not self.problems:
                self.problems.append(
                    Problem(self._module.start, "virtual threads that wait are not listed: the Java heap cannot be read", False)
                )
            return ()
        return sorted(_Reader(self._target, self._module, self._tables, objects).threads(), key=lambda one: one.number)


class _Reader:
    """Reads the virtual threads among the objects of a heap."""

    def __init__(self, target: Target, module: Module, tables: Tables, objects: JavaObjects) -> None:
        self._target, self._tables, self._objects, self._memory = target, tables, objects, tables.memory
        self._frames = JavaFrames(target, module)
        self._call_frame = lru_cache(_CACHED)(self._frames.call_frame)
        self._name_bytecode = lru_cache(_CACHED)(self._read_bytecode)
        self._fields = ObjectFields(tables, objects.layout)

    def threads(self) -> Iterator[UserThread]:
        """Yield the virtual threads with frames in the heap."""
        objects = self._objects
        if not self._frames.reads_calls:
            return
        numbers = [number for number, one in enumerate(objects.classes) if one.name == VIRTUAL_THREAD]
        states = self._fields.constants(objects.classes[numbers[0]].klass, SUSPENDED) if numbers else {}
        for index in interruptible(self._target, objects.of_classes(numbers)):
            thread = objects.blocks.address(index)
            stacks = list(self._stacks(self._fields.reference(self._fields.reference(thread, "cont"), "tail")))
            # A thread without frames here has not begun or has ended. One that is carried is listed
            # as the thread that carries it.
            if stacks and not self._fields.reference(thread, "carrierThread"):
                state, first = states.get(self._fields.int32(thread, "state") & ~SUSPENDED, "unknown state"), stacks[0]
                place = first.address + _WORD * first.top
                stack = Range(place, first.address + _WORD * len(first.words))
                frames = tuple(self._all_frames(stacks))
                yield UserThread(self._fields.int64(thread, "tid"), state.lower().replace("_", " "), "", place, first.pc, stack, frames)

    def _stacks(self, chunk: int) -> Iterator[_Stack]:
        """Yield the parts of a virtual thread's stack, innermost first, without empty ones."""
        for _ in range(_MOST_CHUNKS):
            klass = class_of(self._tables, self._objects.layout, chunk) if chunk else 0
            if not klass or self._objects.reader.name(klass) != STACK_CHUNK:
                return
            size, top = self._fields.int32(chunk, "size"), self._fields.int32(chunk, "sp")
            fields = self._objects.reader.read(klass)
            if fields is None or size > _MOST_WORDS:
                return
            if top < size:
                words = self._memory.words(chunk + fields.size, size) or ()
                yield _Stack(chunk + fields.size, words, top, self._pc(chunk, fields.size, words, top))
            chunk = self._fields.reference(chunk, "parent")

    def _pc(self, chunk: int, size: int, words: Sequence[int], top: int) -> int:
        """Return the address at which the innermost frame continues. A field that Java does not
        declare has it; often, it is also where a callee's return address would be."""
        fields = self._memory.words(chunk, size // _WORD) or ()
        places = (*fields[2:], *words[max(top - 1, 0) : top])
        return next((word for word in places if self._call_frame(word) is not None), 0)

    def _all_frames(self, stacks: Sequence[_Stack]) -> Iterator[NamedFrame]:
        for stack in stacks:
            count = yield from self._frames_of(stack)
            if not count:
                yield _CUT
                return

    def _frames_of(self, stack: _Stack) -> Generator[NamedFrame, None, bool]:
        """Yield the frames of a part of a stack. Returns whether its end was reached.

        `at` is the index of the word to which the stack pointer of a frame would refer. `base`: the
        same, without the arguments by which an interpreted callee has extended the frame."""
        at = base = stack.top
        pc, words = stack.pc, stack.words
        for _ in range(DEEPEST):
            frame = self._call_frame(pc) if pc else None
            if frame is None or not (frame.size or frame.bytecode):
                # The outermost frame of this part returns to a stub, which copies the next part.
                return frame is not None and not frame.called_by_native
            if frame.bytecode:
                pointer = at - _LINK + _make_signed(words[at - _LINK]) if at >= _LINK else 0
                if not at <= pointer + frame.bytecode // _WORD or pointer + _LINK > len(words):
                    return False
                named = self._name_bytecode(words[pointer - _METHOD], words[pointer + frame.bytecode // _WORD])
                at, base = pointer + _LINK, max(pointer + _make_signed(words[pointer - 1]), pointer + _LINK)
                frames: Sequence[NamedFrame] = (named,) if named is not None else ()
            else:
                at = base = base + frame.size // _WORD
                frames = frame.frames
            yield from frames
            if not frames or at > len(words) or base > len(words):
                return False
            if frames[-1].function == _ENTER or at == len(words):
                return True
            pc = words[at - 1]
        return False

    def _read_bytecode(self, method: int, bytecode: int) -> Optional[NamedFrame]:
        function = self._frames.function(method)
        return self._frames.name_bytecode(function, bytecode) if function is not None else None


def _make_signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
