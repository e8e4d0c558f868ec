"""Reads Go's function table (pclntab): function, file and line, inlined calls and stack depth of
a code address. Stripped programs keep it, because panics print it.

Sources: Go 1.18 to 1.26, src/runtime: symtab.go (functab, pcvalue, step, funcline1), runtime2.go
(_func, without startLine up to 1.19), symtabinl.go (inlinedCall: 20 bytes up to 1.19, 16 since
1.20), and src/internal/abi/symtab.go (the numbers of the tables)."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.go.moduledata import ModuleData
from findleaks.value_classes import NamedTuple

TOP_FRAME = 1  # a flag: the function is the outermost of its stack
_INLINE_INDEX, _INLINE_TREE = 2, 3  # numbers in pcdata (PCDATA_InlTreeIndex) and funcdata
_NO_DATA = 0xFFFFFFFF
_MAX_INLINED, _MAX_NAME = 256, 1 << 12
_CACHED = 1 << 17
# By format: size of _func before its tables, offsets of funcID, flag, nfuncdata; bytes of an
# inlinedCall, offsets of its name and parentPc.
_LAYOUTS = {118: (40, 36, 37, 39, 20, 12, 16), 120: (44, 40, 41, 43, 16, 4, 8)}


class Function(NamedTuple):
    """An entry of the table. `tables` has the offsets in pctab of pcsp, pcfile, pcln; `pcdata` and
    `funcdata` are further tables."""

    entry: int
    name: str
    kind: int  # funcID
    flag: int
    unit: int  # cuOffset: first file of its compilation unit in cutab
    tables: tuple[int, int, int]
    pcdata: tuple[int, ...]
    funcdata: tuple[int, ...]


class Place(NamedTuple):
    """A source position. `inlined`: the function is part of the next place's code. `is_wrapper`:
    the compiler generated the function."""

    function: str
    file: str
    line: int
    inlined: bool
    is_wrapper: bool


class FunctionTable:
    """The functions of one module."""

    def __init__(self, memory: Memory, module: ModuleData) -> None:
        self.module, self._memory = module, memory
        entries = array("I")
        data = memory.read(*_sized(module.ftab))
        entries.frombytes(data[: len(data) // 8 * 8])
        self._starts, self._offsets = entries[0::2], entries[1::2]
        self._layout = _LAYOUTS[module.format]
        self._pctab = memory.read(*_sized(module.pctab))
        self.find = lru_cache(_CACHED)(self._find)
        self.places = lru_cache(_CACHED)(self._places)
        self.depth = lru_cache(_CACHED)(self._depth)

    def _find(self, pc: int) -> Optional[Function]:
        """Return the function that contains this address, or None."""
        if not self.module.text.start <= pc < self.module.text.end:
            return None
        at = bisect_right(self._starts, pc - self.module.text.start) - 1
        if not 0 <= at < len(self._offsets):
            return None
        size, kind, flag, count, *_ = self._layout
        start = self.module.functions.start + self._offsets[at]
        head = self._memory.read(start, size)
        if not head:
            return None
        number = memoryview(head[: size // 4 * 4]).cast("I")
        pcdata = min(number[7], 1 << 10)
        rest = self._memory.read(start + size, 4 * (pcdata + head[count]))
        further = tuple(memoryview(rest).cast("I"))
        name = self._text(self.module.names.start + number[1])
        unit, tables = number[8], (number[4], number[5], number[6])
        return Function(self.module.text.start + number[0], name, head[kind], head[flag], unit, tables, further[:pcdata], further[pcdata:])

    @cached_property
    def wrapper(self) -> int:
        """The number of generated functions (FuncIDWrapper), which is the largest one."""
        content = self._memory.read(*_sized(self.module.functions))
        kind, size = self._layout[1], self._layout[0]
        return max((content[at + kind] for at in self._offsets[:-1] if at + size <= len(content)), default=-1)

    def named(self, name: str) -> Optional[int]:
        """Return the entry of the function with this name, or None."""
        content = self._memory.read(*_sized(self.module.names))
        at = content.find(b"\0" + name.encode() + b"\0")
        if at < 0:
            return None
        for start in self._starts:
            function = self._find(self.module.text.start + start)
            if function is not None and function.name == name:
                return function.entry
        return None

    def _text(self, address: int) -> str:
        data = self._memory.read(address, 256) or self._memory.read(address, 16)
        while data and b"\0" not in data and len(data) < _MAX_NAME:
            more = self._memory.read(address + len(data), 256)
            if not more:
                break
            data += more
        return data.split(b"\0", 1)[0].decode("utf-8", "replace")

    def _value(self, table: int, function: Function, pc: int) -> Optional[int]:
        """Return the value of a table at `pc`, or None."""
        data, at = self._pctab, table
        if not table:
            return None
        where, value, first = function.entry, -1, True
        while at < len(data):
            delta, at = _varint(data, at)
            if not delta and not first:
                return None
            first = False
            value += -(delta >> 1) - 1 if delta & 1 else delta >> 1
            step, at = _varint(data, at)
            where += step * self.module.quantum
            if pc < where:
                return value
        return None

    def _depth(self, pc: int) -> Optional[int]:
        """Return the bytes between the stack pointer at `pc` and that at the function's entry, or
        None."""
        function = self.find(pc)
        return self._value(function.tables[0], function, pc) if function is not None else None

    def _places(self, pc: int) -> tuple[Place, ...]:
        """Return the functions inlined at `pc`, innermost first, and then the function itself. `pc`
        is that of an instruction, for a caller that of its call."""
        function = self.find(pc)
        if function is None:
            return ()
        made = []
        for name, kind, caller in self._calls(function, pc):
            made.append(Place(name, self._file(function, pc), self._line(function, pc), True, kind == self.wrapper))
            pc = caller
        return (*made, Place(function.name, self._file(function, pc), self._line(function, pc), False, function.kind == self.wrapper))

    def _calls(self, function: Function, pc: int) -> Iterator[tuple[str, int, int]]:
        """Yield the inlined calls at `pc`, innermost first: name, funcID, and the call's address in
        the caller."""
        *_, size, name, parent = self._layout
        kind = 2 if size == 20 else 0
        tree = function.funcdata[_INLINE_TREE] if len(function.funcdata) > _INLINE_TREE else _NO_DATA
        if tree == _NO_DATA or len(function.pcdata) <= _INLINE_INDEX:
            return
        for _ in range(_MAX_INLINED):
            index = self._value(function.pcdata[_INLINE_INDEX], function, pc)
            call = self._memory.read(self.module.gofunc + tree + size * index, size) if index is not None and index >= 0 else b""
            if not call:
                return
            caller = function.entry + int.from_bytes(call[parent : parent + 4], "little")
            yield self._text(self.module.names.start + int.from_bytes(call[name : name + 4], "little")), call[kind], caller
            pc = caller

    def _line(self, function: Function, pc: int) -> int:
        return self._value(function.tables[2], function, pc) or 0

    def _file(self, function: Function, pc: int) -> str:
        number = self._value(function.tables[1], function, pc)
        data = self._memory.read(self.module.cutab.start + 4 * (function.unit + number), 4) if number is not None and number >= 0 else b""
        offset = int.from_bytes(data, "little") if data else _NO_DATA
        return self._text(self.module.filetab.start + offset) if offset != _NO_DATA else ""


def _sized(place: tuple[int, int]) -> tuple[int, int]:
    return place[0], place[1] - place[0]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at` and the position after it; see encoding/binary.Uvarint."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            break
    return value, at
