"""Debug information made of bytes, and the table that both engines read from it."""

from __future__ import annotations

from array import array

import graphs

from findleaks.debuginfo.type_table import TypeTable
from findleaks.engine.dwarf_sources import Source, TypeReader


def read(sources: list[Source], pure: bool) -> tuple[list[array[int]], bool]:
    """Return the columns, and whether reading ended early."""
    reader: TypeReader = (graphs.pure() if pure else graphs.native()).type_reader()
    for source in sources:
        reader.add(source)
        while reader.read(1 << 16) >= 0:
            pass
    while reader.find_origins(1 << 16):
        pass
    while reader.merge() < 1.0:
        pass
    return reader.columns(), reader.incomplete


def read_with_both(sources: list[Source]) -> TypeTable:
    """Check that both engines read the same table, and return it."""
    native, pure = read(sources, False), read(sources, True)
    assert native == pure
    return TypeTable.of(8, native[0])


def encode_leb(number: int) -> bytes:
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def encode_unit(entries: bytes, version: int = 5) -> bytes:
    """Return a unit with 8-byte addresses, whose abbreviations are at offset 0."""
    head = b"\x05\0\x01\x08" + bytes(4) if version == 5 else bytes([version, 0]) + bytes(4) + b"\x08"
    return (len(head) + len(entries)).to_bytes(4, "little") + head + entries


def encode_abbreviation(code: int, tag: int, children: bool, *attributes: tuple[int, int]) -> bytes:
    each = b"".join(encode_leb(name) + encode_leb(form) for name, form in attributes)
    return encode_leb(code) + encode_leb(tag) + bytes([children]) + each + b"\0\0"


UNIT, STRUCT, MEMBER, TYPEDEF, POINTER, ARRAY, RANGE, NAMELESS, BASE, CLASS, ALIAS, DEEP = range(1, 13)
ABBREVIATIONS = b"".join((
    encode_abbreviation(UNIT, 0x11, True),
    encode_abbreviation(STRUCT, 0x13, True, (0x03, 0x08), (0x0B, 0x07)),  # name, size of 8 bytes
    encode_abbreviation(MEMBER, 0x0D, False, (0x03, 0x08), (0x49, 0x13), (0x38, 0x0F)),  # name, type, offset
    encode_abbreviation(TYPEDEF, 0x16, False, (0x03, 0x08), (0x49, 0x13)),
    encode_abbreviation(POINTER, 0x0F, False, (0x49, 0x13)),
    encode_abbreviation(ARRAY, 0x01, True, (0x49, 0x13)),
    encode_abbreviation(RANGE, 0x21, False, (0x37, 0x07)),  # count of 8 bytes
    encode_abbreviation(NAMELESS, 0x16, False, (0x49, 0x13)),
    encode_abbreviation(BASE, 0x24, False, (0x03, 0x08), (0x0B, 0x0B)),
    encode_abbreviation(CLASS, 0x1C, False, (0x49, 0x13), (0x38, 0x0F)),  # a base class
    encode_abbreviation(ALIAS, 0x13, False, (0x31, 0x13)),  # an instance of another type
    encode_abbreviation(DEEP, 0x39, True, (0x03, 0x08)),  # a namespace
    b"\0",
))  # fmt: skip
