"""Merge the types of all modules of a process into one table."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from findleaks.debuginfo.type_table import TypeTable
from findleaks.engine.dwarf_sources import TYPE_COLUMNS, TypeReader
from findleaks.target.base import Module
from findleaks.value_classes import dataclass, replace

_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class ProgramTypes:
    """The types of a process. If one module only declares a type and another one defines it, both
    are the same type. Equal types of several modules have one number."""

    table: TypeTable
    """The merged table. Variables and functions have addresses of the process. Thread-local
    variables are missing, because their offsets are those of one module: use the module's own table
    and `numbers`."""
    numbers: Mapping[int, array[int]]
    """For each module, by its start: the number in `table` ("I") of each type in the module's own
    table."""


def merge_tables(
    tables: Sequence[tuple[Module, TypeTable]], reader: Callable[[], TypeReader], progress: Callable[[float], None]
) -> ProgramTypes:
    """Merge the tables of modules, which are in the order of their addresses."""
    numbers: Mapping[int, array[int]]
    tables = sorted(tables, key=lambda pair: pair[0].start)
    if len(tables) == 1:
        merged, numbers = tables[0][1], {tables[0][0].start: array("I", range(len(tables[0][1])))}
    else:
        merged, numbers = _merge(tables, reader(), progress)
    rest: dict[str, Any] = {**_variables(tables, numbers), **_functions(tables, numbers)}
    rest |= {"local_offsets": array("Q"), "local_types": array("I"), "local_names": array("I")}
    names = array("I", _texts(merged, tables))
    made = replace(merged, strings=merged.strings + b"".join(table.strings for _, table in tables), variable_names=names)
    return ProgramTypes(replace(made, **rest), numbers)


def _merge(
    tables: Sequence[tuple[Module, TypeTable]], reader: TypeReader, progress: Callable[[float], None]
) -> tuple[TypeTable, Mapping[int, array[int]]]:
    first = 0
    for _, table in tables:
        reader.add_table(table.columns()[:TYPE_COLUMNS], first)
        first += len(table)
    part = 0.0
    while part < 1.0:
        part = reader.merge()
        progress(part)
    columns = reader.columns()
    merged = TypeTable(max(table.word for _, table in tables), columns[0].tobytes(), *columns[1:])
    numbers, at = {}, 0
    for module, table in tables:
        rows = len(table) - 2  # void and unknown have no row
        numbers[module.start] = array("I", [0, 1]) + merged.key_types[at : at + rows]
        at += rows
    return merged, numbers


def _texts(merged: TypeTable, tables: Sequence[tuple[Module, TypeTable]]) -> list[int]:
    """Return the names of all variables. Their strings follow those of the merged types."""
    names, base = [], len(merged.strings)
    for _, table in tables:
        names += [base + name for name in table.variable_names]
        base += len(table.strings)
    return names


def _variables(tables: Sequence[tuple[Module, TypeTable]], numbers: Mapping[int, array[int]]) -> dict[str, array[int]]:
    addresses, types = array("Q"), array("I")
    for module, table in tables:
        addresses.extend(array("Q", [address + module.bias & _MASK for address in table.variable_addresses]))
        types.extend(array("I", map(numbers[module.start].__getitem__, table.variable_types)))
    return {"variable_addresses": addresses, "variable_types": types}


def _functions(tables: Sequence[tuple[Module, TypeTable]], numbers: Mapping[int, array[int]]) -> dict[str, array[int]]:
    starts, ends, types, keys = array("Q"), array("Q"), array("I"), array("Q")
    for module, table in tables:
        starts.extend(array("Q", [address + module.bias & _MASK for address in table.function_starts]))
        ends.extend(array("Q", [address + module.bias & _MASK for address in table.function_ends]))
        types.extend(array("I", map(numbers[module.start].__getitem__, table.function_types)))
        keys.extend(table.function_keys)
    return {"function_starts": starts, "function_ends": ends, "function_types": types, "function_keys": keys}
