"""Read DWARF's encodings in Python, as common/native/dwarf_forms.c and dwarf_addresses.c do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Optional

from findleaks.engine.dwarf_sources import NO_KEY, OLD_TYPES, SPLIT, Source
from findleaks.engine.reference.dwarf_data import MASK as MASK
from findleaks.engine.reference.dwarf_data import Data as Data
from findleaks.engine.reference.dwarf_data import Malformed as Malformed
from findleaks.engine.reference.dwarf_pieces import address_of_pieces

MOST_CODES, MOST_ATTRIBUTES = 1 << 20, 256
STRINGS_BASE, ADDRESS_BASE, RANGES_BASE, GNU_ADDRESS_BASE, LANGUAGE, LOW_PC = 0x72, 0x73, 0x74, 0x2133, 0x13, 0x11
_C = (0, 0x01, 0x02, 0x0C, 0x1D, 0x2C, 0x3E)  # DW_LANG_...; 0: not stated
ADDR, STRING, SDATA, INDIRECT, IMPLICIT = 0x01, 0x08, 0x0D, 0x16, 0x21
_WIDE = frozenset((0x0E, 0x17, 0x1D, 0x1F, 0x1F20, 0x1F21))
_SIZES = {0x05: 2, 0x06: 4, 0x07: 8, 0x0B: 1, 0x0C: 1, 0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8, 0x19: 0, 0x1C: 4, 0x1E: 16, 0x20: 8, 0x21: 0}
_SIZES.update({0x24: 8, 0x25: 1, 0x26: 2, 0x27: 3, 0x28: 4, 0x29: 1, 0x2A: 2, 0x2B: 3, 0x2C: 4})
_LEB = frozenset((0x0F, 0x15, 0x1A, 0x1B, 0x22, 0x23, 0x1F01, 0x1F02))
_BLOCKS = {0x03: 2, 0x04: 4, 0x0A: 1}
_UNREAD = frozenset((0x05, 0x0A, 0x0B, 0x18, 0x28, 0x32, 0x25, 0x3A, 0x08, 0x49, 0x410A))  # tags
_CLASSES = {0x17: "section", 0x20: "signature", ADDR: "address", 0x22: "list", 0x23: "list"}
_CLASSES.update(dict.fromkeys((0x29, 0x2A, 0x2B, 0x2C, 0x1B, 0x1F01), "index"))


class LimitExceeded(Exception):
    """Reading the files would take more work than intact files of their size need."""


class Value(NamedTuple):
    """The value of an attribute. `kind`: "number", "key", "signature", "text", "block", "address",
    "index" (into .debug_addr), "section" (an offset), "list" (an index); "": none."""

    kind: str
    number: int = 0
    data: bytes = b""


NOTHING = Value("")
Values = Mapping[int, Value]


def number_in(values: Values, name: int) -> int:
    """Return an attribute's number; 0 if it is missing, or something else."""
    value = values.get(name, NOTHING)
    return value.number if value.kind in ("number", "section") else 0


class Shape(NamedTuple):
    """An abbreviation: tag, whether entries have children, and (name, form, size, constant) of
    each attribute."""

    tag: int
    children: bool
    attributes: list[tuple[int, int, int, int]]


class Budget:
    """The amount of work that is left; see `budget` in dwarf.h."""

    def __init__(self) -> None:
        self.left = 0


class Sections:
    """The sections of a source."""

    def __init__(self, source: Source, order: str) -> None:
        self.source = source
        names = source._fields[:9]
        self.info, self.abbreviations, self.strings, self.line_strings, self.string_offsets, *rest = (
            Data(getattr(source, name), order) for name in names
        )
        self.addresses, self.ranges, self.range_lists, self.other_strings = rest


class Unit:
    """A unit of .debug_info or .debug_types. Malformed if the header at `at` is not valid."""

    def __init__(self, sections: Sections, at: int) -> None:
        self.sections, self.start, self.kind, self.wide = sections, at, 1, 4
        source, info = sections.source, sections.info
        size = len(info.data)
        if at > size or size - at < 12:
            raise Malformed
        begin, length = at + 4, info.number(at, 4)
        if length == 0xFFFFFFFF:
            self.wide, begin, length = 8, at + 12, info.number(at + 4, 8)
        if length > size - begin or length < 7 + self.wide:
            raise Malformed
        self.end, self.version = begin + length, info.number(begin, 2)
        if not 2 <= self.version <= 5:
            raise Malformed
        new = self.version >= 5
        self.kind = info.data[begin + 2] if new else 1
        self.address = info.data[begin + 3 if new else begin + 2 + self.wide]
        self.abbreviations = info.number(begin + (4 if new else 2), self.wide)
        self.first = begin + (4 if new else 3) + self.wide
        types = bool(source.flags & OLD_TYPES) or self.kind in (2, 6)
        more = 8 + self.wide if types else 8 if self.kind in (4, 5) else 0
        if self.address not in (4, 8) or self.end - self.first < more:
            raise Malformed
        self.signature = self.type = 0
        if types:
            self.signature, self.type, self.kind = info.number(self.first, 8), info.number(self.first + 8, self.wide), 2
        self.first += more
        split = bool(source.flags & SPLIT)
        self.address_base = source.address_base if split else 8 if new else 0
        self.ranges_base = (20 if self.wide == 8 else 12) if new else source.ranges_base if split else 0
        self.strings_base = (16 if self.wide == 8 else 8) if new else 0
        self.low_pc, self.is_c = source.low_pc, False
        self.highest = (1 << 8 * self.address) - 1

    def read_shapes(self, budget: Budget) -> dict[int, Shape]:
        """Return the unit's abbreviations."""
        data = self.sections.abbreviations
        at, end = self.abbreviations, len(data.data)
        found: dict[int, Shape] = {}
        begin = at
        if at >= end:
            raise Malformed
        try:
            while True:
                code, at = data.uleb(at, end)
                if not code:
                    return found
                tag, at = data.uleb(at, end)
                if at == end:
                    raise Malformed
                shape = Shape(tag if tag <= 0xFFFFFFFF else 0, data.data[at] != 0, [])
                at = self._read_attributes(shape, at + 1, end)
                if code >= MOST_CODES:
                    raise Malformed
                found[code] = shape
                if at - begin > budget.left:
                    raise Malformed
        finally:
            budget.left -= min(at - begin, budget.left)

    def _read_attributes(self, shape: Shape, at: int, end: int) -> int:
        data = self.sections.abbreviations
        while True:
            name, at = data.uleb(at, end)
            form, at = data.uleb(at, end)
            constant = 0
            if form == IMPLICIT:
                constant, at = data.sleb(at, end)
            if not name and not form:
                return at
            if len(shape.attributes) == MOST_ATTRIBUTES or form > 0xFFFF:
                raise Malformed
            name = ADDRESS_BASE if name == GNU_ADDRESS_BASE else name
            shape.attributes.append((name, form, self._size(form), constant))

    def _size(self, form: int) -> int:
        if form == ADDR or (form == 0x10 and self.version == 2):
            return self.address
        return self.wide if form in _WIDE or form == 0x10 else _SIZES.get(form, -1)

    def read_entry(self, shape: Shape, at: int, every: bool = False) -> tuple[int, dict[int, Value]]:
        """Return the end of an entry's attributes, and their values by name. Without `every`, the
        values of entries that have nothing to do with types are not returned."""
        sizes = [size for _, _, size, _ in shape.attributes]
        if shape.tag in _UNREAD and -1 not in sizes and not every:
            if at + sum(sizes) > self.end:
                raise Malformed
            return at + sum(sizes), {}
        values = {}
        for name, form, size, constant in shape.attributes:
            values[name], at = self._read_value(form, size, constant, at)
        return at, values

    def _read_value(self, form: int, size: int, constant: int, at: int) -> tuple[Value, int]:
        info, end = self.sections.info, self.end
        if form == INDIRECT:
            form, at = info.uleb(at, end)
            if form in (INDIRECT, IMPLICIT):
                raise Malformed
            size = self._size(form)
        if size >= 0:
            if end - at < size:
                raise Malformed
            if form in (IMPLICIT, 0x19):
                return Value("number", constant if form == IMPLICIT else 1), at
            return (self._read_sized(form, info.number(at, size)) if size <= 8 else NOTHING), at + size
        if form == STRING:
            text = info.text(at, end)
            if text is None:
                raise Malformed
            return Value("text", 0, text), at + len(text) + 1
        if form == SDATA:
            number, at = info.sleb(at, end)
            return Value("number", number), at
        if form in _LEB:
            number, at = info.uleb(at, end)
            return self._read_sized(form, number), at
        if form in _BLOCKS:
            size = _BLOCKS[form]
            if end - at < size:
                raise Malformed
            length, at = info.number(at, size), at + size
        elif form in (0x09, 0x18):
            length, at = info.uleb(at, end)
        else:
            raise Malformed
        if length > end - at:
            raise Malformed
        return Value("block", 0, bytes(info.data[at : at + length])), at + length

    def _read_sized(self, form: int, number: int) -> Value:
        sections, source = self.sections, self.sections.source
        texts = {0x0E: sections.strings, 0x1F: sections.line_strings, 0x1D: sections.other_strings, 0x1F21: sections.other_strings}
        if form in texts:
            return _text(texts[form], number)
        if form in (0x25, 0x26, 0x27, 0x28, 0x1A, 0x1F02):
            offsets, at = sections.string_offsets, self.strings_base + number * self.wide
            inside = number < len(offsets.data) // self.wide and at + self.wide <= len(offsets.data)
            return _text(sections.strings, offsets.number(at, self.wide)) if inside else NOTHING
        if form in (0x11, 0x12, 0x13, 0x14, 0x15):
            return Value("key", source.key + self.start + number if number < self.end - self.start else NO_KEY)
        if form == 0x10:
            return Value("key", source.references + number if number < 1 << 48 else NO_KEY)
        if form in (0x1C, 0x24, 0x1F20):
            return Value("key", source.others + number if number < 1 << 48 and source.others != NO_KEY else NO_KEY)
        return Value(_CLASSES.get(form, "number"), number)

    def begin(self, values: Values) -> None:
        """Read the values of the first entry on which the other entries depend."""

        if values.get(STRINGS_BASE, NOTHING).kind:
            self.strings_base = number_in(values, STRINGS_BASE)
        if values.get(ADDRESS_BASE, NOTHING).kind:
            self.address_base = number_in(values, ADDRESS_BASE)
        if values.get(RANGES_BASE, NOTHING).kind and self.version >= 5:
            self.ranges_base = number_in(values, RANGES_BASE)
        self.is_c = number_in(values, LANGUAGE) in _C
        low = self.address_of(values.get(LOW_PC, NOTHING))
        self.low_pc = self.low_pc if low is None else low

    def address_of(self, value: Value) -> Optional[int]:
        """Return the address that an attribute gives."""
        if value.kind == "index":
            return self._read_indexed(value.number)
        return value.number if value.kind == "address" else None

    def _read_indexed(self, index: int) -> Optional[int]:
        table = self.sections.addresses
        at = self.address_base + index * self.address
        return table.number(at, self.address) if at + self.address <= len(table.data) else None

    def location_of(self, value: Value) -> Optional[tuple[int, bool, int]]:
        """Return the location of a variable: its address and False, or for a thread-local variable,
        its offset and True; then the most bytes that its type may have, 0 for any number."""
        if value.kind != "block" or not value.data:
            return None
        whole = self._location_of_whole(value)
        if whole is not None:
            return *whole, 0
        block = Data(value.data, self.sections.info.order)
        address, most = address_of_pieces(block, self.address, self._read_indexed) or (0, 0)
        return (address, False, most) if self._is_location(address) else None

    def _is_location(self, address: int) -> bool:
        """Whether an address is valid. Code and data that linkers dropped have the address 0, or
        nearly the highest one."""
        return 0 < address < self.highest - 1

    def _location_of_whole(self, value: Value) -> Optional[tuple[int, bool]]:
        block, operation, at = Data(value.data, self.sections.info.order), value.data[0], 1
        end, size = len(block.data), {0x03: self.address, 0x0C: 4, 0x0E: 8}.get(operation, 0)
        address: Optional[int] = None
        if size and end - at >= size:
            address, at = block.number(at, size), at + size
        elif operation in (0xA1, 0xA2, 0xFB, 0xFC):
            try:
                index, at = block.uleb(at, end)
            except Malformed:
                return None
            address = self._read_indexed(index)
        if address is None:
            return None
        if bytes(block.data[at:]) in (b"\x9b", b"\xe0"):
            return address, True
        plain = operation in (0x03, 0xA1, 0xFB)
        return (address, False) if at == end and plain and self._is_location(address) else None

    def code_of(self, values: Values, budget: Budget) -> Iterator[tuple[int, int]]:
        """Yield the ranges of a function's code."""
        ranges, high = values.get(0x55, NOTHING), values.get(0x12, NOTHING)
        found: Iterator[tuple[int, int]] = iter(())
        if ranges.kind in ("number", "section", "list"):
            found = self._list(ranges, budget) if self.version >= 5 else self._pairs(ranges.number, budget)
        elif high.kind:
            low = self.address_of(values.get(0x11, NOTHING))
            end = self.address_of(high)
            if low is not None and high.kind in ("number", "section"):
                end = low + high.number
            found = iter([(low, end)] if low is not None and end is not None else [])
        for start, end in found:
            start, end = start & self.highest, end & self.highest
            if 0 < start < end:
                yield start, end

    def _pairs(self, offset: int, budget: Budget) -> Iterator[tuple[int, int]]:
        data, base, at, size = self.sections.ranges, self.low_pc, (self.ranges_base + offset) & MASK, self.address
        while at + 2 * size <= len(data.data) and budget.left:
            budget.left -= 1
            low, high = data.number(at, size), data.number(at + size, size)
            at += 2 * size
            if not low and not high:
                return
            if low == self.highest:
                base = high
            elif low < high:
                yield base + low, base + high

    def _list(self, value: Value, budget: Budget) -> Iterator[tuple[int, int]]:
        data, base, at, size = self.sections.range_lists, self.low_pc, value.number, self.address
        end = len(data.data)
        if value.kind == "list":
            place = self.ranges_base + at * self.wide
            if place + self.wide > end:
                return
            at = (self.ranges_base + data.number(place, self.wide)) & MASK
        while at < end and budget.left:
            budget.left -= 1
            kind, at = data.data[at], at + 1
            first: Optional[int]
            second: Optional[int] = 0
            try:
                if 1 <= kind <= 4:
                    first, at = data.uleb(at, end)
                    first = first if kind == 4 else self._read_indexed(first)
                elif 5 <= kind <= 7:
                    first, at = data.number(at, size), at + size
                else:
                    return
                if kind in (2, 3, 4, 7) and first is not None and at <= end:
                    second, at = data.uleb(at, end)
                    second = self._read_indexed(second) if kind == 2 else second
                elif kind == 6:
                    second, at = data.number(at, size), at + size
            except Malformed:
                return
            if first is None or second is None or at > end:
                return
            if kind in (1, 5):
                base = first
            elif kind == 4:
                yield base + first, base + second
            else:
                yield first, second if kind in (2, 6) else first + second


def _text(section: Data, offset: int) -> Value:
    end = len(section.data)
    if offset >= end:
        return NOTHING
    found = section.text(offset, end)
    return Value("text", 0, bytes(section.data[offset:end]) if found is None else found)
