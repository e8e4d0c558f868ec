"""Read Go's stack maps: which words of a stack frame are pointers that the function still uses.

Sources: Go 1.18 to 1.26, src/runtime: stkframe.go (getStackMap; stack.go up to 1.20;
argMapInternal: functions of reflect), traceback.go (resolveInternal: varp, argp), symtab.go
(stackmap, funcdata, pcdatavalue), stack.go (stackObjectRecord: up to 1.23 a negative number of
bytes says that gcdata is a program); src/internal/abi: symtab.go (the numbers of the tables),
abi.go (registers)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.go.goroutines import CallFrame
from findleaks.runtimes.go.pclntab import Function, FunctionTable
from findleaks.value_classes import NamedTuple

_WORD = 8
_INDEX = 1  # in pcdata (PCDATA_StackMapIndex)
_ARGUMENTS, _LOCALS, _OBJECTS = range(3)  # in funcdata: FUNCDATA_ArgsPointerMaps and the next ones
_RECORD = struct.Struct("<iiiI")  # stackObjectRecord: offset, size, bytes with pointers, bitmap
_MOST_WORDS, _MOST_OBJECTS = 1 << 20, 1 << 12
_MOST_PASSED = 1 << 13  # words of arguments and results of a function that reflect has made
# A call of a function that reflect has made runs one of these. It takes the arguments of the call.
_STUBS = ("reflect.makeFuncStub", "reflect.methodValueCall")
_CONTEXT, _HAS_RESULTS = 0, 4 * _WORD  # their local variables: offsets from the first one
# Their last local variable has the registers of the arguments (integers, floats, pointers,
# a bitmap). Its size, and where its pointers begin and end, on x86-64 and AArch64.
_X86_REGISTERS, _ARM_REGISTERS = (272, 192, 264), (392, 256, 384)
_MOST_SHARED = 8  # maximum size of all objects of a frame, in sizes of the frame


class StackObject(NamedTuple):
    """A local variable whose address the function takes. The variable is alive if a pointer refers
    to it. `at`: offset from the end of the frame. `pointers`: offsets of pointers in it."""

    at: int
    size: int
    pointers: Sequence[int]


class FrameMap(NamedTuple):
    """The words of a frame that are pointers, and its stack objects. `pointers`: offsets from the
    end of the frame. The end of the frame is the stack pointer of its caller."""

    pointers: Sequence[int]
    objects: Sequence[StackObject]


class StackMaps:
    """The stack maps of a program. `linked`: functions store the return address at the low end of
    their frame (AArch64)."""

    def __init__(self, memory: Memory, linked: bool) -> None:
        self._memory = memory
        self._pushed, self._least = (0, 16) if linked else (_WORD, 0)
        self._registers = _ARM_REGISTERS if linked else _X86_REGISTERS
        self.arguments = _WORD if linked else 0
        """The offset of arguments from the end of the frame."""
        self._known: dict[tuple[int, int], Optional[FrameMap]] = {}

    def find_of(self, frame: CallFrame, pc: int) -> Optional[FrameMap]:
        """Return the map of a frame; see `find`."""
        function = frame.function
        return self._find_stub(frame) if function.name in _STUBS else self.find(frame.table, function, pc, frame.depth)

    def _find_stub(self, frame: CallFrame) -> Optional[FrameMap]:
        """Return the map of a frame of one of the _STUBS. The object that reflect has made for the
        function describes its arguments."""
        first = frame.sp + self.arguments
        context = self._memory.word(first + _CONTEXT)
        entry, described, passed = (self._memory.words(context, 3) if context else None) or (0, 0, 0)
        if entry != frame.function.entry or frame.depth < self._registers[0] + _HAS_RESULTS:
            return None
        head = self._memory.words(described, 2)  # the number of bits, and their address
        count = head[0] & 0xFFFFFFFF if head is not None else _MOST_PASSED + 1
        if not self._memory.read(first + _HAS_RESULTS, 1).strip(b"\0"):
            count = min(count, passed // _WORD)  # without the results
        data = self._memory.read(head[1], -(-count // 8)) if head is not None and 0 < count <= _MOST_PASSED else b""
        if count and not data:
            return None
        top, (size, low, high) = -self._pushed - _WORD, self._registers
        registers = StackObject(top - size, size, range(low, high, _WORD))
        return FrameMap([self.arguments + at * _WORD for at in _bits(data, count)], (registers,))

    def find(self, table: FunctionTable, function: Function, pc: int, depth: int) -> Optional[FrameMap]:
        """Return the map of a frame. `pc`: a return address, or the address that a goroutine saved
        when it began to wait or entered a system call. `depth`: bytes of the frame. Returns None if
        the map is missing or inconsistent."""
        key = pc, depth
        if key not in self._known:
            self._known[key] = self._find(table, function, pc, depth)
        return self._known[key]

    def _find(self, table: FunctionTable, function: Function, pc: int, depth: int) -> Optional[FrameMap]:
        index = table.pcdata(function, _INDEX, pc - 1) if pc != function.entry else -1
        if index is None or index < -1 or depth < 0:
            return None
        index = max(index, 0)  # -1: at the function's entry, which has the first map
        saved = _WORD if depth else 0  # the frame pointer of the caller
        top, size = -self._pushed - saved, depth - saved
        found: list[int] = []
        if size > self._least:
            words = self._bitmap(table.funcdata(function, _LOCALS), index)
            if words is None or words[0] * _WORD > size:
                return None
            found += [top + (at - words[0]) * _WORD for at in words[1]]
        if function.arguments > 0:
            words = self._bitmap(table.funcdata(function, _ARGUMENTS), index)
            # Up to 1.20, maps of functions in assembly have twice as many bits as needed.
            if words is None or any(at * _WORD >= function.arguments for at in words[1]):
                return None
            found += [self.arguments + at * _WORD for at in words[1]]
        objects = self._objects(table, function, top, -self._pushed - depth)
        return FrameMap(tuple(found), objects) if objects is not None else None

    def _bitmap(self, address: int, index: int) -> Optional[tuple[int, Sequence[int]]]:
        """Return the number of words that a stack map describes, and the indices of the words that
        are pointers; None if there is no such map."""
        head = self._memory.read(address, 8) if address else b""
        count, bits = struct.unpack("<ii", head) if head else (0, 0)
        if count <= 0 or not 0 <= bits <= _MOST_WORDS:
            return None
        if not bits:
            return 0, ()
        size = -(-bits // 8)
        data = self._memory.read(address + 8 + index * size, size) if index < count else b""
        return (bits, _bits(data, bits)) if data else None

    def _objects(self, table: FunctionTable, function: Function, top: int, bottom: int) -> Optional[Sequence[StackObject]]:
        """Return the stack objects of a function; None if they cannot be read. `top`: the end of
        local variables. `bottom`: the stack pointer. Both are offsets from the frame's end."""
        address = table.funcdata(function, _OBJECTS)
        count = self._memory.word(address) if address else 0
        data = self._memory.read(address + _WORD, count * _RECORD.size) if count and count <= _MOST_OBJECTS else b""
        if count is None or (count and not data):
            return None
        # Objects that are not alive at the same time may share memory. Therefore their total size
        # may exceed the size of the frame. If it exceeds the limit, the data are damaged.
        most = _MOST_SHARED * (-bottom + max(function.arguments, 0))
        if count * _WORD > most or sum(size for _, size, _, _ in _RECORD.iter_unpack(data)) > most:
            return None
        found = []
        for offset, size, used, place in _RECORD.iter_unpack(data):
            at = offset + (self.arguments if offset >= 0 else top)
            if at < bottom:
                continue  # its part of the frame is not allocated yet
            words = abs(used) // _WORD
            mask = self._memory.read(table.module.rodata + place, -(-words // 8)) if 0 < used <= _MOST_WORDS * _WORD else b""
            if not 0 <= size <= _MOST_WORDS * _WORD or abs(used) > size or (used > 0 and not mask):
                return None
            numbers = _bits(mask, words) if used >= 0 else range(words)  # programs are not run
            found.append(StackObject(at, size, [number * _WORD for number in numbers]))
        return found


def _bits(data: bytes, count: int) -> Sequence[int]:
    """Return the indices of the set bits among the first `count` bits."""
    return [at for at in range(count) if data[at >> 3] >> (at & 7) & 1]
