"""The container of a minidump: a header, and a directory of typed streams.

Not by a library. Those of PyPI read Windows' dumps: `minidump` 0.0.24 leaves out the streams that
Linux writers add (maps, auxv, status) and the build-ids of modules, prints tracebacks where there
is no PEB, and runs without end on a count of 2^31; `udmp-parser` and `minidump-analyzer` have no
Linux at all, LIEF no minidumps.

Layouts: Microsoft's minidumpapiset.h, and what Breakpad adds for Linux in
src/google_breakpad/common/minidump_format.h; little-endian. Any number may be wrong: what lies
outside of the file is cut off, and no loop exceeds what the file holds."""

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
_MOST_NAME = 1 << 14  # bytes of a path


class File(NamedTuple):
    """The streams by type, the first of each: LLDB writes an exception for every thread."""

    view: memoryview
    streams: dict[int, memoryview]
    written: int  # seconds since 1970; 0: not known
    cut: bool  # a stream ends behind the end of the file

    def stream(self, kind: int) -> memoryview:
        """The stream's bytes; none if there is no such stream."""
        return self.streams.get(kind, self.view[:0])

    def at(self, offset: int, size: int) -> memoryview:
        """These bytes of the file, fewer at its end."""
        return self.view[offset : offset + size]

    def text(self, offset: int) -> str:
        """A MINIDUMP_STRING: its size in bytes, then UTF-16; "" outside of the file."""
        size = int.from_bytes(self.at(offset, 4), "little")
        return bytes(self.at(offset + 4, min(size, _MOST_NAME) & -2)).decode("utf-16-le", "replace").split("\0", 1)[0]


def opened(view: memoryview, name: str) -> File:
    """The directory of a minidump; TargetError if the file is none."""
    if len(view) < _HEADER.size or bytes(view[:4]) != MINIDUMP:
        raise TargetError(f"{name}: truncated: not even the header of the minidump is there")
    _, version, count, directory, _, written, _ = _HEADER.unpack_from(view)
    if version & 0xFFFF != VERSION:
        raise TargetError(f"{name}: a minidump of version {version & 0xFFFF:#x}, which is not known ({VERSION:#x} is)")
    streams: dict[int, memoryview] = {}
    rows = view[directory : directory + min(count, _MOST_STREAMS) * _ENTRY.size]
    cut = len(rows) < min(count, _MOST_STREAMS) * _ENTRY.size
    for kind, size, offset in _ENTRY.iter_unpack(rows[: len(rows) // _ENTRY.size * _ENTRY.size]):
        cut = cut or offset + size > len(view)
        streams.setdefault(kind, view[offset : offset + size])
    if not streams:
        raise TargetError(f"{name}: truncated: the minidump's directory is missing, so that nothing in it can be found")
    return File(view, streams, written, cut)


def items(stream: memoryview, form: struct.Struct) -> Iterator[tuple[int, ...]]:
    """The items of a stream that is a 32-bit count and as many of `form`; Breakpad aligns them to 8
    bytes. Items behind the stream's end are left out."""
    if len(stream) < 4:
        return iter(())
    count = int.from_bytes(stream[:4], "little")
    start = 8 if len(stream) == 8 + count * form.size else 4
    fit = max(0, min(count, (len(stream) - start) // form.size))
    return form.iter_unpack(stream[start : start + fit * form.size])
