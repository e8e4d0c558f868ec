"""Sections of debug information as streams for pyelftools. The streams count every read and copy
nothing.

pyelftools does not check lengths and counts, so a damaged file can make it read gigabytes.
Therefore the streams of a file share a `Meter`, which stops pyelftools after a number of reads, and
lets the user interrupt it. pyelftools reads field by field. Therefore a limit of reads limits both
time and memory, with about 5 µs and at most about 100 bytes for each read."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Optional

from findleaks.debuginfo import zstd
from findleaks.target import elf
from findleaks.value_classes import NamedTuple

# Maximum number of reads for one question, about 1.5 s. A variable in a large C++ program takes a
# few thousand
MAX_READS = 1 << 18
MAX_BYTES = 1 << 28  # maximum number of bytes read for one question
# Maximum number of one-byte reads of 0x80 or more in a row, because pyelftools does not limit the
# length of LEB128 numbers
MAX_LEB128 = 1 << 10
READS_BETWEEN_POLLS = 1 << 11  # reads between two polls for an interrupt: about 10 ms
# Maximum number of bytes of all compressed sections of a file together, after inflation
MAX_DECOMPRESSED = 1 << 30

MAX_RATIO, ANY_RATIO_BYTES = 64, 1 << 24
"""Largest ratio of inflated to compressed size, for sections that inflate to more than
ANY_RATIO_BYTES. zlib can reach 1,032. Debug information reaches about 10, and more if units share
tables of abbreviations."""

SLICE_BYTES = 1 << 16  # compressed bytes inflated between two polls for an interrupt

SHF_COMPRESSED, ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD = 0x800, 1, 2


class TooMuch(Exception):
    """Raised if a question takes more reads than any intact file needs."""


class Meter:
    """Counts and limits the reads of a file's streams. `stopped` records why the meter stopped
    them, because pyelftools converts the exception to its own. Further reads fail as well."""

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
        """Count a read of `size` bytes. Raises if the limit is exceeded, or if the user asked to
        stop."""
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

    def __init__(self, open_data: Callable[[], elf.Buffer], size: int, meter: Meter) -> None:
        """`open_data` is called at the first use. It returns the `size` bytes of the section, or
        fewer if the section is damaged."""
        self._open, self._size, self._meter, self._at, self._high = open_data, size, meter, 0, 0

    @cached_property
    def _data(self) -> memoryview:
        return memoryview(self._open())

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to an offset from the beginning (0), the current position (1), or the end (2)."""
        self._at = max(offset + (0, self._at, self._size)[whence], 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def until(self, end: int) -> Stream:
        """Return a stream over the same data that ends at `end`."""
        part = self._data[:end]
        return Stream(lambda: part, len(part), self._meter)

    def read(self, size: int = -1) -> bytes:
        """Read the next `size` bytes, or fewer at the end."""
        end = len(self._data) if size < 0 else self._at + size
        data = bytes(self._data[self._at : end])
        self._meter.count(len(data))
        self._at += len(data)
        self._high = self._high + 1 if size == 1 and data >= b"\x80" else 0
        if self._high > MAX_LEB128:
            raise TooMuch
        return data


class _Packed(NamedTuple):
    """A section as the file stores it. `unpack` returns the `size` bytes of the section; None if it
    is not compressed."""

    raw: memoryview
    size: int
    unpack: Optional[Callable[[memoryview, int, Callable[[], None]], bytes]] = None


class Sections(Mapping[str, elf.Buffer]):
    """The debug sections of a file by name (".debug_info" for ".zdebug_info"). A section is
    inflated when it is first used. Sections that cannot be inflated are empty, and those of
    implausible size are missing. If several sections have the same name, as .dwo files have for
    type units, the others are named ".debug_info.dwo#1" and so on."""

    def __init__(self, data: elf.Buffer, head: elf.Header, poll: Callable[[], None]) -> None:
        self._poll = poll
        self._packed: dict[str, _Packed] = {}
        self._counts: dict[str, int] = {}
        self._opened: dict[str, elf.Buffer] = {}
        left = MAX_DECOMPRESSED
        for section in elf.sections(data, head):
            name = section.name.replace(".zdebug_", ".debug_", 1)
            if section.type == elf.SHT_NOBITS or not name.startswith(".debug_"):
                continue
            if name in self._packed:
                more = self._counts[name] = self._counts.get(name, 0) + 1
                name = f"{name}#{more}"
            raw = memoryview(data)[section.offset : section.offset + section.size]
            if not section.name.startswith(".zdebug_") and not section.flags & SHF_COMPRESSED:
                self._packed[name] = _Packed(raw, len(raw))
                continue
            packed = _gnu_packed(raw) if section.name.startswith(".zdebug_") else _parse_header(raw, head)
            if packed.size <= min(left, max(MAX_RATIO * len(raw), ANY_RATIO_BYTES)):
                left -= packed.size
                self._packed[name] = packed

    def __getitem__(self, name: str) -> elf.Buffer:
        if name not in self._opened:
            packed = self._packed[name]
            self._opened[name] = packed.unpack(packed.raw, packed.size, self._poll) if packed.unpack is not None else packed.raw
        return self._opened[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)

    def every(self, name: str) -> list[elf.Buffer]:
        """Return all sections of this name."""
        names = [name, *(f"{name}#{number + 1}" for number in range(self._counts.get(name, 0)))]
        return [self[one] for one in names if one in self._packed]

    def size(self, name: str) -> int:
        """Return the number of bytes of a section after inflation, without inflating it; 0 if there
        is none."""
        return self._packed[name].size if name in self._packed else 0


def _parse_header(raw: memoryview, head: elf.Header) -> _Packed:
    """Parse the Elf_Chdr of a section (gABI, chapter 4); size 0 if it cannot be inflated."""
    # 64 bits: type, reserved, size, alignment; 32 bits: type, size, alignment
    form = struct.Struct(head.prefix + ("IIQQ" if head.bits == 64 else "III"))
    fields = form.unpack_from(raw) if len(raw) >= form.size else (0, 0, 0)
    unpack = {ELFCOMPRESS_ZLIB: _inflate, ELFCOMPRESS_ZSTD: zstd.unpack_section}.get(fields[0])
    return _Packed(raw[form.size :], fields[-2] if unpack is not None else 0, unpack or _nothing)


def _gnu_packed(raw: memoryview) -> _Packed:
    """Parse the header of .zdebug_…: "ZLIB", size in 8 bytes, big-endian (binutils,
    bfd/compress.c)."""
    return _Packed(raw[12:], int.from_bytes(raw[4:12], "big") if bytes(raw[:4]) == b"ZLIB" else 0, _inflate)


def _nothing(packed: memoryview, size: int, poll: Callable[[], None]) -> bytes:
    return b""


def _inflate(packed: memoryview, size: int, poll: Callable[[], None]) -> bytes:
    """Inflate at most `size` bytes. For damaged data, return the bytes before the damage."""
    decompressor, made = zlib.decompressobj(), bytearray()
    try:
        for at in range(0, len(packed), SLICE_BYTES):
            poll()
            if len(made) < size:
                made += decompressor.decompress(packed[at : at + SLICE_BYTES], size - len(made))
    except zlib.error:
        pass
    return bytes(made)
