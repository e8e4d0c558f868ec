"""Debug information, as little of it as names the member of a structure: the type of a variable, its members, what they point to.

Nothing is indexed. A variable's entry is found by searching .debug_info for its address (DW_OP_addr and the address, as compilers write
it), and only the unit that holds it is looked through. So this is quick in programs of any size, but does not see variables whose location
is kept elsewhere: split DWARF (.dwo), dwz's supplementary files.
Sources: DWARF 4 and 5 (dwarfstd.org), sections 7.5.4 to 7.5.6 (units, abbreviations, forms), 5 (types), 2.6 (locations).
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import Literal, NamedTuple, Optional

from findleaks.target import elf

ARRAY, CLASS, MEMBER, POINTER, REFERENCE, STRUCTURE, TYPEDEF, UNION = 0x01, 0x02, 0x0D, 0x0F, 0x10, 0x13, 0x16, 0x17
INHERITANCE, SUBRANGE, CONST, VARIABLE, VOLATILE, RESTRICT, NAMESPACE, ATOMIC = 0x1C, 0x21, 0x26, 0x34, 0x35, 0x37, 0x39, 0x47
AT_SIBLING, AT_LOCATION, AT_NAME, AT_SIZE, AT_UPPER, AT_COUNT, AT_MEMBER, AT_DECLARATION = 0x01, 0x02, 0x03, 0x0B, 0x2F, 0x37, 0x38, 0x3C
AT_SPECIFICATION, AT_TYPE, AT_ORIGIN, AT_OFFSETS_BASE, AT_ADDR_BASE, AT_EXTERNAL = 0x47, 0x49, 0x31, 0x72, 0x73, 0x3F
OP_ADDR, OP_ADDRX = 0x03, 0xA1

_FIXED = {0x0B: 1, 0x05: 2, 0x06: 4, 0x07: 8, 0x0C: 1, 0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8, 0x20: 8}  # data, flag, ref1 to ref8, ref_sig8
_FIXED.update({0x1E: 16, 0x1D: 4, 0x24: 8, 0x25: 1, 0x26: 2, 0x27: 3, 0x28: 4, 0x29: 1, 0x2A: 2, 0x2B: 3, 0x2C: 4})  # strx…, addrx…
_OFFSETS = (0x0E, 0x17, 0x1F, 0x1C, 0x1F20, 0x1F21, 0x10)  # strp, sec_offset, line_strp, strp_sup, GNU_ref_alt, GNU_strp_alt, ref_addr
_ULEB = (0x0F, 0x15, 0x1A, 0x1B, 0x22, 0x23)  # udata, ref_udata, strx, addrx, loclistx, rnglistx
_REFERENCES = (0x11, 0x12, 0x13, 0x14, 0x15)

MOST_UNIT = 1 << 24
"""Bytes of a unit that are looked through: 1 s or so."""

MOST_ENTRIES = 1 << 18
MOST_CHILDREN = 1 << 14
MOST_SECTION = 1 << 29
"""Bytes of a section that are read: beyond that nothing is named."""

DEEPEST = 16
TRIES = 4


class Malformed(Exception):
    """What stands there is no debug information."""


class Entry(NamedTuple):
    """A debugging information entry: where it begins and where what follows its attributes does; attributes by number."""

    offset: int
    end: int
    tag: int
    children: bool
    attributes: dict[int, tuple[int, int | bytes]]  # form, value


class Unit:
    """A compilation unit: [start, end) of .debug_info, entries from `first`."""

    def __init__(self, dwarf: Dwarf, start: int) -> None:
        info = dwarf.info
        self.dwarf, self.start = dwarf, start
        length, at, self.wide = dwarf.word(start, 4), start + 4, 4
        if length == 0xFFFFFFFF:
            length, at, self.wide = dwarf.word(start + 4, 8), start + 12, 8
        self.end = at + length
        if not at < self.end <= len(info):
            raise Malformed
        self.version = dwarf.word(at, 2)
        if self.version >= 5:
            kind, self.address, table = info[at + 2], info[at + 3], dwarf.word(at + 4, self.wide)
            self.first = at + 4 + self.wide + {1: 0, 3: 0, 4: 8, 5: 8}.get(kind, 8 + self.wide)
        else:
            table, self.address, self.first = dwarf.word(at + 2, self.wide), info[at + 2 + self.wide], at + 3 + self.wide
        self._table = table

    @cached_property
    def abbreviations(self) -> dict[int, tuple[int, bool, list[tuple[int, int, int]]]]:
        """Code -> tag, whether children follow, (attribute, form, implicit constant)."""
        data, at = self.dwarf.abbrev, self._table
        found: dict[int, tuple[int, bool, list[tuple[int, int, int]]]] = {}
        while len(found) < MOST_ENTRIES:
            code, at = uleb(data, at)
            if not code:
                return found
            tag, at = uleb(data, at)
            children = bool(data[at])
            at += 1
            rows = []
            while True:
                name, at = uleb(data, at)
                form, at = uleb(data, at)
                constant = 0
                if form == 0x21:
                    constant, at = sleb(data, at)
                if not name and not form:
                    break
                rows.append((name, form, constant))
            found[code] = tag, children, rows
        raise Malformed

    def entry(self, offset: int) -> Optional[Entry]:
        """The entry at `offset`; None for the end of siblings."""
        info = self.dwarf.info
        code, at = uleb(info, offset)
        if not code:
            return Entry(offset, at, 0, False, {})
        if code not in self.abbreviations:
            raise Malformed
        tag, children, rows = self.abbreviations[code]
        attributes: dict[int, tuple[int, int | bytes]] = {}
        for name, form, constant in rows:
            if form == 0x16:  # indirect
                form, at = uleb(info, at)
            value, at = self._value(form, at, constant)
            attributes[name] = form, value
        if at > self.end:
            raise Malformed
        return Entry(offset, at, tag, children, attributes)

    def _value(self, form: int, at: int, constant: int) -> tuple[int | bytes, int]:
        info, word = self.dwarf.info, self.dwarf.word
        size = _FIXED.get(form, 0) or (self.wide if form in _OFFSETS else self.address if form == 0x01 else 0)
        if size:
            return word(at, size), at + size
        if form in _ULEB:
            return uleb(info, at)
        if form == 0x0D:
            return sleb(info, at)
        if form in (0x19, 0x21):  # flag_present, implicit_const
            return constant if form == 0x21 else 1, at
        if form == 0x08:
            end = info.find(b"\0", at)
            return bytes(info[at:end]), end + 1
        if form in (0x09, 0x18):
            length, at = uleb(info, at)
        elif form in (0x0A, 0x03, 0x04):
            size = {0x0A: 1, 0x03: 2, 0x04: 4}[form]
            length, at = word(at, size), at + size
        else:
            raise Malformed
        if at + length > len(info):
            raise Malformed
        return bytes(info[at : at + length]), at + length

    def children(self, parent: Entry) -> Iterator[Entry]:
        """The entries directly below `parent`."""
        at, depth = parent.end, 0
        if not parent.children:
            return
        for _ in range(MOST_CHILDREN):
            entry = self.entry(at)
            if entry is None or not at < self.end:
                return
            at = entry.end
            if not entry.tag:
                depth -= 1
                if depth < 0:
                    return
                continue
            if depth == 0:
                yield entry
            if entry.children:
                sibling = self.reference(entry, AT_SIBLING)
                if sibling is not None and sibling > at:
                    at = sibling
                else:
                    depth += 1

    def holding(self, where: int) -> Optional[Entry]:
        """The entry among whose attributes the byte at `where` stands."""
        at = self.first
        for _ in range(MOST_ENTRIES):
            if at > where:
                return None
            entry = self.entry(at)
            if entry is None:
                return None
            if entry.offset <= where < entry.end:
                return entry
            sibling = self.reference(entry, AT_SIBLING)
            at = sibling if sibling is not None and entry.end < sibling <= where else entry.end
        return None

    def reference(self, entry: Entry, attribute: int) -> Optional[int]:
        """The offset of the entry that an attribute names, in this unit or (ref_addr) another."""
        form, value = entry.attributes.get(attribute, (0, 0))
        if not isinstance(value, int) or not form:
            return None
        return self.start + value if form in _REFERENCES else value if form == 0x10 else None

    def number(self, entry: Entry, attribute: int) -> Optional[int]:
        value = entry.attributes.get(attribute, (0, b""))[1]
        return value if isinstance(value, int) else None

    def name(self, entry: Entry) -> str:
        form, value = entry.attributes.get(AT_NAME, (0, b""))
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if form == 0x0E:
            return elf.text(self.dwarf.strings, value)
        if form == 0x1F:
            return elf.text(self.dwarf.line_strings, value)
        if form in (0x1A, 0x25, 0x26, 0x27, 0x28):
            top = self.entry(self.first)
            base = self.number(top, AT_OFFSETS_BASE) if top is not None else None
            at = (base if base is not None else 2 * self.wide) + value * self.wide
            table = self.dwarf.string_offsets
            return elf.text(self.dwarf.strings, int.from_bytes(table[at : at + self.wide], self.dwarf.order)) if at < len(table) else ""
        return ""


class Dwarf:
    """The debug information of one file. Nothing raises: damaged information names nothing."""

    def __init__(self, data: elf.Buffer) -> None:
        head = elf.header(data)
        self.order: Literal["little", "big"] = "little" if head.byteorder == "little" else "big"
        self._sections = {s.name: _section(data, s, head) for s in elf.sections(data, head) if s.name.startswith(".debug_")}
        self.info, self.abbrev = self._get("info"), self._get("abbrev")
        self.word_size = head.bits // 8

    def _get(self, name: str) -> bytes:
        return self._sections.get(f".debug_{name}", b"")

    @property
    def strings(self) -> bytes:
        return self._get("str")

    @property
    def line_strings(self) -> bytes:
        return self._get("line_str")

    @property
    def string_offsets(self) -> bytes:
        return self._get("str_offsets")

    def word(self, at: int, size: int) -> int:
        if at + size > len(self.info):
            raise Malformed
        return int.from_bytes(self.info[at : at + size], self.order)

    @cached_property
    def _starts(self) -> list[int]:
        """Where units begin."""
        found, at = [], 0
        try:
            while at < len(self.info):
                unit = Unit(self, at)
                found.append(at)
                at = unit.end
        except (Malformed, IndexError):
            pass
        return found

    @cached_property
    def _units(self) -> dict[int, Unit]:
        return {}

    def unit(self, offset: int) -> Optional[Unit]:
        """The unit that the byte at `offset` belongs to, unless it is too long."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            return None
        start = self._starts[index]
        if start not in self._units:
            self._units[start] = Unit(self, start)
        unit = self._units[start]
        return unit if offset < unit.end and unit.end - unit.start <= MOST_UNIT else None

    def variable(self, address: int) -> Optional[tuple[Unit, Entry]]:
        """The entry of the variable at this address (of the file)."""
        try:
            packed = address.to_bytes(self.word_size, self.order)
            return self._by_location(bytes([1 + self.word_size, OP_ADDR]) + packed) or self._by_index(packed)
        except (Malformed, IndexError, OverflowError):
            return None

    def _by_location(self, wanted: bytes, low: int = 0, high: int = -1) -> Optional[tuple[Unit, Entry]]:
        at = self.info.find(wanted, low, high if high >= 0 else len(self.info))
        for _ in range(TRIES):
            unit = self.unit(at) if at >= 0 else None
            if unit is None:
                return None
            entry = unit.holding(at)
            if entry is not None and entry.tag == VARIABLE and entry.attributes.get(AT_LOCATION, (0, b""))[1] == wanted[1:]:
                return unit, entry
            at = self.info.find(wanted, at + 1, high if high >= 0 else len(self.info))
        return None

    def _by_index(self, packed: bytes) -> Optional[tuple[Unit, Entry]]:
        """Clang's way since DWARF 5: the location has the number of an address in .debug_addr, which units have parts of."""
        table = self._get("addr")
        at = table.find(packed)
        if at < 0:
            return None
        bases = []
        for start in self._starts:
            unit = self.unit(start)
            top = unit.entry(unit.first) if unit is not None and unit.version >= 5 else None
            base = unit.number(top, AT_ADDR_BASE) if unit is not None and top is not None else None
            if unit is not None and base is not None and base <= at:
                bases.append((base, unit))
        if not bases:
            return None
        base, unit = max(bases, key=lambda item: item[0])
        coded = _coded((at - base) // self.word_size)
        return self._by_location(bytes([1 + len(coded), OP_ADDRX]) + coded, unit.first, unit.end)


def uleb(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned LEB128 number and where what follows it begins."""
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
    raise Malformed


def sleb(data: bytes, at: int) -> tuple[int, int]:
    """A signed one."""
    value, end = uleb(data, at)
    bits = 7 * (end - at)
    return (value - (1 << bits) if value >> (bits - 1) else value), end


def _coded(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _section(data: elf.Buffer, section: elf.Section, head: elf.Header) -> bytes:
    """A section's bytes, inflated where it is compressed (gABI, Elf64_Chdr: type 1 is zlib); b"" where they are not to be had."""
    if section.type == elf.SHT_NOBITS or section.size > MOST_SECTION:
        return b""
    raw = bytes(data[section.offset : section.offset + section.size])
    if not section.flags & 0x800:
        return raw
    form = head.prefix + ("IIQQ" if head.bits == 64 else "III")
    try:
        kind, *_ = struct.unpack_from(form, raw)
        return zlib.decompressobj().decompress(raw[struct.calcsize(form) :], MOST_SECTION) if kind == 1 else b""
    except (struct.error, zlib.error):
        return b""
