"""Decoders of DWARF's and processors' encodings: LEB128, two's complement, byte order."""

from __future__ import annotations

import sys
from array import array
from typing import Union

LONGEST = 10  # most bytes of a LEB128 number of 64 bits (DWARF 5, section 7.6)


def signed(value: int, bits: int) -> int:
    """The value of a word of `bits` bits read as two's complement."""
    return value - (1 << bits) if value >> (bits - 1) else value


def uleb128(data: bytes, at: int) -> tuple[int, int]:
    """The unsigned number at `data[at]`, and its end; ValueError unless within LONGEST bytes."""
    value = shift = 0
    for end, byte in enumerate(data[at : at + LONGEST], at + 1):
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, end
        shift += 7
    raise ValueError("no LEB128 number")


def sleb128(data: bytes, at: int) -> tuple[int, int]:
    """The signed number at `data[at]`, and where it ends; ValueError as `uleb128`."""
    value, end = uleb128(data, at)
    return signed(value, 7 * (end - at)), end


def sleb128_bytes(value: int) -> bytes:
    """The number, encoded."""
    made = bytearray()
    while not -64 <= value < 64:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value & 0x7F])


def numbers(data: Union[bytes, bytearray, memoryview], size: int, byteorder: str) -> Union[memoryview, array[int]]:
    """All whole numbers of `size` bytes, 4 or 8; no copy in this machine's byte order."""
    whole = memoryview(data)[: len(data) // size * size]
    if byteorder == sys.byteorder:
        return whole.cast("Q") if size == 8 else whole.cast("I")
    swapped = array("Q" if size == 8 else "I", bytes(whole))
    swapped.byteswap()
    return swapped
