"""Read instance variables of Ruby's objects and classes, class variables, and constants of classes.

Sources: internal/class.h (struct rb_classext_struct; internal.h before 2.8), variable.c and
constant.h (rb_const_entry_t), include/ruby/internal/core/robject.h (ruby.h before 3.0), shape.h
(struct rb_shape, rb_shape_tree_t) of 2.7.4, 3.1.2 and 3.3.8.

The extension of a class has the table of the class's constants. Since 3.2 the extension is in the
class's slot; before, the slot points to it. The offset is derived from `Object`, which has a
constant of this name whose value is the class itself.

Up to 3.1, the class's own variables are in the st_table two words before the constants. The class's
objects store their variables in order; an st_table at the beginning of the extension has the
numbers of these variables. Since 3.2, the word before the constants points to the class's
variables, and a "shape" has the names of an object's variables. The upper half of an object's flags
is the number of its shape. A shape names one variable, and its parents name the previous ones.

One shape is "too complex" (SHAPE_OBJ_TOO_COMPLEX): objects get it if the objects of their class
have many different lists of variables, or if Ruby has no more shapes. Their variables are in an
st_table, by ID. The word that otherwise is the address of the variables is that of the table. In an
object, this is the first word after the head, although the object has the flag EMBEDDED."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.ruby.symbols import SHIFT
from findleaks.runtimes.ruby.tables import EMBEDDED, Tables
from findleaks.runtimes.ruby.values import ENTRIES, Values
from findleaks.target.base import Range

_SLOT = range(16, 160, 8)  # offsets in a class where the extension, or the pointer to it, may be
_EXTENSION = range(0, 128, 8)
BY_CLASS, BY_SHAPE = 16, 8
"""Bytes from a class's own variables to its constants: if its variables are in an st_table, and if
they have shapes."""

# Bytes of a struct rb_shape; its types: a root, and one that adds a variable.
SHAPE, ROOT, VARIABLE = 40, 0, 1
LAST_PLAIN = 3  # the last type of shape whose objects store variables in order
COMPLEX = 4  # the type of the shape whose objects store variables in an st_table
MAX_SHAPES = 1 << 20
NIL = 8  # the largest special value divisible by 8, up to 3.1
NO_PARENT = 0xFFFFFFFF
_MOST_SHAPES = 4096  # shapes of one object that are followed; Ruby itself creates at most 80
_MOST_OF_CLASSES = 1 << 20  # further shapes that are followed for all classes together
_OBJECT = "Object"


class Member(NamedTuple):
    """A variable or constant: the serial number and kind of its ID (kind 0: unknown), the address
    of the word that contains its value, and the value."""

    serial: int
    kind: int
    address: int
    value: int


def is_object(value: int) -> bool:
    """Return whether a value may refer to an object: it is not a number, symbol, nil, true or
    false."""
    return value % 8 == 0 and value > NIL


class Members:
    """Reads members; `constants` is None if the constants of `Object` were not found."""

    def __init__(
        self,
        memory: Memory,
        tables: Tables,
        values: Values,
        an_object: Optional[int],
        data: Iterable[Range],
        name_of: Callable[[int], str],
    ) -> None:
        """Derive the layout. `an_object` is the class Object, `data` is memory of the interpreter's
        variables. `name_of` returns the name of an ID with a given serial number."""
        self._memory, self._tables, self._values, self._name_of = memory, tables, values, name_of
        self._orders: dict[int, Mapping[int, int]] = {}
        self._shapes: Optional[int] = None
        self._left = _MOST_OF_CLASSES
        self.constants: Optional[tuple[int, int]] = self._find(an_object) if an_object else None
        if self.constants is not None and values.long:
            self._shapes = self._find_shapes(data)

    def _find(self, klass: int) -> Optional[tuple[int, int]]:
        """Return the offset of the pointer to a class's extension (-1: the extension is in the
        slot), and the offset of the constants in it."""
        for field in _SLOT:
            where = self._memory.word(klass + field)
            if where and self._has(where, klass):
                return -1, field
        for field in _SLOT[:3]:
            where = self._memory.word(klass + field)
            for offset in _EXTENSION if where else ():
                if self._has(self._memory.word((where or 0) + offset) or 0, klass):
                    return field, offset
        return None

    def _has(self, table: int, klass: int) -> bool:
        """Return whether a table of constants contains this class under the name Object. The name
        is compared because values in tables of methods also have the class as second word."""
        of_class = (serial for serial, value, _ in self._tables.ids(table) if self._memory.word(value + 8) == klass)
        return any(self._name_of(serial) == _OBJECT for serial in of_class)

    def _extension(self, klass: int, before: int = 0) -> int:
        """Return the word of a class's extension that is `before` bytes before the table of
        constants."""
        if self.constants is None:
            return 0
        field, offset = self.constants
        base = klass if field < 0 else self._memory.word(klass + field)
        return self._memory.word(base + offset - before) or 0 if base else 0

    def of_class(self, klass: int) -> Iterator[Member]:
        """Yield the constants of a class or module."""
        for serial, entry, _ in self._tables.ids(self._extension(klass)):
            value = self._memory.word(entry + 8)
            if value:
                yield Member(serial, 0, entry + 8, value)

    def own(self, klass: int) -> Iterator[Member]:
        """Yield variables of the class or module itself: @name and @@name."""
        if not self._values.long:
            table = self._extension(klass, BY_CLASS)
            for key, value, address in self._tables.entries(table, ENTRIES):
                yield Member(key >> SHIFT, key & 0xE, address, value)
            return
        where = self._extension(klass, BY_SHAPE)
        if where and self.is_complex((self._memory.word(klass) or 0) >> 32):
            yield from self._iterate_complex(where)
        elif where:
            yield from self._iterate_shaped(klass, where, min(ENTRIES, _MOST_SHAPES + self._left))

    def of_object(self, value: int, klass: int) -> Iterator[Member]:
        """Yield instance variables of the T_OBJECT at this address, whose class is `klass`.
        Variables without a known name, and variables that refer to no object, are left out."""
        words = self._memory.words(value, 5)
        if words is None:
            return
        embedded = bool(words[0] & EMBEDDED)
        if self._values.long and self.is_complex(words[0] >> 32):
            yield from self._iterate_complex(words[2])
            return
        if self._values.long:
            yield from self._iterate_shaped(value, value + 16 if embedded else words[2])
            return
        yield from self._iterate_ordered(klass, *((value + 16, 3) if embedded else (words[3], words[2] & 0xFFFFFFFF)))

    def of_other(self, value: int, klass: int, start: int, count: int) -> Iterator[Member]:
        """Yield instance variables of an object that is not a T_OBJECT; see `of_object`. `klass` is
        its class. Its `count` variables begin at `start`."""
        real = self._values.real(klass) or 0
        return self._iterate_shaped(value, start) if self._values.long else self._iterate_ordered(real, start, count)

    def _iterate_ordered(self, klass: int, start: int, count: int) -> Iterator[Member]:
        """Yield instance variables of an object of this class, up to Ruby 3.1. The object's `count`
        variables begin at `start`."""
        for key, number in self._order(klass).items():
            if number < count:
                found = self._memory.word(start + 8 * number)
                if found is not None and is_object(found):
                    yield Member(key >> SHIFT, key & 0xE, start + 8 * number, found)

    def _order(self, klass: int) -> Mapping[int, int]:
        """Return the numbers of the variables of a class's objects, by ID.

        In 2.7 the table contains the numbers. In 3.x it points to structs rb_iv_index_tbl_entry,
        whose first member is the number."""
        known = self._orders.get(klass)
        if known is None:
            base = self._memory.word(klass + self.constants[0]) if self.constants is not None else 0
            table = self._memory.word(base) if base else 0
            entries = self._tables.entries(table or 0, ENTRIES)
            numbers = [value if value < ENTRIES else self._memory.int32(value) for _, value, _ in entries]
            known = {key: number for (key, _, _), number in zip(entries, numbers) if number is not None}
            self._orders[klass] = known
        return known

    def _iterate_shaped(self, value: int, start: int, most: int = _MOST_SHAPES) -> Iterator[Member]:
        """Yield variables from address `start` on, which the object's shape names. At most `most`
        shapes are followed."""
        number = (self._memory.word(value) or 0) >> 32
        for followed in range(most):
            self._left -= followed >= _MOST_SHAPES
            shape = self._shape(number)
            if shape is None or not ROOT < shape[2] & 0xFF <= LAST_PLAIN:
                return
            if shape[2] & 0xFF == VARIABLE and shape[1]:
                at = start + 8 * (shape[1] - 1)
                found = self._memory.word(at)
                if found is not None and is_object(found):
                    yield Member(shape[0] >> SHIFT, shape[0] & 0xE, at, found)
            parent = shape[2] >> 32
            if parent >= number:  # a shape is created after its parent
                return
            number = parent

    def _iterate_complex(self, table: int) -> Iterator[Member]:
        """Yield the variables in the st_table of an object whose shape is too complex."""
        for key, value, address in self._tables.entries(table, ENTRIES):
            if is_object(value):
                yield Member(key >> SHIFT, key & 0xE, address, value)

    def is_complex(self, shape: int) -> bool:
        """Return whether objects with this shape have their variables in an st_table."""
        found = self._shape(shape)
        return found is not None and found[2] & 0xFF == COMPLEX

    def number_of(self, shape: int) -> int:
        """Return the number of variables of an object with this shape; 0 if unknown."""
        found = self._shape(shape)
        return found[1] if found is not None and found[2] & 0xFF <= LAST_PLAIN else 0

    def capacity_of(self, shape: int) -> int:
        """Return the capacity of objects with this shape: the number of instance variables that fit
        in their memory; 0 if unknown."""
        words = self._memory.word(self._shapes + SHAPE * shape + 16) if self._shapes and shape < MAX_SHAPES else None
        return words >> 32 if words is not None else 0

    def _shape(self, number: int) -> Optional[tuple[int, int, int]]:
        """Return a shape's ID, its number of variables, and the word with its type and parent."""
        words = self._memory.words(self._shapes + SHAPE * number, 4) if self._shapes and number < MAX_SHAPES else None
        return (words[1], words[2] & 0xFFFFFFFF, words[3]) if words is not None else None

    def _find_shapes(self, data: Iterable[Range]) -> Optional[int]:
        """Return the address of the list of shapes.

        A variable points to rb_shape_tree_t {list, root, number of the next shape, …}; the root is
        the first shape in the list."""
        for start, end in data:
            for _, words in self._memory.scan(start, end):
                for where in words:
                    if where and where % 8 == 0 and self._is_tree(self._memory.words(where, 3)):
                        return self._memory.word(where)
        return None

    def _is_tree(self, words: Optional[Sequence[int]]) -> bool:
        if words is None or not words[0] or words[0] != words[1] or words[0] % 4096 or not 1 < words[2] & 0xFFFFFFFF <= MAX_SHAPES:
            return False
        root = self._memory.words(words[0], 4)
        return root is not None and root[3] & 0xFF == ROOT and root[3] >> 32 == NO_PARENT
