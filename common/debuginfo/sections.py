"""Sections of debug information, as streams for pyelftools that count every read and copy nothing.

pyelftools does not check lengths and counts, which in a damaged file can make it read gigabytes. So
the streams of a file share a `Meter`, which stops it after a number of reads and lets the user
interrupt it. It reads field by field: a limit of reads bounds both time and memory, some 5 µs and
at most some 100 bytes each."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Optional

from findleaks.target import elf

MAX_READS = 1 << 18  # for one question, some 1.5 s; a variable in large C++ takes a few thousand
MAX_BYTES = 1 << 28  # bytes read for one question
MAX_LEB128 = 1 << 10  # one-byte reads of 0x80 or more in a row: pyelftools bounds no LEB128
READS_BETWEEN_POLLS = 1 << 11  # for an interrupt: some 10 ms
MAX_DECOMPRESSED = 1 << 30  # bytes of all compressed sections of a file together, once inflated

MAX_RATIO, ANY_RATIO_BYTES = 64, 1 << 24
"""Inflated size over compressed size, at most, for sections inflated to more than ANY_RATIO_BYTES:
zlib reaches 1,032, debug information about 10; but units may share tables of abbreviations."""

SLICE_BYTES = 1 << 16  # compressed bytes inflated between two polls for an interrupt

SHF_COMPRESSED, ELFCOMPRESS_ZLIB = 0x800, 1


class TooMuch(Exception):
    """A question took more reads than any sound file needs."""


class Meter:
    """Counts and limits the reads of a file's streams. `stopped` keeps why it stopped them, which
    pyelftools turns into its own errors; further reads fail as well."""

    def __init__(self, poll: Callable[[], None]) -> None:
        """`poll` raises if the user asked to stop."""
        self._poll = poll
        self.reads = self.bytes = 0
        self.most_reads = self.most_bytes = 0
        self.stopped: Optional[Exception] = None

    def allow(self, reads: int) -> None:
        """Allow this many reads from now on, and MAX_BYTES."""
        self.most_reads, self.most_bytes = self.reads + reads, self.bytes + MAX_BYTES
        self.stopped = None

    def count(self, size: int) -> None:
        """Count a read of `size` bytes; raises if that is too much, or the user asked to stop."""
        if self.stopped is not None:
            raise self.stopped
        self.reads += 1
        self.bytes += size
        try:
            if self.reads > self.most_reads or self.bytes > self.most_bytes:
                raise TooMuch
            if not self.reads % READS_BETWEEN_POLLS:
                self._poll()
        except Exception as stopped:
            self.stopped = stopped
            raise


class Stream:
    """A section as a file object, with the methods that pyelftools uses."""

    def __init__(self, data: elf.Buffer, meter: Meter) -> None:
        self._data, self._meter, self._at, self._high = memoryview(data), meter, 0, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to an offset from the beginning (0), from here (1), or from the end (2)."""
        self._at = max(offset + (0, self._at, len(self._data))[whence], 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def until(self, end: int) -> Stream:
        """A stream that ends at `end`."""
        return Stream(self._data[:end], self._meter)

    def read(self, size: int = -1) -> bytes:
        """The next bytes, as many as there are."""
        end = len(self._data) if size < 0 else self._at + size
        data = bytes(self._data[self._at : end])
        self._meter.count(len(data))
        self._at += len(data)
        self._high = self._high + 1 if size == 1 and data >= b"\x80" else 0
        if self._high > MAX_LEB128:
            raise TooMuch
        return data


def debug_sections(data: elf.Buffer, head: elf.Header, poll: Callable[[], None]) -> dict[str, elf.Buffer]:
    """A file's sections of debug information, inflated, by name (".debug_info" for ".zdebug_info").
    Those compressed otherwise than by zlib are empty; those of implausible size are left out."""
    found: dict[str, elf.Buffer] = {}
    left = MAX_DECOMPRESSED
    for section in elf.sections(data, head):
        name = section.name.replace(".zdebug_", ".debug_", 1)
        if section.type == elf.SHT_NOBITS or not name.startswith(".debug_") or name in found:
            continue
        raw = memoryview(data)[section.offset : section.offset + section.size]
        if name == section.name and not section.flags & SHF_COMPRESSED:
            found[name] = raw
            continue
        begin, size = _gnu_size(raw) if name != section.name else _size(raw, head)
        if size <= min(left, max(MAX_RATIO * len(raw), ANY_RATIO_BYTES)):
            left -= size
            found[name] = _inflated(raw[begin:], size, poll)
    return found


def _size(raw: memoryview, head: elf.Header) -> tuple[int, int]:
    """Sizes of the Elf_Chdr (gABI, chapter 4) and of the section inflated, 0 if it cannot be."""
    # 64 bits: type, reserved, size, alignment; 32 bits: type, size, alignment
    form = struct.Struct(head.prefix + ("IIQQ" if head.bits == 64 else "III"))
    fields = form.unpack_from(raw) if len(raw) >= form.size else (0, 0, 0)
    return form.size, fields[-2] if fields[0] == ELFCOMPRESS_ZLIB else 0


def _gnu_size(raw: memoryview) -> tuple[int, int]:
    """Likewise for .zdebug_…: "ZLIB", size in 8 bytes, big-endian (binutils, bfd/compress.c)."""
    return 12, int.from_bytes(raw[4:12], "big") if bytes(raw[:4]) == b"ZLIB" else 0


def _inflated(packed: memoryview, size: int, poll: Callable[[], None]) -> bytes:
    """At most `size` bytes; if the data is damaged, those before the damage."""
    decompressor, made = zlib.decompressobj(), bytearray()
    try:
        for at in range(0, len(packed), SLICE_BYTES):
            poll()
            if len(made) < size:
                made += decompressor.decompress(packed[at : at + SLICE_BYTES], size - len(made))
    except zlib.error:
        pass
    return bytes(made)
