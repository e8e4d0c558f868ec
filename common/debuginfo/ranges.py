"""Read the code ranges of entries, from .debug_ranges (DWARF 2 to 4) and .debug_rnglists (DWARF 5).
Read the code ranges of all units of a file, so that only the unit of an address has to be read.

.debug_aranges has the ranges of the units that it lists: gcc writes this section, clang rarely
does. For other units, the first entry is read. pyelftools is not used here, because it takes 20 µs
per range and reads every abbreviation of a unit.
Sources: DWARF 5, 2.17 (addresses and ranges), 6.1.2 (.debug_aranges), 7.25, 7.28; DWARF 4,
2.17.3."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from typing import Optional

from findleaks.debuginfo.dwarf import MAX_UNITS, PHASE, DebugFile
from findleaks.debuginfo.entries import (
    ADDRX,
    AT_ADDR_BASE,
    AT_GNU_ADDR_BASE,
    AT_HIGH_PC,
    AT_LOW_PC,
    AT_RANGES,
    AT_RNGLISTS_BASE,
    FORM_ADDR,
    FORM_RNGLISTX,
    Entry,
    Head,
    Malformed,
    Unit,
    Values,
    Work,
    head,
    read_abbreviations,
    uleb,
)

MAX_RANGES = 1 << 22  # maximum number of ranges of a file; 24 bytes each
MAX_WORK = 1 << 22  # maximum number of list entries and attributes of abbreviations that are read
_LOOK_BACK = 8  # ranges before an address that are tried: units may overlap in damaged files
_POLL = 1 << 9  # units between two polls for an interrupt: about 50 ms

Ranges = list[tuple[int, int]]


class CodeRanges:
    """Reads the ranges of a unit's entries. `values`: the attributes of the unit's first entry."""

    def __init__(self, file: DebugFile, unit: Head, values: Values, work: Work) -> None:
        self._file, self._unit, self._work = file, unit, work
        self._indices = values.get(AT_ADDR_BASE, values.get(AT_GNU_ADDR_BASE, (0, 8 if unit.version >= 5 else 0)))[1]
        self._lists = values.get(AT_RNGLISTS_BASE, (0, 12))[1]
        self._base = 0
        self._base = self._address(values.get(AT_LOW_PC)) or 0

    def of(self, values: Values) -> Optional[Ranges]:
        """Return an entry's code ranges; None if it has no range attributes. Code that the linker
        dropped, whose addresses are at 0 or at the end of the address space, is left out."""
        if AT_RANGES in values:
            form, value = values[AT_RANGES]
            found = self._read_list(value, form) if self._unit.version >= 5 else self._pairs(value)
        else:
            low, (form, high) = self._address(values.get(AT_LOW_PC)), values.get(AT_HIGH_PC, (0, 0))
            if low is None or AT_HIGH_PC not in values:
                return None
            end = self._address((form, high)) if form == FORM_ADDR or form in ADDRX else low + high
            found = [(low, end or 0)]
        return [(low, high) for low, high in found if 0 < low < high]

    def _address(self, value: Optional[tuple[int, int]]) -> Optional[int]:
        if value is None:
            return None
        return self._read_indexed(value[1]) if value[0] in ADDRX else value[1]

    def _read_indexed(self, index: int) -> int:
        data, size = self._file.sections.get(".debug_addr", b""), self._unit.address
        at = self._indices + index * size
        if at + size > len(data):
            raise Malformed
        return self._file.number(data, at, size)

    def _pairs(self, at: int) -> Ranges:
        """Read a list of .debug_ranges: pairs of addresses relative to a base, up to a pair of
        zeros."""
        data, size = self._file.sections.get(".debug_ranges", b""), self._unit.address
        found: Ranges = []
        base, mask = self._base, (1 << 8 * size) - 1
        while True:
            self._work.spend()
            low, high = self._file.number(data, at, size), self._file.number(data, at + size, size)
            at += 2 * size
            if at > len(data) or not (low or high):
                break
            if low == mask:
                base = high
            elif low < high:
                found.append((base + low, base + high))
        return found

    def _read_list(self, at: int, form: int) -> Ranges:
        """Read a list of .debug_rnglists: entries of several kinds (7.25), up to an end marker."""
        file, size = self._file, self._unit.address
        data = file.sections.get(".debug_rnglists", b"")
        if form == FORM_RNGLISTX:
            at = self._lists + file.number(data, self._lists + at * self._unit.wide, self._unit.wide)
        found: Ranges = []
        base = self._base
        while True:
            self._work.spend()
            kind, at = data[at], at + 1
            if kind == 0:  # end_of_list
                return found
            if kind in (1, 2, 3, 4):
                first, at = uleb(data, at)
                if kind == 1:  # base_addressx
                    base = self._read_indexed(first)
                    continue
                second, at = uleb(data, at)
                if kind == 4:  # offset_pair
                    found.append((base + first, base + second))
                else:  # startx_endx, startx_length
                    low = self._read_indexed(first)
                    found.append((low, self._read_indexed(second) if kind == 2 else low + second))
            elif kind in (5, 6, 7):
                low = file.number(data, at, size)
                at += size
                if kind == 5:  # base_address
                    base = low
                elif kind == 6:  # start_end
                    found.append((low, file.number(data, at, size)))
                    at += size
                else:  # start_length
                    length, at = uleb(data, at)
                    found.append((low, low + length))
            else:
                raise Malformed


def work_of(file: DebugFile) -> Work:
    """Return the work limit for reading the entries of one unit, or the ranges of all units."""
    return Work(MAX_WORK, lambda: file.progress(PHASE, 0.0))


def open_unit(file: DebugFile, at: int, work: Work, whole: bool = True) -> tuple[Unit, Values]:
    """Open the unit at `at` of .debug_info. Returns the unit and the attributes of its first entry.
    Unless `whole`, only this entry can be read."""
    info, abbreviations = file.sections.get(".debug_info", b""), file.sections.get(".debug_abbrev", b"")
    found = head(info, at, file.order)
    code = uleb(info, found.first)[0]
    shapes = read_abbreviations(abbreviations, found.abbreviations, found.wide, found.address, work, 0 if whole else code)
    if code not in shapes:
        raise Malformed
    unit = Unit(info, found, shapes, file.order, lambda: file.progress(PHASE, 0.0))
    return unit, unit.values(Entry(found.first, 0, shapes[code], 0))


class UnitsByAddress:
    """Maps addresses of code to the units of a file."""

    def __init__(self, file: DebugFile) -> None:
        self._file = file
        ranges: list[tuple[int, int, int]] = []
        listed = self._read_ranges(ranges)
        self._read_first_entries(ranges, listed)
        ranges.sort()
        self._starts = array("Q", [low for low, _, _ in ranges])
        self._ends = array("Q", [high for _, high, _ in ranges])
        self._units = array("Q", [unit for _, _, unit in ranges])

    def at(self, address: int) -> Optional[int]:
        """Return the offset of the unit that contains the code at this address of the file."""
        last = bisect_right(self._starts, address)
        for index in range(last - 1, max(last - 1 - _LOOK_BACK, -1), -1):
            if address < self._ends[index]:
                return self._units[index]
        return None

    def _read_ranges(self, ranges: list[tuple[int, int, int]]) -> set[int]:
        """Add the ranges of .debug_aranges to `ranges`. Returns the units that the section
        lists."""
        file, known = self._file, set(self._file.units)
        data = file.sections.get(".debug_aranges", b"")
        listed: set[int] = set()
        at = sets = 0
        while at + 12 <= len(data) and len(ranges) < MAX_RANGES and sets < MAX_UNITS:
            sets += 1
            if not sets % _POLL:
                file.progress(PHASE, 0.0)
            wide = 8 if file.number(data, at, 4) == 0xFFFFFFFF else 4
            begin = at + (12 if wide == 8 else 4)
            end = begin + file.number(data, begin - wide, wide)
            unit, size = file.number(data, begin + 2, wide), file.number(data, begin + 2 + wide, 1)
            if not begin < end <= len(data) or size not in (4, 8):
                break
            first = begin + 4 + wide
            first += -(first - at) % (2 * size)
            words = _words(bytes(data[first : first + max(end - first, 0) // (2 * size) * 2 * size]), size, file.order)
            found = [(low, low + length, unit) for low, length in zip(words[::2], words[1::2]) if low and 0 < length < 1 << 48]
            if unit in known and found:
                ranges += [one for one in found if one[1] < 1 << 64]
                listed.add(unit)
            at = end
        return listed

    def _read_first_entries(self, ranges: list[tuple[int, int, int]], listed: set[int]) -> None:
        work = work_of(self._file)
        for index, at in enumerate(self._file.units):
            if not index % _POLL:
                self._file.progress(PHASE, index / len(self._file.units))
            if at in listed or len(ranges) >= MAX_RANGES:
                continue
            try:
                unit, values = open_unit(self._file, at, work, whole=False)
                found = CodeRanges(self._file, unit.head, values, work).of(values) if _has_code(values) else None
            except (Malformed, IndexError):
                continue
            ranges += [(low, high, at) for low, high in found or () if high < 1 << 64]


def _has_code(values: Values) -> bool:
    return AT_RANGES in values or AT_HIGH_PC in values


def _words(data: bytes, size: int, order: str) -> array[int]:
    words = array("Q" if size == 8 else "I", data)
    if (order == "big") != (sys.byteorder == "big"):
        words.byteswap()
    return words
