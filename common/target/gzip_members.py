"""Unpack a gzip file with Python's zlib module. The gzip module copies the data two more times, and
computes the checksum in a second pass.
Format: RFC 1952, 2.2 (a file is a series of members)."""

from __future__ import annotations

import io
import zlib

from findleaks.target.files import TrailingData

_GZIP = 16 + zlib.MAX_WBITS  # zlib parses the header and checks CRC and length after the data
_INPUT = 1 << 14  # bytes read in one step


class Members:
    """Reads a file of consecutive members, with zeros between or after them."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file
        self._left = b""  # bytes that were read but not unpacked
        self._member = zlib.decompressobj(_GZIP)

    def read1(self, size: int) -> bytes:
        """Return the next bytes, at most `size`; b"" at the end. Raises EOFError if the file is cut
        off, zlib.error if it is invalid, and TrailingData if other data follows a member."""
        while True:
            if self._member.eof and not self._begin():
                return b""
            packed = self._left or self._file.read(_INPUT) or b""
            data = self._member.decompress(packed, size)
            self._left = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            if data:
                return data
            if not packed and not self._member.eof:
                raise EOFError

    def _begin(self) -> bool:
        """Go to the next member. Return False at the end of the file."""
        while not (rest := self._left.lstrip(b"\0")):
            self._left = self._file.read(_INPUT) or b""
            if not self._left:
                return False
        self._left = rest
        if len(rest) == 1:
            self._left += self._file.read(_INPUT) or b""
        if not self._left.startswith(b"\x1f\x8b"):
            raise TrailingData
        self._member = zlib.decompressobj(_GZIP)
        return True
