"""Read the names of Ruby's IDs (of variables and constants) from the interpreter's symbol table.

Sources: symbol.h (rb_symbols_t, rb_id_to_serial) and symbol.c (set_id_entry, get_id_serial_entry)
of 2.7.4, 3.1.2 and 3.3.8. `ruby_global_symbols` is {last serial number, table of names, ids, hash}.
`ids` is a hidden Array of hidden Arrays. Each of these contains names and symbols, alternately, of
512 serial numbers. The variable has no exported symbol, and is recognised by this structure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.ruby.census import MASK, T_HASH, T_SYMBOL
from findleaks.runtimes.ruby.tables import Elements, elements
from findleaks.runtimes.ruby.values import Values
from findleaks.target.base import Range

UNIT = 512  # serial numbers of one of the inner Arrays
MOST = 1 << 28  # maximum serial number
SHIFT = 4  # an ID has its kind in the bits below, its serial number in those above
KIND = 0xE
OPERATORS = 1 << 10  # IDs below are serial numbers
INSTANCE, GLOBAL, CONSTANT, CLASS = 2, 6, 10, 12
"""enum ruby_id_types: @name, $name, Name, @@name."""

TEXT = 24  # offset of the pointer to the text, in a Symbol that is an object
_STATIC, _STATIC_MASK, _STATIC_SHIFT = 0xC, 0xFF, 8  # a Symbol that is not an object has its ID


def serial_number(number: int) -> int:
    """Return the serial number of an ID."""
    return number if number < OPERATORS else number >> SHIFT


def static_serial(symbol: int) -> Optional[int]:
    """Return the serial number of a Symbol's ID; None if the Symbol is an object."""
    return serial_number(symbol >> _STATIC_SHIFT) if symbol & _STATIC_MASK == _STATIC else None


class Symbols:
    """Names by serial number. If the table was not found, `ids` is None and all names are ""."""

    def __init__(self, memory: Memory, values: Values, data: Iterable[Range]) -> None:
        """Find the table. `data` is memory of the interpreter's variables."""
        self._memory, self._values = memory, values
        self._last = 0
        self.ids: Optional[Elements] = None
        for start, end in data:
            for _, words in memory.scan(start, end):
                for at in range(len(words) - 3):
                    last, names, ids, strings = words[at : at + 4]
                    if 0 < last < MOST and names and ids and strings and not (names | ids | strings) & 7 and self._is(last, ids, strings):
                        return

    def _is(self, last: int, ids: int, strings: int) -> bool:
        """Return whether these are members of rb_symbols_t. If so, `ids` is set."""
        if (self._memory.word(strings) or 0) & MASK != T_HASH or self._memory.word(ids + 8) != 0:
            return False
        found = elements(self._memory, ids, self._values.long)
        if found is None or found.length != last // UNIT + 1:
            return False
        self.ids, self._last = found, last
        return True

    def name(self, serial: int) -> str:
        """Return the name of an ID ("$cache", "@@cache", "CACHE"), or ""."""
        if self.ids is None or not 0 < serial <= self._last:
            return ""
        unit, number = divmod(serial, UNIT)
        inner = elements(self._memory, self._memory.word(self.ids.start + 8 * unit) or 0, self._values.long)
        if inner is None or 2 * number >= inner.length:
            return ""
        return self._values.text(self._memory.word(inner.start + 16 * number) or 0) or ""

    def name_symbol(self, symbol: int) -> str:
        """Return the text of a Symbol, or ""."""
        serial = static_serial(symbol)
        if serial is not None:
            return self.name(serial)
        is_object = symbol % 8 == 0 and symbol and (self._memory.word(symbol) or 0) & MASK == T_SYMBOL
        return self._values.text(self._memory.word(symbol + TEXT) or 0) or "" if is_object else ""
