"""Values of LuaJIT that refer to objects, and light userdata, which refer to the program's memory.

Source: src/lj_obj.h of LuaJIT 2.1 with LJ_GC64 (union TValue). A value is a number, or the type in
the upper 17 bits and an address in the lower 47 bits. The four lower bits of the type are those of
~4 (strings) to ~12 (userdata); the others are set. Numbers are never equal to such a word, because
LuaJIT stores one NaN only, 0xFFF8000000000000.

The type of a light userdata is ~3. Its lower 39 bits are those of the address. The 8 bits above
them are an index in a table of the state (lightudseg), which has the upper 32 bits."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.memory import Memory
from findleaks.target.base import Piece

_WORD = 8
_TOP = b"\xff"  # the highest byte of a reference
_LEAST, _MOST = 0xF9, 0xFD  # its second-highest byte
_KEPT = bytes(0 if _LEAST <= byte <= _MOST else 0xFF for byte in range(256))
ADDRESS = (1 << 47) - 1
_LIGHT, _OFFSET = 0x1FFFC, (1 << 39) - 1  # the type of a light userdata; the bits of its address
_LIGHT_END = b"\xfe\xff"  # the last bytes of a light userdata
_LAST_INDEX, _TABLE = 35, 112  # offsets in global_State: the last index (a byte), and the table
_MOST_INDEX = 254


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


def read_light_segments(memory: Memory, shared: int) -> Sequence[int]:
    """Return a state's table for light userdata: the upper bits of addresses, by index. `shared`:
    the address of the global_State. Returns () if the state has no light userdata."""
    last, table = memory.read(shared + _LAST_INDEX, 1), memory.word(shared + _TABLE)
    data = memory.read(table, 4 * (last[0] + 1)) if last and last[0] <= _MOST_INDEX and table else b""
    found = [int.from_bytes(data[at : at + 4], "little") << 32 for at in range(0, len(data), 4)]
    is_valid = len(set(found)) == len(found) and all(upper & _OFFSET == 0 and upper <= ADDRESS for upper in found)
    return tuple(found) if is_valid else ()


def is_light(value: int) -> bool:
    """Return whether a value is a light userdata."""
    return value >> 47 == _LIGHT


def decode_light_userdata(piece: Piece, segments: Sequence[int]) -> Piece:
    """Return a piece of 64-bit little-endian memory in which each light userdata is the address
    that it stands for. `segments`: see `read_light_segments`."""
    first = -piece.address % _WORD
    end = first + (len(piece.data) - first) // _WORD * _WORD
    columns = [bytes(piece.data[first + at : end : _WORD]) for at in range(_WORD)]
    light = _equal(columns[7], 0xFF) & _equal(columns[6], 0xFE)
    if not light:
        return piece
    count, data = len(columns[7]), bytearray(piece.data)
    values = [int.from_bytes(column, "little") for column in columns]
    for number, upper in enumerate(segments):
        # The index is in byte 5 and in the highest bit of byte 4.
        mine = light & _equal(columns[5], number >> 1) & _equal(columns[4], (number & 1) << 7, 0x80)
        for at, kept in ((4, 0x7F), (5, 0), (6, 0), (7, 0)):
            new, old = (int.from_bytes(bytes([byte]) * count, "little") for byte in (upper >> 8 * at & 0xFF, kept))
            values[at] = values[at] & ~mine | (values[at] & old | new) & mine
    for at in range(4, _WORD):
        data[first + at : end : _WORD] = values[at].to_bytes(count, "little")
    return Piece(piece.address, memoryview(data))


def try_light_segments(memory: Memory, piece: Piece, tables: Sequence[Sequence[int]]) -> bytes:
    """Return the data of a piece in which each light userdata is the first address that one of
    these tables gives and that is readable."""
    old = bytes(piece.data)
    data, end = bytearray(old), old.find(_LIGHT_END)
    while end >= 0:
        at = end + len(_LIGHT_END) - _WORD
        value = int.from_bytes(old[at : at + _WORD], "little") if at >= 0 and (piece.address + at) % _WORD == 0 else 0
        index = value >> 39 & 0xFF
        addresses = [table[index] | value & _OFFSET for table in tables if is_light(value) and index < len(table)]
        found = next((one for one in addresses if memory.read(one, 1)), None)
        if found is not None:
            data[at : at + _WORD] = found.to_bytes(_WORD, "little")
        end = old.find(_LIGHT_END, end + 1)
    return bytes(data)


def _equal(column: bytes, value: int, bits: int = 0xFF) -> int:
    """Return a mask of the bytes in which these bits have this value: 0xFF for each."""
    return int.from_bytes(column.translate(bytes(0xFF * (byte & bits == value) for byte in range(256))), "little")


def decode(value: int) -> int:
    """Return the address of the object that a value refers to; other values are unchanged."""
    return value & ADDRESS if value >> 56 == 0xFF and _LEAST <= value >> 48 & 0xFF <= _MOST else value
