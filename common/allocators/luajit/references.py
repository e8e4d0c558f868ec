"""Values of LuaJIT that refer to objects.

Source: src/lj_obj.h of LuaJIT 2.1 with LJ_GC64 (union TValue). A value is a number, or the type in
the upper 17 bits and an address in the lower 47 bits. The four lower bits of the type are those of
~4 (strings) to ~12 (userdata); the others are set. Numbers are never equal to such a word, because
LuaJIT stores one NaN only, 0xFFF8000000000000."""

from __future__ import annotations

from findleaks.target.base import Piece

_WORD = 8
_TOP = b"\xff"  # the highest byte of a reference
_LEAST, _MOST = 0xF9, 0xFD  # its second-highest byte
_KEPT = bytes(0 if _LEAST <= byte <= _MOST else 0xFF for byte in range(256))
ADDRESS = (1 << 47) - 1


def remove_type_tags(piece: Piece) -> Piece:
    """Return a copy of a piece of 64-bit little-endian memory in which each reference to an object
    is the address of the object."""
    first = -piece.address % _WORD
    end = first + (len(piece.data) - first) // _WORD * _WORD
    data = bytearray(piece.data)
    top, second, third = (bytes(data[first + at : end : _WORD]) for at in (7, 6, 5))
    count = len(top)
    # A mask for each word: 0 in each bit that belongs to the type of a reference.
    is_top = int.from_bytes(top.translate(bytes(0xFF * (byte == _TOP[0]) for byte in range(256))), "little")
    is_second = int.from_bytes(second.translate(bytes(byte ^ 0xFF for byte in _KEPT)), "little")
    tagged = is_top & is_second
    kept = tagged ^ int.from_bytes(b"\xff" * count, "little")
    low_bit = int.from_bytes(b"\x80" * count, "little")
    data[first + 7 : end : _WORD] = (int.from_bytes(top, "little") & kept).to_bytes(count, "little")
    data[first + 6 : end : _WORD] = (int.from_bytes(second, "little") & kept).to_bytes(count, "little")
    data[first + 5 : end : _WORD] = (int.from_bytes(third, "little") & ~(tagged & low_bit)).to_bytes(count, "little")
    return Piece(piece.address, memoryview(data))


def decode(value: int) -> int:
    """Return the address of the object that a value refers to; other values are unchanged."""
    return value & ADDRESS if value >> 56 == 0xFF and _LEAST <= value >> 48 & 0xFF <= _MOST else value
