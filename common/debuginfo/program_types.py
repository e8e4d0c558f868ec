"""Merge the types of all modules of a process into one table.

Merging takes longer than reading a merged table from the cache. Therefore the result has two parts:
columns that do not depend on the addresses of the modules, and the types that `place_types` makes
from these columns. The columns are those of a table (TypeTable) with the following differences.
Addresses of variables are those in the modules' files. `keys` has the size of an address, then for
each module the count of its types and the count of its variables. `key_types` has, for each type of
each module, its number in the merged table."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence

from findleaks.debuginfo.type_table import TypeTable
from findleaks.engine.dwarf_sources import COLUMNS, TYPE_COLUMNS, TypeReader
from findleaks.target.base import Module
from findleaks.value_classes import dataclass, replace

_MASK = (1 << 64) - 1
TYPES_A_CALL = 1 << 17  # about 50 ms in the C engine
_COUNTS, _NUMBERS = len(COLUMNS) - 2, len(COLUMNS) - 1  # columns `keys` and `key_types`


@dataclass(frozen=True)
class ProgramTypes:
    """The types of a process. If one module only declares a type and another one defines it, both
    are the same type. Equal types of several modules have one number."""

    table: TypeTable
    """The merged table. Variables have addresses of the process. Functions and thread-local
    variables are missing (the offset of a thread-local variable is valid only in its module). For
    these, use the module's own table and `numbers`."""
    numbers: Mapping[int, array[int]]
    """For each module, by its start: the number in `table` ("I") of each type in the module's own
    table."""


def only_table(module: Module, table: TypeTable) -> ProgramTypes:
    """Return the types of a process of which only one module has types."""
    addresses = _move(table.variable_addresses, module)
    return ProgramTypes(replace(table, variable_addresses=addresses), {module.start: array("I", range(len(table)))})


def place_types(modules: Sequence[Module], columns: Sequence[array[int]]) -> ProgramTypes:
    """Return the types of a process from merged columns. The modules are in the order in which
    their tables were merged."""
    counts, numbers, addresses, first, row = columns[_COUNTS], {}, array("Q"), 0, 0
    for module, own, variables in zip(modules, counts[1::2], counts[2::2]):
        numbers[module.start] = columns[_NUMBERS][first : first + own]
        addresses.extend(_move(columns[TYPE_COLUMNS][row : row + variables], module))
        first, row = first + own, row + variables
    types, names = columns[TYPE_COLUMNS + 1 : TYPE_COLUMNS + 3]
    table = TypeTable.of(counts[0], columns[:TYPE_COLUMNS])
    return ProgramTypes(replace(table, variable_addresses=addresses, variable_types=types, variable_names=names), numbers)


def _move(addresses: Sequence[int], module: Module) -> array[int]:
    return array("Q", [address + module.bias & _MASK for address in addresses])


def merge_columns(tables: Sequence[TypeTable], reader: TypeReader, progress: Callable[[float], None]) -> list[array[int]]:
    """Return the columns of merged tables."""
    first = 0
    for table in tables:
        given = table.columns()[:TYPE_COLUMNS]
        for number in range(0, len(table), TYPES_A_CALL):
            reader.add_table(given, first, number, number + TYPES_A_CALL)
            progress(0.0)
        first += len(table)
    part = 0.0
    while part < 1.0:
        part = reader.merge()
        progress(part)
    columns, rows, at = reader.columns(), array("I"), 0
    counts = array("Q", [max(table.word for table in tables)])
    for table in tables:
        # Void and unknown have no row.
        own = array("I", [0, 1]) + columns[_NUMBERS][at : at + len(table) - 2]
        counts.extend((len(own), len(table.variable_addresses)))
        columns[TYPE_COLUMNS].extend(table.variable_addresses)
        columns[TYPE_COLUMNS + 1].extend(array("I", map(own.__getitem__, table.variable_types)))
        at += len(own) - 2
        rows += own
    columns[TYPE_COLUMNS + 2] = _add_names(columns[0], tables)
    columns[_COUNTS], columns[_NUMBERS] = counts, rows
    return columns


def _add_names(strings: array[int], tables: Sequence[TypeTable]) -> array[int]:
    """Add the names of all variables to the strings of the merged types. Return the offset of each
    name in the strings."""
    places: dict[bytes, int] = {}
    found = array("I")
    for table in tables:
        for name in table.variable_names:
            text = table.strings[name : table.strings.find(b"\0", name) + 1]
            if text not in places:
                places[text] = len(strings)
                strings.frombytes(text)
            found.append(places[text])
    return found
