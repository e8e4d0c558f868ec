"""Read types of debug information in the C engine (common/native/dwarf_types.c)."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import byref, c_uint64

from findleaks.engine.dwarf_sources import COLUMNS, SECTIONS, Source
from findleaks.engine.native.declarations import CBytes, CSource
from findleaks.engine.native.library import CLibrary, Handle
from findleaks.engine.native.memory import c_bytes
from findleaks.target.elf import Buffer


class NativeTypeReader:
    """See TypeReader."""

    def __init__(self, library: CLibrary) -> None:
        self._library = library
        self._handle = Handle(library.fl_types_new(), library.fl_types_free, "to read types")
        self._sources: list[CSource] = []  # keeps the buffers alive
        self._merged = 0

    def add(self, source: Source) -> None:
        sections: list[Buffer] = [getattr(source, name) for name in SECTIONS]
        given = CSource(*(CBytes(c_bytes(data), len(data)) for data in sections), *source[len(SECTIONS) :])
        self._sources.append(given)
        self._library.fl_types_source(self._handle, byref(given))

    def read(self, limit: int) -> int:
        at = c_uint64()
        return at.value if self._library.fl_types_read(self._handle, limit, byref(at)) else -1

    def find_origins(self, limit: int) -> bool:
        more = bool(self._library.fl_types_origins(self._handle, limit))
        if not more:
            self._sources.clear()
        return more

    def add_table(self, columns: Sequence[array[int]], key: int, first: int, end: int) -> None:
        given = (CBytes * len(columns))(*(CBytes(c_bytes(column), len(column)) for column in columns))
        self._library.fl_types_table(self._handle, given, key, first, end)

    def merge(self) -> float:
        part = c_uint64()
        return part.value / 257 if self._library.fl_types_merge(self._handle, byref(part)) else 1.0

    def columns(self) -> list[array[int]]:
        return [self._column(number, code) for number, code in enumerate(COLUMNS)]

    def _column(self, number: int, code: str) -> array[int]:
        count, made = c_uint64(), array(code)
        items = self._library.fl_types_column(self._handle, number, byref(count))
        if items:
            made.frombytes(ctypes.string_at(items, count.value * made.itemsize))
        return made

    @property
    def incomplete(self) -> bool:
        return bool(self._library.fl_types_incomplete(self._handle))
