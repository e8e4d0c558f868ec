"""Find methods that were defined with a block (define_method), and their Procs.

Sources: method.h (rb_callable_method_entry_t: {flags, class, definition, called ID, owner};
rb_method_definition_t: {type in 4 bits, …; Proc; …; original ID}) and internal/class.h (struct
RClass; in 2.7.4: internal.h) of Ruby 2.7.4, 3.1.2, 3.3.8 and 3.4.1."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.ruby.symbols import serial_number
from findleaks.runtimes.ruby.tables import Tables
from findleaks.target.interruptible import interruptible

_WORDS = 5  # number of words that are read of a method entry, or of a definition
_TYPE, _WITH_BLOCK = 0xF, 4  # mask of the type of a definition; VM_METHOD_TYPE_BMETHOD
_EXTENSION = 24  # offset in a class of the pointer to its extension, up to Ruby 3.1
_TABLES = 8  # first words of a class or its extension; one points to the table of methods
_LOOK = 4096  # entries between two checks for the user's interrupt


class BlockMethod(NamedTuple):
    """A method. `owner`: the address of its class. `serial`: the serial number of the ID of its
    name. `proc`: the address of its Proc."""

    owner: int
    serial: int
    proc: int


def find_block_methods(memory: Memory, engine: Engine, tables: Tables, entries: Sequence[int]) -> Iterator[BlockMethod]:
    """Yield the methods that were defined with a block. `entries`: the addresses of method entries,
    ascending. An entry that is missing in the table of its class is left out, because
    nothing may refer to it."""
    found = [(entry, *words[2:]) for entry, words in _read(memory, engine, entries)]
    definitions = array("Q", sorted({definition for _, definition, _, _ in found}))
    procs = {at: words[1] for at, words in _read(memory, engine, definitions) if words[0] & _TYPE == _WITH_BLOCK}
    listed: dict[int, set[int]] = {}
    for entry, definition, called, owner in found:
        if definition not in procs:
            continue
        if owner not in listed:
            listed[owner] = set(_entries_of(memory, tables, owner))
        if entry in listed[owner]:
            yield BlockMethod(owner, serial_number(called), procs[definition])


def _read(memory: Memory, engine: Engine, addresses: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield each address with the words there. Addresses that cannot be read are left out."""
    data, missing = read_records(memory.target, engine, addresses, 8 * _WORDS)
    records = zip(addresses, zip(*[iter(memory.arch.words(data))] * _WORDS))
    for at, (address, words) in enumerate(interruptible(memory.target, records, _LOOK)):
        if at not in missing:
            yield address, words


def _entries_of(memory: Memory, tables: Tables, owner: int) -> Iterator[int]:
    """Yield the values of all tables of a class. Some of them are the addresses of its method
    entries. Up to Ruby 3.1, the pointers to the tables are in the class's extension."""
    for base in (owner, memory.word(owner + _EXTENSION)) if owner and owner % 8 == 0 else ():
        for table in memory.words(base, _TABLES) or () if base and base % 8 == 0 else ():
            yield from (one.value for one in tables.ids(table))
