"""Read those of Ruby's values that are needed to name objects: strings, classes, data types.

A class has its path in its structure: since 3.2 as a field, before that in its table of variables
under a hidden name. The location is derived from known classes: the path of `rb_cObject` is
"Object", that of `rb_cString` is "String", and so on. Sources: internal/class.h and variable.c
(classname), include/ruby/internal/core/rstring.h, of 2.7.4, 3.1.2, 3.3.8 and 3.4.1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.ruby.census import MASK, SINGLETON_FLAGS, T_CLASS, T_DATA, T_ICLASS, T_MODULE, T_STRING
from findleaks.runtimes.ruby.tables import Item, entries_in, st_span

LONGEST = 200  # bytes read of a name
HOPS = 200  # maximum number of superclasses followed
ENTRIES, ALL_ENTRIES = 1 << 18, 1 << 21  # entries read of a class's table, and of all tables
NOEMBED = 1 << 13  # flag of a string: its bytes are elsewhere
KNOWN = {"rb_cObject": "Object", "rb_cString": "String", "rb_cArray": "Array", "rb_cHash": "Hash", "rb_mKernel": "Kernel"}
"""Exported variables, and the names of the classes that they refer to."""

_TYPED, _EMBEDDED = 1, 3  # word 3 of a T_DATA with a data type: data outside the slot; in the slot
_DATA = 32  # offset of the data, if it is in the slot
TEMPORARY = ("#<Class:0x", "#<Module:0x")  # prefixes of paths in anonymous modules
_SLOT = range(16, 200, 8)
_EXTENSION = range(0, 256, 8)


class Place(NamedTuple):
    """The location of a class's path.

    The word at `field` of the class's slot points to the path. If `table` >= 0, that word points to
    a structure instead, whose word at `table` points to the table of variables. The table has the
    path under `key`."""

    field: int
    table: int = -1
    key: int = 0


class Values:
    """Reads the interpreter's values; `word_of` returns the word at an exported variable, or
    None."""

    def __init__(self, memory: Memory, word_of: Callable[[str], Optional[int]]) -> None:
        self._memory = memory
        # Since 3.2: slots have any size, and an embedded string begins with its length.
        self.long = True
        self._names: dict[int, str] = {}
        self._left = ALL_ENTRIES
        self.singleton = self._find_singleton_flag(word_of("rb_cObject") or 0)
        """FL_SINGLETON, the flag of a class that has only one object. The bit changed in 3.4."""
        self.place: Optional[Place] = None
        for self.long in (True, False):
            self.place = self._find(word_of)
            if self.place is not None:
                return

    def _find_singleton_flag(self, klass: int) -> int:
        """Return the value of FL_SINGLETON: the flag that is set in the singleton class of `klass`,
        but not in `klass` itself."""
        own, other = (self._memory.word(one) or 0 for one in (klass, self._memory.word(klass + 8) or 0)) if klass else (0, 0)
        return next((flag for flag in SINGLETON_FLAGS if other & flag and not own & flag), SINGLETON_FLAGS[0])

    def text(self, value: int, most: int = LONGEST) -> Optional[str]:
        """Return the first `most` bytes of a String's text; None if there is no String at this
        address."""
        words = self._memory.words(value, 5) if value and value % 8 == 0 else None
        return self.text_of(value, words, most) if words is not None and words[0] & MASK == T_STRING else None

    def text_of(self, value: int, words: Sequence[int], most: int) -> Optional[str]:
        """Return the first `most` bytes of the text of the String at `value`, whose first 5 words
        are `words`; None if it cannot be read."""
        length = self.length_of(words)
        embedded = value + (24 if self.long else 16)
        start = words[3] if words[0] & NOEMBED else embedded
        return self._read(start, min(length, most)) if length < 1 << 48 else None

    def length(self, value: int) -> int:
        """Return the size in bytes of the String at this address."""
        words = self._memory.words(value, 3)
        return self.length_of(words) if words is not None else 0

    def length_of(self, words: Sequence[int]) -> int:
        """Return the size in bytes of a String whose first words are `words`."""
        return words[2] if words[0] & NOEMBED or self.long else words[0] >> 14 & 31

    def describe_value(self, slot: int, flags: int) -> str:
        """Return what follows the type of the object in a slot: ", 12 bytes" for a String, the name
        of a class or module; "" for others."""
        if flags & MASK == T_STRING:
            return f", {self.length(slot):,} bytes"
        if flags & MASK == T_MODULE or (flags & MASK == T_CLASS and not flags & self.singleton):
            return f" {self.class_name(slot)}"
        return ""

    def characters(self, start: int) -> str:
        """Return the C string at this address, or ""."""
        for size in (LONGEST, 64, 16):
            found = self._read(start, size)
            if found is not None:
                return found.split("\0")[0]
        return ""

    def typed_data(self, value: int) -> tuple[str, int]:
        """Return the name of the data type of the T_DATA at this address, and the address of its
        data; ("", 0) if there is no T_DATA with a data type."""
        words = self._memory.words(value, 5)
        if words is None or words[0] & MASK != T_DATA or words[3] not in (_TYPED, _EMBEDDED):
            return "", 0
        return self.characters(self._memory.word(words[2]) or 0), value + _DATA if words[3] == _EMBEDDED else words[4]

    def class_name(self, klass: int) -> str:
        """Return the name of an object's class as Ruby prints it, "" if unknown.

        This is the name of the nearest class that is not a singleton. A class without a name is
        printed with its address."""
        name = self._names.get(klass)
        if name is None:
            name = self._names[klass] = self._class_name(klass)
        return name

    def is_singleton(self, klass: int) -> bool:
        """Return whether there is a singleton class at this address."""
        flags = self._memory.word(klass) or 0
        return flags & MASK == T_CLASS and bool(flags & self.singleton)

    def _class_name(self, klass: int) -> str:
        real = self.real(klass)
        if real is None or self.place is None:
            return ""
        flags = self._memory.word(real) or 0
        path = self._path(real, self.place)
        return path or f"#<{'Module' if flags & MASK == T_MODULE else 'Class'}:{real:#018x}>"

    def real(self, klass: int) -> Optional[int]:
        """Return the first class from `klass` upwards that is not a singleton or included module,
        or None."""
        for _ in range(HOPS):
            words = self._memory.words(klass, 3) if klass % 8 == 0 else None
            if words is None or words[0] & MASK not in (T_CLASS, T_ICLASS, T_MODULE):
                return None
            if words[0] & MASK != T_ICLASS and not (words[0] & MASK == T_CLASS and words[0] & self.singleton):
                return klass
            klass = words[2]
        return None

    def _path(self, klass: int, place: Place) -> Optional[str]:
        where = self._memory.word(klass + place.field)
        if place.table < 0 or not where:
            return self.text(where or 0)
        table = self._memory.word(where + place.table)
        other: Optional[str] = None
        for key, value, _ in self._entries(table or 0):
            if key == place.key:
                return self.text(value)
            if other is None:
                text = self.text(value)
                other = text if text is not None and text.startswith(TEMPORARY) else None
        return other

    def _find(self, word_of: Callable[[str], Optional[int]]) -> Optional[Place]:
        known = [(word_of(name), text) for name, text in KNOWN.items()]
        there = [(klass, text) for klass, text in known if klass]
        if len(there) < 2:
            return None
        klass, text = there[0]
        for place in self._places(klass or 0, text):
            if all(self._path(other or 0, place) == name for other, name in there):
                return place
        return None

    def _places(self, klass: int, text: str) -> Iterator[Place]:
        """Yield locations where this class may keep its path, which is `text`."""
        for field in _SLOT:
            where = self._memory.word(klass + field)
            if where and self.text(where) == text:
                yield Place(field)
        for field in _SLOT[:3]:
            where = self._memory.word(klass + field)
            for table in _EXTENSION if where else ():
                there = self._memory.word((where or 0) + table)
                for key, value, _ in self._entries(there) if there else ():
                    if self.text(value) == text:
                        yield Place(field, table, key)

    def _entries(self, table: int) -> Sequence[Item]:
        """Return keys and values of a struct st_table, within the number of entries that may still
        be read."""
        span = st_span(self._memory, table, ENTRIES)
        if span is None:
            return ()
        self._left -= span.number  # deleted entries count too, because they are read
        return entries_in(self._memory, span) if self._left >= 0 else ()

    def _read(self, start: int, size: int) -> Optional[str]:
        if not 0 < start < self._memory.arch.mask - size:
            return None
        data = self._memory.read(start, size) if size else b""
        return data.decode("utf-8", "backslashreplace") if data or not size else None
