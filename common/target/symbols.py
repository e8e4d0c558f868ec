"""Symbols of modules, by name and by address.

Names are searched for in the tables directly. Addresses are looked up in an index that is built
once per module. pyelftools is not used, because it creates an object for each symbol: it reads the
219,591 symbols of Node 22 in 15 s, `struct.iter_unpack` in 0.13 s."""

from __future__ import annotations

import re
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Optional

from findleaks.target.base import Module, Symbol
from findleaks.target.elf import Table, occurrences, text

# Types (st_info & 15) whose values are addresses: NOTYPE, OBJECT, FUNC, COMMON, GNU_IFUNC
_ADDRESSED = (0, 1, 2, 5, 10)
_CODE = (0, 2, 10)
_FUNCTIONS = (2, 10)
_TLS = 6
_SHN_ABS = 0xFFF1  # section of absolute values, which are not addresses
_MOST_SPELLINGS = 256  # most occurrences of a name in a string table that are tried
_LOOK_BACK = 8  # symbols before an address that are tried: a big symbol may contain small ones
_MOST_ENTRIES = 256  # most values tried for _LOOK_BACK, including those without a symbol

# What Rust's macro thread_local! appends to the name of a variable, whose value is a static
# variable of a function or closure (library/std/src/sys/thread_local)
_THREAD_LOCAL = re.compile(
    r"(::\{\{constant\}\}|::\{K#[0-9]+\})?::(\{\{closure\}\}|\{closure#[0-9]+\}|__getit)::(__RUST_STD_INTERNAL_VAL|VAL|__KEY)$"
)


class ModuleSymbols:
    """The symbols of one module, from all its tables. `module.bias` is added to their values.
    Bits of function addresses outside `code_bits` are cleared."""

    def __init__(self, module: Module, tables: Sequence[Table], code_bits: int = -1) -> None:
        self.module = module
        self._code_bits = code_bits
        self._tables = tables
        self._name = module.path.rsplit("/", 1)[-1]
        self._values: Optional[Sequence[int]] = None  # values of all entries, sorted
        self._order: Sequence[int] = ()  # numbers of the entries, sorted by value
        self._firsts: list[int] = []  # the number of each table's first entry
        self._columns: dict[int, bytes] = {}  # column st_name by table
        self._preferred: dict[int, Optional[tuple[int, int, bool]]] = {}  # results of _entries

    def by_name(self, name: str) -> Optional[Symbol]:
        """Return the defined symbol with exactly this name; a global one is preferred to a local
        one.
        The string table is searched for the name, and then the column of names for its offset. This
        is some hundred times faster than comparing entry by entry. Names share tails: "free" is in
        "cfree"."""
        wanted = name.encode("utf-8", "surrogateescape") + b"\0"
        local: Optional[Symbol] = None
        for number, table in enumerate(self._tables):
            size = struct.calcsize(table.form)
            for at in islice(occurrences(table.strings, wanted), _MOST_SPELLINGS):
                for entry in _places(self._names(number), at):
                    found = self._symbol(table, struct.unpack_from(table.form, table.symbols, entry * size), name)
                    if found is not None:
                        if table.symbols[entry * size + (4 if table.wide else 12)] >> 4:
                            return found
                        local = local or found
        return local

    def _names(self, number: int) -> bytes:
        """Return the column st_name of a table in this machine's byte order. It is read once."""
        if number not in self._columns:
            table = self._tables[number]
            self._columns[number] = _column(table, "I", 0).tobytes()
        return self._columns[number]

    def starting(self, prefix: str) -> list[Symbol]:
        """Return the defined symbols whose name starts with `prefix`, in the order of the tables,
        without repetition."""
        found: dict[str, Symbol] = {}
        mark = b"\0" + prefix.encode("utf-8", "surrogateescape")
        for table in self._tables:
            names = {at + 1: text(table.strings, at + 1) for at in occurrences(table.strings, mark)}
            if names:
                for row in struct.iter_unpack(table.form, table.symbols):
                    if row[0] in names:
                        symbol = self._symbol(table, row, names[row[0]])
                        if symbol is not None:
                            found.setdefault(symbol.name, symbol)
        return list(found.values())

    def thread_locals(self) -> list[Symbol]:
        """Return the thread-local variables (demangled), by their offset in the module's block of
        thread-local storage."""
        from findleaks.demangle import demangle  # slow to import, and rarely needed

        found: dict[int, Symbol] = {}
        for table in self._tables:
            rows = struct.iter_unpack(table.form, table.symbols)
            for name, _, section, value, size in (table.fields(row) for row in rows if row[1 if table.wide else 3] & 15 == _TLS):
                # On s390x, compilers emit labels without a size for variables.
                if section and name and (value not in found or size > found[value].size):
                    variable = _THREAD_LOCAL.sub("", demangle(text(table.strings, name)))
                    found[value] = Symbol(variable, value, size, self._name)
        return [found[value] for value in sorted(found)]

    def _symbol(self, table: Table, row: tuple[int, ...], name: str) -> Optional[Symbol]:
        _, info, section, value, size = table.fields(row)
        if section in (0, _SHN_ABS) or info & 15 not in _ADDRESSED:
            return None
        if info & 15 in _FUNCTIONS:
            value &= self._code_bits
        return Symbol(name, value + self.module.bias, size, self._name)

    def _build(self) -> Sequence[int]:
        """Sort the entries of all tables by value. The other fields of an entry are decoded on
        demand, because only few of hundreds of thousands of entries are needed."""
        values: list[int] = []
        for table in self._tables:
            self._firsts.append(len(values))
            values += _values(table) if self._code_bits == -1 else self._code_values(table)
        self._order = sorted(range(len(values)), key=values.__getitem__)
        self._values = [values[entry] for entry in self._order]
        return self._values

    def _code_values(self, table: Table) -> list[int]:
        rows = map(table.fields, struct.iter_unpack(table.form, table.symbols))
        return [value & self._code_bits if info & 15 in _FUNCTIONS else value for _, info, _, value, _ in rows]

    def _entries(self, start: int, end: int) -> Optional[tuple[int, int, bool]]:
        """Return the preferred symbol among the sorted entries [start, end), which have the same
        value, as (size, table << 32 | st_name, is code). Defined symbols with a size come first,
        then global, weak, and local symbols."""
        if start not in self._preferred:  # Thousands of undefined symbols have the value 0.
            self._preferred[start] = self._choose(start, end)
        return self._preferred[start]

    def _choose(self, start: int, end: int) -> Optional[tuple[int, int, bool]]:
        best: Optional[tuple[int, int, int, bool]] = None
        for entry in self._order[start:end]:
            index = bisect_right(self._firsts, entry) - 1
            table = self._tables[index]
            row = struct.unpack_from(table.form, table.symbols, (entry - self._firsts[index]) * struct.calcsize(table.form))
            name, info, section, _, size = table.fields(row)
            kind = info & 15
            if section and section != _SHN_ABS and kind in _ADDRESSED and name and not (info == 0 and _marks_code(table, name)):
                rank = (size != 0) << 2 | {1: 2, 2: 1}.get(info >> 4, 0)
                best = max(best or (0, 0, 0, False), (rank, size, index << 32 | name, kind in _CODE))
        return best[1:] if best is not None else None

    def by_address(self, address: int) -> Optional[Symbol]:
        """Return the symbol that covers `address`. If the table has no size, a function extends to
        the next symbol, and data covers only its first byte."""
        values = self._values if self._values is not None else self._build()
        value = address - self.module.bias
        end = bisect_right(values, value)
        back = 0
        for _ in range(_MOST_ENTRIES):
            if not end or back == _LOOK_BACK:
                break
            start = bisect_left(values, values[end - 1])
            low = values[start]
            found = self._entries(start, end)
            end = start
            if found is None:
                continue
            size, where, code = found
            if value < low + size or (back == 0 and not size and (value == low or code)):
                from findleaks.demangle import demangle  # slow to import, and rarely needed

                name = text(self._tables[where >> 32].strings, where & 0xFFFFFFFF)
                return Symbol(demangle(name), low + self.module.bias, size, self._name)
            back += 1
        return None


def _marks_code(table: Table, name: int) -> bool:
    """Return whether this is a mapping symbol, which marks where code or data begins (ELF for the
    Arm 64-bit Architecture 2023Q3, 5.7: "$x", "$d"; for the Arm Architecture, 5.5.5: "$a", "$t",
    "$d")."""
    return table.strings[name : name + 2] in (b"$x", b"$d", b"$a", b"$t") and table.strings[name + 2 : name + 3] in (b"\0", b".")


def _values(table: Table) -> Sequence[int]:
    """Return the column st_value of a table."""
    return _column(table, "Q" if table.wide else "I", 1)


def _column(table: Table, typecode: str, first: int) -> array[int]:
    """Return a column of the symbol table. Each entry is read as an array of numbers of this type
    code, and the number at index `first` is returned."""
    size = struct.calcsize(table.form)
    words = array(typecode)
    words.frombytes(bytes(table.symbols[: len(table.symbols) // size * size]))
    if (table.form[0] == ">") != (sys.byteorder == "big"):
        words.byteswap()
    return words[first :: size // words.itemsize]


def _places(column: bytes, wanted: int) -> Iterator[int]:
    """Yield the indices of `wanted` in a column of 32-bit numbers, ascending."""
    # Searching bytes is ten times faster than comparing numbers.
    found = occurrences(column, wanted.to_bytes(4, sys.byteorder)) if wanted < 1 << 32 else ()
    return (at // 4 for at in found if at % 4 == 0)
