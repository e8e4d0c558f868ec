"""Read and compare tables of types in tests."""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from typing import Optional

from findleaks.debuginfo.type_index import read_types
from findleaks.debuginfo.type_sources import TypeSources
from findleaks.debuginfo.type_table import FieldKind, Flag, Kind, TypeTable, Variable
from findleaks.engine import load
from findleaks.target import elf
from findleaks.target.arch import X86_64, Arch
from findleaks.target.separate import alternate_link

AGGREGATES = (Kind.STRUCT, Kind.UNION, Kind.ENUM)


def arch_of(data: elf.Buffer) -> Arch:
    """Return an architecture with the word size and byte order of a file."""
    head = elf.header(data)
    return X86_64._replace(word=head.bits // 8, byteorder=head.byteorder)


def open_sources(path: Path) -> TypeSources:
    """Open a file's sources of types, with the .dwo, .dwp and supplementary files beside it."""
    data = path.read_bytes()
    link = alternate_link(data)
    alternate = (path.parent / os.path.basename(link.path)).read_bytes() if link is not None else None

    def open_file(name: str) -> Optional[bytes]:
        found = path.parent / os.path.basename(name) if name else path.parent / f"{path.name}.dwp"
        return found.read_bytes() if found.is_file() else None

    return TypeSources(data, alternate, open_file, lambda: None)


def read_file(path: Path, pure: bool = False) -> TypeTable:
    """Read the types of a file with the C engine or the Python engine."""
    return TypeTable.of(open_sources(path).word, columns_of(path, pure))


def columns_of(path: Path, pure: bool = False) -> list[array[int]]:
    """Return the columns of a file's types."""
    sources = open_sources(path)
    reader = load.load(arch_of(path.read_bytes()), pure).type_reader()
    read_types(reader, sources, lambda part: None)
    assert not reader.incomplete
    assert not sources.missing
    return reader.columns()


def describe(table: TypeTable, number: int) -> tuple[object, ...]:
    """Return all properties of a type. Types that it refers to are given by name."""
    kept = table.flags[number] & (Flag.DECLARATION | Flag.POLYMORPHIC | Flag.NAMED_BY_TYPEDEF | Flag.REFERENCE)
    own = (Kind(table.kinds[number]).name, table.name(number), table.sizes[number], table.counts[number], kept)
    fields = [
        (one.kind.name, one.name, one.offset, one.bits, one.first_bit, one.value, table.name(one.type), table.sizes[one.type])
        for one in table.fields_of(number)
    ]
    return (*own, table.name(table.targets[number]), tuple(fields))


def parts(table: TypeTable, number: int) -> set[tuple[str, str, str, int]]:
    """Return the template arguments, inner typedefs and virtual bases of a type."""
    return {(one.kind.name, one.name, table.name(one.type), one.value) for one in table.parts_of(number)}


def list_named(table: TypeTable) -> dict[tuple[str, str], set[tuple[object, ...]]]:
    """Return the structs, unions and enumerations with names, by kind and name."""
    found: dict[tuple[str, str], set[tuple[object, ...]]] = {}
    for number, kind in enumerate(table.kinds):
        if kind in AGGREGATES and table.names[number]:
            found.setdefault((Kind(kind).name, table.name(number)), set()).add(describe(table, number))
    return found


def variables(table: TypeTable) -> dict[str, str]:
    """Return the types of global, static and thread-local variables by name."""
    every: list[Variable] = [*table.variables(), *table.thread_locals()]
    return {one.name: table.name(one.type) for one in every}


def functions(table: TypeTable) -> dict[int, tuple[int, str]]:
    """Return the end and the result type of each function by its start."""
    rows = zip(table.function_starts, table.function_ends, table.function_types)
    return {start: (end, table.name(kind)) for start, end, kind in rows}


def differences(slow: TypeTable, fast: TypeTable) -> list[str]:
    """Return the differences between two tables of one file, by the keys of entries."""
    found = []
    if not set(slow.keys) <= set(fast.keys):
        found.append(f"keys: {sorted(set(slow.keys) - set(fast.keys))[:5]}")
    for key in slow.keys:
        one, other = slow.type_of_key(key), fast.type_of_key(key)
        if describe(slow, one) != describe(fast, other):
            found.append(f"{key:#x}: {describe(slow, one)} and {describe(fast, other)}")
        elif not parts(slow, one) <= parts(fast, other):
            found.append(f"{key:#x}: parts {parts(slow, one) - parts(fast, other)}")
    for column in ("variable_addresses", "local_offsets", "function_starts", "function_ends"):
        if list(getattr(slow, column)) != list(getattr(fast, column)):
            found.append(f"{column}: {len(getattr(slow, column))} and {len(getattr(fast, column))}")
    if variables(slow) != variables(fast):
        found.append(f"variables: {set(variables(slow).items()) ^ set(variables(fast).items())}")
    if functions(slow) != functions(fast):
        found.append(f"functions: {set(functions(slow).items()) ^ set(functions(fast).items())}")
    return found


def member_places(table: TypeTable, number: int) -> dict[str, tuple[int, int]]:
    """Return offset and size of each member of a type by name, with the members of anonymous members and of base classes."""
    found: dict[str, tuple[int, int]] = {}

    def add(kind: int, base: int) -> None:
        for one in table.fields_of(table.bare(kind)):
            if one.kind == FieldKind.BASE or not one.name:
                add(one.type, base + one.offset)
            else:
                found[one.name] = base + one.offset, table.sizes[one.type]

    add(number, 0)
    return found


def check_facts(table: TypeTable, facts: str) -> int:
    """Compare a table with what a program of tests/programs/type_layouts printed; return the number of facts."""
    types = {table.name(number): number for number in range(len(table)) if table.kinds[number] in AGGREGATES}
    threads = {one.name: one.address for one in table.thread_locals()}
    lines = [line.split("\t") for line in facts.splitlines()]
    for what, name, *rest in lines:
        if what == "size":
            assert table.sizes[types[name]] == int(rest[0]), name
        elif what == "member":
            assert member_places(table, types[name])[rest[0]] == (int(rest[1]), int(rest[2])), (name, rest)
        elif what == "base":
            bases = {table.name(one.type): one.offset for one in table.fields_of(types[name]) if one.kind == FieldKind.BASE}
            assert bases[rest[0]] == int(rest[1]), name
        elif what == "variable":
            found = table.variable_at(int(rest[0], 0))
            assert found is not None, name
            assert (found.name, found.address, table.sizes[found.type]) == (name, int(rest[0], 0), int(rest[1]))
        elif what == "thread":
            assert threads[name] - threads["thread_count"] == int(rest[0])
        elif what == "function":
            function = table.function_at(int(rest[0], 0))
            assert function is not None, name
            assert (function.start, table.name(function.returns)) == (int(rest[0], 0), f"{name.removeprefix('make_')} *")
        else:
            assert what == "variant"
            assert variant_of(table, types[name], int(rest[1])) == rest[0], (name, rest)
    return len(lines)


def variant_of(table: TypeTable, number: int, word: int) -> str:
    """Return the variant of a Rust enum whose first word is `word`."""
    other = ""
    for one in table.fields_of(number):
        if one.kind == FieldKind.VARIANT and one.value == word:
            return one.name
        other = one.name if one.kind == FieldKind.OTHER_VARIANT else other
    return other
