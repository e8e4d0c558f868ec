"""The parts of a file that can be damaged: the memory that it contains, its tables, its notes, and the addresses that findleaks itself
reads."""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

PAGE = 4096
PT_LOAD, PT_NOTE = 1, 4
ET_CORE, SHT_NOBITS = 4, 8
_MEMORY64 = 9


class Part(NamedTuple):
    """Bytes of the file that are memory: [start, end) of the process is at the file offset `offset`."""

    start: int
    end: int
    offset: int
    writable: bool


class Table(NamedTuple):
    """`count` rows of `size` bytes each at the file offset `offset`: program headers, section headers, or a minidump's directory."""

    offset: int
    count: int
    size: int


class Subject:
    """A sound file to be damaged; `path` is not changed. `focus`: addresses that findleaks reads. `form`: "core" or "program" for ELF,
    "minidump", or "saved" for any other file. `notes`: (offset, size) of ELF notes; `data`: (offset, size, whether writable) of file
    contents that are not holes."""

    def __init__(self, path: Path, focus: Sequence[int] = ()) -> None:
        self.path, self.focus = path, focus
        self.size = path.stat().st_size
        self._file = os.open(path, os.O_RDONLY)
        self.notes: list[tuple[int, int]] = []
        self.tables: list[Table] = []
        self.parts: list[Part] = []
        magic = self.read(0, 4)
        self.form = {b"\x7fELF": "program", b"MDMP": "minidump"}.get(magic, "saved")
        if self.form == "program":
            self._read_elf()
        elif self.form == "minidump":
            self._read_minidump()
        self.tables = [table for table in self.tables if table.count]
        self.parts.sort()
        self._starts = [part.start for part in self.parts]
        self.data = self._data() or [(0, self.size, True)]
        self.written = [one for one in self.data if one[2]] or self.data

    def read(self, at: int, size: int) -> bytes:
        return os.pread(self._file, size, at)

    def close(self) -> None:
        os.close(self._file)

    def offset(self, address: int) -> int:
        """Return the file offset of the byte at an address; 0 if the file does not contain it."""
        index = bisect_right(self._starts, address) - 1
        part = self.parts[index] if index >= 0 else Part(0, 0, 0, False)
        return address - part.start + part.offset if part.start <= address < part.end else 0

    def _read_elf(self) -> None:
        head = self.read(0, 64)
        phoff, shoff = struct.unpack_from("<2Q", head, 32)
        kind, (phnum, _, shnum) = struct.unpack_from("<H", head, 16)[0], struct.unpack_from("<3H", head, 56)
        self.tables = [Table(phoff, phnum, 56), Table(shoff, shnum, 64)]
        rows = [struct.unpack("<IIQQQQ", self.read(phoff + 56 * number, 40)) for number in range(phnum)]
        self.notes = [(offset, size) for kind_, _, offset, _, _, size in rows if kind_ == PT_NOTE]
        if kind == ET_CORE:
            self.form = "core"
            loads = [row for row in rows if row[0] == PT_LOAD and row[5]]
            self.parts = [Part(address, address + size, offset, bool(flags & 2)) for _, flags, offset, address, _, size in loads]
        else:
            self.sections = list(self._sections(shoff, shnum))

    def _sections(self, shoff: int, shnum: int) -> Iterable[tuple[int, int, bool]]:
        """Find the section headers. Sections with code are left out: they are large, and findleaks does not read them."""
        for number in range(shnum):
            _, kind, flags, _, offset, size = struct.unpack("<IIQQQQ", self.read(shoff + 64 * number, 40))
            if kind != SHT_NOBITS and size and not flags & 4:
                yield offset, size, True

    def _read_minidump(self) -> None:
        count, directory = struct.unpack_from("<II", self.read(0, 32), 8)
        self.tables = [Table(directory, count, 12)]
        for number in range(count):
            kind, size, offset = struct.unpack("<3I", self.read(directory + 12 * number, 12))
            self.tables.append(Table(offset + size % 4, size // 4, 4))
            if kind == _MEMORY64:
                rows, at = struct.unpack("<2Q", self.read(offset, 16))
                for start, length in struct.iter_unpack("<2Q", self.read(offset + 16, 16 * rows)):
                    self.parts.append(Part(start, start + length, at, True))
                    at += length

    def _data(self) -> list[tuple[int, int, bool]]:
        if self.form == "program":
            return self.sections
        found = []
        for part in self.parts:
            at, end = part.offset, part.offset + part.end - part.start
            while at < end:
                try:
                    low = os.lseek(self._file, at, os.SEEK_DATA)
                    high = min(os.lseek(self._file, low, os.SEEK_HOLE), end)
                except OSError:
                    break
                if low < end:
                    found.append((low, high - low, part.writable))
                at = high
        return found
