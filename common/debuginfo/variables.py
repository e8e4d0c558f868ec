"""Variables of a file by their addresses, of which debug information has no table: .debug_names, .gdb_index and the like go by names.

A variable's entry has its location as DW_OP_addr and the address or, by clang since DWARF 5, as DW_OP_addrx and a number of
.debug_addr. One pass over the bytes of .debug_info, once a file, notes where what looks like such a location stands.
An entry has no mark of where it begins, but its abbreviation says how it is laid out: of the few places before the location at
which the abbreviation of a variable may stand, mostly one alone leads to a location there, and refers to a type. Otherwise the
unit is walked.
Sources: DWARF 5, 2.6.1.1.2 (DW_OP_addr, DW_OP_addrx), 7.5.5 (exprloc), 7.27 (.debug_addr).
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

OP_ADDR, OP_ADDRX = 0x03, 0xA1
MAX_LOCATIONS = 1 << 20
"""Locations noted of a file, some 100 bytes each."""

WINDOW = 1 << 16
"""Bytes searched between two looks at Ctrl-C: some 0.1 ms, or 100 in a file made to be slow."""

MAX_TRIED = 1 << 12
"""Locations looked at for one address, 0.1 ms each: of calls that it is an argument of, too, and of a template's variable once a unit."""

BEFORE = 64
"""Bytes before a location in which its entry is taken to begin: most take 10 to 20."""

AFTER = 256
"""Bytes behind where a location begins, in which its entry ends: what is read where none begins may seem to have gigabytes."""

_REFERENCES = {
    "DW_AT_type": ("_type", "_typedef"),
    "DW_AT_specification": ("_variable", "_member"),
    "DW_AT_abstract_origin": ("_variable",),
}


class Variables:
    """The variables of a file."""

    def __init__(self, file: DebugFile) -> None:
        self._file = file
        self._info = file.sections.get(".debug_info", b"")
        self._last: dict[int, int] = {}  # address, or -1 - number in .debug_addr -> number of its last location
        self._places: array[int] = array("Q")  # where locations stand in .debug_info
        self._before: array[int] = array("q")  # the number of the one before it of the same address; -1: none
        self._noted_all = False
        self._abbreviations: dict[int, list[bytes]] = {}

    def at(self, address: int) -> Optional[DIE]:
        """The entry of the variable at this address (of the file); None if there is none."""
        return self._file.ask(lambda: self._at(address), None)

    def _at(self, address: int) -> Optional[DIE]:
        if not self._noted_all:
            self._note_locations()
        for _, place in zip(range(MAX_TRIED), self._noted(address)):
            found = self._variable(self._file.unit_of(place), place)
            if found is not None:
                return found
        return self._by_number(address)

    def _note_locations(self) -> None:
        size = self._file.word
        last, places, before, info = self._last, self._places, self._before, self._info
        last.clear()  # an interrupted pass may have left some
        del places[:], before[:]
        # Patterns that begin with what is fixed: re finds that at 1 to 2 GB/s, and either of two at 33 MB/s.
        addresses = re.compile(bytes([1 + size, OP_ADDR]))
        numbers = re.compile(bytes([OP_ADDRX]) + b"(?<=[\x02-\x06]" + bytes([OP_ADDRX]) + b")")
        numbered = bool(len(self._file.sections.get(".debug_addr", b"")))
        for begin in range(0, len(info), WINDOW):
            self._file.tell(PHASE, begin / len(info))
            end = begin + WINDOW
            found = [(m.start(), self._file.number(info, m.end(), size)) for m in addresses.finditer(info, begin, end + 1)]
            for match in numbers.finditer(info, begin, end) if numbered else ():
                at = match.start()
                found.append((at - 1, -1 - _number_of(bytes(info[at + 1 : at + info[at - 1]]))))
            for at, key in found:
                before.append(last.get(key, -1))
                last[key] = len(places)
                places.append(at)
            if len(places) >= MAX_LOCATIONS:
                break
        self._noted_all = True

    def _noted(self, key: int) -> Iterator[int]:
        """Where locations of this address stand, the last first."""
        at = self._last.get(key, -1)
        while at >= 0:
            yield self._places[at]
            at = self._before[at]

    def _variable(self, unit: Unit, place: int) -> Optional[DIE]:
        """The variable's entry whose location stands at `place`; None if that is something else."""
        likely = [die for die in self._beginnings(unit, place) if _located(die, place) and self._refers(die)]
        if len(likely) == 1:
            return likely[0]
        if likely:
            for die in self._file.walk(unit, unit.cu_die_offset, place):
                if die.offset + die.size > place:
                    return die if _located(die, place) else None
        return None

    def _beginnings(self, unit: Unit, place: int) -> Iterator[DIE]:
        """Entries read from where a variable's may begin: at the number of an abbreviation that has a location."""
        begin = max(place - BEFORE, unit.cu_die_offset)
        data = bytes(self._info[begin:place])
        for code in self._codes(unit):
            at = data.find(code)
            while at >= 0:
                found = self._file.ask(partial(self._file.entry, unit, begin + at, place + AFTER), None)
                if found is not None:
                    yield found
                at = data.find(code, at + 1)

    def _refers(self, die: DIE) -> bool:
        """Whether a variable's entry refers to what it should: a type or, where that stands in another entry, a variable."""
        for attribute, suffixes in _REFERENCES.items():
            if attribute in die.attributes:
                if die.attributes[attribute].form in IN_ANOTHER_FILE:
                    return True
                found = self._file.ask(partial(self._file.follow, die, attribute), None)
                return found is not None and str(found.tag).endswith(suffixes)
        return False

    def _codes(self, unit: Unit) -> list[bytes]:
        """The numbers, as they are written, of the abbreviations of variables with a location. Compilers count from 1."""
        table = unit.get_abbrev_table()
        if table.offset not in self._abbreviations:
            found = []
            for code in count(1):
                declared = self._file.ask(partial(table.get_abbrev, code), None)
                if declared is None:
                    break
                if declared["tag"] == "DW_TAG_variable" and "DW_AT_location" in (name for name, _ in declared.iter_attr_specs()):
                    found.append(_coded(code))
            self._abbreviations[table.offset] = found
        return self._abbreviations[table.offset]

    def _by_number(self, address: int) -> Optional[DIE]:
        """The same where locations have the numbers of addresses in .debug_addr: each unit counts from its part of it."""
        size, table = self._file.word, self._file.sections.get(".debug_addr", b"")
        wanted = re.compile(re.escape(address.to_bytes(size, self._file.order)))
        for _, match in zip(range(MAX_TRIED), wanted.finditer(table)):
            index = bisect_right(self._bases, match.start()) - 1
            number, rest = divmod(match.start() - self._bases[index], size) if index >= 0 else (0, 1)
            if rest:
                continue
            for place in self._of_base(list(self._noted(-1 - number))[::-1], self._bases[index]):
                found = self._variable(self._file.unit_of(place), place)
                if found is not None:
                    return found
        return None

    @cached_property
    def _bases(self) -> array[int]:
        """Where the addresses of each part of .debug_addr begin, behind a header: length, version, size of an address and of a segment."""
        found, at, table = array("Q"), 0, self._file.sections.get(".debug_addr", b"")
        while at + 8 <= len(table):
            wide = table[at : at + 4] == b"\xff\xff\xff\xff"
            begin = at + (12 if wide else 4)
            found.append(begin + 4)
            at = begin + self._file.number(table, begin - 8 if wide else at, 8 if wide else 4)
        return found

    def _of_base(self, places: list[int], base: int) -> list[int]:
        """Those of ascending places that lie in units with this part of .debug_addr. Linkers put units and parts in the same order, so
        that few units have to be asked."""

        def base_at(place: int) -> int:
            return number(self._file.unit_of(place).get_top_DIE(), "DW_AT_addr_base") or 0

        low, high = 0, len(places)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if base_at(places[middle]) < base else (low, middle)
        return list(takewhile(lambda place: base_at(place) == base, places[low : low + MAX_TRIED]))


def _located(die: DIE, place: int) -> bool:
    """Whether this is a variable whose location stands at `place`."""
    location = die.attributes.get("DW_AT_location") if die.tag == "DW_TAG_variable" else None
    return location is not None and location.offset == place


def _number_of(coded: bytes) -> int:
    """An unsigned LEB128 number, of which nothing is left out nor over; -1 of anything else."""
    if not coded or coded[-1] >= 0x80 or any(byte < 0x80 for byte in coded[:-1]):
        return -1
    return sum((byte & 0x7F) << 7 * at for at, byte in enumerate(coded))


def _coded(value: int) -> bytes:
    """The same the other way."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
