"""Our memory as the C kernel takes it: every argument, field and array element keeps the buffer that it points into.

ctypes keeps what a pointer is made from: passed to a function until that returns, assigned to a field or an element for as long as the
structure or array lives, copied with it when it is copied (CPython 3.9 to 3.14, _ctypes.c: `_PyCData_set`, `KeepRef`). An address that was
made a number keeps nothing, so no signature in library.py takes one: `POINTER(…)` refuses integers. A buffer that is
kept cannot be resized meanwhile either (BufferError).
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_ubyte, c_uint32, c_uint64
from typing import Any, Union

from findleaks.target.base import Piece

Buffer = Union["array[int]", bytearray]
CArray = ctypes.Array[Any]
CPieces = tuple[ctypes.Array["CPiece"], int]
"""An array of pieces, and how many: two arguments."""

_STARTS: dict[str, Any] = {"Q": c_uint64 * 0, "I": c_uint32 * 0, "B": c_ubyte * 0}
"""By an array's type code. Of no length, so that empty arrays fit too, and one type serves for all."""


class CPiece(Structure):
    """kernel.h: piece. Made by `passed`; keeps the bytes."""

    _fields_ = (("address", c_uint64), ("data", POINTER(c_ubyte)), ("length", c_uint64))


def c_array(buffer: Buffer) -> CArray:
    """The memory of an array of type code "Q", "I" or "B", or of a bytearray; KeyError for another type code. For functions that keep the
    pointer, keep the result as long."""
    made: CArray = _STARTS[buffer.typecode if isinstance(buffer, array) else "B"].from_buffer(buffer)
    return made


def c_piece(piece: Piece) -> CPiece:
    """The piece. The bytes of a read-only view are copied, as ctypes cannot take their address."""
    try:
        data = _STARTS["B"].from_buffer(piece.data)
    except TypeError:
        data = _STARTS["B"].from_buffer(bytearray(piece.data))
    return CPiece(piece.address, data, len(piece.data))


def c_pieces(pieces: Sequence[Piece]) -> CPieces:
    """All of them."""
    return (CPiece * len(pieces))(*map(c_piece, pieces)), len(pieces)


def kernel_array(address: int | None, count: int, size: int) -> memoryview:
    """The kernel's own array of `count` words of 4 or 8 bytes, read-only, for as long as the kernel keeps it."""
    if not address or not count:
        return memoryview(b"")
    found = memoryview((ctypes.c_char * (count * size)).from_address(address)).toreadonly().cast("B")
    return found.cast("I") if size == 4 else found.cast("Q")
