"""Scan the entries of a unit: tags and offsets, and a few attributes of entries with code.

pyelftools creates an object for each entry and attribute, which takes about 50 µs per entry. To
find the functions at an address in a unit of C++, 100,000 entries must be passed. In this module,
an entry whose attributes have fixed sizes takes one addition. The entries that are found are then
read with pyelftools (dwarf.py).
Sources: DWARF 5, 7.5.1 (unit headers), 7.5.3 (abbreviations), 7.5.6 (forms), 7.27; GNU extensions:
binutils, include/dwarf2.def."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Optional

from findleaks.target import elf

UT_TYPE, UT_SKELETON, UT_SPLIT_COMPILE, UT_SPLIT_TYPE = 2, 4, 5, 6

TAG_LEXICAL_BLOCK, TAG_COMPILE_UNIT, TAG_INLINED, TAG_TRY, TAG_CATCH = 0x0B, 0x11, 0x1D, 0x32, 0x25
TAG_SUBPROGRAM, TAG_SKELETON_UNIT = 0x2E, 0x4A
AT_SIBLING, AT_LOW_PC, AT_HIGH_PC, AT_RANGES = 0x01, 0x11, 0x12, 0x55
AT_CALL_FILE, AT_CALL_LINE, AT_ADDR_BASE, AT_RNGLISTS_BASE, AT_GNU_ADDR_BASE = 0x58, 0x59, 0x73, 0x74, 0x2133

ADDRX = frozenset((0x1B, 0x29, 0x2A, 0x2B, 0x2C, 0x1F01))  # indices into .debug_addr
FORM_ADDR, FORM_RNGLISTX, FORM_INDIRECT, FORM_IMPLICIT = 0x01, 0x23, 0x16, 0x21
_REFERENCES = frozenset((0x11, 0x12, 0x13, 0x14, 0x15))  # within the unit

_OFFSET, _ADDRESS = -2, -3
# Bytes of each form of fixed size. A negative value stands for a size that depends on the unit:
# that of an offset or of an address.
_FIXED = {
    0x01: _ADDRESS,
    0x0B: 1,
    0x05: 2,
    0x06: 4,
    0x07: 8,
    0x1E: 16,
    0x0C: 1,
    0x0E: _OFFSET,
    0x17: _OFFSET,
    0x10: _OFFSET,
    0x11: 1,
    0x12: 2,
    0x13: 4,
}
_FIXED.update({0x14: 8, 0x19: 0, 0x1C: 4, 0x1D: _OFFSET, 0x1F: _OFFSET, 0x20: 8, 0x21: 0, 0x24: 8, 0x25: 1, 0x26: 2, 0x27: 3, 0x28: 4})
_FIXED.update({0x29: 1, 0x2A: 2, 0x2B: 3, 0x2C: 4, 0x1F20: _OFFSET, 0x1F21: _OFFSET})
_LEB = frozenset((0x0F, 0x15, 0x1A, 0x1B, 0x22, 0x23, 0x1F01, 0x1F02))  # ULEB128
_SDATA, _STRING = 0x0D, 0x08
_BLOCKS = {0x0A: 1, 0x03: 2, 0x04: 4, 0x09: 0, 0x18: 0}  # bytes of the length field; 0: ULEB128

MAX_DECLARED = 1 << 16  # maximum number of abbreviations of a table; real ones have a few hundred
MAX_ATTRIBUTES = 256  # maximum number of attributes of an abbreviation; real ones have 20
_BETWEEN_POLLS = 1 << 12  # units of work between two polls for an interrupt: about 10 ms


class Malformed(Exception):
    """Raised for data that are not DWARF, are of a later version, or exceed a limit."""


class Work:
    """Limits the work. A unit of work, such as an entry of a list that is read, takes about a
    microsecond. The limit is needed because in damaged files, many entries may refer to one endless
    list. `poll` raises if the user asked to stop."""

    def __init__(self, most: int, poll: Callable[[], None]) -> None:
        self._left, self._poll = most, poll

    def spend(self) -> None:
        """Count a unit of work. Raises Malformed if the limit is exceeded."""
        self._left -= 1
        if self._left < 0:
            raise Malformed
        if not self._left % _BETWEEN_POLLS:
            self._poll()


class Attribute(NamedTuple):
    name: int
    form: int
    constant: int  # value of DW_FORM_implicit_const


class Shape(NamedTuple):
    """An abbreviation. `size`: bytes of all attributes; -1 if this varies."""

    tag: int
    children: bool
    attributes: tuple[Attribute, ...]
    size: int


class Head(NamedTuple):
    """The header of a unit. The offsets of the unit, of its first entry and of its end are in
    .debug_info."""

    offset: int
    first: int
    end: int
    version: int
    kind: int
    wide: int  # bytes of an offset: 4 or 8
    address: int  # bytes of an address
    abbreviations: int  # offset in .debug_abbrev


Values = Mapping[int, tuple[int, int]]
"""The numeric attributes of an entry: name -> (form, value)."""


class Entry(NamedTuple):
    """An entry: the offset of its start, the offset of the end of its attributes, and its
    abbreviation."""

    offset: int
    after: int
    shape: Shape
    depth: int


def head(data: elf.Buffer, at: int, order: str) -> Head:
    """Parse the header of the unit at `at` of .debug_info."""
    number = _numbers(data, order)
    wide = 8 if number(at, 4) == 0xFFFFFFFF else 4
    begin = at + (12 if wide == 8 else 4)
    end = begin + number(begin - wide, wide)
    version = number(begin, 2)
    if version < 5:
        return Head(at, begin + 3 + wide, end, version, 1, wide, number(begin + 2 + wide, 1), number(begin + 2, wide))
    kind = number(begin + 2, 1)
    more = {UT_TYPE: 8 + wide, UT_SPLIT_TYPE: 8 + wide, UT_SKELETON: 8, UT_SPLIT_COMPILE: 8}.get(kind, 0)
    return Head(at, begin + 4 + wide + more, end, version, kind, wide, number(begin + 3, 1), number(begin + 4, wide))


def _numbers(data: elf.Buffer, order: str) -> Callable[[int, int], int]:
    little = "little" if order == "little" else "big"
    return lambda at, size: int.from_bytes(data[at : at + size], little)  # type: ignore[arg-type]


def uleb(data: elf.Buffer, at: int) -> tuple[int, int]:
    """Decode an unsigned LEB128 number. Returns the number and the offset of its end. Raises
    IndexError at the end of `data`."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift > 140:
            raise Malformed
    return value, at + 1


def sleb(data: elf.Buffer, at: int) -> tuple[int, int]:
    """Decode a signed LEB128 number. Returns the number and the offset of its end."""
    value, end = uleb(data, at)
    bits = 7 * (end - at)
    return (value - (1 << bits) if data[end - 1] & 0x40 else value), end


def read_abbreviations(data: elf.Buffer, at: int, wide: int, address: int, work: Work, only: int = 0) -> dict[int, Shape]:
    """Parse the abbreviations at `at` of .debug_abbrev. The key is the code of an abbreviation.
    With `only`, stop at this code."""
    found: dict[int, Shape] = {}
    while len(found) < MAX_DECLARED:
        code, at = uleb(data, at)
        if not code:
            break
        tag, at = uleb(data, at)
        children = bool(data[at])
        at += 1
        attributes: list[Attribute] = []
        while True:
            name, at = uleb(data, at)
            form, at = uleb(data, at)
            constant = 0
            if form == FORM_IMPLICIT:
                constant, at = sleb(data, at)
            if not name and not form:
                break
            attributes.append(Attribute(name, form, constant))
            work.spend()
            if len(attributes) > MAX_ATTRIBUTES:
                raise Malformed
        sizes = [_size(one.form, wide, address) for one in attributes]
        found[code] = Shape(tag, children, tuple(attributes), -1 if -1 in sizes else sum(sizes))
        if code == only:
            break
    return found


def _size(form: int, wide: int, address: int) -> int:
    size = _FIXED.get(form, -1)
    return wide if size == _OFFSET else address if size == _ADDRESS else size


class Unit:
    """One unit of .debug_info."""

    def __init__(self, info: elf.Buffer, found: Head, shapes: Mapping[int, Shape], order: str, poll: Callable[[], None]) -> None:
        self.info, self.head, self._shapes, self._poll = info, found, shapes, poll
        self._number = _numbers(info, order)

    def entries(self, at: int, past: Callable[[Entry], Optional[int]]) -> Iterator[Entry]:
        """Yield the entries from `at` on, to the end of the siblings there.
        `past` may return the offset at which to continue after an entry's children. If it returns
        None, the children are visited. Damaged data raise Malformed or IndexError."""
        info, shapes, end, depth, passed = self.info, self._shapes, self.head.end, 0, 0
        while at < end:
            passed += 1
            if not passed & 0xFFF:
                self._poll()
            offset = at
            code = info[at]
            if code < 0x80:
                at += 1
            else:
                code, at = uleb(info, at)
            if not code:
                depth -= 1
                if depth < 0:
                    return
                continue
            shape = shapes.get(code)
            if shape is None:
                raise Malformed
            after = at + shape.size if shape.size >= 0 else self._after(shape, at)
            entry = Entry(offset, after, shape, depth)
            yield entry
            if shape.children:
                further = past(entry)
                if further is not None and after < further <= end:
                    at = further
                    continue
                depth += 1
            at = after

    def values(self, entry: Entry) -> dict[int, tuple[int, int]]:
        """Return the numeric attributes of an entry."""
        found: dict[int, tuple[int, int]] = {}
        at = uleb(self.info, entry.offset)[1]
        for name, form, constant in entry.shape.attributes:
            if form == FORM_INDIRECT:
                form, at = uleb(self.info, at)
            begin = at
            size = _size(form, self.head.wide, self.head.address)
            if form == FORM_IMPLICIT:
                found[name] = form, constant
            elif size >= 0:
                at += size
                found[name] = form, self._number(begin, size)
            elif form in _LEB:
                value, at = uleb(self.info, at)
                found[name] = form, value
            elif form == _SDATA:
                value, at = sleb(self.info, at)
                found[name] = form, value
            else:
                at = self._past(form, at)
        return found

    def sibling(self, entry: Entry) -> Optional[int]:
        """Return the offset of an entry's next sibling, if the entry states it."""
        if all(one.name != AT_SIBLING for one in entry.shape.attributes):
            return None
        form, value = self.values(entry).get(AT_SIBLING, (0, 0))
        return self.head.offset + value if form in _REFERENCES else None

    def ancestors(self, offset: int) -> list[int]:
        """Return the offsets of the entries that enclose the one at `offset`, outermost first."""
        path: list[int] = []

        def past(entry: Entry) -> Optional[int]:
            further = self.sibling(entry)
            return further if further is not None and further <= offset else None

        for entry in self.entries(self.head.first, past):
            del path[entry.depth :]
            if entry.offset >= offset:
                return path if entry.offset == offset else []
            path.append(entry.offset)
        return []

    def _after(self, shape: Shape, at: int) -> int:
        wide, address = self.head.wide, self.head.address
        for one in shape.attributes:
            size = _size(one.form, wide, address)
            at = at + size if size >= 0 else self._past(one.form, at)
        return at

    def _past(self, form: int, at: int) -> int:
        """Return the end of an attribute whose form has no fixed size."""
        info = self.info
        if form in _LEB or form == _SDATA:
            while info[at] >= 0x80:
                at += 1
            return at + 1
        if form == _STRING:
            return _zero(info, at) + 1
        if form in _BLOCKS:
            wide = _BLOCKS[form]
            size, at = (self._number(at, wide), at + wide) if wide else uleb(info, at)
            return at + size
        if form == FORM_INDIRECT:
            form, at = uleb(info, at)
            size = _size(form, self.head.wide, self.head.address)
            if form not in (FORM_INDIRECT, FORM_IMPLICIT):
                return at + size if size >= 0 else self._past(form, at)
        raise Malformed


def _zero(data: elf.Buffer, at: int) -> int:
    """Return the offset of the next zero byte."""
    step = 64
    while at < len(data):
        found = bytes(data[at : at + step]).find(0)
        if found >= 0:
            return at + found
        at += step
        step = 1 << 12
    raise Malformed
