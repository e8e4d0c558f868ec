"""Unpack frames of zstd block by block with python-zstandard, because its own reader returns
output of unlimited size for some input.
Format: RFC 8878, 3.1.1 (frames: magic number, header, blocks of at most 128 KiB, checksum), 3.1.2
(skippable frames)."""

from __future__ import annotations

import io
from typing import Any

from findleaks.target.files import DamagedFile, TrailingData

_MAGIC, _SKIPPABLE = 0xFD2FB528, 0x184D2A50  # magic numbers of frames
_RAW, _RLE, _COMPRESSED = 0, 1, 2  # block types
_MOST = 1 << 17  # most bytes of a block


class Frames:
    """Reads a file of consecutive frames. `module` is python-zstandard."""

    def __init__(self, file: io.RawIOBase, module: Any) -> None:
        self._file = io.BufferedReader(file, _MOST)
        self._error = module.ZstdError
        self._made = module.ZstdDecompressor(max_window_size=1 << 31)
        self._machine: Any = None  # decompressor of the current frame
        self._checksum = 0  # bytes of the checksum after the frame's last block
        self._frames = 0  # complete frames so far

    def read1(self, size: int) -> bytes:
        """Return the next bytes, at most a block (128 KiB), even if `size` is larger; b"" at the
        end. Raises EOFError if the file is cut off, DamagedFile if it is invalid, or
        TrailingData."""
        while True:
            if self._machine is None:
                if not self._begin():
                    return b""
                continue
            data = self._block()
            if data:
                return data

    def _begin(self) -> bool:
        """Read the header of a frame, or skip a whole skippable frame. Return False at the end of
        the file."""
        start = self._file.read(4)
        if not start:
            return False
        magic = int.from_bytes(start, "little")
        if magic & ~15 == _SKIPPABLE and len(start) == 4:
            left = int.from_bytes(self._exactly(4), "little")
            while left:
                left -= len(self._exactly(min(left, _MOST)))
            return True
        if magic != _MAGIC or len(start) < 4:
            raise TrailingData if self._frames else DamagedFile("not a zstd frame")
        flags = self._exactly(1)[0]
        single = flags >> 5 & 1
        rest = (0 if single else 1) + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]
        self._checksum = 4 * (flags >> 2 & 1)
        self._machine = self._made.decompressobj()
        self._unpack(start + bytes([flags]) + self._exactly(rest))
        return True

    def _block(self) -> bytes:
        start = self._exactly(3)
        number = int.from_bytes(start, "little")
        last, kind, size = number & 1, number >> 1 & 3, number >> 3
        if kind > _COMPRESSED or size > _MOST:
            raise DamagedFile("not a zstd block")
        data = self._unpack(start + self._exactly(1 if kind == _RLE else size) + (self._exactly(self._checksum) if last else b""))
        if last:
            if not self._machine.eof:
                raise DamagedFile("a zstd frame without end")
            self._machine = None
            self._frames += 1
        return data

    def _unpack(self, data: bytes) -> bytes:
        try:
            return bytes(self._machine.decompress(data))
        except self._error as error:
            raise DamagedFile(str(error)) from None

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise EOFError
        return data
