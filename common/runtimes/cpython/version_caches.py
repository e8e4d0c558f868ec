"""Find CPython's caches of attributes, types and functions. The number of an entry depends on a
version. The caches contain borrowed references.

Each cache is an array of ENTRIES entries. Up to 3.9 the array is a variable, later a part of the
interpreter's state. The content of an entry determines its number, and thereby the address that the
array must have. An address is accepted if nearly all entries of the array at this address yield it.
Since 3.13, an attribute may be in an entry for an earlier version of the type.

- Attributes: {version of the type, name, value}. The entry's number is the version, xor the name's
  address / 8 (in 3.9 the name's hash). If a type changes, its version changes. The entry remains,
  although its value may have been freed. Only the name counts as a reference.
- Types, since 3.14: {type}. The entry's number is the type's version.
- Functions, since 3.13: {function, code}. The entry's number is the function's version.

Sources, CPython 3.9 to 3.14: Objects/typeobject.c (MCACHE_HASH_METHOD, update_cache,
set_version_unlocked; 3.9: struct method_cache_entry), Objects/funcobject.c
(_PyFunction_SetVersion), Include/internal/pycore_interp.h, pycore_typeobject.h or
pycore_interp_structs.h (struct type_cache_entry, struct types_state), pycore_function.h (struct
_py_func_state), Include/cpython/object.h (tp_version_tag), Include/cpython/funcobject.h
(func_version, the last field), Include/cpython/unicodeobject.h (hash)."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.cpython.types import SUBCLASSES, VERSION, Types
from findleaks.target.base import Range

ENTRIES = 1 << 12
LEAST = 16
"""Minimum number of entries that yield the same address of an array."""
SHARE = 15 / 16
"""Minimum fraction of the entries that must yield the same address of the array. Only entries that
refer to objects in blocks count. By chance, one entry in ENTRIES yields a given address."""
MOST_CANDIDATES = 16
"""Maximum number of addresses whose entries are checked."""

ATTRIBUTE, FUNCTION, TYPE = 3, 2, 1
"""Kinds of caches. Each value is also the number of words of an entry."""

_HASH = 3  # index of the word of a str that contains its hash


class VersionCaches:
    """Finds the caches. `found`: the types of objects; see engine.ObjectTally."""

    def __init__(self, memory: Memory, blocks: Blocks, known: Types, found: array[int], version: str) -> None:
        self._memory, self._blocks, self._known, self._found = memory, blocks, known, found
        self._by_hash = version.startswith("3.9.")
        self._kinds = bytes(self._kind(number) for number in range(len(known)))
        # The key is the kind of cache and an address of an array. The value is the number of
        # entries that yield this address.
        self._votes = Counter[tuple[int, int]]()

    def _kind(self, number: int) -> int:
        """Return the kind of the caches that contain objects of this type; 0 if there is none."""
        if self._known.is_type(number):
            return TYPE
        if self._known.flags[number] & SUBCLASSES["str"]:
            return ATTRIBUTE
        return FUNCTION if self._known.plain_name(number) == "function" else 0

    def add(self, address: int, words: Sequence[int], objects: Iterable[tuple[int, int]]) -> None:
        """Search these words, the first of which is at `address`. `objects`: for each word
        that points into a block with an object, the indices of the word and of the block."""
        size = self._memory.size
        for at, index in objects:
            kind, place = self._kinds[self._found[index]], address + at * size
            number = self._entry_number(kind, place, words[at], index) if kind else None
            if number is not None:
                self._votes[kind, place - (number * kind + _key(kind)) * size] += 1

    def _entry_number(self, kind: int, place: int, value: int, index: int) -> Optional[int]:
        """Return the number that an entry of a cache of this kind has if it contains the word at
        `place`; None if no entry can contain it. `value`: this word, which refers to an object in
        block `index`."""
        number, size, shift = self._found[index], self._memory.size, self._known.shift
        if value + shift - self._blocks.address(index) != self._known.offsets[number]:
            return None
        if kind == TYPE:
            version, rest = self._memory.int32(value + shift + VERSION * size), 0
        elif kind == FUNCTION:
            version, rest = self._memory.int32(value + self._known.basic_size(number) - size), 0
        else:
            rest = value >> 3 if not self._by_hash else self._memory.word(value + _HASH * size) or 0
            version = self._memory.int32(place - size)
        return (version ^ rest) % ENTRIES if version else None

    def iterate_borrowed(self) -> Iterator[Range]:
        """Yield the borrowed references in the caches of all words that were searched."""
        size = self._memory.size
        for (kind, start), votes in self._votes.most_common(MOST_CANDIDATES):
            words = self._memory.words(start, ENTRIES * kind) if votes >= LEAST else None
            if words is None or votes < SHARE * self._count_objects(words[_key(kind) :: kind]):
                continue
            if kind != ATTRIBUTE:
                yield Range(start, start + ENTRIES * kind * size)
                continue
            for at in range(2, len(words), kind):
                if words[at]:
                    yield Range(start + at * size, start + (at + 1) * size)

    def _count_objects(self, words: Sequence[int]) -> int:
        """Return the number of words that point into blocks with objects."""
        inside, _ = self._blocks.find_all(array("Q", words))
        return sum(index != NO_BLOCK and self._found[index] < len(self._kinds) for index in inside)


def _key(kind: int) -> int:
    """Return the index of the word in an entry that determines the entry's number."""
    return 1 if kind == ATTRIBUTE else 0
