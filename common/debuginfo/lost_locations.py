"""Find variables whose addresses are missing in debug information, by the names of symbols.

With -flto and -gsplit-dwarf, gcc 12 writes the names and types of variables to the program, and
their addresses to the .dwo files of link-time optimisation ("program.ltrans0.ltrans.dwo"). The
entries in these files refer to those in the program with DW_AT_abstract_origin. However, a .dwo
file has no relocations, so all these references are 0. The symbol table has the addresses, too."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.debuginfo.type_sources import TypeSources
from findleaks.debuginfo.type_table import VOID, TypeTable
from findleaks.demangle import demangle
from findleaks.engine.reference.dwarf_units import NOTHING, Budget, Malformed, Sections, Unit, Value
from findleaks.target import elf

MOST_INFO = 16 << 20  # maximum size of .debug_info that is read: about 5 s
MOST_UNITS = 1 << 16
_BUDGET = 1 << 28
_NAMESPACE, _VARIABLE = 0x39, 0x34
_SIBLING, _LOCATION, _NAME, _TYPE, _LINKAGE_NAME = 0x01, 0x02, 0x03, 0x49, 0x6E
_OBJECT, _THREAD_LOCAL = 1, 6  # STT_OBJECT, STT_TLS
_GLOBAL, _WEAK = 1 << 4, 2 << 4  # STB_GLOBAL, STB_WEAK
_LOST = ".ltrans.dwo"  # end of the names of .dwo files that link-time optimisation writes
_PRIVATE = ".lto_priv."  # separates the name from a number in symbols of static variables


def has_lost_locations(sources: TypeSources) -> bool:
    """Whether the .dwo files of a program lack the addresses of variables."""
    return any(one.name.endswith(_LOST) for one in sources.skeletons)


def add_lost_variables(sources: TypeSources, columns: Sequence[array[int]]) -> Optional[list[array[int]]]:
    """Add the global and thread-local variables without an address to the columns of a TypeTable.
    Return the new columns; None if the file has no symbols of variables, or is too large.

    A variable is added if exactly one symbol has its name, and this symbol has the size of the
    variable's type and the address of an entry in a .dwo file. Static variables of functions, and
    static thread-local variables, are left out."""
    if sources.sections.size(".debug_info") > MOST_INFO:
        return None
    symbols = _read_symbols(sources.data)
    if not symbols:
        return None
    table = TypeTable.of(sources.word, columns)
    types: dict[str, set[tuple[str, int]]] = {}
    for symbol, name, key in _find_variables(sources):
        types.setdefault(symbol, set()).add((name, table.type_of_key(key)))
    rows: dict[int, list[tuple[int, int, str]]] = {_OBJECT: [], _THREAD_LOCAL: []}
    for symbol, found in types.items():
        places = symbols.get(symbol, ())
        if len(found) == len(places) == 1:
            ((name, number),), ((kind, address, size),) = found, places
            if size and size == table.size_of(number):
                rows[kind].append((address, number, name))
    return _add_rows(table, columns, rows)


def _add_rows(table: TypeTable, columns: Sequence[array[int]], rows: dict[int, list[tuple[int, int, str]]]) -> list[array[int]]:
    made = list(columns)
    strings = array("B", table.strings)
    known = (
        (table.variable_addresses, table.variable_types, table.variable_names),
        (table.local_offsets, table.local_types, table.local_names),
    )
    for thread_local, (addresses, types, names), more in zip((False, True), known, (rows[_OBJECT], rows[_THREAD_LOCAL])):
        every = {address: (number, name) for address, number, name in zip(addresses, types, names)}
        for address, number, name in more:
            # A row without a name and a type is an entry of a .dwo file. Without such a row, the
            # symbol belongs to another variable with this name, such as one of an assembler file.
            # Global thread-local variables need no row: their symbols are unique.
            if every.get(address, thread_local and (VOID, 0)) == (VOID, 0):
                every[address] = number, len(strings)
                strings.frombytes(name.encode() + b"\0")
        first = next(at for at, column in enumerate(columns) if column is addresses)
        made[first : first + 3] = array("Q", sorted(every)), *(array("I", [every[at][one] for at in sorted(every)]) for one in (0, 1))
    made[0] = strings
    return made


def _read_symbols(data: elf.Buffer) -> dict[str, set[tuple[int, int, int]]]:
    """Return the type, value and size of the symbols of variables, by name and by demangled name.
    The demangled name is necessary for C++: its static variables have no linkage name in debug
    information."""
    found: dict[str, set[tuple[int, int, int]]] = {}
    for table in elf.tables_of_file(data, elf.header(data)):
        for entry in struct.iter_unpack(table.form, table.symbols):
            name, info, section, value, size = table.fields(entry)
            if section and (info & 15 == _OBJECT or info in (_THREAD_LOCAL | _GLOBAL, _THREAD_LOCAL | _WEAK)):
                plain = elf.text(table.strings, name).partition(_PRIVATE)[0]
                for one in {plain, demangle(plain) or plain}:
                    found.setdefault(one, set()).add((info & 15, value, size))
    return found


def _find_variables(sources: TypeSources) -> Iterator[tuple[str, str, int]]:
    """Yield the variables outside of functions that have no location: the name of the symbol, the
    name with its namespaces, and the key of the type."""
    source, at, budget = sources.main()[0], 0, Budget()
    budget.left = _BUDGET
    sections = Sections(source, sources.order)
    for _ in range(MOST_UNITS):
        try:
            unit = Unit(sections, at)
            yield from _of_unit(unit, budget)
        except Malformed:
            return
        at = unit.end


def _of_unit(unit: Unit, budget: Budget) -> Iterator[tuple[str, str, int]]:
    shapes, info = unit.read_shapes(budget), unit.sections.info
    base, at, skipped = unit.sections.source.key, unit.first, 0
    scopes: list[str] = []
    first = True
    while at < unit.end:
        code, at = info.uleb(at, unit.end)
        if not code:
            if skipped:
                skipped -= 1
            elif scopes:
                scopes.pop()
            continue
        if code not in shapes:
            raise Malformed
        shape = shapes[code]
        at, values = unit.read_entry(shape, at, True)
        if first:
            unit.begin(values)
        elif not skipped and shape.tag == _VARIABLE and not values.keys() & {_LOCATION}:
            name, kind = _text(values.get(_NAME, NOTHING)), values.get(_TYPE, NOTHING)
            if name and kind.kind == "key":
                full = "::".join((*scopes[1:], name))
                yield _text(values.get(_LINKAGE_NAME, NOTHING)) or full, full, kind.number
        if shape.children and (first or (shape.tag == _NAMESPACE and not skipped)):
            scopes.append(_text(values.get(_NAME, NOTHING)) or "(anonymous namespace)")
        elif shape.children:
            sibling = values.get(_SIBLING, NOTHING)
            if sibling.kind == "key" and at < sibling.number - base <= unit.end:
                at = sibling.number - base
            else:
                skipped += 1
        first = False


def _text(value: Value) -> str:
    return value.data.decode("utf-8", "replace")
