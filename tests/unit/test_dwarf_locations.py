"""Locations of variables that consist of pieces: both engines read the same variables, and only memory that belongs to them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Optional

import pytest
from dwarf_images import ABBREVIATIONS, BASE, UNIT, encode_abbreviation, encode_leb, encode_unit, read_with_both

from findleaks.debuginfo.type_table import UNKNOWN, TypeTable
from findleaks.engine.dwarf_sources import Source

ADDRESS, PIECE, INDEXED, GNU_INDEXED, STACK_VALUE, LITERAL = 0x03, 0x93, 0xA1, 0xFB, 0x9F, 0x30  # DW_OP_...
VARIABLE = 13
WORD, HIGHEST, PLACE = 8, (1 << 64) - 1, 0x4000
TABLE = [PLACE + 8 * number for number in range(8)]  # .debug_addr
MORE = b"".join((
    encode_abbreviation(VARIABLE, 0x34, False, (0x03, 0x08), (0x49, 0x13), (0x02, 0x18)),  # name, type, location
    b"\0",
))  # fmt: skip


def at(address: int) -> bytes:
    return bytes([ADDRESS]) + address.to_bytes(WORD, "little")


def indexed(number: int, operation: int = INDEXED) -> bytes:
    return bytes([operation]) + encode_leb(number)


def piece(size: int) -> bytes:
    return bytes([PIECE]) + encode_leb(size)


def read_variables(size: int, locations: Sequence[bytes]) -> TypeTable:
    """Return the table of a unit with a type of `size` bytes, and variables of this type."""
    head = bytes([UNIT, BASE]) + b"t\0" + bytes([size])
    variables = [bytes([VARIABLE]) + b"v\0" + (13).to_bytes(4, "little") + encode_leb(len(one)) + one for one in locations]
    addresses = b"".join(address.to_bytes(WORD, "little") for address in TABLE)
    return read_with_both([Source(encode_unit(head + b"".join(variables) + b"\0"), ABBREVIATIONS[:-1] + MORE, addresses=addresses)])


@pytest.mark.parametrize(
    ("location", "found"),
    [
        (at(PLACE) + piece(8) + at(PLACE + 8) + piece(8), True),
        (indexed(0) + piece(8) + indexed(1, GNU_INDEXED) + piece(8), True),
        (at(PLACE) + piece(8) + piece(4) + at(PLACE + 12) + piece(4), True),  # a number was removed
        (piece(4) + at(PLACE + 4) + piece(12), True),
        (at(PLACE) + piece(9), True),  # a number, and the rest up to a word, may have been removed from the end
        (at(PLACE) + piece(8), None),  # a pointer was removed from the end: another variable may be there
        (at(PLACE + 8) + piece(8) + at(PLACE) + piece(8), False),  # in another order
        (at(PLACE) + piece(4) + at(PLACE + 8) + piece(8), False),  # with a gap that no piece describes
        (piece(8) + at(PLACE + 8) + piece(8), False),  # a pointer was removed
        (piece(4) + piece(4) + piece(4), False),
        (bytes([LITERAL, STACK_VALUE]) + piece(8) + at(PLACE + 8) + piece(8), False),  # a constant
        (bytes([LITERAL]) + piece(16), False),
        (indexed(len(TABLE)) + piece(16), False),  # no such address
        (at(8) + piece(8) + at(16) + piece(8), True),
        (at(0) + piece(8) + at(8) + piece(8), False),  # dropped by the linker
        (at(HIGHEST) + piece(16), False),
        (at(HIGHEST - 1) + piece(16), False),
        (piece(4) + at(4) + piece(12), False),
        (at(PLACE) + bytes([PIECE]), False),
        (at(PLACE) + bytes([PIECE]) + b"\xff" * 30, False),
        (at(PLACE) + piece((1 << 32) + 1), False),
        (at(PLACE)[:-2], False),
        (at(PLACE) + piece(16) + bytes([ADDRESS]), False),
    ],
)
def test_pieces(location: bytes, found: Optional[bool]) -> None:
    """`found`: whether the variable has an address and a type; None if it has only an address."""
    table = read_variables(16, [location])
    assert len(table.variable_addresses) == (found is not False)
    assert not found or table.variable_types[0] != UNKNOWN
    assert found is not None or table.variable_types[0] == UNKNOWN


def test_random_pieces() -> None:
    draw, found = random.Random(3), set[tuple[int, int]]()
    for _ in range(120):
        locations = []
        for _ in range(20):
            parts, offset = b"", 0
            for _ in range(draw.randrange(1, 5)):
                size = draw.choice((1, 4, 8, 8, 8, 12, draw.choice((7, 1 << 31, 1 << 33))))
                number = draw.choice((offset // 8, offset // 8, draw.randrange(10)))
                start = draw.choice((PLACE + offset, PLACE + offset, PLACE + offset, draw.choice((0, HIGHEST, draw.getrandbits(64)))))
                parts += draw.choice((at(start), at(start), indexed(number), indexed(number, GNU_INDEXED), b"", bytes([LITERAL]))) + piece(
                    size
                )
                offset += size
            damaged = bytearray(parts)
            if draw.random() < 0.3:
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
                del damaged[draw.randrange(1, len(damaged) + 1) :]
            locations.append(bytes(damaged))
        table = read_variables(draw.choice((4, 8, 16, 24, 40)), locations)
        found.update(zip(table.variable_addresses, table.variable_types))
    assert {kind == UNKNOWN for _, kind in found} == {True, False}
    assert len({address for address, _ in found}) > 20
