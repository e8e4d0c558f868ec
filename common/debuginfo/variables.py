"""Find a file's variables by address.

Debug information has no table for this, because .debug_names, .gdb_index and the like are indexed
by name. A variable's entry has its location as DW_OP_addr and the address. Since DWARF 5, clang
writes DW_OP_addrx and an index into .debug_addr instead. One pass over the bytes of .debug_info per
file records the offsets of byte sequences that look like such locations. Nothing marks the start of
the entry that has the location. However, an entry begins with the number of its abbreviation, which
determines its layout. Therefore each offset shortly before the location that has the number of a
variable's abbreviation is tried as a start. Usually, only one start gives an entry that refers to a
type and has its location at the recorded offset. If several starts give such an entry, the unit is
walked. Sources: DWARF 5, 2.6.1.1.2 (DW_OP_addr, DW_OP_addrx), 7.5.5 (exprloc), 7.27 (.debug_addr).
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property, partial
from itertools import count, takewhile
from typing import Optional

from findleaks.debuginfo.dwarf import DIE, IN_ANOTHER_FILE, PHASE, DebugFile, Unit, number
from findleaks.target.elf import occurrences

OP_ADDR, OP_ADDRX = 0x03, 0xA1
# Maximum number of locations that are recorded for a file; about 100 bytes each
MAX_LOCATIONS = 1 << 20
WINDOW = 1 << 16  # bytes between polls for an interrupt: about 0.1 ms, 100 ms in a malicious file

MAX_TRIED = 1 << 12
"""Maximum number of locations that are tried for one address, 0.1 ms each. An address has several
locations if it is an argument of calls. The variable of a template has one in each unit."""

# An entry must begin at most this many bytes before its location; most begin 10 to 20 before
BEFORE = 64

AFTER = 256
"""An entry must end at most this many bytes after the start of its location, because data read at a
wrong offset may seem to have gigabytes."""

_REFERENCES = {
    "DW_AT_type": ("_type", "_typedef"),
    "DW_AT_specification": ("_variable", "_member"),
    "DW_AT_abstract_origin": ("_variable",),
}


class Variables:
    """Maps addresses to the variables of a file."""

    def __init__(self, file: DebugFile) -> None:
        self._file = file
        self._info = file.sections.get(".debug_info", b"")
        # Locations with the same key form a chain. The key is an address, or -1 - index into
        # .debug_addr.
        self._last: dict[int, int] = {}  # key -> number of its last location
        self._places: array[int] = array("Q")  # by number: offset in .debug_info
        # the preceding location with the same key, by number; -1 if there is none
        self._before: array[int] = array("q")
        self._noted_all = False
        self._abbreviations: dict[int, list[bytes]] = {}

    def at(self, address: int) -> Optional[DIE]:
        """Return the entry of the variable at this address of the file; None if there is none."""
        return self._file.ask(lambda: self._at(address), None)

    def _at(self, address: int) -> Optional[DIE]:
        if not self._noted_all:
            self._note_locations()
        for _, place in zip(range(MAX_TRIED), self._iterate_offsets(address)):
            found = self._variable(self._file.unit_of(place), place)
            if found is not None:
                return found
        return self._by_number(address)

    def _note_locations(self) -> None:
        size = self._file.word
        last, places, before, info = self._last, self._places, self._before, self._info
        last.clear()  # an interrupted pass may have left entries
        del places[:], before[:]
        # Two patterns are used, because `re` finds the constant bytes at the start of each at 1 to
        # 2 GB/s, but one pattern with both alternatives at 33 MB/s.
        addresses = re.compile(bytes([1 + size, OP_ADDR]))
        numbers = re.compile(bytes([OP_ADDRX]) + b"(?<=[\x02-\x06]" + bytes([OP_ADDRX]) + b")")
        numbered = bool(len(self._file.sections.get(".debug_addr", b"")))
        for begin in range(0, len(info), WINDOW):
            self._file.progress(PHASE, begin / len(info))
            end = begin + WINDOW
            found = [(m.start(), self._file.number(info, m.end(), size)) for m in addresses.finditer(info, begin, end + 1)]
            for match in numbers.finditer(info, begin, end) if numbered else ():
                at = match.start()
                found.append((at - 1, -1 - _uleb128(bytes(info[at + 1 : at + info[at - 1]]))))
            for at, key in found:
                before.append(last.get(key, -1))
                last[key] = len(places)
                places.append(at)
            if len(places) >= MAX_LOCATIONS:
                break
        self._noted_all = True

    def _iterate_offsets(self, key: int) -> Iterator[int]:
        """Yield the offsets of the locations with this key, the last one first."""
        at = self._last.get(key, -1)
        while at >= 0:
            yield self._places[at]
            at = self._before[at]

    def _variable(self, unit: Unit, place: int) -> Optional[DIE]:
        """Return the entry of the variable whose location is at `place`; None if no location is
        there."""
        likely = [die for die in self._beginnings(unit, place) if _is_located_at(die, place) and self._refers(die)]
        if len(likely) == 1:
            return likely[0]
        if likely:
            for die in self._file.walk(unit, unit.cu_die_offset, place):
                if die.offset + die.size > place:
                    return die if _is_located_at(die, place) else None
        return None

    def _beginnings(self, unit: Unit, place: int) -> Iterator[DIE]:
        """Yield entries that may be those of a variable. An entry begins with the number of an
        abbreviation, so an entry is read at each place that has such a number."""
        begin = max(place - BEFORE, unit.cu_die_offset)
        data = bytes(self._info[begin:place])
        for code in self._codes(unit):
            for at in occurrences(data, code):
                found = self._file.ask(partial(self._file.entry, unit, begin + at, place + AFTER), None)
                if found is not None:
                    yield found

    def _refers(self, die: DIE) -> bool:
        """Whether an entry refers to a type or, if the type is in another entry, to a variable."""
        for attribute, suffixes in _REFERENCES.items():
            if attribute in die.attributes:
                if die.attributes[attribute].form in IN_ANOTHER_FILE:
                    return True
                found = self._file.ask(partial(self._file.follow, die, attribute), None)
                return found is not None and str(found.tag).endswith(suffixes)
        return False

    def _codes(self, unit: Unit) -> list[bytes]:
        """Return the numbers, as LEB128, of the abbreviations of variables with a location. They
        are counted from 1."""
        table = unit.get_abbrev_table()
        if table.offset not in self._abbreviations:
            found = []
            for code in count(1):
                declared = self._file.ask(partial(table.get_abbrev, code), None)
                if declared is None:
                    break
                if declared["tag"] == "DW_TAG_variable" and "DW_AT_location" in (name for name, _ in declared.iter_attr_specs()):
                    found.append(_to_uleb128(code))
            self._abbreviations[table.offset] = found
        return self._abbreviations[table.offset]

    def _by_number(self, address: int) -> Optional[DIE]:
        """Return the variable at this address that is found by an index into its unit's part of
        .debug_addr."""
        size, table = self._file.word, self._file.sections.get(".debug_addr", b"")
        wanted = re.compile(re.escape(address.to_bytes(size, self._file.order)))
        for _, match in zip(range(MAX_TRIED), wanted.finditer(table)):
            index = bisect_right(self._bases, match.start()) - 1
            number, rest = divmod(match.start() - self._bases[index], size) if index >= 0 else (0, 1)
            if rest:
                continue
            for place in self._of_base(list(self._iterate_offsets(-1 - number))[::-1], self._bases[index]):
                found = self._variable(self._file.unit_of(place), place)
                if found is not None:
                    return found
        return None

    @cached_property
    def _bases(self) -> array[int]:
        """Return, for each part of .debug_addr, the offset of its addresses, which follow a header:
        length, version, size of an address and of a segment."""
        found, at, table = array("Q"), 0, self._file.sections.get(".debug_addr", b"")
        while at + 8 <= len(table):
            wide = table[at : at + 4] == b"\xff\xff\xff\xff"
            begin = at + (12 if wide else 4)
            found.append(begin + 4)
            at = begin + self._file.number(table, begin - 8 if wide else at, 8 if wide else 4)
        return found

    def _of_base(self, places: list[int], base: int) -> list[int]:
        """Return those of the ascending `places` that are in units with this part of .debug_addr.
        Linkers put units and parts in the same order, so few units have to be read."""

        def base_at(place: int) -> int:
            return number(self._file.unit_of(place).get_top_DIE(), "DW_AT_addr_base") or 0

        low, high = 0, len(places)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if base_at(places[middle]) < base else (low, middle)
        return list(takewhile(lambda place: base_at(place) == base, places[low : low + MAX_TRIED]))


def _is_located_at(die: DIE, place: int) -> bool:
    """Whether this entry is a variable whose location is at `place`."""
    location = die.attributes.get("DW_AT_location") if die.tag == "DW_TAG_variable" else None
    return location is not None and location.offset == place


def _uleb128(coded: bytes) -> int:
    """Decode an unsigned LEB128 number that takes all of `coded`. Returns -1 for anything else."""
    if not coded or coded[-1] >= 0x80 or any(byte < 0x80 for byte in coded[:-1]):
        return -1
    return sum((byte & 0x7F) << 7 * at for at, byte in enumerate(coded))


def _to_uleb128(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
