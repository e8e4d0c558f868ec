"""Find the global variables and static properties of a PHP process.

Sources: Zend/zend_globals.h (executor_globals, compiler_globals), zend_map_ptr.h, zend.h
(zend_class_entry), zend_constants.h (zend_constant) of PHP 8.1 to 8.4. The tables are found by
their content: every PHP process has the variable `_GET` or `argv` and the constant `E_ERROR`, and
the table of classes begins with classes of PHP itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.php.engine import VALUE
from findleaks.runtimes.php.objects import class_name
from findleaks.runtimes.php.tables import ARRAY, INDIRECT, POINTER, Tables, read_string
from findleaks.target.base import Target
from findleaks.target.interruptible import interruptible

WORDS = 256  # words of executor_globals and of compiler_globals that are searched
KNOWN = 32  # first elements of a table among which a known name is searched for
MOST = 1 << 16  # most variables, and most classes
STATICS, STATIC_COUNT = 56, 36  # offsets of static_members_table and its count in a class
MOST_STATICS = 1 << 12
MOST_FUNCTIONS = 1 << 18  # in all classes; inherited functions are in the table of each class
MOST_OFFSET = 1 << 32  # of a word of map_ptr_base
USER = 2  # ZEND_USER_CLASS, and ZEND_USER_FUNCTION
METHODS = 64  # offset of function_table in a class
# Words of a function; the first word that may refer to its static variables
FUNCTION_WORDS, FIRST_STATICS = 28, 4
MOST_RESERVED = 1 << 20  # most bytes that are reserved before map_ptr_base (8.3)


class GlobalNames:
    """Finds the tables of variables and classes through the exported variables of the engine."""

    def __init__(self, target: Target, file: str, tables: Tables) -> None:
        self._memory, self._tables = Memory(target), tables
        symbols = (target.symbol(name, file) for name in ("executor_globals", "compiler_globals"))
        self._executor, self.compiler = (symbol.address if symbol is not None else 0 for symbol in symbols)

    def places(self) -> Iterator[tuple[str, int]]:
        """Yield name and address of the zval of each variable, constant and static property. Names
        have the form "$name", "constant NAME" or "Class::$name"."""
        words = self._memory.words(self._executor, WORDS) if self._executor else None
        if words is None:
            return
        starts = range(self._executor, self._executor + WORDS * self._memory.size, self._memory.size)
        variables = next((start for start in starts if self._has(start, ("_GET", "argv"))), 0)
        for one in self._tables.elements(variables, MOST) if variables else ():
            yield f"${one.key}", one.value if one.type == INDIRECT else one.place
        constants = next((word for word in words if word and self._has(word, ("E_ERROR",))), 0)
        for one in self._tables.elements(constants, MOST) if constants else ():
            if one.type == POINTER:  # to a zend_constant, which begins with its value
                yield f"constant {one.key}", one.value
        classes = next((word for word in words if word and self._has(word, ("stdclass", "exception", "closure"))), 0)
        functions = next((word for word in words if word and self._has(word, ("strlen", "zend_version"))), 0)
        base = self._map_base()
        seen: set[int] = set()
        methods = partial(
            self._statics_of_functions, budget=interruptible(self._memory.target, range(MOST_FUNCTIONS), 256), seen=seen, base=base
        )
        for one in self._tables.elements(classes, MOST) if classes else ():
            if one.type == POINTER:
                yield from self._statics(one.value, base)
                if (self._memory.word(one.value) or 0) & 0xFF == USER:
                    yield from methods(one.value + METHODS, f"{class_name(self._memory, one.value)}::")
        if functions:
            yield from methods(functions, "")

    def _statics_of_functions(
        self, table: int, prefix: str, budget: Iterator[int], seen: set[int], base: Optional[int]
    ) -> Iterator[tuple[str, int]]:
        """Yield "static $name in function()" and the address of the zval of each static variable of
        the functions in the table at an address, except those of PHP itself. `budget` ends with the
        number of functions that may be read, and `seen` has the functions that were read: a method
        gets the name of the class that declares it. Raises Interrupted."""
        for one, _ in zip(self._tables.elements(table, MOST), budget):
            is_new = one.type == POINTER and one.value not in seen
            seen.add(one.value)
            head = self._memory.words(one.value, FUNCTION_WORDS) if is_new else None
            if head is None or head[0] & 0xFF != USER:
                continue
            name = read_string(self._memory, head[1])
            for word in head[FIRST_STATICS:] if name is not None else ():
                place = self._follow(word, base)
                if place and place % 8 == 0 and self._is_list_of_variables(place):
                    for variable in self._tables.elements(place, MOST_STATICS):
                        yield f"static ${variable.key} in {prefix}{name}()", variable.place

    def _follow(self, word: int, base: Optional[int]) -> Optional[int]:
        """Return the address that `word`, a ZEND_MAP_PTR, stands for. If `word` is odd, it is 1
        more than the offset, from map_ptr_base, of the word with the address. Otherwise it is the
        address itself, or, up to PHP 8.1, the address of the word with the address."""
        if word & 1:
            return self._memory.word(base + word) if base is not None and word < MOST_OFFSET else None
        return self._memory.word(word) if self._tables.buckets_only else word

    def _is_list_of_variables(self, table: int) -> bool:
        """Return whether an array with a reference count is at an address, and all its keys are
        names."""
        head = self._memory.members(table, "II")
        if head is None or head[1] & 0xF != ARRAY or not 0 < self._tables.length(table) <= MOST_STATICS:
            return False
        return all(isinstance(one.key, str) for one in self._tables.elements(table, KNOWN))

    def tables(self) -> Iterator[int]:
        """Yield the addresses in executor_globals at which a table with elements may begin."""
        last = self._executor + WORDS * self._memory.size if self._executor else 0
        for start in range(self._executor, last, self._memory.size):
            if self._tables.length(start):
                yield start

    def _has(self, table: int, names: tuple[str, ...]) -> bool:
        return self._tables.length(table) > 0 and any(one.key in names for one in self._tables.elements(table, KNOWN))

    def _map_base(self) -> Optional[int]:
        """Return map_ptr_base, or None. It follows map_ptr_real_base, and is one less than a
        multiple of 8."""
        words = (self._memory.words(self.compiler, WORDS) if self.compiler else None) or ()
        pairs = zip(words, words[1:])
        return next((base for real, base in pairs if real and base % 8 == 7 and -1 <= base - real < MOST_RESERVED), None)

    def _statics(self, entry: int, base: Optional[int]) -> Iterator[tuple[str, int]]:
        """Yield name and address of the zval of each static property of a class."""
        memory = self._memory
        count, table = memory.int32(entry + STATIC_COUNT), memory.word(entry + STATICS)
        if not count or count > MOST_STATICS or not table:
            return
        table = self._follow(table, base)
        for number, name in self._tables.statics(entry).items():
            if table and number < count:
                yield f"{class_name(memory, entry)}::${name}", table + number * VALUE
