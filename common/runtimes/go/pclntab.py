"""Read Go's function table (pclntab). For an address of code, it has the function, file and line,
inlined calls and stack depth. Stripped programs have this table, too, because panics print from it.

Sources: Go 1.18 to 1.26, src/runtime: symtab.go (functab, pcvalue, step, funcline1), runtime2.go
(_func, without startLine up to 1.19), symtabinl.go (inlinedCall: 20 bytes up to 1.19, 16 since
1.20), and src/internal/abi/symtab.go (the numbers of the tables)."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.go.moduledata import ModuleData
from findleaks.target.base import Range
from findleaks.target.encoded_numbers import LONGEST, decode_signed
from findleaks.value_classes import NamedTuple

# Flags of functions: the outermost of a stack; code that sets the stack pointer.
TOP_FRAME, STACK_SWITCH = 1, 2
_INLINE_INDEX, _INLINE_TREE = 2, 3  # numbers in pcdata (PCDATA_InlTreeIndex) and funcdata
_NO_DATA = 0xFFFFFFFF
_MAX_INLINED, _MAX_NAME = 256, 1 << 12
_CACHED, _CACHED_TABLES = 1 << 17, 1 << 13  # answers for addresses, and decoded tables
_MOST_STEPS = 1 << 22  # values in all cached tables, of 16 bytes each
_MOST_TABLE = 1 << 18  # bytes of one table, which ends earlier unless it is damaged
_MOST_VALUE = 1 << 62
# By format: size of _func before its tables, offsets of funcID, flag, nfuncdata; bytes of an
# inlinedCall, offsets of its name and parentPc.
_LAYOUTS = {118: (40, 36, 37, 39, 20, 12, 16), 120: (44, 40, 41, 43, 16, 4, 8)}


class Function(NamedTuple):
    """An entry of the table. `tables`: the offsets in pctab of pcsp, pcfile and pcln. `pcdata` and
    `funcdata`: further tables. `arguments`: bytes of arguments and results on the stack; negative
    if unknown. `resumption`: offset of the code at which it continues after a deferred function has
    recovered; 0 if it never does."""

    entry: int
    name: str
    kind: int  # funcID
    flag: int
    unit: int  # cuOffset: first file of its compilation unit in cutab
    tables: tuple[int, int, int]
    pcdata: tuple[int, ...]
    funcdata: tuple[int, ...]
    arguments: int = 0
    resumption: int = 0


class Place(NamedTuple):
    """A source position. `inlined`: whether the function is inlined in the function of the next
    place. `is_wrapper`: whether the compiler generated the function."""

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
        data = memory.read(*_read_sized(module.ftab))
        entries.frombytes(data[: len(data) // 8 * 8])
        self._starts, self._offsets = entries[0::2], entries[1::2]
        self._layout = _LAYOUTS[module.format]
        self._pctab = memory.read(*_read_sized(module.pctab))
        self.find = lru_cache(_CACHED)(self._find)
        self.places = lru_cache(_CACHED)(self._places)
        self.depth = lru_cache(_CACHED)(self._depth)
        self._steps, self._room = lru_cache(_CACHED_TABLES)(self._decode_steps), _MOST_STEPS

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
        entry, arguments = self.module.text.start + number[0], decode_signed(number[2], 32)
        return Function(entry, name, head[kind], head[flag], unit, tables, further[:pcdata], further[pcdata:], arguments, number[3])

    def extent(self, pc: int) -> Range:
        """Return the code of the function that contains an address."""
        start = self.module.text.start
        at = bisect_right(self._starts, pc - start) - 1
        return Range(start + self._starts[at], start + self._starts[at + 1]) if 0 <= at < len(self._starts) - 1 else Range(pc, pc)

    @cached_property
    def wrapper(self) -> int:
        """The number of generated functions (FuncIDWrapper), which is the largest one."""
        content = self._memory.read(*_read_sized(self.module.functions))
        kind, size = self._layout[1], self._layout[0]
        return max((content[at + kind] for at in self._offsets[:-1] if at + size <= len(content)), default=-1)

    def code_of(self, name: str) -> Optional[Range]:
        """Return the code of the function with this name; None if there is none."""
        names = self._memory.read(*_read_sized(self.module.names))
        place = names.find(b"\0" + name.encode() + b"\0")
        content = self._memory.read(*_read_sized(self.module.functions))
        wanted = (place + 1).to_bytes(4, "little")
        for at, offset in enumerate(self._offsets[:-1] if place >= 0 else ()):
            if content[offset + 4 : offset + 8] == wanted:
                start = self.module.text.start
                return Range(start + self._starts[at], start + self._starts[at + 1])
        return None

    def entries_named(self, pattern: re.Pattern[str]) -> dict[int, str]:
        """Return entry and name of each function whose name contains a match of `pattern`."""
        names = self._memory.read(*_read_sized(self.module.names)).decode("latin-1")
        wanted: dict[int, str] = {}
        for match in pattern.finditer(names):
            start = names.rfind("\0", 0, match.start()) + 1
            wanted[start] = names[start : names.find("\0", start)]
        content = self._memory.read(*_read_sized(self.module.functions))
        found: dict[int, str] = {}
        for at, offset in enumerate(self._offsets[:-1] if wanted else ()):
            name = wanted.get(int.from_bytes(content[offset + 4 : offset + 8], "little"))
            if name is not None:
                found[self.module.text.start + self._starts[at]] = name
        return found

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
        ends, values = self._steps(table, function.entry) if table else ((), ())
        at = bisect_right(ends, pc)
        return values[at] if at < len(values) else None

    def _decode_steps(self, table: int, entry: int) -> tuple[Sequence[int], Sequence[int]]:
        """Return the addresses at which the values of a table end, and these values. Each pair of
        LEB128 numbers in the table is a change of the value, and a number of instructions. A table
        that is cut off ends before the pair that is incomplete."""
        data, quantum, limit = memoryview(self._pctab)[table : table + _MOST_TABLE], self.module.quantum, self.extent(entry).end
        ends, values, numbers = array("Q"), array("q"), _iterate_numbers(data)
        where, value = entry, -1
        for delta, step in zip(numbers, numbers):
            if not delta and ends:
                break
            value += -(delta >> 1) - 1 if delta & 1 else delta >> 1
            where += step * quantum
            if not -_MOST_VALUE < value < _MOST_VALUE or where >= 1 << 63:
                break
            ends.append(where)
            values.append(value)
            if where >= limit > entry:  # the end of the function
                break
        self._room -= len(ends)
        if self._room < 0:
            self._steps.cache_clear()
            self._room = _MOST_STEPS
        return ends, values

    def pcdata(self, function: Function, number: int, pc: int) -> Optional[int]:
        """Return the value for `pc` in the pcdata table with this number; -1 if the function has no
        such table, None if the table is damaged."""
        table = function.pcdata[number] if number < len(function.pcdata) else 0
        return self._value(table, function, pc) if table else -1

    def funcdata(self, function: Function, number: int) -> int:
        """Return the address of the function's funcdata with this number; 0 if the function has
        none."""
        offset = function.funcdata[number] if number < len(function.funcdata) else _NO_DATA
        return self.module.gofunc + offset if offset != _NO_DATA else 0

    def _depth(self, pc: int) -> Optional[int]:
        """Return the distance in bytes from the stack pointer at `pc` to the stack pointer at the
        function's entry, or None."""
        function = self.find(pc)
        return self._value(function.tables[0], function, pc) if function is not None else None

    def _places(self, pc: int) -> tuple[Place, ...]:
        """Return the functions inlined at `pc`, innermost first, and then the function itself.
        `pc`: the address of an instruction; for a caller, that of its call instruction."""
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
        tree = self.funcdata(function, _INLINE_TREE)
        for _ in range(_MAX_INLINED if tree else 0):
            index = self.pcdata(function, _INLINE_INDEX, pc)
            call = self._memory.read(tree + size * index, size) if index is not None and index >= 0 else b""
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


def find_function(tables: Iterable[FunctionTable], pc: int) -> Optional[tuple[FunctionTable, Function]]:
    """Return the function that contains an address, with its table; None if there is none."""
    pairs = ((table, table.find(pc)) for table in tables)
    return next(((table, function) for table, function in pairs if function is not None), None)


def _iterate_numbers(data: Iterable[int]) -> Iterator[int]:
    """Yield the unsigned LEB128 numbers in the data, up to one that is cut off or too long."""
    value = shift = 0
    for byte in data:
        if byte < 0x80:
            yield value | byte << shift
            value = shift = 0
            continue
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift == 7 * LONGEST:
            return


def _read_sized(place: tuple[int, int]) -> tuple[int, int]:
    return place[0], place[1] - place[0]
