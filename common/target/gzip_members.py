"""Unpack the members of a gzip file. zlib checks their lengths and checksums. Python's GzipFile
returns the same bytes, but it takes a tenth longer, because it copies them twice.
Format: RFC 1952, 2.2 (a file is a series of members)."""

from __future__ import annotations

import io
import zlib

from findleaks.target.zstd import TrailingData

MAGIC = b"\x1f\x8b"
_GZIP = 16 + zlib.MAX_WBITS  # the format of zlib.decompressobj with gzip's header and trailer
_READ = 1 << 13  # bytes that are read at once


class Members:
    """Reads a file of consecutive members. Zeros after a member are padding."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file
        self._packed = b""  # bytes that were read, and are not unpacked yet
        self._machine = zlib.decompressobj(_GZIP)  # decompressor of the current member

    def read1(self, size: int) -> bytes:
        """Return up to `size` bytes; b"" at the end. Raises EOFError if the file is cut off,
        zlib.error if it is invalid, or TrailingData."""
        while True:
            if self._machine.eof and not self._begin():
                return b""
            self._packed = self._packed or self._file.read(_READ) or b""
            if not self._packed:
                raise EOFError
            data = self._machine.decompress(self._packed, size)
            self._packed = self._machine.unconsumed_tail or self._machine.unused_data
            if data:
                return data

    def _begin(self) -> bool:
        """Start the next member. Return False at the end of the file."""
        self._packed = self._packed.lstrip(b"\0")
        while len(self._packed) < len(MAGIC) and (more := self._file.read(_READ)):
            self._packed = (self._packed + more).lstrip(b"\0")
        if self._packed and not self._packed.startswith(MAGIC):
            raise TrailingData
        self._machine = zlib.decompressobj(_GZIP)
        return bool(self._packed)
