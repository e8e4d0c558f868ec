"""Find methods that were defined with a block (define_method), their Procs, and the variables that
these captured.

Sources: method.h (rb_callable_method_entry_t: {flags, class, definition, called ID, owner};
rb_method_definition_t: {type in 4 bits, …; Proc; …; original ID}) and internal/class.h (struct
RClass; in 2.7.4: internal.h) of Ruby 2.7.4, 3.1.2, 3.3.8 and 3.4.1."""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.ruby.closures import Closures
from findleaks.runtimes.ruby.symbols import Symbols, serial_number
from findleaks.runtimes.ruby.tables import Tables
from findleaks.runtimes.ruby.values import Values
from findleaks.target.interruptible import interruptible

_WORDS = 5  # number of words that are read of a method entry, or of a definition
_TYPE, _WITH_BLOCK = 0xF, 4  # mask of the type of a definition; VM_METHOD_TYPE_BMETHOD
_EXTENSION = 24  # offset in a class of the pointer to its extension, up to Ruby 3.1
_TABLES = 8  # first words of a class or its extension; one points to the table of methods
_LOOK = 4096  # entries between two checks for the user's interrupt
UNNAMED = "classes without a name"
MANY = 64  # if at least this many methods are of one group, their variables are not distinguished


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


class BlockVariables:
    """The variables that Procs of methods captured."""

    def __init__(self, methods: Iterable[BlockMethod], symbols: Symbols, values: Values, closures: Closures) -> None:
        self._methods = list(methods)
        self._symbols, self._values, self._closures = symbols, values, closures

    def owners(self) -> set[int]:
        """Return the addresses of all classes that have such methods."""
        return {one.owner for one in self._methods}

    def find(
        self, is_wanted: Callable[[int], bool], places: Mapping[int, str], least: int = sys.maxsize
    ) -> Iterator[tuple[str, int, int, bool]]:
        """Yield the name of each variable, the address of the reference, the value, and whether at
        least `least` methods have the same description. If MANY methods have, their variables have
        one name. `is_wanted` returns whether a class's methods are wanted. `places`: where
        singleton classes and classes without a name are, such as "classes in Template::CACHE"."""
        methods = (one for one in self._methods if is_wanted(one.owner))
        found = [(one.proc, *self._describe(one, places.get(one.owner, ""))) for one in methods]
        counts = Counter(group for _, _, group in found)
        for proc, method, group in found:
            joint = f"captured variables of {group}" if counts[group] >= MANY else ""
            for name, address, value in self._closures.variables(proc) if method else ():
                yield joint or f"{method}'s captured variable {name}", address, value, counts[group] >= least

    def _describe(self, one: BlockMethod, place: str) -> tuple[str, str]:
        """Return the description of a method, and of the methods that are grouped with it: those of
        the same class, or those of the same name in singleton classes or classes without a name
        that are in the same place. The descriptions are "" if the name is unknown."""
        name, owner = self._symbols.name(one.serial), self._values.class_name(one.owner)
        if not name:
            return "", ""
        if self._values.is_singleton(one.owner):
            return f"singleton method {name}", f"singleton methods {name}{f' of {place}' if place else ''}"
        return f"{owner}#{name}", f"methods {name} of {place or UNNAMED}" if owner.startswith("#<") else f"methods of {owner}"


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
