"""Read the control frames of Ruby threads: methods and blocks with file and line, and methods that
are written in C by name.

A thread's execution context begins with {stack of values, its length, innermost control frame,
innermost tag}. No exported symbol leads to it in all versions. It is recognised by its contents
among the words that the thread's native stack refers to: the tag is on the native stack, and each
control frame has flags with a magic number.

The interpreter's function vm_exec executes the control frames up to one with the flag FINISH. It
keeps the address of a control frame in a register, which identifies its native frame.

Sources: vm_core.h (rb_execution_context_t, rb_control_frame_t, VM_FRAME_MAGIC_…, VM_ENV_DATA_…),
method.h (rb_callable_method_entry_t, rb_method_definition_struct), vm_backtrace.c (which frames
a backtrace has) of 2.7.4, 3.1.2 and 3.3.8."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.errors import UnreadableMemory
from findleaks.libc.thread_local import Block, thread_local_blocks
from findleaks.runtimes.current_memory import CurrentMemory
from findleaks.runtimes.ruby.call_chain import LOCATION, ControlFrames, find_control_frames
from findleaks.runtimes.ruby.census import IMEMO_MASK, IMEMO_SHIFT, IMEMOS, MASK, T_IMEMO
from findleaks.runtimes.ruby.instruction_sequences import LineTable, SequenceReader
from findleaks.runtimes.ruby.layout import find_exported, read_version
from findleaks.runtimes.ruby.symbols import Symbols, serial_number
from findleaks.runtimes.ruby.value_stacks import ValueStack
from findleaks.runtimes.ruby.values import Values
from findleaks.target.arch import X86_64
from findleaks.target.base import Module, Range, Target, Thread
from findleaks.target.ranges import region_at
from findleaks.unwind.managed_frames import DEEPEST, MOST_HASHED, ChainedCall, ChainPart, ManagedFrames, NativeStack, Segment
from findleaks.unwind.stacks import NamedFrame
from findleaks.value_classes import NamedTuple

KIND = "Ruby"
SUPPORTED = (2, 7), (3, 4)  # the oldest and the newest version
_MAGIC_MASK, _CFUNC, _DUMMY = 0x7FFF0001, 0x55550001, 0x79990001
_FINISH, _NATIVE = 0x20, 0x80  # flags: vm_exec returns after this frame; a function of C
_MAGIC = {0x11110001, 0x22220001, 0x33330001, 0x44440001, _CFUNC, 0x66660001, 0x77770001, 0x78880001, _DUMMY}
_FRAME_WORDS = (7, 8)  # of a control frame
# Words at the beginning of a context that have its thread, and of a thread that have its context.
_CONTEXT_WORDS, _THREAD_WORDS = 10, 10
_SEARCHED = 1 << 17  # bytes at each end of a native stack in which the context is searched
_MOST_READ = 1 << 16  # control frames that are read to find those of one thread
_SIZES = range(1 << 8, 1 << 24)  # words of a stack of values
_CURRENT = "ruby_current_execution_context_ptr"  # exported by 2.7
_FIBER_WORDS = 64  # words at the beginning of a fiber that contain its context
_THREAD_HEAD = 24  # words at the beginning of a thread that have its pthread_t
_MAX_DATA = 1 << 24  # bytes of the interpreter's variables that are searched


class RubyFunction(NamedTuple):
    """A method or a block: its label, its path, and the lines of its instructions."""

    label: str
    path: str
    lines: LineTable


class _Frame(NamedTuple):
    """A control frame: its address, the next instruction, the instruction sequence, and the address
    of its environment with flags."""

    address: int
    pc: int
    sequence: int
    environment: int
    flags: int


def find_frame_reader(target: Target, files: Sequence[Module]) -> Optional[FrameReader]:
    """Return a reader for the interpreter in one of these files, or in the program; None if there
    is none."""
    memory = Memory(target)
    symbol = find_exported(target, files, "rb_cObject")
    module = region_at(target.modules(), symbol.address) if symbol is not None else None
    if module is None or memory.size != 8:
        return None
    return FrameReader(target, memory, module, read_version(target, files))


class FrameReader(ManagedFrames):
    """Reads Ruby's control frames; see ManagedFrames."""

    kind = KIND
    library_files = re.compile(r"/lib(?:64)?/ruby/\d[\d.]*/(?!.*(-packages|gems)/)")

    def __init__(self, target: Target, memory: Memory, module: Module, version: tuple[int, int]) -> None:
        self._target, self._memory, self._module = target, memory, module
        self.warnings: list[str] = []
        self._left = 0
        self._values = Values(memory, self._find_exported)
        parts = ((max(r.start, module.start), min(r.end, module.end)) for r in target.regions() if r.readable and r.writable)
        data = [Range(start, min(end, start + _MAX_DATA)) for start, end in parts if start < end]
        self._data, self._version = data, version
        self._symbols, self._has_current_symbols = Symbols(memory, self._values, data), True
        self._sequences = SequenceReader(memory, self._values, version)
        self._method_names: dict[int, str] = {}
        self._is_old = version < (3, 0)
        self._is_supported = SUPPORTED[0] <= version <= SUPPORTED[1]
        if not self._is_supported:
            self._warn("this version is not supported")

    def _find_exported(self, name: str) -> Optional[int]:
        symbol = find_exported(self._target, [self._module], name)
        return self._memory.word(symbol.address) if symbol is not None else None

    def _word(self, address: int) -> int:
        found = self._memory.word(address)
        if found is None:
            raise UnreadableMemory(address, 8)
        return found

    def _warn(self, why: str) -> None:
        text = f"frames of Ruby methods are not read: {why}"
        if text not in self.warnings:
            self.warnings.append(text)

    # -- calls in a running process

    @cached_property
    def _chain(self) -> Optional[ControlFrames]:
        is_known = self._is_supported and self._target.arch.name == X86_64.name
        return find_control_frames(self._target, self._version) if is_known else None

    @property
    def reads_calls(self) -> bool:
        return self._chain is not None

    @property
    def chain_settings(self) -> Sequence[int]:
        return self._chain.settings(self._version, self._values.long) if self._chain is not None else ()

    @property
    def is_paired(self) -> bool:
        return self._chain is not None

    def executes(self, pc: int) -> bool:
        return self._chain is not None and self._chain.executor.start < pc <= self._chain.executor.end

    def read_again(self, read: Callable[[int, int], bytes]) -> None:
        if self._chain is not None:
            self._memory = self._values._memory = CurrentMemory(self._target, read)
            self._sequences = SequenceReader(self._memory, self._values, self._version)
            self._has_current_symbols = False

    def chain_parts(self, thread_pointer: int, stack: Range) -> Iterator[ChainPart]:
        calls: list[ChainedCall] = []
        has_sequence = False
        for one in self._current_frames(thread_pointer, stack):
            has_sequence = has_sequence or (bool(one.sequence) and one.flags & _MAGIC_MASK != _DUMMY)
            calls += filter(None, [self._call(one)])
            if one.flags & _FINISH and has_sequence:
                yield ChainPart(0, calls)
                calls, has_sequence = [], False

    def _current_frames(self, thread_pointer: int, stack: Range) -> list[_Frame]:
        """Return the control frames of a thread's current execution context; [] if the innermost
        tag of the context is not on this stack."""
        try:
            context = self._chain.variable.value(self._word, thread_pointer) if self._chain is not None else 0
        except UnreadableMemory:
            context = 0
        words = self._memory.words(context, 4) if context else None
        self._left = _MOST_READ
        return self._read_frames(*words[:3]) if words is not None and stack.start <= words[3] < stack.end else []

    def _call(self, frame: _Frame) -> Optional[ChainedCall]:
        magic, sequence = frame.flags & _MAGIC_MASK, frame.sequence
        if magic == _CFUNC and not sequence:
            return ChainedCall(self.function(self._memory.word(frame.environment - 16) or 0), 0)
        if not sequence or not frame.pc or magic == _DUMMY or frame.flags & _NATIVE:
            return None
        found = self._sequences.read(sequence)
        return ChainedCall(self.function(sequence), frame.pc - found.code & 0xFFFFFFFF if found is not None else 0)

    def function(self, address: int) -> Optional[Hashable]:
        """Return the label, path and lines of the instruction sequence at an address, or the name
        of a method that is written in C."""
        if self._chain is None:
            return None
        name = self._name_method(address)
        if name:
            return name
        sequence = self._sequences.read(address)
        if sequence is None or self._sequences.location != LOCATION:
            return None
        return RubyFunction(sequence.label, sequence.path, self._sequences.table(sequence))

    def name_bytecode(self, function: Hashable, address: int) -> Optional[NamedFrame]:
        if function is None or isinstance(function, str):
            return NamedFrame(0, function or "", 0, "", kind=KIND)
        if not isinstance(function, RubyFunction):
            return None
        # If the stub hashed only a part of the table of lines, this table may be that of another
        # function.
        is_known = max(len(function.lines.entries), len(function.lines.ranks)) <= MOST_HASHED
        line = function.lines.line(address // 8) if is_known and address % 8 == 0 else 0
        return NamedFrame(0, function.label, 0, "", function.path, line, kind=KIND)

    # -- stacks

    def segments(self, stack: NativeStack) -> Sequence[Segment]:
        """Return the frames of a thread; see ManagedFrames."""
        frames = self._find_frames(stack) if self._is_supported else []
        found: list[Segment] = []
        inner: list[_Frame] = []
        for one in frames:
            inner.append(one)
            if one.flags & _FINISH or one is frames[-1]:
                named = tuple(filter(None, map(self._name, inner)))
                if named:
                    found.append(Segment(self._find_native(stack, inner), named))
                inner = []
        return found

    def _find_native(self, stack: NativeStack, frames: Sequence[_Frame]) -> int:
        """Return the index of the native frame that executes these control frames: the outermost
        that has the address of one in a register. -1 if none has."""
        wanted = {one.address for one in frames if one.sequence}
        registers = stack.registers
        return next((at for at in range(len(registers) - 1, -1, -1) if not wanted.isdisjoint(registers[at].registers.values())), -1)

    # -- contexts

    def _find_frames(self, stack: NativeStack) -> list[_Frame]:
        """Return the control frames of the context that a thread executes, innermost first; [] if
        it has none."""
        region = region_at(self._target.regions(), stack.thread.sp)
        if region is None:
            return []
        self._left = _MOST_READ
        seen: set[int] = set()
        for word in self._words(stack, Range(stack.thread.sp & -8, region.end)):
            if word in seen or word % 8:
                continue
            seen.add(word)
            context = self._memory.words(word, _CONTEXT_WORDS)
            if context is not None and stack.thread.sp <= context[3] < region.end and self._read_frames(*context[:3]):
                frames = self._read_current(context, stack.thread.tid)
                if frames:
                    return frames
        # While fibers are switched, the native stack is that of another fiber and may not have the
        # context.
        found = next((frames for _, frames in self._current_contexts(stack.thread.tid)), [])
        return found or self._find_by_variable(stack.thread)

    def _current_contexts(self, tid: int) -> Iterator[tuple[Sequence[int], list[_Frame]]]:
        """Yield the context that a thread-local variable of the interpreter refers to
        (ruby_current_ec, since 3.0), and its control frames."""
        for block in self._thread_locals:
            for _, words in self._memory.scan(*block.range) if block.thread == tid else ():
                for word in words:
                    context = self._memory.words(word, _CONTEXT_WORDS) if word and word % 8 == 0 else None
                    frames = self._read_frames(*context[:3]) if context is not None else []
                    if context is not None and frames:
                        yield context, frames

    @cached_property
    def _thread_locals(self) -> list[Block]:
        """The interpreter's thread-local variables, of all threads."""
        return [one for one in thread_local_blocks(self._target) if one.module.start == self._module.start]

    def _find_by_variable(self, thread: Thread) -> list[_Frame]:
        """Return the control frames of the context that a variable of 2.7 refers to, if it is that
        of this thread: rb_thread_t has the pthread_t, which glibc derives from the thread
        pointer."""
        context = self._memory.words(self._find_exported(_CURRENT) or 0, _CONTEXT_WORDS) or ()
        for address in context[4:]:
            words = self._memory.words(address, _THREAD_HEAD) if address and address % 8 == 0 else None
            if words is not None and thread.thread_pointer in words:
                return self._read_frames(*context[:3])
        return []

    def _read_current(self, context: Sequence[int], tid: int) -> list[_Frame]:
        """Return the control frames of the context that the thread of a context executes. This may
        be another one while fibers are created or switched. The thread and the context that it
        executes refer to each other. While the thread is being switched (ec_switch in cont.c), it
        refers to the next context, but the interpreter still uses that of ruby_current_ec."""
        for other, frames in self._current_contexts(tid):
            if any(thread and thread in context[4:] for thread in other[4:]):
                return frames
        for thread in context[4:]:
            for word in self._memory.words(thread, _THREAD_WORDS) or () if thread % 8 == 0 else ():
                current = self._memory.words(word, _CONTEXT_WORDS) if word % 8 == 0 else None
                frames = self._read_frames(*current[:3]) if current is not None and thread in current[4:] else []
                if frames:
                    return frames
        return []

    def _words(self, stack: NativeStack, used: Range) -> Iterator[int]:
        for one in stack.registers:
            yield from one.registers.values()
        ends = [used] if used.end - used.start <= 2 * _SEARCHED else [Range(used.end - _SEARCHED, used.end)]
        if len(ends) == 1 and ends[0] != used:
            ends.append(Range(used.start, used.start + _SEARCHED))
        for start, end in ends:
            for _, words in self._memory.scan(start, end):
                yield from words

    def _read_frames(self, values: int, size: int, innermost: int) -> list[_Frame]:
        """Return the control frames on a stack of values. They grow down from its end. The size of
        a control frame is that with which each has a magic number."""
        end = values + 8 * size
        if size not in _SIZES or values % 8 or not values < innermost < end:
            return []
        for words in _FRAME_WORDS:
            frames = [] if (end - innermost) % (8 * words) else self._read_all(range(innermost, end, 8 * words))
            if frames:
                return frames
        return []

    def value_stacks(self, holders: Iterable[int]) -> list[ValueStack]:
        """Return the stacks of values of these threads (rb_thread_t) and fibers (rb_fiber_t). A
        thread points to the context that it executes, and a fiber contains its context."""
        found: dict[int, ValueStack] = {}
        self._left = _MOST_READ
        for holder in holders:
            own = self._memory.words(holder, _FIBER_WORDS) or self._memory.words(holder, _THREAD_WORDS) or ()
            contexts = [self._memory.words(one, 3) for one in own[:_THREAD_WORDS] if one and one % 8 == 0]
            for words in (*contexts, *(own[at : at + 3] for at in range(len(own) - 2))):
                frames = self._read_frames(*words)[::-1] if words is not None and words[0] not in found else []
                if words is not None and frames:
                    tops = [self._memory.word(frame.address + 8) or 0 for frame in frames]
                    pointers = [frame.environment for frame in frames]
                    found[words[0]] = ValueStack(words[0], words[0] + 8 * words[1], tops, [*map(self._name, frames)], pointers)
        return [*found.values()]

    def _read_all(self, addresses: range) -> list[_Frame]:
        """Return all of these control frames; [] if one has no magic number. 2.7 enters a frame
        into the context before the frame has its flags (vm_push_frame); that frame is left out."""
        found = []
        if len(addresses) > DEEPEST:
            self._warn(f"a thread has more than {DEEPEST:,}")
        for address in addresses[: min(DEEPEST, self._left)]:
            self._left -= 1
            words = self._memory.words(address, 5)
            flags = self._memory.word(words[4]) if words is not None else None
            if words is not None and flags is not None and flags & _MAGIC_MASK in _MAGIC:
                found.append(_Frame(address, words[0], words[2], words[4], flags))
            elif not self._is_old or address != addresses[0]:
                return []
        return found

    # -- names

    def _name(self, frame: _Frame) -> Optional[NamedFrame]:
        """Return a frame with its name; None for frames that a backtrace omits. The flags and the
        instructions of a frame that is being pushed may contradict each other."""
        magic = frame.flags & _MAGIC_MASK
        if magic == _CFUNC:
            return NamedFrame(0, self._method_name(frame), 0, "", kind=KIND) if not frame.sequence else None
        if not frame.sequence or not frame.pc or magic == _DUMMY or frame.flags & _NATIVE:
            return None
        return self._name_sequence(frame)

    def _name_sequence(self, frame: _Frame) -> NamedFrame:
        sequence = self._sequences.read(frame.sequence)
        if sequence is None:
            self._warn("some are damaged")
            return NamedFrame(0, "", 0, "", kind=KIND)
        return NamedFrame(0, sequence.label, 0, "", sequence.path, self._sequences.line(sequence, frame.pc), kind=KIND)

    def _method_name(self, frame: _Frame) -> str:
        """Return the name of a method that is written in C: {flags, class, definition, …}, whose
        definition has the original ID; "" if it is not found."""
        return self._name_method(self._memory.word(frame.environment - 16) or 0)

    def _name_method(self, address: int) -> str:
        method = self._memory.words(address, 3) if address % 8 == 0 else None
        if method is None or method[0] & MASK != T_IMEMO or IMEMOS[(method[0] >> IMEMO_SHIFT & IMEMO_MASK) % len(IMEMOS)] != "ment":
            return ""
        number = self._memory.word(method[2] + 32) or 0
        return self._name_id(serial_number(number))

    def _name_id(self, serial: int) -> str:
        """Return the name of an ID. The name of an ID never changes, so it is cached. The table of
        names is read again, because a running process may have replaced it."""
        if not self._method_names.get(serial):
            if not self._has_current_symbols:
                self._symbols, self._has_current_symbols = Symbols(self._memory, self._values, self._data), True
            self._method_names[serial] = self._symbols.name(serial)
        return self._method_names[serial]
