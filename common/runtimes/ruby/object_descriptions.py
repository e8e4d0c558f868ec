"""Describe single objects of Ruby as ObjectSpace.dump does: their class, contents and memory.

`memory` is the size that ObjectSpace.memsize_of returns: the size of the slot and of the memory
that the object allocated with Ruby's malloc. Sources: ext/objspace/objspace_dump.c (dump_object),
gc.c (obj_memsize_of), string.c (rb_str_memsize), array.c (rb_ary_memsize), st.c (st_memsize),
hash.c, bignum.c of 2.7.4, 3.1.2, 3.3.8 and 3.4.1."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Optional

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.ruby import census as c
from findleaks.runtimes.ruby.object_table import T_BIGNUM
from findleaks.runtimes.ruby.tables import EMBEDDED, LENGTH_SHIFT, LONG, PAIRS, PAIRS_SHIFT, SHORT, ST_TABLE
from findleaks.runtimes.ruby.values import NOEMBED, Values
from findleaks.runtimes.ruby.weak_references import IN_TABLE

LONGEST = 4096  # bytes of a text that is written
WORDS = 5  # words read of each slot
FROZEN = 1 << 11
SHARED_ROOT, OLD_SHARED_ROOT = 1 << 24, 1 << 17
"""Flag of an Array whose elements other Arrays share. SHARED_ROOT: since 3.2. OLD_SHARED_ROOT:
before 3.2."""

DIGIT = 4  # bytes of a digit of a Bignum
NOT_FREED = 1 << 30  # flag of a String whose text is not in malloc's memory
EMBEDDED_NUMBER = 1 << 14  # flag of a Bignum
T_NODE = 0x1B
AR_TABLE, ST_HEAD = 128, 56  # bytes of a struct ar_table and st_table in malloc's memory before 3.3
ENTRY = 24  # bytes of an entry of a struct st_table
_WITHOUT_CLASS = (c.T_IMEMO, T_NODE)
_SLOT_ONLY = (c.T_FLOAT, c.T_SYMBOL, 0xE, 0xF)  # only a slot; 0xE: Complex, 0xF: Rational


class Description(NamedTuple):
    """`text`: members of a JSON object, each with ", " before it. `memory`: the object's size in
    bytes. None: the caller adds the sizes of the slot and of the native memory that belongs to the
    object. `klass`: the address of the class."""

    klass: int
    text: str
    memory: Optional[int]


class ObjectDescriptions:
    """Describes objects. `name_data` returns the name of a data type. `capacity_of` returns the
    number of instance variables that fit in the memory of an object with a given shape. `shared`:
    the flag of an Array or String whose data belongs to another Array or String."""

    def __init__(
        self,
        memory: Memory,
        engine: Engine,
        values: Values,
        name_data: Callable[[int], str],
        capacity_of: Callable[[int], int],
        version: tuple[int, int],
        shared: int,
    ) -> None:
        self._memory, self._engine, self._values, self._name_data, self._capacity_of = memory, engine, values, name_data, capacity_of
        self._shared = shared
        # Since 3.3, ObjectSpace.dump lists the class of an internal object among the references.
        self._lists_class_of = frozenset(_WITHOUT_CLASS) if version >= (3, 3) else frozenset()
        self._has_table_in_slot = version >= (3, 3)

    def describe(self, addresses: array[int], sizes: Iterable[int]) -> Iterator[Description]:
        """Yield a description of each object. `addresses` are ascending, `sizes` are those of the
        slots in bytes."""
        data, _ = read_records(self._memory.target, self._engine, addresses, 8 * WORDS)
        records = zip(*[iter(self._memory.arch.words(data))] * WORDS)
        for address, slot, words in zip(addresses, sizes, records):
            flags, tag = words[0], words[0] & c.MASK
            text = f', "type":"{c.TYPES.get(tag, hex(tag))}", "slot_size":{slot}'
            if words[1] and tag not in _WITHOUT_CLASS:
                text += f', "class":"{words[1]:#x}"'
            if flags & FROZEN:
                text += ', "frozen":true'
            more, native = self._describe_content(address, tag, words)
            klass = words[1] if tag not in self._lists_class_of else 0
            yield Description(klass, text + more, slot + native if native is not None else None)

    def _describe_content(self, address: int, tag: int, words: tuple[int, ...]) -> tuple[str, Optional[int]]:
        """Return the members that are specific to the type of an object, as text, and the size of
        its memory outside of the slot in bytes (None: unknown)."""
        if tag == c.T_STRING:
            return self._describe_string(address, words)
        if tag == c.T_ARRAY:
            return self._describe_array(words)
        if tag == c.T_HASH:
            return self._describe_hash(address, words)
        if tag == c.T_OBJECT:
            return "", self._count_variables(words)
        if tag == c.T_STRUCT:
            is_inside = words[0] >> 13 & (LONG if self._values.long else SHORT)
            return "", 0 if is_inside else 8 * (words[2] & 0xFFFFFFFF)
        if tag == T_BIGNUM:
            return "", 0 if words[0] & EMBEDDED_NUMBER else DIGIT * (words[2] & 0xFFFFFFFF)
        if tag in _SLOT_ONLY:
            return self._describe_symbol(words) if tag == c.T_SYMBOL else "", 0
        return self._describe_further(address, tag, words), None

    def _describe_further(self, address: int, tag: int, words: tuple[int, ...]) -> str:
        if tag in (c.T_CLASS, c.T_MODULE, c.T_ICLASS):
            text = f', "superclass":"{words[2]:#x}"' if words[2] and tag != c.T_MODULE else ""
            is_singleton = tag == c.T_CLASS and words[0] & self._values.singleton
            name = self._values.class_name(address) if tag != c.T_ICLASS and not is_singleton else ""
            name = name if not name.startswith("#<") else ""
            return text + (f', "name":{json.dumps(name)}' if name else "") + (', "singleton":true' if is_singleton else "")
        if tag == c.T_DATA and words[3] & ~3 == 0 and words[3]:
            return f', "struct":{json.dumps(self._name_data(words[2]))}'
        if tag == c.T_IMEMO:
            number = words[0] >> c.IMEMO_SHIFT & c.IMEMO_MASK
            return f', "imemo_type":{json.dumps(c.IMEMOS[number] if number < len(c.IMEMOS) else str(number))}'
        return ""

    def _describe_string(self, address: int, words: tuple[int, ...]) -> tuple[str, int]:
        flags, length, is_elsewhere = words[0], self._values.length_of(words), bool(words[0] & NOEMBED)
        is_shared = is_elsewhere and bool(flags & self._shared)
        text = "" if is_elsewhere else ', "embedded":true'
        text += ', "shared":true' if is_shared else ""
        text += ', "fstring":true' if flags & IN_TABLE else ""
        text += f', "bytesize":{length}'
        value = self._values.text_of(address, words, LONGEST) if length <= LONGEST else None
        text += f', "value":{json.dumps(value)}' if value is not None else ""
        return text, words[4] + 1 if is_elsewhere and not is_shared and not flags & NOT_FREED else 0

    def _describe_symbol(self, words: tuple[int, ...]) -> str:
        value = self._values.text(words[3], LONGEST)
        return f', "value":{json.dumps(value)}' if value is not None else ""

    def _describe_array(self, words: tuple[int, ...]) -> tuple[str, int]:
        flags = words[0]
        if flags & EMBEDDED:
            return f', "length":{flags >> LENGTH_SHIFT & (LONG if self._values.long else SHORT)}, "embedded":true', 0
        is_shared = bool(flags & self._shared)
        is_root = flags & (SHARED_ROOT if self._values.long else OLD_SHARED_ROOT)
        room = words[2] if is_root else words[3]
        return f', "length":{words[2]}' + (', "shared":true' if is_shared else ""), 0 if is_shared else 8 * room

    def _describe_hash(self, address: int, words: tuple[int, ...]) -> tuple[str, Optional[int]]:
        if not words[0] & ST_TABLE:
            has_table = not self._has_table_in_slot and bool(words[2])
            return f', "size":{words[0] >> PAIRS_SHIFT & PAIRS}', AR_TABLE if has_table else 0
        table = self._memory.words(address + 24 if self._values.long else words[2], 7)
        if table is None:
            return "", None
        entries, bins, width = table[0] & 0xFF, table[0] >> 8 & 0xFF, table[0] >> 16 & 0xFF
        if max(entries, bins) > 48 or width > 3:
            return "", None
        size = (ENTRY << entries) + ((1 << width << bins) if table[3] else 0)
        return f', "size":{table[2]}', size + (0 if self._has_table_in_slot else ST_HEAD)

    def _count_variables(self, words: tuple[int, ...]) -> Optional[int]:
        """Return the size in bytes of an object's instance variables outside of its slot."""
        if words[0] & EMBEDDED:
            return 0
        return 8 * (self._capacity_of(words[0] >> 32) if self._values.long else words[2] & 0xFFFFFFFF)
