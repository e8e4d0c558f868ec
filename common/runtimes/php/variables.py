"""Name the variables, properties and elements of arrays of a PHP process.

In a PHP program, properties of a few objects, such as loggers, caches and registries, retain most
of the memory. If such a property has a large array, it is reported like a variable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Optional, Union

from findleaks.allocators.base import size_at
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.runtimes.base import Variable
from findleaks.runtimes.php.engine import VALUE
from findleaks.runtimes.php.internal import InternalObjects
from findleaks.runtimes.php.objects import Objects
from findleaks.runtimes.php.tables import ARRAY, BUCKET, OBJECT, REFERENCE, Tables, read_string
from findleaks.target.interruptible import interruptible

# The properties of a class are reported like variables only if it has at most this many objects
FEW = 16
LARGE = 64  # least elements of an array that is reported as a variable
LEVELS = 2  # levels of arrays inside arrays that are examined
ARRAY_NAME = "array"
MOST = 1 << 14  # most variables
MOST_INNER = 1 << 18  # elements of arrays inside arrays that are examined
SHOWN = 40  # characters of a key that are shown


class Names:
    """Names variables, properties and elements."""

    def __init__(self, memory: Memory, blocks: Blocks, objects: Objects, tables: Tables, internal: InternalObjects) -> None:
        self._memory, self._blocks, self._objects, self._tables = memory, blocks, objects, tables
        self._internal = internal
        self._numbers = {index: place for place, index in enumerate(objects.blocks)}

    def variables(self, places: Iterable[tuple[str, int]]) -> Iterator[Variable]:
        """Yield the variables at `places` (names, and addresses of their zvals) and the properties
        of classes with few objects, if they have large arrays; one for each array. If an array has
        few elements, such as the lists of listeners by event, the large arrays in it are yielded:
        "Dispatcher->listeners['save']"."""
        seen: set[int] = set()
        budget = interruptible(self._memory.target, range(MOST_INNER), 256)
        for variable in self._large(interruptible(self._memory.target, chain(places, self._properties()), 256), LEVELS, budget):
            if variable.value not in seen:
                seen.add(variable.value)
                yield variable
            if len(seen) == MOST:
                return

    def _large(self, places: Iterable[tuple[str, int]], levels: int, budget: Iterator[int]) -> Iterator[Variable]:
        """Yield the large arrays among variables, and in small arrays down to a number of levels.
        `budget` ends with the number of elements that may be examined."""
        for name, place in places:
            variable = self._variable(name, place)
            if variable is not None and (variable.length or 0) >= LARGE:
                yield variable
            elif variable is not None and variable.what == ARRAY_NAME and levels:
                elements = zip(self._tables.elements(variable.value, LARGE), budget)
                yield from self._large(((f"{name}{_show_key(one.key)}", one.place) for one, _ in elements), levels - 1, budget)

    def _variable(self, name: str, place: int, inside: bool = False) -> Optional[Variable]:
        """Return the variable whose zval is at `place`, if it contains an array or a collection.
        `inside`: the zval belongs to a reference or an ArrayObject."""
        words = self._memory.words(place, 2)
        if words is None:
            return None
        value, kind = words[0], self._memory.halves(words[1])[0] & 0xFF
        if kind == ARRAY and size_at(self._blocks, value):
            return Variable(name, place, value, self._storage(value), ARRAY_NAME, self._tables.length(value), "elements")
        if kind == REFERENCE and not inside:
            return self._variable(name, value + 8, True)
        index = self._blocks.find(value) if kind == OBJECT else -1
        number = self._numbers.get(index)
        if number is None:
            return None
        what = self._objects.names[self._objects.numbers[number]]
        if self._internal.is_array_object(number) and not inside:
            found = self._variable(name, self._blocks.address(index), True)
            # The object refers to the array, and only the array refers to the elements.
            return found._replace(address=place, value=value, table=found.value, what=what) if found is not None else None
        one = self._internal.collection(number)
        return Variable(name, place, value, one.storage, what, one.length, "elements") if one is not None else None

    def _properties(self) -> Iterator[tuple[str, int]]:
        counts: dict[int, int] = {}
        for number in self._objects.numbers:
            counts[number] = counts.get(number, 0) + 1
        for address, number in zip(self._objects.addresses, self._objects.numbers):
            if counts[number] > FEW:
                continue
            for offset, name in self._tables.properties(self._objects.classes[number]).items():
                yield f"{self._objects.names[number]}->{name}", address + offset

    def _storage(self, table: int) -> int:
        """Return the address of the block with an array's elements, or 0."""
        elements = self._memory.word(table + 16)
        found = self._blocks.lookup(elements) if elements else None
        return found[1] if found is not None and found[3] == State.IN_USE else 0

    def member(self, address: int, index: int, is_elements: bool) -> str:
        """Return the name of the word at `address` in block number `index`, or ""."""
        if is_elements:
            return self._key(address, address - self._blocks.address(index))
        place = self._numbers.get(index)
        if place is None:
            return ""
        offset = address - self._objects.addresses[place]
        names = self._tables.properties(self._objects.classes[self._objects.numbers[place]])
        return f"property ${names[offset]}" if offset in names else ""

    def _key(self, address: int, offset: int) -> str:
        """Return the key of the element at an address, as "[17]" or "['name']". Elements of packed
        arrays have 16 bytes (32 up to PHP 8.1), and follow hash slots of 8 bytes. Other elements
        have 32 bytes, and their `offset` in the block is a multiple of 32."""
        if offset % VALUE == 8:
            return f"[{(offset - 8) // (BUCKET if self._tables.buckets_only else VALUE)}]"
        words = self._memory.words(address, 4) if offset % 32 == 0 else None
        if words is None:
            return ""
        key = read_string(self._memory, words[3]) if words[3] else words[2]
        return _show_key(key) if key is not None else ""


def _show_key(key: Union[int, str]) -> str:
    """Return a key of an array as "[17]" or "['name']"."""
    if isinstance(key, int):
        return f"[{key}]"
    return f"['{key if len(key) <= SHOWN else key[:SHOWN] + '…'}']"
