"""Read the container format of minidumps: a header, and a directory of typed streams.

No library is used, because those on PyPI read dumps of Windows: `minidump` 0.0.24 ignores the
streams of Linux writers (maps, auxv, status) and the build-ids of modules, prints tracebacks if
there is no PEB, and loops without end on a count of 2^31; `udmp-parser` and `minidump-analyzer` do
not support Linux, and LIEF does not support minidumps.

Layouts: Microsoft's minidumpapiset.h, and Breakpad's additions for Linux in
src/google_breakpad/common/minidump_format.h; little-endian. Any number may be wrong: ranges are
clipped to the file, and no loop runs longer than the file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from findleaks.errors import TargetError
from findleaks.target.files import MINIDUMP

VERSION = 0xA793  # the low 16 bits
(THREADS, MODULES, MEMORY, EXCEPTION, SYSTEM, MEMORY64, MISC, MEMORY_INFO, NAMES) = (3, 4, 5, 6, 7, 9, 15, 16, 24)
STATUS, COMMAND_LINE, AUXV, MAPS, STAT = 0x47670004, 0x47670006, 0x47670008, 0x47670009, 0x4767000B

_HEADER = struct.Struct("<4s5IQ")  # magic, version, streams, directory, checksum, time, flags
_ENTRY = struct.Struct("<3I")  # type, size, offset
_MOST_STREAMS = 1 << 12
MOST_PATH = 1 << 13  # bytes of PATH_MAX characters in UTF-16


class File(NamedTuple):
    """The streams by type. If a type occurs repeatedly, the first stream counts, because LLDB
    writes an exception stream for every thread."""

    view: memoryview
    streams: dict[int, memoryview]
    written: int  # seconds since 1970; 0: unknown
    cut: bool  # a stream ends beyond the end of the file

    def stream(self, kind: int) -> memoryview:
        """Return the bytes of a stream; b"" if there is no such stream."""
        return self.streams.get(kind, self.view[:0])

    def at(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes of the file from `offset` on; fewer at the end of the file."""
        return self.view[offset : offset + size]

    def text(self, offset: int, most: int = MOST_PATH) -> str:
        """Decode a MINIDUMP_STRING: a size in bytes, then UTF-16 text, of which at most `most`
        bytes are read. Return "" if it is outside the file."""
        size = int.from_bytes(self.at(offset, 4), "little")
        return bytes(self.at(offset + 4, min(size, most) & -2)).decode("utf-16-le", "replace").split("\0", 1)[0]


def open_streams(view: memoryview, name: str) -> File:
    """Read the directory of a minidump.
    Raises TargetError if the file is not a minidump."""
    if len(view) < _HEADER.size or bytes(view[:4]) != MINIDUMP:
        raise TargetError(f"{name}: truncated: the header of the minidump is incomplete")
    _, version, count, directory, _, written, _ = _HEADER.unpack_from(view)
    if version & 0xFFFF != VERSION:
        raise TargetError(f"{name}: a minidump of version {version & 0xFFFF:#x}, expected {VERSION:#x}")
    streams: dict[int, memoryview] = {}
    rows = view[directory : directory + min(count, _MOST_STREAMS) * _ENTRY.size]
    cut = len(rows) < min(count, _MOST_STREAMS) * _ENTRY.size
    for kind, size, offset in _ENTRY.iter_unpack(rows[: len(rows) // _ENTRY.size * _ENTRY.size]):
        cut = cut or offset + size > len(view)
        streams.setdefault(kind, view[offset : offset + size])
    if not streams:
        raise TargetError(f"{name}: truncated: the directory of the minidump is missing")
    return File(view, streams, written, cut)


def items(stream: memoryview, form: struct.Struct) -> Iterator[tuple[int, ...]]:
    """Unpack the items of a stream: a 32-bit count, then items of `form`, which Breakpad aligns to
    8 bytes. Items beyond the end of the stream are omitted."""
    if len(stream) < 4:
        return iter(())
    count = int.from_bytes(stream[:4], "little")
    start = 8 if len(stream) == 8 + count * form.size else 4
    fit = max(0, min(count, (len(stream) - start) // form.size))
    return form.iter_unpack(stream[start : start + fit * form.size])
