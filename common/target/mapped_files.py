"""Read mapped files of a copied process after the process runs again.

An unmodified page of a mapped file has the contents of the file. A file is the mapped one if its
device and inode match /proc/PID/maps. If the file was deleted, or is in another container, the
memory of the process is read instead, provided that the same mapping still exists after the
read."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from typing import Optional

from findleaks.errors import UnreadableMemory
from findleaks.target.base import Range, Region
from findleaks.target.files import FilePlace, read_file
from findleaks.target.reader import Source

AHEAD = 16 << 10  # bytes read before and after a short read
_MOST_CHUNKS = 1 << 12  # most chunks in the cache, each up to 2 * AHEAD bytes
_MOST_FILES = 100  # most files open at once


class MappedFiles:
    """The mapped files of a process: `proc` is its folder under /proc, `maps` the text of its
    `maps` file at the stop."""

    def __init__(self, proc: str, maps: bytes, page: int) -> None:
        self._proc, self.page = proc, page
        self._lines = {int(line.partition(b"-")[0], 16): line for line in maps.split(b"\n") if line}
        # (descriptor or -1, size), by device and inode
        self._files: dict[bytes, tuple[int, int]] = {}
        self._memory: Optional[int] = None
        self.chunks: dict[int, bytes] = {}

    def read(self, region: Region, address: int, size: int) -> bytes:
        """Read [address, address + size), which is in the region. The result may be shorter."""
        line = self._lines.get(region.start, b"")
        file, length = self._file(region, line)
        if file < 0:
            return self._read_process(line, address, size)
        at = region.file_offset + address - region.start
        # The file's last page is padded with zeros; nothing beyond it can be read.
        end = -(-length // self.page) * self.page
        size = min(size, end - at)
        if size <= 0:
            return b""
        try:
            data = os.pread(file, size, at)
        except OSError:
            return b""
        return data + bytes(size - len(data)) if len(data) < size and at + len(data) >= length else data

    def data_parts(self, region: Region, start: int, end: int) -> list[Range]:
        """Return the parts of [start, end) that are not holes of the file; [] if the file cannot be
        opened. [start, end) is in the region."""
        file, length = self._file(region, self._lines.get(region.start, b""))
        move = region.start - region.file_offset
        last = min(end - move, -(-length // self.page) * self.page)
        return [] if file < 0 else [Range(low + move, high + move) for low, high in _data(file, start - move, last)]

    def end(self, region: Region) -> int:
        """Return the address in the region at which the file ends, rounded up to a page. If the
        file is longer or cannot be opened, return the end of the region."""
        file, length = self._file(region, self._lines.get(region.start, b""))
        last = region.start - region.file_offset + -(-length // self.page) * self.page
        return region.end if file < 0 else max(region.start, min(last, region.end))

    def _file(self, region: Region, line: bytes) -> tuple[int, int]:
        fields = line.split(None, 5)
        key = b" ".join(fields[3:5])
        known = self._files.get(key)
        if known is None:
            if len(self._files) >= _MOST_FILES:
                self._close_files()
            known = self._files[key] = self._open_region(region, fields)
        return known

    def _open_region(self, region: Region, fields: list[bytes]) -> tuple[int, int]:
        try:
            major, _, minor = fields[3].partition(b":")
            wanted = os.makedev(int(major, 16), int(minor, 16)), int(fields[4])
        except (IndexError, ValueError):
            return -1, 0
        link = f"{self._proc}/map_files/{region.start:x}-{region.end:x}"
        for place in (FilePlace(link), FilePlace(region.name, f"{self._proc}/root"), FilePlace(region.name)):
            try:
                fd = place.open()
            except (OSError, ValueError):
                continue
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) == wanted:
                return fd, found.st_size
            os.close(fd)
        return -1, 0

    def _read_process(self, line: bytes, address: int, size: int) -> bytes:
        try:
            if self._memory is None:
                self._memory = os.open(f"{self._proc}/mem", os.O_RDONLY | os.O_CLOEXEC)
            data = os.pread(self._memory, size, address)
            return data if line in read_file(f"{self._proc}/maps").split(b"\n") else b""
        except (OSError, OverflowError):
            return b""

    def _close_files(self) -> None:
        for fd, _ in self._files.values():
            if fd >= 0:
                os.close(fd)
        self._files.clear()

    def close(self) -> None:
        self._close_files()
        memory, self._memory = self._memory, None
        if memory is not None:
            os.close(memory)
        self.chunks.clear()


def _data(file: int, at: int, end: int) -> Iterator[Range]:
    """Yield the parts of [at, end) of an open file that are not holes, as whole pages."""
    while at < end:
        try:
            low = max(os.lseek(file, at, os.SEEK_DATA) // mmap.PAGESIZE * mmap.PAGESIZE, at)
            high = -(-os.lseek(file, low, os.SEEK_HOLE) // mmap.PAGESIZE) * mmap.PAGESIZE
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: only a hole follows
                yield Range(at, end)
            return
        if low < end:
            yield Range(low, min(high, end))
        at = max(high, at + mmap.PAGESIZE)


class MappedFile(Source):
    """One mapping of a file. Offsets are addresses of the process."""

    direct = False

    def __init__(self, files: MappedFiles, region: Region) -> None:
        super().__init__()
        self._files, self.region = files, region

    def part(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes from `offset` on. Raises UnreadableMemory if some of them are
        missing."""
        data = self._near(offset, size) if size <= AHEAD else self._files.read(self.region, offset, size)
        if len(data) < size:
            raise UnreadableMemory(offset, size, f"{self.region.name or 'the mapping'} cannot be read at {offset + len(data):#x}")
        return memoryview(data)

    def some(self, offset: int, size: int) -> memoryview:
        """Return at most `size` bytes from `offset` on, as many as exist, as a writable buffer."""
        return memoryview(bytearray(self._files.read(self.region, offset, size)))

    def data_parts(self, start: int, end: int) -> list[Range]:
        """See MappedFiles."""
        return self._files.data_parts(self.region, start, end)

    def ahead(self, offset: int, size: int) -> None:
        pass

    def _near(self, address: int, size: int) -> bytes:
        """Read and cache a few bytes together with the bytes around them."""
        base = max(address & -AHEAD, self.region.start)
        chunks = self._files.chunks
        data = chunks.get(base)
        if data is None:
            if len(chunks) >= _MOST_CHUNKS:
                chunks.clear()
            data = chunks[base] = self._files.read(self.region, base, min(2 * AHEAD, self.region.end - base))
        return data[address - base : address - base + size]
