"""Pass buffers to the C engine so that every argument, field and array element keeps its buffer
alive.

ctypes keeps alive the object from which a pointer was created. A pointer passed to a function keeps
its object alive until the function returns. A pointer assigned to a structure or array does this as
long as the structure or array, or a copy of it, exists (CPython 3.9 to 3.14, _ctypes.c:
`_PyCData_set`, `KeepRef`). Addresses that are passed as numbers keep nothing alive. Therefore no
signature in library.py takes a number as an address, and `POINTER(…)` refuses integers. A buffer
that is kept cannot be resized (BufferError)."""

from __future__ import annotations

import ctypes
import mmap
from array import array
from collections.abc import Iterable, Sequence
from ctypes import POINTER, Structure, c_ubyte, c_uint32, c_uint64
from typing import Any, Union

from findleaks.target.arch import Arch
from findleaks.target.base import Piece, Range

Buffer = Union["array[int]", bytearray, memoryview]
CArray = ctypes.Array[Any]
CPieces = tuple[ctypes.Array["CPiece"], int]  # two arguments: an array of pieces, and their number

# Types by type code. Their length is 0, so that they accept empty arrays, and one type serves
# arrays of all lengths.
_STARTS: dict[str, Any] = {"Q": c_uint64 * 0, "I": c_uint32 * 0, "B": c_ubyte * 0}


class CPiece(Structure):
    """The structure `piece` of native.h. `c_piece` creates it. It keeps the bytes alive."""

    _fields_ = (("address", c_uint64), ("data", POINTER(c_ubyte)), ("length", c_uint64))


class CRange(Structure):
    """The structure `range` of native.h."""

    _fields_ = (("start", c_uint64), ("end", c_uint64))


def c_array(buffer: Buffer) -> CArray:
    """Return a ctypes array that shares the memory of an array, a view ("Q", "I", "B"; otherwise
    KeyError) or a bytearray. Keep the ctypes array as long as the C engine keeps the pointer."""
    made: CArray = _STARTS[memoryview(buffer).format].from_buffer(buffer)
    return made


def c_numbers(numbers: array[int]) -> tuple[CArray, int]:
    """Return two arguments for C: the array ("H" or "I"; otherwise ValueError), and the number of
    bytes of each of its elements, 2 or 4. See `c_array`."""
    if numbers.itemsize not in (2, 4):
        raise ValueError(f"numbers of {numbers.itemsize} bytes")
    made: CArray = _STARTS["B"].from_buffer(numbers)
    return made, numbers.itemsize


def c_buffer(buffer: Union[bytearray, memoryview], typecode: str, first: int) -> CArray:
    """Return a ctypes array over a buffer of such elements ("Q", "I", "B"), from element `first`
    on."""
    made: CArray = _STARTS[typecode].from_buffer(buffer, first * array(typecode).itemsize)
    return made


def c_piece(piece: Piece) -> CPiece:
    """Return a piece for C. The bytes of a read-only view are copied, because ctypes cannot take
    their address."""
    try:
        data = _STARTS["B"].from_buffer(piece.data)
    except TypeError:
        data = _STARTS["B"].from_buffer(bytearray(piece.data))
    return CPiece(piece.address, data, len(piece.data))


def c_bytes(data: Union[bytes, bytearray, memoryview, array[int]]) -> Any:
    """Return a pointer to bytes, which keeps them alive. The bytes of a read-only view are
    copied."""
    if isinstance(data, bytes):
        return ctypes.cast(ctypes.c_char_p(data), POINTER(c_ubyte))
    try:
        return ctypes.cast(_STARTS["B"].from_buffer(data), POINTER(c_ubyte))
    except TypeError:
        return ctypes.cast(_STARTS["B"].from_buffer(bytearray(data)), POINTER(c_ubyte))


def c_pieces(pieces: Sequence[Piece]) -> CPieces:
    return (CPiece * len(pieces))(*map(c_piece, pieces)), len(pieces)


def c_ranges(ranges: Sequence[Range]) -> tuple[ctypes.Array[CRange], int]:
    return (CRange * len(ranges))(*(CRange(start, end) for start, end in ranges)), len(ranges)


def pack(typecode: str, values: Iterable[int]) -> array[int]:
    """Return an array of the values. If `values` is already an array, return it without a copy."""
    return values if isinstance(values, array) and values.typecode == typecode else array(typecode, values)


def c_words(words: Sequence[int], arch: Arch) -> tuple[CArray, int]:
    """Return two arguments for C: the words in the format of the target's memory, and their number.
    Numbers too large for a word refer to nothing and become 0."""
    return c_array(bytearray(arch.pack([word if word <= arch.mask else 0 for word in words]))), len(words)


def zeros(typecode: str, count: int) -> array[int]:
    """Return an array of zeros to which the C engine can write."""
    return array(typecode, bytes(array(typecode).itemsize * count))


def large_zeros(count: int) -> memoryview:
    """Return a view ("I") of zeros to which the C engine can write. No page of this memory has been
    touched, so the engine can still ask for huge pages (native.h, prefer_huge_pages)."""
    return memoryview(mmap.mmap(-1, 4 * count)).cast("I")


def native_array(address: int | None, count: int, size: int) -> memoryview:
    """Return a read-only view of `count` words of 4 or 8 bytes, valid until C frees the array."""
    if not address or not count:
        return memoryview(b"")
    found = memoryview((ctypes.c_char * (count * size)).from_address(address)).toreadonly().cast("B")
    return found.cast("I") if size == 4 else found.cast("Q")
