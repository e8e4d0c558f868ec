"""Read where objects were allocated, if the program traced it with
ObjectSpace.trace_object_allocations.

A variable of the extension objspace.so refers to a block with the structure traceobj_arg. The table
of this structure has a struct allocation_info for each traced object: {living, flags, class, path,
line, path of the class, method, number of collections before the allocation}. Sources:
ext/objspace/objspace.h and object_tracing.c of 2.7.4, 3.1.2, 3.3.8 and 3.4.1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Optional

from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.runtimes.ruby.symbols import Symbols
from findleaks.runtimes.ruby.tables import entries_in, st_span
from findleaks.runtimes.ruby.values import Values
from findleaks.target.base import Range, Target

EXTENSION = "objspace.so"
TABLE = 24  # offset of the table in traceobj_arg
MOST = 1 << 24  # traced objects
MOST_DATA = 1 << 16  # bytes of the extension's variables
INFO = 8  # words of a struct allocation_info


class Trace(NamedTuple):
    """Where an object was allocated: file, line, the name of the method ("" outside of methods),
    and the number of garbage collections before the allocation."""

    file: str
    line: int
    method: str
    generation: int


class Traces(NamedTuple):
    """The traces of objects, by address. `entries` is the address of the entries of their table, 0
    if allocations were not traced."""

    by_object: Mapping[int, Trace]
    entries: int


class TraceReader:
    """Reads the traces of one process."""

    def __init__(self, target: Target, memory: Memory, values: Values, symbols: Symbols) -> None:
        self._target, self._memory, self._values, self._symbols = target, memory, values, symbols
        self._files: dict[int, str] = {}
        self._methods: dict[int, str] = {}

    def read(self) -> Traces:
        """Return all traces."""
        for table in self._tables():
            span = st_span(self._memory, table, MOST)
            entries = entries_in(self._memory, span) if span is not None else ()
            found = {one.key: trace for one in entries if (trace := self._trace(one.key, one.value)) is not None}
            if span is not None and found:
                return Traces(found, span.start)
        return Traces({}, 0)

    def _tables(self) -> Iterator[int]:
        """Yield addresses at which the table of traces may be."""
        data = [part for one in find_images(self._target) if one.name.endswith(EXTENSION) for part in one.data]
        for start, end in data:
            for _, words in self._memory.scan(*Range(start, min(end, start + MOST_DATA))):
                for word in words:
                    table = self._memory.word(word + TABLE) if word and word % 8 == 0 else None
                    if table and table % 8 == 0:
                        yield table

    def _trace(self, value: int, address: int) -> Optional[Trace]:
        """Return the trace of the object `value` from the structure at `address`; None if the
        object was freed, or if the structure is not a trace."""
        info = self._memory.words(address, INFO) if address and address % 8 == 0 and value % 8 == 0 else None
        if info is None or not info[0] & 0xFFFFFFFF or not info[3]:
            return None
        return Trace(self._file(info[3]), info[4] & 0xFFFFFFFF, self._method(info[6]), info[7])

    def _file(self, address: int) -> str:
        if address not in self._files:
            self._files[address] = self._values.characters(address)
        return self._files[address]

    def _method(self, symbol: int) -> str:
        if symbol not in self._methods:
            self._methods[symbol] = self._symbols.name_symbol(symbol)
        return self._methods[symbol]
