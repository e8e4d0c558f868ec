"""List instance variables of objects that are neither T_OBJECT nor classes, such as Strings,
Arrays, Threads, and objects of C extensions.

These objects have no memory for variables of their own. A global table maps each of them to a
struct gen_ivtbl, which begins with the number of variables.

Source: variable.c (generic_iv_tbl_, struct gen_ivtbl) of 2.7.4, 3.1.2, 3.3.8 and 3.4.1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

from findleaks.allocators.memory import Memory
from findleaks.runtimes.ruby import census as c
from findleaks.runtimes.ruby.members import Member, Members
from findleaks.runtimes.ruby.symbols import Symbols
from findleaks.runtimes.ruby.tables import Tables, st_span
from findleaks.runtimes.ruby.values import Values
from findleaks.target.base import Range
from findleaks.target.interruptible import interruptible

HAS_VARIABLES = 1 << 10  # FL_EXIVAR: flag of an object whose variables are in the global table
_VARIABLES = 8  # offset of the variables in a struct gen_ivtbl
_MOST = 1 << 20  # maximum number of objects in the global table
_MOST_VARIABLES = 1 << 12  # maximum number of variables of an object
_COMPARED = 16  # entries of a table that are examined to recognise it


class GenericVariables:
    """Reads the global table. `data`: memory of the interpreter's own variables. `is_slot` tells
    whether an object begins at an address."""

    def __init__(
        self,
        memory: Memory,
        tables: Tables,
        symbols: Symbols,
        members: Members,
        values: Values,
        is_slot: Callable[[int], bool],
        data: Sequence[Range],
    ) -> None:
        self._memory, self._tables, self._symbols, self._members, self._values = memory, tables, symbols, members, values
        self._is_slot, self._data = is_slot, data

    def of(self, value: int) -> Iterator[Member]:
        """Yield the variables of the object at this address. Variables that refer to no object are
        left out."""
        flags, klass = self._memory.words(value, 2) or (0, 0)
        # The search for the table takes long, so it runs only if an object has variables.
        start = self._table.get(value, 0) if flags & HAS_VARIABLES else 0
        number = self._count(flags, start)
        if number:
            yield from self._members.of_other(value, klass, start + _VARIABLES, number)

    def memory(self) -> Iterator[tuple[int, int, int]]:
        """Yield the start and size of the memory of variables, and the address of their object. The
        variables of T_DATA, such as Threads, are left out: findleaks does not know all references
        that keep a T_DATA alive, so its variables remain roots."""
        for value, start in interruptible(self._memory.target, self._table.items()):
            flags = self._memory.word(value) or 0
            number = self._count(flags, start) if flags & c.MASK != c.T_DATA else 0
            if number and self._is_slot(value):
                yield start + _VARIABLES, 8 * number, value

    def find(self) -> Iterator[tuple[str, int, int]]:
        """Yield the name of each variable, the address of the reference, and the value. Variables
        of the same name of several objects of one class have one name."""
        found: list[tuple[str, str, int, int]] = []
        for value in interruptible(self._memory.target, self._table):
            if self._is_slot(value):
                owner = self._values.class_name(self._memory.word(value + 8) or 0)
                named = ((self._symbols.name(one.serial), one) for one in self.of(value))
                # Ruby's internal variables have names that a program cannot write.
                found += ((owner, name, one.address, one.value) for name, one in named if owner and name.startswith("@"))
        counts = Counter((owner, name) for owner, name, _, _ in found)
        for owner, name, address, value in found:
            many = counts[owner, name] > 1
            yield f"instance variables {name} of objects of {owner}" if many else f"instance variable {name} of one {owner}", address, value

    @cached_property
    def _table(self) -> Mapping[int, int]:
        """The addresses of the structs gen_ivtbl, by the address of the object whose variables they
        contain."""
        for start, end in self._data:
            for _, words in self._memory.scan(start, end):
                for word in words:
                    if word and word % 8 == 0 and self._is_table(word):
                        return {one.key: one.value for one in self._tables.entries(word, _MOST)}
        return {}

    def _is_table(self, address: int) -> bool:
        """Whether a table maps objects with variables to structs that begin with a number."""
        span = st_span(self._memory, address, _MOST)
        words = self._memory.words(span.start, 3 * min(span.number, _COMPARED)) if span is not None else None
        entries = [(key, value) for key, value in zip(words[1::3], words[2::3]) if key] if words is not None else []
        return any(map(self._is_entry, *zip(*entries))) if entries else False

    def _is_entry(self, key: int, value: int) -> bool:
        # The first entries may be deleted: their object was freed or has become another object.
        if key % 8 or value % 8 or not value or self._is_slot(value) or not self._is_slot(key):
            return False
        return self._count(self._memory.word(key) or 0, value) > 0

    def _count(self, flags: int, start: int) -> int:
        """Return the number of variables in the struct gen_ivtbl at `start`, of an object with
        these flags; 0 if the object has none, or if the number is impossible."""
        number = self._memory.int32(start) if start and flags & HAS_VARIABLES else None
        return number if number is not None and 0 < number <= _MOST_VARIABLES else 0
