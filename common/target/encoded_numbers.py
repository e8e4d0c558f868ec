"""Decode numbers of DWARF and of instructions: LEB128, two's complement, byte order."""

from __future__ import annotations

import sys
from array import array
from typing import Union

LONGEST = 10  # most bytes of a 64-bit LEB128 number (DWARF 5, section 7.6)


def decode_signed(value: int, bits: int) -> int:
    """Interpret a word of `bits` bits as two's complement."""
    return value - (1 << bits) if value >> (bits - 1) else value


def uleb128(data: bytes, at: int) -> tuple[int, int]:
    """Decode the unsigned number at `data[at]`; return it and the offset after it.
    Raises ValueError if it is cut off or longer than LONGEST bytes."""
    value = shift = 0
    for end, byte in enumerate(data[at : at + LONGEST], at + 1):
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, end
        shift += 7
    raise ValueError("not a LEB128 number")


def sleb128(data: bytes, at: int) -> tuple[int, int]:
    """Decode the signed number at `data[at]`; return it and the offset after it. Raises ValueError
    as `uleb128` does."""
    value, end = uleb128(data, at)
    return decode_signed(value, 7 * (end - at)), end


def sleb128_bytes(value: int) -> bytes:
    """Encode a signed number as LEB128."""
    made = bytearray()
    while not -64 <= value < 64:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value & 0x7F])


def numbers(data: Union[bytes, bytearray, memoryview], size: int, byteorder: str) -> Union[memoryview, array[int]]:
    """View all whole numbers of `size` bytes (4 or 8). They are not copied if they have this
    machine's byte order."""
    whole = memoryview(data)[: len(data) // size * size]
    if byteorder == sys.byteorder:
        return whole.cast("Q") if size == 8 else whole.cast("I")
    swapped = array("Q" if size == 8 else "I", bytes(whole))
    swapped.byteswap()
    return swapped
