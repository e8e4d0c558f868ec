"""Name the references of Python objects for a dump, as JSON: `,"name":".cache"`.

Names of words in an object are the same for all objects of a type, except those in the frame of a
suspended generator or coroutine, and in tuples. Names in a dictionary are its keys.

Sources: Include/cpython/listobject.h, dictobject.h, setobject.h, Include/internal/pycore_dict.h
(see members.py and variables.py), Include/descrobject.h and Objects/typeobject.c (PyMemberDef,
PyHeapType_GET_MEMBERS), Modules/_collectionsmodule.c (BLOCKLEN) of CPython 3.9 to 3.14."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.runtimes.cpython.engine import ObjectTally
from findleaks.runtimes.cpython.members import ObjectNames
from findleaks.runtimes.cpython.types import HEAP_TYPE, INLINE_VALUES, MANAGED_DICT, SUBCLASSES, Types
from findleaks.runtimes.cpython.variables import SPLIT, Table, items, table

_LIST_ITEMS, _TABLE, _VALUES = 3, 4, 5  # words of a list and of a dictionary with their storage
# Words of a set: its mask, the pointer to its table, and the table of a small set, which still
# contains old entries if the set has become larger.
_SET_MASK, _SET_TABLE, _SMALL_TABLE = 4, 5, range(8, 24)
_DEQUE_BLOCK, _DEQUE_LINKS = 66, (0, 65)  # words of a block of a deque, and its links
_DEQUE_ENDS = (3, 4)  # words of a deque with its first and its last block
_SPLIT_NAMES = 1 << 12  # keys read of a table that objects share
_MOST_KEYS = 1 << 18  # texts of keys that are kept
_OBJECTS, _INT = (6, 16), 0xFFFFFFFF  # T_OBJECT and T_OBJECT_EX: members that are references
_MEMBER = 5  # words of a PyMemberDef: name, type, offset, flags, description
_MOST_MEMBERS = 1 << 8
_WINDOW = 1 << 13  # words of a table that are read at once
UNUSED = "unused"  # in place of a name: the word is not a reference
# Bits before the flag that shows whether values in an object are in use (struct _dictvalues of
# 3.13), and the largest number of words of such values.
_VALID, _MOST_INLINE = 24, 32
_PLACE = (1 << 32) - 1  # bits of a key that have the number of a word
_KEY, _ITEM = ',"name":"[key]"', ',"name":"[item]"'


def _as_json(name: str) -> str:
    return f',"name":{json.dumps(name)}' if name else ""


def _key_as_json(key: str) -> str:
    return _as_json(f"[{json.dumps(key)}]" if key else "[value]")


class MemberLines:
    """Names of references. `names`: names of words, which members.py defines."""

    def __init__(self, memory: Memory, blocks: Blocks, known: Types, tally: ObjectTally, names: ObjectNames) -> None:
        self._memory, self._blocks, self._known, self._tally, self._names = memory, blocks, known, tally, names
        # The word of a block at which an object of each type begins; see `_object`
        self._first = [offset // memory.size for offset in tally.offsets]
        self._by_type: dict[int, dict[int, str]] = {}
        self._keys: dict[int, str] = {}
        self._shared: dict[int, Sequence[str]] = {}  # by address of a table
        self._classes: dict[int, Sequence[str]] = {}  # by type
        self._items = [f',"name":"[{at}]"' for at in range(1 << 10)]
        tuples = [bool(flags & SUBCLASSES["tuple"]) for flags in known.flags]
        self._tuple_items = [(known.basic_size(at) - known.shift) // memory.size if is_tuple else 0 for at, is_tuple in enumerate(tuples)]
        sets = [not {"set", "frozenset"}.isdisjoint(map(known.plain_name, (at, *known.bases(at)))) for at in range(len(known))]
        self._sets = bytes(sets)
        self._deques = set(known.list_derived(("collections.deque",)))
        self._inline = [known.basic_size(at) - known.shift if flags & INLINE_VALUES else 0 for at, flags in enumerate(known.flags)]
        self._suspended = [known.plain_name(at) in ("generator", "coroutine", "async_generator") for at in range(len(known))]

    def of_object(self, number: int, index: int) -> dict[int, str]:
        """Return the names of words of the object in a block that are known so far, by their number
        in the block. UNUSED: the word is not a reference."""
        found = self._by_type.get(number)
        if found is None:
            found = self._by_type[number] = self._read_slots(number)
        if self._inline[number]:
            word = self._memory.word(self._object(number, index) + self._inline[number]) or 0
            if not word >> _VALID & 0xFF and self._memory.arch.byteorder == "little":
                first = self._first[number] + self._inline[number] // self._memory.size
                return {**found, **dict.fromkeys(range(first, first + _MOST_INLINE), UNUSED)}
        return found

    def name(self, number: int, index: int, word: int) -> str:
        """Return the name of a word of the object in a block, or UNUSED."""
        first = self._tuple_items[number]
        if first and word >= self._first[number] + first:
            return self._item(word - self._first[number] - first)
        if self._sets[number] and word - self._first[number] in _SMALL_TABLE:
            start = self._object(number, index)
            is_used = self._memory.word(start + _SET_TABLE * self._memory.size) == start + _SMALL_TABLE.start * self._memory.size
            return _ITEM if is_used else UNUSED
        text = self._names.name_member(self._blocks.address(index) + word * self._memory.size)
        found = _as_json("__class__" if text == "ob_type" else text)
        if not self._suspended[number]:
            self._by_type[number][word] = found
        return found

    def is_storage(self, number: int, index: int, word: int) -> Optional[bool]:
        """Return whether this word of the object in a block refers to its items, its table or its
        values, or to the first or last block of a deque. False: to the table of a class. None:
        to other memory."""
        at, flags = word - self._first[number], self._known.flags[number]
        if flags & SUBCLASSES["list"]:
            return True if at == _LIST_ITEMS else None
        if flags & SUBCLASSES["dict"] and at == _TABLE:
            return not self._memory.word(self._object(number, index) + _VALUES * self._memory.size)
        if (number in self._deques and at in _DEQUE_ENDS) or (self._sets[number] and at == _SET_TABLE):
            return True
        return True if at < 0 or (flags & SUBCLASSES["dict"] and at == _VALUES) else None

    def is_chain(self, number: int) -> bool:
        """Return whether the storage of objects of a type is a list of equal blocks."""
        return number in self._deques

    def names_in(self, number: int, index: int, word: int, block: int, offset: int, keys: Sequence[int]) -> Optional[Sequence[str]]:
        """Return the names of references of an object's storage, which word `word` of the object
        refers to at `offset`. `keys` has the number of each word in the low half. None: there are
        no names."""
        at, flags = word - self._first[number], self._known.flags[number]
        places = [key & _PLACE for key in keys]
        if flags & SUBCLASSES["list"] and at == _LIST_ITEMS:
            # In a free-threaded interpreter, a word with their number precedes the items.
            return [self._item(place - offset // self._memory.size) for place in places]
        if flags & SUBCLASSES["dict"] and at == _TABLE:
            return self._names_in_table(block, places)
        if number in self._deques:
            return [("" if place in _DEQUE_LINKS else _ITEM if place < _DEQUE_BLOCK else UNUSED) for place in places]
        if self._sets[number] and at == _SET_TABLE:
            used = 2 * ((self._memory.word(self._object(number, index) + _SET_MASK * self._memory.size) or 0) + 1)
            return [_ITEM if place < used else UNUSED for place in places]
        if flags & SUBCLASSES["dict"] and at == _VALUES:
            shared = self._split_keys(self._memory.word(self._object(number, index) + _TABLE * self._memory.size) or 0)
        elif at < 0 and flags & MANAGED_DICT and not flags & INLINE_VALUES:
            shared = self._attributes(number)
        else:
            return None
        # In 3.12 the address of values may be tagged; since 3.13 a word with their number precedes
        # them.
        first = (offset + 1) // self._memory.size + (self._names.release >= (3, 13))
        return [shared[place - first] if 0 <= place - first < len(shared) else UNUSED for place in places] if shared else None

    def _object(self, number: int, index: int) -> int:
        """Return the address from which the words of an object are counted: that of its reference
        count; in a free-threaded interpreter, of the shared one."""
        return self._blocks.address(index) + self._tally.offsets[number]

    def _item(self, at: int) -> str:
        return self._items[at] if at < len(self._items) else f',"name":"[{at}]"'

    # -- dictionaries

    def _names_in_table(self, block: int, places: Sequence[int]) -> Optional[Sequence[str]]:
        """Return the keys of the values in a table, and UNUSED for words of no entry."""
        start, size, word = self._blocks.address(block), self._blocks.size(block), self._memory.size
        found = table(self._memory, start, size) if places else None
        if found is None:
            return None
        return self._keys_of(found, start, places, word)

    def _keys_of(self, found: Table, start: int, places: Sequence[int], word: int) -> Sequence[str]:
        names: list[str] = []
        first, words = 0, tuple[int, ...]()
        for place in places:
            entry, rest = divmod(start + place * word - found.first, found.stride)
            if not 0 <= entry < found.entries or rest < found.stride - 2 * word:
                names.append(UNUSED)
                continue
            if rest == found.stride - 2 * word:
                names.append(_KEY)
                continue
            if not first < place < first + len(words):
                first = place - 1
                end = (found.first + found.entries * found.stride - start) // word
                words = self._memory.words(start + first * word, min(_WINDOW, end - first)) or ()
            names.append(self._key(words[place - 1 - first]) if place - first < len(words) else "")
        return names

    def _key(self, address: int) -> str:
        found = self._keys.get(address)
        if found is None:
            if len(self._keys) >= _MOST_KEYS:
                self._keys.clear()
            text = self._known.text(address)
            found = self._keys[address] = _key_as_json(text)
        return found

    # -- attributes

    def _split_keys(self, address: int) -> Sequence[str]:
        """Return the keys in a table that objects share, as names of values."""
        found = self._shared.get(address)
        if found is None:
            index = self._blocks.find(address)
            keys = table(self._memory, address, self._blocks.size(index), (SPLIT,)) if index >= 0 else None
            texts = [self._known.text(key) for _, key, _ in items(self._memory, keys, _SPLIT_NAMES)] if keys is not None else ()
            found = self._shared[address] = [_key_as_json(text) for text in texts]
        return found

    def _attributes(self, number: int) -> Sequence[str]:
        """Return the names of the attributes of a class whose values are outside of its objects."""
        found = self._classes.get(number)
        if found is None:
            found = self._classes[number] = [_as_json(f".{name}" if name else "") for name in self._names.attribute_names(number)]
        return found

    def _read_slots(self, number: int) -> dict[int, str]:
        """Return the names of the members that `__slots__` of a class defines."""
        if not self._known.flags[number] & HEAP_TYPE or self._known.shift:
            return {}
        names = {}
        for one in (number, *self._known.bases(number)):
            names.update(self._own_slots(one, self._first[number]))
        return names

    def _own_slots(self, number: int, first: int) -> dict[int, str]:
        address, word = self._known.addresses[number], self._memory.size
        size = self._memory.word((self._memory.word(address + word) or 0) + 4 * word) if self._known.flags[number] & HEAP_TYPE else None
        count = self._memory.word(address + 2 * word) or 0  # ob_size: the number of members
        words = self._memory.words(address + size, _MEMBER * count) if size and 0 < count <= _MOST_MEMBERS else None
        found = {}
        for name, kind, offset, *_ in zip(*[iter(words or ())] * _MEMBER):
            text = self._memory.c_string(name, 64).decode("utf-8", "replace") if name else ""
            if text and kind & _INT in _OBJECTS and offset % word == 0:
                found[first + offset // word] = _as_json(f".{text}")
        return found
