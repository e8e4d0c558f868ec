"""Read code objects of CPython without a heap: function, file, and the line of an instruction.

Sources, CPython 3.9 to 3.14: Include/cpython/code.h (PyCodeObject), unicodeobject.h (str),
bytesobject.h; Objects/lnotab_notes.txt of 3.9 and 3.10, Objects/locations.md of 3.11 and
InternalDocs/code_objects.md of 3.14 (tables of lines); PyCode_Addr2Line in Objects/codeobject.c."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.value_classes import NamedTuple

UNIT = 2  # bytes of an instruction of bytecode
_LONGEST_TEXT = 1 << 12  # characters
_LARGEST_TABLE = 1 << 20  # bytes
_NO_LINE = -128  # a difference of 3.10
# Kinds of an entry since 3.11.
_NO_LOCATION, _NO_COLUMNS, _LONG, _ONE_LINE = 15, 13, 14, range(10, 13)
_BEFORE_ENTRY = 0x80  # bit of the first byte of such an entry, and of no other byte of it
_KINDS = {1: "latin-1", 2: "utf-16", 4: "utf-32"}
_STATE, _TEXT = 32, 40  # offsets of the flags and of the characters of an ASCII str since 3.12


class Types(NamedTuple):
    """Addresses of PyCode_Type, PyUnicode_Type and PyBytes_Type."""

    code: int
    text: int
    data: int


class CodeObject(NamedTuple):
    """A code object. `bytecode` is the address of its first instruction (0 before 3.11), `size` the
    number of bytes of its instructions. `is_internal`: it belongs to the interpreter
    (_Py_InitCleanup), and Python's own tracebacks omit its frames."""

    function: str
    file: str
    first_line: int
    table: bytes
    bytecode: int
    size: int
    is_internal: bool


class CodeReader:
    """Reads code objects of one interpreter. `shift` is the number of bytes of an object before its
    reference count; see pymalloc.Interpreter."""

    def __init__(self, memory: Memory, types: Types, release: tuple[int, int], shift: int) -> None:
        self._memory, self._types, self._release, self._shift = memory, types, release, shift
        self._known: dict[int, Optional[CodeObject]] = {}
        self._lines: dict[tuple[int, int], int] = {}
        # tp_basicsize of code is the offset of its bytecode since 3.11.
        self._bytecode = memory.word(types.code + shift + 32) or 0

    def read(self, address: int) -> Optional[CodeObject]:
        """Return the code object at an address; None if there is none, or if it is damaged."""
        if address not in self._known:
            self._known[address] = self._read(address)
        return self._known[address]

    def _read(self, address: int) -> Optional[CodeObject]:
        if not self._is_a(address, self._types.code):
            return None
        base = address + self._shift
        if self._release < (3, 11):
            file, name, table = (self._memory.word(base + at) or 0 for at in (104, 112, 120))
            line = self._memory.int32(base + 40)
            return self._make(name, file, line, table, 0, 1 << 31)
        file, _, name, table = self._memory.words(base + 112, 4) or (0,) * 4
        line = self._memory.int32(base + (72 if self._release == (3, 11) else 68))
        size = UNIT * (self._memory.word(base + 16) or 0)
        return self._make(name, file, line, table, address + self._bytecode, size)

    def _make(self, name: int, file: int, line: Optional[int], table: int, bytecode: int, size: int) -> Optional[CodeObject]:
        function, path, data = self.text(name), self.text(file), self._bytes(table)
        if not function or path is None or data is None or line is None:
            return None
        return CodeObject(function, path, line, data, bytecode, size, file == name)

    def _is_a(self, address: int, type_: int) -> bool:
        return not address % self._memory.size and self._memory.word(address + self._shift + self._memory.size) == type_

    def text(self, address: int) -> Optional[str]:
        """Return the text of a str object; None if there is none, if it is too long, or if it has
        NUL characters, because no name has any."""
        base = address + self._shift
        length = self._memory.word(base + 16) if self._is_a(address, self._types.text) else None
        state = self._memory.int32(base + _STATE)
        if length is None or length > _LONGEST_TEXT or state is None:
            return None
        if not length:
            return ""
        flags = state >> 2  # after `interned`: kind (3 bits), compact, ascii
        kind, is_ascii = flags & 7, flags & 16
        if kind not in _KINDS or not flags & 8:
            return None
        old = 8 if self._release < (3, 12) else 0  # wstr, and later wstr_length
        start = base + _TEXT + old + (0 if is_ascii else 16 + old)
        data = self._memory.read(start, (length + 1) * kind)
        if not data or any(data[-kind:]):
            return None
        order = "" if kind == 1 else "-le" if self._memory.arch.byteorder == "little" else "-be"
        text = data[:-kind].decode(_KINDS[kind] + order, "backslashreplace")
        return text if "\0" not in text else None

    def _bytes(self, address: int) -> Optional[bytes]:
        base = address + self._shift
        size = self._memory.word(base + 16) if self._is_a(address, self._types.data) else None
        if size is None or size > _LARGEST_TABLE:
            return None
        return self._memory.read(base + 32, size) if size else b""

    def line(self, address: int, code: CodeObject, at: int) -> int:
        """Return the line of the instruction at a byte offset; 0 if it has none, or if the offset
        is not in the code. `address` is that of the code object. The offset of a function that did
        not begin yet is negative."""
        key = address, at
        if key not in self._lines:
            self._lines[key] = self.find_line(code, at)
        return self._lines[key]

    def find_line(self, code: CodeObject, at: int) -> int:
        """Return the same as `line`, without a cache."""
        if -UNIT <= at < 0:
            return code.first_line
        if not 0 <= at < code.size:
            return 0
        return next((line for start, end, line in self._entries(code) if start <= at < end), 0)

    def _entries(self, code: CodeObject) -> Iterator[tuple[int, int, int]]:
        read = _read_locations if self._release >= (3, 11) else _read_lines if self._release == (3, 10) else _read_line_numbers
        return read(code.table, code.first_line)


def _read_locations(table: bytes, line: int) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and line (0: none) of the instructions of each entry; CPython 3.11."""
    at = place = 0
    while place < len(table):
        kind, end = table[place] >> 3 & 15, at + UNIT * ((table[place] & 7) + 1)
        place += 1
        if kind in (_NO_COLUMNS, _LONG):
            line += _read_signed(table, place)
        elif kind in _ONE_LINE:
            line += kind - _ONE_LINE.start
        yield at, end, 0 if kind == _NO_LOCATION else line
        at = end
        while place < len(table) and not table[place] & _BEFORE_ENTRY:
            place += 1


def _read_signed(table: Sequence[int], place: int) -> int:
    """Return the number at a place: 6 bits in each byte, the lowest first. Bit 6 of a byte says
    that another follows. The lowest bit of the number is its sign."""
    value = shift = 0
    for byte in table[place : place + 6]:
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
    return -(value >> 1) if value & 1 else value >> 1


def _read_lines(table: bytes, line: int) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and line (0: none) of the instructions of each entry; CPython 3.10."""
    at = 0
    for size, byte in zip(table[::2], table[1::2]):
        change = byte - 256 if byte > 127 else byte
        line += change if change != _NO_LINE else 0
        yield at, at + size, 0 if change == _NO_LINE else line
        at += size


def _read_line_numbers(table: bytes, line: int) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and line of the instructions of each entry; CPython 3.9."""
    at = 0
    for size, byte in zip(table[::2], table[1::2]):
        yield at, at + size, line
        at += size
        line += byte - 256 if byte > 127 else byte
    yield at, 1 << 31, line
