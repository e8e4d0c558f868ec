"""Name Ruby's objects and the words of their memory: instance variables, elements of Arrays and
Structs, the keys of Hashes, and words on the stacks of threads.

Sources: those of tables.py and members.py, and internal/hash.h (struct RHash, ar_table; hash.c in
2.7) of 2.7.4, 3.1.2, 3.3.8 and 3.4.1."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.heap_dump import ObjectNames
from findleaks.runtimes.ruby import census as c
from findleaks.runtimes.ruby.objects import HEAD
from findleaks.runtimes.ruby.symbols import static_serial
from findleaks.runtimes.ruby.tables import BOUND, BOUND_SHIFT, HASH_LONG, HINTS, LONGEST, ST_TABLE, elements, st_span, struct_length
from findleaks.runtimes.ruby.value_stacks import ValueStack, name_place
from findleaks.runtimes.ruby.values import Values
from findleaks.runtimes.ruby.variables import Found
from findleaks.target.encoded_numbers import decode_signed

_LONGEST_KEY = 60  # bytes that are shown of a String or Symbol that is a key
_ENTRY, _PAIR = 24, 16  # bytes of an entry of a struct st_table, and of a pair of a small Hash
_SPECIAL = {0: "false", 0x14: "true"}  # nil is 8 before 3.2, else 4


class RubyNames(ObjectNames):
    """See ObjectNames. Words have names in Ruby's syntax: ".@peer", "[3]", '["key"]'. `stacks`:
    the stacks of values of threads and fibers."""

    def __init__(self, memory: Memory, values: Values, found: Found, stacks: Sequence[ValueStack]) -> None:
        self._memory, self._values, self._found, self._stacks = memory, values, found, stacks

    def name_object(self, address: int) -> str:
        words = self._memory.words(address, 2) or (0, 0)
        tag = words[0] & c.MASK
        if tag not in (c.T_CLASS, c.T_MODULE):
            return ""
        is_singleton = tag == c.T_CLASS and words[0] & self._values.singleton
        kind = "module" if tag == c.T_MODULE else "singleton class of" if is_singleton else "class"
        return f"{kind} {self._values.class_name(address)}"

    def name_root(self, place: int) -> str:
        stack = next((one for one in self._stacks if one.start <= place < one.end), None)
        at = bisect_right(stack.tops, place) if stack is not None else 0
        if stack is None or at == len(stack.tops):
            return ""
        return name_place(stack.frames[at]) or "local variable or argument of a frame of the interpreter"

    def name_word(self, address: int, place: int) -> str:
        value, words = address, self._memory.words(address, 5)
        if words is None:
            return ""
        tag = words[0] & c.MASK
        if place == value + 8:
            return "its class"
        if tag == c.T_OBJECT:
            members = self._found.members
            of_object = members.of_object(value, self._values.real(words[1]) or 0) if members is not None else ()
            return next((f".{self._name_id(one.serial)}" for one in of_object if one.address == place), "")
        if tag == c.T_ARRAY:
            found = elements(self._memory, value, self._values.long)
            return _index(place, found.start, found.length) if found is not None else ""
        if tag == c.T_STRUCT:
            inside = struct_length(words[0], self._values.long)
            return _index(place, value + HEAD, inside) if inside else _index(place, words[3], min(words[2], LONGEST))
        return self._name_in_hash(value, words[0], words[2], place) if tag == c.T_HASH else ""

    def _name_id(self, serial: int) -> str:
        return self._found.symbols.name(serial) if self._found.symbols is not None else ""

    def _name_in_hash(self, value: int, flags: int, table: int, place: int) -> str:
        """Return the name of a word in the pairs of a Hash."""
        is_long = self._values.long
        if flags & ST_TABLE:
            span = st_span(self._memory, value + HASH_LONG if is_long else table, LONGEST)
            return self._name_pair(place, span.start, span.number, _ENTRY, 8) if span is not None else ""
        start = value + HASH_LONG + HINTS if is_long else table
        return self._name_pair(place, start, flags >> BOUND_SHIFT & BOUND, _PAIR, 0)

    def _name_pair(self, place: int, start: int, number: int, stride: int, key: int) -> str:
        """Return the name of a word in pairs of `stride` bytes. Each pair has a key at the offset
        `key`, and a value after it."""
        at, offset = divmod(place - start, stride)
        if not 0 <= at < number or offset < key:
            return ""
        return "key" if offset == key else f"[{self._describe(self._memory.word(place - 8) or 0)}]"

    def _describe(self, value: int) -> str:
        """Return a number, String or Symbol as Ruby prints it; for others, the class name."""
        if value & 1:
            return str(decode_signed(value >> 1, 63))
        serial = static_serial(value)
        if serial is not None:
            return f":{self._name_id(serial)}"
        if value % 8 or value < self._memory.arch.page:
            return _SPECIAL.get(value, "nil" if value in (4, 8) else "a number")
        words = self._memory.words(value, 4) or (0, 0, 0, 0)
        text: Optional[str] = self._values.text(value, _LONGEST_KEY)
        if text is not None:
            return json.dumps(text, ensure_ascii=False)
        if words[0] & c.MASK == c.T_SYMBOL:
            return f":{self._values.text(words[3], _LONGEST_KEY) or ''}"
        return self._values.class_name(words[1]) or "an object"


def _index(place: int, start: int, number: int) -> str:
    """Return the name of the word at `place` ("[3]"); "" if no element begins there."""
    at, offset = divmod(place - start, 8)
    return f"[{at}]" if 0 <= at < number and not offset else ""
