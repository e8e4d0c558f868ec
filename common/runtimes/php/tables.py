"""Read arrays and classes of a PHP process: the elements of arrays with their keys, and the names
of properties.

Sources: Zend/zend_types.h (HashTable, Bucket, zval), zend_hash.h, zend.h (zend_class_entry),
zend_compile.h (zend_property_info) of PHP 8.1 to 8.4. Only 64-bit programs are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Optional, Union

from findleaks.allocators.memory import Memory
from findleaks.runtimes.php.engine import VALUE
from findleaks.value_classes import NamedTuple

LONGEST = 1 << 12  # most bytes of a name
BUCKET, TABLE = 32, 56  # bytes
PACKED = 4  # HASH_FLAG_PACKED
STRING, ARRAY, OBJECT, REFERENCE, INDIRECT, POINTER = 6, 7, 8, 10, 12, 13  # types of a zval
PROPERTIES = 40  # offset of the first property in a zend_object
CLASS_TABLES = range(64, 200, 8)  # offsets in a zend_class_entry where a table may begin
MOST_PROPERTIES = 1 << 12
ACC_STATIC = 16  # ZEND_ACC_STATIC
CLASS_TYPES = 1, 2  # ZEND_INTERNAL_CLASS, ZEND_USER_CLASS


class Element(NamedTuple):
    """An element of an array. `place` is the address of its zval, `value` the first word of the
    zval, and `type` the type of the value."""

    key: Union[int, str]
    place: int
    value: int
    type: int


def read_string(memory: Memory, address: int) -> Optional[str]:
    """Return the text of the zend_string at an address; None if it is empty, too long or
    unreadable."""
    length = memory.word(address + 8 + memory.size)
    if not length or length > LONGEST:
        return None
    data = memory.read(address + 8 + 2 * memory.size, length)
    return data.decode("utf-8", "replace") if data else None


class Tables:
    """Reads arrays and classes. `buckets_only`: elements of packed arrays are buckets, as up to
    8.1; since 8.2, they are zvals."""

    def __init__(self, memory: Memory, buckets_only: bool) -> None:
        self._memory, self.buckets_only = memory, buckets_only
        self._known: dict[int, tuple[Mapping[int, str], Mapping[int, str]]] = {}

    def length(self, table: int) -> int:
        """Return the number of elements of the HashTable at an address, or 0."""
        head = self._head(table)
        return head[6] if head is not None else 0

    def _head(self, table: int) -> Optional[tuple[int, ...]]:
        """Return the members of the HashTable at an address: reference count, type, flags, mask,
        address of the elements, numbers of elements used, not deleted, and of places."""
        head = self._memory.members(table, "IIIIPIII")
        return head if head is not None and head[6] <= head[5] <= head[7] else None

    def elements(self, table: int, most: int) -> Iterator[Element]:
        """Yield up to `most` elements of the HashTable at an address."""
        head = self._head(table)
        if head is None or head[4] % 8:
            return
        stride = VALUE if head[2] & PACKED and not self.buckets_only else BUCKET
        for number in range(min(head[5], most)):
            place = head[4] + number * stride
            words = self._memory.words(place, stride // 8)
            if words is None:
                return
            kind = self._memory.halves(words[1])[0] & 0xFF
            key: Union[int, str, None] = number
            if stride == BUCKET:
                key = read_string(self._memory, words[3]) if words[3] else words[2]
            if kind and key is not None:
                yield Element(key, place, words[0], kind)

    def properties(self, entry: int) -> Mapping[int, str]:
        """Return the names of a class's properties by their offset in an object; {} if they are not
        found. A table in the zend_class_entry has a zend_property_info for each property."""
        return self._names(entry)[0]

    def statics(self, entry: int) -> Mapping[int, str]:
        """Return the names of a class's static properties by their number."""
        return self._names(entry)[1]

    def _names(self, entry: int) -> tuple[Mapping[int, str], Mapping[int, str]]:
        if entry not in self._known:
            found = (self._names_at(entry + offset) for offset in CLASS_TABLES)
            self._known[entry] = next((one for one in found if one is not None), ({}, {}))
        return self._known[entry]

    def _is_class(self, entry: int) -> bool:
        """Return whether a zend_class_entry, which begins with its type and its name, is at an
        address."""
        head = self._memory.words(entry, 2) if entry % 8 == 0 else None
        return head is not None and head[0] & 0xFF in CLASS_TYPES and read_string(self._memory, head[1]) is not None

    def _names_at(self, table: int) -> Optional[tuple[Mapping[int, str], Mapping[int, str]]]:
        """Return the properties and the static properties in the HashTable at an address; None if
        it does not contain only properties. The table of methods is similar: a zend_function also
        begins with its type, flags and name, but no class follows."""
        names: dict[int, str] = {}
        statics: dict[int, str] = {}
        for one in self.elements(table, MOST_PROPERTIES):
            # offset, flags, name, doc_comment, attributes, ce
            info = self._memory.members(one.value, "IIPPPP") if one.type == POINTER else None
            name = read_string(self._memory, info[2]) if info is not None else None
            if info is None or name is None or name.rpartition("\0")[2] != one.key or not self._is_class(info[5]):
                return None
            if info[1] & ACC_STATIC:  # Its `offset` is the number of the static property.
                statics[info[0]] = one.key
            elif info[0] < PROPERTIES or (info[0] - PROPERTIES) % VALUE:
                return None
            else:
                names[info[0]] = one.key
        return (names, statics) if names or statics else None
