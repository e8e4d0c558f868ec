"""Unpack sections compressed with zstd, using libzstd through ctypes.

Python includes zstd only since 3.14, and debuggers have usually loaded this library already.
Interface: zstd.h (1.4 and newer), "Streaming decompression"."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Optional

SLICE_BYTES = 1 << 18  # compressed bytes unpacked between two polls for an interrupt: about 2 ms


class _Buffer(ctypes.Structure):
    """ZSTD_inBuffer and ZSTD_outBuffer: address, size, and bytes used so far."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("pos", ctypes.c_size_t))


@lru_cache(maxsize=1)
def _library() -> Optional[Any]:
    try:
        library = ctypes.CDLL("libzstd.so.1")
        library.ZSTD_createDStream.restype = ctypes.c_void_p
        library.ZSTD_decompressStream.restype = ctypes.c_size_t
        library.ZSTD_decompressStream.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        library.ZSTD_isError.argtypes = (ctypes.c_size_t,)
        library.ZSTD_freeDStream.argtypes = (ctypes.c_void_p,)
    except (OSError, AttributeError):
        return None
    return library


def unpack_section(packed: memoryview, size: int, poll: Callable[[], None]) -> bytes:
    """Unpack at most `size` bytes. For damaged data, return the bytes before the damage; without
    the library, return b"". `poll` raises if the user asked to stop."""
    library = _library()
    if library is None or not size:
        return b""
    source, made = bytes(packed), bytearray(size)
    stream = library.ZSTD_createDStream()
    if not stream:
        return b""
    try:
        given = _Buffer(ctypes.cast(ctypes.c_char_p(source), ctypes.c_void_p), 0, 0)
        taken = _Buffer(ctypes.addressof((ctypes.c_char * size).from_buffer(made)), size, 0)
        while given.pos < len(source) and taken.pos < size:
            poll()
            before = given.pos, taken.pos
            given.size = min(given.pos + SLICE_BYTES, len(source))
            left = library.ZSTD_decompressStream(stream, ctypes.byref(taken), ctypes.byref(given))
            if library.ZSTD_isError(left) or not left or (given.pos, taken.pos) == before:
                break
        return bytes(memoryview(made)[: taken.pos])
    finally:
        library.ZSTD_freeDStream(stream)
